"""The JSON that is sent back, as OpenAI names its fields; what only a desk has stands below the key "warmdesk".

Paths of documents never leave: a document is known by its id and the last part of its name.
"""

import base64
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import PurePath
from typing import Any

from app.api.errors import ApiError
from app.domain.answers import Answer, AnswerTimings, AnswerUsage, ConversationSummary, Turn
from app.domain.callers import Caller
from app.domain.documents import StoredDocument, Vectors
from app.domain.plain import Embedded, ModelNames, PlainAnswer

DESK = "warmdesk"
"""The name under which the whole desk is a model, and of the field for what only a desk has."""
SYSTEM_LEFT_OUT = "The desk has instructions of its own: the system messages were left out."


def file_name(path: str) -> str:
    """The last part of a document's path."""
    return PurePath(path.replace("\\", "/")).name


def usage_reply(usage: AnswerUsage) -> dict[str, Any]:
    """Where the tokens came from. cached_tokens = session + prefix + module; null where a model's server elsewhere does
    not say.
    """
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens if usage.is_reuse_known else None,
            "session": usage.session,
            "prefix": usage.prefix,
            "module": usage.module,
        },
    }


def times(timings: AnswerTimings, caller: Caller) -> dict[str, float]:
    """Milliseconds of each stage. How long search and memory take says what others have used lately: only keys of the
    scope admin see them exactly.
    """
    shown = asdict(timings)
    if "admin" not in caller.scopes:
        shown |= {stage: round(shown[stage], -1) for stage in ("retrieve", "load")}
    return shown


def desk_fields(answer: Answer, caller: Caller, notice: str | None = None) -> dict[str, Any]:
    """What only an answer of the desk has. notice: one more."""
    notices = [one for one in (answer.notice, notice) if one]
    return {
        "conversation_id": answer.conversation_id,
        "message_id": answer.message_id,
        "outcome": answer.outcome,
        "sources": [{**asdict(one), "document": file_name(one.document)} for one in answer.citations],
        "modules": [{**asdict(one), "document": file_name(one.document)} for one in answer.modules],
        "timings_ms": times(answer.timings, caller),
        "policy": answer.policy,
        "exact": answer.exact,
        "grounding": answer.grounding,
        "notice": " ".join(notices) or None,
    }


def plain_fields(answer: PlainAnswer, caller: Caller) -> dict[str, Any]:
    """What is known of an answer of the language model alone."""
    return {"timings_ms": times(answer.timings, caller)}


class ChatReply:
    """The documents of one chat completion. id: of the reply; created: seconds since 1970."""

    def __init__(self, id: str, created: int, model: str) -> None:
        self._common = {"id": id, "created": created, "model": model}

    def whole(self, text: str, finish_reason: str, usage: AnswerUsage, extra: dict[str, Any]) -> dict[str, Any]:
        """The reply in one piece."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}
        return {
            **self._common,
            "object": "chat.completion",
            "choices": [choice],
            "usage": usage_reply(usage),
            DESK: extra,
        }

    def piece(self, delta: dict[str, str], finish_reason: str | None = None, **more: Any) -> str:
        """An event with a piece of the text; more: further fields."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return event({**self._common, "object": "chat.completion.chunk", "choices": [choice], **more})

    def usage(self, usage: AnswerUsage) -> str:
        """The last event, without a choice."""
        chunk = {**self._common, "object": "chat.completion.chunk", "choices": []}
        return event({**chunk, "usage": usage_reply(usage)})


def event(document: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n"


def models_reply(names: ModelNames, started: int) -> list[dict[str, Any]]:
    """What there is to name as `model`. started: seconds since 1970."""
    kinds = ((DESK, "desk"), (names.language, "language"), (names.embedder, "embedding"))
    return [{"id": name, "object": "model", "created": started, "owned_by": DESK, "kind": kind} for name, kind in kinds]


def embeddings_reply(embedded: Embedded, model: str, *, in_base64: bool) -> dict[str, Any]:
    """Vectors in the order of their texts. in_base64: as little-endian float32."""
    data = [
        {"object": "embedding", "index": number, "embedding": _vector(row, in_base64)}
        for number, row in enumerate(embedded.vectors)
    ]
    usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def _vector(row: Vectors, in_base64: bool) -> str | list[float]:
    return base64.b64encode(row.astype("<f4").tobytes()).decode() if in_base64 else [float(x) for x in row]


def document_reply(document: StoredDocument) -> dict[str, Any]:
    """A document as it is listed."""
    return {
        "id": str(document.id),
        "object": "document",
        "name": file_name(document.path),
        "title": document.title,
        "collection": document.collection,
        "passages": document.num_passages,
        "loaded_at": document.loaded_at.isoformat(),
        "content_hash": document.content_hash,
    }


def summary_reply(summary: ConversationSummary) -> dict[str, Any]:
    """A conversation as it is listed."""
    return {
        "id": summary.id,
        "object": "conversation",
        "title": summary.title,
        "updated": summary.updated.isoformat(),
        "messages": summary.turns,
    }


def turn_reply(turn: Turn, caller: Caller) -> dict[str, Any]:
    """A message of a stored conversation; an answer with what only a desk has."""
    message: dict[str, Any] = {
        "id": turn.message_id,
        "role": turn.role,
        "content": turn.text,
        "created": turn.created.isoformat(),
    }
    if turn.answer is not None:
        message |= {"feedback": turn.feedback, "usage": usage_reply(turn.answer.usage)}
        message[DESK] = desk_fields(turn.answer, caller)
    return message


def listed(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A list as OpenAI sends one."""
    return {"object": "list", "data": list(rows)}


def seconds(moment: datetime) -> int:
    """Seconds since 1970."""
    return int(moment.timestamp())


def not_found(what: str) -> ApiError:
    """There is no such thing, or it is somebody else's."""
    return ApiError(404, f"there is no such {what}", f"{what}-unknown")
