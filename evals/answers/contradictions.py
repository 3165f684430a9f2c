"""A judge of contradictions that shares nothing with the product's own checks.

The judge has the facts and the gold answer, which the product does not have. A statement contradicts if it is about the
same thing, a fact is missing in it and in all earlier statements, and it has one of these:
  another value of the same kind: an amount, a duration, a share, a date, a time, a count of the same noun;
  the opposite: it begins with "Yes" and the gold answer says no, or it denies what the gold answer says;
  another product model: the question names a code (KM-450, E3), the statement names only another code of that family,
  and the facts are not shown at all.
A statement is about the same thing if enough of its topic words are in the question or the gold answer (`SAME_THING`).

Missed: wrong advice without a value, statements about another product that they do not name, opposites without a
negation, and a wrong value in a statement that also holds the fact. Wrongly found: general rules next to the requested
exception, and values of an intermediate step.

Reliability, checked by reading: of 172 answers composed by search alone (sample shop and login.gov), the judge called 9
contradictory, and 6 really were. Among 55 of these answers that do not begin with the facts, 2 more were contradictory.
These answers were known when the limits below were set.
"""

import re
from collections.abc import Sequence

from evals.answers.questions import CustomerQuestion, Fact, holds_fact, plain_words
from retrieval.text.terms import COMMON, stem

SAME_THING = 0.33
"""Minimum share of a statement's topic words in the question or gold answer, if it is about the same thing."""
SAME_WORDS = 0.8  # share of the gold answer's telling words in a statement that says or denies the same
SHARED = 2  # minimum number of such words in both
CURRENCIES = frozenset(
    ("€", "$", "£", "¥", "eur", "usd", "gbp", "euro", "euros", "dollar", "dollars", "pound", "pounds")
)
DURATIONS = frozenset(("second", "minute", "hour", "day", "week", "month", "year"))
MONTHS = frozenset("january february march april may june july august september october november december".split())  # noqa: SIM905
NUMBER = re.compile(r"\d[\d.,:/]*")
TIME = re.compile(r"\d{1,2}:\d\d")
CODE = re.compile(r"\b([a-z]{1,3})[- ]?(\d{1,4})\b", re.IGNORECASE)
DENIES = re.compile(r"\b(?:no|not|never|without|cannot|nor|none)\b|n't\b", re.IGNORECASE)

Value = tuple[str, str]
"""Kind ("amount", "duration", "share", "date", "time", or the stem of the counted noun) and number."""


def contradictions(question: CustomerQuestion, statements: Sequence[str]) -> list[str]:
    found: list[str] = []
    is_shown = all(any(holds_fact(one, fact) for one in statements) for fact in question.facts)
    for at, statement in enumerate(statements):
        missing = [fact for fact in question.facts if not any(holds_fact(one, fact) for one in statements[: at + 1])]
        if missing and (
            has_rival_value(statement, question, missing)
            or is_opposite(statement, question.gold)
            or (not is_shown and is_of_another_model(statement, question.question))
        ):
            found.append(statement)
    return found


def has_rival_value(statement: str, question: CustomerQuestion, missing: Sequence[Fact]) -> bool:
    """Return whether a statement is about the same thing, but has only other values of a missing fact's kind."""
    right = {value for fact in missing for form in fact for value in values(form)}
    given = [value for value in values(statement) if value[0] in {kind for kind, _ in right}]
    known = telling(question.question) | telling(question.gold)
    said = telling(statement)
    shared = said & known
    is_about = len(shared) >= SHARED and len(shared) >= SAME_THING * len(said)
    return is_about and bool(given) and not right & {*given}


def is_opposite(statement: str, gold: str) -> bool:
    """Return whether a statement is the opposite of the gold answer: "yes" for "no", or one negates the other."""
    answered, said = (text[:1] if (text := plain_words(whole)) else [] for whole in (gold, statement))
    if {*answered, *said} == {"yes", "no"}:
        return True
    asserted = telling(gold)
    shared = asserted & telling(statement)
    is_same = len(shared) >= SHARED and len(shared) >= SAME_WORDS * len(asserted)
    return is_same and bool(DENIES.search(gold)) != bool(DENIES.search(statement))


def is_of_another_model(statement: str, question: str) -> bool:
    """Return whether a statement names another code, of the same family, instead of the question's code."""
    asked, said = ({(family.lower(), int(number)) for family, number in CODE.findall(t)} for t in (question, statement))
    return any((family, number) not in said and any(other == family for other, _ in said) for family, number in asked)


def telling(text: str) -> set[str]:
    """Return the stems of the topic words: no numbers, units of time, denials, or common words."""
    tells = (
        word for word in plain_words(text) if not (NUMBER.fullmatch(word) or word in CURRENCIES or DENIES.search(word))
    )
    return {stem(word) for word in tells} - COMMON - DURATIONS - {"yes"}


def values(text: str) -> set[Value]:
    said = plain_words(text)
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
        elif TIME.fullmatch(word):
            found.add(("time", word))
        elif duration := next((stem(one) for one in said[at + 1 : at + 4] if stem(one) in DURATIONS), None):
            found.add(("duration", f"{word} {duration}"))
        elif after.isalpha():
            found.add((stem(after), word))
    return found
