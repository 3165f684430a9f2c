"""What kind of value a question asks for (an amount of money, a time, a number, somewhere to write or call), and
whether a text has one: the expected answer type of classic question answering (Li and Roth 2002, "Learning Question
Classifiers"), by rule.

English and Chinese. Other languages, and questions for anything else, expect nothing, which says nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBER = (
    r"(?:\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|once|twice)\b|[一二三四五六七八九十百两半])"
)
MONTH = r"(?:january|february|march|april|may|june|july|august|september|october|november|december)\b"


@dataclass(frozen=True, slots=True)
class Kind:
    """asks: what questions for such a value say. has: what a text that holds one looks like."""

    asks: re.Pattern[str]
    has: re.Pattern[str]


def _kind(asks: str, has: str) -> Kind:
    return Kind(re.compile(asks, re.IGNORECASE), re.compile(has, re.IGNORECASE))


KINDS = (
    _kind(  # money
        r"how much\b(?! (?:time|longer))|\b(?:costs?|prices?|charged?|fees?|expensive|discounts?|refund limit)\b"
        r"|多少钱|价格|费用",
        r"(?:EUR|USD|GBP|[€$£¥￥])\s?\d|\d\s?(?:EUR|USD|GBP|[€%元])|\bfree\b|免",
    ),
    _kind(  # time
        r"how (?:long|soon|quick(?:ly)?|fast|late|early)\b|how much (?:time|longer)|^when\b"
        r"|\bwhen (?:do|does|is|are|will|can|must)\b|\b(?:deadline|what time|until|hours)\b"
        r"|how many (?:days|hours|minutes|weeks|months|years)|多久|多长时间|什么时候|何时|几天",
        rf"{NUMBER}\s*(?:extra |working |business )*(?:second|minute|hour|day|week|month|year)|\d:\d\d"
        rf"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day|\b{MONTH} \d|\d(?:st|nd|rd|th)? {MONTH}"
        rf"|midnight|\bnoon\b|immediately|at once|{NUMBER}个?\s?(?:秒|分|小时|天|日|周|月|年|工作日)",
    ),
    _kind(  # a number
        r"how (?:many|often|big|large|heavy|hot)\b|\b(?:number of|limit|max(?:imum)?|min(?:imum)?|weighs?|size"
        r"|temperature|length)\b|多少|几个|多大|多重",
        NUMBER,
    ),
    _kind(  # somewhere to write or call
        r"e-?mail (?:address|do)|\b(?:phone|report|contact|call|website)\b|number (?:do|to|can)|电话|邮箱|联系",
        r"@|\d{3}|www\.|https?:",
    ),
)


def agreement(question: str, text: str) -> float:
    """Whether a text has what a question asks for: 1 for all of it, -1 for nothing of it, 0 if it asks for no such
    thing.
    """
    asked = [kind for kind in KINDS if kind.asks.search(question)]
    return sum(1.0 if kind.has.search(text) else -1.0 for kind in asked) / len(asked) if asked else 0.0
