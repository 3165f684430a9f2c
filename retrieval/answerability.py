"""Decides whether found passages answer the question, and which statement does.

Uses logistic models over features of passages and statements, fitted for one embedder and one statement ranker by
`warmdesk calibrate-search`. One score alone cannot decide: a question about another topic of the same shop can be as
similar to a passage as a question that the passage answers. Values of the ranker and the embedder are multiplied by the
query's trust, which measures how well they know its language.

The expected answer type of a question is found by rules (Li and Roth 2002, "Learning Question Classifiers"). Types:
money, time, number, contact, steps; in Chinese also place, name and cause. English and Chinese only. Other questions
have no expected type.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

from retrieval.ranking.encoder import StatementEncoder, StatementVectors
from retrieval.search.embedding import Vectors
from retrieval.search.retriever import PassageHit, Query, Retriever
from retrieval.statements.grouping import Statement
from retrieval.text.codes import AskedCodes, codes, terms_of
from retrieval.text.terms import COMMON, parts_of, stem, telling_words

NUMBER = (
    r"(?:\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|once|twice)\b|[一二三四五六七八九十百两半])"
)
MONTH = r"(?:january|february|march|april|may|june|july|august|september|october|november|december)\b"


ANSWER_TYPES = (  # (pattern of such questions, pattern of texts with such an answer)
    (  # money
        r"how much\b(?! (?:time|longer))|\b(?:costs?|prices?|charged?|fees?|expensive|discounts?|refund limit)\b"
        r"|多少钱|多少[元块]|价格|费用|票价|造价|投资",
        r"(?:EUR|USD|GBP|[€$£¥￥])\s?\d|\d\s?(?:EUR|USD|GBP|[€%元])|\d[万亿]元|\bfree\b|免",
    ),
    (  # time
        r"how (?:long|soon|quick(?:ly)?|fast|late|early)\b|how much (?:time|longer)|^when\b"
        r"|\bwhen (?:do|does|is|are|will|can|must)\b|\b(?:deadline|what time|until|hours)\b"
        r"|how many (?:days|hours|minutes|weeks|months|years)"
        r"|多久|多长时间|什么时[候间期]|啥时|何时|几(?:时|点|天|月|号|年|几年)|哪一?(?:年|天|月|日)|哪个?(?:年代|时期|朝代)|日期",
        rf"{NUMBER}\s*(?:extra |working |business )*(?:second|minute|hour|day|week|month|year)|\d:\d\d"
        rf"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day|\b{MONTH} \d|\d(?:st|nd|rd|th)? {MONTH}"
        rf"|midnight|\bnoon\b|immediately|at once"
        rf"|{NUMBER}个?\s?(?:秒|分|小时|天|日|周|月|年|工作日|世纪)|[早初末晚中]期|年间|[白垩侏罗]纪",
    ),
    (  # number
        r"how (?:many|often|big|large|heavy|hot)\b|\b(?:number of|limit|max(?:imum)?|min(?:imum)?|weighs?|size"
        r"|temperature|length)\b|多少|几[^何]|多[大重长高远宽深快]",
        NUMBER,
    ),
    (  # contact
        r"e-?mail (?:address|do)|\b(?:phone|report|contact|call|website)\b|number (?:do|to|can)|电话|邮箱|联系",
        r"@|\d{3}|www\.|https?:",
    ),
    (  # steps
        r"\bhow to\b|\bhow (?:do|can|should) (?:i|we|you)\b",
        r"\n1[.)] ",
    ),
    (  # place
        r"哪里|哪儿|在哪(?!一?[年天月个些])|什么地[方点]|何[地处]|哪一?[个条片座]?(?:国|省|市|城|地|区|县|洲|路|街|镇)|位于|地址|老家",
        r"[国省市县州区镇乡村路街岛山湾洲港城]|[东南西北]部|位于|在于",
    ),
    (  # name
        r"谁|哪位|什么人|何人|叫什么|叫啥|(?:名字|名称|别名|全称|简称|全名|又名|又称|俗称|原名)",
        r"[「《“（(·・]|[又俗别原本全简]名|[又俗别全简]称|名为|叫",
    ),
    (  # cause
        r"为什么|为何|因何|为啥|原因|怎么[会要不]",
        r"因|由于|所以|为了|故|导致|使得|以免|以便|目的",
    ),
)


def agreement(question: str) -> Callable[[str], float]:
    """Return a function that rates a text: 1 for all expected types of answer, -1 for none, 0 if none is expected."""
    expected = [
        re.compile(has, re.IGNORECASE) for asks, has in ANSWER_TYPES if re.search(asks, question, re.IGNORECASE)
    ]
    return lambda text: sum(1.0 if has.search(text) else -1.0 for has in expected) / max(1, len(expected))


LEAST_TRUST = 0.4  # with less trust, only words are used; an English embedder has more trust for German
FAR = 5.0  # lead of the best passage, in log-odds, if there is no other


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementFeatures:
    """Features of one statement. Shares of the question's terms and of their parts are weighted by rarity, 0 to 1. In
    scripts without spaces, the parts are single characters, because many pairs of characters only look like words. In
    other scripts, the parts are the terms.
    """

    trust: float  # the query's
    ranked: float  # the ranker's logit
    covered: float  # share of terms in the statement and its headings
    own: float  # share of terms in the statement
    before: float  # share of terms in the previous statement and the headings
    parts: float  # share of parts in the statement and its headings
    beyond: float  # share of parts in the statement, among the parts that the headings lack
    passage: float  # score of its passage (`_score`)
    behind: float  # difference to the best passage's score
    rank: float  # rank of its passage, from 0
    length: float  # logarithm of its characters
    expected: float  # `agreement` with the question
    code: float  # 1 if it names a code of the question (`AskedCodes`), else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionFeatures:
    """Features of all search results of a question together."""

    trust: float  # the query's
    likely: float  # highest log-odds of a statement
    others: float  # lead over the best statement of other passages
    cosine: float  # of the first passage
    score: float  # of the first passage (`_score`)
    rest: float  # mean score of the passages
    covered: float  # highest share of terms in a passage
    stated: float  # highest share of terms in a statement and its headings
    parts: float  # as in `StatementFeatures`, of the most likely statement
    beyond: float
    expected: float  # `agreement` of the most likely statement


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPassageText:
    """A found passage with its scores, headings, text and statements, and the vectors of the statements."""

    hit: PassageHit
    headings: Sequence[str]
    text: str
    statements: Sequence[Statement]
    vectors: StatementVectors


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A statement that may answer. number: its position among all statements of the found passages. passage: position
    of its passage among them.
    """

    number: int
    passage: int
    statement: Statement
    features: StatementFeatures


