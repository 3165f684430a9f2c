"""Conversations as files for their customers: JSON for programs, CSV for spreadsheets, Markdown to read.

A file contains questions, answers, times, titles of the cited pages and the customer's ratings. It contains no internal
data such as paths of documents or modules. Out of scope: who may have a file (`app.web.access_rules`).
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.desk.service import Service
from app.domain.answers import ConversationSummary, Handoff, Turn
from app.domain.words import gettext, one_line

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Beginnings of a cell that a spreadsheet may compute (OWASP, "CSV injection")."""
_ALL = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file to save. media_type: with its encoding, if there is a choice."""

    name: str
    media_type: str
    data: bytes


def export_conversation(desk: Service, conversation_id: str, owner: str, kind: str) -> ExportedFile | None:
    """Return a conversation as a file. kind: json, csv or md. None for another kind, and if the conversation does not
    exist. Markdown is in the current language (`app.domain.words`). Raises DeskError.
    """
    summary = desk.conversation(conversation_id, owner)
    if summary is None or kind not in _KINDS:
        return None
    media_type, written = _KINDS[kind]
    text = written(summary, desk.turns(conversation_id, owner))
    return ExportedFile(
        name=f"conversation-{summary.updated:%Y-%m-%d}.{kind}", media_type=media_type, data=text.encode("utf-8")
    )


def export_everything(desk: Service, owner: str) -> Iterator[str]:
    """Return all conversations of an owner with ratings and hand-offs, including the e-mail addresses given: one JSON
    document in pieces, so that it need not fit into memory. Raises DeskError.
    """
    handoffs = [_handoff(one) for one in desk.handoffs(owner)]
    yield f'{{"handoffs": {json.dumps(handoffs, ensure_ascii=False)},\n"conversations": ['
    for place, summary in enumerate(desk.conversations(owner, limit=_ALL)):
        document = conversation_json(summary, desk.turns(summary.id, owner))
        yield (",\n" if place else "\n") + json.dumps(document, ensure_ascii=False)
    yield "\n]}\n"


def conversation_json(summary: ConversationSummary, turns: Sequence[Turn]) -> dict[str, Any]:
    """The document of one conversation; times as ISO 8601."""
    return {
        "id": summary.id,
        "title": summary.title,
        "updated": summary.updated.isoformat(),
        "messages": [_message(turn) for turn in turns],
    }


def _handoff(handoff: Handoff) -> dict[str, Any]:
    return {
        "conversation": handoff.conversation_id,
        "time": handoff.requested.isoformat(),
        "reason": handoff.reason,
        "state": handoff.state,
        "email": handoff.email,
    }


def _message(turn: Turn) -> dict[str, Any]:
    said = {"role": turn.role, "time": turn.created.isoformat(), "text": turn.text}
    if turn.role == "agent":
        return {**said, "author": turn.author}
    if turn.answer is None:
        return said
    feedback = None if turn.feedback is None else {"value": turn.feedback, "reason": turn.reason}
    return {**said, "outcome": turn.answer.outcome, "sources": _sources(turn), "feedback": feedback}


def _sources(turn: Turn) -> list[str]:
    """Titles of the pages that an answer cites or names, each once."""
    return list(dict.fromkeys(one.title for one in turn.answer.citations)) if turn.answer is not None else []


def _json(summary: ConversationSummary, turns: Sequence[Turn]) -> str:
    return json.dumps(conversation_json(summary, turns), ensure_ascii=False, indent=2) + "\n"


def _csv(summary: ConversationSummary, turns: Sequence[Turn]) -> str:
    """A row for each message. It begins with a byte order mark, without which Excel does not recognise UTF-8."""
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)
    writer.writerow(("time", "role", "text", "outcome", "sources", "feedback", "reason"))
    for turn in turns:
        outcome = "" if turn.answer is None else turn.answer.outcome
        sources = "; ".join(_sources(turn))
        cells = (turn.created.isoformat(), turn.role, turn.text, outcome, sources, turn.feedback or "", turn.reason)
        writer.writerow(_harmless(cell) for cell in cells)
    return "\ufeff" + file.getvalue()


def _harmless(cell: str) -> str:
    """A cell that no spreadsheet computes, also if space precedes it."""
    return f"'{cell}" if cell.startswith(_FORMULA) or cell.lstrip().startswith(_FORMULA) else cell


def _markdown(summary: ConversationSummary, turns: Sequence[Turn]) -> str:
    verdicts = {"up": gettext("Helpful"), "down": gettext("Not helpful")}
    parts = [f"# {one_line(summary.title)}"]
    for turn in turns:
        agent = (turn.author or gettext("Our team")) if turn.role == "agent" else ""
        who = agent or (gettext("Question") if turn.role == "user" else gettext("Answer"))
        parts.append(f"## {who} · {turn.created:%Y-%m-%d %H:%M} UTC")
        parts.append(_quoted(turn.text) if turn.role == "user" else turn.text)
        if sources := _sources(turn):
            parts.append(gettext("Sources") + ":")
            parts.append("\n".join(f"- {one_line(title)}" for title in sources))
        if turn.feedback is not None:
            parts.append(": ".join(filter(None, (verdicts[turn.feedback], one_line(turn.reason)))))
    return "\n\n".join(parts) + "\n"


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


_KINDS: dict[str, tuple[str, Callable[[ConversationSummary, Sequence[Turn]], str]]] = {
    "json": ("application/json", _json),
    "csv": ("text/csv; charset=utf-8", _csv),
    "md": ("text/markdown; charset=utf-8", _markdown),
}
