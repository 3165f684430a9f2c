"""Measured savings: what is sampled, the second run, what is stored, and what the samples say together."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desks import finish, small_desk, write_pages
from scipy import stats
from waiting import wait_until

from app.answering import savings_meter
from app.answering.savings_meter import Sampled, SavingsMeter, compared
from app.desk.overview import ENOUGH, summarise_savings
from app.desk.service import Service
from app.domain.answers import Answer
from app.domain.statistics import Savings, SavingsSample
from app.storage.conversation_care import ConversationCare
from app.storage.database import open_database
from app.storage.history import History
from app.storage.statistics import Statistics
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Generation, Request, Timings, Usage
from cache.errors import EngineBusy
from cache.prompt.parts import Text

NOW = datetime(2026, 3, 12, 10, 42, tzinfo=UTC)
QUESTION = "How long do returns take?"
SAMPLE = SavingsSample(
    created=NOW,
    question_id=None,
    policy="fast",
    prompt_tokens=1000,
    computed_tokens=100,
    first_token_ms=200.0,
    without_reuse_ms=2000.0,
    likeness=1.0,
)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(savings_meter, "QUIET_S", 0.05)
    monkeypatch.setattr(savings_meter, "_LOOK_S", 0.01)


@contextmanager
def measuring(folder: Path, **changes: object) -> Iterator[Service]:
    with small_desk(folder / "data", pages=write_pages(folder / "pages"), **{"savings_sample": 1.0, **changes}) as desk:  # type: ignore[arg-type]
        desk.measure_savings()
        yield desk


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    with measuring(tmp_path_factory.mktemp("desk")) as desk:
        yield desk


@pytest.fixture
def desk(measured):
    """A desk that measures every answer and has nothing left to do."""
    yield measured
    measured._answering.meter.clear()
    wait_until(lambda: measured.engine.is_idle)


def samples(desk: Service) -> list[SavingsSample]:
    return Statistics(desk.database).samples(NOW - timedelta(days=9999), datetime.now(UTC) + timedelta(days=1))


def measured_answer(desk: Service) -> tuple[Answer, SavingsSample]:
    before = len(samples(desk))
    answer = finish(desk, QUESTION)
    wait_until(lambda: len(samples(desk)) > before)
    return answer, samples(desk)[0]


def test_an_answer_is_computed_again_without_reuse(desk):
    answer, sample = measured_answer(desk)
    usage = answer.usage
    assert (sample.prompt_tokens, sample.computed_tokens) == (usage.prompt_tokens, usage.computed)
    assert sample.computed_tokens < sample.prompt_tokens
    assert sample.first_token_ms == pytest.approx(answer.timings.load + answer.timings.prefill, abs=0.01)
    assert sample.without_reuse_ms > 0
    assert sample.likeness is not None
    assert 0 <= sample.likeness <= 1
    question = desk.turns(answer.conversation_id)[0]
    assert (sample.question_id, sample.policy) == (question.message_id, answer.policy)


def test_samples_are_read_by_time_and_outlive_their_question(database_url):
    with closing(open_database(database_url)) as database:
        history, kept = History(database), Statistics(database)
        asked = history.record_question(history.start_conversation(QUESTION), QUESTION)
        late = replace(SAMPLE, created=NOW + timedelta(hours=1), likeness=None)
        for sample in (replace(SAMPLE, question_id=asked), replace(late, question_id="gone")):
            kept.add_sample(sample)
        assert kept.samples(NOW, late.created) == [replace(SAMPLE, question_id=asked)]
        ConversationCare(database).erase("operator")
        assert kept.samples(NOW, late.created + timedelta(seconds=1)) == [late, SAMPLE]


def test_what_was_exact_is_the_same_and_words_drawn_by_chance_are_not_compared(tmp_path):
    with measuring(tmp_path, policy="exact") as desk:
        assert measured_answer(desk)[1].likeness == 1.0
        desk._answering.settings = desk.settings.model_copy(update={"temperature": 1.0})
        assert measured_answer(desk)[1].likeness is None


def test_what_was_stopped_or_took_too_long_is_not_compared(desk):
    """Was wrong once: what took too long was compared with the whole answer."""
    request = Request(plan=desk.engine.arrange([Text(text="How long?")]), sampling=Sampling(max_tokens=3))
    generation = Generation()
    usage, timings = Usage(prompt_tokens=0), Timings()
    fields: dict[str, Any] = {"text": "", "tokens": (), "modules": (), "exact": True}
    generation.deliver(Completion(finish_reason="cancelled", usage=usage, timings=timings, **fields))
    assert generation.completion.finish_reason == "cancelled"
    kept: list[SavingsSample] = []
    SavingsMeter(desk.engine, 1.0, kept.append)._measure(Sampled(request, generation, "exact", "q"))
    assert kept == []
    generation = desk.engine.submit(request)
    completion, sampled = generation.completion, Sampled(request, generation, "exact", "q")
    assert compared(sampled, completion, completion).likeness == 1.0
    late = replace(completion, finish_reason="timeout")
    assert compared(sampled, late, completion).likeness is None


@pytest.mark.parametrize(("share", "reuse", "starts"), [(0.0, "on", True), (1.0, "off", True), (1.0, "on", False)])
def test_what_is_not_to_be_sampled_is_not(desk, share, reuse, starts, monkeypatch):
    meter = desk._answering.meter
    monkeypatch.setattr(meter, "_share", share)
    if not starts:
        monkeypatch.setattr(meter, "_thread", None)
    put: list[object] = []
    monkeypatch.setattr(meter._sampled, "put_nowait", put.append)
    finish(desk, QUESTION, reuse=reuse)
    assert not put


def test_a_busy_engine_is_asked_again(desk, monkeypatch):
    compute, asked = desk.engine.compute_idle, []

    def busy_at_first(request: Request) -> Generation:
        asked.append(request)
        generation = Generation()
        generation.deliver(EngineBusy("something else"))
        return generation if len(asked) < 3 else compute(request)

    monkeypatch.setattr(desk.engine, "compute_idle", busy_at_first)
    measured_answer(desk)
    assert len(asked) == 3


def test_nothing_is_computed_again_while_modules_are_encoded(desk, monkeypatch):
    compute, busy, asked = desk.engine.compute_idle, [True] * 20, []

    def recording(request: Request) -> Generation:
        asked.append(len(busy))
        return compute(request)

    monkeypatch.setattr(desk.engine, "compute_idle", recording)
    monkeypatch.setattr(Engine, "is_idle", property(lambda engine: not (busy and busy.pop())))
    measured_answer(desk)
    assert asked == [0]


def test_few_prompts_wait_and_are_forgotten_with_a_document(tmp_path, monkeypatch):
    with measuring(tmp_path) as desk:
        meter = desk._answering.meter
        monkeypatch.setattr(meter, "_is_quiet", lambda: meter._closing.wait())
        for _ in range(savings_meter.WAITING + 3):
            finish(desk, QUESTION)
        assert meter._sampled.qsize() == savings_meter.WAITING
        desk.forget("returns.md")
        assert meter._sampled.empty()


def test_what_samples_say_together_if_they_are_enough():
    times = [1000.0, 1500.0, 1800.0, 2000.0, 2000.0, 2200.0, 2500.0, 3000.0]
    likeness = [1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.7, None]
    some = [replace(SAMPLE, without_reuse_ms=time, likeness=alike) for time, alike in zip(times, likeness, strict=True)]
    savings = summarise_savings(some)
    assert (savings.samples, savings.compared) == (8, 7)
    assert savings.saved_ms is not None
    assert savings.saved_ms.value == pytest.approx(1800.0)
    # t(7; .975) = 2.3646, standard deviation of the times 607.1
    assert savings.saved_ms.high - savings.saved_ms.value == pytest.approx(2.3646 * 607.1 / 8**0.5, rel=1e-3)
    assert savings.times_sooner is not None
    assert savings.times_sooner.value == pytest.approx(10.0)
    assert (savings.times_sooner.low, savings.times_sooner.high) == pytest.approx((5.0, 15.0))
    assert savings.tokens_reused == pytest.approx(0.9)
    assert savings.same is not None
    assert savings.same.value == pytest.approx(5 / 7)
    assert (savings.same.low, savings.same.high) == pytest.approx((0.3589, 0.9178), abs=1e-3)
    assert savings.likeness == pytest.approx(0.6)
    assert summarise_savings([]) == Savings()
    few = summarise_savings([SAMPLE] * (ENOUGH - 1))
    assert (few.saved_ms, few.times_sooner) == (None, None)
    assert few.first_token_ms == 200.0
    equal = summarise_savings([SAMPLE] * ENOUGH).saved_ms
    assert equal is not None
    assert (equal.low, equal.high) == pytest.approx((1800.0, 1800.0))


@pytest.mark.parametrize("number", [8, 9, 30, 401])
def test_the_intervals_are_those_of_scipy(number):
    rng = np.random.default_rng(number)
    times = rng.normal(2000, 400, number).tolist()
    some = [replace(SAMPLE, without_reuse_ms=time, likeness=float(time > 1900)) for time in times]
    savings = summarise_savings(some)
    saved = [one.saved_ms for one in some]
    sooner = [one.without_reuse_ms / one.first_token_ms for one in some]
    found = [(one.low, one.high) for one in (savings.saved_ms, savings.times_sooner, savings.same) if one is not None]
    assert found == [
        pytest.approx(stats.t.interval(0.95, number - 1, loc=np.mean(saved), scale=stats.sem(saved)), rel=1e-3),
        pytest.approx(stats.quantile_test(sooner, q=np.median(sooner), p=0.5).confidence_interval(0.95)),
        pytest.approx(stats.binomtest(sum(time > 1900 for time in times), number).proportion_ci(0.95, "wilson")),
    ]
