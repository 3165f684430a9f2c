"""An engine in a process of its own does what one in a thread does, and is begun anew when its process ends. One engine
for all tests, in the order of this file: the last one that uses it closes it.
"""

import logging
import os
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from engine_processes import fork_engines, spec_of
from tiny import make_segment
from waiting import PATIENCE_S, has_ended, wait_until

from cache.decoding.sampling import Sampling
from cache.engine.request import Generation, Limits, Request
from cache.engine.restarts import RESTING
from cache.errors import CacheError, EngineStopped, ModelError, PromptError
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Plan, Span
from cache.serving.engine_process import Child, EngineProcess
from cache.serving.engine_server import load_engine
from cache.serving.exchange import Connection, Exchange
from cache.serving.interface import EngineInterface
from cache.serving.messages import Begun, Call, EngineSpec, Failed, ToEngine, arguments_of, decoded, encoded, read_all

MODULES = [
    TextModule(name="one", pieces=(Text(text="Returns take thirty days. "),)),
    TextModule(name="two", pieces=(Text(text="Gift cards last five years. "),)),
]
PROMPT = [*MODULES, Text(text="How long?")]
FOREVER = 3000


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    return tmp_path_factory.mktemp("modules")


@pytest.fixture(scope="module")
def engine(tiny_folder, modules):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cache.engine.restarts.AT_ONCE", 100)  # no rest, but where a test wants one
        patched.setattr("cache.engine.restarts.FIRST_REST_S", 0.1)
        engine = EngineProcess(spec_of(tiny_folder, modules, memory=4 << 20, limits=Limits(running=8, hang_s=4.0)))
        fork_engines(patched)  # the next ones
        yield engine
        engine.close()


def ask(
    engine: EngineInterface, tokens: int = 12, prompt: Sequence[TextModule | Text] = PROMPT, **options: object
) -> Generation:
    return engine.submit(Request(plan=engine.arrange(prompt), sampling=Sampling(max_tokens=tokens), **options))  # type: ignore[arg-type]


def test_it_does_what_one_in_a_thread_does(engine, tiny_folder, tmp_path):
    local = load_engine(spec_of(tiny_folder, tmp_path, memory=4 << 20))
    both: list[EngineInterface] = [engine, local]
    assert engine.info == local.info
    assert engine.module_room == local.module_room
    assert engine.arrange(PROMPT) == local.arrange(PROMPT)
    for one in both:
        assert one.is_running
        assert one.load() == (0, 0)
        assert one.num_restarts == 0
        assert one.seconds_per_token > 0
    for reuse in ("on", "prefix", "off"):
        there, here = (ask(one, reuse=reuse).completion for one in both)
        assert there.tokens == here.tokens
        assert (there.text, there.finish_reason, there.exact) == (here.text, here.finish_reason, here.exact)
        assert [use.key for use in there.modules] == [use.key for use in here.modules]
    assert ask(engine).completion.usage.computed < there.usage.prompt_tokens
    first = ask(engine, reuse="off").completion
    for one in both:
        one.settle()
        request = Request(plan=one.arrange(PROMPT), sampling=Sampling(max_tokens=12))
        assert one.compute_idle(request).completion.tokens == first.tokens
    local.close()


def test_several_answers_do_not_get_into_each_other(engine):
    expected = [ask(engine, tokens).completion.text for tokens in (5, 20, 60)]
    together = [ask(engine, tokens) for tokens in (5, 20, 60)]
    pieces = [list(generation) for generation in together]
    assert len(pieces[-1]) > 10
    assert ["".join(some) for some in pieces] == [one.completion.text for one in together] == expected


def test_a_given_answer_is_said_as_it_is(engine):
    """With its end, and without one as far as it goes."""
    for given, tokens, reason in (((1, 2, 3, 299), 9, "stop"), ((1, 2, 3), 3, "length")):
        sampling = Sampling(max_tokens=tokens, temperature=1.0, given=given)
        completion = engine.submit(Request(plan=engine.arrange(PROMPT), sampling=sampling)).completion
        assert (completion.tokens, completion.finish_reason) == ((1, 2, 3), reason)


def test_an_answer_is_cancelled(engine):
    generation = ask(engine, tokens=FOREVER)
    pieces = []
    for piece in generation:
        pieces.append(piece)
        generation.cancel()
    assert generation.completion.finish_reason == "cancelled"
    assert "".join(pieces) == generation.completion.text


def test_refusals_arrive_as_themselves(engine):
    strange = Plan(spans=(Span(start=0, tokens=(1, 300, 2)),))
    with pytest.raises(PromptError, match="the prompt contains token 300, but the model has only 300 tokens"):
        _ = engine.submit(Request(plan=strange)).completion
    with pytest.raises(ValueError, match="tenant"):
        engine.encode([], "no tenant")
    with pytest.raises(ValueError, match="does not support teacher forcing"):
        engine.submit(Request(plan=engine.arrange(PROMPT), teacher_forced=(1,)))


