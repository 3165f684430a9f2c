"""Claims worded anew by rule, as agents and small models reword what they read: what is said stays the same."""

import random
import re
from collections.abc import Callable

SHORT_FORMS = (
    *(("cannot", "can't"), ("do not", "don't"), ("does not", "doesn't"), ("is not", "isn't"), ("are not", "aren't")),
    *(("we will", "we'll"), ("You will", "You'll"), ("it is", "it's"), ("has not", "hasn't"), ("will not", "won't")),
)
OTHER_PERSON = {
    **{"you": "I", "your": "my", "You": "I", "Your": "My", "yourself": "myself"},
    **{"we": "you", "us": "you", "our": "your"},
}
OPENING = re.compile(r"(?:You|We|The|It|A|An|Your) ")
NOUNS = ("item", "order", "card", "parcel", "voucher", "store", "point", "label", "code", "refund", "account", "user")


def without_marker(text: str) -> str:
    """A list item as a sentence."""
    return re.sub(r"^(?:- |\d+\. )", "", text)


def contracted(text: str) -> str:
    """Short forms for long ones, or the other way round."""
    to_long = any(re.search(rf"\b{short}\b", text) for _, short in SHORT_FORMS)
    for long, short in SHORT_FORMS:
        text = re.sub(rf"\b{short if to_long else long}\b", long if to_long else short, text)
    return text


def other_person(text: str) -> str:
    """As a customer would repeat it."""
    return re.sub(rf"\b(?:{'|'.join(OTHER_PERSON)})\b", lambda match: OTHER_PERSON[match[0]], text)


def row_as_sentence(text: str) -> str:
    """A table row read out: "For gift cards, the limit is 4 per order."."""
    cells = re.fullmatch(r"[^;:]+: ([^;]+); ([^;:?]+): ([^;]+?)\.?(?:; .*)?", text)
    if not cells:
        return text
    first, header, value = cells.groups()
    return f"For {small(first) if first.split()[0].istitle() else first}, the {header.lower()} is {value}."


def with_lead(text: str) -> str:
    """A leading yes or no that goes with the sentence."""
    denies = re.search(r"\b(?:not|no|never|cannot)\b|n't\b", text)
    return f"{'No' if denies else 'Yes'}, {small(text)}" if OPENING.match(text) else text


def with_opening(text: str) -> str:
    """Words of courtesy in front."""
    return f"Please note that {small(text)}" if OPENING.match(text) else text


def without_last_clause(text: str) -> str:
    """The sentence as far as its last comma, if what is left is long enough."""
    head, comma, tail = text.rpartition(", ")
    is_clause = re.match(r"(?:and|but|so|because|which|where|if|for|such) ", tail)
    is_whole = len(head.split()) >= 6 and not re.match(r"(?:If|When|After)\b", head)
    return f"{head}." if comma and is_clause and is_whole else text


def condition_last(text: str) -> str:
    """ "You do that if this" for "If this, you do that"."""
    parts = re.fullmatch(r"(If|When|After|Before|Once|Until) ([^,]+), (\w[^,]+)\.", text)
    return f"{parts[3][0].upper()}{parts[3][1:]} {parts[1].lower()} {parts[2]}." if parts else text


def other_number(text: str) -> str:
    """A singular for a plural."""
    for noun in NOUNS:
        if re.search(rf"\b[Tt]he {noun}\b", text):
            return text
        if re.search(rf"\b{noun}s\b", text):
            return re.sub(rf"\b{noun}s\b(?! (?:are|have|were))", noun, text, count=1)
    return text


def small(text: str) -> str:
    """The text with a small first letter."""
    return text[0].lower() + text[1:]


RULES: tuple[Callable[[str], str], ...] = (
    *(contracted, other_person, with_lead, with_opening, without_last_clause, other_number, condition_last),
)


def reworded(text: str, behind: str, choose: random.Random) -> str | None:
    """A sentence reworded by up to three rules, or joined with the one behind it; None if no rule applies."""
    claim = without_marker(text)
    if behind and choose.random() < 0.25 and claim.endswith(".") and OPENING.match(behind) and behind.endswith("."):
        return f"{claim[:-1]}, and {small(behind)}"
    claim = row_as_sentence(claim)
    for rule in choose.sample(RULES, 3):
        claim = rule(claim)
    return claim if claim != text else None
