"""Measure the savings of reuse: recompute a sample of the answers without reuse while the server is idle, and compare
both runs.

The second run has the same prompt at the same position ids, with full attention. It shows the time and the text of an
answer without reuse. Out of scope: how the engine recomputes when idle (`cache.engine.restarts`), the statistics of the
samples (`app.desk.overview`).
"""

import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from rapidfuzz.distance import Levenshtein

from app.domain.errors import DeskError
from app.domain.statistics import SavingsSample
from cache.engine.request import Completion, Generation, Request
from cache.errors import CacheError, EngineBusy, EngineStopped
from cache.serving.interface import EngineInterface

WAITING = 8
"""Maximum number of answers that wait for their second run. Each keeps its prompt in memory."""
QUIET_S = 10.0
"""Idle time before a second run. A question that arrives during the run waits for one forward pass."""
TRIES = 5
_LOOK_S, _STOPPED_S = 0.5, 2.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sampled:
    """An answer that is computed a second time, without reuse."""

    request: Request
    generation: Generation
    policy: str
    question_id: str


class SavingsMeter:
    """A thread that recomputes sampled answers. Safe to use from any thread. Nothing is sampled before `start`."""

    def __init__(self, engine: EngineInterface, share: float, keep: Callable[[SavingsSample], None]) -> None:
        self._engine, self._share, self._keep = engine, share, keep
        self._sampled: queue.Queue[Sampled] = queue.Queue(WAITING)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="savings", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Start no further runs. The current run ends when the engine closes."""
        self._closing.set()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join(_STOPPED_S)

    def clear(self) -> None:
        """Delete the waiting prompts, because they may contain text that must be deleted."""
        with self._sampled.mutex:
            self._sampled.queue.clear()

    def consider(self, sampled: Sampled) -> None:
        """Sample this answer at random to recompute it later. If the queue is full, it is skipped."""
        if self._thread is None or sampled.request.reuse != "on" or random.random() >= self._share:
            return
        try:
            self._sampled.put_nowait(sampled)
        except queue.Full:
            log.debug("too many answers wait to be recomputed: one was skipped")

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                sampled = self._sampled.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            try:
                self._measure(sampled)
            except EngineStopped:
                return
            except Exception as error:  # the next one may succeed
                is_known = isinstance(error, DeskError | CacheError)
                log.warning("savings could not be measured: %s", error, exc_info=not is_known)

    def _measure(self, sampled: Sampled) -> None:
        for _ in range(TRIES):
            if not self._is_quiet() or not sampled.generation.has_ended:  # the reader never read the answer
                return
            first = sampled.generation.completion
            if not first.usage.prompt_tokens:  # stopped before it began
                return
            try:
                again = self._engine.compute_idle(sampled.request).completion
            except EngineBusy:
                continue
            self._keep(compared(sampled, first, again))
            return

    def _is_quiet(self) -> bool:
        """Wait until the server is idle. Return False if it stops first."""
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < QUIET_S:
            if self._closing.wait(_LOOK_S):
                return False
            if not self._engine.is_idle:
                quiet_since = time.monotonic()
        return True


def compared(sampled: Sampled, first: Completion, again: Completion) -> SavingsSample:
    is_comparable = sampled.request.sampling.temperature == 0 and first.finish_reason not in ("cancelled", "timeout")
    return SavingsSample(
        created=datetime.now(UTC),
        question_id=sampled.question_id,
        policy=sampled.policy,
        prompt_tokens=first.usage.prompt_tokens,
        computed_tokens=first.usage.computed,
        first_token_ms=first.timings.load + first.timings.prefill,
        without_reuse_ms=again.timings.load + again.timings.prefill,
        likeness=Levenshtein.normalized_similarity(first.text, again.text) if is_comparable else None,
    )
