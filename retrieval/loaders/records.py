"""Records: delimited text, tables of questions and answers, JSON.

In a table of questions and answers, each pair becomes a section with the question as heading. Such tables are
recognised by the usual column names in several languages.

**Delimited text**: the delimiter is the one that splits the first rows into as many cells as the header has.
csv.Sniffer and clevercsv mistake commas inside answers for the delimiter. Every cell is text.

**JSON Lines and JSON lists** contain questions with answers, or texts. A text record has its text under one of a few
usual names, and sometimes a title. Exports of help desks (Zendesk: `articles`; Intercom: `data`) are such lists, with
texts in HTML; unpublished records are skipped. Other JSON is refused, because it is unknown which values are for
readers.
"""

import contextlib
import csv
import io
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from bs4 import BeautifulSoup

from retrieval.documents import Block, Contents
from retrieval.errors import UnreadableDocument
from retrieval.loaders.decoding import decode
from retrieval.loaders.html_blocks import blocks_of
from retrieval.loaders.tables import one_line, row_line, table_blocks
from retrieval.text.terms import readable

_QUESTION = frozenset(
    "question questions q query faq frage fragen pregunta domanda pergunta 问题 標準問 标准问 問題 质问 質問".split()  # noqa: SIM905
)
_ANSWER = frozenset(
    "answer answers a response reply antwort antworten respuesta réponse risposta resposta 答案 回答 答复 答え".split()  # noqa: SIM905
)
_CATEGORY = frozenset(("category", "topic", "section", "kategorie", "分类", "类别", "分類", "カテゴリ"))
_NAMED_ROWS = 10  # maximum row numbers in a remark


def faq_blocks(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, first: int = 2, level: int = 1, row_name: str = "row"
) -> tuple[list[Block], list[str]] | None:
    """Return (blocks, remarks), or None if the header names no question and answer. first: number of the first row, for
    the remarks. level: level of the headings. row_name: word for a row in the remarks.
    """
    names = [unicodedata.normalize("NFKC", name).strip(" \t\n:*").casefold() for name in header]
    question_at, answer_at, category_at = (
        next((place for place, name in enumerate(names) if name in known), None)
        for known in (_QUESTION, _ANSWER, _CATEGORY)
    )
    if question_at is None or answer_at is None:
        return None
    others = [place for place in range(len(header)) if place not in (question_at, answer_at, category_at)]
    blocks: list[Block] = []
    skipped: list[int] = []
    open_category = ""
    for number, row in enumerate(rows, first):
        cells = [*row, *[""] * (len(header) - len(row))]
        question, answer = one_line(cells[question_at]), readable(cells[answer_at]).strip()
        if not question or not answer:
            if any(cells):
                skipped.append(number)
            continue
        category = "" if category_at is None else one_line(cells[category_at])
        if category and category != open_category:
            blocks.append(Block(kind="heading", text=category, level=level))
        open_category = category
        details = [row_line([one_line(header[place])], [one_line(cells[place])]) for place in others]
        blocks.append(Block(kind="heading", text=question, level=level + 1 if category else level))
        blocks.append(Block(kind="text", text="\n".join([answer, *filter(None, details)])))
    return blocks, _remarks(skipped, row_name)


def _remarks(skipped: list[int], row_name: str) -> list[str]:
    if len(skipped) == 1:
        return [f"{row_name} {skipped[0]} skipped: no question or no answer"]
    numbers = ", ".join(map(str, skipped[:_NAMED_ROWS])) + (", …" if len(skipped) > _NAMED_ROWS else "")
    return [f"{len(skipped)} {row_name}s skipped, without question or answer: {numbers}"] if skipped else []


_DELIMITERS = ",;\t|^~¦\x1f"  # the more likely first
_PREFERRED = {".tsv": "\t", ".tab": "\t", ".psv": "|"}
_SAMPLE_ROWS = 200
_SAMPLE_CHARACTERS = 256 * 1024
_LARGEST_CELL = 2**20  # characters


def load_delimited(data: bytes, path: Path) -> Contents:
    rows = _delimited_rows(decode(data, path), path)
    faq = faq_blocks(rows[0], rows[1:]) if rows else None
    blocks, remarks = faq or (table_blocks(rows), [])
    return Contents(blocks=blocks, title="", is_faq=faq is not None, remarks=remarks)


