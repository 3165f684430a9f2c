"""Text in pictures: scanned pages of PDF files, and files of pictures. Needs the extra `ocr` (rapidocr, onnxruntime).

The models come inside rapidocr's package; nothing is downloaded. They read English, Chinese, Japanese and languages
with Latin letters. The lines have positions, so headings, lists and tables are found as in other PDF files.
"""

import importlib.util
import io
import time
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

from retrieval.documents import Contents
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import parsing
from retrieval.loaders.layout import Line, Page, blocks_of_pages

LONGEST_SIDE = 2000  # pixels; more costs time and reads no better
_MOST_PIXELS = 60_000_000  # of a file; a small file can unpack to many
_LEAST_CONFIDENCE = 0.6
_SECONDS = 40.0  # of one file; less than the limit of `retrieval.reading`
_LARGER = 1.3  # than the median line: a heading. Boxes of one font differ in height
_FEWEST_LETTERS = 60  # of a picture; fewer are the labels of an illustration
_GAP = 0.9  # between lines of one paragraph, at most, in line heights


def can_read_scans() -> bool:
    return all(importlib.util.find_spec(name) for name in ("rapidocr", "onnxruntime"))


def advice() -> str:
    """Return what helps if a scan was not read."""
    read_first = "run OCR first (for example ocrmypdf)"
    if can_read_scans():
        return f"OCR found no text within {_SECONDS:g} s; {read_first}"
    return f'install "warmdesk[ocr]" or {read_first}'


@cache
def _engine() -> Any:
    from rapidocr import RapidOCR  # 2 s, only for files that need it

    return RapidOCR(params={"Global.log_level": "error", "Global.use_cls": False})


def scan_lines(picture: Image.Image) -> tuple[Line, ...]:
    """Return the lines of a picture, from the top."""
    picture = picture.convert("RGB")
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    found = _engine()(picture)
    if found.boxes is None:
        return ()
    boxes = [
        (min(x for x, _ in box), min(y for _, y in box), max(x for x, _ in box), max(y for _, y in box), text.strip())
        for box, text, score in zip(found.boxes.tolist(), found.txts, found.scores, strict=True)
        if score >= _LEAST_CONFIDENCE and text.strip()
    ]
    usual = median([bottom - top for _, top, _, bottom, _ in boxes]) if boxes else 0.0
    lines: list[Line] = []
    number, last = 0, None
    for left, top, right, bottom, text in sorted(boxes, key=lambda box: (box[1], box[0])):
        size = round(bottom - top) if bottom - top > _LARGER * usual else round(usual)
        if last and (top - last > _GAP * usual or size != lines[-1].size):
            number += 1
        last = bottom
        share = picture.height
        lines.append(
            Line(text=text, box=number, size=size, left=left, right=right, top=top / share, bottom=bottom / share)
        )
    return tuple(lines)


def load_picture(data: bytes, path: Path) -> Contents:
    if not can_read_scans():
        raise UnreadableDocument(path, advice())
    with parsing(path), Image.open(io.BytesIO(data)) as picture:
        if picture.width * picture.height > _MOST_PIXELS:
            raise UnreadableDocument(path, f"more than {_MOST_PIXELS // 10**6} million pixels")
        lines = scan_lines(picture)
    if sum(len(line.text) for line in lines) < _FEWEST_LETTERS:
        raise UnreadableDocument(path, "a picture with little or no text")
    page = Page(number=1, items=lines, has_drawing=True)
    return Contents(blocks=blocks_of_pages([page]))


class Clock:
    """The time that OCR of one file may take."""

    def __init__(self) -> None:
        self._end = time.monotonic() + _SECONDS

    def is_over(self) -> bool:
        return time.monotonic() > self._end
