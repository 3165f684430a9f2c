"""Keyword search: Okapi BM25 over the terms of passages' units (Robertson and Zaragoza 2009).

Finds what embeddings of a small model miss: model numbers, error codes, rare words, languages they do not know. An
index is a snapshot that never changes: `updated` gives another one, at the cost of what changed plus a few array
operations. Lives in memory only and is rebuilt from the stored passages. Not covered: phrases, synonyms, misspelling.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
from scipy import sparse

from retrieval.search.units import UNITS, unit_ids
from retrieval.text.terms import asked_words, stem, words

K1, B = 1.2, 0.75
"""Saturation of repeated terms, and how much long passages count less: the usual values; others were no better."""

LARGE, COMMON_RARITY = 10_000, 1.5
"""In an index of so many units, terms that more than a fifth of them have are left out of a query: they tell little and
cost most of the time."""
NEAR_COPY = 0.95
"""Share of their words that near copies have in common."""
DECISIVE = frozenset(
    """
    no not never none nor without except unless only cannot t zero one two three four five six seven eight
    nine ten eleven twelve fifteen twenty thirty forty fifty sixty ninety hundred thousand first second third
    half double once twice
    """.split()  # noqa: SIM905  # a list of words reads better so
)
"""English words that make another statement of the same words. Numbers of other scripts are known as such."""
DENIALS = frozenset("不没无未勿别非禁")
"""The same in Chinese and Japanese, where they are parts of words."""

Scores = npt.NDArray[np.float32]


class KeywordIndex:
    """An empty index; `updated` gives others. Reading is safe from several threads."""

    def __init__(self) -> None:
        self.units = np.zeros(0, np.int64)
        self.words: dict[str, int] = {}
        """Every word of the passages, folded, with its column of `_counts`."""
        self._counts = sparse.csr_matrix((0, 0), dtype=np.float32)
        self._weigh()

    def updated(self, removed: Collection[int], added: Mapping[int, Sequence[str]]) -> KeywordIndex:
        """A new index without some passages and with others, given by number with the texts of their units; of the same
        number, the new one counts. Words that no passage has any more are gone from it, too.
        """
        stays = ~np.isin(self.units // UNITS, np.array([*removed, *added], np.int64))
        kept = self._counts[stays]
        new = KeywordIndex()
        if stays.all():
            new.words = dict(self.words)
        else:
            in_use = np.flatnonzero(kept.getnnz(axis=0))
            kept = kept[:, in_use]
            by_column = list(self.words)  # words are inserted column by column
            new.words = {by_column[column]: number for number, column in enumerate(in_use.tolist())}
        columns, counts, starts = array("i"), array("f"), array("i", [0])  # a tenth of what lists of counters take
        for text in chain.from_iterable(added.values()):
            for word, count in Counter(words(text)).items():
                columns.append(new.words.setdefault(word, len(new.words)))
                counts.append(count)
            starts.append(len(columns))
        kept.resize(kept.shape[0], len(new.words))
        fresh = sparse.csr_matrix(
            (np.array(counts), np.array(columns), np.array(starts)), shape=(len(starts) - 1, len(new.words))
        )
        new._counts = sparse.vstack([kept, fresh], format="csr", dtype=np.float32)
        new.units = np.append(self.units[stays], unit_ids([id_ for id_, texts in added.items() for _ in texts]))
        new._weigh()
        return new

    def scores(self, query: str) -> Scores:
        """For each of `units`, how much of what the query asks for it has: the BM25 score over the highest that a unit
        could reach, 0 to 1. Words that no passage has count as asked for.
        """
        scores = np.zeros(len(self.units), np.float32)
        most = 0.0
        for term in dict.fromkeys(stem(word) for word in asked_words(query)):
            column = self.terms.get(term)
            if column is not None and len(self.units) >= LARGE and self._rarity[column] < COMMON_RARITY:
                continue
            most += self.rarity(term) * (K1 + 1)
            if column is not None:
                span = slice(self._weights.indptr[column], self._weights.indptr[column + 1])
                scores[self._weights.indices[span]] += self._weights.data[span]
        return scores / np.float32(most) if most else scores

    def is_near_copy(self, first: int, second: int) -> bool:
        """Whether two passages have nearly the same words: none that differs is a number or a denial."""
        wholes = (first * UNITS, second * UNITS)  # the first unit of each
        rows = [self._row_of[unit] for unit in wholes if unit in self._row_of]
        if len(rows) < 2:
            return False
        one, other = (self._counts.indices[slice(*self._counts.indptr[row : row + 2])] for row in rows)
        if len(np.intersect1d(one, other, assume_unique=True)) < NEAR_COPY * max(len(one), len(other)):
            return False
        by_column = list(self.words)
        different = [by_column[column] for column in np.setxor1d(one, other, assume_unique=True).tolist()]
        return not any(
            word in DECISIVE or not DENIALS.isdisjoint(word) or any(map(str.isnumeric, word)) for word in different
        )

    def rarity(self, term: str) -> float:
        """The inverse document frequency of a stemmed term; one that no passage has is the rarest."""
        column = self.terms.get(term)
        return self._rarest if column is None else float(self._rarity[column])

    def _weigh(self) -> None:
        """Count words of one stem together, and weigh them."""
        stems = [stem(word) for word in self.words]
        self.terms: dict[str, int] = {}
        columns = [self.terms.setdefault(term, len(self.terms)) for term in stems]
        ones = np.ones(len(stems), np.float32)
        merge = sparse.csr_matrix((ones, (np.arange(len(stems)), columns)), shape=(len(stems), len(self.terms)))
        weights = (self._counts @ merge).tocsc()
        number = len(self.units)
        lengths = np.asarray(weights.sum(axis=1)).ravel()
        self._row_of = {unit: row for row, unit in enumerate(self.units.tolist())}
        with_it = weights.getnnz(axis=0)
        self._rarity = np.log1p((number - with_it + 0.5) / (with_it + 0.5)).astype(np.float32)
        self._rarest = float(np.log1p((number + 0.5) / 0.5))
        relative = lengths / max(1.0, lengths.mean()) if number else lengths
        norm = (K1 * (1 - B + B * relative)).astype(np.float32)
        weights.data *= (K1 + 1) / (weights.data + norm[weights.indices])
        weights.data *= np.repeat(self._rarity, np.diff(weights.indptr))
        self._weights = weights
