"""Bad answers as agents see them, and the FAQ."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal, get_args

from app.domain.answers import Answer, ConversationSummary, Outcome
from app.domain.words import translatable

Cause = Literal["nothing", "unsure", "down", "unsupported", "handed"]
"""The reason why an answer is on the quality page. nothing: the documents have no answer. unsure: something was found,
without confidence. down: the customer's rating. unsupported: the passages do not support the model's text. handed: the
conversation went to an agent afterwards.
"""
CAUSES: tuple[Cause, ...] = get_args(Cause)
Ended = Literal["asked", "answered", "resolved", "unsure", "nothing", "person", "down", "up"]
"""An outcome of a conversation in a period. asked: it had a question or a hand-off. answered: every question was
answered with confidence. resolved: also without a hand-off or a bad rating. unsure, nothing: an answer had this
outcome. person: a hand-off began. down, up: an answer got this rating.
"""
ENDED_WORDS: dict[Ended, str] = {
    "asked": translatable("Conversations"),
    "answered": translatable("Answered"),
    "resolved": translatable("Resolved"),
    "unsure": translatable("Not certain"),
    "nothing": translatable("Not found"),
    "person": translatable("To a person"),
    "down": translatable("Thumbs down"),
    "up": translatable("Thumbs up"),
}
BADGES: tuple[Ended, ...] = ("nothing", "unsure", "person", "down", "up")
"""The outcomes that the list of conversations shows."""
WEAK = 0.5  # an answer counts as unsupported if its grounding is at most this
FAQ = "faq"  # the collection of the FAQ's document; also the finish reason of an answer from the FAQ


@dataclass(frozen=True, slots=True, kw_only=True)
class FaqDraft:
    """A question with its answer, as an agent writes them. wordings: other ways to ask the same."""

    question: str
    answer: str
    wordings: tuple[str, ...] = ()

    @property
    def questions(self) -> tuple[str, ...]:
        return (self.question, *self.wordings)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaqPair(FaqDraft):
    """A pair of the FAQ. author: the account that changed it last. hits: number of questions that it alone answered."""

    id: int
    author: str
    updated: datetime
    hits: int = 0
    last_hit: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaqSaved:
    """A saved pair, and the current answer to its question; None if asking failed. problem: the reason."""

    id: int
    answer: Answer | None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadAnswer:
    """A question without a good answer. causes: at least one. reason: given with the customer's rating."""

    message_id: str
    conversation_id: str
    question: str
    answer: str
    created: datetime
    causes: tuple[Cause, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionGroup:
    """Similar questions, the latest first; at least one."""

    answers: tuple[BadAnswer, ...]

    @property
    def question(self) -> str:
        return self.answers[0].question

    def counts(self) -> dict[Cause, int]:
        return counts_of(self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """The quality page. groups: largest first. counts: answers by cause. is_cut: some answers were not examined."""

    groups: tuple[QuestionGroup, ...]
    counts: dict[Cause, int]
    is_cut: bool


def counts_of(answers: tuple[BadAnswer, ...]) -> dict[Cause, int]:
    numbers = {cause: sum(cause in one.causes for one in answers) for cause in CAUSES}
    return {cause: number for cause, number in numbers.items() if number}


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptSummary(ConversationSummary):
    """A conversation in the agents' list. ended: its outcomes that are in BADGES."""

    owner: str
    ended: tuple[Ended, ...] = ()


Why = Literal["faq", "smalltalk", "empty", "low", "sure", "topic", "which", "between"]
"""The rule that decided the outcome of a question. empty: nothing was found. low: the probability is below the lower
threshold. sure: it reaches the upper one. topic: the question only names a thing. which: the pages say the
same of several things. between: between the thresholds.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """A found passage. score: for ranking. cosine: -1 to 1. share: part of the question's words that it has, 0 to 1."""

    title: str
    passage: str
    document: str
    score: float
    cosine: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRow:
    """A found statement. logit: log-odds that it answers the question. shown: whether the answer would contain it."""

    text: str
    title: str
    logit: float
    shown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestPair:
    """The FAQ wording most similar to a question. likeness: 0 to 1. threshold: minimum similarity for an answer."""

    wording: str
    likeness: float
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchExplanation:
    """The search results and the outcome of a question. says: Warmdesk's own words, or the FAQ's."""

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
