"""Parts that an engine and its wrappers share: rests after failures, refused prompts, idle runs, arranging prompts.

An idle run computes one request without reuse while the engine has no other work. It has separate KV memory, so it
evicts nothing and reuses nothing. It ends when a request arrives, even during a pass.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from cache.attention.forward_pass import PassGivenUp
from cache.engine.device_memory import RowLimit
from cache.engine.engine_core import EngineCore
from cache.engine.request import Generation, Request
from cache.engine.waiting import Waiting
from cache.errors import CacheError, EngineBusy
from cache.memory.arena import Arena
from cache.memory.keys import digest, token_bytes
from cache.memory.store import Store
from cache.model.language_model import Model, ModelInfo
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Placement, Plan, Segment, arrange, module_segment
from cache.prompt.tokenizer import CachingTokenizer, ChatTokenizer

RESTARTED = "the engine failed and is restarting: ask again (the log has the cause)"
RESTING = "the engine failed repeatedly and waits before a restart: ask again in minutes (the log has the cause)"
AT_ONCE, FIRST_REST_S, LONGEST_REST_S = 3, 1.0, 240.0
"""Number of failures with an immediate retry; seconds of the first and the longest rest. Each rest doubles."""
FORGOTTEN_S = 600.0  # seconds without failure after which the count starts again
MOST_LOST = 2  # failures within that time after which a prompt that was open at each is refused
MOST_NOTED = 5  # failures whose prompts are remembered
REFUSED = "the engine has failed twice during this prompt: ask something else, or ask again in ten minutes"


class Rests:
    """Rests between the failures of one engine. It is always restarted."""

    def __init__(self) -> None:
        self._number, self._failed = 0, float("-inf")

    def failed(self) -> float:
        """Record a failure. Returns the seconds to rest."""
        now = time.monotonic()
        if now - self._failed > FORGOTTEN_S:
            self._number = 0
        self._number, self._failed = self._number + 1, now
        if self._number <= AT_ONCE:
            return 0.0
        return min(FIRST_REST_S * 2.0 ** min(self._number - AT_ONCE - 1, 30), LONGEST_REST_S)


class LostPrompts:
    """Prompts that were open when an engine failed. Thread-safe."""

    def __init__(self) -> None:
        self._lost: deque[tuple[float, frozenset[str]]] = deque(maxlen=MOST_NOTED)

    def add(self, plans: Iterable[Plan]) -> None:
        self._lost.append((time.monotonic(), frozenset(_digest_of(plan) for plan in plans)))

    def refuses(self, plan: Plan) -> bool:
        since = time.monotonic() - FORGOTTEN_S
        lost = [prompts for at, prompts in list(self._lost) if at > since]
        return len(lost) >= MOST_LOST and sum(_digest_of(plan) in prompts for prompts in lost) >= MOST_LOST


def _digest_of(plan: Plan) -> str:
    """Return a digest of a plan's tokens, independent of their positions."""
    return digest(b"".join(token_bytes(span.tokens) for span in plan.spans))


log = logging.getLogger(__name__)


class IdleRun:
    """A request with reuse "off" and its own engine core. Owned by the engine thread."""

    def __init__(
        self, model: Model, request: Request, generation: Generation, give_up: Callable[[], bool], row_limit: RowLimit
    ) -> None:
        """give_up: returns whether there is other work, called at every layer. row_limit: the device's."""
        slots = request.plan.num_tokens + max(1, request.sampling.max_tokens)
        store = Store(Arena(model.info.kv, slots, model.device), model.info.fingerprint)
        self._core, self._generation = EngineCore(model, store, give_up, row_limit=row_limit), generation
        self._core.inbox.append(Waiting(request, generation, time.perf_counter(), model.info.places_modules))
        self.has_ended = False

    def step(self) -> None:
        try:
            self._core.step()
        except PassGivenUp:
            self.give_up()
        except Exception as error:
            log.warning("a request could not be computed again: %s", error)
            self.fail(CacheError(f"the request could not be computed again: {error}"))
        self.has_ended = self.has_ended or not self._core.has_work

    def give_up(self) -> None:
        self.fail(EngineBusy("another request arrived"))

    def fail(self, error: CacheError) -> None:
        self.has_ended = True
        if not self._generation.is_over:
            self._generation.deliver(error)


REMEMBERED_RUNS, REMEMBERED_CHARS = 1024, 8000
"""Number of texts whose tokens are remembered, and their maximum length: about 20 KiB each for passages, at most 300
KiB.
"""


class Arranger:
    """The part of an engine that arranges prompts. It needs the model's tokenizer but not its weights. Thread-safe.
    placement, slot: defaults of `arrange`.
    """

    def __init__(self, info: ModelInfo, tokenizer: ChatTokenizer, placement: Placement, slot: int) -> None:
        self.info, self.tokenizer, self._placement, self._slot = info, tokenizer, placement, slot
        self._remembering = CachingTokenizer(tokenizer, REMEMBERED_RUNS, REMEMBERED_CHARS)

    def arrange(
        self, parts: Sequence[TextModule | Text], placement: Placement | None = None, slot: int | None = None
    ) -> Plan:
        """Tokenise and place modules and texts in order. placement, slot: the engine's if None. Raises PromptError."""
        info = self.info
        return arrange(
            parts,
            self._remembering,
            position_independent=info.is_position_independent,
            max_positions=info.max_positions,
            placement=(placement or self._placement) if info.places_modules else "contiguous",
            slot=slot or self._slot,
        )

    def segment(self, module: TextModule) -> Segment:
        room = self.info.max_positions if self.info.is_position_independent else 0
        return module_segment(module, self._remembering, room=room)

    def forget_texts(self) -> None:
        self._remembering.clear()
