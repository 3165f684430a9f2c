"""For migration m012: counts the answers that were recorded before there were tallies.

Like every migration it is never changed after its release, and names tables, widths and bins as they were then; a test
compares what it counts with what `tallies` counts.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import floor, log
from typing import Any

from sqlalchemy import Connection, DateTime, column, func, insert, select, table

_MESSAGES = table("messages", column("created", DateTime), *map(column, ("id", "outcome", "grounding", "quoted")))
_USAGE = table("message_usage", *map(column, ("message_id", "computed", "session", "prefix", "module")))
_TIMINGS = table("message_timings", column("message_id"), column("ttft"))
_USES = table(
    "message_modules",
    column("created", DateTime),
    *map(column, ("message_id", "key", "source", "miss_reason", "tokens")),
)
_TALLIES = table("tallies", *map(column, ("width_s", "start", "subject", "label", "times", "amount")))
_MODULES = table("module_tallies", *map(column, ("key", "hits", "misses", "last_used")))
_WIDTHS_S, _MINUTE_S = (60, 3600, 21_600, 86_400, 0), 60

_Happened = tuple[datetime, str, str, int, float]
"""When, subject, label, how often, and how much of it."""


def count_recorded(connection: Connection) -> None:
    """Fill both tables, which are there and empty."""
    times: Counter[tuple[int, int, str, str]] = Counter()
    amounts: Counter[tuple[int, int, str, str]] = Counter()
    oldest = datetime.now(UTC).timestamp() - timedelta(days=8).total_seconds()  # minutes before are not kept
    for created, subject, label, number, amount in (*_answers(connection), *_modules(connection)):
        moment = _seconds(created)
        for width in _WIDTHS_S:
            if width != _MINUTE_S or moment >= oldest:
                span = width, moment // width * width if width else 0, subject, label
                times[span] += number
                amounts[span] += amount  # type: ignore[assignment]
    rows = [(*span, number, float(amounts[span])) for span, number in times.items()]
    names = [one.name for one in _TALLIES.columns]
    if rows:
        connection.execute(insert(_TALLIES), [dict(zip(names, row, strict=True)) for row in rows])
    missed = func.count(_USES.c.miss_reason)
    used = select(_USES.c.key, func.count(), missed, func.max(_USES.c.created)).where(_USES.c.key != "")
    modules = [
        {"key": key, "hits": number - misses, "misses": misses, "last_used": _seconds(last)}
        for key, number, misses, last in connection.execute(used.group_by(_USES.c.key))
    ]
    if modules:
        connection.execute(insert(_MODULES), modules)


def _seconds(moment: datetime) -> int:
    """Since 1970; the database's times have no zone and are UTC."""
    return int(moment.replace(tzinfo=UTC).timestamp())


def _answers(connection: Connection) -> Iterator[_Happened]:
    each = select(_USES.c.message_id, func.count(_USES.c.miss_reason).label("misses"))
    uses = each.group_by(_USES.c.message_id).subquery()
    query = (
        select(_MESSAGES, _USAGE, _TIMINGS.c.ttft, uses.c.misses)
        .join(_USAGE, _USAGE.c.message_id == _MESSAGES.c.id)
        .join(_TIMINGS, _TIMINGS.c.message_id == _MESSAGES.c.id)
        .outerjoin(uses, uses.c.message_id == _MESSAGES.c.id)
    )
    for row in connection.execute(query):
        yield from _of_answer(row)


def _of_answer(row: Any) -> Iterator[_Happened]:
    yield row.created, "answers", row.outcome or "", 1, 0.0
    if row.quoted:
        yield row.created, "quoted", "", 1, 0.0
    if row.grounding is not None:
        yield row.created, "grounding", "", 1, row.grounding
    for source in ("computed", "session", "prefix", "module"):
        if tokens := getattr(row, source):
            yield row.created, "tokens", source, 1, tokens
    reading = "none" if row.misses is None else "cold" if row.misses else "warm"
    bin_ = floor(log(max(row.ttft, 0.01)) / log(1.1))
    yield row.created, f"ttft {reading}", str(bin_), 1, row.ttft


def _modules(connection: Connection) -> Iterator[_Happened]:
    uses, number, tokens = _USES.c, func.count(), func.sum(_USES.c.tokens)
    query = select(uses.created, uses.source, uses.miss_reason, number, tokens)
    for created, source, reason, times, amount in connection.execute(
        query.group_by(uses.created, uses.source, uses.miss_reason)
    ):
        yield created, "modules", source, times, amount
        if reason is not None:
            yield created, "misses", reason, times, amount
