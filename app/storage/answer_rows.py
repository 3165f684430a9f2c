"""Answers to rows and back: what is written for one answer, and what is read again for a page.

Fields and columns of the same name are copied by name: a new field of a citation needs a column and nothing here.

Not covered: transactions and the order of messages (`history`).
"""

from dataclasses import asdict, dataclass
from datetime import datetime

from app.domain.answers import Answer, AnswerTimings, AnswerUsage, Citation, Mark, Turn, Unanswered, UsedModule
from app.storage.tables import CitationRow, MessageRow, ModuleUseRow, TimingsRow, UsageRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleDetails:
    """What is stored of a used module beyond `UsedModule`. passage: heading path and number, for people."""

    name: str
    passage: str
    passage_id: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDetails:
    """What is stored of an answer beyond `Answer`.

    question_id: the message it answers. tokens: the exact ids generated, if known. model: fingerprint of the model
    that generated them. queue_ms: wait for the engine. passage_ids and modules: one for each citation and each used
    module of the answer, in its order. faq_id: the pair of the FAQ that answered by itself, whose hits are counted.
    replaces: a question that goes, with what was answered to it, when this is stored; "": none.
    """

    question_id: str
    finish_reason: str
    tokens: tuple[int, ...] | None = None
    model: str | None = None
    queue_ms: float = 0.0
    passage_ids: tuple[int | None, ...] = ()
    modules: tuple[ModuleDetails, ...] = ()
    faq_id: int | None = None
    replaces: str = ""


def message_row(answer: Answer, details: AnswerDetails, now: datetime) -> MessageRow:
    """An answer with all its rows, not yet added to its conversation. Raises ValueError if the details do not fit."""
    citations = zip(answer.citations, details.passage_ids, strict=True)
    modules = zip(answer.modules, details.modules, strict=True)
    return MessageRow(
        id=answer.message_id,
        role="assistant",
        question_id=details.question_id,
        text=answer.answer,
        tokens=None if details.tokens is None else list(details.tokens),
        model=details.model,
        created=now,
        finish_reason=details.finish_reason,
        **{name: getattr(answer, name) for name in ("outcome", "policy", "exact", "grounding", "quoted", "notice")},
        citations=[
            CitationRow(rank=rank, passage_id=passage_id, **asdict(citation))
            for rank, (citation, passage_id) in enumerate(citations)
        ],
        modules=[
            ModuleUseRow(rank=rank, created=now, **asdict(module), **asdict(more))
            for rank, (module, more) in enumerate(modules)
        ],
        timings=TimingsRow(queue=details.queue_ms, **asdict(answer.timings)),
        usage=UsageRow(**asdict(answer.usage)),
    )


def turn(row: MessageRow, unanswered: Unanswered | None) -> Turn:
    """A message read with everything that belongs to it."""
    return row.to(
        Turn,
        message_id=row.id,
        author=row.author or "",
        answer=_answer(row) if row.role == "assistant" else None,
        feedback=None if row.feedback is None else row.feedback.value,
        unanswered=unanswered,
        reason="" if row.feedback is None else row.feedback.reason,
    )


def _marks(row: CitationRow) -> tuple[Mark, ...]:
    return tuple(Mark(*numbers) for numbers in row.marks)


def _answer(row: MessageRow) -> Answer:
    assert row.usage is not None, "written in one transaction"
    assert row.timings is not None
    return row.to(
        Answer,
        message_id=row.id,
        answer=row.text,
        citations=tuple(citation.to(Citation, marks=_marks(citation)) for citation in row.citations),
        usage=row.usage.to(AnswerUsage),
        modules=tuple(module.to(UsedModule) for module in row.modules),
        timings=row.timings.to(AnswerTimings),
        quoted=bool(row.quoted),
    )
