"""A judge of contradictions that shares nothing with the desk's own checks.

It knows what the desk does not: the facts and the gold answer. A statement contradicts if no statement before it holds
the fact and it says of the same thing
  another value of the same kind: an amount, a duration, a share, a date, a time, a count of the same noun;
  the opposite: it begins with "Yes" where the gold answer says no, or says what the gold answer says but denies it;
  something of another model: the question names a code (KM-450, E3), it names another one of that family only, and
  the facts are not shown at all.
Of the same thing: most of its telling words are those of the question and the gold answer.

Not seen: wrong advice without a value, what is said of another product that the statement does not name, opposites
without a word of denial, and a rival value in a statement that also holds the fact. Taken for contradictions although
they are none: general rules beside the exception asked for, and values of a step on the way.

How far it can be trusted, by reading: of 172 answers composed by search alone (sample shop and login.gov) it called 9
contradictory, and 6 were; of 55 of them that do not begin with the facts, 2 more were, which it had missed. The bounds
below were set with these answers in view.
"""

import re
from collections.abc import Sequence

from evals.answers.fact_matching import Fact, holds_fact, words
from evals.answers.questions import CustomerQuestion
from retrieval.text.terms import COMMON, stem

SAME_THING = 0.33
"""Share of a statement's telling words that the question and the gold answer have, if it is about the same thing."""
SAME_WORDS = 0.8
"""Share of the gold answer's telling words in a statement that says or denies the same."""
SHARED = 2
"""Such words at least, in both."""
CURRENCIES = frozenset(
    ("€", "$", "£", "¥", "eur", "usd", "gbp", "euro", "euros", "dollar", "dollars", "pound", "pounds")
)
DURATIONS = frozenset(("second", "minute", "hour", "day", "week", "month", "year"))
MONTHS = frozenset(
    (
        *("january", "february", "march", "april", "may", "june", "july"),
        *("august", "september", "october", "november", "december"),
    )
)
NUMBER = re.compile(r"\d[\d.,:/]*")
TIME = re.compile(r"\d{1,2}:\d\d")
CODE = re.compile(r"\b([a-z]{1,3})[- ]?(\d{1,4})\b", re.IGNORECASE)
DENIES = re.compile(r"\b(?:no|not|never|without|cannot|nor|none)\b|n't\b", re.IGNORECASE)

Value = tuple[str, str]
"""Kind ("amount", "duration", "share", "date", "time", or the stem of what is counted) and number."""


def contradictions(question: CustomerQuestion, statements: Sequence[str]) -> list[str]:
    """The statements that contradict the right answer."""
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
    """Whether a statement about the same thing gives a value of the kind of a missing fact, and no right one."""
    right = {value for fact in missing for form in fact for value in values(form)}
    given = [value for value in values(statement) if value[0] in {kind for kind, _ in right}]
    known = telling(question.question) | telling(question.gold)
    said = telling(statement)
    shared = said & known
    is_about = len(shared) >= SHARED and len(shared) >= SAME_THING * len(said)
    return is_about and bool(given) and not right & {*given}


def is_opposite(statement: str, gold: str) -> bool:
    """Whether a statement says yes for no, or denies what the gold answer says, or the other way round."""
    answered, said = (text[:1] if (text := words(whole)) else [] for whole in (gold, statement))
    if {*answered, *said} == {"yes", "no"}:
        return True
    asserted = telling(gold)
    shared = asserted & telling(statement)
    is_same = len(shared) >= SHARED and len(shared) >= SAME_WORDS * len(asserted)
    return is_same and bool(DENIES.search(gold)) != bool(DENIES.search(statement))


def is_of_another_model(statement: str, question: str) -> bool:
    """Whether a statement names only other codes of a family of which the question names one."""
    asked, said = ({(family.lower(), int(number)) for family, number in CODE.findall(t)} for t in (question, statement))
    return any((family, number) not in said and any(other == family for other, _ in said) for family, number in asked)


def telling(text: str) -> set[str]:
    """Stems of the words that say what a text is about: no numbers, units of time, denials, or words of every text."""
    tells = (word for word in words(text) if not (NUMBER.fullmatch(word) or word in CURRENCIES or DENIES.search(word)))
    return {stem(word) for word in tells} - COMMON - DURATIONS - {"yes"}


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
        elif TIME.fullmatch(word):
            found.add(("time", word))
        elif duration := next((stem(one) for one in said[at + 1 : at + 4] if stem(one) in DURATIONS), None):
            found.add(("duration", f"{word} {duration}"))
        elif after.isalpha():
            found.add((stem(after), word))
    return found
