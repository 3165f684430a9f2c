"""Numbers over stored answers for the dashboard: aggregates in SQL, never all rows in memory.

Percentiles are read from an index by rank, because SQLite has no function for them.

Not covered: what the engine knows of tiers and bytes (`app.desk.overview`).
"""

from dataclasses import dataclass
from datetime import datetime
from math import ceil

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from app.domain.answers import AnswerPoint, AnswerTotals, MissRow, ReasonRow, SupportRow
from app.storage.database import Database
from app.storage.tables import ConversationRow, MessageRow, ModuleUseRow, TimingsRow, UsageRow

_QUESTION = aliased(MessageRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleHits:
    """How stored answers used a module. hits: it was encoded already; misses: it had to be computed."""

    hits: int
    misses: int
    last_used: datetime | None


class Statistics:
    """Reads the numbers. Safe to use from any thread; every method is one transaction and may raise DeskError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def totals(self) -> AnswerTotals:
        """Numbers over all stored answers. A new field of `AnswerTotals` is computed here."""
        sums = (UsageRow.computed, UsageRow.session, UsageRow.prefix, UsageRow.module)
        with self._database.read() as session:
            conversations = session.scalar(select(func.count()).select_from(ConversationRow))
            counts = select(MessageRow.refused, func.count().label("number")).group_by(MessageRow.refused)
            rows = session.execute(counts.where(MessageRow.role == "assistant"))
            answers = {row.refused: row.number for row in rows}
            tokens = session.execute(select(*(func.coalesce(func.sum(column), 0) for column in sums))).one()
            grounding, quoted = session.execute(
                select(func.avg(MessageRow.grounding), func.count().filter(MessageRow.quoted.is_(True)))
            ).one()
            num_timed = session.scalar(select(func.count()).select_from(TimingsRow)) or 0
            return AnswerTotals(
                conversations=conversations or 0,
                answers=sum(answers.values()),
                refusals=answers.get(True, 0),
                computed_tokens=tokens[0],
                session_tokens=tokens[1],
                prefix_tokens=tokens[2],
                module_tokens=tokens[3],
                ttft_ms_median=_ttft(session, (num_timed - 1) // 2, num_timed // 2),
                ttft_ms_p95=_ttft(session, ceil(0.95 * num_timed) - 1),
                grounding=grounding,
                quoted=quoted,
            )

    def points(self, limit: int = 200) -> list[AnswerPoint]:
        """The latest answers, oldest first."""
        query = (
            select(
                MessageRow.created,
                TimingsRow.ttft.label("ttft_ms"),
                UsageRow.prompt_tokens,
                (UsageRow.session + UsageRow.prefix + UsageRow.module).label("reused_tokens"),
                func.coalesce(MessageRow.policy, "").label("policy"),
            )
            .join(TimingsRow, TimingsRow.message_id == MessageRow.id)
            .join(UsageRow, UsageRow.message_id == MessageRow.id)
            .where(MessageRow.role == "assistant")
            .order_by(MessageRow.created.desc())
            .limit(limit)
        )
        with self._database.read() as session:
            return [AnswerPoint(**row._mapping) for row in session.execute(query)][::-1]

    def misses(self, limit: int = 50) -> list[MissRow]:
        """The latest modules that had to be computed, latest first."""
        query = (
            select(
                ModuleUseRow.created,
                ModuleUseRow.document,
                ModuleUseRow.passage,
                ModuleUseRow.tokens,
                ModuleUseRow.miss_reason.label("reason"),
                func.coalesce(_QUESTION.text, "").label("question"),
            )
            .join(MessageRow, MessageRow.id == ModuleUseRow.message_id)
            .outerjoin(_QUESTION, _QUESTION.id == MessageRow.question_id)
            .where(ModuleUseRow.miss_reason.is_not(None))
            .order_by(ModuleUseRow.created.desc(), ModuleUseRow.rank)
            .limit(limit)
        )
        with self._database.read() as session:
            return [MissRow(**row._mapping) for row in session.execute(query)]

    def weakly_supported(self, at_most: float, limit: int = 20) -> list[SupportRow]:
        """The latest answers whose grounding is at most a bound, latest first."""
        query = (
            select(
                MessageRow.created,
                func.coalesce(_QUESTION.text, "").label("question"),
                MessageRow.text.label("shown"),
                MessageRow.grounding,
                func.coalesce(MessageRow.quoted, False).label("quoted"),
            )
            .outerjoin(_QUESTION, _QUESTION.id == MessageRow.question_id)
            .where(MessageRow.grounding <= at_most)
            .order_by(MessageRow.created.desc())
            .limit(limit)
        )
        with self._database.read() as session:
            return [SupportRow(**row._mapping) for row in session.execute(query)]

    def miss_reasons(self) -> list[ReasonRow]:
        """Why modules had to be computed, the most expensive reason first."""
        tokens = func.sum(ModuleUseRow.tokens).label("tokens")
        reason = ModuleUseRow.miss_reason
        query = select(reason.label("reason"), func.count().label("misses"), tokens).where(reason.is_not(None))
        with self._database.read() as session:
            rows = session.execute(query.group_by(reason).order_by(tokens.desc()))
            return [ReasonRow(**row._mapping) for row in rows]

    def module_hits(self) -> dict[str, ModuleHits]:
        """How often every module was used, by key."""
        misses = func.count(ModuleUseRow.miss_reason)
        query = select(ModuleUseRow.id, func.count() - misses, misses, func.max(ModuleUseRow.created))
        with self._database.read() as session:
            rows = session.execute(query.group_by(ModuleUseRow.id))
            return {key: ModuleHits(hits=hits, misses=num, last_used=last) for key, hits, num, last in rows}


def _ttft(session: Session, *ranks: int) -> float | None:
    """Mean of the times to first token at these ranks, in milliseconds; the fastest answer has rank 0."""
    ordered = select(TimingsRow.ttft).order_by(TimingsRow.ttft).limit(1)
    found = [session.scalar(ordered.offset(max(rank, 0))) for rank in ranks]
    known = [ttft for ttft in found if ttft is not None]
    return sum(known) / len(known) if known else None
