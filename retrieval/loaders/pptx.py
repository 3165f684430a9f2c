"""PowerPoint files: each slide is a section under its title.

Reads text frames, tables and speaker notes, in the order of a screen reader. No charts, SmartArt or pictures.
"""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pptx import Presentation

from retrieval.documents.document import Block, Contents
from retrieval.parsing.containers import check_container, parsing
from retrieval.parsing.rows import one_line, table_blocks


def load_pptx(data: bytes, path: Path) -> Contents:
    """Read a presentation. Raises UnreadableDocument for a damaged or encrypted one."""
    check_container(data, path)
    blocks: list[Block] = []
    with parsing(path):
        for number, slide in enumerate(Presentation(io.BytesIO(data)).slides, start=1):
            blocks += _slide(slide, number)
    titles = [block.text for block in blocks if block.kind == "heading" and not block.text.startswith("Slide ")]
    return Contents(blocks=blocks, title=next(iter(titles), ""))


# python-pptx has no types: its objects are Any.
def _slide(slide: Any, number: int) -> list[Block]:
    title_shape = slide.shapes.title
    title = one_line(title_shape.text_frame.text) if title_shape is not None else ""
    blocks: list[Block] = []
    for shape in _leaves(slide.shapes):
        if title_shape is not None and shape.shape_id == title_shape.shape_id:
            continue
        if getattr(shape, "has_table", False):
            blocks += table_blocks([[cell.text for cell in row.cells] for row in shape.table.rows])
        elif getattr(shape, "has_text_frame", False):
            blocks += _text(shape.text_frame.paragraphs)
    if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
        blocks += _text(slide.notes_slide.notes_text_frame.paragraphs)
    if not title and not blocks:
        return []
    return [Block(kind="heading", text=title or f"Slide {number}", level=1), *blocks]


def _leaves(shapes: Iterable[Any]) -> Iterator[Any]:
    """The shapes, with groups replaced by the shapes in them."""
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _leaves(shape.shapes)
        else:
            yield shape


def _text(paragraphs: Iterable[Any]) -> list[Block]:
    """A text frame: one paragraph is text, several are a list."""
    lines = [(paragraph.level, one_line(paragraph.text)) for paragraph in paragraphs]
    lines = [(level, line) for level, line in lines if line]
    if len(lines) == 1:
        return [Block(kind="text", text=lines[0][1])]
    return [Block(kind="list", text="\n".join("  " * level + "- " + line for level, line in lines))] if lines else []
