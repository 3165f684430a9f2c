"""Delete documents from database, search, citations and every module tier, and check that nothing is left.

A module of another document may contain text of the deleted one, because it was encoded with a neighbour from it.
Modules of PML prompts and of older versions may contain such text as well. So only two kinds of modules stay: the
system text and the current encodings of passages. Passages that lost a neighbour are encoded again. The deletion waits
for questions that began before it, because they may store its modules again. It does not wait for later questions,
because they do not find the document.

A deletion is recorded (`app.storage.data_folder`). If it fails or is killed, the next deletion or start completes it.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from app.domain.errors import DeskError
from app.knowledge.ingest import Ingestion
from app.storage.data_folder import BegunWork
from app.storage.history import History
from app.storage.library import Library
from retrieval.search.vector_index import passage_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Numbers of parts of documents: passages in the database, windows in the vector and keyword index, stored
    citations with their text, modules in any tier or in prefixes in memory.
    """

    passages: int
    vectors: int
    keywords: int
    quotes: int
    modules: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A deleted document. removed: its parts before the deletion. left: parts that the final check found."""

    document: str
    removed: Footprint
    left: Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionForgotten:
    """The deleted documents of a collection."""

    collection: str
    documents: int
    removed: Footprint
    left: Footprint


class Forgetting:
    """Deletes documents."""

    def __init__(
        self,
        ingestion: Ingestion,
        history: History,
        begun: BegunWork,
        let_go: Callable[[Sequence[str]], None],
    ) -> None:
        """begun: records of unfinished deletions. let_go: deletes the other data of documents, given their paths."""
        self._ingestion, self._history = ingestion, history
        self._begun, self._let_go = begun, let_go
        self._library, self._search, self._warming = ingestion.library, ingestion.search, ingestion.open_warming()

    def forget(self, path: str) -> Forgotten:
        """Delete the document with exactly this path. Raises DeskError, also if the final check finds parts of it."""
        return Forgotten(document=path, **self._forget([path], path))

    def forget_collection(self, name: str, paths: Sequence[str]) -> CollectionForgotten:
        return CollectionForgotten(collection=name, documents=len(paths), **self._forget(paths, f"collection {name!r}"))

    def finish(self) -> None:
        if self._begun.left("forget"):
            self._forget([], "a document")

    def follow(self, *, is_forgotten: bool) -> None:
        """Drop the modules of passages that another server deleted or changed. is_forgotten: a document was deleted, so
        its text may also be in modules of PML prompts.
        """
        self._warming.forget_unused(with_pml=is_forgotten)

    def _forget(self, paths: Sequence[str], what: str) -> dict[str, Footprint]:
        """Delete documents, and complete earlier deletions that failed. what: name of this deletion in an error."""
        with self._ingestion.alone():
            left = self._begun.left("forget")
            again = (path for path, version in left.items() if self._version(path) in ("", version))
            paths = list(dict.fromkeys([*paths, *again]))
            self._begun.note("forget", {path: self._version(path) for path in paths})
            passages = [passage for path in paths for passage in self._library.passages_of(path)]
            ids = frozenset(passage.id for passage in passages)
            keys = frozenset(passage.module_key for passage in passages if passage.module_key is not None)
            removed = self._footprint(paths, ids, keys)
            self._forget_quotes(paths)
            self._library.clear_staged()
            in_use = self._library.module_keys()
            unencoded = self._library.all_ids(only_unencoded=True)
            self._ingestion.remove(paths)
            self._forget_quotes(paths)  # questions since the first call may have found the documents
            self._warming.forget_unused(with_pml=True)
            self._ingestion.restore_neighbours(unencoded)
            gone = in_use - self._library.module_keys()  # another document may have the same text
            self._let_go(paths)
            found = self._footprint(paths, ids, gone)
            if parts := ", ".join(f"{count} {name}" for name, count in asdict(found).items() if count):
                message = f"{what} is not deleted completely ({parts} left): try again"
                raise DeskError(message, code="forget-incomplete")
            self._begun.done("forget", [*paths, *left])
        return {"removed": removed, "left": found}

    def _version(self, path: str) -> str:
        """Return an id of the current document of this path; "" if there is none. A document added after the deletion
        began has another id and stays.
        """
        document = self._library.find(path)
        return "" if document is None else document.loaded_at.isoformat()

    def _forget_quotes(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._history.forget_document(path)

    def _footprint(self, paths: Sequence[str], ids: Collection[int], keys: frozenset[str]) -> Footprint:
        snapshot = self._search.snapshot
        return Footprint(
            passages=len(self._library.passages(sorted(ids))),
            vectors=len(snapshot.index.passage_ids & set(ids)),
            keywords=sum(passage_id(window) in ids for window in snapshot.keywords.window_ids.tolist()),
            quotes=sum(self._history.quotes_of(path) for path in paths),
            modules=len(self._warming.modules() & keys),
        )


def find_document(library: Library, name: str, others: Collection[str] = ()) -> str:
    """Return a document's path. name: the path or a unique suffix. others: more paths to search. Raises DeskError."""
    paths = [document.path for document in library.documents()]
    paths += [path for path in others if path not in paths]
    wanted = [name, str(Path(name).expanduser().absolute())]
    ends = "/" + name.lstrip("/")
    found = [path for path in paths if path in wanted] or [path for path in paths if path.endswith(ends)]
    if len(found) > 1:
        raise DeskError(
            f"{len(found)} document paths end in {name!r}: give more of the path, for example {found[0]!r}",
            code="document-ambiguous",
        )
    if not found:
        raise DeskError(f"there is no document {name!r}: `warmdesk documents` lists all", code="document-unknown")
    return found[0]
