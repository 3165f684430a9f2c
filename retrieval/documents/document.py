"""Documents as plain-text blocks, and the passages that are cut from them.

Values only: nothing here reads files. No markup is left at this point except list markers.

Cuts a text into parts of limited length at the best places it has.

Between paragraphs, else lines (list items, table rows), else sentences, else words, else characters (Chinese
without punctuation, a megabyte without a space). Only white space at the cuts is lost.

Splits a document into passages: by its structure first, by length second.

Small neighbouring sections under the same heading are joined; long sections are cut, if possible between blocks (see
`cutting`). Every word of the document is in a passage, in order. A heading is in the heading path of its passages, or a
line of their text where sections were joined. Passages do not overlap: the model reads each one once, on its own. In a
table of questions and answers nothing is joined, so that each passage has one question.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal, TypeAlias

BlockKind: TypeAlias = Literal["heading", "text", "list", "table", "code"]


def content_hash(*parts: bytes | memoryview) -> str:
    """The identity of some content, whole or in parts: "b2:" and the 256-bit BLAKE2b digest in hexadecimal."""
    digest = blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return "b2:" + digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One structural piece of a document as plain text.

    A list has one item per line, with "- " or "1. " and two spaces per level. A table has one row per line, written
    "header: value; header: value": it can be cut at any row, and a small language model need not count columns.
    """

    kind: BlockKind
    text: str
    level: int = 0  # 1 to 6 for a heading, 0 for everything else


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a loader finds in a file."""

    blocks: Sequence[Block]
    title: str | None = None  # the author's; None for the first heading, "" for the file's name
    is_faq: bool = False  # each heading over a text is one question, and sections are never joined
    remarks: Sequence[str] = ()  # one line each: what was left out although the file was read
    url: str = ""  # where the page stands for everybody, if the file says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file, read: its `Contents` with a title."""

    path: Path
    title: str
    blocks: tuple[Block, ...]
    content_hash: str  # of its bytes: a file saved unchanged is the same document
    is_faq: bool = False
    remarks: tuple[str, ...] = ()
    url: str = ""


