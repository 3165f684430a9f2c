"""Features from which `classifier` decides whether passages answer a question, and which statement does.

Only measures. What comes from the ranker or the embedder is multiplied by the query's trust: how well they know the
question's language.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from retrieval.answerability.expected_answer import agreement
from retrieval.ranking.vectors import StatementVectors
from retrieval.search.embedding import Vectors
from retrieval.search.retriever import PassageHit, Query, Retriever
from retrieval.statements.statement import Statement
from retrieval.text.codes import codes, is_about_another, names_code
from retrieval.text.terms import COMMON, parts_of, stem, telling_words, words

LEAST_TRUST = 0.4
"""From this trust ranker and embedder are used, for what they are worth: an English embedder knows something of German.
Below it, words only.
"""
FAR = 5.0
"""Lead of the best passage in log-odds where there is no other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFeatures:
    """Of one statement of a passage found. Shares of the question's terms and of their parts are weighted by rarity, 0
    to 1. Parts of terms are the characters of scripts without spaces, where many pairs of characters only seem to be
    words; in other scripts, the terms.
    """

    trust: float  # the query's
    ranked: float  # the ranker's logit
    covered: float  # share of terms in the statement and its headings
    own: float  # in the statement
    before: float  # in the one before and the headings
    parts: float  # share of parts in the statement and its headings
    beyond: float  # of the parts that the headings lack, in the statement
    passage: float  # score of its passage (`_score`)
    behind: float  # how much less than the best passage's
    rank: float  # of its passage, from 0
    length: float  # logarithm of its characters
    expected: float  # `expected_answer.agreement`
    code: float  # 1 if it names a code that the question asks about (`names_code`), else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFeatures:
    """Of all that was found for a question."""

    trust: float  # the query's
    likely: float  # highest log-odds of a statement, as fitted
    others: float  # how much less those of the next passage's best statement are
    cosine: float  # of the first passage
    score: float  # of the first passage (`_score`)
    rest: float  # mean score of the passages
    covered: float  # highest share of terms in a passage
    stated: float  # highest share of terms in a statement and its headings
    parts: float  # of the likeliest statement, as of `StatementFeatures`
    beyond: float
    expected: float  # agreement of the likeliest statement with the expected type of answer


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPassageText:
    """A passage found, as far as it is judged."""

    hit: PassageHit
    headings: Sequence[str]
    text: str
    statements: Sequence[Statement]
    vectors: StatementVectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A statement that may answer. passage: its place among those found."""

    passage: int
    statement: Statement
    features: StatementFeatures


def candidates_of(
    retriever: Retriever, query: Query, question: Query, passages: Sequence[FoundPassageText], logits: Vectors
) -> list[Candidate]:
    """Every statement once, without those about another model than the question's. query: with its earlier turn, if it
    has one; question: without. passages: best first. logits: the ranker's,
    of all their statements, one after another.
    """
    share_in = _share_in(_rarities(retriever, query.text))
    parts_in = _share_in(_rarities(retriever, query.text, of_parts=True))
    found: dict[str, Candidate] = {}
    number = -1
    for place, passage in enumerate(passages):
        headings = terms_of("\n".join(passage.headings))
        above = parts_in(headings)
        before: frozenset[str] = frozenset()
        for statement in passage.statements:
            number += 1
            terms = terms_of(statement.text)
            parts = parts_in(terms | headings)
            features = StatementFeatures(
                trust=query.trust,
                ranked=query.trust * float(logits[number]),
                covered=share_in(terms | headings),
                own=share_in(terms),
                before=share_in(before | headings),
                parts=parts,
                beyond=(parts - above) / (1 - above) if above < 1 else 0.0,
                passage=_score(query, passage),
                behind=_score(query, passages[0]) - _score(query, passage),
                rank=place,
                length=math.log(len(statement.text)),
                expected=agreement(question.text, statement.text),
                code=float(names_code(query.text, statement.text, passage.headings)),
            )
            before = terms
            if not is_about_another(query.text, statement.text, passage.headings):
                candidate = Candidate(passage=place, statement=statement, features=features)
                found.setdefault(statement.text, candidate)
    return list(found.values())


class QuestionMeasures:
    """What is measured of a question: most of it once, the rest for an order of its candidates."""

    def __init__(self, retriever: Retriever, query: Query, passages: Sequence[FoundPassageText]) -> None:
        """Arguments as of `candidates_of`; at least one passage."""
        share_in = _share_in(_rarities(retriever, query.text))
        texts = ["\n".join([*passage.headings, passage.text]) for passage in passages]
        self._trust = query.trust
        self._cosine = query.trust * passages[0].hit.cosine
        self._score = _score(query, passages[0])
        self._rest = sum(_score(query, passage) for passage in passages) / len(passages)
        self._covered = max(share_in(terms_of(text)) for text in texts)

    def features(self, ranked: Sequence[tuple[float, Candidate]]) -> QuestionFeatures:
        """The features of the question. ranked: its candidates with their log-odds, likeliest first; at least one."""
        best_logit, best = ranked[0]
        elsewhere = (logit for logit, candidate in ranked if candidate.passage != best.passage)
        return QuestionFeatures(
            trust=self._trust,
            likely=best_logit,
            others=best_logit - next(elsewhere, best_logit - FAR),
            cosine=self._cosine,
            score=self._score,
            rest=self._rest,
            covered=self._covered,
            stated=max(candidate.features.covered for _, candidate in ranked),
            parts=best.features.parts,
            beyond=best.features.beyond,
            expected=best.features.expected,
        )


def _score(query: Query, passage: FoundPassageText) -> float:
    """What the search says, without the embedder where it does not know the language: there its cosines are noise."""
    return passage.hit.score if query.trust >= LEAST_TRUST else passage.hit.share


def _rarities(retriever: Retriever, question: str, *, of_parts: bool = False) -> dict[str, float]:
    """The terms of a question with how rare they are, or their parts. Its common words are left out, unless it has no
    others.
    """
    rarity = retriever.keywords.rarity
    told = telling_words(question)
    asked = {
        stem(word): rarity(word) for word in ((part for one in told for part in parts_of(one)) if of_parts else told)
    }
    asked |= {code: rarity(code) for code in codes(question)}
    return {term: value for term, value in asked.items() if term not in COMMON} or asked


def _share_in(rarity: Mapping[str, float]) -> Callable[[frozenset[str]], float]:
    """Gives the share of a question's terms among some terms, weighted by rarity, 0 to 1."""
    total = sum(rarity.values())
    return lambda terms: sum(r for term, r in rarity.items() if term in terms) / total if total else 0.0


def terms_of(text: str) -> frozenset[str]:
    """The stems of a text, and its codes in their one spelling."""
    return frozenset(map(stem, words(text))) | codes(text)
