"""Changes of documents and FAQ, and backups, each written to the audit log with its author.

Routes and commands use this and not the service, so that the log is complete. Out of scope: accounts and keys
(`app.access.identity`), and changes that the server makes itself, such as the document of the FAQ.
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
"""Number of paths of one ingestion that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The same methods as `Service` and its `quality`, each written to the audit log. who: see `app.storage.people`."""

    desk: Service
    record: Record
    who: str

    def ingest(
        self, paths: Iterable[Path], progress: Progress = no_progress, **options: Unpack[IngestOptions]
    ) -> IngestReport:
        named = list(paths)
        report = self.desk.ingest(named, progress, **options)
        more = f" +{len(named) - NAMED}" if len(named) > NAMED else ""
        self.record(self.who, "document-ingest", ", ".join(str(path.absolute()) for path in named[:NAMED]) + more)
        return report

    def upload(self, name: str, data: bytes, progress: Progress = no_progress, *, collection: str = "") -> IngestReport:
        report = self.desk.upload(name, data, progress, collection=collection)
        self.record(self.who, "document-add", f"{collection}/{name}" if collection else name)
        return report

    def forget(self, name: str) -> Forgotten:
        forgotten = self.desk.forget(name)
        self.record(self.who, "document-forget", forgotten.document)
        return forgotten

    def forget_collection(self, name: str) -> CollectionForgotten:
        forgotten = self.desk.forget_collection(name)
        self.record(self.who, "collection-forget", f"{name or '-'} ({forgotten.documents})")
        return forgotten

    def erase(self, owner: str) -> Erased:
        """Delete everything of an owner. The log does not name the owner, because the name would be a trace."""
        erased = self.desk.erase(owner)
        self.record(self.who, "visitor-erase", "")
        return erased

    def back_up(self, file: Path, progress: Progress = no_progress, **options: Unpack[BackupOptions]) -> Backup:
        """Make a backup, which is a copy of customers' text."""
        backup = self.desk.back_up(file, progress, **options)
        self.record(self.who, "backup", str(backup.file))
        return backup

    def save_faq(self, draft: FaqDraft, id_: int | None = None, progress: Progress = no_progress) -> FaqSaved:
        """Store a pair of the FAQ. The log has only its number, because its question may be a customer's."""
        saved = self.desk.quality.save_faq(draft, self.who, id_, progress)
        self.record(self.who, "faq-add" if id_ is None else "faq-change", str(saved.id))
        return saved

    def delete_faq(self, id_: int, progress: Progress = no_progress) -> None:
        self.desk.quality.delete_faq(id_, progress)
        self.record(self.who, "faq-delete", str(id_))
