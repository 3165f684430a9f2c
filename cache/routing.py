"""Routing by modules: find the replica that will compute a request first.

Costs are counted in prompt tokens. The cost of a replica is its queue plus the tokens of the modules that it lacks. A
module costs more if another replica has it or is its home, because a second copy uses memory. So modules that are
requested together are on one replica, each has a home by consistent hashing, and a module that is too popular for one
replica gets a lasting copy on the next. Later turns of a conversation cost less at the replica of the earlier turns.

The modules of a request count as held by its replica until the first report after its end, because earlier reports may
be outdated. Each replica has many places on the ring; when it leaves, only its keys move. It uses no clock, thread or
random number. Out of scope: sending, and limits of queues (`cache.cluster`).
"""

import hashlib
from bisect import bisect, bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import islice

PLACES = 64  # places per replica: with more, replicas' shares of the keys are more even


class Ring:
    """Places replicas on a ring, for consistent hashing."""

    def __init__(self) -> None:
        self._places: list[tuple[int, str]] = []
        self._replicas: set[str] = set()

    def set_replicas(self, replicas: Collection[str]) -> None:
        gone, new = self._replicas.difference(replicas), set(replicas) - self._replicas
        if gone:
            self._places = [place for place in self._places if place[1] not in gone]
        self._places += ((place_of(f"{replica} {number}"), replica) for replica in new for number in range(PLACES))
        self._places.sort()
        self._replicas = set(replicas)

    def walk(self, key: str) -> Iterator[str]:
        seen: set[str] = set()
        start = bisect(self._places, (place_of(key), ""))
        for number in range(start, start + len(self._places)):
            replica = self._places[number % len(self._places)][1]
            if replica not in seen:
                seen.add(replica)
                yield replica
            if len(seen) == len(self._replicas):
                return


def place_of(text: str) -> int:
    """Return the place of a text on the ring, which is the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


MOST_HELD = 20_000  # maximum modules of one replica; the oldest are dropped


class Holdings:
    """Module keys by replica, and replicas by module key."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, None]] = {}  # in the order in which they were added
        self._holders: dict[str, list[str]] = {}  # ascending

    def of(self, replica: str) -> Set[str]:
        return self._held.get(replica, {}).keys()

    def holders(self, key: str) -> Sequence[str]:
        return self._holders.get(key, ())

    def set_held(self, replica: str, keys: Set[str]) -> None:
        for key in [key for key in self._held.get(replica, ()) if key not in keys]:
            self._leave(replica, key)
        for key in keys:
            self.add(replica, key)

    def add(self, replica: str, key: str) -> None:
        held = self._held.setdefault(replica, {})
        if key not in held:
            held[key] = None
            insort(self._holders.setdefault(key, []), replica)
            if len(held) > MOST_HELD:
                self._leave(replica, next(iter(held)))

    def _leave(self, replica: str, key: str) -> None:
        held, holders = self._held[replica], self._holders[key]
        del held[key], holders[bisect_left(holders, replica)]
        if not held:
            del self._held[replica]
        if not holders:
            del self._holders[key]