def candidates_of(
    retriever: Retriever, query: Query, question: Query, passages: Sequence[FoundPassageText], logits: Vectors
) -> list[Candidate]:
    """Return every statement once, except statements about a model other than the question's. query: the question,
    after the previous one if there is one. question: the question alone. passages: best first. logits: of the ranker,
    for all statements of the passages in order.
    """
    rarities, of_parts = _rarities(retriever, query.text), _rarities(retriever, query.text, of_parts=True)
    share_in, parts_in = _share_in(rarities), _share_in(of_parts)
    asked = frozenset(rarities) | frozenset(of_parts)  # other terms of a passage do not matter
    earlier = query.text.removesuffix(question.text)
    found_headings = [heading for passage in passages for heading in passage.headings]
    agrees, asked_codes = agreement(question.text), AskedCodes(question.text, earlier, found_headings)
    others = other_subjects(asked, passages)
    found: dict[str, Candidate] = {}
    number = -1
    for place, passage in enumerate(passages):
        headings = asked & terms_of("\n".join(passage.headings))
        above = parts_in(headings)
        before: frozenset[str] = frozenset()
        for statement in passage.statements:
            number += 1
            terms = asked & terms_of(statement.text)
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
                expected=agrees(statement.text),
                code=float(asked_codes.are_named(statement.text, passage.headings)),
            )
            before = terms
            is_other = statement.subject in others or asked_codes.are_others(statement.text, passage.headings)
            if not is_other:
                candidate = Candidate(number=number, passage=place, statement=statement, features=features)
                found.setdefault(statement.text, candidate)
    return list(found.values())


