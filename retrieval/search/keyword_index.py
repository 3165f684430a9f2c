"""Keyword search: Okapi BM25 over the stems of the passages' windows (Robertson and Zaragoza 2009).

Finds what a small embedder misses: model numbers, error codes, rare words, languages it does not know. An index is a
snapshot that never changes: `updated` gives another one, at the cost of the change and a few array operations. It is
kept in memory only and is rebuilt from the stored passages. Not covered: phrases, synonyms, misspelt words.
"""

from array import array
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, compress

import numpy as np
import numpy.typing as npt
from scipy import sparse

from retrieval.search.windows import WINDOWS_PER_PASSAGE, passage_ids, window_ids
from retrieval.text.language import language_of
from retrieval.text.stems import Stems
from retrieval.text.terms import asked_words, words

K1, B = 1.2, 0.75
"""Saturation of repeated terms, and how much long windows count less: the usual values; others were no better."""
LARGE, COMMON_RARITY = 10_000, 1.5
"""In an index of at least LARGE windows, a query leaves out terms that more than a fifth of the windows have: they say
little and cost most of the time."""
NEAR_COPY = 0.95  # share of their words that near copies have in common
DECISIVE = frozenset(  # English words that change what a sentence says; digits of all scripts need no list
    """no not never none nor without except unless only cannot t zero one two three four five six seven eight nine ten
    eleven twelve fifteen twenty thirty forty fifty sixty ninety hundred thousand first second third half double once
    twice""".split()  # noqa: SIM905  # a list of words reads better so
)
DENIALS = frozenset("不没无未勿别非禁")  # the same in Chinese and Japanese, where they are parts of words

Scores = npt.NDArray[np.float32]


class KeywordIndex:
    """An empty index; `updated` gives others. Reading is safe from several threads."""

    def __init__(self) -> None:
        self.window_ids = np.zeros(0, np.int64)  # of each row of `_counts`
        self.languages = np.zeros(0, "<U2")  # of each row: that of its passage
        self.words: dict[str, int] = {}  # every word of the passages, folded, with its column of `_counts`, in order
        self._counts = sparse.csr_matrix((0, 0), dtype=np.float32)
        self._weigh()

    def updated(self, removed: Collection[int], added: Mapping[int, Sequence[str]]) -> "KeywordIndex":
        """A new index without the passages `removed` and with the texts of the windows of the passages `added`, which
        replace those they had. Words that no passage has any more are left out.
        """
        stays = ~np.isin(passage_ids(self.window_ids), [*removed, *added])
        kept = self._counts[stays]
        in_use = kept.getnnz(axis=0) > 0
        kept = kept[:, in_use]
        new = KeywordIndex()
        new.words = {word: column for column, word in enumerate(compress(self.words, in_use))}
        columns, counts, starts = array("i"), array("f"), array("i", [0])  # a tenth of the memory of lists
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
        new.window_ids = np.append(
            self.window_ids[stays], window_ids([id_ for id_, texts in added.items() for _ in texts])
        )
        languages = [language_of(texts[0]) if texts else "" for texts in added.values()]
        of_windows = np.repeat(np.array(languages, "<U2"), list(map(len, added.values())))
        new.languages = np.append(self.languages[stays], of_windows)
        new._weigh()
        return new

    def scores(self, query: str) -> Scores:
        """For each of `window_ids`, how much of the query it has, 0 to 1: its BM25 score divided by the highest score
        that a window could reach. Words that no passage has are part of the query.
        """
        scores = np.zeros(len(self.window_ids), np.float32)
        most = 0.0
        for term in dict.fromkeys(map(self.stems, asked_words(query))):
            column = self.terms.get(term)
            if column is not None and len(self.window_ids) >= LARGE and self._rarity[column] < COMMON_RARITY:
                continue
            most += self.rarity(term) * (K1 + 1)
            if column is not None:
                span = slice(self._weights.indptr[column], self._weights.indptr[column + 1])
                scores[self._weights.indices[span]] += self._weights.data[span]
        return scores / np.float32(most) if most else scores

    def is_near_copy(self, first: int, second: int) -> bool:
        """Whether two passages have nearly the same words, and no word that differs is a number or a negation."""
        wholes = (first * WINDOWS_PER_PASSAGE, second * WINDOWS_PER_PASSAGE)
        rows = [self._row_of[window] for window in wholes if window in self._row_of]
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
        """The inverse document frequency of a stemmed term; a term that no passage has is the rarest."""
        column = self.terms.get(term)
        return self._rarest if column is None else float(self._rarity[column])

    def _weigh(self) -> None:
        """Add up the counts of words with the same stem, and compute the BM25 weight of each stem in each window."""
        self.stems = self._stems()
        stems = list(map(self.stems, self.words))
        self.terms: dict[str, int] = {}
        columns = [self.terms.setdefault(term, len(self.terms)) for term in stems]
        ones = np.ones(len(stems), np.float32)
        merge = sparse.csr_matrix((ones, (np.arange(len(stems)), columns)), shape=(len(stems), len(self.terms)))
        weights = (self._counts @ merge).tocsc()
        number = len(self.window_ids)
        lengths = np.asarray(weights.sum(axis=1)).ravel()
        self._row_of = {window: row for row, window in enumerate(self.window_ids.tolist())}
        with_it = weights.getnnz(axis=0)
        self._rarity = np.log1p((number - with_it + 0.5) / (with_it + 0.5)).astype(np.float32)
        self._rarest = float(np.log1p((number + 0.5) / 0.5))
        relative = lengths / max(1.0, lengths.mean()) if number else lengths
        norm = (K1 * (1 - B + B * relative)).astype(np.float32)
        weights.data *= (K1 + 1) / (weights.data + norm[weights.indices])
        weights.data *= np.repeat(self._rarity, np.diff(weights.indptr))
        self._weights = weights

    def _stems(self) -> Stems:
        """Each word belongs to the language of most windows that have it; of equals to the more frequent one."""
        names, numbers = np.unique(self.languages, return_counts=True)
        by_frequency = names[np.argsort(-numbers, kind="stable")]
        with_word = [self._counts[self.languages == name].getnnz(axis=0) for name in by_frequency]
        languages = by_frequency[np.argmax(with_word, axis=0)].tolist() if with_word else []
        return Stems(dict(zip(self.words, languages, strict=True)), tuple(by_frequency.tolist()))
