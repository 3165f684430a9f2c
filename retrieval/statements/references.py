"""Text about the page itself or about other pages, and page furniture, which answer no question.

Cross references are removed if the rest of the sentence still makes sense ("book a collection as described in ..."). A
sentence that is only a cross reference is not a statement. English, German and Chinese. Pages of an app or a shop are
not cross references: "open the Orders page" stays.
"""

import re

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
        r"(?:to|for) [^.]*, (?:please )?(?:see|refer to|read|visit)\b",
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
    is_pointer = _ONLY.match(sentence) is not None
    lower = sentence.lower()
    if not is_pointer and any(hint in lower for hint in _HINTS):
        for cut in _CUTS:
            sentence = cut.sub("", sentence)
        is_pointer = any(pointer.search(sentence) for pointer in _POINTERS)
    return "" if is_pointer and len(sentence.split()) <= _LONGEST_POINTER else sentence.strip()
