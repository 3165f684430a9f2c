"""What agents see of the desk's answers, and the questions that they answer themselves (FAQ)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from app.domain.answers import Answer, Outcome

Cause = Literal["nothing", "unsure", "down", "unsupported", "handed"]
"""Why an answer is on the quality page. nothing: the documents have nothing. unsure: something was found, and judged
not to answer for sure. down: the customer's thumb. unsupported: the passages do not support what the model said.
handed: the conversation went to a person after it."""
CAUSES: tuple[Cause, ...] = get_args(Cause)
WEAK = 0.5
"""An answer counts as not supported if its grounding is at most this."""
FAQ = "faq"
"""The collection of the FAQ's document; also the finish reason of an answer that is a pair of the FAQ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaqDraft:
    """A question with its answer, as an agent writes them. wordings: other ways to ask the same."""

    question: str
    answer: str
    wordings: tuple[str, ...] = ()

    @property
    def questions(self) -> tuple[str, ...]:
        """The question and its other wordings."""
        return (self.question, *self.wordings)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaqPair(FaqDraft):
    """A pair of the FAQ. author: the account that wrote it last. hits: how often it answered a customer by itself."""

    id: int
    author: str
    updated: datetime
    hits: int = 0
    last_hit: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaqSaved:
    """A pair that was saved, and what its question is answered now; None if it could not be asked. problem: why not."""

    id: int
    answer: Answer | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadAnswer:
    """A question that was not answered, or badly. causes: at least one. reason: that of the customer's thumb."""

    message_id: str
    conversation_id: str
    question: str
    answer: str
    created: datetime
    causes: tuple[Cause, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionGroup:
    """Questions that ask about the same, the latest first; there is at least one."""

    answers: tuple[BadAnswer, ...]

    @property
    def question(self) -> str:
        """The one that stands for all."""
        return self.answers[0].question

    def counts(self) -> dict[Cause, int]:
        """How many of its answers have each cause; only causes that occur."""
        return counts_of(self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """groups: the largest first. counts: of all causes, whichever are shown. is_cut: whether there were more answers
    than are looked at.
    """

    groups: tuple[QuestionGroup, ...]
    counts: dict[Cause, int]
    is_cut: bool


def counts_of(answers: tuple[BadAnswer, ...]) -> dict[Cause, int]:
    """How many answers have each cause; only causes that occur."""
    numbers = {cause: sum(cause in one.causes for one in answers) for cause in CAUSES}
    return {cause: number for cause, number in numbers.items() if number}


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptSummary:
    """A conversation in the agents' list. turns: number of messages."""

    id: str
    owner: str
    title: str
    updated: datetime
    turns: int


Why = Literal["faq", "smalltalk", "empty", "low", "sure", "topic", "between"]
"""What decided how a question ends. empty: nothing was found. low: the chance is below the lower threshold. sure: at
least the upper one. topic: it names a thing and asks nothing. between: between the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """A passage found. score: what it is ranked by. cosine: -1 to 1. share: of the question's words, 0 to 1."""

    title: str
    passage: str
    document: str
    score: float
    cosine: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRow:
    """A statement found. logit: log-odds that it answers. shown: whether the answer would say it."""

    text: str
    title: str
    logit: float
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestPair:
    """The pair of the FAQ whose wording has the question's telling words. likeness: 0 to 1, of the two questions.
    threshold: from which on the pair answers.
    """

    wording: str
    likeness: float
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchExplanation:
    """What search finds for a question, and how it would end. relevance: the chance that what was found answers.
    refuse_below, answer_above: the two thresholds. says: the desk's own words, or the FAQ's.
    """

    question: str
    outcome: Outcome
    why: Why
    says: str
    relevance: float
    refuse_below: float
    answer_above: float
    faq: NearestPair | None
    passages: tuple[FoundRow, ...]
    statements: tuple[StatementRow, ...]
