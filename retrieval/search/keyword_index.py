"""Keyword search: Okapi BM25 over the stems of the passages' windows (Robertson and Zaragoza 2009).

It finds what a small embedder misses: model numbers, error codes, rare words, languages that the embedder does not
know. Out of scope: phrases, synonyms, misspelt words (`retrieval.search.retriever`).

An index is a snapshot that never changes; `updated` returns a new one. It consists of segments, which snapshots share.
A segment contains the words of some windows: as written, for near copies and spelling, and as terms (stems), for
search. A word is stemmed by the rules of the language of most windows that contain it, also in a question. So a
question finds the windows even if its language is misjudged.

On disk, an index is a folder with one file for each segment, and a file that lists them. Saving writes new segments,
then the list, then deletes files that are not in the list. So the folder always contains the complete old or the
complete new index. A damaged folder is refused, because the index can be rebuilt from the stored passages.
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

from retrieval.documents import content_hash
from retrieval.errors import IndexDamaged
from retrieval.search.vector_index import (
    WINDOWS_PER_PASSAGE,
    Ids,
    Scores,
    merged,
    passage_ids,
    read_index_file,
    window_ids,
    window_texts,
    write_index_file,
)
from retrieval.text.terms import asked_words, language_of, stem, telling_words, words

MOST_COUNTED = 65_535  # maximum count of a word in a window

Counts = npt.NDArray[np.uint16]


class KeywordSegment:
    """Words of some windows. Reading is safe from several threads. name: of the file. window_ids: rising, `[windows]`.
    words: sorted. stems: one per word. counts: count of each word in each window, sparse `[windows, words]`. languages:
    languages of the windows, the most frequent first. lengths: number of words in each window, `[windows]`.
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
        """Return a new segment of passages, given by id with the texts of their windows."""
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
        best = votes.argmax(axis=0)
        stems = [stem(word, languages[best[numbered[word]]]) for word in by_name]
        return _in_order(ids, by_name, stems, matrix, languages, [numbered[word] for word in by_name])

    @classmethod
    def merged(cls, segments: Sequence["KeywordSegment"]) -> "KeywordSegment":
        """Return one new segment with the contents of these segments. A passage may be in only one of them."""
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

    def without(self, gone: Ids) -> "KeywordSegment":
        stays = ~np.isin(passage_ids(self.window_ids), gone)
        if stays.all():
            return self
        kept = self.counts[stays]
        in_use = np.flatnonzero(kept.getnnz(axis=0)).tolist()
        some = [self.words[column] for column in in_use]
        stems = [self.stems[column] for column in in_use]
        return _in_order(self.window_ids[stays], some, stems, kept, self.languages, in_use)

    def __len__(self) -> int:
        return len(self.window_ids)

    def term_of(self, word: str) -> str | None:
        """Return the term of a folded word; None if no window has a form of it. An unknown word may be another form of
        a known word in any of the languages.
        """
        place = bisect_left(self.words, word)
        if self.words[place : place + 1] == [word]:
            return self.stems[place]
        return next((term for language in self.languages if (term := stem(word, language)) in self._terms), None)

    def with_word(self, word: str) -> tuple[npt.NDArray[np.int32], Counts]:
        column = self._terms.get(self.term_of(word) or "")
        span = slice(0, 0) if column is None else slice(*self._of_terms.indptr[column : column + 2])
        return self._of_terms.indices[span], self._of_terms.data[span]

    def rows_of(self, wanted: Ids) -> Ids:
        """Return the row of each of these windows, -1 for unknown ones."""
        places = np.minimum(np.searchsorted(self.window_ids, wanted), len(self) - 1)
        rows: Ids = np.where(self.window_ids[places] == wanted, places, -1)
        return rows

    def words_of(self, row: int) -> frozenset[str]:
        return frozenset(
            self.words[column] for column in self.counts.indices[slice(*self.counts.indptr[row : row + 2])]
        )

    def words_from(self, letter: str) -> Sequence[str]:
        return self.words[bisect_left(self.words, letter) : bisect_left(self.words, chr(ord(letter) + 1))]


def _in_order(
    ids: Ids,
    words: Sequence[str],
    stems: Sequence[str],
    counts: sparse.csr_matrix,
    languages: Sequence[str],
    columns: Iterable[int] | None = None,
) -> KeywordSegment:
    """Return a segment with a new name and its windows in rising order. columns: columns of `counts` for `words`."""
    rows = np.argsort(ids)
    ordered = counts[rows] if columns is None else counts[rows][:, columns]
    return KeywordSegment(uuid4().hex, ids[rows], words, stems, ordered, languages)


K1, B = 1.2, 0.75  # saturation of repeated terms, and penalty of long windows: the usual values; others were no better
WORDS_KEPT = 1000
"""Number of passages whose words are cached. Passages found for a question are compared with each other."""
NEAR_COPY = 0.95  # share of words that near copies have in common
DECISIVE = frozenset(  # English words that change what a sentence says; digits of all scripts need no list
    """no not never none nor without except unless only cannot t zero one two three four five six seven eight nine ten
    eleven twelve fifteen twenty thirty forty fifty sixty ninety hundred thousand first second third half double once
    twice""".split()  # noqa: SIM905  # a list of words is easier to read this way
)
DENIALS = frozenset("不没无未勿别非禁")  # the same in Chinese and Japanese, where they are parts of words


