"""A segment: part of the keyword index, some windows with their words. It never changes, so that an index can grow by a
segment and share the others with the index before it.

Words are counted as they are written, because near copies and spelling need them so; terms (stems) are counted for
search. A word is stemmed by the rules of the language that most windows with it are in, wherever it occurs, also in a
question: so a question finds the windows whatever its own language seems to be. Not covered: scores, which depend on
all segments (`keyword_index`).
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from scipy import sparse

from retrieval.search.windows import window_ids
from retrieval.text.language import language_of
from retrieval.text.terms import stem, words

MOST_COUNTED = 65_535
"""A word counts at most so often in a window."""

Ids = npt.NDArray[np.int64]
Counts = npt.NDArray[np.uint16]


class KeywordSegment:
    """Reading is safe from several threads.

    name: of its file. window_ids: rising `[windows]`. words: rising. stems: of each word. counts: how often a window
    has a word, sparse `[windows, words]`. languages: of the windows, the most frequent one first. lengths: words of
    each window `[windows]`.
    """

    def __init__(
        self,
        name: str,
        ids: Ids,
        words: Sequence[str],
        stems: Sequence[str],
        counts: sparse.csr_matrix,
        languages: Sequence[str],
    ) -> None:
        self.name, self.window_ids, self.words, self.stems, self.counts = name, ids, words, stems, counts
        self.languages = tuple(languages)
        terms: dict[str, int] = {}
        columns = [terms.setdefault(term, len(terms)) for term in stems]
        ones = np.ones(len(stems), np.uint16)
        merge = sparse.csr_matrix((ones, (np.arange(len(stems)), columns)), shape=(len(stems), len(terms)))
        self._terms, self._of_terms = terms, (counts @ merge).tocsc()
        self.lengths = np.asarray(counts.sum(axis=1, dtype=np.float32)).ravel()
        self.num_words = float(self.lengths.sum())

    @classmethod
    def of(cls, texts: Mapping[int, Sequence[str]]) -> "KeywordSegment":
        """A new segment of passages, given by number with the texts of their windows."""
        numbered: dict[str, int] = {}
        columns, counts, starts = array("i"), array("H"), array("q", [0])  # a tenth of the memory of lists
        ids = window_ids([id_ for id_, windows in texts.items() for _ in windows])
        for text in chain.from_iterable(texts.values()):
            for word, count in Counter(words(text)).items():
                columns.append(numbered.setdefault(word, len(numbered)))
                counts.append(min(count, MOST_COUNTED))
            starts.append(len(columns))
        matrix = sparse.csr_matrix(
            (np.array(counts, np.uint16), np.array(columns, np.int32), np.array(starts)), (len(ids), len(numbered))
        )
        by_name = sorted(numbered)
        of_passages = [language_of(windows[0]) if windows else "" for windows in texts.values()]
        of_windows = np.repeat(of_passages, [len(windows) for windows in texts.values()])
        names, numbers = np.unique(of_windows, return_counts=True)
        languages = names[np.argsort(-numbers, kind="stable")].tolist()
        votes = np.stack([matrix[of_windows == language].getnnz(axis=0) for language in languages])
        likeliest = votes.argmax(axis=0)
        stems = [stem(word, languages[likeliest[numbered[word]]]) for word in by_name]
        return _in_order(ids, by_name, stems, matrix, languages, [numbered[word] for word in by_name])

    @classmethod
    def merged(cls, segments: Sequence["KeywordSegment"]) -> "KeywordSegment":
        """One new segment with all that these have; no passage is in two of them."""
        stem_of = {word: term for segment in segments for word, term in zip(segment.words, segment.stems, strict=True)}
        all_words = sorted(stem_of)
        column_of = {word: column for column, word in enumerate(all_words)}
        parts = []
        for segment in segments:
            columns = np.array([column_of[word] for word in segment.words], np.int32)
            old = segment.counts
            shape = (old.shape[0], len(all_words))
            parts.append(sparse.csr_matrix((old.data, columns[old.indices], old.indptr), shape))
        ids = np.concatenate([segment.window_ids for segment in segments])
        stems = [stem_of[word] for word in all_words]
        languages = dict.fromkeys(chain.from_iterable(segment.languages for segment in segments))
        return _in_order(ids, all_words, stems, sparse.vstack(parts, format="csr"), tuple(languages))

    def only(self, stays: npt.NDArray[np.bool_]) -> "KeywordSegment":
        """A new segment with these windows. stays: for each window whether it stays. Words that no window has any more
        are left out.
        """
        kept = self.counts[stays]
        in_use = np.flatnonzero(kept.getnnz(axis=0)).tolist()
        some = [self.words[column] for column in in_use]
        stems = [self.stems[column] for column in in_use]
        return _in_order(self.window_ids[stays], some, stems, kept, self.languages, in_use)

    def __len__(self) -> int:
        """The number of windows."""
        return len(self.window_ids)

    def term_of(self, word: str) -> str | None:
        """What a folded word is counted as here; None if no window has a form of it. A word that is not here may be
        another form of one, in any of the languages.
        """
        place = bisect_left(self.words, word)
        if self.words[place : place + 1] == [word]:
            return self.stems[place]
        return next((term for language in self.languages if (term := stem(word, language)) in self._terms), None)

    def with_word(self, word: str) -> tuple[npt.NDArray[np.int32], Counts]:
        """The rows of the windows that have a form of a word, and how often they have one; empty if none has."""
        column = self._terms.get(self.term_of(word) or "")
        span = slice(0, 0) if column is None else slice(*self._of_terms.indptr[column : column + 2])
        return self._of_terms.indices[span], self._of_terms.data[span]

    def rows_of(self, wanted: Ids) -> Ids:
        """The row of each of these windows, -1 if it is not here."""
        places = np.minimum(np.searchsorted(self.window_ids, wanted), len(self) - 1)
        rows: Ids = np.where(self.window_ids[places] == wanted, places, -1)
        return rows

    def words_of(self, row: int) -> frozenset[str]:
        """The words of one window."""
        return frozenset(
            self.words[column] for column in self.counts.indices[slice(*self.counts.indptr[row : row + 2])]
        )

    def words_from(self, letter: str) -> Sequence[str]:
        """The words that begin with this letter."""
        return self.words[bisect_left(self.words, letter) : bisect_left(self.words, chr(ord(letter) + 1))]


def _in_order(
    ids: Ids,
    words: Sequence[str],
    stems: Sequence[str],
    counts: sparse.csr_matrix,
    languages: Sequence[str],
    columns: Iterable[int] | None = None,
) -> KeywordSegment:
    """A segment under a new name, with its windows in rising order. columns: of `counts`, those of `words`."""
    rows = np.argsort(ids)
    ordered = counts[rows] if columns is None else counts[rows][:, columns]
    return KeywordSegment(uuid4().hex, ids[rows], words, stems, ordered, languages)