def test_modules_are_encoded_shown_and_forgotten(engine):
    good, bad = make_segment("good", "g" * 40), make_segment("bad", "b" * 5000)
    key = engine.key(good, "guests")
    encoded = engine.encode([good, bad], "guests").result(60)
    assert encoded.computed == 1
    assert [(one.name, type(error)) for one, error in encoded.failed.items()] == [("bad", PromptError)]
    assert engine.modules("guests") == {key}
    engine.flush()
    contents = engine.contents()
    assert {tier for tier, header, _ in contents.modules if header.key == key} == {"device", "disk"}
    assert contents.num_bytes.keys() == contents.capacity.keys() == {"device", "disk"}
    assert engine.contents(with_modules=False) == replace(contents, modules=())
    engine.settle()
    assert engine.forget({key}) == 1
    assert engine.modules("guests") == frozenset()


def test_modules_are_prefetched_and_a_prefetch_is_cancelled(engine):
    wanted, dropped = make_segment("wanted", "w" * 40), make_segment("dropped", "d" * 40)
    answer = ask(engine, tokens=FOREVER)
    next(iter(answer))
    cancelled = engine.prefetch([dropped], "typing")
    engine.prefetch([wanted, wanted], "typing")
    cancelled.cancel()
    assert engine.modules("typing") == frozenset(), "not while a request runs"
    answer.cancel()
    wait_until(lambda: engine.is_idle)
    assert engine.modules("typing") == {engine.key(wanted, "typing")}
    cancelled.cancel()


def test_a_module_is_taken_out_of_memory_brought_back_and_verified(engine):
    segment = make_segment("page", "p" * 40)
    key = engine.key(segment)
    engine.bring_to_device(segment)
    engine.keep({key})
    assert engine.evict(key)
    engine.flush()
    assert {tier for tier, header, _ in engine.contents().modules if header.key == key} == {"disk"}
    assert engine.verify(segment).largest_difference == pytest.approx(0, abs=1e-5)


def test_what_was_computed_for_a_tenant_is_dropped(engine):
    for _ in range(2):
        _ = ask(engine, tenant="visitor", module_tenant="public").completion
    assert engine.modules_of_prefixes()
    assert all(use.hits for use in engine.prefix_uses(5))
    assert engine.drop_prefixes("visitor")
    assert ask(engine, tenant="visitor", module_tenant="public").completion.usage.prefix == 0


# --- ends ------------------------------------------------------------------------------------------------------


def test_a_process_that_is_killed_is_begun_anew(engine, monkeypatch, caplog):
    sent: list[bytes] = []
    send = Connection.send
    monkeypatch.setattr(Connection, "send", lambda self, frame: (sent.append(frame), send(self, frame))[1])
    expected = ask(engine).completion.tokens
    engine.keep({"b2:0"})
    first = engine.pid
    answer = ask(engine, tokens=FOREVER)
    next(iter(answer))
    os.kill(first, signal.SIGSTOP)  # so that the answer does not end before the process does
    with caplog.at_level(logging.CRITICAL), ThreadPoolExecutor(1) as pool:
        settling = pool.submit(engine.settle)
        wait_until(lambda: engine._exchange.num_open >= 2)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(
            CacheError, match=r"^the engine failed and is restarting: ask again \(the log has the cause\)$"
        ):
            _ = answer.completion
        with pytest.raises(CacheError, match="ask again"):
            settling.result(60)
        held = ask(engine)
        assert not engine.is_running
        assert held.completion.tokens == expected, "asked while another process was begun"
    assert engine.is_running
    assert engine.num_restarts == 1
    assert engine.pid != first
    calls = [message for message in read_all(iter(sent), ToEngine) if isinstance(message, Call)]
    keeping = [decoded(call.arguments, arguments_of("keep")) for call in calls if call.name == "keep"]
    assert keeping == [({"b2:0"},)] * 2, "the new process is told, too"
    assert {use.source for use in held.completion.modules} == {"disk"}
    assert {use.key for use in held.completion.modules} == {
        engine.key(one) for one in engine.arrange(PROMPT).segments()
    }
    monkeypatch.setattr("cache.engine.restarts.MOST_LOST", 1)
    with pytest.raises(CacheError, match=r"^the engine has failed twice during this prompt: ask something"):
        _ = ask(engine).completion
    assert ask(engine, prompt=PROMPT[::-1]).completion.tokens


