"""Taking a document out of the desk: database, search, citations and every module tier, and looking whether anything of
it is left.

Every module goes that neither is the system text nor encodes a passage as it is now, because any may hold the
document's text: modules of passages that had one of its passages as neighbour, of PML prompts, and whatever was left
behind by changes. Passages that lost a neighbour get others and are encoded again. Questions asked before the document
went are answered first, because they may bring modules of it back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from app.domain.errors import DeskError
from app.domain.tenants import PML_TENANT
from app.knowledge.ingestion import Ingestion
from app.knowledge.preparations import Preparations
from app.knowledge.prompting import PromptBuilder
from app.knowledge.search import Search
from app.storage.history import History
from app.storage.library import Library
from cache.engine.engine import Engine
from cache.memory.keys import PUBLIC_TENANT
from retrieval.search.windows import passage_id

FORGETTING = "forgetting"
"""Fact that names a document that is being forgotten: after a failure it can be forgotten again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """What there is of a document: rows of passages, windows in the vector and the keyword index, stored citations with
    its words, modules in any tier.
    """

    passages: int
    vectors: int
    keywords: int
    quotes: int
    modules: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A document that is gone. removed: what there was of it. left: what was found when it was looked for again."""

    document: str
    removed: Traces
    left: Traces


class Forgetting:
    """Forgets documents of one desk."""

    def __init__(
        self,
        library: Library,
        history: History,
        search: Search,
        engine: Engine,
        prompts: PromptBuilder,
        preparations: Preparations,
        ingestion: Ingestion,
    ) -> None:
        self._library, self._history, self._search = library, history, search
        self._engine, self._prompts, self._preparations, self._ingestion = engine, prompts, preparations, ingestion

    def forget(self, path: str) -> Forgotten:
        """Forget the document of exactly this path. Raises DeskError, also if anything of it is left."""
        with self._ingestion.alone():
            self._library.set_fact(FORGETTING, path)
            forgotten = self._forget(path)
            self._library.set_fact(FORGETTING, "")
        return forgotten

    def _forget(self, path: str) -> Forgotten:
        passages = self._library.passages_of(path)
        ids = frozenset(passage.id for passage in passages)
        keys = frozenset(passage.module_key for passage in passages if passage.module_key is not None)
        removed = self._traces(path, ids, keys)
        self._history.forget_document(path)
        self._library.clear_staged()
        in_use = self._library.module_keys()
        unread = self._library.all_ids(only_unencoded=True)
        self._ingestion.remove(path)
        self._preparations.wait()
        self._forget_strays()
        self._ingestion.restore_neighbours(unread)
        gone = in_use - self._library.module_keys()  # another document may have the same text
        forgotten = Forgotten(document=path, removed=removed, left=self._traces(path, ids, gone))
        if any(asdict(forgotten.left).values()):
            left = ", ".join(f"{count} {name}" for name, count in asdict(forgotten.left).items() if count)
            raise DeskError(f"{path} is not forgotten completely ({left} left): run it again", code="forget-incomplete")
        return forgotten

    def _traces(self, path: str, ids: Collection[int], keys: frozenset[str]) -> Traces:
        retriever = self._search.retriever
        return Traces(
            passages=len(self._library.passages(sorted(ids))),
            vectors=sum(id_ in retriever.index.passage_ids for id_ in ids),
            keywords=sum(passage_id(window) in ids for window in retriever.keywords.window_ids.tolist()),
            quotes=self._history.quotes_of(path),
            modules=len(self._engine.call(lambda store: store.keys_of(PUBLIC_TENANT)) & keys),
        )

    def _forget_strays(self) -> None:
        system = self._engine.store.key(self._engine.segment(self._prompts.system))
        known = self._library.module_keys() | {system}
        self._engine.forget(lambda store: store.keys_of(PML_TENANT) | (store.keys_of(PUBLIC_TENANT) - known))


def find_document(library: Library, name: str) -> str:
    """The path of a document, given it or an unambiguous end of it. Raises DeskError."""
    paths = [document.path for document in library.documents()]
    if (begun := library.fact(FORGETTING)) and begun not in paths:
        paths.append(begun)
    wanted = [name, str(Path(name).expanduser().absolute())]
    found = [path for path in paths if path in wanted] or [
        path for path in paths if path.endswith("/" + name.lstrip("/"))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise DeskError(
            f"{len(found)} documents end in {name!r}: give more of the path, for example {found[0]!r}",
            code="document-ambiguous",
        )
    raise DeskError(
        f"there is no document {name!r}: `warmdesk documents` lists what there is",
        code="document-unknown",
    )