def other_subjects(asked: Set[str], passages: Sequence[FoundPassageText]) -> set[str]:
    """Return the subjects of table rows about something other than the question. Another row of the page then has a
    subject with the same terms of the question, and with more of them. asked: the terms of the question.
    """
    named: dict[str, dict[str, Set[str]]] = {}
    for passage in passages:
        of_page = named.setdefault("".join(passage.headings[:1]), {})
        of_page |= {one.subject: asked & terms_of(one.subject) for one in passage.statements if one.subject}
    return {
        one for of_page in named.values() for one in of_page if any(of_page[one] < more for more in of_page.values())
    }


class QuestionMeasures:
    """Computes the features of a question: most of them once, the others for each order of the candidates."""

    def __init__(self, retriever: Retriever, query: Query, passages: Sequence[FoundPassageText]) -> None:
        """Arguments: see `candidates_of`. There is at least one passage."""
        share_in = _share_in(_rarities(retriever, query.text))
        texts = ["\n".join([*passage.headings, passage.text]) for passage in passages]
        self._features = partial(
            QuestionFeatures,
            trust=query.trust,
            cosine=query.trust * passages[0].hit.cosine,
            score=_score(query, passages[0]),
            rest=sum(_score(query, passage) for passage in passages) / len(passages),
            covered=max(share_in(terms_of(text)) for text in texts),
        )

    def features(self, ranked: Sequence[tuple[float, Candidate]]) -> QuestionFeatures:
        best_logit, best = ranked[0]
        elsewhere = (logit for logit, candidate in ranked if candidate.passage != best.passage)
        return self._features(
            likely=best_logit,
            others=best_logit - next(elsewhere, best_logit - FAR),
            stated=max(candidate.features.covered for _, candidate in ranked),
            parts=best.features.parts,
            beyond=best.features.beyond,
            expected=best.features.expected,
        )


def _score(query: Query, passage: FoundPassageText) -> float:
    return passage.hit.score if query.trust >= LEAST_TRUST else passage.hit.share


def _rarities(retriever: Retriever, question: str, *, of_parts: bool = False) -> dict[str, float]:
    """Return the rarity of the question's terms, or their parts, without common words if there are others."""
    rarity = retriever.keywords.rarity
    told = telling_words(question)
    asked = {
        stem(word): rarity(word) for word in ((part for one in told for part in parts_of(one)) if of_parts else told)
    }
    asked |= {code: rarity(code) for code in codes(question)}
    return {term: value for term, value in asked.items() if term not in COMMON} or asked


