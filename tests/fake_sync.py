"""Synchronised folders of a fake desk: kept in a dict; what a reading did is told by the folder's name.

Words that matter: "gone" is a folder that is not there, "busy" is refused because documents are taken in already, in
"mixed" two files cannot be read. Anything else has three new documents.
"""

from dataclasses import replace
from datetime import timedelta

from app.domain.documents import SyncedFolder, SyncResult, UnreadFile
from app.domain.errors import DeskError
from app.domain.progress import no_progress

UNREAD = (
    UnreadFile(path="/srv/mixed/scan.pdf", reason="no text in it: it may be a scan; make a text layer with OCR"),
    UnreadFile(path="/srv/mixed/logo.png", reason="this kind of file is not read"),
)


class FakeSync:
    """Has the methods of `Synchronising` that pages call."""

    def __init__(self, now):
        self.now = now
        self.folders = {}
        self.said = []

    def all(self):
        return [self.folders[name] for name in sorted(self.folders)]

    def save(self, folder, collection, every_minutes, *, who):
        if not folder.startswith("/"):
            raise DeskError(f"{folder!r} is not an absolute path of a folder", code="sync-relative")
        saved = SyncedFolder(folder=folder, collection=collection, every_minutes=every_minutes, next_run=self.now)
        self.folders[folder] = saved
        self.said.append((who, "save", folder))
        return saved

    def remove(self, folder, *, who):
        if folder not in self.folders:
            raise DeskError(f"{folder} is not synchronised", code="sync-unknown")
        del self.folders[folder]
        self.said.append((who, "remove", folder))

    def run(self, folder, progress=no_progress, *, who):
        if "busy" in folder:
            raise DeskError("documents are already being ingested", code="ingestion-running")
        progress("reading", 1, 3)
        result = SyncResult(added=3, unchanged=9)
        if "gone" in folder:
            result = SyncResult(code="sync-gone", problem=f"there is no folder {folder!r}")
        if "mixed" in folder:
            result = SyncResult(changed=1, removed=2, unchanged=7, files=UNREAD, num_files=len(UNREAD))
        one = self.folders[folder]
        next_run = self.now + timedelta(minutes=one.every_minutes)
        self.folders[folder] = replace(one, last_run=self.now, last_result=result, next_run=next_run)
        self.said.append((who, "run", folder))
        return result
