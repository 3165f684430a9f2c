"""Synchronised folders of a fake desk: kept in a dict; what a reading did is told by the folder's name.

Words that matter: "gone" is a folder that is not there, "busy" is refused because documents are taken in already, in
"mixed" two files cannot be read, "held" is a website with many missing pages. Anything else has three new documents.
"""

from dataclasses import replace
from datetime import timedelta

from app.domain.documents import WHOLE_SITE, ReasonCount, SyncedFolder, SyncResult, UnreadFile
from app.domain.errors import DeskError
from app.domain.progress import no_progress

UNREAD = (
    UnreadFile(path="/srv/mixed/scan.pdf", reason="no text in it: it may be a scan; make a text layer with OCR"),
    UnreadFile(path="/srv/mixed/logo.png", reason="this kind of file is not read"),
)
REASONS = (
    ReasonCount(reason="read", number=34, examples=("https://help.example.com/returns",)),
    ReasonCount(reason="robots", number=2, examples=("https://help.example.com/private",)),
    ReasonCount(reason="login", number=1, examples=("https://help.example.com/orders (status 401)",)),
)


class FakeSync:
    """Has the methods of `Synchronising` that pages call."""

    def __init__(self, now):
        self.now = now
        self.folders = {}
        self.said = []
        self.in_progress = {}

    def all(self):
        return [self.folders[name] for name in sorted(self.folders)]

    def running(self):
        return self.in_progress

    def stop(self, folder, *, who):
        self.said.append((who, "stop", folder))

    def try_out(self, folder, site, progress):
        self.said.append(("", "try", folder))
        return REASONS

    def save(self, folder, collection, every_minutes, site=WHOLE_SITE, *, who):
        if not folder.startswith(("/", "http")):
            raise DeskError(f"{folder!r} is not an absolute path of a folder", code="sync-relative")
        saved = SyncedFolder(folder=folder, collection=collection, every_minutes=every_minutes, next_run=self.now)
        saved = replace(saved, site=site)
        self.folders[folder] = saved
        self.said.append((who, "save", folder))
        return saved

    def remove(self, folder, *, who):
        if folder not in self.folders:
            raise DeskError(f"{folder} is not synchronised", code="sync-unknown")
        del self.folders[folder]
        self.said.append((who, "remove", folder))

    def run(self, folder, progress=no_progress, *, who, accepts_losses=False):
        if "busy" in folder:
            raise DeskError("documents are already being ingested", code="ingestion-running")
        progress("reading", 1, 3)
        result = SyncResult(added=3, unchanged=9)
        if "gone" in folder:
            result = SyncResult(code="sync-gone", problem=f"there is no folder {folder!r}")
        if "mixed" in folder:
            result = SyncResult(changed=1, removed=2, unchanged=7, files=UNREAD, num_files=len(UNREAD))
        if folder.startswith("http"):
            result = replace(result, reasons=REASONS)
        if "held" in folder and not accepts_losses:
            result = SyncResult(code="sync-held", problem="12 of 20 pages are gone", reasons=REASONS)
        one = self.folders[folder]
        next_run = self.now + timedelta(minutes=one.every_minutes)
        self.folders[folder] = replace(one, last_run=self.now, last_result=result, next_run=next_run)
        self.said.append((who, "run", folder))
        return result
