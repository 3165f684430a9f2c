"""Sentences of a text, for quotations and checks in a document's own words.

sentencex finds the ends of sentences by language and knows abbreviations. Every list item and table row is a sentence.
Out of scope: sentences that need the sentence before (`retrieval.statements`).
"""

import re

from sentencex import segment

from retrieval.text.terms import CHINESE_JAPANESE, language_of

# Full stops inside a sentence that sentencex does not know, and the text that must follow them.
NO_ENDS = (
    (re.compile(r"\b(?:approx|aprox|ca|env|excl|incl|inkl|max|min|pp?)\.\s*$"), re.compile(r"\d")),
    (re.compile(r"\b[ap]\.m\.\s*$"), re.compile("Mon|Tue|Wed|Thu|Fri|Sat|Sun")),
    (re.compile(r"\bM\.\s*$"), re.compile(r"[^\W\d_]")),  # Monsieur
)
CLOSES = re.compile(r"[*_\"'”’)\]]+\s+")  # part of the sentence before
UNSPACED_END = re.compile(r"(?<=[。！？])(?=\d)")  # sentencex reads the digit as part of a number
BEGINS = re.compile(r"[^\w\s.,:;!?|，、；：。！？]*([^\W_])")  # quotation marks, brackets, and the first letter
LOWER = re.compile(r"[a-zß-öø-ÿ]")  # a line that starts like this continues the line before
MARKER = re.compile(r"(?:[-*•]|\d+[.)]) ")
STANDS_ALONE = re.compile(MARKER.pattern + r"|\w[^.!?]*: ")  # a list item or a table row
WRAPPED = 55  # a line with at least this many characters and no sentence end was wrapped
ENDED = re.compile(r"[.!。！…][\"'”’)」』]*$")
ASKS = re.compile(r"[?？:：][\"'”’)」』,;，；、]*$")  # questions, and lines that introduce a list
LETTER = re.compile(r"[^\W\d_]")
UNSPACED = re.compile(f"[{CHINESE_JAPANESE}]")  # no spaces between items, own full stop


def sentences(text: str, language: str | None = None) -> list[str]:
    """Return the sentences in order, without list markers. Spaces are single and line breaks in a sentence become
    spaces. language: for its abbreviations; detected if not given.
    """
    language = language or language_of(text)
    found: list[str] = []
    for line in joined_lines(text):
        marker = MARKER.match(line)
        found += filter(None, map(str.strip, _split(line[marker.end() if marker else 0 :], language)))
    return found


def as_said(statement: str) -> str:
    """Return a statement as it is quoted: with a full stop, also for a list item or table row."""
    if ENDED.search(statement):
        return statement
    open_end = statement.rstrip(",;:，；：、")
    return open_end + ("。" if UNSPACED.search(open_end[-1:]) else ".")


def complete(text: str, language: str | None = None) -> tuple[list[str], str]:
    """Return the sentences of a growing text that have ended, and the rest."""
    language = language or language_of(text)
    line = text.rfind("\n") + 1
    marker = MARKER.match(text, line)
    *before, growing = _split(text[marker.end() if marker else line :], language) or [""]
    ended = text[: len(text) - len(growing) if before else line].rstrip()
    return sentences(ended, language), text[len(ended) :]


def _split(line: str, language: str) -> list[str]:
    """Return the sentences of one line with their spaces. No sentence starts with a small letter or a mark."""
    found = [""]
    for part in (piece for one in segment(language, line) for piece in UNSPACED_END.split(one)):
        closed = CLOSES.match(part)
        before, rest = found[-1], part[closed.end() :] if closed else part
        begins = BEGINS.match(rest)
        if not begins or begins[1].islower() or any(end.search(before) and next_.match(rest) for end, next_ in NO_ENDS):
            found[-1] += part
        else:
            found[-1] += part[: len(part) - len(rest)]
            found.append(rest)
    return list(filter(None, found))


def joined_lines(text: str) -> list[str]:
    lines: list[str] = []
    for line in (" ".join(line.split()) for line in text.splitlines()):
        if lines and lines[-1] and line and goes_on(lines[-1], line):
            lines[-1] += " " + line
        else:
            lines.append(line)
    return lines


def goes_on(line: str, following: str) -> bool:
    if LOWER.match(following):
        return True
    is_open = len(line) >= WRAPPED and line[-1] not in '.!?:;。！？"”'
    return is_open and not STANDS_ALONE.match(line) and not STANDS_ALONE.match(following)
