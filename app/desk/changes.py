"""Changes of the documents and of the FAQ, and backups, in somebody's name: each is done by the desk and written to the
audit log.

Routes and commands make them through this and not through the desk itself, so that none goes unrecorded. Not covered:
accounts and keys (`app.access.identity`), and what the desk changes by itself, such as the document of the FAQ.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from app.desk.service import Service
from app.domain.callers import Record
from app.domain.progress import Progress, no_progress
from app.domain.quality import FaqDraft, FaqSaved
from app.knowledge.forget import CollectionForgotten, Forgotten
from app.knowledge.ingest import IngestOptions, IngestReport
from app.storage.archive import Backup, BackupOptions
from app.storage.conversation_care import Erased

NAMED = 3
"""Paths of one ingestion that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The same methods as `Service` and its `quality`, each written to the audit log. who: see `app.storage.people`."""

    desk: Service
    record: Record
    who: str

    def ingest(
        self, paths: Iterable[Path], progress: Progress = no_progress, **options: Unpack[IngestOptions]
    ) -> IngestReport:
        """Ingest files and folders."""
        named = list(paths)
        report = self.desk.ingest(named, progress, **options)
        more = f" +{len(named) - NAMED}" if len(named) > NAMED else ""
        self.record(self.who, "document-ingest", ", ".join(str(path.absolute()) for path in named[:NAMED]) + more)
        return report

    def upload(self, name: str, data: bytes, progress: Progress = no_progress, *, collection: str = "") -> IngestReport:
        """Keep a file and ingest it."""
        report = self.desk.upload(name, data, progress, collection=collection)
        self.record(self.who, "document-add", f"{collection}/{name}" if collection else name)
        return report

    def forget(self, name: str) -> Forgotten:
        """Remove a document and everything derived from it."""
        forgotten = self.desk.forget(name)
        self.record(self.who, "document-forget", forgotten.document)
        return forgotten

    def forget_collection(self, name: str) -> CollectionForgotten:
        """Remove all documents of a collection."""
        forgotten = self.desk.forget_collection(name)
        self.record(self.who, "collection-forget", f"{name or '-'} ({forgotten.documents})")
        return forgotten

    def erase(self, owner: str) -> Erased:
        """Remove everything of an owner, who is not named in the log: it would be a trace of its own."""
        erased = self.desk.erase(owner)
        self.record(self.who, "visitor-erase", "")
        return erased

    def back_up(self, file: Path, progress: Progress = no_progress, **options: Unpack[BackupOptions]) -> Backup:
        """Make a backup: it is a copy of what customers wrote."""
        backup = self.desk.back_up(file, progress, **options)
        self.record(self.who, "backup", str(backup.file))
        return backup

    def save_faq(self, draft: FaqDraft, id_: int | None = None, progress: Progress = no_progress) -> FaqSaved:
        """Store a pair of the FAQ. The log has its number: its question may be a customer's."""
        saved = self.desk.quality.save_faq(draft, self.who, id_, progress)
        self.record(self.who, "faq-add" if id_ is None else "faq-change", str(saved.id))
        return saved

    def delete_faq(self, id_: int, progress: Progress = no_progress) -> None:
        """Delete a pair of the FAQ."""
        self.desk.quality.delete_faq(id_, progress)
        self.record(self.who, "faq-delete", str(id_))
