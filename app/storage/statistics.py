"""Numbers for the dashboard. Counts come from the tallies, which are kept while answers are recorded; the latest
answers are found by an index. No query reads all answers.

Not covered: what the engine knows of tiers and bytes (`app.desk.overview`), and counting (`tallies`).
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter

from sqlalchemy import BigInteger, ColumnElement, cast, func, select
from sqlalchemy.orm import Session, aliased

from app.domain.answers import AnswerPoint, AnswerTotals, MissRow, ReasonRow, SupportRow
from app.domain.trends import FirstTokenTimes, UsageSpan
from app.storage.database import Database
from app.storage.histogram import percentile
from app.storage.tables import ConversationRow, MessageRow, ModuleTallyRow, ModuleUseRow, TallyRow, TimingsRow, UsageRow
from app.storage.tallies import (
    ALL_TIME,
    READINGS,
    SOURCES,
    WIDTHS_S,
    Reading,
    span_of,
    ttft_subject,
)

_QUESTION = aliased(MessageRow)
_HIDDEN = select(ConversationRow.id).where(ConversationRow.deleted.is_not(None))
"""Deleted conversations that may still be brought back: nobody reads what was said in them."""
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
        """Numbers over all answers that were ever recorded, and of the conversations stored now. A new field of
        `AnswerTotals` is computed here. Times are off by 5 % at most (`histogram`).
        """
        with self._database.read() as session:
            conversations = session.scalar(select(func.count()).select_from(ConversationRow)) or 0
            [counts] = _counted(session, TallyRow.width_s == ALL_TIME) or [_Counts(0)]
        times = counts.ttft(*READINGS)
        tokens, outcomes, checked = counts.amounts("tokens"), counts.times("answers"), counts.times("grounding").get("")
        return AnswerTotals(
            conversations=conversations,
            answers=sum(outcomes.values()),
            **{name: outcomes.get(outcome, 0) for name, outcome in _COUNTED.items()},
            **{f"{source}_tokens": tokens.get(source, 0) for source in SOURCES},
            ttft_ms_median=None if times is None else times.p50_ms,
            ttft_ms_p95=None if times is None else times.p95_ms,
            grounding=counts.amount("grounding") / checked if checked else None,
            quoted=counts.times("quoted").get("", 0),
        )

    def over_time(self, since: datetime, until: datetime, step: timedelta) -> list[UsageSpan]:
        """What happened between two times, in spans of `step`, oldest first. Spans begin at multiples of the step since
        1970 in UTC; the first one holds `since`. A span in which nothing happened is left out. step: whole minutes,
        and whole hours for what is more than eight days ago, because minutes are not kept longer. Raises ValueError for
        another step.
        """
        seconds = int(step.total_seconds())
        width = max((one for one in WIDTHS_S if one and seconds > 0 and seconds % one == 0), default=None)
        if width is None:
            raise ValueError(f"the step is {step}: give whole minutes")
        first = span_of(int(since.timestamp()), seconds)
        within = TallyRow.start >= first, TallyRow.start < until.timestamp()
        with self._database.read() as session:
            added_up = None if width == seconds else seconds
            return [counts.span() for counts in _counted(session, TallyRow.width_s == width, *within, step=added_up)]

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
            .where(ModuleUseRow.miss_reason.is_not(None), MessageRow.conversation_id.not_in(_HIDDEN))
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
            .where(MessageRow.grounding <= at_most, MessageRow.conversation_id.not_in(_HIDDEN))
            .order_by(MessageRow.created.desc())
            .limit(limit)
        )
        return [SupportRow(**row._mapping) for row in self._database.rows(query)]

    def used_modules(self, answers: int) -> list[list[tuple[str, int]]]:
        """Key and tokens of each module that the latest answers used, by answer, the oldest first; of answers that used
        one.
        """
        latest = select(MessageRow.id, MessageRow.created).where(MessageRow.role == "assistant")
        latest = latest.order_by(MessageRow.created.desc()).limit(answers)
        some, use = latest.subquery(), ModuleUseRow
        query = select(use.message_id, use.id, use.tokens).join(some, some.c.id == use.message_id)
        rows = self._database.rows(query.where(use.id != "").order_by(some.c.created, use.message_id, use.rank))
        return [[(key, tokens) for _, key, tokens in mine] for _, mine in groupby(rows, key=itemgetter(0))]

    def miss_reasons(self) -> list[ReasonRow]:
        """Why modules had to be computed, the most expensive reason first."""
        query = select(TallyRow.label, TallyRow.times, TallyRow.amount)
        rows = self._database.rows(query.where(TallyRow.width_s == ALL_TIME, TallyRow.subject == "misses"))
        reasons = [ReasonRow(reason=reason, misses=times, tokens=int(tokens)) for reason, times, tokens in rows]
        return sorted(reasons, key=lambda row: (-row.tokens, row.reason))

    def module_hits(self) -> dict[str, ModuleHits]:
        """How often every module was used, by key."""
        module = ModuleTallyRow
        query = select(module.key, module.hits, module.misses, module.last_used)
        return {
            key: ModuleHits(hits=hits, misses=misses, last_used=datetime.fromtimestamp(last, UTC))
            for key, hits, misses, last in self._database.rows(query)
        }


@dataclass(frozen=True, slots=True)
class _Counts:
    """The tallies of one span. start: seconds since 1970. by_subject: label, times and amount."""

    start: int
    by_subject: dict[str, list[tuple[str, int, float]]] = field(default_factory=lambda: defaultdict(list))

    def times(self, subject: str) -> dict[str, int]:
        """How often, by label."""
        return {label: times for label, times, _ in self.by_subject.get(subject, ())}

    def amounts(self, subject: str) -> dict[str, int]:
        """How many tokens, by label."""
        return {label: int(amount) for label, _, amount in self.by_subject.get(subject, ())}

    def amount(self, subject: str) -> float:
        """How much, over all labels."""
        return sum(amount for _, _, amount in self.by_subject.get(subject, ()))

    def ttft(self, *readings: Reading) -> FirstTokenTimes | None:
        """The times to the first token of answers for which the model read this much; None if there are none."""
        bins: Counter[int] = Counter()
        for reading in readings:
            bins.update({int(label): times for label, times in self.times(ttft_subject(reading)).items()})
        if not bins:
            return None
        return FirstTokenTimes(answers=bins.total(), p50_ms=percentile(bins, 0.5), p95_ms=percentile(bins, 0.95))

    def span(self) -> UsageSpan:
        """The same for a chart."""
        return UsageSpan(
            start=datetime.fromtimestamp(self.start, UTC),
            answers=self.times("answers"),
            tokens=self.amounts("tokens"),
            modules=self.times("modules"),
            module_tokens=self.amounts("modules"),
            misses=self.times("misses"),
            warm=self.ttft("warm"),
            cold=self.ttft("cold"),
            server=self.ttft("server"),
        )


def _counted(session: Session, *where: ColumnElement[bool], step: int | None = None) -> list[_Counts]:
    """The tallies that meet the conditions, oldest first. step: add them up in spans of so many seconds."""
    one = TallyRow
    start = one.start if step is None else one.start - one.start % step
    query = select(start, one.subject, one.label, one.times, one.amount)
    if step is not None:
        added = cast(func.sum(one.times), BigInteger)  # PostgreSQL adds whole numbers up to decimals
        query = select(start, one.subject, one.label, added, func.sum(one.amount))
        query = query.group_by(start, one.subject, one.label)
    spans = []
    for begun, some in groupby(session.execute(query.where(*where).order_by(start)), key=itemgetter(0)):
        counts = _Counts(begun)
        for _, subject, label, times, amount in some:
            counts.by_subject[subject].append((label, times, amount))
        spans.append(counts)
    return spans
