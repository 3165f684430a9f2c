"""One bad request, one bad file, one impatient caller: the engine goes on serving everybody else."""

import contextlib
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from test_cache_engine import plan_of
from tiny import build, make_segment
from waiting import wait_until

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Generation, Limits, Request
from cache.errors import CacheError, EngineStopped
from cache.memory.store import Store
from cache.prompt.plan import Segment

SYSTEM = make_segment("system", "You answer from the documents. ")
A = make_segment("a", "Returns take 30 days from delivery.", SYSTEM)
B = make_segment("b", "Gift cards cannot be returned.", SYSTEM)
LONG = make_segment("long", "word " * 600)  # several passes long


def ask(engine: Engine, *parts: Segment | str, session: str | None = None) -> Completion:
    return engine.submit(Request(plan=plan_of(*parts), sampling=Sampling(max_tokens=2), session=session)).completion


def still_serves(engine: Engine) -> None:
    assert ask(engine, SYSTEM, A, "Still there?").usage.prompt_tokens > 0
    engine.call(Store.check_integrity)


def test_what_is_wrong_with_one_call_ends_it_alone(engine):
    """Was wrong once: each of these raised an error on the engine's thread, which stopped it for everybody."""
    for ask_wrongly in (
        lambda: engine.submit(Request(plan=plan_of(A, "?"), tenant="not a tenant")).completion,
        lambda: engine.encode([A], tenant="not a tenant").result(timeout=20),
    ):
        with pytest.raises((CacheError, ValueError)):
            ask_wrongly()
        still_serves(engine)
    for ask_strangely in (
        lambda: engine.encode([Segment(name="empty", tokens=())]).result(timeout=20),
        lambda: engine.submit(Request(plan=plan_of("Hello"), sampling=Sampling(temperature=1e-40))).completion,
        lambda: (
            engine.submit(Request(plan=plan_of("Hello"), sampling=Sampling(temperature=1, seed=1 << 70))).completion
        ),
    ):
        with contextlib.suppress(CacheError, ValueError):
            ask_strangely()
        still_serves(engine)
    engine.encode([SYSTEM, A, B]).cancel()
    engine.settle()
    still_serves(engine)


def test_an_empty_conditioning_prefix_is_harmless(engine):
    """Was wrong once: an empty system text made such a segment, and the engine stopped."""
    with pytest.raises(ValueError, match="no tokens"):
        Segment(name="a", tokens=A.tokens, prefix=Segment(name="system", tokens=()))
    still_serves(engine)


def test_forgetting_a_document_used_twice_in_one_prompt(engine):
    """Was wrong once: the engine stops with "slots lost" after the double free of `PrefixTree.forget`."""
    ask(engine, SYSTEM, A, B, "May I return a gift card?")
    keys = engine.call(lambda store: {store.key(segment, "public") for segment in (A, B)})
    assert engine.call(lambda store: store.forget(keys)) == 2
    still_serves(engine)


def test_a_conversation_outlives_modules_nobody_asked_for():
    """Was wrong once: rows of requests were evicted before modules that were warmed once and never used."""
    model = build()
    engine = Engine(model, memory=400 * model.info.kv.bytes_per_token).start()
    unused = [make_segment(f"m{i}", f"Document {i} that nobody ever asks for") for i in range(20)]
    engine.encode(unused).result(timeout=60)
    for i in range(2):
        for name in ("ann", "bob"):
            said = f"{name} has a question that is his or her own"
            usage = ask(engine, said + "!" * i, session=name).usage
            assert i == 0 or usage.session == len(said), f"{name}'s first turn is gone"
    engine.close()


def test_every_computed_module_has_a_reason(engine):
    """Was wrong once: who waited for a module that another one encoded got no reason."""
    job = engine.encode([LONG])
    engine.call(lambda store: None)  # its first pass is under way
    (use,) = ask(engine, LONG, "?").modules
    job.result(timeout=20)
    assert (use.source, use.miss_reason) == ("computed", "never built")


