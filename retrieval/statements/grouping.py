"""Statements, the smallest parts of a passage that can be an answer alone, and the text that completes them.

**Governing lines.** "Damage from falls" has the opposite meaning without its heading "What is not covered". A line that
negates, sets a condition or asks is repeated with every statement below it. Any governing line is repeated with
fragments. Words are recognised in English, German and Chinese, fragments by their form in any language.

**Groups.** A sentence is joined with the following sentences that cannot be understood without it.

**References and furniture.** Cross references are removed if the rest of the sentence still makes sense ("book a
collection as described in ..."). A sentence that is only a cross reference, or page furniture ("Back to top"), is not a
statement. Known in English, German and Chinese. Pages of an app are not cross references: "open the Orders page" stays.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from retrieval.text.sentences import ASKS, ENDED, LETTER, LOWER, UNSPACED, sentences
from retrieval.text.terms import CHINESE_JAPANESE

_PLACE = (
    r"(?:(?:articles?|sections?|chapters?|guides?|documentation|tutorial|topics?|FAQs?|help pages?|separate pages?"
    r"|(?:our|this|these|the|following) pages?|below|above|here|seiten?|artikel|abschnitt|kapitel|unten|oben)\b)"
)
_QUOTED = r"(?:[\"“„«][^\"”“»]+[\"”“»])"
_TARGET = rf"(?:{_QUOTED}|(?:[^.;:()]{{0,90}}? )?\b{_PLACE}|[A-Za-z]{{1,3}}-?\d{{1,3}}\b)"
_TOLD = r"(?:described|explained|shown|listed|outlined|detailed|specified|mentioned)"
_CUTS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"\s*\((?:please )?(?:see|refer to|cf\.?|siehe|vgl\.?)(?: also| auch)? {_TARGET}[^()]*\)",
        rf",?\s+as (?:is |it is )?{_TOLD} (?:in |on |under |at )?{_TARGET}(?=[.,;]|$| and\b| or\b)",
        rf",? (?:as )?{_TOLD} (?:above|below)(?=[.,;]|$)",
        rf",? wie (?:in|auf|unter|im) {_TARGET}[^.;,]{{0,30}}? (?:beschrieben|erklärt|gezeigt)(?=[.,;]|$)",
        rf"[;,–-]\s*(?:please )?(?:see|siehe)(?: also| auch)? {_TARGET}(?=[.;]|$)",
        r"（(?:详见|请参阅|请参见|参见|见)[^（）]*）",
        r"[，,；;](?:详见|请参阅|请参见|参见|详情请见)[^，。；]*(?=[。；]|$)",
    )
]
_POINTERS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"\bclick(?:ing)? (?:here|on this link|this link)\b|点击(?:此处|这里)|\bhier klicken\b",
        r"\bfollow(?:ing)? (?:these|the following|the next) (?:steps|instructions)|\bthe (?:following )?steps below\b",
        r"\b(?:complete|take|perform|use) (?:these|the following) (?:steps|instructions)\b|^folgen sie diesen",
        rf"\b(?:is|are) (?:described|explained|documented)\b[^.]{{0,20}}? (?:in|on|under|at)"
        rf" (?:[^.]*?\bpages?\b|{_QUOTED})",
        rf"\b(?:is|are|can be)(?: \w+)? (?:{_TOLD}|found|covered|documented)\b[^.]{{0,30}}? {_PLACE}",
    )
]
_HINTS = """
    see refer cf. descri expla shown list outl detail specif mention found cover docum steps instruc click siehe
    vgl wie folgen klick 详 参 见 点
    """.split()  # noqa: SIM905
"""Every sentence that `_CUTS` or `_POINTERS` match contains one of these, so few sentences need a full search."""

_OPENS = "|".join(
    (  # starts of sentences that are only a reference
        rf"(?:see|read|refer to|consult|review)(?: also)? {_TARGET}",
        r"see(?: also)? [^.]* for (?:details|more|further|the whole|a (?:full|complete)|information|instructions)",
        r"visit [^.]* (?:to learn more|for (?:more|further|details|information))\b",
        r"(?:to )?(?:learn|find out|read) more\b|learn (?:how|about)\b|(?:back|return) to top",
        rf"(?:to|for) [^.]*, (?:please )?(?:see|refer to|read|visit) {_TARGET}",
        r"(?:for )?(?:more|further|additional) (?:information|details|help)\b[^.]*"
        r"\b(?:see|visit|read|refer|found|available)\b",
        r"(?:in |on )?this (?:page|article|guide|section|topic|document|tutorial|chapter|table),? (?:also )?"
        r"(?:explains?|describes?|shows?|sums?|covers?|lists?|provides?|contains?|tells|walks|gives?|outlines?|discusses|answers"
        r"|introduces|helps|is about|is for|you|we|will)\b",
        r"(?:here|below|above),?(?: is| are| you[’']ll find| you will find|[’']s)\b[^.]*\b"
        r"(?:solutions?|table|list|steps|overview|how|what|some|techniques|links?|resources|breakdown)\b",
        r"the following (?:table|list|sections?|steps)\b",
        r"(?:mehr|weitere|nähere) (?:dazu|informationen|infos|details|einzelheiten|erfahren)\b|siehe\b",
        r"lesen sie\b[^.]*\b(?:seite|artikel|abschnitt)|klicken sie hier\b",
        r"(?:auf dieser seite|in diesem artikel|dieser artikel|diese seite)\b",
        r"(?:详见|请参阅|请参见|参见|另请参阅|了解更多|更多信息|点击此处|点击这里|本文|本页)",
    )
)
_ONLY = re.compile(rf"(?:(?:please|you can|also),? )*(?:{_OPENS})", re.IGNORECASE)
_LONGEST_POINTER = 30  # words; a longer sentence has more content than a reference
_SAYS_MORE = re.compile(r"\d{3}|@|://|;|[:：]\s*\w")  # an address, a list, or a second clause

_FURNITURE = re.compile(
    "|".join(
        (
            r"was this\b.*(?:helpful|useful).*|(?:did|does) this\b.*help.*|(?:yes|no)\W+(?:yes|no)",
            r"\d+ (?:out of|of) \d+ found this helpful|back to (?:the )?top|skip to\b.*|you are here\b.*",
            r"(?:last )?(?:updated|modified|reviewed|changed|edited|published)\b(?: on)?\W*\w*\W*\d.*",
            r"print(?: this page)?|share(?: this.*)?|(?:©|copyright\b|\(c\)).*|.*all rights reserved.*",
            r"table of contents|on this page|\d+ min(?:ute)?s? (?:read|to read)",
            r"war dieser artikel.*|(?:zuletzt )?(?:aktualisiert|geändert) am\b.*|stand: .*\d.*",
            r"nach oben|zum seitenanfang",
            r"(?:最后)?(?:更新|修改|发布)(?:日期|时间|于)?[：:].*|返回顶部|.*有帮助吗.*|目录",
        )
    )
    + r"[.?!。？！]*",
    re.IGNORECASE,
)
_TRAIL = re.compile(r"[^.>›»|]{1,50}(?: (?:>|›|»|→|\|) [^.>›»|]{1,50}){2,}")  # Home > Help > Delivery
_LINKS = re.compile(
    r"(?:related|popular|recommended|other|more|further) (?:articles?|links?|topics?|pages?|content|resources|questions"
    r"|reading|help)|see also|in this (?:article|section)|on this page|(?:table of )?contents|learn more.*"
    r"|(?:for )?(?:more|further|additional) info(?:rmation)?.*"
    r"|verwandte (?:artikel|themen)|siehe auch|weitere artikel|相关(?:文章|链接|主题|内容)|另请参阅|推荐阅读",
    re.IGNORECASE,
)


def is_furniture(line: str) -> bool:
    return _FURNITURE.fullmatch(line) is not None or _TRAIL.fullmatch(line) is not None


def lists_links(heading: str) -> bool:
    return _LINKS.fullmatch(heading.rstrip(":： ")) is not None


def without_references(sentence: str) -> str:
    """Return a sentence without its cross references; "" if it is only a cross reference."""
    is_pointer = _ONLY.match(sentence) is not None and not _SAYS_MORE.search(sentence)
    lower = sentence.lower()
    if not is_pointer and any(hint in lower for hint in _HINTS):
        for cut in _CUTS:
            sentence = cut.sub("", sentence)
        is_pointer = any(pointer.search(sentence) for pointer in _POINTERS)
    return "" if is_pointer and len(sentence.split()) <= _LONGEST_POINTER else sentence.strip()


Kind: TypeAlias = Literal["sentence", "item", "list", "row", "procedure"]

_WORD = re.compile(rf"[{CHINESE_JAPANESE}]{{1,2}}|[^\W{CHINESE_JAPANESE}]+")


@dataclass(frozen=True, slots=True)
class Statement:
    """Text that a customer can understand without the rest of the passage. text: with its governing line or heading and
    a full stop. Each step of a procedure is on its own line. start, end: character span in the passage, without the
    governing line. subject: the first cell of a row, else "".
    """

    text: str
    start: int
    end: int
    kind: Kind
    subject: str = ""


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
    """Return whether a heading negates the sentences below it: "Never do this", but not "It does not charge"."""
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
_YES_NO = "(?:Yes|No|Ja|Nein|Sure|Of course|是的?|不是?|可以|不可以|不能|没有)"
_BARE = re.compile(rf"{_YES_NO}\W*")
_BEGINS_WITH_IT = re.compile(rf"{_YES_NO}(?:[.!。！]\s*|(?P<goes_on>[,，] ?))")


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


def with_its_question(said: str, heading: str) -> str:
    """Put the heading's question before a text that begins with yes or no; without a question, drop "Yes." or "No."."""
    answers = _BEGINS_WITH_IT.match(said)
    if answers is None:
        return said
    if heading.endswith(("?", "？")):
        return under(heading, said)
    return said if answers["goes_on"] else said[answers.end() :]


def needs_before(sentence: str) -> bool:
    return bool(_DEPENDS.match(sentence) or _POINTS_BACK.search(sentence))


def _depends(sentence: str, before: str) -> bool:
    """Return whether one of two sentences is unclear without the other."""
    depends = needs_before(sentence) or _BARE.fullmatch(before)
    is_rest = " " not in sentence and not UNSPACED.search(sentence)
    return bool(depends or is_rest) and num_words(before) + num_words(sentence) <= TOGETHER


def _joined(first: Group, second: Group) -> Group:
    space = "" if first.text.endswith(("。", "！", "？")) else " "
    return Group(first.text + space + second.text, first.start, second.end)
