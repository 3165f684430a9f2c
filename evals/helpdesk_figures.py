"""What is counted over the answers of a help desk, and how one answer is judged.

Questions are answerable (a page answers them), unanswerable, or small talk. Statements, facts and contradictions are
judged for answerable ones only, and of what is shown as an answer, sure or unsure.

Beside the point: a statement that holds no form of any fact and is not needed to understand one that does. It is needed
if the very next statement holds a fact and begins with a word that points back ("It", "This", "Otherwise"), or if it
ends with a colon. This is strict: a true and useful statement that states no fact asked for is beside the point, too.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evals.contradictions import contradictions
from evals.fact_matching import holds_all, holds_fact
from evals.helpdesk_questions import CustomerQuestion
from evals.intervals import Figure, middle_of, share
from evals.shown_answers import ShownAnswer
from retrieval.text.terms import CHINESE_JAPANESE

POINTS_BACK = re.compile(
    r"(?:it|its|they|them|their|this|that|these|those|then|otherwise|instead|both|there|also|if so|if not)\b",
    re.IGNORECASE,
)
_FULL_WIDTH_MARKS = "\u3000-\u303f\uff01-\uff0f\uff1a-\uff1f"
_WORD = re.compile(rf"[{CHINESE_JAPANESE}]{{1,2}}|[^\s{CHINESE_JAPANESE}{_FULL_WIDTH_MARKS}]+")
"""What stands between spaces, and two Chinese or Japanese characters, which is about how long their words are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedAnswer:
    """A question and what was shown for it. added_ms: see `evals.helpdesk`."""

    question: CustomerQuestion
    shown: ShownAnswer
    added_ms: float

    @property
    def num_words(self) -> int:
        """Words of what was shown."""
        return len(_WORD.findall(self.shown.text))

    @property
    def has_all_facts(self) -> bool:
        """Whether everything that a right answer holds is shown."""
        return bool(self.question.facts) and holds_all("\n".join(self.shown.statements), self.question.facts)

    @property
    def has_facts_first(self) -> bool:
        """Whether the first statement alone holds it."""
        return bool(self.question.facts) and holds_all("".join(self.shown.statements[:1]), self.question.facts)

    @property
    def has_page_first(self) -> bool:
        """Whether the first source is a page that answers."""
        return any(_is_page(document, self.question.articles) for document in self.shown.documents[:1])

    @property
    def has_page(self) -> bool:
        """Whether any source is."""
        return any(_is_page(document, self.question.articles) for document in self.shown.documents)

    @property
    def is_dead_end(self) -> bool:
        """Whether the customer is left without all the facts and without a page that has them."""
        return not self.has_all_facts and not self.has_page

    @property
    def is_harmful(self) -> bool:
        """Whether a statement is from a page that must not be quoted here."""
        return any(_is_page(document, self.question.not_from) for document in self.shown.quoted)

    @property
    def beside_the_point(self) -> list[bool]:
        """Of each statement."""
        shown = self.shown.statements
        on_point = [any(holds_fact(one, fact) for fact in self.question.facts) for one in shown]
        needed = [
            follows and (one.rstrip().endswith(":") or POINTS_BACK.match(after) is not None)
            for one, after, follows in zip(shown, [*shown[1:], ""], [*on_point[1:], False], strict=False)
        ]
        return [not (holds or helps) for holds, helps in zip(on_point, needed, strict=True)]

    @property
    def contradictions(self) -> list[str]:
        """Statements that contradict what is right."""
        return contradictions(self.question, self.shown.statements)

    @property
    def verdict(self) -> str:
        """How it went, in a few words."""
        outcome, asked = self.shown.outcome, self.question
        if not asked.is_answerable:
            return outcome if outcome != "answered" else "ANSWERED"
        held = sum(holds_fact("\n".join(self.shown.statements), fact) for fact in asked.facts)
        page = "page first" if self.has_page_first else "page" if self.has_page else "no page"
        wrong = (", CONTRADICTED" if self.contradictions else "") + (", HARMFUL" if self.is_harmful else "")
        return f"{outcome}, {held} of {len(asked.facts)} facts, {page}{wrong}"

    def row(self) -> dict[str, Any]:
        """The answer as one row of JSON."""
        shown = self.shown
        return {
            "id": self.question.id,
            "kind": self.question.kind,
            "question": self.question.question,
            "outcome": shown.outcome,
            "refused": shown.outcome == "nothing",
            "answer": shown.text,
            "statements": list(shown.statements),
            "documents": list(shown.documents),
            "words": self.num_words,
            "first_token_ms": round(shown.first_ms, 1),
            "added_ms": round(self.added_ms, 1),
        }