def test_a_module_forgotten_while_it_is_encoded_stays_forgotten(engine):
    """Was wrong once: what was being encoded was admitted, and written to disk, later."""
    key = engine.call(lambda store: store.key(LONG, "public"))
    job = engine.encode([LONG])
    engine.call(lambda store: None)
    engine.settle()
    engine.forget({key})
    with contextlib.suppress(CancelledError, CacheError):
        job.result(timeout=20)
    assert not engine.call(lambda store: store.has(key))


def test_who_was_there_before_ends_before_something_is_forgotten(engine):
    """Was wrong once: a request that waited was admitted later, and its modules were there again."""
    key = engine.store.key(A)

    def ask_about_a(tokens: int) -> Generation:
        return engine.submit(Request(plan=plan_of(A, "?"), sampling=Sampling(max_tokens=tokens)))

    with ThreadPoolExecutor(2) as pool:
        running = [ask_about_a(40) for _ in range(Limits().running + 2)]  # two of them wait
        first = pool.submit(engine.settle)
        wait_until(lambda: bool(engine._core._to_forget) or first.done())
        later = ask_about_a(2)
        second = pool.submit(engine.settle)
        first.result(20)
        assert engine.forget({key}) == 1
        second.result(20)
        engine.forget({key})
    assert [one.completion.finish_reason for one in running] == ["length"] * len(running)
    assert later.completion.finish_reason == "length"
    assert not engine.call(lambda store: store.has(key))


def test_a_stopped_engine_says_so_to_whoever_forgets():
    engine = Engine(build(), memory=1 << 20).start()
    with ThreadPoolExecutor(2) as pool:
        running = engine.submit(Request(plan=plan_of("Hello"), sampling=Sampling(max_tokens=400)))
        waiting = [pool.submit(engine.settle) for _ in range(2)]
        wait_until(lambda: len(engine._core._to_forget) == 2)
        engine.close()
        for one in waiting:
            with pytest.raises(EngineStopped):
                one.result(20)
    with pytest.raises(EngineStopped):
        _ = running.completion


def test_forgetting_reaches_text_that_was_computed_as_text(engine):
    """Was wrong once: with reuse "prefix" a module's tokens entered the tree without its key, and stayed."""
    request = Request(plan=plan_of(A, "?"), sampling=Sampling(max_tokens=2), reuse="prefix")
    _ = engine.submit(request).completion
    engine.forget({engine.key(A)})
    assert engine.submit(request).completion.usage.prefix == 0


def test_two_readers_of_one_generation_both_end(engine):
    """Was wrong once: "safe to use from any thread", but of two threads that wait only one gets the end."""
    generation = engine.submit(Request(plan=plan_of("Hello"), sampling=Sampling(max_tokens=40)))
    readers = [threading.Thread(target=lambda: generation.completion, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout=3)
    assert not any(reader.is_alive() for reader in readers)


def test_pieces_add_up_to_the_text_of_a_cancelled_answer(engine):
    """Was wrong once: what was held back when a request was cancelled was never delivered."""
    stop = tuple(chr(i) * 60 for i in range(256))  # any last character may begin one
    request = Request(plan=plan_of("Hello"), sampling=Sampling(max_tokens=3000, temperature=1.0, seed=1, stop=stop))
    generation = engine.submit(request)
    pieces = []
    for piece in generation:
        pieces.append(piece)
        generation.cancel()
    assert "".join(pieces) == generation.completion.text


def test_a_check_of_the_store_that_takes_long_is_seldom(monkeypatch):
    """Was wrong once: each wait of the engine's thread began with one, and a question that came meanwhile waited."""
    engine, checks, clock = Engine(build(), memory=4 << 20), [], [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def check(_: Store) -> None:
        checks.append(clock[0])
        clock[0] += 0.5

    monkeypatch.setattr(Store, "check_integrity", check)
    for later in (0.0, 10.0, 39.0, 2.0):
        clock[0] += later
        engine._check_store()
    assert checks == [100.0, 151.5]
    engine.close()
