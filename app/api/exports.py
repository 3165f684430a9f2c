"""A conversation as a file: JSON, CSV or Markdown. Not covered: who may have it."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Literal

from app.api.replies import file_name, turn_reply
from app.domain.answers import Turn

Format = Literal["json", "csv", "md"]
FORMATS: dict[Format, str] = {
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
    "md": "text/markdown; charset=utf-8",
}
"""Media types."""
COLUMNS = ("time", "role", "text", "outcome", "sources", "feedback")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def export(turns: Sequence[Turn], format: Format) -> str:
    """The messages, oldest first."""
    return {"json": _json, "csv": _csv, "md": _markdown}[format](turns)


def _json(turns: Sequence[Turn]) -> str:
    return json.dumps({"messages": [turn_reply(turn) for turn in turns]}, ensure_ascii=False, indent=1) + "\n"


def _csv(turns: Sequence[Turn]) -> str:
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(COLUMNS)
    for turn in turns:
        outcome = "" if turn.answer is None else turn.answer.outcome
        row = (turn.created.isoformat(), turn.role, turn.text, outcome, "; ".join(_sources(turn)), turn.feedback or "")
        writer.writerow([_harmless(cell) for cell in row])
    return file.getvalue()


def _harmless(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def _markdown(turns: Sequence[Turn]) -> str:
    parts = []
    for turn in turns:
        who = "Question" if turn.role == "user" else "Answer"
        parts.append(f"## {who}, {turn.created:%Y-%m-%d %H:%M} UTC\n\n{turn.text.strip()}\n")
        if sources := _sources(turn):
            parts.append("Sources:\n\n" + "".join(f"- {source}\n" for source in sources))
    return "\n".join(parts)


def _sources(turn: Turn) -> list[str]:
    cited = () if turn.answer is None else turn.answer.citations
    return list(dict.fromkeys(f"{one.title} ({file_name(one.document)})" for one in cited))
