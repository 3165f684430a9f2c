"""Copies of modules between the arena of a GPU and host memory, beside the passes that compute.

What is noted between two passes makes a batch: the first layer of all its copies, then the second, with an event behind
each layer. A pass waits in each layer for that layer of the newest batch, and computes the first layers while the last
ones are still copied. As there is one stream, in order, this covers earlier batches, too. It also means that
copies in wait for copies out, although the bus could do both at once.

Within a layer copies run in the order in which they were noted, and none touches another layer. So the memory that one
reads may be given to a later one at once, in the arena and in host memory; a pass that writes there waits as above.
Not covered: whose memory it is. Owned by the engine thread.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from cache.memory.copy_stream import CopyStream, Event

CopyLayer = Callable[[int], None]
"""Asks the device to copy one layer of a module."""


@dataclass(slots=True, eq=False)
class Batch:
    """Copies that run together. began, ends: events before the first layer, and behind each that was begun. begun: of
    the next layer, how many copies were; a copy that could not be is begun again later.
    """

    copies: Sequence[CopyLayer]
    tokens: int
    began: Event
    ends: list[Event] = field(default_factory=list)
    begun: int = 0


class Copies:
    """Copies of one arena of so many layers, on a stream."""

    def __init__(self, stream: CopyStream, layers: int) -> None:
        self.stream, self._layers = stream, layers
        self._noted: list[tuple[CopyLayer, int]] = []
        self._batches: deque[Batch] = deque()  # that were not measured yet
        self._newest: Batch | None = None  # until a pass has waited for its last layer

    def __bool__(self) -> bool:
        """Whether a pass would have to wait for copies in its layers."""
        return bool(self._noted) or self._newest is not None

    def add(self, copy: CopyLayer, tokens: int) -> None:
        """Note a copy. It begins with the next pass or call of `begin`, behind what was noted before."""
        self._noted.append((copy, tokens))

    def begin(self) -> None:
        """Give the stream everything that is noted. Raises what the device raises; then the next call goes on there."""
        self._go_on()
        if self._noted:
            self.stream.wait_for_compute()  # it may be writing what is copied, or reading what is replaced
            copies, tokens = [copy for copy, _ in self._noted], sum(tokens for _, tokens in self._noted)
            self._newest = Batch(copies, tokens, self.stream.record())
            self._noted.clear()
            self._batches.append(self._newest)
            self._go_on()

    def await_layer(self, layer: int) -> None:
        """Let the stream that computes wait for this layer of everything that is copied."""
        self.begin()
        if self._newest is not None:
            self.stream.hold_compute(self._newest.ends[layer])
            if layer == self._layers - 1:
                self._newest = None

    def finish(self) -> None:
        """Wait until everything that was noted is copied."""
        self.begin()
        self.stream.synchronize()

    def drop(self) -> None:
        """Forget what has not begun, and wait for the rest."""
        self._noted.clear()
        self._batches.clear()
        self._newest = None
        self.stream.synchronize()

    def measured(self) -> Iterator[tuple[float, int]]:
        """Seconds and tokens of batches that are over, each once."""
        while self._batches and len((batch := self._batches[0]).ends) == self._layers and batch.ends[-1].query():
            yield batch.began.elapsed_time(batch.ends[-1]) / 1e3, batch.tokens
            self._batches.popleft()

    def _go_on(self) -> None:
        """Begin what is left of the newest batch."""
        batch = self._newest
        while batch is not None and len(batch.ends) < self._layers:
            while batch.begun < len(batch.copies):
                self.stream.run(partial(batch.copies[batch.begun], len(batch.ends)))
                batch.begun += 1
            batch.ends.append(self.stream.record())
            batch.begun = 0
