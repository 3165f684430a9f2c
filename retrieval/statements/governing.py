"""What a list or a sentence owes to the line or heading above it.

"Damage from falls" says the opposite of what is meant without its heading "What is not covered". A governing line is
repeated with every statement below it that denies, sets a condition or asks, and with all that are no sentences.
By words of English, German and Chinese; a fragment is told by its form in any language.
"""

import re
from collections.abc import Sequence

from retrieval.statements.statement import num_words
from retrieval.text.sentences import ENDED
from retrieval.text.terms import CHINESE_JAPANESE

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
