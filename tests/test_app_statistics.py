"""The dashboard's sums equal counting by hand."""

import json
import random
import statistics
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import ceil

import pytest
from sqlalchemy import delete, select
from stored_answers import add_turn, an_answer, details

from app.desk.output import overview_json
from app.desk.overview import summarise
from app.domain.answers import Answer
from app.storage.database import Database
from app.storage.history import History
from app.storage.library import Library
from app.storage.statistics import SHORTEST_MS, Statistics, bin_of, percentile
from app.storage.tables import ConversationRow, ModuleTallyRow, TallyRow
from cache.memory.disk import TierContents


@pytest.fixture
def stats(database):
    return Statistics(database)


@pytest.mark.parametrize("number", [0, 1, 19, 20])
def test_sums_equal_counting_by_hand(history, stats, number):
    ids = [history.start_conversation(f"c{one}") for one in range(2)]
    numbers = [7 * one % 23 for one in range(number)]
    answers = [add_turn(history, ids[one % 2], one, refused=one % 3 == 2) for one in numbers]
    sums = stats.totals()
    assert (sums.conversations, sums.answers) == (2, number)
    assert sums.refusals == sum(answer.refused for answer in answers)
    assert sums.computed_tokens == sum(answer.usage.computed for answer in answers)
    assert (sums.session_tokens, sums.prefix_tokens, sums.module_tokens) == (10 * number, 50 * number, 40 * number)
    ttft = sorted(answer.timings.ttft for answer in answers)
    if not ttft:
        assert (sums.ttft_ms_median, sums.ttft_ms_p95, stats.misses(), stats.module_hits()) == (None, None, [], {})
        return
    assert sums.ttft_ms_median == pytest.approx(statistics.median_low(ttft), rel=0.05)
    assert sums.ttft_ms_p95 == pytest.approx(ttft[-(-95 * number // 100) - 1], rel=0.05)


def test_misses_say_what_was_computed_for_which_question(history, stats):
    conversation_id = history.start_conversation("x")
    first = history.record_question(conversation_id, "the slow one")
    add_turn(history, conversation_id, 1)
    answer = an_answer(conversation_id)
    history.record_answer(answer, details(first, answer))  # two questions were on their way at once
    latest, earlier = stats.misses()
    assert (latest.question, earlier.question) == ("the slow one", "question 1?")
    assert (latest.document, latest.passage, latest.tokens, latest.reason) == (
        "/kb/returns.md",
        "Returns (1)",
        50,
        "evicted",
    )
    assert stats.misses(limit=1) == [latest]


def test_miss_reasons_are_summed_the_most_expensive_first(history, stats):
    conversation_id = history.start_conversation("x")
    for number in range(3):
        add_turn(history, conversation_id, number)
    reasons = stats.miss_reasons()
    assert [row.tokens for row in reasons] == sorted((row.tokens for row in reasons), reverse=True)
    misses = stats.misses(limit=1000)
    for row in reasons:
        same = [miss for miss in misses if miss.reason == row.reason]
        assert (row.misses, row.tokens) == (len(same), sum(miss.tokens for miss in same))
    assert {row.reason for row in reasons} == {miss.reason for miss in misses} != set()


def test_the_document_of_stats_holds_every_kind_of_row(history, stats, database):
    conversation_id = history.start_conversation("x")
    add_turn(history, conversation_id, 1)
    question_id = history.record_question(conversation_id, "y")
    answer = replace(an_answer(conversation_id), grounding=0.25, quoted=True)
    history.record_answer(answer, details(question_id, answer))
    overview = summarise(Library(database), stats, TierContents(), ())
    document = json.loads(json.dumps(overview_json(overview), default=datetime.isoformat))
    assert (document["answers"], document["grounding"], document["quoted"]) == (2, 0.25, 1)
    assert all(document[rows] for rows in ("reasons", "misses", "points", "weak"))
    assert (document["weak"][0]["question"], document["weak"][0]["quoted"]) == ("y", True)


def counts(database: Database) -> tuple[dict[object, object], dict[object, object]]:
    tallies = database.values(select(TallyRow))
    modules = database.values(select(ModuleTallyRow))
    return (
        {(row.width_s, row.start, row.subject, row.label): (row.times, round(row.amount, 6)) for row in tallies},
        {row.key: (row.hits, row.misses, row.last_used) for row in modules},
    )


def at(history: History, monkeypatch: pytest.MonkeyPatch, moment: datetime, **usual: bool) -> Answer:
    monkeypatch.setattr("app.storage.history.utc_now", lambda: moment)
    return add_turn(history, history.start_conversation("x"), 1, **usual)


def test_what_was_counted_stays_when_a_conversation_is_deleted(history, stats, database):
    conversation_id = history.start_conversation("x")
    add_turn(history, conversation_id, 1)
    before = stats.totals(), stats.miss_reasons(), stats.module_hits()
    with database.write() as session:
        session.execute(delete(ConversationRow))
    assert (stats.totals(), stats.miss_reasons(), stats.module_hits()) == (
        replace(before[0], conversations=0),
        *before[1:],
    )


def test_over_time_breaks_where_nothing_happened(history, stats, monkeypatch):
    noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
    minute, hour, day = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
    for moment in (noon, noon + 59 * minute, noon + 3 * hour, noon + day):
        at(history, monkeypatch, moment)
    at(history, monkeypatch, noon + 3 * hour, refused=True)
    spans = stats.over_time(noon, noon + 2 * day, hour)
    assert [span.start for span in spans] == [noon, noon + 3 * hour, noon + day]
    assert [span.answers for span in spans] == [{"answered": 2}, {"answered": 1, "nothing": 1}, {"answered": 1}]
    assert spans[0].tokens == {"computed": 2, "session": 20, "prefix": 100, "module": 80}
    assert (spans[0].modules, spans[0].module_tokens) == ({"device": 2, "computed": 2}, {"device": 80, "computed": 100})
    assert (spans[0].misses, spans[0].warm) == ({"evicted": 2}, None)
    assert spans[0].cold is not None
    assert (spans[0].cold.answers, spans[0].cold.p50_ms) == (2, pytest.approx(32.4, rel=0.05))
    assert [span.start for span in stats.over_time(noon, noon + 3 * hour, hour)] == [noon]
    assert [span.start for span in stats.over_time(noon, noon + hour, minute)] == [noon, noon + 59 * minute]
    midnight = noon - 12 * hour
    assert [span.start for span in stats.over_time(noon, noon + 2 * day, day)] == [midnight, midnight + day]
    assert len(stats.over_time(noon, noon + 2 * day, 30 * day)) == 1
    for wrong in (timedelta(seconds=30), timedelta(0), timedelta(seconds=90)):
        with pytest.raises(ValueError, match="whole minutes"):
            stats.over_time(noon, noon + day, wrong)


def test_warm_and_cold_answers_are_told_apart(history, stats):
    conversation_id = history.start_conversation("x")
    add_turn(history, conversation_id, 100)
    warm = an_answer(conversation_id, 0)
    warm = replace(warm, modules=(warm.modules[0],) * 2)
    question_id = history.record_question(conversation_id, "y")
    history.record_answer(warm, details(question_id, warm))
    add_turn(history, conversation_id, 9000, refused=True)  # no module, so neither
    now = datetime.now(UTC)
    [span] = stats.over_time(now - timedelta(minutes=5), now + timedelta(minutes=1), timedelta(days=1))
    assert span.warm is not None
    assert span.cold is not None
    assert (span.warm.answers, span.warm.p95_ms) == (1, pytest.approx(31.4, rel=0.05))
    assert (span.cold.answers, span.cold.p95_ms) == (1, pytest.approx(131.4, rel=0.05))


def test_minutes_are_kept_for_eight_days_and_hours_for_ever(history, stats, monkeypatch):
    noon = datetime(2026, 5, 4, 12, tzinfo=UTC)
    at(history, monkeypatch, noon)
    at(history, monkeypatch, noon + timedelta(days=7))
    month = noon, noon + timedelta(days=30)
    assert len(stats.over_time(*month, timedelta(minutes=1))) == 2
    at(history, monkeypatch, noon + timedelta(days=9))
    assert len(stats.over_time(*month, timedelta(minutes=1))) == 2
    assert len(stats.over_time(*month, timedelta(hours=1))) == 3


def test_answers_recorded_at_the_same_time_are_all_counted(history, stats):
    ids = [history.start_conversation("x") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda id_: [add_turn(history, id_) for _ in range(5)], ids))
    assert stats.totals().answers == 20
    assert stats.module_hits()["b2:one"].misses == 20


@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
def test_percentiles_of_a_histogram_are_off_by_five_percent_at_most(share):
    chance = random.Random(1)
    for number in (1, 2, 3, 500):
        times = sorted(chance.lognormvariate(4, 2) for _ in range(number))
        exact = times[ceil(share * number) - 1]
        assert percentile(Counter(map(bin_of, times)), share) == pytest.approx(exact, rel=0.05)
    assert bin_of(0.0) == bin_of(SHORTEST_MS)
