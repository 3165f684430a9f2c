"""Documents as plain-text blocks, and the passages that are cut from them.

Only `read_bytes` opens files. Blocks and passages contain no markup except list markers.

`cut` divides a text at paragraphs, else lines (list items, table rows), else sentences, else words, else characters
(for example Chinese without punctuation). Only white space at the cuts is lost.

`split` divides a document by its structure first, by length second. Small neighbouring sections under the same heading
are joined, long sections are cut, if possible between blocks. Every word of the document is in a passage, in order. A
heading is in the heading path of its passages, or a line of their text where sections were joined. Passages do not
overlap, because the model reads each one once and alone. In a table of questions and answers nothing is joined, so each
passage has one question.
"""

import json
import re
import stat
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from retrieval.errors import UnreadableDocument, file_problem

BlockKind: TypeAlias = Literal["heading", "text", "list", "table", "code"]


def content_hash(*parts: bytes | memoryview) -> str:
    """Return the identity of some content, whole or in parts: "b2:" and the 256-bit BLAKE2b digest in hexadecimal."""
    digest = blake2b(digest_size=32)
    for part in parts:
        digest.update(part)
    return "b2:" + digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One structural part of a document as plain text. A list has one item per line, with "- " or "1. " and two spaces
    per level. A table has one row per line, written "header: value; header: value". So it can be cut at any row, and a
    small language model need not count columns.
    """

    kind: BlockKind
    text: str
    level: int = 0  # 1 to 6 for a heading, 0 for everything else


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The result of a loader for one file."""

    blocks: Sequence[Block]
    title: str | None = None  # by the author; None: the first heading; "": the file's name
    is_faq: bool = False  # each heading above a text is one question; sections are never joined
    remarks: Sequence[str] = ()  # one line each, about skipped parts of a file that was read
    url: str = ""  # the public address of the page, if the file has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One file with its `Contents` and a title."""

    path: Path
    title: str
    blocks: tuple[Block, ...]
    content_hash: str  # of its bytes: a file saved without changes is the same document
    is_faq: bool = False
    remarks: tuple[str, ...] = ()
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """A page of a website, as its server sent it. links: absolute addresses. canonical: the address that the page
    declares. may_index, may_follow: permissions that the page gives to programs. link_share: share of the text in links
    (0 to 1). is_scripted: a script is needed to write the text.
    """

    title: str
    blocks: tuple[Block, ...]
    links: tuple[str, ...] = ()
    canonical: str = ""
    may_index: bool = True
    may_follow: bool = True
    has_password: bool = False
    is_scripted: bool = False
    link_share: float = 0.0


MAX_BYTES = 20 * 2**20


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a regular file. Raises UnreadableDocument, also for more than `max_bytes`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait forever
            raise UnreadableDocument(path, "not a regular file")
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        raise UnreadableDocument(path, file_problem(error)) from None
    if len(data) > max_bytes:
        raise UnreadableDocument(path, f"file is larger than {max_bytes / 2**20:.3g} MB")
    return data


STORED = ".webpage"
"""Suffix of a stored website page in the data folder: its address, title and blocks as JSON. Not for uploads."""
_STORED_PAGE = TypeAdapter(tuple[str, str, tuple[Block, ...]])


def load_stored(data: bytes, path: Path) -> Contents:
    """Return the contents of a file with the bytes of `stored`. Raises UnreadableDocument."""
    try:
        url, title, blocks = _STORED_PAGE.validate_json(data)
    except (ValidationError, RecursionError):
        raise UnreadableDocument(path, "not a stored page of a website") from None
    return Contents(blocks=blocks, title=title or None, url=url)


def stored(url: str, title: str, blocks: tuple[Block, ...]) -> bytes:
    """Return a page of a website as the bytes of a file with the suffix `STORED`."""
    return bytes(_STORED_PAGE.dump_json((url, title, blocks)))


