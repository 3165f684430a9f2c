"""The client side of an engine in another process: a connection, open requests by number, and arranging prompts.

While there is no connection, requests are held and sent later. Prompts are arranged with the model's tokenizer, without
its weights. Out of scope: starting and connecting an engine (`engine_process`, `cache.cluster.cluster_engine`).
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any, cast

from cache.engine.request import Generation, Request
from cache.engine.restarts import Arranger
from cache.errors import CacheError, EngineStopped
from cache.memory.disk import TierContents
from cache.memory.keys import PUBLIC_TENANT, ModuleCheck, PrefixUse, segment_key
from cache.model.source import load_tokenizer
from cache.prompt.plan import Segment
from cache.serving import messages
from cache.serving.interface import CONTENTS_S
from cache.serving.messages import CallName, EngineSpec, encoded

_LENGTH_BYTES = 4
DOWN = messages.State()


class Connection:
    """One end of a socket pair. A frame is its length, then its bytes. Any thread may send; one thread reads. most_s:
    if the other end does not read for this time (whole seconds), the connection is closed.
    """

    def __init__(self, end: socket.socket, most_s: int | None = None) -> None:
        self._end, self._sending = end, threading.Lock()
        if most_s is not None:  # for sending only
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", most_s, 0))

    def send(self, frame: bytes) -> None:
        """Send a frame; may wait until the other end reads. Raises OSError if it is closed or does not read."""
        with self._sending:
            try:
                self._end.sendall(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
            except OSError:
                self.close()  # half a frame may have been sent
                raise

    def frames(self) -> Iterator[bytes]:
        """Yield arriving frames until the connection ends. A partial last frame is dropped."""
        with self._end.makefile("rb") as source, suppress(ConnectionError):
            while len(length := source.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
                frame = source.read(size := int.from_bytes(length, "big"))
                if len(frame) < size:
                    return
                yield frame

    def close(self) -> None:
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def end_sending(self) -> None:
        with suppress(OSError):  # the other end is closed
            self._end.shutdown(socket.SHUT_WR)


Reply = messages.EncodingEnded | messages.Returned | messages.State


class RemoteGeneration(Generation):
    """An answer generated in another process. request: listed in `Exchange.open_requests`, unless None."""

    def __init__(self, cancel: Callable[[], None], request: Request | None = None) -> None:
        super().__init__()
        self._cancel, self.request = cancel, request

    def cancel(self) -> None:
        if not self.is_cancelled:
            self.is_cancelled = True
            self._cancel()


class Told:
    """Work that was sent and gets no reply. It can be cancelled."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        with suppress(EngineStopped):
            self._cancel()


