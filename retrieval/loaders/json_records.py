"""JSON Lines (.jsonl, .ndjson) and JSON lists (.json): records that are pairs of question and answer, or texts.

A text record has its text under one of a few usual names, and perhaps a title. Other shapes of JSON are
refused: nothing tells which of their values people are meant to read.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from retrieval.documents.document import Block, Document, content_hash
from retrieval.errors import UnreadableDocument
from retrieval.parsing.decoding import decode
from retrieval.parsing.faq import faq_blocks, faq_columns
from retrieval.parsing.titles import choose_title
from retrieval.text.characters import readable

_TEXT = ("text", "content", "body", "context")  # the likelier first
_WANTED = "question and answer, or text, content, body or context"


def load_json_lines(data: bytes, path: Path) -> Document:
    """Read one JSON object a line. Raises UnreadableDocument naming the first line that is not one."""
    records = [
        _record(line, f"line {number}", path)
        for number, line in enumerate(decode(data, path).split("\n"), start=1)
        if line.strip()
    ]
    return _document(records, data, path)


def load_json(data: bytes, path: Path) -> Document:
    """Read a JSON list of objects. Raises UnreadableDocument for anything else."""
    text = decode(data, path)
    try:
        items = json.loads(text) if text.strip() else []
    except json.JSONDecodeError as error:
        raise UnreadableDocument(path, f"line {error.lineno} is not JSON: {error.msg.lower()}") from None
    except ValueError:  # a number of thousands of digits
        raise UnreadableDocument(path, "holds a number that is too long") from None
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UnreadableDocument(path, f"not a list of objects with {_WANTED}")
    return _document(items, data, path)


def _record(line: str, where: str, path: Path) -> dict[str, object]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UnreadableDocument(path, f"{where} is not JSON: {error.msg.lower()}") from None
    except ValueError:
        raise UnreadableDocument(path, f"{where} holds a number that is too long") from None
    if not isinstance(record, dict):
        raise UnreadableDocument(path, f"{where} is not a JSON object")
    return record


def _document(records: Sequence[dict[str, object]], data: bytes, path: Path) -> Document:
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = faq_columns(names)
    if columns:
        rows = [[_plain(record.get(name)) for name in names] for record in records]
        blocks, remarks = faq_blocks(names, rows, columns, first=1, row_name="record")
    else:
        blocks, remarks = _texts(records)
        if records and not blocks:
            raise UnreadableDocument(path, f"no record has {_WANTED}")
    return Document(
        path=path,
        title=choose_title("", (), path),
        blocks=tuple(blocks),
        content_hash=content_hash(data),
        is_faq=columns is not None,
        remarks=tuple(remarks),
    )


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
