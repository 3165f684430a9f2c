"""Sentences cut into clauses, each with the words it is about and whether it denies, restricts or says "free".

So that an answer's negations can be held against those of a passage: "can't be returned" and "Returnable?: No" both
deny "return". Rules over function words, no grammar; in Chinese and Japanese the usual signs of denial.
Not covered: irony, double negation beyond "not impossible", denial by an ordinary verb ("we refuse to").
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

from app.grounding.fact import Fact, without
from app.grounding.words import all_words, content_words

DENIAL = re.compile(
    r"\b(?:not|no|never|cannot|none|nor|neither|nobody|nothing|nowhere|without|unless|except|excluding|excluded|"
    r"excludes?|closed|unable|impossible|unavailable|invalid|ineligible|unsuitable|incompatible|forbidden|prohibited|non)\b|n['’]t\b"
    r"|(?:[不没未無无勿禁]|ません|ない)[能会會可以得许許准止]*",  # with the modal verb before what is denied
    re.IGNORECASE,
)
TWICE = re.compile(
    r"(?:\bnot|n['’]t|\bnever)\s(?:\w+\s){0,2}?(?:impossible|excluded|unavailable|invalid|ineligible|forbidden|prohibited|"
    r"without|unable|closed)\b",
    re.IGNORECASE,
)
HARMLESS = re.compile(
    r"\b(?:not only|not just|no (?:more|later|less|fewer|sooner|longer) than|not (?:more|later|less) than|no matter|"
    r"no doubt|no problem|no worries|or not|(?:do not|don['’]t) (?:worry|hesitate)|why not)\b",
    re.IGNORECASE,
)
"""Looks like a denial, but is none."""
COSTS = r"(?:(?:extra|additional|further|delivery|any)\s)?(?:costs?|charges?|fees?)\b"
FREE_WORD = r"\bfree(?:ly)?\b(?:\sof\scharge\b)?(?!\sfrom\s[a-z])"
FREE = re.compile(
    rf"{FREE_WORD}|\b(?:no|without)\s{COSTS}|\b(?:costs?|pay|charge[sd]?)\s(?:you\s)?nothing\b"
    rf"|\b(?:do|does|did|will|wo|would|is|are|be)(?:n['’]t|\snot)\s(?:be\s|have to\s|need to\s)?"
    rf"(?:cost|charged?|pay)\b",
    re.IGNORECASE,
)
CALLED_FREE = re.compile(FREE_WORD, re.IGNORECASE)
NOT_FREE = re.compile(r"(?:\bnot|n['’]t|\bnever|\bno longer)\s(?:\w+\s)?free\b", re.IGNORECASE)
OTHERWISE_FREE = re.compile(r"\bfeel free\b|\w-free\b", re.IGNORECASE)
PAID = re.compile(r"\b(?:costs?|charge[sd]?|fees?|pay)\b", re.IGNORECASE)
ONLY = re.compile(r"\b(?:only|solely|exclusively)\b|[只仅]", re.IGNORECASE)
LIMITED = re.compile(
    r"\b(?:only|solely|exclusively|just|alone|limited|unless|except|once|up to|at most|must)\b", re.IGNORECASE
)

BORDER = re.compile(
    r"(?P<hard>[;!?()–—。！？；，、]|[.:](?=\s|$)|\s-\s)"
    r"|(?P<strong>\b(?:but|because|if|unless|although|though|while|when|until|which|where|whereas|except|without|instead|"
    r"including|excluding)\b)"
    r"|(?P<weak>(?P<joint>,\s(?:and|so)\b)|,\s|\b(?:and|or|nor|so)\b)",
    re.IGNORECASE,
)
LONG_TAIL = re.compile(r"(?:\s+\S+){5}")
"""So many words after ", and" are a clause even if none of them is known as a verb."""
SUBORDINATE = re.compile(r"\s*(?:but|because|if|unless|although|though|while|when|until|where)\b", re.IGNORECASE)
HAS_VERB = re.compile(
    r"\b(?:i|you|we|they|he|she|it|us|them|there|please|is|are|was|were|be|been|can|cannot|could|will|would|may|might|must|"
    r"should|shall|do|does|did|has|have|had|ca|wo|let|closed)(?:n['’]t)?\b",
    re.IGNORECASE,
)
REACH = 60
"""Characters after a denial in which to look for what it denies."""
FILLERS = frozenset(
    all_words(
        "a an the any be been being is are have has had to it its this that your my our yet always longer more "
        "currently really very so much too extra further only just you i we they of in for from to on at "
        "with needed"
    )
)
ALLOWED = "~allowed"
ALLOWING = frozenset(all_words("possible available allowed permitted offered accepted able can may valid eligible"))
CONDITION = re.compile(r"\s*(?:if|when)\b", re.IGNORECASE)
UNTIL = re.compile(r"\s*until\b", re.IGNORECASE)
EXCEPTION = re.compile(r"\s*(?:except|without|unless|excluding)\b", re.IGNORECASE)
VERDICT = re.compile(r"\s*(?:yes|no)(?:,[^;]{0,40})?;?\s*", re.IGNORECASE)
CELL = re.compile(r";\s(?=[^;:]{1,80}:\s)")
ROW = re.compile(r"[^;:]{1,80}(?::\s[^;]*)?;\s[^;:]{1,80}:\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A part of a sentence.

    words: what it is about, with its facts. all_words: every word, also function words. denies: None if that is
    unknown. anchors: the words that are denied, out of all_words. limits: whether it says "only" or something similar.
    is_until: whether it begins with "until". is_exception: whether it begins with "without", "except" and the like.
    inherits: words of its list's introduction, if that makes it a denial. is_verdict: whether it is a yes or no in a
    table.
    """

    words: frozenset[str]
    all_words: frozenset[str]
    anchors: frozenset[str]
    denies: bool | None
    says_only: bool
    limits: bool
    says_free: bool
    says_not_free: bool
    says_paid: bool
    has_verb: bool
    is_exception: bool
    is_until: bool
    inherits: frozenset[str] = frozenset()
    is_verdict: bool = False