class Exchange:
    """Open requests by number. Thread-safe. One thread of the owner calls `connect` and `receive`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._open: dict[int, Generation | Future[Reply]] = {}
        self._held: list[bytes] = []
        self._connection: Connection | None = None
        self._stopped: str | None = None
        self._resting: CacheError | None = None

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def open_requests(self) -> list[Request]:
        with self._lock:
            answers = [one for one in self._open.values() if isinstance(one, RemoteGeneration)]
        return [one.request for one in answers if one.request is not None]

    def begin_answer(self, message: Callable[[int], Any], request: Request) -> Generation:
        number = next(self._numbers)
        generation = RemoteGeneration(lambda: self._cancel(number), request)
        self._send(message(number), number, generation)
        return generation

    def ask(self, message: Callable[[int], Any]) -> Future[Reply]:
        number, reply = next(self._numbers), Future[Reply]()
        self._send(message(number), number, reply)
        return reply

    def tell(self, message: Callable[[int], Any]) -> "Told":
        number = next(self._numbers)
        self._send(message(number))
        return Told(lambda: self._send(messages.Cancel(number)))

    def connect(self, connection: Connection) -> None:
        with self._lock:
            self._connection, self._resting = connection, None
            for frame in self._held:
                self._transmit(frame)
            self._held.clear()

    def disconnect(self, error: CacheError) -> None:
        """End all open requests with an error. New requests are held until the next connection."""
        with self._lock:
            self._connection = None
            lost = self._take_open()
        for one in lost:
            _fail(one, error)

    def rest(self, why: str) -> None:
        """End held requests, and new ones until the next connection, with an error. Does nothing while connected."""
        with self._lock:
            if self._connection is not None:
                return
            self._resting = CacheError(why)
            lost = self._take_open()
        for one in lost:
            _fail(one, self._resting)

    def _take_open(self) -> list[Generation | Future[Reply]]:
        lost, self._open = [*self._open.values()], {}
        self._held.clear()
        return lost

    def stop(self, why: str) -> None:
        """End all open requests with EngineStopped, and refuse new ones."""
        with self._lock:
            self._stopped = self._stopped or why
        self.disconnect(EngineStopped(why))

    def receive(self, message: Any) -> None:
        """Deliver a message to its open request. Without such a request, the message is dropped."""
        if isinstance(message, messages.Piece):
            if isinstance(generation := self._open.get(message.number), Generation):
                generation.deliver(message.text)
            return
        with self._lock:
            asked = self._open.pop(message.number, None)
        if asked is None:
            return
        if isinstance(message, messages.Failed):
            _fail(asked, message.error)
        elif isinstance(message, messages.Ended):
            assert isinstance(asked, Generation)
            asked.deliver(message.completion)
        else:
            assert isinstance(asked, Future)
            asked.set_result(message)

    def _send(self, message: Any, number: int = 0, asked: Generation | Future[Reply] | None = None) -> None:
        frame = encoded(message)
        with self._lock:
            if self._stopped is not None:
                raise EngineStopped(self._stopped)
            resting = self._resting
            if resting is None:
                if asked is not None:
                    self._open[number] = asked
                self._transmit(frame)
        if resting is not None and asked is not None:
            _fail(asked, resting)

    def _cancel(self, number: int) -> None:
        with self._lock:
            if number in self._open:
                self._transmit(encoded(messages.Cancel(number)))

    def _transmit(self, frame: bytes) -> None:
        if self._connection is None:
            self._held.append(frame)
            return
        try:
            self._connection.send(frame)
        except OSError:  # the reading thread also notices it, and ends open requests
            return


def _fail(asked: Generation | Future[Reply], error: CacheError) -> None:
    if isinstance(asked, Generation):
        asked.deliver(error)
    else:
        asked.set_exception(error)


class EngineElsewhere(Arranger):
    """The part of `EngineInterface` that all engines in other processes share."""

    def __init__(self, describe: Callable[[], messages.Begun], spec: EngineSpec) -> None:
        """describe: waits until the engine has started, and returns its properties. Raises CacheError."""
        tokenizer = load_tokenizer(spec.model, converted=spec.converted)  # while the engine loads its model
        begun = describe()
        super().__init__(begun.info, tokenizer, spec.placement, spec.slot)
        self.module_room, self._fingerprint = begun.module_room, begun.fingerprint

    def submit(self, request: Request) -> Generation:
        """Queue a request. Raises EngineStopped, and ValueError for a teacher-forced request."""
        return self._begin(request, is_idle=False)

    def compute_idle(self, request: Request) -> Generation:
        return self._begin(request, is_idle=True)

    def _begin(self, request: Request, *, is_idle: bool) -> Generation:
        raise NotImplementedError

    def _call(self, name: CallName, *given: object, most_s: float | None = None) -> Any:
        """Return the result of an engine's method. most_s: maximum wait; None: until it hangs. Raises CacheError."""
        raise NotImplementedError

    def _state(self) -> messages.State:
        """Return the engine's state; `DOWN` if the engine does not report it."""
        raise NotImplementedError

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        return segment_key(segment, fingerprint=self._fingerprint, tenant=tenant)

    def drop_prefixes(self, tenant: str) -> bool:
        self.forget_texts()
        return bool(self._call("drop_prefixes", tenant))

    def modules(self, tenant: str) -> frozenset[str]:
        return cast("frozenset[str]", self._call("modules", tenant))

    def modules_of_prefixes(self) -> frozenset[str]:
        return cast("frozenset[str]", self._call("modules_of_prefixes"))

    def bring_to_device(self, segment: Segment) -> None:
        self._call("bring_to_device", segment)

    def evict(self, key: str) -> bool:
        return bool(self._call("evict", key))

    def verify(self, segment: Segment) -> ModuleCheck:
        return cast("ModuleCheck", self._call("verify", segment))

    def contents(self, with_modules: bool = True) -> TierContents:
        return cast("TierContents", self._call("contents", with_modules, most_s=CONTENTS_S))

    def prefix_uses(self, limit: int) -> list[PrefixUse]:
        return cast("list[PrefixUse]", self._call("prefix_uses", limit, most_s=CONTENTS_S))

    def flush(self) -> None:
        self._call("flush")

    @property
    def is_running(self) -> bool:
        return self._state().is_running

    @property
    def is_idle(self) -> bool:
        return self._state().is_idle

    @property
    def num_restarts(self) -> int:
        return self._state().num_restarts

    @property
    def num_shortages(self) -> int:
        return self._state().num_shortages

    @property
    def seconds_per_token(self) -> float:
        return self._state().seconds_per_token

    def load(self) -> tuple[int, int]:
        state = self._state()
        return state.running, state.waiting
