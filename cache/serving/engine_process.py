"""An engine in a child process, so that the program's own work and its GIL do not slow down decoding.

The child is started with one end of a socket pair and ends when the other end is closed. No port is open, so no other
process can connect. If the child ends or hangs, open requests get an error and a new child starts with empty memory;
the disk tier remains. New requests wait for the new child. After repeated failures the restart is delayed, and they
fail (`restarts`). Out of scope: the child's side (`engine_server`).
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, cast

from msgspec import DecodeError, Raw
from msgspec.structs import replace

from cache.engine.request import Encoded, Generation, Request
from cache.engine.restarts import REFUSED, RESTARTED, RESTING, SHUT_DOWN, LostPrompts, Rests
from cache.errors import CacheError, EngineStopped
from cache.memory.keys import PUBLIC_TENANT, check_tenant
from cache.prompt.plan import Segment
from cache.serving import messages
from cache.serving.child_process import ChildProcess
from cache.serving.exchange import DOWN, Connection, EngineElsewhere, Exchange
from cache.serving.interface import Cancellable
from cache.serving.messages import CallName, EngineSpec, decoded, encoded, read_all, result_of

SEND_S = 20  # seconds after which a child that does not read counts as hanging


class Child:
    """The child process and its connection. messages: iterator over the messages that it sends."""

    def __init__(self, process: ChildProcess | None = None) -> None:
        """process: a process that was started before; None: start one."""
        self._process = process or ChildProcess()
        self.connection = Connection(self._process.socket, SEND_S)
        self.messages: Iterator[Any] = read_all(self.connection.frames(), messages.FromEngine)

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, spec: EngineSpec) -> messages.Begun:
        self.order(spec)
        return self.begun()

    def order(self, spec: EngineSpec) -> None:
        """Tell the child to load its model."""
        with suppress(OSError):  # the child has failed; `begun` raises its error
            self.connection.send(encoded(messages.Begin(spec)))

    def begun(self) -> messages.Begun:
        """Wait until the model is loaded. Raises CacheError."""
        try:
            first = next(self.messages, None)
        except OSError:
            first = None
        if isinstance(first, messages.Begun):
            return first
        if isinstance(first, messages.Failed):
            raise first.error
        raise CacheError(f"the engine's process could not start ({self.end(0)}): see its output on stderr")

    def kill(self) -> None:
        """Kill the process. `messages` ends at once, even if the process does not."""
        self._process.kill()
        self.connection.close()

    def end(self, patience_s: float) -> str:
        """Close the connection, and kill the process if it has not ended after `patience_s`. Returns how it ended."""
        self.connection.end_sending()
        if not self._process.has_ended(patience_s):
            self.kill()
        return self._process.end()


CLOSE_S = 3.0  # seconds that the child may take to end. Modules that are not on disk by then are encoded again
ENDED_S = 1.0  # seconds that a child may take to end after its last message
STATE_S = 5.0  # seconds to wait for the child's state; without a reply it counts as not running
LOOK_S = 5.0  # seconds between checks for a hanging child
log = logging.getLogger(__name__)


class EngineProcess(EngineElsewhere):
    """An `EngineInterface` for an engine in a child process."""

    def __init__(self, spec: EngineSpec, process: ChildProcess | None = None) -> None:
        """process: a started process that no engine uses yet."""
        self._spec, self._lock = spec, threading.Lock()
        self._child = Child(process)
        try:
            self._child.order(spec)
            super().__init__(self._child.begun, spec)
        except BaseException:
            self._child.end(0)
            raise
        self._exchange, self._rests, self._lost_prompts = Exchange(), Rests(), LostPrompts()
        self._num_restarts = self._num_shortages = 0
        self._kept, self._closing = frozenset[str](), threading.Event()
        self._last = DOWN
        self._exchange.connect(self._child.connection)
        self._thread = threading.Thread(target=self._run, name="engine-process", daemon=True)
        self._thread.start()
        threading.Thread(target=self._watch, name="engine-watch", daemon=True).start()

    @property
    def pid(self) -> int:
        return self._child.pid

    def close(self) -> None:
        with self._lock:
            self._closing.set()
        self._child.end(CLOSE_S)
        self._thread.join()

    # --- computing -------------------------------------------------------------------------------------------

    def _begin(self, request: Request, *, is_idle: bool) -> Generation:
        if self._lost_prompts.refuses(request.plan):
            refused = Generation()
            refused.deliver(CacheError(REFUSED))
            return refused
        return self._exchange.begin_answer(lambda number: messages.Submit.of(number, request, is_idle=is_idle), request)

    def encode(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Future[Encoded]:
        check_tenant(tenant)
        asked = tuple(segments)
        reply = self._exchange.ask(lambda number: messages.Encode.of(number, asked, tenant))
        done: Future[Encoded] = Future()
        done.set_running_or_notify_cancel()  # it cannot be cancelled

        def take(reply: Future[Any]) -> None:
            if (error := reply.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(cast("messages.EncodingEnded", reply.result()).encoded(asked))

        reply.add_done_callback(take)
        return done

    def prefetch(self, segments: Sequence[Segment], tenant: str = PUBLIC_TENANT) -> Cancellable:
        check_tenant(tenant)
        return self._exchange.tell(lambda number: messages.Foresee.of(number, segments, tenant))

    # --- modules ---------------------------------------------------------------------------------------------

    def settle(self) -> None:
        self._call("settle")

    def forget(self, keys: Set[str]) -> int:
        found: int = self._call("forget", keys)
        self.forget_texts()
        return found

    def keep(self, keys: Set[str]) -> None:
        self._kept = frozenset(keys)
        self._call("keep", keys)

    def _call(self, name: CallName, *given: object, most_s: float | None = None) -> Any:
        arguments = Raw(encoded(given))
        try:
            reply = self._exchange.ask(lambda number: messages.Call(number, name, arguments)).result(most_s)
        except TimeoutError as error:
            raise CacheError(f"the engine's process was busy for {most_s:g} s: try again") from error
        return decoded(cast("messages.Returned", reply).value, result_of(name))

    # --- state -----------------------------------------------------------------------------------------------

    @property
    def num_restarts(self) -> int:
        self._state()
        return self._last.num_restarts + self._num_restarts

    @property
    def num_shortages(self) -> int:
        self._state()
        return self._last.num_shortages + self._num_shortages

    @property
    def seconds_per_token(self) -> float:
        return (self._state() if self._exchange.is_connected else self._last).seconds_per_token

    def load(self) -> tuple[int, int]:
        state = self._state()
        return (state.running, state.waiting) if state.is_running else (0, self._exchange.num_open)

    def _state(self) -> messages.State:
        if not self._exchange.is_connected:
            return DOWN
        try:
            self._last = cast("messages.State", self._exchange.ask(messages.AskState).result(STATE_S))
        except (CacheError, TimeoutError):
            return DOWN
        return self._last

    # --- on the thread that reads ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._exchange.is_connected:
                self._read()
                self._begin_anew()
        finally:  # in any case, no caller waits forever
            self._exchange.stop(SHUT_DOWN)
            self._child.end(0)

    def _read(self) -> None:
        try:
            for message in self._child.messages:
                self._exchange.receive(message)
        except (OSError, DecodeError) as error:
            log.error("the engine's process sent an unreadable message: %s", error)
        how = self._child.end(CLOSE_S if self._closing.is_set() else ENDED_S)
        if self._closing.is_set():
            self._exchange.disconnect(EngineStopped(SHUT_DOWN))
            return
        log.error("the engine's process has ended (%s)", how)
        self._num_restarts += self._last.num_restarts
        self._num_shortages += self._last.num_shortages
        self._last = replace(self._last, num_restarts=0, num_shortages=0)
        self._lost_prompts.add(request.plan for request in self._exchange.open_requests)
        self._exchange.disconnect(CacheError(RESTARTED))

    def _begin_anew(self) -> None:
        """Start and connect a new child. If failures repeat, wait first. Does nothing once closed."""
        while not self._closing.is_set():
            if rest := self._rests.failed():
                log.error("the engine waits %g s before it tries again", rest)
                self._exchange.rest(RESTING)
                self._closing.wait(rest)
            try:
                with self._lock:
                    if self._closing.is_set():
                        return
                    self._child = Child()
                begun = self._child.begin(self._spec)
                if begun.fingerprint != self._fingerprint:
                    raise CacheError("the files of the model have changed")
                self._child.connection.send(encoded(messages.Call(0, "keep", Raw(encoded((self._kept,))))))
            except Exception as error:  # the cause may be gone at the next try
                log.error("the engine could not restart: %s", error)
                self._child.end(0)
                continue
            self._num_restarts += 1
            self._exchange.connect(self._child.connection)
            log.warning("the engine has restarted in a new process with empty memory")
            return

    # --- on the thread that watches --------------------------------------------------------------------------

    def _watch(self) -> None:
        """Kill a hanging child: it reports `hangs` in two checks, or has not been running for `hang_s`. If a new child
        takes that long to start, requests fail.
        """
        hang_s = self._spec.limits.hang_s
        look_s, sound = min(LOOK_S, hang_s / 4), time.monotonic()
        while not self._closing.wait(look_s):
            is_connected, child, state = self._exchange.is_connected, self._child, self._state()
            now = time.monotonic()
            if state.is_running:
                sound = now
            elif now - sound > (look_s if state.hangs else hang_s):
                if not is_connected:
                    self._exchange.rest(RESTING)
                    continue
                log.error("the engine's process hangs and is ended")
                child.kill()
                sound = now
