"""A segment: part of the keyword index, some windows with their words. It never changes, so that an index can grow by a
segment and share the others with the index before it.

Words are counted as they are written, because near copies and spelling need them so; terms (stems) are counted for
search. A word is stemmed by the rules of the language that most windows with it are in, wherever it occurs, also in a
question: so a question finds the windows whatever its own language seems to be. Not covered: scores, which depend on
all segments (`keyword_index`).

Keyword search: Okapi BM25 over the stems of the passages' windows (Robertson and Zaragoza 2009).

Finds what a small embedder misses: model numbers, error codes, rare words, languages it does not know. An index is a
snapshot that never changes: `updated` gives another one. It consists of `segments`, which snapshots share. On disk:
`keyword_files`. Not covered: phrases, synonyms, misspelt words (`spelling`).

The keyword index on disk: a folder with one file for each segment, and a file that lists them.

Segments never change, so saving an index writes only the segments that are new, then the list, and then deletes what
the list does not name: at any moment the folder holds the complete old or the complete new index. A damaged folder is
refused, not repaired: the index can be rebuilt from the stored passages.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from uuid import uuid4

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save
from scipy import sparse

from retrieval.documents.document import content_hash
from retrieval.errors import IndexDamaged
from retrieval.search.vector_index import (
    WINDOWS_PER_PASSAGE,
    merged,
    passage_ids,
    read_index_file,
    window_ids,
    window_texts,
    write_index_file,
)
from retrieval.text.terms import asked_words, language_of, stem, telling_words, words

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


KIND = "warmdesk keywords 1"
LIST = "segments"

PROBE = """Customers of our customs office asked the police about a policy of international and internal deliveries; \
they weren't delivered, running e-mails, KM-450, KM450, 1,5 kg, EUR 3.50, U.S. and Ｆｕｌｌ width; naïve straße GROẞE.

Die Rückgabe von Häusern und Bestellungen ist möglich. Les clientes françaises continuellement livrées. Los pedidos \
de las tiendas. Возврат заказов в магазинах. Επιστροφές παραγγελιών. 您可以在三十天内退货并获得退款。返品はできますか。\
환불은 언제 되나요?
"""
"""A text whose words show how texts are cut, parted and stemmed."""


def save_keywords(index: KeywordIndex, folder: Path) -> None:
    """Write what is new of an index, and delete what does not belong to it. Raises OSError; the folder then holds the
    old index.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    there = {file.name for file in folder.iterdir()}
    for segment in index.segments:
        if segment.name not in there:
            _save_segment(segment, folder / segment.name)
    names = [segment.name for segment in index.segments]
    write_index_file(folder / LIST, KIND, {"terms": fingerprint(), "segments": names})
    for name in there.difference(names, [LIST]):
        (folder / name).unlink()


def load_keywords(folder: Path) -> KeywordIndex:
    """Read an index. Raises IndexDamaged when something is missing, truncated or altered, or if words are parted or
    stemmed differently now.
    """
    header, _ = read_index_file(folder / LIST, KIND)
    if header["terms"] != fingerprint():
        raise IndexDamaged(folder, "words are counted differently since")
    return KeywordIndex([_load_segment(folder / name) for name in header["segments"]])


@cache
def fingerprint() -> str:
    """Tells whether texts are cut into windows, words and stems as when an index was written."""
    texts = window_texts(("Help", "Returns"), PROBE)
    terms = [f"{word} {stem(word)}" for text in texts for word in (*words(text), "", *asked_words(text), "")]
    return content_hash("\n".join([version("pystemmer"), version("py3langid"), *terms]).encode())


def _save_segment(segment: KeywordSegment, path: Path) -> None:
    arrays = {
        "window_ids": segment.window_ids,
        "words": _as_bytes(segment.words),
        "stems": _as_bytes(segment.stems),
        "starts": segment.counts.indptr.astype(np.int64),
        "columns": segment.counts.indices.astype(np.int32),
        "counts": segment.counts.data,
    }
    write_index_file(
        path, KIND, {"windows": len(segment), "words": len(segment.words), "languages": segment.languages}, save(arrays)
    )


def _load_segment(path: Path) -> KeywordSegment:
    header, payload = read_index_file(path, KIND)
    arrays = load(payload)
    parts = (arrays["counts"], arrays["columns"], arrays["starts"])
    counts = sparse.csr_matrix(parts, (header["windows"], header["words"]))
    words, stems = _as_list(arrays["words"]), _as_list(arrays["stems"])
    return KeywordSegment(path.name, arrays["window_ids"], words, stems, counts, header["languages"])


def _as_bytes(texts: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Words in one array, a line each; no word holds a line break."""
    return np.frombuffer("\n".join(texts).encode("utf-8", "surrogatepass"), np.uint8)


def _as_list(lines: npt.NDArray[np.uint8]) -> list[str]:
    return lines.tobytes().decode("utf-8", "surrogatepass").split("\n") if len(lines) else []
