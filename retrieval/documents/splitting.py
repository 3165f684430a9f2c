"""Splits a document into passages: by its structure first, by length second.

Small neighbouring sections under the same heading are joined; long sections are cut, if possible between blocks (see
`cutting`). Every word of the document is in a passage, in order. A heading is in the heading path of its passages, or a
line of their text where sections were joined. Passages do not overlap: the model reads each one once, on its own. In a
table of questions and answers nothing is joined, so that each passage has one question.
"""

from dataclasses import dataclass, field, replace

from retrieval.documents.cutting import CountTokens, cut
from retrieval.documents.document import Document, Passage

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
