"""What is counted when an answer is recorded, so that the dashboard need not read all answers again.

Every answer is counted in its minute, its hour, its quarter of a day, its day, and over all time. Minutes are kept for
eight days. What was counted stays when a conversation is deleted or a document forgotten: it happened, and a count
holds nobody's words.

Not covered: reading the counts (`statistics`), counting what was recorded before there were any (`first_tallies`).
"""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, Literal

from sqlalchemy import delete
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from app.storage.histogram import bin_of
from app.storage.tables import Base, MessageRow, ModuleTallyRow, TallyRow

ALL_TIME: Final = 0
"""The width of the span that holds everything; it starts at 0."""
MINUTE_S, DAY_S = 60, 86_400
WIDTHS_S = (MINUTE_S, 3600, 6 * 3600, DAY_S, ALL_TIME)
MINUTES_KEPT = timedelta(days=8)
SOURCES = ("computed", "session", "prefix", "module")
"""Of prompt tokens: columns of `UsageRow`, and labels."""

Reading = Literal["warm", "cold", "server", "none"]
"""What the model had to read for an answer. warm: all modules were found encoded. cold: some were not. server: a model
elsewhere read or found them. none: there were no modules, mostly because the model was not asked."""
READINGS: tuple[Reading, ...] = ("warm", "cold", "server", "none")


def tally(session: Session, row: MessageRow) -> None:
    """Count an answer, within the transaction that records it."""
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
    """When the span of a moment begins, in seconds since 1970."""
    return moment // width * width if width else 0


def ttft_subject(reading: Reading) -> str:
    """Under which name times to the first token are counted; their labels are bins (`histogram`)."""
    return f"ttft {reading}"


def _happened(row: MessageRow) -> Iterator[tuple[str, str, float]]:
    """Subject, label and amount of everything that is counted of an answer."""
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
    uses = [use for use in row.modules if use.id]  # without a key: computed for this prompt alone
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
    """Insert rows; where there is one of the same primary key, these columns are added to it and others replaced."""
    if not rows:
        return
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
