"""Statements, the smallest parts of a passage that can be an answer alone, and what makes them complete.

**Governing lines.** "Damage from falls" has the opposite meaning without its heading "What is not covered". A line that
denies, sets a condition or asks is repeated with every statement below it. Any governing line is repeated with
fragments. Words are recognised in English, German and Chinese, fragments by their form in any language.

**Groups.** A sentence is joined with the following ones that cannot be understood without it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from retrieval.statements.references import without_references
from retrieval.text.sentences import ASKS, ENDED, LETTER, LOWER, UNSPACED, sentences
from retrieval.text.terms import CHINESE_JAPANESE

Kind: TypeAlias = Literal["sentence", "item", "list", "row", "procedure"]

_WORD = re.compile(rf"[{CHINESE_JAPANESE}]{{1,2}}|[^\W{CHINESE_JAPANESE}]+")


@dataclass(frozen=True, slots=True)
class Statement:
    """Text that a customer can understand without the rest of the passage.

    text: with its governing line or heading and a full stop. Each step of a procedure is on its own line. start, end:
    character span in the passage, without the governing line.
    """

    text: str
    start: int
    end: int
    kind: Kind


def num_words(text: str) -> int:
    return len(_WORD.findall(text))


_DENIES = re.compile(
    r"\b(?:never|not|no|nor|without|except|exceptions?|exclu\w+|unless|avoid|cannot|forbidden|prohibited|refused?"
    r"|nicht|nie|niemals|kein\w*|ohne|außer|ausgeschlossen\w*|ausnahmen?|verboten)\b|n[’']t\b|[不没无未勿别禁非]|除外|除了",
    re.IGNORECASE,
)
_SETS_CONDITION = re.compile(
    r"\b(?:if|when|before|after|while|until|only|unless|once|wenn|falls|bevor|nachdem|vor|nur)\b|如果|若|当|之前|之后|仅|只",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"[?？]$|^(?:what|which|who|whom|whose|when|where|why|how (?:long|much|many|often|far|old|big|quickly|soon)"
    r"|was|welche\w*|wer|wann|wo|wie (?:lange|viel|oft|hoch)|warum)\b|什么|哪|谁|多久|多少|几",
    re.IGNORECASE,
)
_UNFINISHED = re.compile(  # "Phishing attacks may:"
    r"\b(?:may|can|must|should|will|shall|to|by|for|with|of|in|at|from|is|are|be|or|and|either|using|such as|including"
    r"|they|we|often|also|that|please|always|um|mit|von|für|kann|können|muss|müssen|sind|ist|bitte)[:：]$",
    re.IGNORECASE,
)
_PROBLEM = re.compile(r"^(?:I\b|I[’']|my\b|it\b|they\b|if\b|when\b|what if\b|.*\bbut not\b)", re.IGNORECASE)
_GENERIC = re.compile(
    r"(?:the )?(?:full |complete )?(?:list|overview|at a glance|details?|examples?|summary|tables?|codes?|all codes"
    r"|steps?|step[- ]by[- ]step|instructions?|procedure|in short|notes?"
    r"|liste|übersicht|auf einen blick|einzelheiten|beispiele?|schritte?|schritt für schritt|anleitung"
    r"|清单|列表|一览|概述|概览|示例|步骤|操作步骤)",
    re.IGNORECASE,
)
_STEPS = re.compile(
    r"(?!.*\b(?:need|requires?|have|using)\b)"
    r"(?:to [a-z]+ .*[:：]$|.*\b(?:(?:these|following|next) (?:\w+ )?steps|follow the|do the following|as follows)\b"
    r"|how to\b|steps (?:to|for)\b|.*\bsteps[:：]?$"
    r"|.*\b(?:schritte?|so gehen sie|gehen sie .* vor|anleitung)\b|.*(?:步骤|如下操作|操作如下|方法如下))",
    re.IGNORECASE,
)
_LABEL = re.compile(r"[^.:;!?–：。]{1,60}[:：]")
_LONG = 35  # words; a longer line is repeated only if it changes the meaning
_LIKE_A_SENTENCE = 8  # words
_LEAST = 4  # words of a sentence


def denies(line: str) -> bool:
    return _DENIES.search(line) is not None


def turns_sentences(heading: str) -> bool:
    """Return whether a heading denies the sentences below it: "Never do this", but not "It does not charge"."""
    return denies(heading) and not _PROBLEM.search(heading) and not heading.endswith(("?", "？"))


def announces_steps(line: str) -> bool:
    """Return whether a line announces steps, with or without list markers: "To reset your password:"."""
    return _STEPS.match(line) is not None


def governing_heading(headings: Sequence[str]) -> str:
    """Return the nearest heading, or the one above a generic one ("The list"). headings: from the top down."""
    for heading in reversed(headings):
        if not _GENERIC.fullmatch(heading.rstrip(":：")):
            return heading
    return headings[-1] if headings else ""


def is_fragment(item: str) -> bool:
    """Return whether an item is a fragment by its form: no full stop, a small first letter, or too few words."""
    return num_words(item) < _LEAST or LOWER.match(item) is not None or not ENDED.search(item)


def is_needed(line: str, item: str) -> bool:
    """Return whether an item needs the line above its list, or the heading above that line."""
    if not line:
        return False
    if denies(line) or (num_words(line) <= _LONG and (_SETS_CONDITION.search(line) or _ASKS.search(line))):
        return True
    if num_words(line) > _LONG:
        return False
    introduces = line.endswith((":", "："))
    if introduces and _UNFINISHED.search(line):
        return True
    return is_fragment(item) and (introduces or num_words(item) < _LIKE_A_SENTENCE or LOWER.match(item) is not None)


def under(line: str, said: str) -> str:
    if not line:
        return said
    if line.endswith(("?", "？", "!", "！", "。")):
        return line + ("" if UNSPACED.search(line[-2:]) else " ") + said
    line = line.rstrip(":：.,;，；、 ")
    if UNSPACED.search(line[-1:]):
        return f"{line}：{said}"
    return f"{line} – {said}" if _LABEL.match(said) else f"{line}: {said}"


TOGETHER = 60  # maximum number of words of sentences that are joined

_DEPENDS = re.compile(
    r"(?:They|These|Those|Then|Otherwise|Its|Their|Both|Instead|In (?:that|this) case|But|And|So|For example|Or"
    r"|It(?! (?:is|was|may|can) (?:\w+ ){1,2}(?:to|that)\b)|(?:This|That|Such)(?! (?:page|article|guide|section)\b)"
    r"|(?:After|Before) that|Until then|Without (?:it|them)|If (?:it|they|not|so|this|that|you do)\b"
    r"|If you [^,]*, (?:it|they)"
    r"|Dies(?:e[rsnm]?)?|Dann|Danach|Dadurch|Dafür|Dabei|Deshalb|Sonst|Andernfalls|Aber|Und|Beide|In diesem Fall)\b"
    r"|[这该此其它]|否则|但是?|因此|所以|届时|之后"
)
_POINTS_BACK = re.compile(  # refers to the sentence before: "for that time"
    r"\b(?:after|as|at|before|by|during|for|from|in|of|on|to|until|with|within) (?:that|those) "
    r"(?!(?:are|cannot|from|in|is|it|not|of|that|the|they|we|which|who|with|you)\b)[a-z]+"
)
_CONDITION = re.compile(  # "Away for more than a month? Charge it to two lights."
    r"(?!(?:how|what(?! if)|which|who|where|why|when|wie|was|welche[rsnm]?|wer|wo|warum|wann)\b)"
    r"[^:]*[?？][\"'”’)」』]*",
    re.IGNORECASE,
)
_SHORT_CONDITION = 15  # maximum words of a question that sets a condition for the next sentence
_INNER_END = re.compile(r"[.!?…][^\w\s]*\s+\S|[。！？][^\w]*\w")
_BARE = re.compile(r"(?:Yes|No|Ja|Nein|Sure|Of course|是的?|不是?|可以|不可以|不能|没有)\W*")


class Group(NamedTuple):
    """Sentences that belong together, with their span in the line."""

    text: str
    start: int
    end: int


def located(text: str, language: str) -> Iterator[tuple[str, int, int]]:
    if not _INNER_END.search(text):  # like most items and cells
        yield text.strip(), 0, len(text)
        return
    at = 0
    for sentence in sentences(text, language):
        start, length = text.find(sentence, at), len(sentence)
        if start < 0:  # different spaces
            found = re.compile(r"\s+".join(map(re.escape, sentence.split()))).search(text, at)
            start, length = (found.start(), len(found[0])) if found else (at, 0)
        at = start + length
        yield sentence, start, at


def grouped(text: str, language: str) -> Iterator[Group]:
    """Yield the parts of a line that can be understood alone. Cross references are skipped, as are questions that set
    no condition for the next sentence.
    """
    group, condition = Group("", 0, 0), Group("", 0, 0)
    for sentence, start, end in located(text, language):
        if ASKS.search(sentence):
            sets_condition = _CONDITION.fullmatch(sentence) and num_words(sentence) <= _SHORT_CONDITION
            condition = Group(sentence if sets_condition else "", start, end)
            continue
        said = without_references(sentence) if LETTER.search(sentence) else ""
        if not said:
            continue
        following = Group(said, start, end)
        if condition.text:
            following, condition = _joined(condition, following), Group("", 0, 0)
        if group.text and _depends(following.text, group.text):
            group = _joined(group, following)
            continue
        if group.text:
            yield group
        group = following
    if group.text and not _BARE.fullmatch(group.text):
        yield group


def needs_before(sentence: str) -> bool:
    return bool(_DEPENDS.match(sentence) or _POINTS_BACK.search(sentence))


def _depends(sentence: str, before: str) -> bool:
    """Return whether one of two sentences cannot be understood without the other."""
    depends = needs_before(sentence) or _BARE.fullmatch(before)
    is_rest = " " not in sentence and not UNSPACED.search(sentence)
    return bool(depends or is_rest) and num_words(before) + num_words(sentence) <= TOGETHER


def _joined(first: Group, second: Group) -> Group:
    space = "" if first.text.endswith(("。", "！", "？")) else " "
    return Group(first.text + space + second.text, first.start, second.end)
