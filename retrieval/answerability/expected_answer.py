"""The expected answer type of a question (Li and Roth 2002, "Learning Question Classifiers"), by rules, and whether a
text has such an answer.

Types: money, time, number, contact, steps; in Chinese also place, name and cause. English and Chinese only. Other
questions have no expected type.
"""

import re

NUMBER = (
    r"(?:\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|once|twice)\b|[一二三四五六七八九十百两半])"
)
MONTH = r"(?:january|february|march|april|may|june|july|august|september|october|november|december)\b"


ANSWER_TYPES = (  # (what questions for such an answer match, what texts that have one match)
    (  # money
        r"how much\b(?! (?:time|longer))|\b(?:costs?|prices?|charged?|fees?|expensive|discounts?|refund limit)\b"
        r"|多少钱|多少[元块]|价格|费用|票价|造价|投资",
        r"(?:EUR|USD|GBP|[€$£¥￥])\s?\d|\d\s?(?:EUR|USD|GBP|[€%元])|\d[万亿]元|\bfree\b|免",
    ),
    (  # time
        r"how (?:long|soon|quick(?:ly)?|fast|late|early)\b|how much (?:time|longer)|^when\b"
        r"|\bwhen (?:do|does|is|are|will|can|must)\b|\b(?:deadline|what time|until|hours)\b"
        r"|how many (?:days|hours|minutes|weeks|months|years)"
        r"|多久|多长时间|什么时[候间期]|啥时|何时|几(?:时|点|天|月|号|年|几年)|哪一?(?:年|天|月|日)|哪个?(?:年代|时期|朝代)|日期",
        rf"{NUMBER}\s*(?:extra |working |business )*(?:second|minute|hour|day|week|month|year)|\d:\d\d"
        rf"|\b(?:mon|tues|wednes|thurs|fri|satur|sun)day|\b{MONTH} \d|\d(?:st|nd|rd|th)? {MONTH}"
        rf"|midnight|\bnoon\b|immediately|at once"
        rf"|{NUMBER}个?\s?(?:秒|分|小时|天|日|周|月|年|工作日|世纪)|[早初末晚中]期|年间|[白垩侏罗]纪",
    ),
    (  # number
        r"how (?:many|often|big|large|heavy|hot)\b|\b(?:number of|limit|max(?:imum)?|min(?:imum)?|weighs?|size"
        r"|temperature|length)\b|多少|几[^何]|多[大重长高远宽深快]",
        NUMBER,
    ),
    (  # contact
        r"e-?mail (?:address|do)|\b(?:phone|report|contact|call|website)\b|number (?:do|to|can)|电话|邮箱|联系",
        r"@|\d{3}|www\.|https?:",
    ),
    (  # steps
        r"\bhow to\b|\bhow (?:do|can|should) (?:i|we|you)\b",
        r"\n1[.)] ",
    ),
    (  # place
        r"哪里|哪儿|在哪(?!一?[年天月个些])|什么地[方点]|何[地处]|哪一?[个条片座]?(?:国|省|市|城|地|区|县|洲|路|街|镇)|位于|地址|老家",
        r"[国省市县州区镇乡村路街岛山湾洲港城]|[东南西北]部|位于|在于",
    ),
    (  # name
        r"谁|哪位|什么人|何人|叫什么|叫啥|(?:名字|名称|别名|全称|简称|全名|又名|又称|俗称|原名)",
        r"[「《“（(·・]|[又俗别原本全简]名|[又俗别全简]称|名为|叫",
    ),
    (  # cause
        r"为什么|为何|因何|为啥|原因|怎么[会要不]",
        r"因|由于|所以|为了|故|导致|使得|以免|以便|目的",
    ),
)


def agreement(question: str, text: str) -> float:
    """Whether a text has the types of answer that a question expects: 1 for all, -1 for none, 0 if it expects none."""
    expected = [has for asks, has in ANSWER_TYPES if re.search(asks, question, re.IGNORECASE)]
    signs = [1.0 if re.search(has, text, re.IGNORECASE) else -1.0 for has in expected]
    return sum(signs) / len(signs) if signs else 0.0