def with_headings(heading_path: tuple[str, ...], text: str) -> str:
    """A text below its headings: what embedders and readers see."""
    return " > ".join(heading_path) + "\n" + text


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of a document, small enough to be retrieved and put into a prompt."""

    text: str
    heading_path: tuple[str, ...]  # from the document's title down to the section
    ordinal: int  # the place in the document, from 0
    content_hash: str = field(init=False)  # not of the ordinal: a passage that moved is the same passage

    def __post_init__(self) -> None:
        identity = json.dumps([*self.heading_path, self.text], ensure_ascii=True).encode("ascii")
        object.__setattr__(self, "content_hash", content_hash(identity))


CountTokens = Callable[[str], int]

# Separators stay with what stands before them.
_PARAGRAPHS = re.compile(r"\n\n+")
_LINES = re.compile(r"\n")
_SENTENCES = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？；])")
_WORDS = re.compile(r"\s+")
_CHARACTERS = re.compile("")
_CUTS = (_PARAGRAPHS, _LINES, _SENTENCES, _WORDS, _CHARACTERS)

_LEADS_IN = re.compile(r".*[:：]\s+", re.DOTALL)

_UNEVENNESS = 1.15  # parts may be longer than an equal share by this factor, so that cuts are at good places


def cut(text: str, count_tokens: CountTokens, max_tokens: int) -> list[str]:
    """Parts of at most `max_tokens` tokens as `count_tokens` counts, about equally long; none is empty."""
    total = count_tokens(text)
    if total <= max_tokens:
        return [text] if text.strip() else []
    equal_share = total / -(-total // max_tokens)
    aim = min(max_tokens, int(equal_share * _UNEVENNESS))
    parts = _parts(text, lambda part: count_tokens(part.strip()), aim, max_tokens, _CUTS)
    return [part for part in parts if part]


def _parts(text: str, count: CountTokens, aim: int, limit: int, cuts: Sequence[re.Pattern[str]]) -> Iterator[str]:
    """Parts of whole pieces, which end at the first of `cuts`; a piece over the limit is cut at the finer ones."""
    pieces = _pieces(text, cuts[0])
    start = 0
    while start < len(pieces):
        number = _how_many(pieces, start, count, aim)
        if number or count(pieces[start]) <= limit:
            number = number or 1
            yield "".join(pieces[start : start + number]).strip()
            start += number
        else:
            assert len(cuts) > 1, "count_tokens counts one character as more than the limit"
            *parts, rest = _parts(pieces[start], count, aim, limit, cuts[1:])
            yield from parts
            separator = pieces[start][len(pieces[start].rstrip()) :]
            pieces[start] = rest + separator  # the rest may share a part with the next pieces


def _pieces(text: str, place: re.Pattern[str]) -> list[str]:
    ends = [found.end() for found in place.finditer(text) if 0 < found.end() < len(text)]
    if place in (_PARAGRAPHS, _LINES):  # "You need:" stays with what follows
        ends = [end for end in ends if not _LEADS_IN.fullmatch(text, max(0, end - 10), end)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def _how_many(pieces: Sequence[str], start: int, count: CountTokens, aim: int) -> int:
    """How many pieces from `start` fit the aim: doubling, then bisection, because counting long texts is slow."""

    def length(number: int) -> int:
        return count("".join(pieces[start : start + number]))

    too_many = 1
    while too_many <= len(pieces) - start and length(too_many) <= aim:
        too_many *= 2
    fitting = too_many // 2
    return fitting + bisect_right(range(fitting + 1, too_many), aim, key=length)


_JOIN_UP_TO = 0.6  # of max_tokens: sections are joined while they stay below this
_TINY = 0.12  # of max_tokens: a piece below this is joined as long as the whole stays within max_tokens
_LONGEST_HEADING = 0.25  # of max_tokens: longer ones are text
_SMALLEST_LIMIT = 16


@dataclass(slots=True)
class _Section:
    path: tuple[str, ...]
    level: int
    texts: list[str] = field(default_factory=list)
    children: list["_Section"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Piece:
    path: tuple[str, ...]
    text: str
    is_whole: bool = True  # a whole section, not a part of one that was cut


def split(document: Document, count_tokens: CountTokens, max_tokens: int = 400) -> tuple[Passage, ...]:
    """Passages of at most `max_tokens` tokens of text each, as `count_tokens` counts; always the same for a document.

    The heading path is not counted; each of its headings has at most a quarter of the limit. Raises ValueError for a
    limit below 16 tokens.
    """
    if max_tokens < _SMALLEST_LIMIT:
        raise ValueError(f"max_tokens is {max_tokens}; it must be at least {_SMALLEST_LIMIT}")
    if not document.blocks:
        return ()
    splitter = _Splitter(count_tokens, max_tokens, joins=not document.is_faq)
    pieces = splitter.pieces(splitter.outline(document))
    # A heading with nothing below it becomes text.
    texts = [(piece.path, piece.text) if piece.text else (piece.path[:-1], piece.path[-1]) for piece in pieces]
    return tuple(Passage(text=text, heading_path=path, ordinal=n) for n, (path, text) in enumerate(texts))


@dataclass(frozen=True, slots=True)
class _Splitter:
    count: CountTokens
    limit: int
    joins: bool

    def outline(self, document: Document) -> _Section:
        """The tree of sections; its root is the document, under its title."""
        root = _Section(path=(document.title,), level=0)
        open_sections = [root]
        seen_heading = False
        for block in document.blocks:
            is_long = block.kind == "heading" and self.count(block.text) > self.limit * _LONGEST_HEADING
            if block.kind != "heading" or (is_long and self.joins):
                open_sections[-1].texts.append(block.text)
                continue
            repeats_title = self.joins and not seen_heading and block.text.casefold() == document.title.casefold()
            seen_heading = True
            if repeats_title:
                continue
            while len(open_sections) > 1 and open_sections[-1].level >= block.level:
                open_sections.pop()
            name, texts = (self._shortened(block.text), [block.text]) if is_long else (block.text, [])
            parent = open_sections[-1]
            section = _Section(path=(*parent.path, name), level=block.level, texts=texts)
            parent.children.append(section)
            open_sections.append(section)
        return root

    def _shortened(self, heading: str) -> str:
        """The beginning of a long question, as the heading of its section."""
        return cut(heading, self.count, max(1, int(self.limit * _LONGEST_HEADING) - 1))[0].rstrip() + "…"

    def pieces(self, section: _Section) -> list[_Piece]:
        """The section and all below it, cut where too long and joined where too short."""
        own = cut("\n\n".join(section.texts), self.count, self.limit)
        found = [_Piece(section.path, text, is_whole=len(own) == 1) for text in own]
        for child in section.children:
            found += self.pieces(child)
        if not self.joins:
            return found
        result: list[_Piece] = []
        for piece in found or [_Piece(section.path, "")]:
            if result and (joined := self._joined(result[-1], piece, section.path)):
                result[-1] = joined
            else:
                result.append(piece)
        return result if len(result) == 1 else [replace(piece, is_whole=False) for piece in result]

    def _joined(self, first: _Piece, second: _Piece, path: tuple[str, ...]) -> _Piece | None:
        is_whole = first.is_whole and second.is_whole
        if first.path == second.path and not is_whole:  # parts of one text that was cut
            return None
        text = f"{_below(first, path)}\n\n{_below(second, path)}"
        length = self.count(text)
        if is_whole and length <= self.limit * _JOIN_UP_TO:
            return _Piece(path, text)
        has_tiny = any(self.count(piece.text) <= self.limit * _TINY for piece in (first, second))
        return _Piece(path, text, is_whole) if has_tiny and length <= self.limit else None


def _below(piece: _Piece, path: tuple[str, ...]) -> str:
    """The piece's text under the headings that `path` does not have."""
    return "\n".join([*piece.path[len(path) :], *([piece.text] if piece.text else [])])
