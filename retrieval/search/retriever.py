"""Finds the passages that may answer a question, by embeddings and by keywords.

Both scores measure how much of the question a text covers, so they are added for each window. A passage has the score
of its best window. The cosine counts less if the embedder does not know the question's language: an English embedder
knows little Chinese. Adding ranks instead (Cormack et al. 2009) would let a search without useful signal spoil the
order; `warmdesk eval recall` shows both. `retrieval.answerability` decides whether the passages answer the question.

The best passages by this sum are found exactly. Each search proposes its best windows, and both scores of all proposed
windows are computed. More are proposed while another window could still be better (the threshold algorithm, Fagin et
al. 2003).

Misspelt words of a question are corrected to words of the passages. A word is misspelt if no passage has a form of it
and the embedder does not know it. It is replaced by the most similar word with the same first letter (optimal string
alignment distance) that is similar enough, or by the most frequent of equally similar words. Only words of four letters
or more, in scripts with spaces, are corrected.

A cross-encoder may rerank the passages. It reads question and passage together, which is better and much slower.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import OSA

from retrieval.errors import RetrievalError, first_line
from retrieval.search.embedding import Embedder, Vectors
from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.vector_index import Ids, Scores, VectorIndex, passage_ids
from retrieval.text.terms import UNSPACED, folded

_WORD = re.compile(rf"[^\W\d_{UNSPACED}]{{4,}}")
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][A-Za-z]{2,39}\b")  # a capital letter in mid-sentence
NAMES = 3  # maximum number of unknown names, because an answer repeats them
_LEAST_SIMILARITY = 0.7  # corrects all except two words of 16 misspelt sample questions


CANDIDATES = 300  # number of windows that each search proposes at first
MORE = 4  # factor by which the number grows if these are not enough
ALIKE = 0.1  # near copies differ in score by less than this


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A wording of a question, spelt as in the passages, with its vector. trust: factor of its cosines, 0 to 1.
    as_written: the customer's spelling, if different, is also searched. unknown: at most `NAMES` names in no passage.
    """

    text: str
    vector: Vectors
    trust: float
    as_written: "Query | None" = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageHit:
    """A found passage with its scores."""

    id: int
    score: float  # passages are ranked by it
    cosine: float  # of its best window and the question, -1 to 1
    share: float  # share of the question's words in its best window, 0 to 1


