"""Keyword search: Okapi BM25 over the stems of the passages' windows (Robertson and Zaragoza 2009).

Finds what a small embedder misses: model numbers, error codes, rare words, languages it does not know. An index is a
snapshot that never changes: `updated` gives another one. It consists of `segments`, which snapshots share. On disk:
`keyword_files`. Not covered: phrases, synonyms, misspelt words (`spelling`).
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from retrieval.search.keyword_segment import Ids, KeywordSegment
from retrieval.search.segments import merged
from retrieval.search.windows import WINDOWS_PER_PASSAGE, passage_ids
from retrieval.text.terms import stem, telling_words

K1, B = 1.2, 0.75
"""Saturation of repeated terms, and how much long windows count less: the usual values; others were no better."""
WORDS_KEPT = 1000
"""Passages whose words are remembered: those found for a question are compared with each other."""
NEAR_COPY = 0.95  # share of their words that near copies have in common
DECISIVE = frozenset(  # English words that change what a sentence says; digits of all scripts need no list
    """no not never none nor without except unless only cannot t zero one two three four five six seven eight nine ten
    eleven twelve fifteen twenty thirty forty fifty sixty ninety hundred thousand first second third half double once
    twice""".split()  # noqa: SIM905  # a list of words reads better so
)
DENIALS = frozenset("不没无未勿别非禁")  # the same in Chinese and Japanese, where they are parts of words

Scores = npt.NDArray[np.float32]


class KeywordIndex:
    """An index of these segments, empty by default; `updated` gives others. Reading is safe from several threads."""

    def __init__(self, segments: Sequence[KeywordSegment] = ()) -> None:
        self.segments = tuple(segments)
        self._starts = np.cumsum([0, *map(len, self.segments)])  # row of a segment's first window
        self._words_of = lru_cache(WORDS_KEPT)(self._find_words)
        self._mean_length = max(1.0, sum(segment.num_words for segment in self.segments) / max(1, len(self)))

    def __len__(self) -> int:
        """The number of windows."""
        return int(self._starts[-1])

    @cached_property
    def window_ids(self) -> Ids:
        """The window of each row."""
        return np.concatenate([np.zeros(0, np.int64), *(segment.window_ids for segment in self.segments)])

    @property
    def passage_ids(self) -> frozenset[int]:
        """The passages that can be found."""
        return frozenset(passage_ids(self.window_ids).tolist())

    @property
    def words(self) -> frozenset[str]:
        """Every word of the passages, folded."""
        return frozenset().union(*(segment.words for segment in self.segments))

    def updated(self, removed: Collection[int], added: Mapping[int, Sequence[str]]) -> "KeywordIndex":
        """A new index without the passages `removed` and with the texts of the windows of the passages `added`, which
        replace those they had. Copies only segments that lose a passage or are merged.
        """
        gone = np.array([*removed, *added], np.int64)
        segments = [_without(segment, gone) for segment in self.segments]
        if any(added.values()):
            segments.append(KeywordSegment.of(added))
        return KeywordIndex(merged(segments, KeywordSegment.merged))

    def scores(self, query: str) -> Scores:
        """For each of `window_ids`, how much of the query it has, 0 to 1: its BM25 score divided by the highest score
        that a window could reach. Words that no passage has are part of the query.
        """
        scores = np.zeros(len(self), np.float32)
        most = 0.0
        for word in {self._terms_of(word): word for word in telling_words(query)}.values():
            rarity = self.rarity(word)
            most += rarity * (K1 + 1)
            for start, segment in zip(self._starts.tolist(), self.segments, strict=False):
                rows, counts = segment.with_word(word)
                norm = np.float32(K1 * (1 - B)) + np.float32(K1 * B / self._mean_length) * segment.lengths[rows]
                scores[start + rows] += np.float32(rarity * (K1 + 1)) * (counts / (counts + norm))
        return scores / np.float32(most) if most else scores

    def rows_of(self, window_ids: Ids) -> Ids:
        """The row of each of these windows, -1 if it is not there."""
        found = np.full(len(window_ids), -1, np.int64)
        for start, segment in zip(self._starts.tolist(), self.segments, strict=False):
            rows = segment.rows_of(window_ids)
            found = np.where(rows < 0, found, start + rows)
        return found

    def are_of(self, passages: Collection[int]) -> npt.NDArray[np.bool_]:
        """For each of `window_ids`, whether it is of one of these passages."""
        return np.isin(passage_ids(self.window_ids), np.array([*passages], np.int64))

    def having(self, word: str, among: npt.NDArray[np.bool_] | None = None) -> int:
        """How many windows have a form of a folded word. among: for each of `window_ids`, whether it counts; all by
        default.
        """
        rows = [start + segment.with_word(word)[0] for start, segment in zip(self._starts, self.segments, strict=False)]
        return sum(len(some) if among is None else int(among[some].sum()) for some in rows)

    def words_from(self, letter: str) -> list[Sequence[str]]:
        """The words that begin with this letter, in lists that overlap."""
        return [segment.words_from(letter) for segment in self.segments]

    def is_near_copy(self, first: int, second: int) -> bool:
        """Whether two passages have nearly the same words, and no word that differs is a number or a negation."""
        one, other = self._words_of(first), self._words_of(second)
        if not one or not other or len(one & other) < NEAR_COPY * max(len(one), len(other)):
            return False
        return not any(
            word in DECISIVE or not DENIALS.isdisjoint(word) or any(map(str.isnumeric, word)) for word in one ^ other
        )

    def rarity(self, word: str) -> float:
        """The inverse document frequency of a folded word in all its forms; one that no passage has is the rarest."""
        having = self.having(word)
        return float(np.log1p((len(self) - having + 0.5) / (having + 0.5)))

    def _terms_of(self, word: str) -> tuple[str | None, ...]:
        """Equal for words that are counted as one: its term in each segment, or its stem if no segment has it."""
        terms = tuple(segment.term_of(word) for segment in self.segments)
        return terms if any(terms) else (stem(word),)

    def _find_words(self, passage: int) -> frozenset[str]:
        """The words of the whole of a passage; none if it is not there."""
        whole = np.array([passage * WINDOWS_PER_PASSAGE], np.int64)
        for segment in self.segments:
            if (row := int(segment.rows_of(whole)[0])) >= 0:
                return segment.words_of(row)
        return frozenset()


def _without(segment: KeywordSegment, gone: Ids) -> KeywordSegment:
    """The segment without these passages; the same one if it has none of them."""
    stays = ~np.isin(passage_ids(segment.window_ids), gone)
    return segment if stays.all() else segment.only(stays)
