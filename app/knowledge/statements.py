"""The statements of stored passages, with the vectors by which they are ranked.

A passage is cut and read by the statement encoder once, when it is ingested, and both are kept in the database.
Passages that have none yet, because another version of the program stored them, are read when they are first found.
"""

import json
import logging
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import cached_property

import numpy as np

from app.domain.documents import StoredPassage
from app.storage.library import Library
from retrieval.errors import RetrievalError, first_line
from retrieval.ranking.encoder import PassageToRead, StatementRanker
from retrieval.ranking.vectors import StatementVectors
from retrieval.statements.cut import VERSION, statements_of
from retrieval.statements.statement import Statement

log = logging.getLogger(__name__)
_FORMAT = 2  # of `PassageStatements.packed`
_SIZE = 4  # bytes of the length of the first part


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageStatements:
    """The statements of a passage and their vectors, in the same order."""

    statements: tuple[Statement, ...]
    vectors: StatementVectors

    def packed(self) -> bytes:
        """Both in one byte string, to be stored."""
        cut = json.dumps([astuple(one) for one in self.statements], ensure_ascii=False).encode("utf-8", "surrogatepass")
        return len(cut).to_bytes(_SIZE, "little") + cut + self.vectors.packed()

    @classmethod
    def unpacked(cls, stored: bytes) -> "PassageStatements":
        """What `packed` gave. Raises ValueError for other bytes."""
        behind = _SIZE + int.from_bytes(stored[:_SIZE], "little")
        cut = json.loads(stored[_SIZE:behind].decode("utf-8", "surrogatepass"))
        return cls(statements=tuple(Statement(*one) for one in cut), vectors=StatementVectors.unpacked(stored[behind:]))


class StatementStore:
    """Reads passages, and remembers what it read. Safe to use from any thread.

    name: of what is kept; statements that are cut or read otherwise have another.
    """

    def __init__(self, library: Library, encoder: StatementRanker) -> None:
        self._library, self.encoder = library, encoder
        self._unreadable = set[int]()
        self.name = f"{encoder.name} {VERSION}.{_FORMAT}"

    def of(self, passages: Sequence[StoredPassage]) -> list[PassageStatements]:
        """The statements of passages, in the passages' order; none of a passage that the encoder cannot read."""
        stored = self._library.statement_vectors(self.name, [passage.id for passage in passages])
        found = {id_: PassageStatements.unpacked(kept) for id_, kept in stored.items()}
        if missing := [
            passage for passage in passages if passage.id not in found and passage.id not in self._unreadable
        ]:
            new = self._readable(missing)
            self._library.keep_statement_vectors(self.name, {id_: one.packed() for id_, one in new.items()})
            found |= new
        if unread := [passage.id for passage in passages if passage.id not in found]:
            found |= dict.fromkeys(unread, self._nothing)
        return [found[passage.id] for passage in passages]

    def _readable(self, passages: Sequence[StoredPassage]) -> dict[int, PassageStatements]:
        """The statements of those passages that can be read, by number. The others are read again at the next start."""
        try:
            return dict(zip((passage.id for passage in passages), self._read(passages), strict=True))
        except Exception as error:  # of any library below
            if len(passages) > 1:
                return {id_: one for passage in passages for id_, one in self._readable([passage]).items()}
            [bad] = passages
            log.warning("%s: the statements of %r cannot be read: %s", bad.document, bad.label, first_line(error))
            self._unreadable.add(bad.id)
            return {}

    @cached_property
    def _nothing(self) -> PassageStatements:
        [vectors] = self.encoder.read([PassageToRead(headings=(), text="", spans=[])])
        return PassageStatements(statements=(), vectors=vectors)

    def _read(self, passages: Sequence[StoredPassage]) -> list[PassageStatements]:
        cut = [statements_of(passage.text, passage.heading_path) for passage in passages]
        read = self.encoder.read(
            [
                PassageToRead(
                    headings=passage.heading_path or (passage.title,),
                    text=passage.text,
                    spans=[(one.start, one.end) for one in statements],
                )
                for passage, statements in zip(passages, cut, strict=True)
            ]
        )
        if not all(np.isfinite(vectors.whole).all() for vectors in read):
            raise RetrievalError(f"the ranker {self.encoder.name} gave a vector with undefined numbers")
        return [
            PassageStatements(statements=statements, vectors=vectors)
            for statements, vectors in zip(cut, read, strict=True)
        ]
