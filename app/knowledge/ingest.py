"""Ingestion: load -> split -> embed -> store -> choose neighbours -> encode modules.

Documents are stored in batches. A batch is one new snapshot of the search, so questions see all of a document or
nothing of it. A run after an interrupted run repeats no finished work: unchanged files are recognised by their bytes,
passages by their content, modules by their key. Computed vectors are in a separate table until their passages are
stored. Work is stored every few seconds, so repeatedly interrupted runs also finish. Only reading one large file starts
again. A file that cannot be read or embedded is reported, and the other files are ingested.

Neighbours are related passages that precede a passage while it is encoded: its KV has attended to them (FusionRAG,
SIGMOD 2026). They are chosen by embedding, stored in the database, and part of the module's key. New passages do not
change the neighbours of stored passages, so most modules stay. The result depends on the order of ingestion. Neighbours
are chosen again when one of them is changed or deleted, and when the setting `neighbours` changes. They must be in the
same collection as the passage, because its encoding contains information from them.

Out of scope: encoding (`warm`), the place of neighbours in a prompt (`prompts`).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import TypedDict, Unpack

from app.domain.documents import NewDocument, NewPassage, Replaced, StoredDocument, UnreadFile, Vectors
from app.domain.errors import DeskError
from app.domain.progress import Progress, no_progress
from app.knowledge.finder import StatementStore
from app.knowledge.search import Search
from app.knowledge.warm import Warming, WarmReport
from app.storage.library import Library
from retrieval.documents import Document, Passage, content_hash, read_bytes, split
from retrieval.errors import UnreadableDocument, first_line
from retrieval.reading import FileReader, find_files
from retrieval.text.terms import printable

NEIGHBOURS = "neighbours"
"""Key of a stored value: the setting `neighbours` with which the stored neighbours were chosen."""
CHOOSING = "choosing neighbours"
"""Key of a stored value while all neighbours are chosen again: the new setting, and the last finished passage."""
NOTHING_CHOSEN = "0 0"
CHOSEN_AT_ONCE = 100


def chosen_for(library: Library) -> int:
    return int(library.fact(NEIGHBOURS) or 0)


def choose_neighbours(library: Library, search: Search, count: int) -> frozenset[str]:
    """Choose `count` neighbours for every passage without neighbours; for all passages if `count` has changed. A
    passage whose neighbours change loses its module. Return the modules that no passage uses any more. The search must
    contain all passages. Raises DeskError. If this is interrupted, the next call continues.
    """
    is_other = count != chosen_for(library)
    if not count and not is_other:
        return frozenset()
    due = set(library.all_ids(only_alone=True))
    if is_other:
        wanted, last = (library.fact(CHOOSING) or NOTHING_CHOSEN).split()
        chosen_until = int(last) if int(wanted) == count else 0  # by an interrupted call
        due.update(id_ for id_ in library.all_ids() if id_ > chosen_until)
    inside = {name: library.ids_in([name]) for name in library.collections()}
    ids, unused = sorted(due), set[str]()
    for first in range(0, len(ids), CHOSEN_AT_ONCE):
        some = ids[first : first + CHOSEN_AT_ONCE]
        chosen: dict[int, Sequence[int]] = dict.fromkeys(some, ())
        if count:
            for within in inside.values():
                chosen |= search.nearest([id_ for id_ in some if id_ in within], count, within=within)
        unused |= set(library.set_neighbours(chosen))
        if is_other:
            library.set_fact(CHOOSING, f"{count} {some[-1]}")
    if is_other:
        library.set_fact(NEIGHBOURS, str(count))
        library.set_fact(CHOOSING, NOTHING_CHOSEN)
    return frozenset(unused)


BATCH = 32  # a batch is stored when it has this many new passages,
BATCH_S = 2.0  # or when reading and the expected work with its passages take this many seconds together
PASSAGE_S = 0.25  # expected seconds of work with a passage, until they are measured
COUNTED = 1024  # texts whose number of tokens is cached: a passage is counted twice, when it is cut and stored
READ_AT_ONCE = 8  # passages whose statements are encoded together: few, so that a run can be stopped
LONGEST_READING_S = 120.0
LONGEST_PATH = 2500  # maximum bytes of a document's path: PostgreSQL's index allows few more
IS_IT_MOUNTED = "is its disk mounted? Unwanted documents can be deleted with `warmdesk forget`"


class IngestOptions(TypedDict, total=False):
    """Options of a run. collection: of the documents, "" (default) for none. sync: delete documents whose files are
    gone from the given folders, default False. warm: encode passages before questions need them, default True. names:
    names by file, for documents that are not identified by their path. gone: documents to delete.
    """

    collection: str
    sync: bool
    warm: bool
    names: Mapping[Path, str]
    gone: Sequence[str]


@dataclass(slots=True, kw_only=True)
class PassageChanges:
    """Number of new, kept and dropped passages of the given files."""

    new: int = 0
    kept: int = 0
    dropped: int = 0


@dataclass(slots=True, kw_only=True)
class IngestTimings:
    """Seconds of each stage; reading includes splitting."""

    reading: float = 0.0
    embedding: float = 0.0
    encoding: float = 0.0


@dataclass(slots=True, kw_only=True)
class IngestReport:
    """The result of a run. documents, passages: numbers stored of the given files. failed: files that were not
    ingested; their earlier versions stay. warnings: incomplete files. modules: includes earlier passages that had no
    module.
    """

    documents: int = 0
    passages: int = 0
    unchanged: int = 0
    replaced: int = 0
    removed: int = 0
    failed: list[UnreadFile] = field(default_factory=list)
    warnings: list[UnreadFile] = field(default_factory=list)
    changes: PassageChanges = field(default_factory=PassageChanges)
    modules: WarmReport = field(default_factory=WarmReport)
    timings_s: IngestTimings = field(default_factory=IngestTimings)
    seconds: float = 0.0

    @property
    def passages_per_second(self) -> float | None:
        """Return new passages per second of reading and embedding; None without new passages."""
        seconds = self.timings_s.reading + self.timings_s.embedding
        return round(self.changes.new / seconds, 1) if self.changes.new and seconds else None


@dataclass(frozen=True, slots=True)
class SplitDocument:
    """A document that is not stored yet. embedded: hashes of its stored passages. is_new: it replaces no document."""

    document: NewDocument
    passages: tuple[Passage, ...]
    embedded: frozenset[str]
    is_new: bool

    @property
    def new_passages(self) -> list[Passage]:
        return [passage for passage in self.passages if passage.content_hash not in self.embedded]


class Ingestion:
    """Adds files to the library, the index and the module store; one run at a time."""

    def __init__(
        self,
        library: Library,
        search: Search,
        statements: StatementStore,
        open_warming: Callable[[], Warming],
        count_tokens: Callable[[str], int],
        *,
        passage_tokens: int,
        neighbours: Callable[[], int],
        names: Mapping[Path, str],
    ) -> None:
        """open_warming: loads the model; called when it is needed. passage_tokens: maximum length of a passage.
        neighbours: returns the number of neighbours per passage. names: names by file, for documents that are not
        identified by their path.
        """
        self._clock = time.monotonic
        self.library, self.search, self.statements = library, search, statements
        self.open_warming, self._count_tokens = open_warming, count_tokens
        self._count = lru_cache(COUNTED)(lambda text: self._count_tokens(text))
        self.passage_tokens, self.neighbours, self._names = passage_tokens, neighbours, dict(names)
        self._run_names: Mapping[Path, str] = {}
        self._running = threading.Lock()
        self._is_alone: Callable[[], bool] = lambda: True
        self._unused = set[str]()  # modules of dropped passages, deleted together, because that waits for all answers

    def run(
        self, paths: Iterable[Path], progress: Progress = no_progress, **options: Unpack[IngestOptions]
    ) -> IngestReport:
        """Ingest files. Raises DeskError or OSError if another run is active or the data folder cannot be written."""
        with self.alone():
            report, known = self.run_alone(list(paths), progress, **options)
        if options.get("warm", True):  # other runs may change documents during this
            self._warm(known, report, progress)
        return report

    def run_alone(
        self, paths: Sequence[Path], progress: Progress, **options: Unpack[IngestOptions]
    ) -> tuple[IngestReport, list[str]]:
        """Ingest within `alone`, without encoding. Also return the documents' names. Raises the errors of `run`."""
        started = time.perf_counter()
        report = IngestReport()
        self._run_names = options.get("names", {})
        try:
            files = [(path, problem or self._problem_of_name(path)) for path, problem in find_files(paths)]
            collection = options.get("collection", "")
            stored = {one.path: one for one in self.library.documents()}
            unchanged = {
                path: stored[self._name(path)]
                for path, problem in files
                if problem is None and self._is_unchanged(path, collection, stored)
            }
            new = [file for file in files if file[0] not in unchanged]
            known = [*self._store_files(new, collection, report, progress), *map(self._name, unchanged)]
            for path, document in unchanged.items():
                self._keep(path, document, document.remarks or (), report)
            if options.get("sync", False):
                found = {str(path.resolve()) for path, problem in files if problem is None}
                self._remove_missing(paths, frozenset(known), found, report)
            self._remove(options.get("gone", ()), report)
        finally:
            self._count.cache_clear()  # of texts, which may be deleted later
            self.search.save()
            if self._unused:  # another document may have the same text now
                self._forget_modules(self._unused - self.library.module_keys())
                self._unused = set()
        self.library.clear_staged()
        self._choose_neighbours(self.neighbours())
        began = self._clock()
        self._read_statements(self.library.without_statements(self.statements.name), progress)
        report.timings_s.embedding += self._clock() - began
        for passage in self.library.passages(self.library.without_statements(self.statements.name)):
            reason = f"no statement of {passage.label!r} can be quoted: the ranker cannot read it"
            report.warnings.append(UnreadFile(path=printable(passage.document), reason=reason))
        report.seconds = round(time.perf_counter() - started, 3)
        return report, known

    def remove(self, paths: Sequence[str]) -> Sequence[Replaced]:
        """Remove documents and return the changes. The caller deletes modules, and calls this within `alone`."""
        if not paths:
            return ()
        self._check_alone()
        changes = self.search.change(lambda: self.library.remove(paths), gone=self.library.ids_of(paths))
        self.search.save()
        return changes

    def restore_neighbours(self, unencoded: Collection[int]) -> None:
        """After a deletion, choose new neighbours for passages that lost one, and encode these passages again.
        unencoded: passages that had no module before; they are not encoded now. A changed setting `neighbours` has no
        effect before the next run. Raises the errors of `run`.
        """
        if count := chosen_for(self.library):
            self._choose_neighbours(count)
            lost = set(self.library.all_ids(only_unencoded=True)).difference(unencoded)
            self.open_warming().encode(sorted(lost), no_progress)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude other runs during the block, also in other servers. Raises DeskError if one is active."""
        if not self._running.acquire(blocking=False):
            raise DeskError("documents are already being ingested: wait until that is done", code="ingestion-running")
        try:
            with self.library.alone() as is_alone:
                self._is_alone = is_alone
                if not is_alone():
                    raise DeskError("another server is ingesting documents: try again later", code="ingestion-running")
                if self.library.is_shared:
                    self.search.follow()  # the changes of the other runs
                yield
        finally:
            self._running.release()

    def _check_alone(self) -> None:
        if not self._is_alone():
            message = "the database connection that locked the documents was lost: run the command again"
            raise DeskError(message, code="database-lost")

    def _store_files(
        self, files: Sequence[tuple[Path, str | None]], collection: str, report: IngestReport, progress: Progress
    ) -> list[str]:
        """Store documents. While a batch is embedded, the previous batch is stored and the next batch is read."""
        names = list[str]()
        with ThreadPoolExecutor(1) as beside:
            batches = chain(self._batches(files, names, collection, report, progress), ([],))
            batch = next(batches)
            vectors = beside.submit(self._vectors, batch, progress)
            for following in batches:
                started = self._clock()
                documents = self._embedded(batch, vectors.result, report)
                vectors = beside.submit(self._vectors, following, progress)
                self._store(batch, documents, report)
                report.timings_s.embedding += self._clock() - started
                batch = following
        return names

    def _batches(
        self,
        files: Sequence[tuple[Path, str | None]],
        names: list[str],
        collection: str,
        report: IngestReport,
        progress: Progress,
    ) -> Iterator[list[SplitDocument]]:
        """Read and split files. names: gets the names of the documents that are read."""
        if not files:
            return
        batch, began = list[SplitDocument](), 0.0
        with FileReader(seconds=LONGEST_READING_S) as reader:
            for done, (path, problem) in enumerate(files):
                progress("reading", done, len(files))
                started = time.perf_counter()
                try:
                    if problem is not None:
                        raise UnreadableDocument(path, problem)
                    document = reader.load(path)
                    names.append(self._name(path))
                    batch += self._split_if_changed(names[-1], document, collection, report)
                    began = began or self._clock()
                    report.warnings += (UnreadFile(path=self._shown(path), reason=one) for one in document.remarks)
                except UnreadableDocument as error:
                    report.failed.append(UnreadFile(path=self._shown(path), reason=error.reason))
                report.timings_s.reading += time.perf_counter() - started
                if batch and (self._is_due(batch, began, report) or done + 1 == len(files)):
                    yield batch
                    batch, began = [], 0.0
        progress("reading", len(files), len(files))

    def _is_due(self, batch: Sequence[SplitDocument], began: float, report: IngestReport) -> bool:
        new, before = sum(len(one.new_passages) for one in batch), report.changes.new
        expected = new * (report.timings_s.embedding / before if before else PASSAGE_S)
        return new >= BATCH or self._clock() - began + expected >= BATCH_S

    def _name(self, path: Path) -> str:
        place = path.resolve()
        return self._names.get(place) or self._run_names.get(place, str(place))

    def _shown(self, path: Path) -> str:
        return printable(self._run_names.get(path.resolve(), path))

    def _problem_of_name(self, path: Path) -> str | None:
        size = len(self._name(path).encode("utf-8", "backslashreplace"))
        problem = f"its path has {size:,} bytes, the limit is {LONGEST_PATH:,}: move it to a shorter path"
        return problem if size > LONGEST_PATH else None

    def _identity(self, hash_: str) -> str:
        return f"{hash_}/{self.passage_tokens}"  # passages of another length are other passages

    def _is_unchanged(self, path: Path, collection: str, stored: Mapping[str, StoredDocument]) -> bool:
        """Return whether the stored file has the same bytes. This is faster than reading the document."""
        before = stored.get(self._name(path))
        if before is None or before.collection != collection or before.remarks is None:
            return False
        try:
            return before.content_hash == self._identity(content_hash(read_bytes(path)))
        except UnreadableDocument:
            return False

    def _keep(self, path: Path, document: StoredDocument, remarks: Sequence[str], report: IngestReport) -> None:
        report.documents += 1
        report.unchanged += 1
        report.passages += document.num_passages
        report.changes.kept += document.num_passages
        report.warnings += (UnreadFile(path=self._shown(path), reason=one) for one in remarks)

    def _split_if_changed(
        self, name: str, document: Document, collection: str, report: IngestReport
    ) -> list[SplitDocument]:
        before = self.library.find(name)
        identity = self._identity(document.content_hash)
        if before is not None and (before.content_hash, before.collection) == (identity, collection):
            self.library.set_remarks(name, document.remarks)
            self._keep(document.path, before, (), report)  # the caller reports remarks
            return []
        new = NewDocument(
            path=name,
            title=document.title,
            content_hash=identity,
            collection=collection,
            url=document.url,
            remarks=document.remarks,
        )
        try:
            passages = split(document, self._count, self.passage_tokens)
        except Exception as error:  # from any tokenizer
            raise UnreadableDocument(document.path, f"it cannot be cut into passages: {first_line(error)}") from error
        return [SplitDocument(new, passages, self.library.known_hashes(name), is_new=before is None)]

    def _store(
        self,
        batch: Sequence[SplitDocument],
        documents: Sequence[tuple[NewDocument, list[NewPassage]]],
        report: IngestReport,
    ) -> None:
        self._check_alone()
        changes = self.search.change(lambda: self.library.replace(documents))
        report.documents += len(changes)
        stored = {document.path for document, _ in documents}
        report.replaced += sum(not one.is_new and one.document.path in stored for one in batch)
        for replaced in changes:
            report.passages += len(replaced.ids)
            report.changes.new += len(replaced.new)
            report.changes.kept += len(replaced.kept)
            self._drop(replaced, report)

    def _vectors(self, batch: Sequence[SplitDocument], progress: Progress) -> Mapping[str, Vectors]:
        return self.search.vectors_of([passage for one in batch for passage in one.new_passages], progress)

    def _embedded(
        self, batch: Sequence[SplitDocument], found: Callable[[], Mapping[str, Vectors]], report: IngestReport
    ) -> list[tuple[NewDocument, list[NewPassage]]]:
        """Return documents with vectors. found: waits for the vectors. A document that fails is reported."""
        try:
            vectors = found()
            return [(one.document, [self._new_passage(p, vectors) for p in one.passages]) for one in batch]
        except (DeskError, OSError):  # from database or disk, not because of a document
            raise
        except Exception as error:  # from any embedder or tokenizer
            if len(batch) > 1:
                alone = [([one], partial(self._vectors, [one], no_progress)) for one in batch]
                return [done for one, found in alone for done in self._embedded(one, found, report)]
            reason = f"it cannot be embedded: {first_line(error)}"
            report.failed.append(UnreadFile(path=printable(batch[0].document.path), reason=reason))
            return []

    def _read_statements(self, ids: Sequence[int], progress: Progress) -> None:
        def read(first: int) -> None:
            self.statements.of(self.library.passages(ids[first : first + READ_AT_ONCE]))
            progress("embedding", len(ids), len(ids))

        with ThreadPoolExecutor(2) as both:  # one encodes while the other cuts and stores
            deque(both.map(read, range(0, len(ids), READ_AT_ONCE)), maxlen=0)

    def _new_passage(self, passage: Passage, vectors: Mapping[str, Vectors]) -> NewPassage:
        return NewPassage(
            heading_path=passage.heading_path,
            text=passage.text,
            content_hash=passage.content_hash,
            num_tokens=self._count(passage.text),
            embedding=vectors.get(passage.content_hash),
        )

    def _remove_missing(
        self, paths: Sequence[Path], known: Collection[str], found: Collection[str], report: IngestReport
    ) -> None:
        """Delete documents whose files are gone from these folders. known: the documents read in this run. found: all
        files that existed when the run began; they stay, because their disk may have been unmounted since. A folder
        without any readable document loses no document, because its disk may be unmounted.
        """
        stored = [Path(document.path) for document in self.library.documents()]
        missing = list[str]()
        for folder in (path.resolve() for path in paths if path.is_dir()):
            below = [path for path in stored if path.is_relative_to(folder)]
            if below and not any(str(path) in known for path in below):
                reason = f"no document in it can be read now, so its {len(below)} documents stay: {IS_IT_MOUNTED}"
                report.failed.append(UnreadFile(path=printable(folder), reason=reason))
                continue
            missing += [str(path) for path in below if str(path) not in found and is_gone(path)]
        self._remove(list(dict.fromkeys(missing)), report)

    def _remove(self, documents: Sequence[str], report: IngestReport) -> None:
        for replaced in self.remove(documents):
            report.removed += 1
            self._drop(replaced, report)

    def _drop(self, replaced: Replaced, report: IngestReport) -> None:
        report.changes.dropped += len(replaced.removed)
        report.modules.dropped += len(replaced.removed_module_keys)
        self._unused.update(replaced.removed_module_keys)

    def _choose_neighbours(self, count: int) -> None:
        self._forget_modules(choose_neighbours(self.library, self.search, count))

    def _forget_modules(self, keys: Set[str]) -> None:
        if keys:
            warming = self.open_warming()
            warming.in_flight.wait()  # earlier questions may store them again
            warming.engine.settle()
            warming.engine.forget(keys)

    def _warm(self, documents: Sequence[str], report: IngestReport, progress: Progress) -> None:
        started, warming = time.perf_counter(), self.open_warming()
        warming.forget_unused()
        report.modules = replace(warming.run(documents, progress), dropped=report.modules.dropped)
        report.timings_s.encoding = time.perf_counter() - started
        report.seconds = round(report.seconds + report.timings_s.encoding, 3)


def is_gone(path: Path) -> bool:
    """Return whether a file certainly does not exist, or a link has replaced it."""
    try:
        return not path.exists() or path.resolve() != path
    except OSError:
        return False
