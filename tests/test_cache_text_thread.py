"""Text is made on a thread of its own: in order, one end for each answer, and no thread is left."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

import pytest
from test_cache_engine import plan_of
from test_cache_priority import a_core
from test_cache_restart import RESTARTED, broken_once
from tiny import ByteTokenizer, build
from waiting import wait_until

from cache.decoding.sampling import Sampling, TextStream
from cache.engine.engine import Engine
from cache.engine.engine_core import EngineCore
from cache.engine.request import Completion, Generation, Request
from cache.engine.text_delivery import AnswerText, TextDelivery, TextThread
from cache.engine.waiting import Waiting
from cache.errors import CacheError, EngineStopped
from cache.memory.store import Store

NO_TEXT = r"^the text of the answer could not be computed: ask again \(the log has the cause\)$"
FOR_EVER = 3000


class HeldTokenizer(ByteTokenizer):
    """Makes text while `gate` is set, and none of `strange` tokens. threads: which have made text."""

    def __init__(self) -> None:
        self.gate, self.asked = threading.Event(), threading.Event()
        self.gate.set()
        self.threads: set[threading.Thread] = set()
        self.strange: set[int] = set()

    def decode(self, tokens: Sequence[int]) -> str:
        self.threads.add(threading.current_thread())
        self.asked.set()
        self.gate.wait()
        if self.strange.intersection(tokens):
            raise ZeroDivisionError("no text for this")
        return super().decode(tokens)

    @property
    def names(self) -> set[str]:
        return {thread.name for thread in self.threads}


class Recorded(Generation):
    def __init__(self) -> None:
        super().__init__()
        self.delivered: list[str | Completion | CacheError] = []
        self.made_of: list[list[int]] = []

    def deliver(self, event: str | Completion | CacheError) -> None:
        self.delivered.append(event)
        self.made_of.append([*self.tokens])
        super().deliver(event)

    @property
    def end(self) -> str | Completion | CacheError:
        *pieces, end = self.delivered
        assert all(isinstance(piece, str) for piece in pieces)
        return end

    @property
    def pieces(self) -> str:
        return "".join(event for event in self.delivered if isinstance(event, str))


@pytest.fixture
def tokenizer():
    return HeldTokenizer()


@pytest.fixture
def engine(tokenizer):
    model = build()
    model.tokenizer = tokenizer
    engine = Engine(model, memory=8 << 20).start()
    yield engine
    tokenizer.gate.set()
    engine.close()


def request_of(number: int = 0, tokens: int = 6, stop: tuple[str, ...] = ()) -> Request:
    sampling = Sampling(max_tokens=tokens, temperature=1.0, seed=number, stop=stop)
    return Request(plan=plan_of(f"Question {number}"), sampling=sampling)


def ask(engine: Engine, number: int = 0, tokens: int = 6, stop: tuple[str, ...] = ()) -> Recorded:
    generation = Recorded()
    engine.submit(request_of(number, tokens, stop), generation)
    return generation


def computed(engine: Engine) -> None:
    wait_until(lambda: on_its_thread(engine) == (0, 0))


def on_its_thread(engine: Engine) -> tuple[int, int]:
    """How many requests run and wait, between two passes, behind what was submitted."""
    return engine.call(lambda _: engine.load())


def opened_by(monkeypatch: pytest.MonkeyPatch, tokenizer: HeldTokenizer, *names: str) -> None:
    def opening(whole: Callable[[TextThread], None]) -> Callable[[TextThread], None]:
        def opened(texts: TextThread) -> None:
            tokenizer.gate.set()
            whole(texts)

        return opened

    for name in names:
        monkeypatch.setattr(TextThread, name, opening(getattr(TextThread, name)))


def test_the_engine_does_not_wait_for_text_which_comes_in_order(engine, tokenizer):
    tokenizer.gate.clear()
    began = time.perf_counter()
    asked = [ask(engine, number, tokens=12) for number in range(16)]
    computed(engine)
    elapsed = (time.perf_counter() - began) * 1e3
    assert not any(one.delivered for one in asked)
    tokenizer.gate.set()
    for one in asked:
        whole = one.completion
        assert whole.tokens is not None
        assert one.end is whole
        assert one.pieces == whole.text == ByteTokenizer().decode(whole.tokens) != ""
        assert whole.usage.completion_tokens == len(whole.tokens)
        assert 0 < whole.timings.ttft <= whole.timings.total < elapsed
    assert tokenizer.names == {"warmdesk-text"}


def test_text_that_cannot_be_made_ends_its_own_answer(engine, tokenizer, caplog):
    expected = [ask(engine, number).completion for number in range(3)]
    assert all(one.tokens for one in expected)
    known = [set(one.tokens or ()) for one in expected]
    tokenizer.strange = {min(known[1] - known[0] - known[2])}
    with caplog.at_level(logging.CRITICAL):
        asked = [ask(engine, number) for number in range(3)]
        with pytest.raises(CacheError, match=NO_TEXT):
            _ = asked[1].completion
    assert isinstance(asked[1].end, CacheError)
    assert [asked[number].completion.tokens for number in (0, 2)] == [expected[0].tokens, expected[2].tokens]
    assert engine.num_restarts == 0
    engine.call(Store.check_integrity)


def test_text_that_cannot_be_made_at_the_last_token_is_an_error(engine, tokenizer, caplog):
    """The engine has ended the answer before anybody knows."""
    tokenizer.gate.clear()
    asked = ask(engine, tokens=1)
    computed(engine)
    tokenizer.strange = set(range(300))
    with caplog.at_level(logging.CRITICAL):
        tokenizer.gate.set()
        with pytest.raises(CacheError, match=NO_TEXT):
            _ = asked.completion
    assert len(asked.delivered) == 1


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_an_answer_without_text_takes_no_more_passes(is_cancelled, caplog):
    """Was wrong once: where the answer had just been cancelled, the engine failed and began anew."""
    core, tokenizer = a_core(), HeldTokenizer()
    core.model.tokenizer = tokenizer
    generation = Recorded()
    core.inbox.append(Waiting(request_of(tokens=FOR_EVER), generation, time.perf_counter()))
    core.step()
    generation.is_cancelled = is_cancelled
    tokenizer.strange = set(range(300))
    with caplog.at_level(logging.CRITICAL):
        core.step()
    assert core.load == (0, 0)
    assert isinstance(generation.end, CacheError)
    core.store.check_integrity()


def test_a_cancelled_answer_has_all_its_text(engine, tokenizer):
    tokenizer.gate.clear()
    asked = ask(engine, tokens=FOR_EVER)
    tokenizer.asked.wait()
    asked.cancel()
    computed(engine)
    assert not asked.delivered
    tokenizer.gate.set()
    whole = asked.completion
    assert whole.finish_reason == "cancelled"
    assert asked.pieces == whole.text == ByteTokenizer().decode(whole.tokens or ()) != ""


def test_closing_delivers_what_was_computed_and_leaves_no_thread(engine, tokenizer, monkeypatch):
    tokenizer.gate.clear()
    done, under_way = ask(engine), ask(engine, tokens=FOR_EVER)
    wait_until(lambda: on_its_thread(engine) == (1, 0))
    opened_by(monkeypatch, tokenizer, "flush", "close")
    engine.close()
    assert (isinstance(done.end, Completion), isinstance(under_way.end, EngineStopped)) == (True, True)
    assert done.pieces == done.completion.text
    assert under_way.pieces
    assert not any(thread.is_alive() for thread in tokenizer.threads)


def test_a_restart_delivers_what_was_computed_and_goes_on_with_one_thread(engine, tokenizer, monkeypatch, caplog):
    tokenizer.gate.clear()
    done, under_way = ask(engine), ask(engine, tokens=FOR_EVER)
    wait_until(lambda: on_its_thread(engine) == (1, 0))
    opened_by(monkeypatch, tokenizer, "flush", "close")
    broken_once(monkeypatch, EngineCore, "step")
    with caplog.at_level(logging.CRITICAL), pytest.raises(CacheError, match=RESTARTED):
        _ = under_way.completion
    assert isinstance(under_way.end, CacheError)
    assert isinstance(done.end, Completion)
    assert ask(engine).completion.text == done.completion.text
    assert sum(thread.is_alive() for thread in tokenizer.threads) == 1
    engine.close()
    assert not any(thread.is_alive() for thread in tokenizer.threads)


def test_who_settles_finds_answers_over(engine, tokenizer, monkeypatch):
    tokenizer.gate.clear()
    opened_by(monkeypatch, tokenizer, "flush")
    asked = ask(engine)
    engine.settle()
    assert asked.is_over


def test_a_stop_string_is_found_before_the_next_pass(engine, tokenizer):
    whole = ask(engine, tokens=24).completion
    letter = next(letter for letter in whole.text[2:] if letter.isascii() and letter.isprintable())
    tokenizer.threads.clear()
    asked = ask(engine, tokens=24, stop=(letter,))
    cut = asked.completion
    assert cut.tokens is None
    assert asked.end is cut
    assert asked.pieces == cut.text == whole.text[: whole.text.index(letter)]
    assert cut.usage.completion_tokens == list(whole.tokens or ()).index(ord(letter)) + 1
    assert tokenizer.names == {"warmdesk-engine"}


def test_text_is_made_of_the_tokens_that_were_there():
    """The answer grows while earlier tokens wait to become text."""

    class Later(TextDelivery):
        def __init__(self) -> None:
            self.jobs: list[Callable[[], None]] = []

        def run(self, job: Callable[[], None]) -> None:
            self.jobs.append(job)

    later, generation, answer = Later(), Recorded(), list[int]()
    text = AnswerText(TextStream(ByteTokenizer(), ()), generation, later)
    for token in b"abc":
        answer.append(token)
        text.update(answer, final=False)
    for job in later.jobs:
        job()
    assert generation.delivered == ["a", "b", "c"]
    assert generation.made_of == [[*b"a"], [*b"ab"], [*b"abc"]]


def test_jobs_run_in_order_and_one_that_fails_stops_no_other(caplog):
    texts, done = TextThread(), list[int]()
    texts.flush()
    texts.close()
    with caplog.at_level(logging.CRITICAL):
        for number in range(100):
            texts.run(lambda number=number: done.append(number))  # type: ignore[misc]
            texts.run(lambda: [][0])
        texts.flush()
        assert done == [*range(100)]
        texts.run(lambda: done.append(100))
        texts.close()
    assert done == [*range(101)]