def _delimited_rows(text: str, path: Path) -> list[list[str]]:
    csv.field_size_limit(_LARGEST_CELL)
    preferred = _PREFERRED.get(path.suffix.lower(), ",")
    candidates = preferred + _DELIMITERS.replace(preferred, "")
    sample = text[:_SAMPLE_CHARACTERS]
    delimiter = max(candidates, key=lambda delimiter: _evenness(sample, delimiter))  # the first of equal ones
    rows: list[list[str]] = []
    try:
        rows.extend(_reader(text, delimiter))
    except csv.Error as error:
        is_long = "limit" in str(error)
        reason = "has a cell over 1 MB (is a quotation mark unclosed?)" if is_long else f"cannot be read: {error}"
        raise UnreadableDocument(path, f"row {len(rows) + 1} {reason}") from None
    return rows


def _reader(text: str, delimiter: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=delimiter != "\t")


def _evenness(sample: str, delimiter: str) -> float:
    """Return the share of rows with as many cells as the header; 0 if the header has only one cell."""
    widths: list[int] = []
    with contextlib.suppress(csv.Error):  # the sample may end inside a cell; the whole text is read later
        widths.extend(len(row) for row in islice(filter(any, _reader(sample, delimiter)), _SAMPLE_ROWS))
    width = max(widths[:3], default=1)  # captions may be above the header
    return sum(other == width for other in widths) / len(widths) if width > 1 else 0.0


_TEXT = ("text", "content", "body", "context")  # the more likely first
_EXPORTED = ("articles", "data")
_DRAFTS = {"draft": ("True",), "state": ("draft", "unpublished")}  # fields of records that are not published
_HTML = re.compile(r"</(?:p|div|ul|ol|h[1-6]|table|a|b|strong|span)>|<br ?/?>", re.IGNORECASE)
_WANTED = "question and answer, or text, content, body or context"


def load_json_lines(data: bytes, path: Path) -> Contents:
    records = []
    for number, line in enumerate(decode(data, path).split("\n"), start=1):
        if line.strip():
            record = _parsed(line, path, line=number)
            if not isinstance(record, dict):
                raise UnreadableDocument(path, f"line {number} is not a JSON object")
            records.append(record)
    return _contents(records, path)


def load_json(data: bytes, path: Path) -> Contents:
    text = decode(data, path)
    items = _parsed(text, path) if text.strip() else []
    if isinstance(items, dict):
        items = next((items[name] for name in _EXPORTED if isinstance(items.get(name), list)), items)
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise UnreadableDocument(path, f"not a list of objects with {_WANTED}")
    return _contents(items, path)


def _parsed(text: str, path: Path, line: int | None = None) -> object:
    """Parse a JSON value. line: its number, if the value is one line."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UnreadableDocument(path, f"line {line or error.lineno} is not JSON: {error.msg.lower()}") from None
    except ValueError:  # a number of thousands of digits
        where = f"line {line} " if line else ""
        raise UnreadableDocument(path, f"{where}contains a number that is too long") from None


def _contents(records: Sequence[dict[str, object]], path: Path) -> Contents:
    names = list(dict.fromkeys(name for record in records for name in record))
    rows = ([_plain(record.get(name)) for name in names] for record in records)  # only used for questions and answers
    faq = faq_blocks(names, rows, first=1, row_name="record")
    blocks, remarks = faq or _texts(records)
    if records and not faq and not blocks:
        raise UnreadableDocument(path, f"no record has {_WANTED}")
    return Contents(blocks=blocks, title="", is_faq=faq is not None, remarks=remarks)


def _texts(records: Sequence[dict[str, object]]) -> tuple[list[Block], list[str]]:
    blocks: list[Block] = []
    without_text = drafts = 0
    for record in records:
        fields = {name.casefold(): _plain(value) for name, value in record.items()}
        text = next((fields[name] for name in _TEXT if fields.get(name)), "")
        title = " ".join(fields.get("title", "").split())
        if any(fields.get(name) in values for name, values in _DRAFTS.items()):
            drafts += 1
        elif not text:
            without_text += 1
        else:
            blocks += [Block(kind="heading", text=title, level=1)] if title else []
            blocks += _html(text) if _HTML.search(text) else [Block(kind="text", text=text)]
    skipped = {"not published": drafts, "no text": without_text}
    return blocks, [f"{number} of {len(records)} records skipped: {why}" for why, number in skipped.items() if number]


def _html(text: str) -> list[Block]:
    """Return the blocks of a record's HTML. Its headings are below the record's title."""
    blocks = blocks_of(BeautifulSoup(text, "lxml"))
    return [replace(block, level=min(block.level + 1, 6)) if block.kind == "heading" else block for block in blocks]


def _plain(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return "\n".join(_plain(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return readable(str(value)).strip()
