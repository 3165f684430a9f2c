"""An engine in a process of its own does what one in a thread does, and is begun anew when its process ends."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import make_segment
from waiting import wait_until

from cache.decoding.constraints import Choice, Choices
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
from cache.serving.local_engine import LocalEngine
from cache.serving.messages import Begun, Call, EngineSpec, ToEngine, arguments_of, decoded, read_all

PROMPT = [
    TextModule(name="one", pieces=(Text(text="Returns take thirty days. "),)),
    TextModule(name="two", pieces=(Text(text="Gift cards last five years. "),)),
    Text(text="How long?"),
]
FOREVER = 3000


def spec_of(folder: Path, modules: Path, **changes: object) -> EngineSpec:
    values: dict[str, object] = {
        "model": str(folder),
        "converted": folder.parent,
        "modules": modules,
        "memory": 4 << 20,
        "disk": 1 << 30,
        "limits": Limits(running=8),
        "threads": 1,
        "dtype": torch.float32,
    }
    return EngineSpec(**(values | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def shared(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One process for all tests that leave it alive."""
    engine = EngineProcess(spec_of(tiny_folder, tmp_path_factory.mktemp("modules")))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def local(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    engine = load_engine(spec_of(tiny_folder, tmp_path_factory.mktemp("modules")))
    yield engine
    engine.close()


def ask(engine: EngineInterface, tokens: int = 12, **options: object) -> Generation:
    return engine.submit(Request(plan=engine.arrange(PROMPT), sampling=Sampling(max_tokens=tokens), **options))  # type: ignore[arg-type]


def test_it_is_an_engine_like_one_in_a_thread(shared: EngineProcess, local: LocalEngine) -> None:
    both: list[EngineInterface] = [shared, local]
    assert shared.info == local.info
    assert shared.module_room == local.module_room
    assert shared.arrange(PROMPT) == local.arrange(PROMPT)
    for engine in both:
        assert engine.is_running
        assert engine.load() == (0, 0)
        assert engine.num_restarts == 0
        assert engine.seconds_per_token > 0


def test_answers_are_the_same_as_in_a_thread(shared: EngineProcess, local: LocalEngine) -> None:
    for reuse in ("on", "prefix", "off"):
        there, here = (ask(engine, reuse=reuse).completion for engine in (shared, local))
        assert there.tokens == here.tokens
        assert (there.text, there.finish_reason, there.exact) == (here.text, here.finish_reason, here.exact)
        assert [use.key for use in there.modules] == [use.key for use in here.modules]
    again = ask(shared).completion
    assert again.tokens == there.tokens or not again.exact
    assert again.usage.computed < again.usage.prompt_tokens


def test_pieces_come_one_after_another_and_are_the_answer(shared: EngineProcess) -> None:
    generation = ask(shared, tokens=60)
    pieces = list(generation)
    assert len(pieces) > 10
    assert "".join(pieces) == generation.completion.text


def test_several_answers_do_not_get_into_each_other(shared: EngineProcess) -> None:
    expected = [ask(shared, tokens).completion.text for tokens in (5, 20, 40)]
    together = [ask(shared, tokens) for tokens in (5, 20, 40)]
    assert [generation.completion.text for generation in together] == expected


def test_an_answer_is_held_to_its_choices(shared: EngineProcess) -> None:
    choices = Choices(choices=(Choice(tokens=(1, 2, 3)), Choice(tokens=(4, 5))), stop=299, most=1)
    sampling = Sampling(max_tokens=choices.longest, choices=choices)
    completion = shared.submit(Request(plan=shared.arrange(PROMPT), sampling=sampling)).completion
    assert completion.tokens in ((1, 2, 3), (4, 5))


def test_an_answer_is_cancelled(shared: EngineProcess) -> None:
    generation = ask(shared, tokens=FOREVER)
    pieces = []
    for piece in generation:
        pieces.append(piece)
        generation.cancel()
    assert generation.completion.finish_reason == "cancelled"
    assert "".join(pieces) == generation.completion.text


def test_refusals_arrive_as_themselves(shared: EngineProcess) -> None:
    strange = Plan(spans=(Span(start=0, tokens=(1, 300, 2)),))
    with pytest.raises(PromptError, match="the prompt has token 300, the model has 300"):
        _ = shared.submit(Request(plan=strange)).completion
    with pytest.raises(ValueError, match="tenant"):
        shared.encode([], "no tenant")
    with pytest.raises(ValueError, match="cannot read a given answer"):
        shared.submit(Request(plan=shared.arrange(PROMPT), teacher_forced=(1,)))


def test_modules_are_encoded_shown_and_forgotten(shared: EngineProcess) -> None:
    good, bad = make_segment("good", "g" * 40), make_segment("bad", "b" * 5000)
    key = shared.key(good, "guests")
    encoded = shared.encode([good, bad], "guests").result(60)
    assert encoded.computed == 1
    assert [(one.name, type(error)) for one, error in encoded.failed.items()] == [("bad", PromptError)]
    assert shared.modules("guests") == {key}
    shared.flush()
    contents = shared.contents()
    assert {tier for tier, header, _ in contents.modules if header.key == key} == {"device", "disk"}
    assert contents.num_bytes.keys() == contents.capacity.keys() == {"device", "disk"}
    assert shared.contents(with_modules=False) == replace(contents, modules=())
    shared.settle()
    assert shared.forget({key}) == 1
    assert shared.modules("guests") == frozenset()


def test_modules_are_prefetched_and_a_prefetch_is_cancelled(shared: EngineProcess) -> None:
    wanted, dropped = make_segment("wanted", "w" * 40), make_segment("dropped", "d" * 40)
    answer = ask(shared, tokens=FOREVER)
    next(iter(answer))
    cancelled = shared.prefetch([dropped], "typing")
    shared.prefetch([wanted, wanted], "typing")
    cancelled.cancel()
    assert shared.modules("typing") == frozenset(), "not while a request runs"
    answer.cancel()
    while not shared.is_idle:
        threading.Event().wait(0.01)
    assert shared.modules("typing") == {shared.key(wanted, "typing")}
    cancelled.cancel()


def test_a_module_is_taken_out_of_memory_brought_back_and_verified(shared: EngineProcess) -> None:
    segment = make_segment("page", "p" * 40)
    key = shared.key(segment)
    shared.bring_to_device(segment)
    shared.keep({key})
    assert shared.evict(key)
    shared.flush()
    tiers = {tier for tier, header, _ in shared.contents().modules if header.key == key}
    assert tiers == {"disk"}
    assert shared.verify(segment).largest_difference == pytest.approx(0, abs=1e-5)
    shared.keep(frozenset())


def test_what_was_computed_for_a_tenant_is_dropped(shared: EngineProcess) -> None:
    for _ in range(2):
        _ = ask(shared, tenant="visitor", module_tenant="public").completion
    assert shared.modules_of_prefixes()
    assert all(use.hits for use in shared.prefix_uses(5))
    assert shared.drop_prefixes("visitor")
    assert ask(shared, tenant="visitor", module_tenant="public").completion.usage.prefix == 0


def test_an_idle_engine_computes_a_request_again(shared: EngineProcess) -> None:
    first = ask(shared, reuse="off").completion
    shared.settle()
    assert (
        shared.compute_idle(Request(plan=shared.arrange(PROMPT), sampling=Sampling(max_tokens=12))).completion.tokens
        == first.tokens
    )


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"^model '.*empty' cannot be loaded .*: check the folder$"):
        EngineProcess(spec_of(tmp_path / "empty", tmp_path))