ALL_OF = 16  # up to this number of replicas, all are considered
HOLDERS, HOMES = 6, 3
"""With more replicas, for each module: at most HOLDERS replicas that hold it, and HOMES from its place on the ring."""
MOST_OPEN = 100_000  # maximum number of open requests; the oldest are dropped
MOST_SESSIONS = 100_000
WAITING_COST = 128.0  # cost of a waiting request in addition to its missing modules, in prompt tokens
COPY_COST = 2.0  # cost of the memory of a second copy, relative to computing it


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Needs of a request. modules: tokens by key. own_tokens: tokens outside modules. session: its conversation."""

    modules: Mapping[str, int] = field(default_factory=dict)
    own_tokens: int = 0
    session: str | None = None


@dataclass(slots=True)
class _Open:
    """A sent request that has not ended. missing: tokens of modules that the replica lacked."""

    replica: str
    keys: frozenset[str]
    missing: int


@dataclass(slots=True)
class _Replica:
    """A replica. queue: number of requests, by the last report and later changes. missing: module tokens that its open
    requests compute. ended: module keys of requests that ended since the last report.
    """

    queue: int = 0
    missing: int = 0
    opened: dict[str, _Open] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)


class Affinity:
    """Ranks replicas for requests by their modules and load. Not thread-safe."""

    def __init__(self) -> None:
        self._ring, self._holdings = Ring(), Holdings()
        self._replicas: dict[str, _Replica] = {}
        self._open: dict[str, _Open] = {}  # by request, the oldest first
        self._sessions: OrderedDict[str, tuple[str, int]] = OrderedDict()  # replica, tokens computed there
        self._turn = 0

    # --- what is known of replicas -----------------------------------------------------------------------------

    def set_replicas(self, replicas: Collection[str]) -> None:
        """Replace the set of replicas. The state of removed ones is dropped."""
        if self._replicas.keys() == set(replicas):
            return
        for gone in self._replicas.keys() - set(replicas):
            for request in self._replicas.pop(gone).opened:
                del self._open[request]
            self._holdings.set_held(gone, frozenset())
        for new in replicas:
            self._replicas.setdefault(new, _Replica())
        self._ring.set_replicas(replicas)

    def report(self, replica: str, modules: Set[str], queue: int) -> None:
        """Apply a replica's report of its modules and its number of requests. An unknown replica is ignored."""
        if (state := self._replicas.get(replica)) is None:
            return
        state.queue = queue
        expected = state.ended.union(*(one.keys for one in state.opened.values()))
        self._holdings.set_held(replica, expected.union(modules))
        state.ended.clear()

    # --- requests ----------------------------------------------------------------------------------------------

    def rank(self, wanted: Wanted) -> list[str]:
        """Return the replicas, best first. If there are more than ALL_OF, return only the likely best ones."""
        cost = self._cost(wanted)
        return sorted(self._candidates(wanted), key=cost)  # stable: at equal cost homes come first

    def home(self, key: str) -> str | None:
        return next(self._ring.walk(key), None)

    def sent(self, request: str, replica: str, wanted: Wanted) -> None:
        """Record that a request is in the queue of this replica and of no other. request: a unique name."""
        if (known := self._open.get(request)) is not None and known.replica == replica:
            return
        self.ended(request)
        if (state := self._replicas.get(replica)) is None:
            return
        held = self._holdings.of(replica)
        missing = sum(tokens for key, tokens in wanted.modules.items() if key not in held)
        one = _Open(replica, frozenset(wanted.modules), missing)
        self._open[request] = state.opened[request] = one
        state.queue += 1
        state.missing += missing
        for key in one.keys:
            self._holdings.add(replica, key)
        if wanted.session is not None:
            self._sessions[wanted.session] = replica, wanted.own_tokens
            self._sessions.move_to_end(wanted.session)
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
        if len(self._open) > MOST_OPEN:
            self.ended(next(iter(self._open)))

    def ended(self, request: str) -> None:
        if (one := self._open.pop(request, None)) is None:
            return
        state = self._replicas[one.replica]
        del state.opened[request]
        state.queue = max(0, state.queue - 1)
        state.missing -= one.missing
        state.ended |= one.keys
        if len(state.ended) > MOST_HELD:  # nothing is reported
            state.ended.clear()

    def load(self, replica: str) -> float:
        state = self._replicas[replica]
        return state.queue * WAITING_COST + state.missing

    # --- ranking -----------------------------------------------------------------------------------------------

    def _candidates(self, wanted: Wanted) -> Iterator[str]:
        keys = sorted(wanted.modules, key=lambda key: (-wanted.modules[key], key))
        places = keys or [wanted.session or str(self._turn)]
        self._turn += 1
        few = len(self._replicas) <= ALL_OF
        found: dict[str, None] = {}
        for key in places:
            found.update(dict.fromkeys(self._ring.walk(key) if few else islice(self._ring.walk(key), HOMES)))
            if few:
                break
            found.update(dict.fromkeys(self._some(self._holdings.holders(key))))
        session = self._session(wanted)
        if session is not None:
            found[session[0]] = None
        return iter(found)

    def _some(self, holders: Sequence[str]) -> Sequence[str]:
        """Return a few of a module's holders, different ones each time."""
        if len(holders) <= HOLDERS:
            return holders
        start = self._turn * HOLDERS % len(holders)
        return [holders[(start + number) % len(holders)] for number in range(HOLDERS)]

    def _cost(self, wanted: Wanted) -> Callable[[str], float]:
        modules = [(key, tokens, self._owner(key)) for key, tokens in wanted.modules.items()]
        session, past = self._session(wanted) or (None, 0)

        def cost(replica: str) -> float:
            held = self._holdings.of(replica)
            total = self.load(replica)
            for key, tokens, owner in modules:
                if key not in held:
                    total += tokens if owner == replica else tokens * (1 + COPY_COST)
            return total if replica == session else total + min(past, wanted.own_tokens)

        return cost

    def _owner(self, key: str) -> str | None:
        return None if self._holdings.holders(key) else self.home(key)

    def _session(self, wanted: Wanted) -> tuple[str, int] | None:
        if wanted.session is None or (known := self._sessions.get(wanted.session)) is None:
            return None
        return known if known[0] in self._replicas else None
