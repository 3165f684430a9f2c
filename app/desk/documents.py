"""The documents of an open desk: ingest, upload, delete, encode in the background, follow other servers."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Unpack

from app.desk.overview import passage_states, stored_tiers
from app.desk.parts import Loading, Parts, part
from app.desk.repeating import Following
from app.domain.documents import PassageState
from app.domain.errors import DeskError
from app.domain.progress import Bars, DocumentsRead, PassagesRead, Progress, ReadingCost, no_bars, no_progress
from app.domain.quality import FAQ
from app.domain.settings import Settings
from app.knowledge.forget import CollectionForgotten, Forgetting, Forgotten, find_document
from app.knowledge.ingest import IngestOptions, IngestReport
from app.knowledge.uploads import Synchronising
from app.knowledge.warm import ReadingAhead, kept_modules
from app.knowledge.websites import Websites
from app.storage.data_folder import Kind
from app.storage.document_change import Desks
from app.storage.faq import SyncedFolderTable
from app.storage.people import Audit
from app.storage.statistics import Statistics
from app.support.faq import FaqEditor, Publisher, document_of, write_document
from cache.errors import CacheError
from cache.memory.disk import TierContents
from retrieval.errors import RetrievalError

log = logging.getLogger(__name__)


class DeskDocuments(Parts):
    """The part of `Service` that changes documents. Methods may raise DeskError, CacheError or RetrievalError."""

    def __init__(self, settings: Settings, **loading: Unpack[Loading]) -> None:
        super().__init__(settings, **loading)
        folders = SyncedFolderTable(self.database)
        self._websites = Websites(settings, lambda: [one.path for one in self.library.documents()], self.ingest)
        record = Audit(self.database).record
        self.synced = Synchronising(folders, record, self._ingest_synced, self._websites, settings.data_dir)
        self.following: Following | None = None
        if self.database.is_shared:
            desks = Desks(self.database)
            self.following = Following(self.library, desks, self._follow, lambda: self.search.save())
        self._followed: dict[str, datetime] = {}  # deletions that this server has applied completely
        self._ahead: ReadingAhead | None = None
        self._documents_read: DocumentsRead | None = None

    @part
    def _faq_editor(self) -> FaqEditor:
        publisher = Publisher(
            take_in=lambda file, progress: self.ingest([file], progress, collection=FAQ),
            forget=self._forget_faq,
            reload=self.curated.reload,
            vectors_of=self.curated.vectors_of,
            try_out=self._answering.try_out,
        )
        return FaqEditor(self._faq, self.settings.faq_file, publisher, self.begun)

    def finish_begun(self) -> None:
        """Finish interrupted or failed work in the data folder (`app.storage.data_folder`), and restore the FAQ's file.
        The caller has the lock on the folder. Work that fails again is logged and left for the next start.
        """
        finishing: dict[Kind, Callable[[], None]] = {
            "forget": lambda: self._forgetting.finish(),
            "upload": lambda: self._uploads.finish(),
            "faq": lambda: self._faq_editor.finish() if self.begun.left("faq") else self._restore_faq_file(),
        }
        for kind, finish in finishing.items():
            if kind == "faq" or self.begun.left(kind):
                try:
                    finish()
                except (DeskError, CacheError, RetrievalError, OSError) as error:
                    log.warning("unfinished work (%s) failed again and is retried at the next start: %s", kind, error)

    def _restore_faq_file(self) -> None:
        file, pairs = self.settings.faq_file, self._faq.pairs()
        if file.exists() and file.read_bytes() != document_of(pairs):
            write_document(file, pairs)

    def read_ahead(self, bars: Bars = no_bars, when_read: Callable[[], None] = lambda: None) -> None:
        """Start to encode passages without a module in the background. when_read: called once, when all have one."""
        assert self._ahead is None
        if self.is_elsewhere:
            when_read()
            return
        self._ahead = ReadingAhead(self._warming, bars, when_read).start()

    def passages_read(self) -> PassagesRead | None:
        return None if self._ahead is None else self._ahead.state

    def ingest(
        self, paths: Iterable[Path], progress: Progress = no_progress, **options: Unpack[IngestOptions]
    ) -> IngestReport:
        before = self.library.counts().documents

        def noting(stage: str, done: int, total: int) -> None:
            if stage == "reading":
                self._documents_read = DocumentsRead(read=done, total=total, is_most=2 * before < total)
            progress(stage, done, total)

        try:
            return self._ingestion.run(paths, noting, **options)
        finally:
            self._documents_read = None
            self._documents_changed()

    def documents_read(self) -> DocumentsRead | None:
        return self._documents_read

    def forget(self, name: str) -> Forgotten:
        """Delete a document. name: its path, or a unique suffix of it. Raises DeskError."""
        path = find_document(self.library, name, self.begun.left("forget"))
        forgotten = self._forgetting.forget(path)
        self._forgotten()
        return forgotten

    def forget_collection(self, name: str) -> CollectionForgotten:
        """Delete a collection. Raises DeskError for the FAQ, and for a synchronised folder's collection."""
        if name == FAQ:
            raise DeskError("FAQ questions are deleted one by one, on the page FAQ", code="collection-faq")
        if folders := [one.folder for one in self.synced.all() if one.collection == name]:
            message = f"the folder {folders[0]!r} is synchronised into this collection: remove that folder first"
            raise DeskError(message, code="collection-synced")
        paths = [one.path for one in self.library.documents() if one.collection == name]
        if not paths:
            raise DeskError(f"there are no documents in the collection {name!r}", code="collection-unknown")
        forgotten = self._forgetting.forget_collection(name, paths)
        self._forgotten()
        return forgotten

    def _let_go(self, paths: Sequence[str]) -> None:
        if self.is_ready():
            self._answering.meter.clear()
        for path in paths:
            self._uploads.delete(Path(path))
            self._websites.forget(path)
        if self.settings.faq_document in paths:  # otherwise its text would return with the next pair
            self._faq.delete()
            self.settings.faq_file.unlink(missing_ok=True)
            self.curated.reload()

    def _forgotten(self) -> None:
        self._documents_changed()
        if self.following is not None:
            self.following.wait_for_others()

    def _follow(self) -> None:
        forgotten = self.history.forgotten()
        new = forgotten.items() - self._followed.items()
        is_removed = self.search.follow()
        self.curated.reload()
        self._forgetting.follow(is_forgotten=bool(new))
        if is_removed:
            self.search.save()
        for path, moment in new:
            if self.library.find(path) is None:
                self._uploads.delete(Path(path), moment)
                self._websites.forget(path)
        if self.settings.faq_file.exists():
            write_document(self.settings.faq_file, self._faq.pairs())
        self.engine.keep(kept_modules(self.library))
        self._answering.meter.clear()
        self._documents_changed()
        self._followed = forgotten

    @property
    def _forgetting(self) -> Forgetting:
        return Forgetting(self._ingestion, self.history, self.begun, self._let_go)

    def _ingest_synced(self, folder: Path, collection: str, progress: Progress) -> IngestReport:
        return self.ingest([folder], progress, collection=collection, sync=True, warm=False)

    def passages(self, path: str, first: int, most: int) -> list[PassageState]:
        passages = self.library.passages_of(path, first, most)
        states = passage_states(passages, Statistics(self.database), self._tiers())
        return [replace(state, tier="elsewhere") for state in states] if self.is_elsewhere else states

    def _forget_faq(self) -> None:
        if self.library.find(self.settings.faq_document) is not None:
            self.forget(self.settings.faq_document)

    def _documents_changed(self) -> None:
        if self._ahead is not None:
            self._ahead.look_again()

    def upload(self, name: str, data: bytes, progress: Progress = no_progress, *, collection: str = "") -> IngestReport:
        """Store an upload (`Uploads.take`). The model encodes it in the background."""
        try:
            return self._uploads.take(name, data, progress, collection)
        finally:
            self._documents_changed()

    def reading_cost(self, neighbours: int) -> ReadingCost:
        if self.is_elsewhere:
            return ReadingCost(modules=0, seconds=0.0)
        encoded = [one.num_tokens for one in self.library.module_sizes() if one.module_key is not None]
        seconds = sum(encoded) * (1 + neighbours) * self.engine.seconds_per_token
        return ReadingCost(modules=len(encoded), seconds=seconds)

    def _tiers(self, *, with_modules: bool = True) -> TierContents:
        if self.is_elsewhere:
            return TierContents()
        return self._held(with_modules=with_modules) if self._is_engine_running() else stored_tiers(self.settings)

    def _held(self, *, with_modules: bool) -> TierContents:
        try:
            return self.engine.contents(with_modules)
        except CacheError as error:
            log.warning("the contents of the engine's memory are unknown: %s", error)
            return TierContents()

    def _is_engine_running(self) -> bool:
        return self.is_open("engine") and self.engine.is_running
