"""Numbers for the dashboard, counted when an answer is recorded, so that no query reads all answers.

Every answer is counted in its minute, hour, six hours and day, and over all time. Minutes are stored for eight
days. Counts stay when a conversation or a document is deleted, because they contain no text.

Times to the first token are counted in bins. The end of each bin is 10 % higher than the end of the bin before. A
percentile is the geometric middle of its bin, so its error is 5 % at most. The bins of several spans can be added.

Measured savings have a row for each answer that was computed again without reuse. The row stays when its conversation
is deleted.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate, groupby
from math import ceil, floor, log
from operator import itemgetter
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, ColumnElement, cast, delete, func, select
from sqlalchemy.orm import Session, aliased

from app.domain.answers import AnswerPoint, AnswerTotals, MissRow, ReasonRow, SupportRow
from app.domain.statistics import FirstTokenTimes, SavingsSample, UsageSpan
from app.storage.database import Store
from app.storage.tables import (
    Base,
    ConversationRow,
    MessageRow,
    ModuleTallyRow,
    ModuleUseRow,
    SavingsRow,
    TallyRow,
    TimingsRow,
    UsageRow,
)

GROWTH = 1.1
SHORTEST_MS = 0.01


def bin_of(milliseconds: float) -> int:
    """Return the bin of a time. Times below `SHORTEST_MS` are in the first bin."""
    return floor(log(max(milliseconds, SHORTEST_MS)) / log(GROWTH))


def percentile(bins: Mapping[int, int], share: float) -> float:
    """Return a percentile in milliseconds. bins: counts by bin, at least one. share: the percentile, 0 to 1."""
    wanted = ceil(share * sum(bins.values()))
    ordered = sorted(bins)
    up_to = zip(ordered, accumulate(bins[number] for number in ordered), strict=True)
    return float(GROWTH ** (next(number for number, times in up_to if times >= wanted) + 0.5))


ALL_TIME: Final = 0  # the width of the span that holds everything; it starts at 0
MINUTE_S, DAY_S = 60, 86_400
WIDTHS_S = (MINUTE_S, 3600, 6 * 3600, DAY_S, ALL_TIME)
_FOREVER_S = 1 << 40  # a step longer than any period
MINUTES_KEPT = timedelta(days=8)
MOST_SAMPLES = 1000
SOURCES = ("computed", "session", "prefix", "module")  # of prompt tokens: columns of `UsageRow`, and labels

Reading = Literal["warm", "cold", "server", "none"]
"""Encoding needed for an answer. warm: all modules were already encoded. cold: some were not. server: a remote model
reused or computed them. none: there were no modules, mostly because the model was not asked."""
READINGS: tuple[Reading, ...] = ("warm", "cold", "server", "none")


def tally(session: Session, row: MessageRow) -> None:
    times: Counter[tuple[str, str]] = Counter()
    amounts: Counter[tuple[str, str]] = Counter()
    for subject, label, amount in _happened(row):
        times[subject, label] += 1
        amounts[subject, label] += amount  # type: ignore[assignment]
    moment = int(row.created.timestamp())
    _add(
        session,
        TallyRow,
        ("times", "amount"),
        [
            {
                **{"width_s": width, "start": span_of(moment, width), "subject": subject, "label": label},
                **{"times": number, "amount": float(amounts[subject, label])},
            }
            for width in WIDTHS_S
            for (subject, label), number in times.items()
        ],
    )
    oldest = moment - int(MINUTES_KEPT.total_seconds())
    session.execute(delete(TallyRow).where(TallyRow.width_s == MINUTE_S, TallyRow.start < oldest))
    _tally_modules(session, row)


def span_of(moment: int, width: int) -> int:
    return moment // width * width if width else 0


def ttft_subject(reading: Reading) -> str:
    """Return the subject under which times to the first token are counted. The labels of these counts are bins."""
    return f"ttft {reading}"


def _happened(row: MessageRow) -> Iterator[tuple[str, str, float]]:
    assert row.usage is not None, "answers are recorded with all their rows"
    assert row.timings is not None
    yield "answers", row.outcome or "", 0.0
    if row.quoted:
        yield "quoted", "", 0.0
    if row.grounding is not None:
        yield "grounding", "", row.grounding
    for source in SOURCES:
        if tokens := getattr(row.usage, source):
            yield "tokens", source, tokens
    for use in row.modules:
        yield "modules", use.source, use.tokens
        if use.miss_reason is not None:
            yield "misses", use.miss_reason, use.tokens
    found = [use for use in row.modules if use.source != "elsewhere"]
    missed = any(use.miss_reason is not None for use in found)
    was_asked = len(found) < len(row.modules) and row.timings.prefill > 0
    reading: Reading = "cold" if missed else "warm" if found else "server" if was_asked else "none"
    yield ttft_subject(reading), str(bin_of(row.timings.ttft)), row.timings.ttft


def _tally_modules(session: Session, row: MessageRow) -> None:
    uses = [use for use in row.modules if use.id]  # modules without a key were computed for this prompt only
    misses = Counter(use.id for use in uses if use.miss_reason is not None)
    _add(
        session,
        ModuleTallyRow,
        ("hits", "misses"),
        [
            {"key": key, "hits": number - misses[key], "misses": misses[key], "last_used": int(row.created.timestamp())}
            for key, number in Counter(use.id for use in uses).items()
        ],
    )


def _add(session: Session, table: type[Base], summed: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    """Insert rows. If a row with the same primary key exists, add these columns to it and replace the others."""
    if not rows:
        return
    from sqlalchemy.dialects import postgresql, sqlite

    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement, columns = insert(table), table.__table__.columns
    new = statement.excluded
    changed = {
        column.name: column + new[column.name] if column.name in summed else new[column.name]
        for column in columns
        if not column.primary_key
    }
    keys = [column for column in columns if column.primary_key]
    session.execute(statement.on_conflict_do_update(index_elements=keys, set_=changed), rows)


_QUESTION = aliased(MessageRow)
_HIDDEN = select(ConversationRow.id).where(ConversationRow.deleted.is_not(None))
"""Condition for deleted conversations that can still be restored. Their text is not read."""
_COUNTED = {"answered": "answered", "unsure": "unsure", "refusals": "nothing", "smalltalk": "smalltalk"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleHits:
    """Uses of a module in stored answers: already encoded (hits) or computed (misses)."""

    hits: int
    misses: int
    last_used: datetime | None


class Statistics(Store):
    """The numbers for the dashboard, and the measured savings."""

    def totals(self) -> AnswerTotals:
        """Return totals of all recorded answers and of the stored conversations. The error of times is 5 % at most."""
        with self._database.read() as session:
            conversations = session.scalar(select(func.count()).select_from(ConversationRow)) or 0
            [counts] = _counted(session, TallyRow.width_s == ALL_TIME) or [_Counts(0)]
        times = counts.ttft(*READINGS)
        tokens, outcomes = counts.amounts("tokens"), counts.times("answers")
        return AnswerTotals(
            conversations=conversations,
            answers=sum(outcomes.values()),
            **{name: outcomes.get(outcome, 0) for name, outcome in _COUNTED.items()},
            **{f"{source}_tokens": tokens.get(source, 0) for source in SOURCES},
            ttft_ms_median=None if times is None else times.p50_ms,
            ttft_ms_p95=None if times is None else times.p95_ms,
            grounding=counts.grounding,
            quoted=counts.times("quoted").get("", 0),
        )

    def over_time(self, since: datetime, until: datetime, step: timedelta) -> list[UsageSpan]:
        """Return numbers between two times, in spans of `step`, oldest first. Spans begin at multiples of the step
        since 1970 in UTC; the first one contains `since`. Empty spans are skipped. step: whole minutes, and whole hours
        for times more than eight days ago. Raises ValueError for another step.
        """
        width, seconds = _width_of(step), int(step.total_seconds())
        return self._spans(since, until, step, None if width == seconds else seconds)

    def within(self, since: datetime, until: datetime, step: timedelta) -> UsageSpan:
        """Return the sum of the spans that `over_time` returns."""
        return next(iter(self._spans(since, until, step, _FOREVER_S)), UsageSpan(start=since))

    def _spans(self, since: datetime, until: datetime, step: timedelta, added_up: int | None) -> list[UsageSpan]:
        first = span_of(int(since.timestamp()), int(step.total_seconds()))
        within = TallyRow.start >= first, TallyRow.start < until.timestamp()
        with self._database.read() as session:
            found = _counted(session, TallyRow.width_s == _width_of(step), *within, step=added_up)
            return [counts.span() for counts in found]

    def points(self, limit: int = 200) -> list[AnswerPoint]:
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
        """Return the modules of the latest answers: for each answer a list of (key, tokens), oldest answer first."""
        latest = select(MessageRow.id, MessageRow.created).where(MessageRow.role == "assistant")
        latest = latest.order_by(MessageRow.created.desc()).limit(answers)
        some, use = latest.subquery(), ModuleUseRow
        query = select(use.message_id, use.id, use.tokens).join(some, some.c.id == use.message_id)
        rows = self._database.rows(query.where(use.id != "").order_by(some.c.created, use.message_id, use.rank))
        return [[(key, tokens) for _, key, tokens in mine] for _, mine in groupby(rows, key=itemgetter(0))]

    def miss_reasons(self) -> list[ReasonRow]:
        query = select(TallyRow.label, TallyRow.times, TallyRow.amount)
        rows = self._database.rows(query.where(TallyRow.width_s == ALL_TIME, TallyRow.subject == "misses"))
        reasons = [ReasonRow(reason=reason, misses=times, tokens=int(tokens)) for reason, times, tokens in rows]
        return sorted(reasons, key=lambda row: (-row.tokens, row.reason))

    def module_hits(self) -> dict[str, ModuleHits]:
        module = ModuleTallyRow
        query = select(module.key, module.hits, module.misses, module.last_used)
        return {
            key: ModuleHits(hits=hits, misses=misses, last_used=datetime.fromtimestamp(last, UTC))
            for key, hits, misses, last in self._database.rows(query)
        }

    def add_sample(self, sample: SavingsSample) -> None:
        with self._database.write() as session:
            row = SavingsRow(**asdict(sample))
            if sample.question_id is not None and session.get(MessageRow, sample.question_id) is None:
                row.question_id = None
            session.add(row)

    def samples(self, since: datetime, until: datetime) -> list[SavingsSample]:
        """Return the samples of a period, latest first, at most `MOST_SAMPLES`."""
        query = select(SavingsRow).where(SavingsRow.created >= since, SavingsRow.created < until)
        rows = self._database.values(query.order_by(SavingsRow.created.desc()).limit(MOST_SAMPLES))
        return [row.to(SavingsSample) for row in rows]


@dataclass(frozen=True, slots=True)
class _Counts:
    """The counts of one span. start: seconds since 1970. by_subject: label, times and amount."""

    start: int
    by_subject: dict[str, list[tuple[str, int, float]]] = field(default_factory=lambda: defaultdict(list))

    def times(self, subject: str) -> dict[str, int]:
        return {label: times for label, times, _ in self.by_subject.get(subject, ())}

    def amounts(self, subject: str) -> dict[str, int]:
        return {label: int(amount) for label, _, amount in self.by_subject.get(subject, ())}

    @property
    def grounding(self) -> float | None:
        checked = self.by_subject.get("grounding", ())
        return checked[0][2] / checked[0][1] if checked else None

    def ttft(self, *readings: Reading) -> FirstTokenTimes | None:
        bins: Counter[int] = Counter()
        for reading in readings:
            bins.update({int(label): times for label, times in self.times(ttft_subject(reading)).items()})
        if not bins:
            return None
        return FirstTokenTimes(answers=bins.total(), p50_ms=percentile(bins, 0.5), p95_ms=percentile(bins, 0.95))

    def span(self) -> UsageSpan:
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
            first=self.ttft(*READINGS),
            grounding=self.grounding,
            quoted=self.times("quoted").get("", 0),
        )


def _width_of(step: timedelta) -> int:
    """Return the width of the stored spans that make up a step. Raises ValueError for parts of a minute."""
    seconds = int(step.total_seconds())
    width = max((one for one in WIDTHS_S if one and seconds > 0 and seconds % one == 0), default=None)
    if width is None:
        raise ValueError(f"the step is {step}: give whole minutes")
    return width


def _counted(session: Session, *where: ColumnElement[bool], step: int | None = None) -> list[_Counts]:
    """Return the counts that meet the conditions, oldest first. step: sum them in spans of this many seconds."""
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
