"""One end of a pair of connected sockets: frames of bytes, each behind its length. Not covered: what is in them.

What a program has asked of an engine elsewhere and what has not ended yet: numbers, answers that arrive, their ends.

While there is no connection, what is asked is held and sent when there is one. Not covered: who connects (a process
that is begun anew, `engine_process`).

What is done here for an engine elsewhere: prompts are arranged with its model's tokenizer, without its weights.

Not covered: how the engine is reached (`engine_process`, `cache.cluster.cluster_engine`).
"""

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from typing import Any

from cache.engine.request import Generation, Request
from cache.engine.restarts import Arranger
from cache.errors import CacheError, EngineStopped
from cache.memory.keys import PUBLIC_TENANT, segment_key
from cache.model.loading import load_tokenizer
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Placement, Plan, Segment
from cache.serving.messages import (
    Begun,
    Cancel,
    EncodingEnded,
    Ended,
    EngineSpec,
    Failed,
    Piece,
    Returned,
    State,
    encoded,
)

_LENGTH_BYTES = 4


class Connection:
    """Any thread may send; one reads. Ends when the other end is closed, or its process has ended. most_s: when the
    other end has read nothing for so many whole seconds, it ends, too.
    """

    def __init__(self, end: socket.socket, most_s: int | None = None) -> None:
        self._end, self._sending = end, threading.Lock()
        if most_s is not None:  # of sending alone
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", most_s, 0))

    def send(self, frame: bytes) -> None:
        """Send a frame; waits while the other end does not read. Raises OSError if there is no other end any more."""
        with self._sending:
            try:
                self._end.sendall(len(frame).to_bytes(_LENGTH_BYTES, "big") + frame)
            except OSError:
                self.close()  # half a frame may be on the way
                raise

    def frames(self) -> Iterator[bytes]:
        """The frames that arrive, to the end. Half a frame at the end is left out. That the other end was closed before
        it read everything is an end, too.
        """
        with self._end.makefile("rb") as source, suppress(ConnectionError):
            while len(length := source.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
                frame = source.read(size := int.from_bytes(length, "big"))
                if len(frame) < size:
                    return
                yield frame

    def close(self) -> None:
        """Send and read nothing more."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def end_sending(self) -> None:
        """Send nothing more; what arrives is still read."""
        with suppress(OSError):  # the other end has gone
            self._end.shutdown(socket.SHUT_WR)


Reply = EncodingEnded | Returned | State


class RemoteGeneration(Generation):
    """An answer that is generated elsewhere. request: what it answers, if somebody wants to know."""

    def __init__(self, cancel: Callable[[], None], request: Request | None = None) -> None:
        super().__init__()
        self._cancel, self.request = cancel, request

    def cancel(self) -> None:
        """Stop generating; what was generated so far still arrives as the completion."""
        if not self.is_cancelled:
            self.is_cancelled = True
            self._cancel()


class Told:
    """What nobody waits for, elsewhere."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel

    def cancel(self) -> None:
        """Drop what has not begun."""
        with suppress(EngineStopped):
            self._cancel()


class Exchange:
    """Safe to use from any thread; one thread of its owner connects it and gives it what arrives."""

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
        """Whether what is asked is sent at once."""
        return self._connection is not None

    @property
    def num_open(self) -> int:
        """How much has been asked and has not ended."""
        return len(self._open)

    @property
    def open_requests(self) -> list[Request]:
        """Those whose answers have not ended."""
        with self._lock:
            answers = [one for one in self._open.values() if isinstance(one, RemoteGeneration)]
        return [one.request for one in answers if one.request is not None]

    def begin_answer(self, message: Callable[[int], Any], request: Request) -> Generation:
        """Ask for the answer to a request. message: with its number. Raises EngineStopped."""
        number = next(self._numbers)
        generation = RemoteGeneration(lambda: self._cancel(number), request)
        self._send(message(number), number, generation)
        return generation

    def ask(self, message: Callable[[int], Any]) -> Future[Reply]:
        """Ask for anything else. Raises EngineStopped."""
        number, reply = next(self._numbers), Future[Reply]()
        self._send(message(number), number, reply)
        return reply

    def tell(self, message: Callable[[int], Any]) -> "Told":
        """Ask for what has no end that anybody waits for. Raises EngineStopped."""
        number = next(self._numbers)
        self._send(message(number))
        return Told(lambda: self._send(Cancel(number)))

    def connect(self, connection: Connection) -> None:
        """Send what was held, and what is asked from now on."""
        with self._lock:
            self._connection, self._resting = connection, None
            for frame in self._held:
                self._transmit(frame)
            self._held.clear()

    def disconnect(self, error: CacheError) -> None:
        """End everything that was asked with an error, and hold what is asked from now on."""
        with self._lock:
            self._connection = None
            self._held.clear()
            lost, self._open = self._open, {}
        for one in lost.values():
            _fail(one, error)

    def rest(self, why: str) -> None:
        """End what is held with an error, and so what is asked until there is a connection. Not if there is one."""
        with self._lock:
            if self._connection is not None:
                return
            self._resting = CacheError(why)
            self._held.clear()
            lost, self._open = self._open, {}
        for one in lost.values():
            _fail(one, self._resting)

    def stop(self, why: str) -> None:
        """End everything with EngineStopped, and take nothing more."""
        with self._lock:
            self._stopped = self._stopped or why
        self.disconnect(EngineStopped(why))

    def receive(self, message: Any) -> None:
        """For what arrives. What nobody waits for any more is left out."""
        if isinstance(message, Piece):
            if isinstance(generation := self._open.get(message.number), Generation):
                generation.deliver(message.text)
            return
        with self._lock:
            asked = self._open.pop(message.number, None)
        if asked is None:
            return
        if isinstance(message, Failed):
            _fail(asked, message.error.error())
        elif isinstance(message, Ended):
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
                self._transmit(encoded(Cancel(number)))

    def _transmit(self, frame: bytes) -> None:
        if self._connection is None:
            self._held.append(frame)
            return
        try:
            self._connection.send(frame)
        except OSError:  # its reader sees it, too, and ends what was asked
            return


def _fail(asked: Generation | Future[Reply], error: CacheError) -> None:
    if isinstance(asked, Generation):
        asked.deliver(error)
    else:
        asked.set_exception(error)


class EngineElsewhere:
    """The part of `cache.serving.interface.EngineInterface` about prompts."""

    def __init__(self, begun: Begun, spec: EngineSpec) -> None:
        """begun: what the engine has said of itself. Raises CacheError."""
        self.info, self.module_room, self._fingerprint = begun.info, begun.module_room, begun.fingerprint
        self.tokenizer = load_tokenizer(spec.model, converted=spec.converted)[0]
        self._arranger = Arranger(self.info, self.tokenizer, spec.placement, spec.slot)

    def arrange(
        self, parts: Sequence[TextModule | Text], placement: Placement | None = None, slot: int | None = None
    ) -> Plan:
        """Tokenise and place modules and texts in order. placement, slot: the engine's if None. Raises PromptError."""
        return self._arranger.arrange(parts, placement, slot)

    def segment(self, module: TextModule) -> Segment:
        """The segment `arrange` makes of a module; for position-independent models the same wherever it stands."""
        return self._arranger.segment(module)

    def key(self, segment: Segment, tenant: str = PUBLIC_TENANT) -> str:
        """Content address of a segment's module for this model."""
        return segment_key(segment, fingerprint=self._fingerprint, tenant=tenant)