class Retriever:
    """Searches one snapshot of both indexes, or some of its passages. Safe to use from several threads."""

    def __init__(
        self, embedder: Embedder, index: VectorIndex, keywords: KeywordIndex, *, within: Collection[int] | None = None
    ) -> None:
        """within: limits search and spelling to these passages and their words; all by default."""
        if (embedder.name, embedder.dimension) != (index.embedder, index.dimension):
            raise RetrievalError(
                f"the index has vectors of {index.embedder}, not of {embedder.name}; rebuild the index"
            )
        self.embedder = embedder
        self.index = index
        self.keywords = keywords
        self._selection = None if within is None else index.selection(within)
        self._is_inside = None if within is None else keywords.are_of(within)

    def queries(self, texts: Sequence[str]) -> list[Query]:
        corrected = [_WORD.sub(lambda found: self._corrected(found[0]), text) for text in texts]
        spellings = list(dict.fromkeys([*corrected, *texts]))
        vectors = dict(zip(spellings, self.embedder.embed_queries(spellings), strict=True))

        def query(text: str, as_written: Query | None = None) -> Query:
            trust = self.embedder.knowledge(text) ** 2
            names = dict.fromkeys(_NAME.findall(text))
            unknown = tuple(islice((name for name in names if not self._having(folded(name))), NAMES))
            return Query(text=text, vector=vectors[text], trust=trust, as_written=as_written, unknown=unknown)

        return [
            query(right, None if right == written else query(written))
            for right, written in zip(corrected, texts, strict=True)
        ]

    def _corrected(self, written: str) -> str:
        word = folded(written)
        if self._having(word) or self.embedder.knows_word(word):
            return written
        near = {
            other: similarity
            for words in self.keywords.words_from(word[:1])
            for other, similarity, _ in process.extract(
                word, words, scorer=OSA.normalized_similarity, score_cutoff=_LEAST_SIMILARITY, limit=None
            )
            if _WORD.fullmatch(other)
        }
        having = {other: count for other in near if (count := self._having(other))}
        return min(having, key=lambda other: (-near[other], -having[other], other), default=written)

    def _having(self, word: str) -> int:
        return self.keywords.having(word, self._is_inside)

    def search(self, queries: Sequence[Query], k: int) -> list[PassageHit]:
        """Return at most `k` passages for wordings of one question, best first, without near copies of better hits."""
        wordings = [one for query in queries for one in (query, query.as_written) if one is not None]
        best: dict[int, PassageHit] = {}
        for found in chain.from_iterable(self._fused(wording, k) for wording in wordings):
            best[found.id] = max(best.get(found.id, found), found, key=lambda hit: hit.score)  # the first of equal ones
        chosen: list[PassageHit] = []
        for found in sorted(best.values(), key=lambda found: (-found.score, found.id)):
            if len(chosen) >= k:
                break
            near = [better for better in chosen if better.score - found.score < ALIKE]
            if not any(self.keywords.is_near_copy(found.id, better.id) for better in near):
                chosen.append(found)
        return chosen

    def _fused(self, query: Query, k: int) -> list[PassageHit]:
        """Return passages with exact scores. The best `k` passages are among them."""
        if not query.text.strip():
            return []
        shares = self.keywords.scores(query.text)
        if self._is_inside is not None:
            shares[~self._is_inside] = 0.0
        number = CANDIDATES
        while True:
            hits = self.index.search(query.vector, number, within=self._selection)
            written, left = _largest(shares, number)
            windows = np.union1d(np.array([hit.id for hit in hits], np.int64), self.keywords.window_ids[written])
            found = self._best_windows(query, windows, shares)
            if len(hits) < number:  # no more windows exist
                return found
            best_of_others = query.trust * hits[-1].score + left
            if sum(hit.score >= best_of_others for hit in found) >= k:
                return found
            number *= MORE

    def _best_windows(self, query: Query, windows: Ids, shares: Scores) -> list[PassageHit]:
        """Return the passages of these windows, each with the scores of its best window. shares: by window."""
        rows = self.keywords.rows_of(windows)
        share = np.where(rows < 0, np.float32(0), shares[rows]) if len(shares) else np.zeros(len(rows), np.float32)
        cosine = self.index.cosines(query.vector, windows)
        score = query.trust * cosine + share
        best_first = np.lexsort((share, cosine, score))[::-1]
        passages, first = np.unique(passage_ids(windows[best_first]), return_index=True)
        columns = (passages, *(values[best_first[first]] for values in (score, cosine, share)))
        return [
            PassageHit(id=id_, score=a, cosine=b, share=c)
            for id_, a, b, c in zip(*(column.tolist() for column in columns), strict=True)
        ]


def _largest(shares: Scores, number: int) -> tuple[Ids, float]:
    places = np.flatnonzero(shares)
    if len(places) <= number:
        return places, 0.0
    parted = np.argpartition(-shares[places], number)
    return places[parted[:number]], float(shares[places[parted[number]]])


RERANKED = 20  # number of passages to rerank
MAX_TOKENS = 512


class CrossEncoderReranker:
    """A cross-encoder by folder or hub name. Safe to call from several threads. Raises RetrievalError with the fix if
    it cannot be loaded.
    """

    def __init__(self, name_or_path: str) -> None:
        from sentence_transformers import CrossEncoder  # takes seconds, and few servers use a reranker

        folder = Path(name_or_path).expanduser()
        is_local = folder.is_dir()
        try:
            name = str(folder) if is_local else name_or_path
            self._model = CrossEncoder(name, device="cpu", max_length=MAX_TOKENS, local_files_only=is_local)
        except (OSError, ValueError, RuntimeError) as error:
            reason = f"cannot be loaded ({first_line(error)}); give a folder or a hub name, or unset the setting"
            raise RetrievalError(f"reranker {name_or_path}: {reason}") from error

    def scores(self, question: str, texts: Sequence[str]) -> list[float]:
        """Return a score of each text as an answer to the question; higher is better."""
        pairs = [(question, text) for text in texts]
        return [float(score) for score in self._model.predict(pairs, show_progress_bar=False)]


def rerank(
    reranker: CrossEncoderReranker, question: str, found: Sequence[PassageHit], text_of: Callable[[PassageHit], str]
) -> list[PassageHit]:
    scores = reranker.scores(question, [text_of(hit) for hit in found])
    return [found[place] for place in sorted(range(len(found)), key=lambda place: -scores[place])]