def figures(judged: Sequence[JudgedAnswer]) -> dict[str, Figure]:
    """The figures by name. Shares are of the questions that a name begins with; the others:

    right_page_first, right_page_any: of answerable questions whose page is known. all_facts, facts_first, dead_ends,
    contradicted: of answerable ones; harmful: of those that name pages that must not be quoted; answered_all_facts: of
    those answered. beside_the_point: of the statements shown for answerable ones. smalltalk_handled: of small talk;
    smalltalk_mistaken: of the rest. words, first_token_ms: median of what is answered or unsure; added_ms: of all but
    small talk.
    """
    answerable = [one for one in judged if one.question.is_answerable]
    unanswerable = [one for one in judged if one.question.is_unanswerable]
    small_talk = [one for one in judged if one.question.is_small_talk]
    with_page = [one for one in answerable if one.question.articles]
    with_facts = [one for one in answerable if one.question.facts]
    told = [one for one in judged if one.shown.outcome in ("answered", "unsure")]
    serious = [one for one in judged if not one.question.is_small_talk]
    return {
        "right_page_first": share([one.has_page_first for one in with_page]),
        "right_page_any": share([one.has_page for one in with_page]),
        "all_facts": share([one.has_all_facts for one in with_facts]),
        "facts_first": share([one.has_facts_first for one in with_facts]),
        "answered_all_facts": share([one.has_all_facts for one in with_facts if one.shown.outcome == "answered"]),
        "dead_ends": share([one.is_dead_end for one in answerable]),
        "contradicted": share([bool(one.contradictions) for one in with_facts]),
        "harmful": share([one.is_harmful for one in judged if one.question.not_from]),
        "beside_the_point": share([beside for one in with_facts for beside in one.beside_the_point]),
        "words": middle_of([one.num_words for one in told]),
        "answerable_answered": _part(answerable, "answered"),
        "answerable_unsure": _part(answerable, "unsure"),
        "answerable_refused": _part(answerable, "nothing"),
        "unanswerable_answered": _part(unanswerable, "answered"),
        "unanswerable_unsure": _part(unanswerable, "unsure"),
        "unanswerable_refused": _part(unanswerable, "nothing"),
        "smalltalk_handled": _part(small_talk, "smalltalk"),
        "smalltalk_mistaken": _part(serious, "smalltalk"),
        "first_token_ms": middle_of([one.shown.first_ms for one in told]),
        "added_ms": middle_of([one.added_ms for one in serious]),
    }


MEDIANS = frozenset(("words", "first_token_ms", "added_ms"))
"""Figures that are no shares."""


def markdown(summary: dict[str, Figure]) -> str:
    """The figures as a table; shares in per cent."""
    lines = ["| figure | value | 95 % interval | n |", "|---|---|---|---|"]
    for name, figure in summary.items():
        if figure.value is None or figure.low is None or figure.high is None:
            lines.append(f"| {name.replace('_', ' ')} | | | 0 |")
            continue
        scale, unit = (1, "") if name in MEDIANS else (100, " %")
        low, value, high = (f"{scale * number:.0f}" for number in (figure.low, figure.value, figure.high))
        lines.append(f"| {name.replace('_', ' ')} | {value}{unit} | {low} to {high} | {figure.n} |")
    return "\n".join(lines)


def _part(judged: Sequence[JudgedAnswer], outcome: str) -> Figure:
    return share([one.shown.outcome == outcome for one in judged])


def _is_page(document: str, articles: Sequence[str]) -> bool:
    return any(document == article or document.endswith(f"/{article}") for article in articles)
