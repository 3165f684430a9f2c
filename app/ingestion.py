"""Documents in: load -> split -> index -> record -> choose neighbours -> warm modules.

Each document is one transaction, so an interrupted run has whole documents only and the next run goes on where it
stopped: unchanged files are recognised by their bytes, passages by their content, modules by their key. A file that
cannot be read is reported and the rest goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path

from app.library import Library
from app.neighbours import choose_neighbours, chosen_for
from app.prompting import PassageText, PromptBuilder
from app.search import Search
from app.stored import NewDocument, NewPassage, Replaced, StoredPassage, Vectors
from cache.engine import Engine
from cache.pml import Text
from retrieval.documents import Document, Passage
from retrieval.errors import UnreadableDocument
from retrieval.files import find_files
from retrieval.loaders import load
from retrieval.printing import printable
from retrieval.splitting import split

Progress = Callable[[str, int, int], None]
"""Called with a stage ("reading" or "encoding"), how much of it is done, and how much there is."""

JOBS_IN_FLIGHT = 4
"""Batches of passages queued for encoding at once: enough to fill the engine's passes."""

OTHERS_AT_ONCE = 32
"""Passages in a batch of those from elsewhere; otherwise a batch is a document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedFile:
    """A file that is not in, and why."""

    path: str
    reason: str


@dataclass(slots=True, kw_only=True)
class IngestReport:
    """What a run did. documents, passages: in the desk now, of those that were asked for. unchanged, replaced:
    documents. removed: passages that no longer exist. encoded, kept: modules, of these documents and of passages
    elsewhere that had none (they got other neighbours, or a run was interrupted).
    """

    documents: int = 0
    passages: int = 0
    unchanged: int = 0
    replaced: int = 0
    removed: int = 0
    failed: list[FailedFile] = field(default_factory=list)
    encoded: int = 0
    kept: int = 0
    seconds: float = 0.0


class Ingestion:
    """Brings files into the library, the index and the module store."""

    def __init__(
        self,
        library: Library,
        search: Search,
        engine: Engine,
        prompts: PromptBuilder,
        *,
        passage_tokens: int,
        neighbours: int,
    ) -> None:
        """neighbours: how many each passage is encoded behind; none if the model cannot make use of them."""
        self.library, self.search, self.engine, self.prompts = library, search, engine, prompts
        self.passage_tokens = passage_tokens
        self.neighbours = neighbours if engine.model.info.is_relocatable else 0

    def run(self, paths: Iterable[Path], progress: Progress = lambda stage, done, total: None) -> IngestReport:
        """Ingest files and folders. Raises DeskError or OSError when the data folder cannot be written; what was
        done until then stays done.
        """
        started = time.perf_counter()
        report = IngestReport()
        files = list(find_files(paths))
        known: list[str] = []
        try:
            for done, (path, problem) in enumerate(files):
                progress("reading", done, len(files))
                try:
                    if problem is not None:
                        raise UnreadableDocument(path, problem)
                    known.append(self._take_in(path, report))
                except UnreadableDocument as error:
                    report.failed.append(FailedFile(path=printable(path), reason=error.reason))
            progress("reading", len(files), len(files))
        finally:
            self.search.publish()
        self._choose_neighbours(self.neighbours)
        self._warm(known, report, progress)
        report.seconds = round(time.perf_counter() - started, 3)
        return report

    def restore_neighbours(self) -> None:
        """After a document was removed: other neighbours for the passages that had one of it, which are encoded again,
        before this returns. Another number of neighbours in the settings waits for the next run. Raises as `run`.
        """
        if count := chosen_for(self.library):
            self._choose_neighbours(count)
            self._warm((), IngestReport(), lambda stage, done, total: None)

    def _choose_neighbours(self, count: int) -> None:
        if gone := choose_neighbours(self.library, self.search, count):
            self.engine.forget(gone)

    def _take_in(self, path: Path, report: IngestReport) -> str:
        document = load(path)
        name = str(path.resolve())
        before = self.library.find(name)
        report.documents += 1
        if before is not None and before.content_hash == self._identity(document):
            report.unchanged += 1
            report.passages += before.num_passages
            return name
        replaced = self._store(name, document)
        report.replaced += before is not None
        report.passages += len(replaced.ids)
        report.removed += len(replaced.removed)
        if gone := frozenset(replaced.removed_module_keys):
            self.engine.forget(gone)
        return name

    def _store(self, name: str, document: Document) -> Replaced:
        passages = split(document, self._count, self.passage_tokens)
        known = self.library.known_hashes(name)
        vectors = self._embed([p for p in passages if p.content_hash not in known])
        replaced = self.library.replace(
            NewDocument(path=name, title=document.title, content_hash=self._identity(document)),
            [
                NewPassage(
                    heading_path=p.heading_path,
                    text=p.text,
                    content_hash=p.content_hash,
                    num_tokens=self._count(p.text),
                    embedding=vectors.get(p.content_hash),
                )
                for p in passages
            ],
        )
        self.search.apply(replaced)
        return replaced

    def _identity(self, document: Document) -> str:
        """Content of a document and how it is split: with another passage length it is not the same any more."""
        return f"{document.content_hash}/{self.passage_tokens}"

    def _embed(self, passages: Sequence[Passage]) -> dict[str, Vectors]:
        vectors = self.search.embed([(p.heading_path, p.text) for p in passages])
        return {passage.content_hash: rows for passage, rows in zip(passages, vectors, strict=True)}

    def _count(self, text: str) -> int:
        return len(self.engine.model.tokenizer.encode([Text(text=text)]))

    def _warm(self, documents: Sequence[str], report: IngestReport, progress: Progress) -> None:
        """Encode what is not encoded yet, of these documents and elsewhere, a few batches ahead of the engine."""
        running: dict[Future[int], int] = {}
        inside = self.library.ids_of(documents)
        others = [id_ for id_ in self.library.all_ids(only_unencoded=True) if id_ not in inside]
        total, done = report.passages + len(others), 0

        def collect(*, everything: bool) -> None:
            nonlocal done
            while running and (everything or len(running) >= JOBS_IN_FLIGHT):
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    count = running.pop(future)
                    encoded = future.result()
                    report.encoded += encoded
                    report.kept += count - encoded
                    done += count
                    progress("encoding", done, total)

        for passages in self._batches(documents, others):
            units = [self.engine.unit(self.prompts.module(passage_of(p))) for p in passages]
            keys = [self.engine.store.key(unit) for unit in units]
            changed = {p.id: key for p, key in zip(passages, keys, strict=True) if p.module_key != key}
            if changed:
                self.library.set_module_keys(changed)
            running[self.engine.encode(units)] = len(units)
            collect(everything=False)
        collect(everything=True)
        self.engine.store.flush()

    def _batches(self, documents: Sequence[str], others: Sequence[int]) -> Iterator[list[StoredPassage]]:
        for name in documents:
            yield self.library.passages_of(name)
        for first in range(0, len(others), OTHERS_AT_ONCE):
            yield self.library.passages(others[first : first + OTHERS_AT_ONCE])


def passage_of(passage: StoredPassage) -> PassageText:
    """A stored passage as the prompt needs it."""
    return PassageText(
        name=f"{passage.document}#{passage.ordinal}",
        title=passage.title,
        heading_path=passage.heading_path,
        text=passage.text,
        neighbours=tuple(passage_of(neighbour) for neighbour in passage.neighbours),
    )
