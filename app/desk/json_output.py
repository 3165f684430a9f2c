"""The JSON documents of commands and HTTP, with the documented keys.

Out of scope: the meaning of the numbers (`app.domain.answers`), output for people (`app.cli.reports`).
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from app.desk.batch import BatchFailure, BatchQuestion, BatchResult
from app.domain.answers import Answer, AnswerUsage, Overview
from app.domain.documents import StoredDocument, SyncedFolder
from app.knowledge.ingest import IngestReport
from app.storage.archive import Backup, Manifest
from app.storage.restoring import Restored
from cache.engine.request import Usage


def usage_json(usage: AnswerUsage | Usage) -> dict[str, Any]:
    """Sources of the prompt's tokens."""
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


def ingest_json(report: IngestReport) -> dict[str, Any]:
    document = asdict(report)
    timings = {stage: round(seconds, 3) for stage, seconds in document["timings_s"].items()}
    return {**document, "passages_per_s": report.passages_per_second, "timings_s": timings}


def answer_json(answer: Answer) -> dict[str, Any]:
    document = asdict(answer)
    timings = document.pop("timings")
    text, outcome = document.pop("answer"), document.pop("outcome")
    return {
        "answer": text,
        "outcome": outcome,
        "refused": answer.refused,
        "statements": list(answer.statements),
        **document,
        "usage": usage_json(answer.usage),
        "timings_ms": timings,
    }


def batch_entry_json(question: BatchQuestion, outcome: Answer | BatchFailure) -> dict[str, Any]:
    """A question of `batch` with its answer, or with its error."""
    entry: dict[str, Any] = {"id": question.id, "question": question.question}
    if isinstance(outcome, BatchFailure):
        return {**entry, "error": asdict(outcome)}
    answer = answer_json(outcome)
    del answer["conversation_id"], answer["message_id"]
    return {**entry, **answer}


def batch_json(result: BatchResult, skipped: int = 0) -> dict[str, Any]:
    """skipped: questions that an earlier run had answered."""
    return {
        "answers": [batch_entry_json(*entry) for entry in zip(result.questions, result.outcomes, strict=True)],
        "failed": result.failed,
        "skipped": skipped,
        "groups": [list(members) for members in result.groups],
        "tokens": {
            "prompt": sum(answer.usage.prompt_tokens for answer in result.answers),
            "computed": result.computed,
            "computed_cold_ungrouped": result.cold_ungrouped,
            "computed_cold_grouped": result.cold_grouped,
        },
        "seconds": result.seconds,
    }


def backup_json(backup: Backup) -> dict[str, Any]:
    left_out = list(backup.left_out)
    return {"backup": str(backup.file), "bytes": backup.num_bytes, **manifest_json(backup.manifest)} | {
        "left_out": left_out,
        "note": backup.note,
    }


def restored_json(restored: Restored) -> dict[str, Any]:
    aside = None if restored.aside is None else str(restored.aside)
    access = {name: list(names) for name, names in asdict(restored.access).items()}
    said = {"restored": str(restored.folder), "aside": aside, "note": restored.note}
    return {**said, **access, **manifest_json(restored.manifest)}


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    """The content of a backup: its files are counted."""
    document = asdict(manifest)
    document["files"] = len(manifest.files)
    return document


def synced_json(folder: SyncedFolder) -> dict[str, Any]:
    """A folder of `sync list`; times as ISO 8601."""
    return {
        "folder": folder.folder,
        "collection": folder.collection,
        "every_minutes": folder.every_minutes,
        "next_run": folder.next_run.isoformat(),
        "last_run": folder.last_run and folder.last_run.isoformat(),
        "ok": folder.last_result and folder.last_result.is_ok,
        "last_result": folder.last_result and asdict(folder.last_result),
    }


def documents_json(documents: Iterable[StoredDocument]) -> dict[str, Any]:
    return {
        "documents": [
            {
                "path": document.path,
                "title": document.title,
                "passages": document.num_passages,
                "collection": document.collection,
                "loaded_at": document.loaded_at.isoformat(),
                "content_hash": document.content_hash,
            }
            for document in documents
        ]
    }


def overview_json(overview: Overview) -> dict[str, Any]:
    """The document of `stats`; times as ISO 8601."""
    document = asdict(overview)
    for rows, key in (("modules", "last_used"), ("misses", "created"), ("points", "created"), ("weak", "created")):
        for row in document[rows]:
            row[key] = None if row[key] is None else row[key].isoformat()
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
