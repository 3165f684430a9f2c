"""Sums over stored answers for the dashboard: aggregates in SQL, never all rows in memory.

Percentiles are read from an index by rank, because SQLite has no function for them.

Not covered: transactions (`history` opens them), what the engine knows of tiers and bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from math import ceil

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from app.domain.answers import AnswerPoint, MissRow, ReasonRow, SupportRow
from app.storage.tables import ConversationRow, MessageRow, ModuleUseRow, TimingsRow, UsageRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Numbers over all stored answers. Times are None before the first answer."""

    conversations: int
    answers: int
    refusals: int
    computed_tokens: int
    session_tokens: int
    prefix_tokens: int
    module_tokens: int
    ttft_ms_median: float | None
    ttft_ms_p95: float | None
    grounding: float | None
    quoted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleHits:
    """How a module was used by stored answers. hits: found encoded; misses: had to be computed."""

    hits: int
    misses: int
    last_used: datetime


def sums(session: Session) -> Sums:
    """Numbers over all stored answers."""
    conversations = session.scalar(select(func.count()).select_from(ConversationRow))
    counts = select(MessageRow.refused, func.count().label("number")).group_by(MessageRow.refused)
    rows = session.execute(counts.where(MessageRow.role == "assistant"))
    answers = {row.refused: row.number for row in rows}
    columns = (UsageRow.computed, UsageRow.session, UsageRow.prefix, UsageRow.module)
    tokens = session.execute(select(*(func.coalesce(func.sum(column), 0) for column in columns))).one()
    mean, quoted = session.execute(
        select(func.avg(MessageRow.grounding), func.count().filter(MessageRow.quoted.is_(True)))
    ).one()
    num_timed = session.scalar(select(func.count()).select_from(TimingsRow)) or 0
    return Sums(
        conversations=conversations or 0,
        answers=sum(answers.values()),
        refusals=answers.get(True, 0),
        computed_tokens=tokens[0],
        session_tokens=tokens[1],
        prefix_tokens=tokens[2],
        module_tokens=tokens[3],
        ttft_ms_median=_ttft(session, (num_timed - 1) // 2, num_timed // 2),
        ttft_ms_p95=_ttft(session, ceil(0.95 * num_timed) - 1),
        grounding=mean,
        quoted=quoted,
    )


def _ttft(session: Session, *ranks: int) -> float | None:
    """Mean of the times to first token at these ranks; the fastest answer has rank 0."""
    ordered = select(TimingsRow.ttft).order_by(TimingsRow.ttft).limit(1)
    found = [session.scalar(ordered.offset(max(rank, 0))) for rank in ranks]
    there = [ttft for ttft in found if ttft is not None]
    return sum(there) / len(there) if there else None


def points(session: Session, limit: int) -> list[AnswerPoint]:
    """The latest answers, oldest first."""
    query = (
        select(MessageRow.created, MessageRow.policy, TimingsRow.ttft, UsageRow)
        .join(TimingsRow, TimingsRow.message_id == MessageRow.id)
        .join(UsageRow, UsageRow.message_id == MessageRow.id)
        .where(MessageRow.role == "assistant")
        .order_by(MessageRow.created.desc())
        .limit(limit)
    )
    latest = [
        AnswerPoint(
            created=created,
            ttft_ms=ttft,
            prompt_tokens=usage.prompt_tokens,
            reused_tokens=usage.session + usage.prefix + usage.module,
            policy=policy or "",
        )
        for created, policy, ttft, usage in session.execute(query)
    ]
    return latest[::-1]


def misses(session: Session, limit: int) -> list[MissRow]:
    """The latest modules that had to be computed, latest first."""
    question = aliased(MessageRow)
    query = (
        select(
            ModuleUseRow.created,
            ModuleUseRow.document,
            ModuleUseRow.passage,
            ModuleUseRow.tokens,
            ModuleUseRow.miss_reason.label("reason"),
            func.coalesce(question.text, "").label("question"),
        )
        .join(MessageRow, MessageRow.id == ModuleUseRow.message_id)
        .outerjoin(question, question.id == MessageRow.question_id)
        .where(ModuleUseRow.miss_reason.is_not(None))
        .order_by(ModuleUseRow.created.desc(), ModuleUseRow.rank)
        .limit(limit)
    )
    return [MissRow(**row._mapping) for row in session.execute(query)]


def weakly_supported(session: Session, at_most: float, limit: int) -> list[SupportRow]:
    """The latest answers whose grounding is at most a bound, latest first."""
    question = aliased(MessageRow)
    query = (
        select(MessageRow.created, func.coalesce(question.text, ""), MessageRow.text, MessageRow.grounding, MessageRow.quoted)
        .outerjoin(question, question.id == MessageRow.question_id)
        .where(MessageRow.grounding <= at_most)
        .order_by(MessageRow.created.desc())
        .limit(limit)
    )
    return [
        SupportRow(created=created, question=asked, shown=shown, grounding=grounding or 0.0, quoted=bool(quoted))
        for created, asked, shown, grounding, quoted in session.execute(query)
    ]


def miss_reasons(session: Session) -> list[ReasonRow]:
    """Why modules had to be computed, over all stored answers, the most expensive reason first."""
    tokens = func.sum(ModuleUseRow.tokens)
    query = select(ModuleUseRow.miss_reason, func.count(), tokens).where(ModuleUseRow.miss_reason.is_not(None))
    rows = session.execute(query.group_by(ModuleUseRow.miss_reason).order_by(tokens.desc()))
    return [ReasonRow(reason=reason or "", misses=number, tokens=total) for reason, number, total in rows]


def module_hits(session: Session) -> dict[str, ModuleHits]:
    """How often every module was used, by key."""
    num_misses = func.count(ModuleUseRow.miss_reason)
    query = select(ModuleUseRow.key, func.count() - num_misses, num_misses, func.max(ModuleUseRow.created)).group_by(
        ModuleUseRow.key
    )
    return {key: ModuleHits(hits=hits, misses=num, last_used=last) for key, hits, num, last in session.execute(query)}