def with_headings(heading_path: tuple[str, ...], text: str) -> str:
    return " > ".join(heading_path) + "\n" + text


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of a document that is small enough for search and for a prompt."""

    text: str
    heading_path: tuple[str, ...]  # from the document's title down to the section
    content_hash: str = field(init=False)  # does not include the position, so a moved passage keeps its hash

    def __post_init__(self) -> None:
        identity = json.dumps([*self.heading_path, self.text], ensure_ascii=True).encode("ascii")
        object.__setattr__(self, "content_hash", content_hash(identity))


CountTokens = Callable[[str], int]

# Separators stay with the text before them.
_PARAGRAPHS = re.compile(r"\n\n+")
_LINES = re.compile(r"\n")
_SENTENCES = re.compile(r"(?<=[.!?…])[\"'”’)\]]*\s+|(?<=[。！？；])")
_WORDS = re.compile(r"\s+")
_CHARACTERS = re.compile("")
_CUTS = (_PARAGRAPHS, _LINES, _SENTENCES, _WORDS, _CHARACTERS)

_LEADS_IN = re.compile(r".*[:：]\s+", re.DOTALL)

_UNEVENNESS = 1.15  # parts may exceed an equal share by this factor, to end at better places


def cut(text: str, count_tokens: CountTokens, max_tokens: int) -> list[str]:
    """Return non-empty parts of at most `max_tokens` tokens by `count_tokens`, about equally long."""
    total = count_tokens(text)
    if total <= max_tokens:
        return [text] if text.strip() else []
    equal_share = total / -(-total // max_tokens)
    aim = min(max_tokens, int(equal_share * _UNEVENNESS))
    parts = _parts(text, lambda part: count_tokens(part.strip()), aim, max_tokens, _CUTS)
    return [part for part in parts if part]


def _parts(text: str, count: CountTokens, aim: int, limit: int, cuts: Sequence[re.Pattern[str]]) -> Iterator[str]:
    """Yield parts of whole pieces, cut at the first of `cuts`. A piece over the limit is cut at the next of `cuts`."""
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
            pieces[start] = rest + separator  # the rest may join the next pieces


def _pieces(text: str, place: re.Pattern[str]) -> list[str]:
    ends = [found.end() for found in place.finditer(text) if 0 < found.end() < len(text)]
    if place in (_PARAGRAPHS, _LINES):  # "You need:" stays with the text after it
        ends = [end for end in ends if not _LEADS_IN.fullmatch(text, max(0, end - 10), end)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def _how_many(pieces: Sequence[str], start: int, count: CountTokens, aim: int) -> int:
    """Return the number of pieces from `start` that fit `aim`, with few counts, because counting long texts is slow."""

    def length(number: int) -> int:
        return count("".join(pieces[start : start + number]))

    too_many = 1
    while too_many <= len(pieces) - start and length(too_many) <= aim:
        too_many *= 2
    fitting = too_many // 2
    return fitting + bisect_right(range(fitting + 1, too_many), aim, key=length)


_JOIN_UP_TO = 0.6  # of max_tokens: sections are joined while they are below this
_TINY = 0.12  # of max_tokens: a piece below this is joined if the result is within max_tokens
_LONGEST_HEADING = 0.25  # of max_tokens: longer headings are text
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
    is_whole: bool = True  # not a part of a section that was cut


def split(document: Document, count_tokens: CountTokens, max_tokens: int = 400) -> tuple[Passage, ...]:
    """Return passages of at most `max_tokens` tokens of text each, by `count_tokens`. The result is deterministic. The
    heading path is not counted; each of its headings has at most a quarter of the limit. Raises ValueError for a limit
    below 16 tokens.
    """
    if max_tokens < _SMALLEST_LIMIT:
        raise ValueError(f"max_tokens is {max_tokens}; it must be at least {_SMALLEST_LIMIT}")
    if not document.blocks:
        return ()
    splitter = _Splitter(count_tokens, max_tokens, joins=not document.is_faq)
    pieces = splitter.pieces(splitter.outline(document))
    # A heading with nothing below it becomes text.
    texts = [(piece.path, piece.text) if piece.text else (piece.path[:-1], piece.path[-1]) for piece in pieces]
    return tuple(Passage(text=text, heading_path=path) for path, text in texts)


@dataclass(frozen=True, slots=True)
class _Splitter:
    count: CountTokens
    limit: int
    joins: bool

    def outline(self, document: Document) -> _Section:
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
        return cut(heading, self.count, max(1, int(self.limit * _LONGEST_HEADING) - 1))[0].rstrip() + "…"

    def pieces(self, section: _Section) -> list[_Piece]:
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
        fits = length <= self.limit and any(self.count(piece.text) <= self.limit * _TINY for piece in (first, second))
        return _Piece(path, text, is_whole) if fits else None


def _below(piece: _Piece, path: tuple[str, ...]) -> str:
    return "\n".join([*piece.path[len(path) :], *([piece.text] if piece.text else [])])
