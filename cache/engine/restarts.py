"""Parts that an engine and its wrappers share: waits after failures, refused prompts, and arranging prompts."""

import time
from collections import deque
from collections.abc import Iterable, Sequence

from cache.memory.keys import digest, token_bytes
from cache.model.info import ModelInfo
from cache.prompt.parts import Text, TextModule
from cache.prompt.plan import Placement, Plan, Segment, arrange, module_segment
from cache.prompt.tokenizer import CachingTokenizer, ChatTokenizer

SHUT_DOWN = "the engine was shut down"
RESTARTED = "the engine failed and is restarting: ask again (the log has the cause)"
RESTING = "the engine failed repeatedly and waits before a restart: ask again in minutes (the log has the cause)"
AT_ONCE, FIRST_REST_S, LONGEST_REST_S = 3, 1.0, 240.0
"""Number of failures with an immediate retry; seconds of the first and the longest rest. Rests double each time."""
FORGOTTEN_S = 600.0  # seconds without failure after which the count starts again
MOST_LOST = 2  # a prompt that was open at this number of failures within that time is refused
MOST_NOTED = 5  # failures whose prompts are remembered
REFUSED = "the engine has failed twice during this prompt: ask something else, or ask again in ten minutes"


class Rests:
    """Waiting times before the restarts of a failed engine. The engine is always restarted."""

    def __init__(self) -> None:
        self._number, self._failed = 0, float("-inf")

    def failed(self) -> float:
        """Record a failure. Returns the seconds to wait."""
        now = time.monotonic()
        if now - self._failed > FORGOTTEN_S:
            self._number = 0
        self._number, self._failed = self._number + 1, now
        if self._number <= AT_ONCE:
            return 0.0
        return min(FIRST_REST_S * 2.0 ** min(self._number - AT_ONCE - 1, 30), LONGEST_REST_S)


class LostPrompts:
    """Remembers the prompts that were open when an engine failed. Thread-safe."""

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


REMEMBERED_RUNS, REMEMBERED_CHARS = 1024, 8000
"""Number of texts whose tokens are cached, and their maximum length. A passage takes about 20 KiB, a text at most 300
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