def _share_in(rarity: Mapping[str, float]) -> Callable[[frozenset[str]], float]:
    """Return a function that returns the share of a question's terms in a set, weighted by rarity, 0 to 1."""
    total = sum(rarity.values())
    return cache(lambda terms: sum(r for term, r in rarity.items() if term in terms) / total if total else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogisticModel:
    """A logistic regression. weights, means, deviations: by feature name; features without a weight are ignored."""

    weights: dict[str, float]
    means: dict[str, float]
    deviations: dict[str, float]
    bias: float

    def logit(self, features: QuestionFeatures | StatementFeatures) -> float:
        told: Mapping[str, float] = {name: getattr(features, name) for name in self.weights}
        return self.bias + sum(
            weight * (told[name] - self.means[name]) / self.deviations[name] for name, weight in self.weights.items()
        )

    def probability(self, features: QuestionFeatures | StatementFeatures) -> float:
        return 1 / (1 + math.exp(-max(-60.0, min(60.0, self.logit(features)))))


CODE = 4.0
"""Log-odds for a statement that names the code of the question. Such questions are too rare in collections for fitting,
and the ranker reads "E03" like any other number.
"""
MODELS = ("relevance", "statement", "written", "written_statement")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerabilityClassifier:
    """The fitted models. Two models are for languages that the embedder knows, and two use only words, for other
    languages. The thresholds are valid for both, because the probabilities of `written` are shifted accordingly.
    """

    embedder: str  # embedder of the fitted models
    ranker: str  # ranker of the fitted models
    fitted_on: str  # the questions, as a text for people
    threshold: float  # below this probability the question is not answered
    certain: float  # at this probability or above the answer is confident; between the two thresholds it may help
    relevance: LogisticModel  # probability that the shown text answers
    statement: LogisticModel  # probability that a statement answers
    written: LogisticModel  # as `relevance`, from words only
    written_statement: LogisticModel  # as `statement`, from words only

    def is_answered(self, features: QuestionFeatures) -> float:
        return (self.relevance if features.trust >= LEAST_TRUST else self.written).probability(features)

    def answers(self, features: StatementFeatures) -> float:
        model = self.statement if features.trust >= LEAST_TRUST else self.written_statement
        return statement_logit(model, features)


def statement_logit(model: LogisticModel, features: StatementFeatures) -> float:
    return model.logit(features) + CODE * features.code


def load_classifier(file: Path) -> AnswerabilityClassifier:
    kept = json.loads(file.read_text(encoding="utf-8"))
    models = {name: LogisticModel(**kept[name]) for name in MODELS}
    return AnswerabilityClassifier(**(kept | models))


def as_json(classifier: AnswerabilityClassifier) -> str:
    return json.dumps(asdict(classifier), indent=2) + "\n"


def rule_of_thumb(embedder: str, ranker: str) -> AnswerabilityClassifier:
    """Return a classifier for an embedder without fitted models. The ranker decides, near its own threshold."""

    def model(**features: tuple[float, float, float]) -> LogisticModel:
        weights, means, deviations = ({name: of[n] for name, of in features.items()} for n in range(3))
        return LogisticModel(weights=weights, means=means, deviations=deviations, bias=0.0)

    return AnswerabilityClassifier(
        embedder=embedder,
        ranker=ranker,
        fitted_on="nothing",
        threshold=0.35,
        certain=0.6,
        relevance=model(likely=(1.0, 0.0, 1.0)),
        written=model(covered=(1.0, 0.4, 0.1)),
        statement=model(ranked=(1.0, 0.0, 1.0), passage=(1.0, 1.0, 0.25), covered=(0.3, 0.5, 0.25)),
        written_statement=model(parts=(1.0, 0.5, 0.25), beyond=(1.0, 0.5, 0.25), passage=(1.0, 0.5, 0.25)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedStatements:
    """Candidates with their log-odds, the most likely first. told: weighted match of each question token, `[statements,
    question tokens]`; the row is `Candidate.number`. measures: None if there is no candidate.
    """

    ranked: tuple[tuple[float, Candidate], ...]
    told: Vectors
    measures: QuestionMeasures | None

    @property
    def features(self) -> QuestionFeatures:
        assert self.measures is not None
        return self.measures.features(self.ranked)


def judge(
    retriever: Retriever,
    ranker: StatementEncoder,
    classifier: AnswerabilityClassifier,
    queries: Sequence[Query],
    passages: Sequence[FoundPassageText],
) -> JudgedStatements:
    """Rank found statements. queries: the question; the last may start with the previous one. passages: best first."""
    query = queries[-1]
    logits, told = ranker.mixture.scores(ranker.question(query.text), [passage.vectors for passage in passages])
    candidates = candidates_of(retriever, query, queries[0], passages, logits)
    ranked = sorted(((classifier.answers(one.features), one) for one in candidates), key=lambda pair: -pair[0])
    measures = QuestionMeasures(retriever, query, passages) if candidates else None
    return JudgedStatements(ranked=tuple(ranked), told=told, measures=measures)
