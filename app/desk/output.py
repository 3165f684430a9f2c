"""Output formats: the JSON documents of commands and HTTP, with the documented keys; and a customer's conversations as
files: JSON for programs, CSV for spreadsheets, Markdown to read.

A customer's file contains questions, answers, times, titles of the cited pages and ratings. It contains no internal
data such as paths of documents or modules. Out of scope: the meaning of the numbers (`app.domain.answers`), text output
of commands (`app.cli.reports`), permissions (`app.web.access_rules`).
"""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from app.domain.answers import Answer, AnswerUsage, ConversationSummary, Handoff, LookUpTurn, Overview, Turn
from app.domain.documents import StoredDocument, SyncedFolder
from app.domain.words import gettext, one_line

if TYPE_CHECKING:  # printing lists and numbers needs no libraries for answers
    from app.desk.batch import BatchFailure, BatchQuestion, BatchResult
    from app.desk.service import Service
    from app.knowledge.ingest import IngestReport
    from app.storage.archive import Backup, Manifest, Restored
    from cache.engine.request import Usage


def usage_json(usage: "AnswerUsage | Usage") -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "computed_tokens": usage.computed,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens if usage.is_reuse_known else None,
            "session": usage.session,
            "prefix": usage.prefix,
            "module": usage.module,
        },
    }


def ingest_json(report: "IngestReport") -> dict[str, Any]:
    document = asdict(report)
    timings = {stage: round(seconds, 3) for stage, seconds in document["timings_s"].items()}
    return {**document, "passages_per_s": report.passages_per_second, "timings_s": timings}


def answer_json(answer: Answer) -> dict[str, Any]:
    document = asdict(answer)
    timings = document.pop("timings")
    outcome = document.pop("outcome")
    del document["answer"], document["lookup"]
    return {
        "answer": answer.shown,
        "outcome": outcome,
        "refused": answer.refused,
        "statements": list(answer.statements),
        **document,
        "lookup": lookup_json(answer.lookup),
        "usage": usage_json(answer.usage),
        "timings_ms": timings,
    }


def lookup_json(turn: LookUpTurn | None) -> dict[str, Any] | None:
    """Return the state of a look-up, without the text below the answer. choices: the texts of its buttons."""
    if turn is None:
        return None
    return {name: getattr(turn, name) for name in ("name", "state", "asks", "outcome", "choices")}


def batch_entry_json(question: "BatchQuestion", outcome: "Answer | BatchFailure") -> dict[str, Any]:
    entry: dict[str, Any] = {"id": question.id, "question": question.question}
    if not isinstance(outcome, Answer):
        return {**entry, "error": asdict(outcome)}
    answer = answer_json(outcome)
    del answer["conversation_id"], answer["message_id"]
    return {**entry, **answer}


def batch_json(result: "BatchResult") -> dict[str, Any]:
    """Return a batch as JSON. skipped: number of questions that an earlier run had answered."""
    return {
        "answers": [batch_entry_json(*entry) for entry in zip(result.questions, result.outcomes, strict=True)],
        "failed": result.failed,
        "skipped": 0,
        "groups": [list(members) for members in result.groups],
        "tokens": {
            "prompt": sum(answer.usage.prompt_tokens for answer in result.answers),
            "computed": result.computed,
            "computed_cold_ungrouped": result.cold_ungrouped,
            "computed_cold_grouped": result.cold_grouped,
        },
        "seconds": result.seconds,
    }


def backup_json(backup: "Backup") -> dict[str, Any]:
    said = {"backup": str(backup.file), "bytes": backup.num_bytes, **manifest_json(backup.manifest)}
    return {**said, "left_out": list(backup.left_out), "note": backup.note}


def restored_json(restored: "Restored") -> dict[str, Any]:
    aside = None if restored.aside is None else str(restored.aside)
    access = {name: list(names) for name, names in asdict(restored.access).items()}
    said = {"restored": str(restored.folder), "aside": aside, "note": restored.note}
    return {**said, **access, **manifest_json(restored.manifest)}


def manifest_json(manifest: "Manifest") -> dict[str, Any]:
    document = asdict(manifest)
    document["files"] = len(manifest.files)
    return document


def synced_json(folder: SyncedFolder) -> dict[str, Any]:
    return {**asdict(folder), "ok": folder.last_result and folder.last_result.is_ok}


