"""What one simulated replica has in device memory: modules and rows by their tokens alone, evicted as the engine does.

Values and half-lives are the engine's (`cache.memory.eviction`). Not covered: where in memory something lies, so that
nothing is evicted to make one piece of free memory out of several.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import log, log2

from cache.errors import CapacityError
from cache.memory.device import TRIED_RUNS
from cache.memory.eviction import EvictionQueue
from cache.memory.half_life import LONG, SHORT, Marks
from cache.memory.store import REMEMBERED_EVICTIONS


@dataclass(slots=True, eq=False)
class Held:
    """A module, by its number, or rows that a request has computed (None). session: of the rows."""

    document: int | None
    tokens: int
    refs: int = 0
    marks: Marks | None = None
    session: str | None = None


class SimulatedMemory:
    """Memory for so many tokens. cost: seconds to get a token back. evictions: of modules, so far."""

    def __init__(self, capacity: int, cost: Callable[[Held], float]) -> None:
        self.capacity, self.used, self.evictions = capacity, 0, 0
        self.modules: dict[int, Held] = {}
        self.sessions: dict[str, Held] = {}
        self._evictable = 0
        self._queue = EvictionQueue[Held](lambda held: not held.refs, cost, lambda _: False)
        self._evicted: OrderedDict[int, Held] = OrderedDict()

    def find(self, document: int) -> Held | None:
        """A module, pinned."""
        if (held := self.modules.get(document)) is not None:
            self.pin(held)
        return held

    def reserve(self, tokens: int) -> None:
        """Make room, by eviction if need be. Raises CapacityError, evicting nothing, if too much is in use."""
        if self.used - self._evictable + tokens > self.capacity:
            raise CapacityError(f"{tokens} tokens of memory are needed, too much of {self.capacity} is in use")
        while self.used + tokens > self.capacity:
            self._evict(min(self._queue.lowest(TRIED_RUNS), key=self._queue.rank))
        self.used += tokens

    def put(self, document: int, tokens: int) -> Held:
        """Enter a module into what was reserved, pinned."""
        held = self.modules[document] = Held(document, tokens, refs=1)
        if (evicted := self._evicted.get(document)) is not None:
            held.marks = evicted.marks
        self.count_use(held)
        return held

    def fill(self, document: int, tokens: int, uses: float) -> None:
        """Begin with a module that was used for a long time. uses: in a round (`cache.memory.half_life`)."""
        short, long = (log2(uses * half_life / log(2)) for half_life in (SHORT, LONG))
        held = self.modules[document] = Held(document, tokens, marks=(short, long))
        self.used += tokens
        self._evictable += tokens
        self._queue.add(held)

    def keep_rows(self, tokens: int, session: str | None) -> None:
        """Keep what a request has computed, in what was reserved, in place of the conversation's earlier rows."""
        held = Held(None, tokens, refs=1, marks=self._queue.half_life.begin(), session=session)
        if session is not None:
            self.sessions[session] = held
        self.release(held)

    def take_rows(self, session: str) -> int:
        """Tokens of a conversation's rows, which go on as rows of a request; 0 if there are none."""
        if (held := self.sessions.pop(session, None)) is None:
            return 0
        self.pin(held)
        return held.tokens

    def count_use(self, held: Held) -> None:
        """A request begins to run with a module."""
        self._queue.count_use(held, str(held.document), len(self.modules))

    def pin(self, held: Held) -> None:
        """Keep it until it is released."""
        if not held.refs:
            self._evictable -= held.tokens
        held.refs += 1

    def release(self, held: Held) -> None:
        """Undo one pin."""
        held.refs -= 1
        if not held.refs:
            self._evictable += held.tokens
            self._queue.add(held)

    def _evict(self, victim: Held) -> None:
        self._queue.evicted()
        victim.refs = -1  # in the queue it counts as gone
        self.used -= victim.tokens
        self._evictable -= victim.tokens
        if victim.document is None:
            if victim.session is not None and self.sessions.get(victim.session) is victim:
                del self.sessions[victim.session]
            return
        self.evictions += 1
        del self.modules[victim.document]
        self._evicted.pop(victim.document, None)
        self._evicted[victim.document] = victim
        if len(self._evicted) > REMEMBERED_EVICTIONS:
            self._evicted.popitem(last=False)