class KeywordIndex:
    """An index of segments, empty by default. Reading is safe from several threads."""

    def __init__(self, segments: Sequence[KeywordSegment] = ()) -> None:
        self.segments = tuple(segments)
        self._starts = np.cumsum([0, *map(len, self.segments)])  # row of a segment's first window
        self._words_of = lru_cache(WORDS_KEPT)(self._find_words)
        self._mean_length = max(1.0, sum(segment.num_words for segment in self.segments) / max(1, len(self)))

    def __len__(self) -> int:
        return int(self._starts[-1])

    @cached_property
    def window_ids(self) -> Ids:
        return np.concatenate([np.zeros(0, np.int64), *(segment.window_ids for segment in self.segments)])

    @property
    def passage_ids(self) -> frozenset[int]:
        return frozenset(passage_ids(self.window_ids).tolist())

    def updated(self, removed: Collection[int], added: Mapping[int, Sequence[str]]) -> "KeywordIndex":
        """Return a new index without the passages `removed`, and with new windows for the passages `added`. Only
        segments that lose a passage or are merged are copied.
        """
        gone = np.array([*removed, *added], np.int64)
        segments = [segment.without(gone) for segment in self.segments]
        if any(added.values()):
            segments.append(KeywordSegment.of(added))
        return KeywordIndex(merged(segments, KeywordSegment.merged))

    def scores(self, query: str) -> Scores:
        """Return the share of the query that each of `window_ids` contains, from 0 to 1: its BM25 score divided by the
        highest possible score. Words that are in no passage also count for the highest possible score.
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
        """Return the row of each of these windows, -1 for unknown ones."""
        found = np.full(len(window_ids), -1, np.int64)
        for start, segment in zip(self._starts.tolist(), self.segments, strict=False):
            rows = segment.rows_of(window_ids)
            found = np.where(rows < 0, found, start + rows)
        return found

    def are_of(self, passages: Collection[int]) -> npt.NDArray[np.bool_]:
        return np.isin(passage_ids(self.window_ids), np.array([*passages], np.int64))

    def having(self, word: str, among: npt.NDArray[np.bool_] | None = None) -> int:
        rows = [start + segment.with_word(word)[0] for start, segment in zip(self._starts, self.segments, strict=False)]
        return sum(len(some) if among is None else int(among[some].sum()) for some in rows)

    def words_from(self, letter: str) -> list[Sequence[str]]:
        return [segment.words_from(letter) for segment in self.segments]

    def is_near_copy(self, first: int, second: int) -> bool:
        """Return whether two passages have nearly the same words, and no different word is a number or a negation."""
        one, other = self._words_of(first), self._words_of(second)
        if not one or not other or len(one & other) < NEAR_COPY * max(len(one), len(other)):
            return False
        return not any(
            word in DECISIVE or not DENIALS.isdisjoint(word) or any(map(str.isnumeric, word)) for word in one ^ other
        )

    def rarity(self, word: str) -> float:
        """Return the inverse document frequency of a folded word in all its forms. An unknown word is the rarest."""
        having = self.having(word)
        return float(np.log1p((len(self) - having + 0.5) / (having + 0.5)))

    def _terms_of(self, word: str) -> tuple[str | None, ...]:
        """Return a key that words with the same term share: the term in each segment, else the stem."""
        terms = tuple(segment.term_of(word) for segment in self.segments)
        return terms if any(terms) else (stem(word),)

    def _find_words(self, passage: int) -> frozenset[str]:
        whole = np.array([passage * WINDOWS_PER_PASSAGE], np.int64)
        for segment in self.segments:
            if (row := int(segment.rows_of(whole)[0])) >= 0:
                return segment.words_of(row)
        return frozenset()


KIND = "warmdesk keywords 1"
LIST = "segments"

PROBE = """Customers of our customs office asked the police about a policy of international and internal deliveries; \
they weren't delivered, running e-mails, KM-450, KM450, 1,5 kg, EUR 3.50, U.S. and Ｆｕｌｌ width; naïve straße GROẞE.

Die Rückgabe von Häusern und Bestellungen ist möglich. Les clientes françaises continuellement livrées. Los pedidos \
de las tiendas. Возврат заказов в магазинах. Επιστροφές παραγγελιών. 您可以在三十天内退货并获得退款。返品はできますか。\
환불은 언제 되나요?
"""
"""A sample text. Its words depend on how texts are cut, divided into words and stemmed."""


def save_keywords(index: KeywordIndex, folder: Path) -> None:
    """Write new segments and delete old files. Raises OSError; the folder then contains the old index."""
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
    """Read an index. Raises IndexDamaged for altered files, or if words are now divided or stemmed differently."""
    header, _ = read_index_file(folder / LIST, KIND)
    if header["terms"] != fingerprint():
        raise IndexDamaged(folder, "it was written with different rules for words")
    return KeywordIndex([_load_segment(folder / name) for name in header["segments"]])


@cache
def fingerprint() -> str:
    """Return a fingerprint of the rules that cut texts into windows, words and stems."""
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
    return np.frombuffer("\n".join(texts).encode("utf-8", "surrogatepass"), np.uint8)


def _as_list(lines: npt.NDArray[np.uint8]) -> list[str]:
    return lines.tobytes().decode("utf-8", "surrogatepass").split("\n") if len(lines) else []