def clauses(text: str, facts: Sequence[Fact]) -> list[Clause]:
    """The clauses of a sentence or of a table row. facts: those of the text."""
    facts = [fact for fact in facts if fact.kind != "name"]  # names are words already
    blank = without(text, facts)
    if ROW.match(text):
        return cells(text, blank, facts)
    return [clause(blank[start:end], keys(facts, start, end)) for start, end in spans(blank, text)]


def keys(facts: Sequence[Fact], start: int, end: int) -> frozenset[str]:
    """The facts between two places, as words."""
    return frozenset(fact.key for fact in facts if start <= fact.place < end)


def cells(text: str, blank: str, facts: Sequence[Fact]) -> list[Clause]:
    """The cells of a table row, each with the words of its header and of the row's first cell. blank: without facts."""
    borders = [0, *(match.end() for match in CELL.finditer(text)), len(text)]
    label: frozenset[str] = frozenset()
    found: list[Clause] = []
    for start, end in pairwise(borders):
        header = text.find(": ", start, end) + 1 or start
        common = content_words(blank[start:header]) | keys(facts, start, header)
        if not start:
            label = content_words(blank[start:end]) | keys(facts, start, end)
        for first, last in spans(blank[header:end], text[header:end]) or [(0, end - header)]:
            words = label | common | keys(facts, header + first, header + last)
            part = clause(blank[header + first : header + last], words)
            found.append(replace(part, is_verdict=VERDICT.fullmatch(text, header, end) is not None))
    return found


def spans(text: str, whole: str) -> list[tuple[int, int]]:
    """Where the clauses of a text begin and end. "And", "or" and commas end one only if a verb follows.

    text: without facts, so that none of their characters is taken for a border. whole: with them.
    """
    borders = list(BORDER.finditer(text))
    verbs = [match.start() for match in HAS_VERB.finditer(text)]
    starts = [0]
    for i, border in enumerate(borders):
        # the words of a conjunction belong to the clause they begin
        start = border.start() if border["strong"] else border.end()
        end = borders[i + 1].start() if i + 1 < len(borders) else len(text)
        after_subordinate = border[0].startswith(",") and SUBORDINATE.match(text, starts[-1])
        is_long = border["joint"] and LONG_TAIL.match(text, border.end(), end)
        is_lead = not border["joint"] and not any_between(verbs, starts[-1], border.start())
        if not border["weak"] or after_subordinate or is_long or (any_between(verbs, start, end) and not is_lead):
            starts.append(start)
    ends = [*starts[1:], len(text)]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if whole[start:end].strip(" .,:;")]


def any_between(places: Sequence[int], start: int, end: int) -> bool:
    """Whether one of some ascending places lies between two others."""
    return bisect_left(places, start) < bisect_left(places, end)


def anchors(text: str) -> Iterator[str]:
    """What the denials of a clause deny: for each the first word after it that is no filler."""
    for match in DENIAL.finditer(text):
        behind = (word for word in all_words(text[match.end() : match.end() + REACH]) if word not in FILLERS)
        yield from (allowing(word) for word in islice(behind, 1))


def allowing(word: str) -> str:
    """One word for "possible", "allowed", "available" and the like."""
    return ALLOWED if word in ALLOWING else word


def clause(text: str, more_words: frozenset[str]) -> Clause:
    """One clause from its text. more_words: words that it is about as well."""
    plain = TWICE.sub(" ", HARMLESS.sub(" ", text))
    costless = OTHERWISE_FREE.sub(" ", NOT_FREE.sub(" ", plain))
    # "free of charge" does not speak of a charge, and "no charge" denies one
    rest = CALLED_FREE.sub(" ", costless)
    return Clause(
        words=content_words(text) | more_words,
        all_words=frozenset(allowing(word) for word in all_words(rest)) | more_words,
        anchors=frozenset(anchors(rest)),
        denies=None if text.rstrip().endswith("?") else DENIAL.search(rest) is not None,
        says_only=ONLY.search(text) is not None and not CONDITION.match(text),
        limits=LIMITED.search(text) is not None,
        says_free=FREE.search(costless) is not None,
        says_not_free=NOT_FREE.search(plain) is not None,
        says_paid=PAID.search(FREE.sub(" ", costless)) is not None,
        has_verb=HAS_VERB.search(text) is not None,
        is_until=UNTIL.match(text) is not None,
        is_exception=EXCEPTION.match(text) is not None,
    )
