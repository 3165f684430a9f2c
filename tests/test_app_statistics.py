"""The dashboard's sums equal counting by hand."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from stored_answers import add_turn, an_answer, details

from app.desk.json_output import overview_json
from app.desk.overview import Tiers, summarise
from app.storage.database import Database, open_database
from app.storage.history import History
from app.storage.library import Library
from app.storage.statistics import Statistics


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(open_database(f"sqlite:///{tmp_path / 'desk.sqlite3'}")) as opened:
        yield opened


@pytest.fixture
def history(database: Database) -> History:
    return History(database)


@pytest.fixture
def stats(database: Database) -> Statistics:
    return Statistics(database)


def test_new_desk_has_no_numbers(stats: Statistics) -> None:
    sums = stats.totals()
    assert (sums.conversations, sums.answers, sums.refusals, sums.computed_tokens) == (0, 0, 0, 0)
    assert (sums.ttft_ms_median, sums.ttft_ms_p95) == (None, None)
    assert (stats.points(), stats.misses(), stats.module_hits()) == ([], [], {})


@pytest.mark.parametrize("number", [1, 2, 19, 20, 21])
def test_sums_equal_counting_by_hand(history: History, stats: Statistics, number: int) -> None:
    ids = [history.start_conversation(f"c{one}") for one in range(2)]
    numbers = [7 * one % 23 for one in range(number)]
    answers = [add_turn(history, ids[one % 2], one, refused=one % 3 == 2) for one in numbers]
    sums = stats.totals()
    assert (sums.conversations, sums.answers) == (2, number)
    assert sums.refusals == sum(answer.refused for answer in answers)
    assert sums.computed_tokens == sum(answer.usage.computed for answer in answers)
    assert (sums.session_tokens, sums.prefix_tokens, sums.module_tokens) == (
        10 * number,
        50 * number,
        40 * number,
    )
    ttft = sorted(answer.timings.ttft for answer in answers)
    assert sums.ttft_ms_median == pytest.approx(statistics.median(ttft))
    assert sums.ttft_ms_p95 == ttft[-(-95 * number // 100) - 1]


def test_points_are_the_latest_answers_oldest_first(history: History, stats: Statistics) -> None:
    conversation_id = history.start_conversation("x")
    for number in range(5):
        add_turn(history, conversation_id, number)
    points = stats.points(limit=3)
    assert [point.prompt_tokens for point in points] == [102, 103, 104]
    assert {(point.reused_tokens, point.policy) for point in points} == {(100, "balanced")}
    assert points[0].ttft_ms == pytest.approx(33.4)
    assert points[0].created < points[2].created


def test_misses_say_what_was_computed_for_which_question(history: History, stats: Statistics) -> None:
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


def test_miss_reasons_are_summed_the_most_expensive_first(history: History, stats: Statistics) -> None:
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


def test_module_hits(history: History, stats: Statistics) -> None:
    conversation_id = history.start_conversation("x")
    for number in range(3):
        add_turn(history, conversation_id, number)
    hits = stats.module_hits()
    assert set(hits) == {"b2:system", "b2:one"}
    assert (hits["b2:system"].hits, hits["b2:system"].misses) == (3, 0)
    assert (hits["b2:one"].hits, hits["b2:one"].misses) == (0, 3)
    assert hits["b2:one"].last_used == history.turns(conversation_id)[-1].created


def test_the_document_of_stats_holds_every_kind_of_row(history: History, stats: Statistics, database: Database) -> None:
    conversation_id = history.start_conversation("x")
    add_turn(history, conversation_id, 1)
    question_id = history.record_question(conversation_id, "y")
    answer = replace(an_answer(conversation_id), grounding=0.25, quoted=True)
    history.record_answer(answer, details(question_id, answer))
    document = json.loads(json.dumps(overview_json(summarise(Library(database), stats, Tiers()))))
    assert (document["answers"], document["grounding"], document["quoted"]) == (2, 0.25, 1)
    assert all(document[rows] for rows in ("reasons", "misses", "points", "weak"))
    assert (document["weak"][0]["question"], document["weak"][0]["quoted"]) == ("y", True)