# --- ends ------------------------------------------------------------------------------------------------------


def engine_in(modules: Path, tiny_folder: Path) -> EngineProcess:
    return EngineProcess(spec_of(tiny_folder, modules, kv_storage="int8", host_memory=1 << 20))


@pytest.fixture(scope="module")
def engine(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """For two tests: the first has its process begun anew, the second closes it."""
    engine = engine_in(tmp_path_factory.mktemp("modules"), tiny_folder)
    yield engine
    engine.close()


def test_a_process_that_is_killed_is_begun_anew(
    engine: EngineProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
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
        while engine._exchange.num_open < 2:
            threading.Event().wait(0.01)
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
    assert engine.contents().capacity.keys() == {"device", "host", "disk"}
    monkeypatch.setattr("cache.engine.restarts.MOST_LOST", 1)
    with pytest.raises(CacheError, match=r"^the engine has failed twice while it computed this prompt: ask something"):
        _ = ask(engine).completion
    assert engine.submit(Request(plan=engine.arrange(PROMPT[::-1]))).completion.tokens


def test_closing_while_another_is_begun_ends_that_too(engine: EngineProcess, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL):
        os.kill(engine.pid, signal.SIGKILL)
        held = ask(engine)
        first = engine.pid
        while engine.pid == first:
            threading.Event().wait(0.01)
        engine.close()
        with pytest.raises(CacheError):
            _ = held.completion
    assert has_ended(engine.pid)


def test_closing_ends_what_runs_and_the_process(shared: EngineProcess) -> None:
    """The last test with this process."""
    answer = ask(shared, tokens=FOREVER)
    next(iter(answer))
    shared.close()
    with pytest.raises(EngineStopped, match="shut down"):
        _ = answer.completion
    assert has_ended(shared.pid)
    with pytest.raises(EngineStopped):
        shared.contents()
    assert shared.load() == (0, 0)
    shared.close()


def test_one_that_says_nothing_keeps_nobody_waiting_and_is_begun_anew_after_a_rest(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Was wrong once: one that hung was never ended, and one that failed again and again stayed down for good."""
    caplog.set_level(logging.CRITICAL)
    for name, value in (("restarts.FIRST_REST_S", 0.1), ("restarts.AT_ONCE", 1)):
        monkeypatch.setattr(f"cache.engine.{name}", value)
    for name in ("CONTENTS_S", "STATE_S"):
        monkeypatch.setattr(f"cache.serving.engine_process.{name}", 0.1)
    begin, rest, failures, in_rest = Child.begin, Exchange.rest, iter([True]), list[str]()

    def begun(child: Child, spec: EngineSpec) -> Begun:
        if next(failures, False):
            raise CacheError("memory is short for a minute")
        return begin(child, spec)

    def rested(exchange: Exchange, why: str) -> None:
        rest(exchange, why)
        in_rest.append(end_of(ask(engine)))

    with closing(EngineProcess(spec_of(tiny_folder, tmp_path, limits=Limits(hang_s=1.0)))) as engine:
        monkeypatch.setattr(Child, "begin", begun)
        monkeypatch.setattr(Exchange, "rest", rested)
        first = engine.pid
        os.kill(first, signal.SIGSTOP)
        assert not engine.is_running
        with pytest.raises(CacheError, match=r"^the engine's process was busy for 0\.1 s: try again$"):
            engine.contents()
        with pytest.raises(CacheError, match="is restarting"):
            engine.settle()
        wait_until(lambda: engine.num_restarts == 1 and engine.is_running)
        assert set(in_rest) == {RESTING}
        assert has_ended(first)
        assert ask(engine).completion.tokens


def end_of(answer: Generation) -> str:
    try:
        return answer.completion.finish_reason
    except CacheError as error:
        return str(error)


def test_one_whose_disk_hangs_is_not_running_and_is_begun_anew(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Was wrong once: it counted as running for ever."""
    caplog.set_level(logging.CRITICAL)
    with closing(EngineProcess(spec_of(tiny_folder, tmp_path, limits=Limits(hang_s=1.0)))) as engine:
        expected, first = ask(engine).completion.tokens, engine.pid
        engine.settle()
        for segment in engine.arrange(PROMPT).segments():
            assert engine.evict(engine.key(segment))
        engine.drop_prefixes("public")
        for file in tmp_path.glob("*.safetensors"):
            file.unlink()
            os.mkfifo(file)  # who opens it waits
        lost = ask(engine)
        wait_until(lambda: not engine.is_running)
        for file in tmp_path.glob("*.safetensors"):
            file.unlink()
        with pytest.raises(CacheError, match="is restarting"):
            _ = lost.completion
        wait_until(lambda: engine.is_running)
        assert has_ended(first)
        assert ask(engine).completion.tokens == expected


def test_a_process_that_cannot_end_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that waits for a disk."""
    monkeypatch.setattr("cache.serving.engine_process.KILLED_S", 0.05)
    child = Child()
    with monkeypatch.context() as cannot_end:
        cannot_end.setattr(subprocess.Popen, "kill", lambda process: None)
        assert child.end(0).startswith("killed, but it waits")
        assert next(child.messages, None) is None, "nobody waits for what it sends"
    child.kill()
    assert child.end(20) == "killed by SIGKILL"


def test_who_sends_to_one_that_reads_nothing_is_not_kept() -> None:
    one, other = socket.socketpair()
    connection = Connection(one, 1)
    with other:
        with pytest.raises(OSError):
            connection.send(bytes(16 << 20))
        assert list(connection.frames()) == []


def test_a_connection_ends_also_where_the_other_end_has_not_read_everything() -> None:
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


PARENT = """
import sys, time
from pathlib import Path
from test_cache_engine_process import FOREVER, ask, spec_of
from cache.engine.restarts import RESTING
from cache.serving.engine_process import Child
from cache.serving.exchange import Connection
from cache.serving.engine_process import EngineProcess

engine = EngineProcess(spec_of(Path(sys.argv[1]), Path(sys.argv[2])))
for piece in ask(engine, FOREVER):
    print(engine.pid, flush=True)
"""


def test_a_parent_that_is_killed_leaves_no_process(tiny_folder: Path, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tiny_folder), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    assert parent.stdout is not None
    assert parent.stderr is not None
    child = int(parent.stdout.readline())
    for ignored in (signal.SIGINT, signal.SIGTERM):
        os.kill(child, ignored)
    assert int(parent.stdout.readline()) == child
    parent.kill()
    parent.stdout.read()
    parent.stderr.read()  # to its end, which comes when the child has closed it, too
    parent.wait()
    wait_until(lambda: has_ended(child))  # files are closed a little before a process has ended


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or is only waited for by whoever adopted it."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
