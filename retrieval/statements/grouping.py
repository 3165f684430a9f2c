"""A statement: the smallest part of a passage that can be an answer by itself.

What a list or a sentence owes to the line or heading above it.

"Damage from falls" says the opposite of what is meant without its heading "What is not covered". A governing line is
repeated with every statement below it that denies, sets a condition or asks, and with all that are no sentences.
By words of English, German and Chinese; a fragment is told by its form in any language.

The sentences of a line, each with the following ones that cannot be understood without it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from retrieval.statements.references import without_references
from retrieval.text.sentences import ASKS, ENDED, LETTER, sentences
from retrieval.text.terms import CHINESE_JAPANESE

Kind: TypeAlias = Literal["sentence", "item", "list", "row", "procedure"]

_WORD = re.compile(rf"[{CHINESE_JAPANESE}]{{1,2}}|[^\W{CHINESE_JAPANESE}]+")


@dataclass(frozen=True, slots=True)
class Statement:
    """Text that a customer can read without the passage around it.

    text: with the line or heading that governs it, and a full stop; the steps of a procedure on lines of their own.
    start, end: the characters of the passage it stands for, without the governing line.
    """

    text: str
    start: int
    end: int
    kind: Kind


def num_words(text: str) -> int:
    """Words of a text; two Chinese or Japanese characters count as one, which is about how long their words are."""
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
_LOWER = re.compile(r"[a-zß-öø-ÿ]")
_UNSPACED = re.compile(f"[{CHINESE_JAPANESE}]")
_LONG = 35  # words; a longer line is repeated only if the meaning hangs on it
_LIKE_A_SENTENCE = 8  # words
_LEAST = 4  # words of a sentence


def denies(line: str) -> bool:
    """Whether the line turns what stands below it into its contrary."""
    return _DENIES.search(line) is not None


def turns_sentences(heading: str) -> bool:
    """Whether a heading denies what whole sentences below it say: "Never do this", but not "It does not charge"."""
    return denies(heading) and not _PROBLEM.search(heading) and not heading.endswith(("?", "？"))


def announces_steps(line: str) -> bool:
    """Whether a line says that steps follow, whatever marks them: "To reset your password:"."""
    return _STEPS.match(line) is not None


def governing_heading(headings: Sequence[str]) -> str:
    """The nearest heading, from the top down; the one above it where that says nothing by itself ("The list")."""
    for heading in reversed(headings):
        if not _GENERIC.fullmatch(heading.rstrip(":：")):
            return heading
    return headings[-1] if headings else ""


def is_fragment(item: str) -> bool:
    """Whether an item is no sentence by its form: no full stop, a small letter at its beginning, or too few words."""
    return num_words(item) < _LEAST or _LOWER.match(item) is not None or not ENDED.search(item)


def is_needed(line: str, item: str) -> bool:
    """Whether an item must be told with the line above its list, or with the heading above that."""
    if not line:
        return False
    if denies(line) or (num_words(line) <= _LONG and (_SETS_CONDITION.search(line) or _ASKS.search(line))):
        return True
    if num_words(line) > _LONG:
        return False
    introduces = line.endswith((":", "："))
    if introduces and _UNFINISHED.search(line):
        return True
    return is_fragment(item) and (introduces or num_words(item) < _LIKE_A_SENTENCE or _LOWER.match(item) is not None)


def under(line: str, said: str) -> str:
    """A statement behind the line that governs it."""
    if not line:
        return said
    if line.endswith(("?", "？", "!", "！", "。")):
        return line + ("" if _UNSPACED.search(line[-2:]) else " ") + said
    line = line.rstrip(":：.,;，；、 ")
    if _UNSPACED.search(line[-1:]):
        return f"{line}：{said}"
    return f"{line} – {said}" if _LABEL.match(said) else f"{line}: {said}"


TOGETHER = 60
"""Most words of sentences that are kept together."""

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
_SHORT_CONDITION = 15  # words of a question that sets a condition for the next sentence
_INNER_END = re.compile(r"[.!?…][^\w\s]*\s+\S|[。！？][^\w]*\w")
_BARE = re.compile(r"(?:Yes|No|Ja|Nein|Sure|Of course|是的?|不是?|可以|不可以|不能|没有)\W*")


class Group(NamedTuple):
    """Sentences that are told together, and the characters of the line that they stand for."""

    text: str
    start: int
    end: int


def located(text: str, language: str) -> Iterator[tuple[str, int, int]]:
    """The sentences of a line with the characters they stand for."""
    if not _INNER_END.search(text):  # as most items and cells
        yield text.strip(), 0, len(text)
        return
    at = 0
    for sentence in sentences(text, language):
        start, length = text.find(sentence, at), len(sentence)
        if start < 0:  # spaces differ
            found = re.compile(r"\s+".join(map(re.escape, sentence.split()))).search(text, at)
            start, length = (found.start(), len(found[0])) if found else (at, 0)
        at = start + length
        yield sentence, start, at


def grouped(text: str, language: str) -> Iterator[Group]:
    """What a line says in parts that can be understood alone. Cross references are left out, and questions that set no
    condition for the sentence behind them.
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
    """Whether a sentence speaks of what the one before it said."""
    return bool(_DEPENDS.match(sentence) or _POINTS_BACK.search(sentence))


def _depends(sentence: str, before: str) -> bool:
    """Whether a sentence cannot be understood without the one before it, or that one not without it."""
    depends = needs_before(sentence) or _BARE.fullmatch(before)
    is_rest = " " not in sentence and not _UNSPACED.search(sentence)
    return bool(depends or is_rest) and num_words(before) + num_words(sentence) <= TOGETHER


def _joined(first: Group, second: Group) -> Group:
    space = "" if first.text.endswith(("。", "！", "？")) else " "
    return Group(first.text + space + second.text, first.start, second.end)
