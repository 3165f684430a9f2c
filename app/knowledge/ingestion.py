"""Documents in: load -> split -> index -> record -> choose neighbours -> warm modules.

Documents are taken in by batches. A batch is one transaction and one new snapshot of the search, so questions asked
meanwhile see all of a document or nothing of it. An interrupted run goes on where it stopped: unchanged files are
recognised by their bytes, passages by their content, vectors not yet in use are kept aside, modules are known by their
key. A file that cannot be read is reported and the rest goes on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from app.domain.documents import NewDocument, NewPassage, Replaced, Vectors
from app.domain.errors import DeskError
from app.domain.progress import Progress, unseen
from app.knowledge.memory import give_memory_back
from app.knowledge.neighbours import choose_neighbours, chosen_for
from app.knowledge.search import Search
from app.knowledge.warming import Warming
from app.storage.library import Library
from retrieval.documents.document import Document, Passage
from retrieval.documents.splitting import split
from retrieval.errors import UnreadableDocument
from retrieval.reading.files import find_files
from retrieval.reading.reader import FileReader
from retrieval.text.printing import printable

BATCH = 256
"""New passages from which on a batch is taken in."""
EMBEDDED_AT_ONCE = 64
"""Passages whose vectors are kept aside together."""
LONGEST_READING_S = 120.0
"""Seconds a file may take to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReason:
    """A file, and why it is not in, or what of it is not."""

    path: str
    reason: str


@dataclass(slots=True, kw_only=True)
class IngestReport:
    """What a run did.

    documents, passages: in the desk now, of those that were asked for. unchanged, replaced, removed: documents; removed
    ones only with sync. new, kept, dropped: passages of these documents. failed: files that are not in, or whose former
    content stays. warnings: files that are in, without a part. encoded, kept_modules, dropped_modules: modules, of
    these documents and of passages elsewhere that had none. waiting: passages for whose modules there is no room.
    *_seconds: reading and splitting, embedding, encoding.
    """

    documents: int = 0
    passages: int = 0
    unchanged: int = 0
    replaced: int = 0
    removed: int = 0
    new: int = 0
    kept: int = 0
    dropped: int = 0
    failed: list[FileReason] = field(default_factory=list)
    warnings: list[FileReason] = field(default_factory=list)
    encoded: int = 0
    kept_modules: int = 0
    dropped_modules: int = 0
    waiting: int = 0
    reading_seconds: float = 0.0
    embedding_seconds: float = 0.0
    encoding_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def passages_per_second(self) -> float | None:
        """New passages taken in, without encoding."""
        took = self.reading_seconds + self.embedding_seconds
        return round(self.new / took, 1) if self.new and took else None


@dataclass(frozen=True, slots=True)
class Due:
    """A document to be taken in, cut into passages."""

    document: NewDocument
    passages: tuple[Passage, ...]
    known: frozenset[str]

    @property
    def fresh(self) -> list[Passage]:
        """Its passages without a vector."""
        return [passage for passage in self.passages if passage.content_hash not in self.known]


