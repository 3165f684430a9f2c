"""What a page says about itself or other pages, and what it is furnished with: nothing that answers a question.

Cross references are taken out where the rest still stands ("book a collection as described in ..."); what is nothing
but one is no statement. English, German and Chinese.
"""

import re

_PLACE = (
    r"(?:pages?|articles?|sections?|chapters?|guides?|documentation|tutorial|topics?|instructions|FAQs?|below|above|here"
    r"|seiten?|artikel|abschnitt|kapitel|unten|oben|hier)"
)
_QUOTED = r"[\"“„«][^\"”“»]+[\"”“»]"
_TARGET = rf"(?:{_QUOTED}|[^.;:()]{{0,60}}?\b{_PLACE}\b|\b[A-Z]{{1,3}}-?\d{{1,3}}\b)"
_CUTS = [
    re.compile(
        rf"\s*\((?:please )?(?:see|refer to|cf\.?|siehe|vgl\.?)(?: also| auch)? {_TARGET}[^()]*\)", re.IGNORECASE
    ),
    re.compile(
        rf",?\s+(?:as|wie) (?:is |it is )?(?:described|explained|shown|listed|outlined|detailed|specified)"
        rf" (?:in|on|under|at)? ?{_TARGET}(?=[.,;]|$| (?:and|or)\b)",
        re.IGNORECASE,
    ),
    re.compile(
        rf",? wie (?:in|auf|unter|im) {_TARGET}[^.;,]{{0,30}}? (?:beschrieben|erklärt|gezeigt)(?=[.,;]|$)",
        re.IGNORECASE,
    ),
    re.compile(r",? (?:as )?(?:described|explained|shown|listed|mentioned) (?:above|below)(?=[.,;]|$)", re.IGNORECASE),
    re.compile(rf"[;,–-]\s*(?:please )?(?:see|siehe)(?: also| auch)? {_TARGET}(?=[.;]|$)", re.IGNORECASE),
    re.compile(r"（(?:详见|请参阅|请参见|参见|见)[^（）]*）"),
    re.compile(r"[，,；;](?:详见|请参阅|请参见|参见|详情请见)[^，。；]*(?=[。；]|$)"),
]
_ONLY = re.compile(
    rf"""(?:(?:please|you\ can|also),?\ )*(?:
      (?:see|read|refer\ to|consult|visit|check(?:\ out)?|review|view|go\ to|follow)\ (?:also\ )?(?:the\ |our\ |this\ |these\ )?{_TARGET}
      |see(?:\ also)?\ [^.]*(?:\ for\ (?:details|more|further|the\ whole|a\ (?:full|complete)|information|instructions))
      |(?:to\ )?(?:learn|find\ out|read)\ more\b
      |click(?:ing)?\ here\b | (?:back|return)\ to\ top
      |(?:for\ )?(?:more|further|additional)\ (?:information|details|help)\b[^.]*\b(?:see|visit|read|refer|found|available|check|go|contact\ the)
      |(?:this|in\ this|on\ this)\ (?:page|article|guide|section|topic|document|tutorial|chapter)\b
      |(?:here|below|above|the\ following)\ (?:is|are|table|list|you[’']ll|you\ will)\b[^.]*\b(?:solutions?|table|list|steps|overview|how|what|techniques|links?|resources)\b
      |here[’']s\ (?:how|what|a\b)
      |(?:mehr|weitere|nähere)\ (?:dazu|informationen|infos|details|einzelheiten|erfahren)\b
      |siehe\b | lesen\ sie\b[^.]*\b(?:seite|artikel|abschnitt) | klicken\ sie\ hier\b
      |(?:auf\ dieser\ seite|in\ diesem\ artikel|dieser\ artikel|diese\ seite)\b
      |(?:详见|请参阅|请参见|参见|另请参阅|了解更多|更多信息|点击此处|点击这里|本文|本页)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_POINTS = re.compile(  # "How to do it is described on the pages ..."
    rf"\b(?:is|are|can be)(?: \w+)? (?:described|explained|listed|shown|found|outlined|covered|documented)\b[^.]{{0,20}}?"
    rf" (?:(?:on|in|under|at) )?(?:{_QUOTED}|(?:(?:the|our|this|these|a|their|your|its) )?(?:\w+ ){{0,3}}?{_PLACE}\b)",
    re.IGNORECASE,
)
_CLICK = re.compile(
    r"\bclick(?:ing)? (?:here|on this link|this link)\b|点击(?:此处|这里)|\bhier klicken\b", re.IGNORECASE
)
_PROMISES = re.compile(
    r"(?:please )?follow (?:these|the following|the) (?:steps|instructions)\b|folgen sie", re.IGNORECASE
)
_FURNITURE = re.compile(
    r"""(?:was\ this\b.*(?:helpful|useful)|(?:did|does)\ this\b.*help|back\ to\ (?:the\ )?top|skip\ to\b.*
      |(?:last\ )?(?:updated|modified|reviewed|changed|edited|published)\b(?:\ on)?\W*\w*\W*\d.*|print(?:\ this\ page)?|share(?:\ this.*)?
      |(?:©|copyright\b|\(c\)).*|.*all\ rights\ reserved.*|(?:yes|no)\W+(?:yes|no)|table\ of\ contents|on\ this\ page
      |\d+\ (?:out\ of|of)\ \d+\ found\ this\ helpful|\d+\ min(?:ute)?s?\ (?:read|to\ read)|you\ are\ here.*
      |war\ dieser\ artikel.*|(?:zuletzt\ )?(?:aktualisiert|geändert)\ am\b.*|stand:\ .*\d.*|nach\ oben|zum\ seitenanfang
      |(?:最后)?(?:更新|修改|发布)(?:日期|时间|于)?[：:].*|返回顶部|.*(?:对您有帮助|有帮助)吗.*|目录
    )[.?!。？！]*""",
    re.IGNORECASE | re.VERBOSE,
)
_TRAIL = re.compile(r"[^.>›»|]{1,50}(?: (?:>|›|»|→|\|) [^.>›»|]{1,50}){2,}")  # Home > Help > Delivery
_LINKS = re.compile(
    r"(?:related|popular|recommended|other|more|further) (?:articles?|links?|topics?|pages?|content|resources|questions|"
    r"reading|help)|see also|further reading|in this (?:article|section)|on this page|(?:table of )?contents|(?:for )?more info(?:rmation)?.*|learn more.*"
    r"|verwandte (?:artikel|themen)|siehe auch|weitere artikel|相关(?:文章|链接|主题|内容)|另请参阅|推荐阅读",
    re.IGNORECASE,
)
_LONGEST_POINTER = 30  # words; a longer sentence says more than where to look


def is_furniture(line: str) -> bool:
    """Whether a line belongs to the page around the text: navigation, dates of update, questions to the reader."""
    return _FURNITURE.fullmatch(line) is not None or _TRAIL.fullmatch(line) is not None


def lists_links(heading: str) -> bool:
    """Whether the list below a heading names other pages."""
    return _LINKS.fullmatch(heading.rstrip(":： ")) is not None


def without_references(sentence: str) -> str:
    """The sentence without its references to other places; "" if it is nothing but one."""
    for cut in _CUTS:
        sentence = cut.sub("", sentence)
    is_pointer = _ONLY.match(sentence) or _CLICK.search(sentence) or _PROMISES.search(sentence)
    if not is_pointer:
        is_pointer = _POINTS.search(sentence)
    return "" if is_pointer and len(sentence.split()) <= _LONGEST_POINTER else sentence.strip()
