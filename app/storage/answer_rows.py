"""Answers as rows and back: what is written for one answer, and what is read again for a page.

Not covered: transactions and the order of messages (`history`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from app.domain.answers import Answer, AnswerTimings, AnswerUsage, Citation, Turn, UsedModule
from app.storage import tables

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDetails:
    """What is stored of a used module beyond `UsedModule`. passage: heading path and number, for people."""

    name: str
    passage: str
    passage_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDetails:
    """What is stored of an answer beyond `Answer`.

    question_id: the message it answers. tokens: the exact ids generated, if known. queue_ms: wait for the
    engine. passage_ids and modules: one for each citation and each used module of the answer, in its order.
    """

    question_id: str
    finish_reason: str
    tokens: tuple[int, ...] | None = None
    queue_ms: float = 0.0
    passage_ids: tuple[int | None, ...] = ()
    modules: tuple[ModuleDetails, ...] = ()


def message_row(answer: Answer, details: AnswerDetails, now: datetime) -> tables.MessageRow:
    """An answer with all its rows, still without a place in its conversation. Raises ValueError when the
    details do not fit.
    """
    citations = [
        tables.CitationRow(rank=rank, passage_id=passage_id, **asdict(citation))
        for rank, (citation, passage_id) in enumerate(zip(answer.citations, details.passage_ids, strict=True))
    ]
    modules = [
        tables.ModuleUseRow(
            rank=rank,
            key=module.id,
            document=module.document,
            tokens=module.tokens,
            position=module.position,
            source=module.source,
            miss_reason=module.miss_reason,
            created=now,
            **asdict(more),
        )
        for rank, (module, more) in enumerate(zip(answer.modules, details.modules, strict=True))
    ]
    return tables.MessageRow(
        id=answer.message_id,
        role="assistant",
        question_id=details.question_id,
        text=answer.answer,
        tokens=None if details.tokens is None else list(details.tokens),
        created=now,
        refused=answer.refused,
        finish_reason=details.finish_reason,
        policy=answer.policy,
        exact=answer.exact,
        grounding=answer.grounding,
        quoted=answer.quoted,
        notice=answer.notice,
        citations=citations,
        modules=modules,
        timings=tables.TimingsRow(queue=details.queue_ms, **asdict(answer.timings)),
        usage=tables.UsageRow(**asdict(answer.usage)),
    )


def turn(row: tables.MessageRow) -> Turn:
    """A message read with everything that belongs to it."""
    return Turn(
        message_id=row.id,
        role=row.role,
        text=row.text,
        created=row.created,
        answer=_answer(row) if row.role == "assistant" else None,
        feedback=None if row.feedback is None else row.feedback.value,
    )


def _answer(row: tables.MessageRow) -> Answer:
    assert row.usage is not None, "written in one transaction"
    assert row.timings is not None
    assert row.policy is not None
    assert row.exact is not None
    return Answer(
        answer=row.text,
        refused=row.refused,
        conversation_id=row.conversation_id,
        message_id=row.id,
        citations=tuple(_same_fields(Citation, citation) for citation in row.citations),
        usage=_same_fields(AnswerUsage, row.usage),
        modules=tuple(
            UsedModule(
                id=module.key,
                document=module.document,
                tokens=module.tokens,
                position=module.position,
                source=module.source,
                miss_reason=module.miss_reason,
            )
            for module in row.modules
        ),
        timings=_same_fields(AnswerTimings, row.timings),
        policy=row.policy,
        exact=row.exact,
        grounding=row.grounding,
        quoted=bool(row.quoted),
        notice=row.notice,
    )


def _same_fields(kind: type[T], row: tables.Base) -> T:
    """A value whose fields are called like the row's columns."""
    return kind(**{one.name: getattr(row, one.name) for one in fields(kind)})
