"""A judge of contradictions that shares nothing with the desk's own checks.

It knows what the desk does not: the facts of the right answer. A statement contradicts when the answer shows none of
the forms of a fact that is a value (an amount, a duration, a share, a date, a count of something), and the statement
says of the same thing another value of the same kind. Of the same thing: it has most of the question's telling words.

Not seen: wrong advice without a value, a wrong value of something the question does not name, values of follow-ups
that name nothing, yes for no, and everything said in an answer that also holds the right value.
"""

import re
from collections.abc import Sequence

from evals.fact_matching import Fact, holds_fact, words
from evals.helpdesk_questions import CustomerQuestion
from retrieval.text.terms import COMMON, stem

SAME_THING = 0.6
"""Share of the question's telling words that a statement about the same thing has."""
CURRENCIES = frozenset(
    ("€", "$", "£", "¥", "eur", "usd", "gbp", "euro", "euros", "dollar", "dollars", "pound", "pounds")
)
DURATIONS = frozenset(("second", "minute", "hour", "day", "week", "month", "year"))
MONTHS = frozenset(
    (
        "january",
        "february",
        "march",
        "april",
        "may",
        "june",
        "july",
        "august",
        "september",
        "october",
        "november",
        "december",
    )
)
NUMBER = re.compile(r"\d[\d.,:/]*")

Value = tuple[str, str]
"""Kind ("amount", "duration", "share", "date", or the stem of what is counted) and number."""


def contradictions(question: CustomerQuestion, statements: Sequence[str]) -> list[str]:
    """The statements that contradict the right answer."""
    missing = [fact for fact in question.facts if not any(holds_fact(one, fact) for one in statements)]
    right = {value for fact in missing for value in _values_of(fact)}
    kinds = {kind for kind, _ in right}
    return [
        one
        for one in statements
        if is_about(one, question.question)
        and any(kind in kinds and (kind, number) not in right for kind, number in values(one))
    ]


def _values_of(fact: Fact) -> set[Value]:
    return {value for form in fact for value in values(form)}


def is_about(statement: str, question: str) -> bool:
    """Whether a statement has most of the words of a question that say what it is about."""
    asked = _telling(question)
    return bool(asked) and len(asked & _telling(statement)) >= SAME_THING * len(asked)


def _telling(text: str) -> set[str]:
    return {stem(word) for word in words(text) if not NUMBER.fullmatch(word)} - COMMON


def values(text: str) -> set[Value]:
    """The values of a text."""
    said = words(text)
    found: set[Value] = set()
    for at, word in enumerate(said):
        if not NUMBER.fullmatch(word):
            continue
        before = said[at - 1] if at else ""
        after = said[at + 1] if at + 1 < len(said) else ""
        if before in CURRENCIES or after in CURRENCIES:
            found.add(("amount", word))
        elif after == "%":
            found.add(("share", word))
        elif before in MONTHS or after in MONTHS:
            found.add(("date", f"{word} {before if before in MONTHS else after}"))
        elif stem(after) in DURATIONS:
            found.add(("duration", f"{word} {stem(after)}"))
        elif after.isalpha():
            found.add((stem(after), word))
    return found
