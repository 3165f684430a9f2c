"""Text that others wrote, as HTML that can do nothing: everything is escaped first, then a little Markdown is
honoured.

Honoured in answers: paragraphs, line breaks, lists, **bold**, *italic*, `code`, headings as bold lines. Never
honoured: raw HTML, images, links (a Markdown link becomes "label (address)" as plain text), tables, LaTeX.
Control characters are dropped.
"""

from __future__ import annotations

import html
import re

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]")
_BULLET = re.compile(r"^\s{0,8}[-*•+]\s+(.*)$")
_NUMBERED = re.compile(r"^\s{0,8}(\d{1,3})[.)]\s+(.*)$")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
_LINK = re.compile(r"!?\[([^\[\]\n]{0,200})\]\(([^()\s]{0,500})[^()\n]{0,100}\)")
_CODE = re.compile(r"`([^`\n]{1,300})`")
_BOLD = re.compile(r"\*\*(?=\S)([^*\n]{1,500}?)(?<=\S)\*\*")
_ITALIC = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]{1,300}?)(?<=[^\s*])\*(?![\w*])")


def escape(text: str) -> str:
    """Plain text for an element's content or a double-quoted attribute.

    Bidirectional controls go, too: with them a passage could reorder what stands beside it.
    """
    return html.escape(_CONTROL.sub("", text), quote=True)


def _inline(text: str) -> str:
    # Order matters: the text is escaped before any tag of ours is added, so no tag can come from outside.
    plain = _LINK.sub(lambda m: f"{m[1]} ({m[2]})" if m[1] else m[2], text)
    parts = _CODE.split(escape(plain))
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"<code>{part}</code>"
        else:
            parts[i] = _ITALIC.sub(r"<em>\1</em>", _BOLD.sub(r"<strong>\1</strong>", part))
    return "".join(parts)


class _Blocks:
    """Collects lines into paragraphs and lists."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.tag = ""
        self.lines: list[str] = []
        self.start = 1

    def add(self, tag: str, line: str, start: int = 1) -> None:
        if tag != self.tag:
            self.close()
            self.tag, self.start = tag, start
        self.lines.append(_inline(line))

    def close(self) -> None:
        if self.tag == "p":
            self.done.append(f'<p dir="auto">{"<br>".join(self.lines)}</p>')
        elif self.tag:
            items = "".join(f'<li dir="auto">{line}</li>' for line in self.lines)
            start = f' start="{self.start}"' if self.tag == "ol" and self.start != 1 else ""
            self.done.append(f"<{self.tag}{start}>{items}</{self.tag}>")
        self.tag, self.lines = "", []


def answer_html(text: str) -> str:
    """A model's answer. Right for half an answer, too: an unfinished ** or list is shown as it stands."""
    blocks = _Blocks()
    gap = False
    for line in text.splitlines():
        if not line.strip():
            gap = True
            continue
        if bullet := _BULLET.match(line):
            blocks.add("ul", bullet[1])
        elif numbered := _NUMBERED.match(line):
            blocks.add("ol", numbered[2], int(numbered[1]))
        else:
            if gap or blocks.tag != "p":
                blocks.close()
            heading = _HEADING.match(line)
            blocks.add("p", f"**{heading[1].replace('**', '')}**" if heading and heading[1] else line.strip())
        gap = False
    blocks.close()
    return "".join(blocks.done)


def plain_html(text: str) -> str:
    """Text as it is (a question, a quoted passage): escaped, line breaks kept by the style sheet."""
    return escape(text.strip())
