"""The engine's process: `python -m cache.serving.engine_server FD`, started by `engine_process`.

FD is one end of a socket pair. The process reads requests from it and ends when the other end is closed, for example
because its parent was killed. The parent handles signals.
"""

import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from msgspec import Raw

from cache.engine.encoder import MOST_PREFETCHES, Prefetch
from cache.engine.log_lines import write_log
from cache.engine.request import Completion, Encoded, Generation
from cache.errors import CacheError
from cache.memory.disk import return_freed_memory
from cache.model.loading import load_model
from cache.prompt.plan import Segment
from cache.serving import messages
from cache.serving.child_process import usable_processors
from cache.serving.exchange import Connection
from cache.serving.interface import Cancellable
from cache.serving.local_engine import LocalEngine, start_engine
from cache.serving.messages import EngineSpec, arguments_of, decoded, encoded, read_all

CALLS_AT_ONCE = 32  # threads for calls; most of them wait for the engine
log = logging.getLogger(__name__)


class Outgoing:
    """Sends messages in order, from any thread, without waiting for the other end."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._thread = connection, ThreadPoolExecutor(1, "sending")

    def send(self, message: Any) -> None:
        self._thread.submit(self._connection.send, encoded(message))  # fails without a reader: this process ends soon

    def close(self) -> None:
        self._thread.shutdown()


class SentGeneration(Generation):
    """An answer whose pieces are sent as they are generated."""

    def __init__(self, number: int, outgoing: Outgoing) -> None:
        super().__init__()
        self._number, self._outgoing = number, outgoing

    def deliver(self, event: str | Completion | CacheError) -> None:
        self.is_over = not isinstance(event, str)
        if isinstance(event, str):
            self._outgoing.send(messages.Piece(self._number, event))
        elif isinstance(event, Completion):
            self._outgoing.send(messages.Ended(self._number, event))
        else:
            self._outgoing.send(messages.Failed(self._number, event))


class EngineServer:
    """Executes arriving messages with an engine."""

    def __init__(self, engine: LocalEngine, outgoing: Outgoing) -> None:
        self._engine, self._outgoing = engine, outgoing
        self._calls = ThreadPoolExecutor(CALLS_AT_ONCE, "call")
        self._answers: dict[int, SentGeneration] = {}  # some may have ended
        self._prefetches: deque[tuple[int, Prefetch]] = deque(maxlen=MOST_PREFETCHES)

    def serve(self, arriving: Iterator[Any]) -> None:
        for message in arriving:
            try:
                self._take(message)
            except Exception as error:
                self._fail(message.number, error)
        self._engine.close()
        self._calls.shutdown()

    def _take(self, message: Any) -> None:
        if isinstance(message, messages.Submit):
            self._submit(message)
        elif isinstance(message, messages.Cancel):
            self._cancel(message.number)
        elif isinstance(message, messages.Encode):
            asked = message.modules()
            done = self._engine.encode(asked, message.tenant)
            done.add_done_callback(lambda done: self._encoded(message.number, done, asked))
        elif isinstance(message, messages.Foresee):
            self._prefetches.append((message.number, self._engine.prefetch(message.modules(), message.tenant)))
        elif isinstance(message, messages.Call):
            self._calls.submit(self._call, message)
        elif isinstance(message, messages.AskState):
            self._outgoing.send(state_of(self._engine, message.number))

    def _submit(self, message: messages.Submit) -> None:
        request, generation = message.asked(), SentGeneration(message.number, self._outgoing)
        self._answers = {number: one for number, one in self._answers.items() if not one.is_over}
        self._answers[message.number] = generation
        (self._engine.compute_idle if message.is_idle else self._engine.submit)(request, generation)

    def _cancel(self, number: int) -> None:
        known: list[tuple[int, Cancellable]] = [*self._answers.items(), *self._prefetches]
        for one, asked in known:
            if one == number:
                asked.cancel()

    def _call(self, call: messages.Call) -> None:
        try:
            given = decoded(call.arguments, arguments_of(call.name))
            returned = getattr(self._engine, call.name)(*given)
            self._outgoing.send(messages.Returned(call.number, Raw(encoded(returned))))
        except Exception as error:
            self._fail(call.number, error)

    def _encoded(self, number: int, done: Future[Encoded], asked: list[Segment]) -> None:
        if (error := done.exception()) is not None:
            self._fail(number, error)
        else:
            self._outgoing.send(messages.EncodingEnded.of(number, done.result(), asked))

    def _fail(self, number: int, error: BaseException) -> None:
        self._outgoing.send(messages.Failed(number, as_cache_error("a call to the engine", error)))


def state_of(engine: LocalEngine, number: int) -> messages.State:
    running, waiting = engine.load()
    return messages.State(
        number=number,
        is_running=engine.is_running,
        hangs=engine.hangs,
        is_idle=engine.is_idle,
        num_restarts=engine.num_restarts,
        num_shortages=engine.num_shortages,
        seconds_per_token=engine.seconds_per_token,
        running=running,
        waiting=waiting,
    )


def as_cache_error(what: str, error: BaseException) -> CacheError:
    """Return the error to send to the parent. An unexpected error is also logged."""
    if isinstance(error, CacheError):
        return error
    log.error("%s has failed", what, exc_info=error)
    return CacheError(f"{what} has failed: {type(error).__name__}: {error}")


def load_engine(spec: EngineSpec) -> LocalEngine:
    torch.set_num_threads(spec.threads or min(torch.get_num_threads(), usable_processors()))
    model = load_model(
        spec.model,
        device=spec.device,
        converted=spec.converted,
        dtype=None if spec.dtype is None else getattr(torch, spec.dtype),
        adapter=spec.adapter,
        weights=spec.weights,
    )
    return_freed_memory()
    return start_engine(model, spec)


def arriving(connection: Connection, has_begun: threading.Event) -> Iterator[bytes]:
    """Yield arriving frames, which a thread reads. If the parent ends while the model loads, end this process."""
    arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def read() -> None:
        for frame in connection.frames():
            arrived.put(frame)
        if not has_begun.is_set():
            os._exit(0)
        arrived.put(None)

    threading.Thread(target=read, name="reading", daemon=True).start()
    while (frame := arrived.get()) is not None:
        yield frame


def main() -> None:
    for ended_by in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ended_by, signal.SIG_IGN)
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # warnings about its own code
    write_log()
    connection, has_begun = Connection(socket.socket(fileno=int(sys.argv[1]))), threading.Event()
    arrived = read_all(arriving(connection, has_begun), messages.ToEngine)
    outgoing = Outgoing(connection)
    gc.disable()  # until the model is loaded: imports make objects that are never freed
    try:
        spec = next(arrived).spec
        write_log(spec.log_format, spec.log_level)
        engine = load_engine(spec)
        gc.freeze()  # otherwise a full garbage collection checks PyTorch's objects and delays tokens
        gc.enable()
    except Exception as error:
        outgoing.send(messages.Failed(0, as_cache_error("loading the model", error)))
    else:
        has_begun.set()
        outgoing.send(messages.Begun(engine.info, engine.store.fingerprint, engine.module_room))
        EngineServer(engine, outgoing).serve(arrived)
    outgoing.close()
    logging.shutdown()
    os._exit(0)  # all work is done, and a normal exit is slow


if __name__ == "__main__":
    main()
