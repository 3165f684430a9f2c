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
_COUNTED = {"answered": "answered", "unsure": "unsure", "refusals": "nothing", "smalltalk": "smalltalk"}
"""Fields of `AnswerTotals`, and the outcome that each counts."""


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
        sources = ("computed", "session", "prefix", "module")
        query = select(
            select(func.count()).select_from(ConversationRow).label("conversations"),
            func.count().label("answers"),
            *(func.count().filter(MessageRow.outcome == outcome).label(name) for name, outcome in _COUNTED.items()),
            *(func.coalesce(func.sum(getattr(UsageRow, one)), 0).label(f"{one}_tokens") for one in sources),
            func.avg(MessageRow.grounding).label("grounding"),
            func.count().filter(MessageRow.quoted.is_(True)).label("quoted"),
        ).join_from(MessageRow, UsageRow)
        with self._database.read() as session:
            row = session.execute(query).one()
            return AnswerTotals(
                **row._mapping,
                ttft_ms_median=_ttft(session, (row.answers - 1) // 2, row.answers // 2),
                ttft_ms_p95=_ttft(session, ceil(0.95 * row.answers) - 1),
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
            .join(MessageRow.timings)
            .join(MessageRow.usage)
            .where(MessageRow.role == "assistant")
            .order_by(MessageRow.created.desc())
            .limit(limit)
        )
        return [AnswerPoint(**row._mapping) for row in reversed(self._database.rows(query))]

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
        return [MissRow(**row._mapping) for row in self._database.rows(query)]

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
        return [SupportRow(**row._mapping) for row in self._database.rows(query)]

    def miss_reasons(self) -> list[ReasonRow]:
        """Why modules had to be computed, the most expensive reason first."""
        tokens = func.sum(ModuleUseRow.tokens).label("tokens")
        reason = ModuleUseRow.miss_reason
        query = select(reason.label("reason"), func.count().label("misses"), tokens).where(reason.is_not(None))
        rows = self._database.rows(query.group_by(reason).order_by(tokens.desc()))
        return [ReasonRow(**row._mapping) for row in rows]

    def module_hits(self) -> dict[str, ModuleHits]:
        """How often every module was used, by key."""
        misses = func.count(ModuleUseRow.miss_reason)
        query = select(ModuleUseRow.id, func.count() - misses, misses, func.max(ModuleUseRow.created))
        rows = self._database.rows(query.group_by(ModuleUseRow.id))
        return {key: ModuleHits(hits=hits, misses=num, last_used=last) for key, hits, num, last in rows}


def _ttft(session: Session, *ranks: int) -> float | None:
    """Mean of the times to first token at these ranks, in milliseconds; the fastest answer has rank 0."""
    ordered = select(TimingsRow.ttft).order_by(TimingsRow.ttft).limit(1)
    found = [session.scalar(ordered.offset(max(rank, 0))) for rank in ranks]
    known = [ttft for ttft in found if ttft is not None]
    return sum(known) / len(known) if known else None