def documents_json(documents: Iterable[StoredDocument]) -> dict[str, Any]:
    return {
        "documents": [
            {
                "path": document.path,
                "title": document.title,
                "passages": document.num_passages,
                "collection": document.collection,
                "loaded_at": document.loaded_at,
                "content_hash": document.content_hash,
            }
            for document in documents
        ]
    }


def overview_json(overview: Overview) -> dict[str, Any]:
    document = asdict(overview)
    reused = overview.session_tokens + overview.prefix_tokens + overview.module_tokens
    document["wording"] = overview.answer_mode  # its name in version 0.1
    document["tokens"] = {
        "prompt": reused + overview.computed_tokens,
        "computed": overview.computed_tokens,
        "reused": reused,
        "session": overview.session_tokens,
        "prefix": overview.prefix_tokens,
        "module": overview.module_tokens,
    }
    return document


_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Prefixes of a cell that a spreadsheet may run as a formula (OWASP, "CSV injection")."""
_ALL = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedFile:
    """A file for download. media_type: for text formats with the charset."""

    name: str
    media_type: str
    data: bytes


def export_conversation(desk: "Service", conversation_id: str, owner: str, kind: str) -> ExportedFile | None:
    """Return a file of kind json, csv or md; None for another kind or a missing conversation. Raises DeskError."""
    summary = desk.conversation(conversation_id, owner)
    if summary is None or kind not in _KINDS:
        return None
    media_type, written = _KINDS[kind]
    text = written(summary, desk.turns(conversation_id, owner))
    return ExportedFile(
        name=f"conversation-{summary.updated:%Y-%m-%d}.{kind}", media_type=media_type, data=text.encode("utf-8")
    )


def export_everything(desk: "Service", owner: str) -> Iterator[str]:
    """Yield one JSON document in pieces, because it may not fit into memory: all conversations of an owner with
    ratings, and the hand-offs with the customer's e-mail addresses. Raises DeskError.
    """
    handoffs = [_handoff(one) for one in desk.handoffs(owner)]
    yield f'{{"handoffs": {json.dumps(handoffs, ensure_ascii=False)},\n"conversations": ['
    for place, summary in enumerate(desk.conversations(owner, limit=_ALL)):
        document = conversation_json(summary, desk.turns(summary.id, owner))
        yield (",\n" if place else "\n") + json.dumps(document, ensure_ascii=False)
    yield "\n]}\n"


def conversation_json(summary: ConversationSummary, turns: Sequence[Turn]) -> dict[str, Any]:
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
    return list(dict.fromkeys(one.title for one in turn.answer.citations)) if turn.answer is not None else []


def _json(summary: ConversationSummary, turns: Sequence[Turn]) -> str:
    return json.dumps(conversation_json(summary, turns), ensure_ascii=False, indent=2) + "\n"


def _csv(summary: ConversationSummary, turns: Sequence[Turn]) -> str:
    """Return a CSV row for each message. The byte order mark at the start lets Excel recognise UTF-8."""
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
    """Return a cell that no spreadsheet program runs as a formula, even after white space."""
    return f"'{cell}" if cell.startswith(_FORMULA) or cell.lstrip().startswith(_FORMULA) else cell


def _markdown(summary: ConversationSummary, turns: Sequence[Turn]) -> str:
    verdicts = {"up": gettext("Helpful"), "down": gettext("Not helpful")}
    parts = [f"# {one_line(summary.title)}"]
    for turn in turns:
        agent = (turn.author or gettext("Our team")) if turn.role == "agent" else ""
        who = agent or (gettext("Question") if turn.role == "user" else gettext("Answer"))
        parts.append(f"## {who} · {turn.created:%Y-%m-%d %H:%M} UTC")
        quoted = "\n".join(f"> {line}".rstrip() for line in turn.text.splitlines())
        parts.append(quoted if turn.role == "user" else turn.text)
        if sources := _sources(turn):
            parts.append(gettext("Sources") + ":")
            parts.append("\n".join(f"- {one_line(title)}" for title in sources))
        if turn.feedback is not None:
            parts.append(": ".join(filter(None, (verdicts[turn.feedback], one_line(turn.reason)))))
    return "\n\n".join(parts) + "\n"


_KINDS: dict[str, tuple[str, Callable[[ConversationSummary, Sequence[Turn]], str]]] = {
    "json": ("application/json", _json),
    "csv": ("text/csv; charset=utf-8", _csv),
    "md": ("text/markdown; charset=utf-8", _markdown),
}
