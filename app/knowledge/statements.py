"""The statements of stored passages, with the vectors by which they are ranked.

A passage is read by the statement encoder once, when it is ingested, and its vectors are kept in the database. Passages
that have none yet, because another version of the program stored them, are read when they are first found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.documents import StoredPassage
from app.storage.library import Library
from retrieval.ranking.encoder import PassageToRead, StatementRanker
from retrieval.ranking.vectors import StatementVectors
from retrieval.statements.cut import VERSION, statements_of
from retrieval.statements.statement import Statement


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageStatements:
    """The statements of a passage and their vectors, in the same order."""

    statements: tuple[Statement, ...]
    vectors: StatementVectors


class StatementStore:
    """Reads passages, and remembers what it read. Safe to use from any thread."""

    def __init__(self, library: Library, encoder: StatementRanker) -> None:
        self._library, self.encoder = library, encoder
        self._name = f"{encoder.name} {VERSION}"  # statements that are cut otherwise have other vectors

    def of(self, passages: Sequence[StoredPassage]) -> list[PassageStatements]:
        """The statements of passages, in the passages' order."""
        cut = [statements_of(passage.text, passage.heading_path) for passage in passages]
        stored = self._library.statement_vectors(self._name, [passage.id for passage in passages])
        vectors = {id_: StatementVectors.unpacked(rows) for id_, rows in stored.items()}
        missing = [
            (passage, statements)
            for passage, statements in zip(passages, cut, strict=True)
            if passage.id not in vectors or len(vectors[passage.id]) != len(statements)
        ]
        if missing:
            read = self.encoder.read(
                [
                    PassageToRead(
                        headings=passage.heading_path or (passage.title,),
                        text=passage.text,
                        spans=[(one.start, one.end) for one in statements],
                    )
                    for passage, statements in missing
                ]
            )
            new = {passage.id: rows for (passage, _), rows in zip(missing, read, strict=True)}
            self._library.keep_statement_vectors(self._name, {id_: rows.packed() for id_, rows in new.items()})
            vectors |= new
        return [
            PassageStatements(statements=statements, vectors=vectors[passage.id])
            for passage, statements in zip(passages, cut, strict=True)
        ]
