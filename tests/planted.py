"""Answers made from the passages of data/knowledge, and the same answers with exactly one error planted in each.

Half are sentences of the passages word for word, half are reworded by rule as agents and small models reword. The kinds
of errors and the seed are fixed, so that the same answers are made each time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from retrieval.documents.document import with_headings
from retrieval.documents.splitting import split
from retrieval.loaders.load import SUPPORTED, load
from retrieval.text.sentences import sentences

KNOWLEDGE = Path(__file__).parent.parent / "data" / "knowledge"
SEED = 20
EACH = 50
KINDS = ("number", "date or time", "name", "negation")

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
UNITS = ("days", "weeks", "months", "hours", "minutes", "years")
A_MONTH, A_WEEKDAY = f"(?:{'|'.join(MONTHS)})", f"(?:{'|'.join(WEEKDAYS)})"

QUANTITY = re.compile(r"(?<![\w.,:+-])\d+(?:[.,]\d+)?(?![\w:]|-\w*\d|[.,]\d)")
CLOCK = re.compile(r"\b\d{1,2}:\d{2}\b")
CODE = re.compile(r"\b[A-Z]{1,3}-?\d+\w*\b")
ADDRESS = re.compile(r"\b\w+@[\w.]+\w")
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{3,}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """An answer and its twin with an error. passages: what the answer was made from, and others found with it."""

    kind: str
    is_verbatim: bool
    answer: str
    wrong: str
    passages: tuple[str, ...]


@cache
def files() -> tuple[str, ...]:
    """The documents of the knowledge base."""
    found = (path for path in KNOWLEDGE.rglob("*") if path.suffix in SUPPORTED)
    return tuple(sorted(path.relative_to(KNOWLEDGE).as_posix() for path in found))


@cache
def passages(file: str) -> tuple[str, ...]:
    """The passages of a document as an answer is given them."""
    document = load(KNOWLEDGE / file)
    return tuple(with_headings(p.heading_path, p.text) for p in split(document, lambda text: len(text.split())))


def passages_with_others(file: str) -> tuple[str, ...]:
    """The passages of a document and some of its neighbours, as search would find them."""
    i = files().index(file)
    around = (files()[i - 1], files()[(i + 1) % len(files())])
    return (*passages(file), *(passage for other in around for passage in passages(other)[:2]))


def source_sentences() -> list[tuple[str, str]]:
    """Every sentence, list item and table row of the knowledge base with its document; no headings, no questions."""
    found = []
    for file in files():
        for passage in passages(file):
            for block in passage.split("\n\n"):
                lines = block.split("\n")
                body = lines[1:] if len(lines) > 1 and not lines[0].endswith((".", ":")) else lines
                found += [(file, text) for line in body for text in parts(line)]
    return [(file, text) for file, text in found if 5 <= len(text.split()) <= 45 and text[-1] not in "?:,"]


def parts(line: str) -> list[str]:
    """The sentences of a line; a list item keeps its marker, a table row is whole."""
    if re.match(r"[^;:]+: [^;]+; [^;:]+: ", line):
        return [line]
    return [text for text in sentences(line) if not re.fullmatch(r"\d+\.", text)]


def planted() -> list[Planted]:
    """Four times EACH answers, the kinds of error in turn, every second answer reworded."""
    choose = random.Random(SEED)
    pool = source_sentences()
    made: list[Planted] = []
    for kind in KINDS:
        choose.shuffle(pool)
        sources = (source for _ in range(4) for source in pool)
        used: set[str] = set()
        while len(used) < EACH:
            is_verbatim = len(used) % 2 == 0
            file, text = next(sources)
            answer = text if is_verbatim else reworded(text, following(file, text), choose)
            wrong = with_error(kind, answer, choose) if answer and answer not in used else None
            if answer and wrong and wrong != answer:
                used.add(answer)
                given = passages_with_others(file)
                made.append(Planted(kind=kind, is_verbatim=is_verbatim, answer=answer, wrong=wrong, passages=given))
    return made


def following(file: str, text: str) -> str:
    """The sentence behind a sentence in its line, or nothing."""
    for passage in passages(file):
        _, found, rest = passage.partition(text + " ")
        if found:
            return next(iter(parts(rest.split("\n")[0])), "")
    return ""


# --- rewording: each rule gives the text unchanged where it does not apply ---


def without_marker(text: str) -> str:
    """A list item as a sentence."""
    return re.sub(r"^(?:- |\d+\. )", "", text)


def contracted(text: str) -> str:
    """Short forms for long ones, or the other way round."""
    pairs = (
        ("cannot", "can't"),
        ("do not", "don't"),
        ("does not", "doesn't"),
        ("is not", "isn't"),
        ("are not", "aren't"),
    )
    pairs += (
        ("we will", "we'll"),
        ("You will", "You'll"),
        ("it is", "it's"),
        ("has not", "hasn't"),
        ("will not", "won't"),
    )
    if any(short in text for _, short in pairs):
        for long, short in pairs:
            text = re.sub(rf"\b{short}\b", long, text)
        return text
    for long, short in pairs:
        text = re.sub(rf"\b{long}\b", short, text)
    return text


def other_person(text: str) -> str:
    """As a customer would repeat it."""
    swaps = {
        "you": "I",
        "your": "my",
        "You": "I",
        "Your": "My",
        "yourself": "myself",
        "we": "you",
        "us": "you",
        "our": "your",
    }
    return re.sub(r"\b(?:[Yy]ou|[Yy]our|yourself|we|us|our)\b", lambda match: swaps[match[0]], text)


def row_as_sentence(text: str) -> str:
    """A table row read out: "For gift cards, the limit is 4 per order."."""
    cells = re.fullmatch(r"[^;:]+: ([^;]+); ([^;:?]+): ([^;]+?)\.?(?:; .*)?", text)
    if not cells:
        return text
    first, header, value = cells.groups()
    return (
        f"For {first[0].lower() + first[1:] if first.split()[0].istitle() else first}, the {header.lower()} is {value}."
    )


def with_lead(text: str) -> str:
    """A leading yes or no that goes with the sentence."""
    denies = re.search(r"\b(?:not|no|never|cannot)\b|n't\b", text)
    is_plain = re.match(r"(?:You|We|The|It|A|An|Your) ", text)
    return f"{'No' if denies else 'Yes'}, {text[0].lower()}{text[1:]}" if is_plain else text


def with_opening(text: str) -> str:
    """Words of courtesy in front."""
    return f"Please note that {text[0].lower()}{text[1:]}" if re.match(r"(?:You|We|The|It|A|An|Your) ", text) else text


def without_last_clause(text: str) -> str:
    """The sentence as far as its last comma, if what is left is long enough."""
    head, comma, tail = text.rpartition(", ")
    is_clause = re.match(r"(?:and|but|so|because|which|where|if|for|such) ", tail)
    return (
        head + "."
        if comma and is_clause and len(head.split()) >= 6 and not re.match(r"(?:If|When|After)\b", head)
        else text
    )


def other_number(text: str) -> str:
    """A plural for a singular or the other way round."""
    nouns = ("item", "order", "card", "parcel", "voucher", "store", "point", "label", "code", "refund")
    for noun in nouns:
        if re.search(rf"\b[Tt]he {noun}\b", text):
            return text
        if re.search(rf"\b{noun}s\b", text):
            return re.sub(rf"\b{noun}s\b(?! (?:are|have|were))", noun, text, count=1)
    return text


RULES: tuple[Callable[[str], str], ...] = (
    *(contracted, other_person, row_as_sentence, with_lead, with_opening, without_last_clause, other_number),
)


def reworded(text: str, behind: str, choose: random.Random) -> str | None:
    """A sentence reworded by one or two rules, or joined with the one behind it; None if no rule applies."""
    plain = without_marker(text)
    changed = row_as_sentence(plain)
    if changed == plain and re.match(r"[^;:]+: [^;]+; [^;:]+: ", plain):
        return None
    if (
        changed == plain
        and behind
        and choose.random() < 0.25
        and not behind.endswith((":", "?"))
        and plain.endswith(".")
    ):
        return (
            f"{plain[:-1]}, and {behind[0].lower()}{behind[1:]}"
            if re.match(r"(?:You|We|It|The|They) ", behind)
            else None
        )
    for rule in choose.sample(RULES, 2):
        changed = rule(changed)
    return changed if changed != text else None


# --- errors: each gives None where it has nothing to spoil ---


def with_error(kind: str, text: str, choose: random.Random) -> str | None:
    """The text with one error of a kind."""
    spoil = {"number": wrong_number, "date or time": wrong_time, "name": wrong_name, "negation": wrong_negation}[kind]
    return spoil(text, choose)


def replaced(text: str, match: re.Match[str], by: str) -> str:
    """The text with something else where a pattern matched."""
    return text[: match.start()] + by + text[match.end() :]


def wrong_number(text: str, choose: random.Random) -> str | None:
    """Another amount, or another unit for it."""
    marker = len(text) - len(without_marker(text))
    found = [m for m in QUANTITY.finditer(text, marker) if not re.match(rf" {A_MONTH}\b", text[m.end() :])]
    if not found:
        return None
    match = choose.choice(found)
    unit = re.match(r" (days|weeks|months|hours|minutes|years)\b", text[match.end() :])
    if unit and choose.random() < 0.25:
        other = choose.choice([u for u in UNITS if u != unit[1]])
        return text[: match.end()] + " " + other + text[match.end() + len(unit[0]) :]
    value = float(match[0].replace(",", "") if re.search(r",\d{3}", match[0]) else match[0].replace(",", "."))
    change = choose.choice(
        (lambda v: v + 1, lambda v: v * 2, lambda v: v + 5, lambda v: max(1, v - 1) if v != 1 else 3)
    )
    new = f"{change(value):.2f}" if "." in match[0] else f"{change(value):.0f}"
    return replaced(text, match, new)


def wrong_time(text: str, choose: random.Random) -> str | None:
    """Another time of day, weekday, month or day of the month."""
    clocks = list(CLOCK.finditer(text))
    days = list(re.finditer(rf"\b{A_WEEKDAY}(?=s?\b)", text))
    months = list(re.finditer(rf"\b{A_MONTH}\b", text))
    dates = list(re.finditer(rf"\b\d{{1,2}}(?= {A_MONTH}\b)", text))
    found = [*clocks, *days, *months, *dates]
    if not found:
        return None
    match = choose.choice(found)
    if match in clocks:
        hour, minute = match[0].split(":")
        return replaced(text, match, f"{(int(hour) + choose.choice((1, 2, 3))) % 24}:{minute}")
    if match in dates:
        return replaced(text, match, str((int(match[0]) + choose.choice((1, 4, 10))) % 28 + 1))
    names = WEEKDAYS if match in days else MONTHS
    return replaced(text, match, choose.choice([name for name in names if name not in text]))


@cache
def all_names() -> tuple[str, ...]:
    """Names that stand in the knowledge base."""
    found = {name for _, text in source_sentences() for name in NAME.findall(text)}
    return tuple(sorted(found - {*MONTHS, *WEEKDAYS}))


@cache
def all_codes() -> tuple[str, ...]:
    """Model numbers and codes of the knowledge base."""
    return tuple(sorted({code for _, text in source_sentences() for code in CODE.findall(text)}))


def wrong_name(text: str, choose: random.Random) -> str | None:
    """Another name, model number or address."""
    addresses, codes = list(ADDRESS.finditer(text)), list(CODE.finditer(text))
    names = [m for m in NAME.finditer(text) if m[0].rstrip("s") not in {*MONTHS, *WEEKDAYS}]
    found = [*addresses, *codes, *names]
    if not found:
        return None
    match = choose.choice(found)
    if match in addresses:
        return replaced(text, match, choose.choice(("service", "orders", "info")) + "@" + match[0].partition("@")[2])
    known = all_codes() if match in codes else all_names()
    return replaced(text, match, choose.choice([name for name in known if name != match[0] and name not in text]))


LOSSES = (
    *(
        (r"\bcannot\b", "can"),
        (r"\bcan't\b", "can"),
        (r"\bdo not\b ?", ""),
        (r"\bdon't ?", ""),
        (r"\b(is|are|has|have) not\b", r"\1"),
    ),
    *(
        (r"\b(is|are|was|were|has|have|do|does|will|must)n't\b", r"\1"),
        (r"\bdoes not (\w+)", r"\1s"),
        (r"\bnever\b", "always"),
    ),
    *(
        (r"\bno (?!matter|more|later)(?=\w+)", "a "),
        (r"\bwithout\b", "with"),
        (r"\bunless\b", "if"),
        (r"\bexcept\b", "including"),
    ),
    *((r"\bNo (?=\w+ \w+)", "Some "), (r"\bwill not\b", "will"), (r"\bwon't\b", "will")),
)
GAINS = (
    *((r"\bcan(?! not\b)\b(?!')", "cannot"), (r"\b(is|are|will|must|may|has been|have been)\b(?! not)", r"\1 not")),
    *(
        (
            r"\b([Ww]e|[Yy]ou|I) (send|refund|get|keep|ask|email|accept|charge|check|have|need|receive|pay)\b",
            r"\1 do not \2",
        ),
    ),
    *((r"\bfree\b", "not free"), (r"\bincluded\b", "excluded"), (r"\bwith (?=\w+ \w+)(?![^;]*:)", "without ")),
)


def wrong_negation(text: str, choose: random.Random) -> str | None:
    """A negation taken out, or one put in where there is none."""
    losses = [(p, by) for p, by in LOSSES if re.search(p, text)]
    denies = re.search(
        r"\b(?:not|no|never|cannot|without|unless|except|only|nothing|nobody|none|neither|nor|excluded)\b|n't\b|\bNo\b",
        text,
    )
    gains = [(p, by) for p, by in GAINS if re.search(p, text)] if not denies else []
    found = losses or gains
    if not found:
        return None
    pattern, by = choose.choice(found)
    if by == "cannot" and text.startswith("Yes, "):
        text = "No, " + text[5:]
    return re.sub(pattern, by, text, count=1)