def test_one_that_says_nothing_keeps_nobody_waiting_and_is_begun_anew_after_a_rest(engine, monkeypatch, caplog):
    """Was wrong once: one that hung was never ended, and one that failed again and again stayed down for good."""
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr("cache.engine.restarts.AT_ONCE", 1)
    monkeypatch.setattr("cache.serving.exchange.CONTENTS_S", 0.1)
    monkeypatch.setattr("cache.serving.engine_process.STATE_S", 0.5)
    begin, rest, failures, in_rest = Child.begin, Exchange.rest, iter([True]), list[str]()

    def begun(child: Child, spec: EngineSpec) -> Begun:
        if next(failures, False):
            raise CacheError("memory is short for a minute")
        return begin(child, spec)

    def rested(exchange: Exchange, why: str) -> None:
        rest(exchange, why)
        in_rest.append(end_of(ask(engine)))

    monkeypatch.setattr(Child, "begin", begun)
    monkeypatch.setattr(Exchange, "rest", rested)
    first, restarts = engine.pid, engine.num_restarts
    os.kill(first, signal.SIGSTOP)
    assert not engine.is_running
    with pytest.raises(CacheError, match=r"^the engine's process was busy for 0\.1 s: try again$"):
        engine.contents()
    with pytest.raises(CacheError, match="is restarting"):
        engine.settle()
    wait_until(lambda: engine.num_restarts > restarts and engine.is_running)
    assert set(in_rest) == {RESTING}
    assert has_ended(first)
    assert ask(engine).completion.tokens


def end_of(answer: Generation) -> str:
    try:
        return answer.completion.finish_reason
    except CacheError as error:
        return str(error)


def test_one_whose_disk_hangs_is_not_running_and_is_begun_anew(engine, modules, caplog):
    """Was wrong once: it counted as running for ever."""
    caplog.set_level(logging.CRITICAL)
    prompt = [*MODULES, Text(text="How old?")]
    expected, first = ask(engine, prompt=prompt).completion.tokens, engine.pid
    engine.settle()
    for segment in engine.arrange(prompt).segments():
        assert engine.evict(engine.key(segment))
    engine.drop_prefixes("public")
    for file in modules.glob("*.safetensors"):
        file.unlink()
        os.mkfifo(file)  # who opens it waits
    lost = ask(engine, prompt=prompt)
    wait_until(lambda: not engine.is_running)
    for file in modules.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(CacheError, match="is restarting"):
        _ = lost.completion
    wait_until(lambda: engine.is_running)
    assert has_ended(first)
    assert ask(engine, prompt=prompt).completion.tokens == expected


def test_one_without_a_parent_ends_by_itself_and_closing_ends_the_next_too(engine, monkeypatch, caplog):
    """Signals for all processes of a terminal are the parent's."""
    monkeypatch.setattr("cache.serving.engine_process.ENDED_S", PATIENCE_S)
    first, answer = engine.pid, ask(engine, FOREVER, [*MODULES, Text(text="How far?")])
    pieces = iter(answer)
    for ignored in (signal.SIGINT, signal.SIGTERM):
        os.kill(first, ignored)
        assert next(pieces)
    engine._child.connection.close()  # as the system does for a parent that was killed
    with pytest.raises(CacheError, match="is restarting"):
        _ = answer.completion
    assert has_ended(first)
    assert "the engine's process has ended (exit status 0)" in caplog.text
    held = ask(engine, FOREVER)
    wait_until(lambda: engine.pid != first)
    engine.close()
    with pytest.raises(EngineStopped, match="shut down"):
        _ = held.completion
    assert has_ended(engine.pid)
    with pytest.raises(EngineStopped):
        engine.contents()
    assert engine.load() == (0, 0)
    engine.close()


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"^model '.*empty' cannot be loaded .*: check the folder$"):
        EngineProcess(spec_of(tmp_path / "empty", tmp_path))


def test_a_process_that_failed_before_it_was_told_anything_has_said_why(tmp_path):
    ours, theirs = socket.socketpair()
    with theirs:
        Connection(theirs).send(encoded(Failed(0, CacheError("loading the model has failed: no module"))))
    process = SimpleNamespace(socket=ours, has_ended=lambda patience_s: True, end=lambda: "exit status 0")
    with pytest.raises(CacheError, match="no module"):
        Child(process).begin(spec_of(tmp_path, tmp_path))  # type: ignore[arg-type]


def test_a_process_that_cannot_end_is_left_behind(monkeypatch):
    """As one does that waits for a disk."""
    monkeypatch.setattr("cache.serving.child_process.KILLED_S", 0.05)
    child = Child()
    os.kill(child.pid, signal.SIGSTOP)
    with monkeypatch.context() as cannot_end:
        cannot_end.setattr(child._process, "kill", lambda: None)
        assert child.end(0).startswith("killed, but it still waits")
        assert next(child.messages, None) is None, "nobody waits for what it sends"
    child.kill()
    assert child.end(20) == "killed by SIGKILL"


def test_who_sends_to_one_that_reads_nothing_is_not_kept():
    one, other = socket.socketpair()
    connection = Connection(one, 1)
    with other:
        with pytest.raises(OSError):
            connection.send(bytes(16 << 20))
        assert list(connection.frames()) == []


def test_a_connection_ends_also_where_the_other_end_has_not_read_everything():
    """Was wrong once: the reader failed then, and the process of an engine whose parent was killed went on."""
    one, other = socket.socketpair()
    connection = Connection(one)
    connection.send(b"never read")
    Connection(other).send(b"read")
    other.close()
    assert list(connection.frames()) == [b"read"]
    with pytest.raises(OSError):
        connection.send(b"to nobody")
    connection.end_sending()