class Ingestion:
    """Brings files into the library, the index and the module store; one run at a time."""

    def __init__(
        self,
        library: Library,
        search: Search,
        open_warming: Callable[[], Warming],
        count_tokens: Callable[[str], int],
        *,
        passage_tokens: int,
        neighbours: int,
    ) -> None:
        """open_warming: loads the model, when it is needed. neighbours: how many each passage is encoded behind; none
        if the model cannot make use of them.
        """
        self.library, self.search = library, search
        self._open_warming, self._count = open_warming, count_tokens
        self.passage_tokens, self.neighbours = passage_tokens, neighbours
        self._running = threading.Lock()

    def run(
        self,
        paths: Iterable[Path],
        progress: Progress = unseen,
        *,
        collection: str = "",
        sync: bool = False,
        warm: bool = True,
    ) -> IngestReport:
        """Ingest files and folders. sync: documents whose files are gone from the folders are removed. warm: encode
        passages ahead of questions. Raises DeskError or OSError when another run is on or the data folder cannot be
        written; what was done until then stays done.
        """
        paths = list(paths)
        with self.alone():
            started = time.perf_counter()
            report = IngestReport()
            try:
                known = self._take_in(list(find_files(paths)), collection, report, progress)
                if sync:
                    self._remove_missing(paths, known, report)
            finally:
                self.search.save()
            self.library.clear_staged()
            self._choose_neighbours(self.neighbours if self.neighbours and self._is_position_independent() else 0)
            if warm:
                self._warm(known, report, progress)
            report.seconds = round(time.perf_counter() - started, 3)
            return report

    def remove(self, path: str) -> Replaced | None:
        """Take a document out of library and search at once; None if there is none of that path. Its modules are the
        caller's to forget, who works alone.
        """
        changes = self.search.change(lambda: [found] if (found := self.library.remove(path)) else [])
        self.search.save()
        return changes[0] if changes else None

    def restore_neighbours(self, unread: Collection[int]) -> None:
        """After a document was removed: other neighbours for the passages that had one of it, which are encoded again,
        before this returns. unread: passages that were not encoded before, and are left so. Another number of
        neighbours in the settings waits for the next run. Raises as `run`.
        """
        if count := chosen_for(self.library):
            self._choose_neighbours(count)
            lost = set(self.library.all_ids(only_unencoded=True)).difference(unread)
            self._open_warming().encode(sorted(lost), unseen)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Change documents without another run. Raises DeskError if one is on."""
        if not self._running.acquire(blocking=False):
            raise DeskError("documents are being taken in already: wait until that is done", code="ingestion-running")
        try:
            yield
        finally:
            self._running.release()

    def _take_in(
        self, files: Sequence[tuple[Path, str | None]], collection: str, report: IngestReport, progress: Progress
    ) -> list[str]:
        """Read, split and store; gives the names of the documents that are in."""
        names: list[str] = []
        batch: list[Due] = []
        with FileReader(seconds=LONGEST_READING_S) as reader:
            for done, (path, problem) in enumerate(files):
                progress("reading", done, len(files))
                started = time.perf_counter()
                try:
                    if problem is not None:
                        raise UnreadableDocument(path, problem)
                    document = reader.load(path)
                except UnreadableDocument as error:
                    report.failed.append(FileReason(path=printable(path), reason=error.reason))
                else:
                    report.warnings += [FileReason(path=printable(path), reason=remark) for remark in document.remarks]
                    names.append(str(path.resolve()))
                    batch += self._due(names[-1], document, collection, report)
                report.reading_seconds += time.perf_counter() - started
                if sum(len(due.fresh) for due in batch) >= BATCH:
                    self._store(batch, report, progress)
                    batch = []
        progress("reading", len(files), len(files))
        if batch:
            self._store(batch, report, progress)
        return names

    def _due(self, name: str, document: Document, collection: str, report: IngestReport) -> list[Due]:
        before = self.library.find(name)
        report.documents += 1
        identity = f"{document.content_hash}/{self.passage_tokens}"  # split otherwise, it is not the same any more
        if before is not None and (before.content_hash, before.collection) == (identity, collection):
            report.unchanged += 1
            report.passages += before.num_passages
            report.kept += before.num_passages
            return []
        report.replaced += before is not None
        new = NewDocument(path=name, title=document.title, content_hash=identity, collection=collection)
        return [Due(new, split(document, self._count, self.passage_tokens), self.library.known_hashes(name))]

    def _store(self, batch: Sequence[Due], report: IngestReport, progress: Progress) -> None:
        started = time.perf_counter()
        vectors = self._embed([passage for due in batch for passage in due.fresh], progress)
        documents = [(due.document, self._new_passages(due, vectors)) for due in batch]
        for replaced in self.search.change(lambda: self.library.replace(documents)):
            report.passages += len(replaced.ids)
            report.new += len(replaced.new)
            report.kept += len(replaced.kept)
            report.dropped += len(replaced.removed)
            self._forget(replaced, report)
        report.embedding_seconds += time.perf_counter() - started

    def _new_passages(self, due: Due, vectors: dict[str, Vectors]) -> list[NewPassage]:
        return [
            NewPassage(
                heading_path=passage.heading_path,
                text=passage.text,
                content_hash=passage.content_hash,
                num_tokens=self._count(passage.text),
                embedding=vectors.get(passage.content_hash),
            )
            for passage in due.passages
        ]

    def _embed(self, passages: Sequence[Passage], progress: Progress) -> dict[str, Vectors]:
        """Vectors by content hash; those of an interrupted run are used."""
        by_hash = {passage.content_hash: passage for passage in passages}
        embedder = self.search.embedder
        vectors = self.library.staged(embedder.name, by_hash, embedder.dimension)
        missing = [passage for hash_, passage in by_hash.items() if hash_ not in vectors]
        for first in range(0, len(missing), EMBEDDED_AT_ONCE):
            some = missing[first : first + EMBEDDED_AT_ONCE]
            found = self.search.embed([(p.heading_path, p.text) for p in some])
            new = {passage.content_hash: rows for passage, rows in zip(some, found, strict=True)}
            self.library.stage(embedder.name, new)
            vectors |= new
            give_memory_back()
            progress("embedding", first + len(some), len(missing))
        return vectors

    def _remove_missing(self, paths: Sequence[Path], known: Sequence[str], report: IngestReport) -> None:
        """Remove documents below the folders whose files are not there any more."""
        folders = [path.resolve() for path in paths if path.is_dir()]
        there = frozenset(known)
        for document in self.library.documents():
            path = Path(document.path)
            is_below = any(path.is_relative_to(folder) for folder in folders)
            if is_below and document.path not in there and is_gone(path):
                replaced = self.remove(document.path)
                if replaced is not None:
                    report.removed += 1
                    report.dropped += len(replaced.removed)
                    self._forget(replaced, report)

    def _forget(self, replaced: Replaced, report: IngestReport) -> None:
        if gone := frozenset(replaced.removed_module_keys):
            report.dropped_modules += len(gone)
            self._open_warming().engine.forget(lambda _: gone)

    def _choose_neighbours(self, count: int) -> None:
        if gone := choose_neighbours(self.library, self.search, count):
            self._open_warming().engine.forget(lambda _: gone)

    def _is_position_independent(self) -> bool:
        return self._open_warming().engine.model.info.is_position_independent

    def _warm(self, documents: Sequence[str], report: IngestReport, progress: Progress) -> None:
        started = time.perf_counter()
        warmed = self._open_warming().run(documents, progress)
        report.encoded, report.kept_modules, report.waiting = warmed.encoded, warmed.kept, warmed.waiting
        report.encoding_seconds = time.perf_counter() - started


def is_gone(path: Path) -> bool:
    """Whether a file is certainly not there any more: one in a folder that may not be entered is not gone."""
    try:
        return not path.exists()
    except OSError:
        return False
