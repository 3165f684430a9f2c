"""JSON Lines (.jsonl, .ndjson) and JSON lists (.json) of records: questions with answers, or texts.

A text record has its text under one of a few usual names, and perhaps a title. Other JSON is refused: nothing tells
which of its values people are meant to read.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from retrieval.documents.document import Block, Contents
from retrieval.errors import UnreadableDocument
from retrieval.parsing.decoding import decode
from retrieval.parsing.faq import faq_blocks
from retrieval.text.characters import readable

_TEXT = ("text", "content", "body", "context")  # the likelier first
_WANTED = "question and answer, or text, content, body or context"


def load_json_lines(data: bytes, path: Path) -> Contents:
    """Read one JSON object per line. Raises UnreadableDocument naming the first line that is not one."""
    records = []
    for number, line in enumerate(decode(data, path).split("\n"), start=1):
        if line.strip():
            record = _parsed(line, path, line=number)
            if not isinstance(record, dict):
                raise UnreadableDocument(path, f"line {number} is not a JSON object")
            records.append(record)
    return _contents(records, path)


def load_json(data: bytes, path: Path) -> Contents:
    """Read a JSON list of objects. Raises UnreadableDocument for anything else."""
    text = decode(data, path)
    items = _parsed(text, path) if text.strip() else []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UnreadableDocument(path, f"not a list of objects with {_WANTED}")
    return _contents(items, path)


def _parsed(text: str, path: Path, line: int | None = None) -> object:
    """A JSON value. line: its number, where a line is all of the value."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableDocument(path, f"line {line or error.lineno} is not JSON: {error.msg.lower()}") from None
    except ValueError:  # a number of thousands of digits
        where = f"line {line} " if line else ""
        raise UnreadableDocument(path, f"{where}holds a number that is too long") from None


def _contents(records: Sequence[dict[str, object]], path: Path) -> Contents:
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = ([_plain(record.get(name)) for name in names] for record in records)  # only made for questions and answers
    faq = faq_blocks(names, rows, first=1, row_name="record")
    blocks, remarks = faq or _texts(records)
    if records and not faq and not blocks:
        raise UnreadableDocument(path, f"no record has {_WANTED}")
    return Contents(blocks=blocks, title="", is_faq=faq is not None, remarks=remarks)


def _texts(records: Sequence[dict[str, object]]) -> tuple[list[Block], list[str]]:
    blocks: list[Block] = []
    without_text = 0
    for record in records:
        fields = {name.casefold(): _plain(value) for name, value in record.items()}
        text = next((fields[name] for name in _TEXT if fields.get(name)), "")
        title = " ".join(fields.get("title", "").split())
        if not text:
            without_text += 1
            continue
        if title:
            blocks.append(Block(kind="heading", text=title, level=1))
        blocks.append(Block(kind="text", text=text))
    return blocks, [f"{without_text} of {len(records)} records left out: no text"] if without_text else []


def _plain(value: object) -> str:
    """A value as text: lists line by line, what is nested deeper as JSON."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(_plain(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return readable(str(value)).strip()
