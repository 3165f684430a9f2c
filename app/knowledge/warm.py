"""Encoding passages ahead of questions: every passage without a module gets one, as long as the tiers have room.

The engine serves questions first, then this. Not covered: which passages there are (`ingest`), their neighbours
(`neighbours`).
"""

import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import accumulate

from app.domain.progress import Progress
from app.knowledge.in_flight import InFlight
from app.knowledge.prompts import PassageText, PromptBuilder
from app.storage.library import Library
from cache.engine.encoder import Encoded
from cache.memory.keys import PUBLIC_TENANT
from cache.serving.interface import EngineInterface

JOBS_IN_FLIGHT = 2
"""Batches in the engine's queue at once: enough to fill its passes. Whoever removes a document waits for them."""
AT_ONCE = 4
"""Passages in a batch."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassageReason:
    """A passage, and why it was not encoded."""

    passage: str
    reason: str


@dataclass(slots=True, kw_only=True)
class WarmReport:
    """encoded, kept, dropped: modules. waiting: passages for whose modules no tier has room; they are encoded when a
    question needs them. failed: passages that the model cannot read, or memory not hold.
    """

    encoded: int = 0
    kept: int = 0
    dropped: int = 0
    waiting: int = 0
    failed: list[PassageReason] = field(default_factory=list)

    def count(self, result: Encoded, num_passages: int) -> None:
        """Include what became of some passages."""
        self.encoded += result.computed
        self.kept += num_passages - result.computed - len(result.failed)
        for segment, error in result.failed.items():
            self.failed.append(PassageReason(passage=segment.name, reason=str(error)))
            log.warning("passage %s is not read ahead: %s", segment.name, error)

    @property
    def done(self) -> int:
        """Passages with which the engine is done."""
        return self.encoded + self.kept + len(self.failed)


class Warming:
    """Encodes passages of one desk."""

    def __init__(self, library: Library, engine: EngineInterface, prompts: PromptBuilder, in_flight: InFlight) -> None:
        self.library, self.engine, self.prompts, self._in_flight = library, engine, prompts, in_flight

    def run(self, documents: Sequence[str], progress: Progress) -> WarmReport:
        """Encode all passages that have no module: first those of these documents, then the others. None where the
        model runs elsewhere.
        """
        if self.engine.info.is_elsewhere:
            return WarmReport()
        inside = self.library.ids_of(documents)
        others = [id_ for id_ in self.library.all_ids(only_unencoded=True) if id_ not in inside]
        return self.encode([*sorted(inside), *others], progress)

    def unused(self) -> frozenset[str]:
        """Modules that no passage has any more: a run that was killed did not forget them."""
        if self.engine.info.is_elsewhere:
            return frozenset()
        there = self.engine.modules(PUBLIC_TENANT)
        return there - self.library.module_keys() - {self.engine.key(self.engine.segment(self.prompts.system))}

    def survey(self) -> tuple[int, list[int]]:
        """How many passages have no module in any tier, and those of them for which the largest tier has room, in the
        order in which they are to be encoded.
        """
        if not self.engine.info.places_modules:
            return 0, []
        stored = self.engine.modules(PUBLIC_TENANT)
        sizes = self.library.module_sizes()
        unread = [(one.id, one.num_tokens) for one in sizes if one.module_key not in stored]
        # encoding more would only evict what was encoded before
        room = self.engine.module_room - sum(one.num_tokens for one in sizes if one.module_key in stored)
        tokens = list(accumulate((num_tokens for _, num_tokens in unread), initial=0))
        return len(unread), [id_ for id_, _ in unread[: max(0, bisect_right(tokens, room) - 1)]]

    def encode(
        self, ids: Sequence[int], progress: Progress, *, until: Callable[[], bool] = lambda: False
    ) -> WarmReport:
        """Encode those of these passages that have no module, a few batches ahead of the engine. until: whether to
        begin no more of them.
        """
        report = WarmReport()
        running: deque[tuple[Future[Encoded], int]] = deque()

        def collect(most: int) -> None:
            while len(running) > most:
                future, count = running.popleft()
                report.count(future.result(), count)
                progress("encoding", report.done, len(ids) - report.waiting)

        room = self.engine.module_room
        for first in range(0, len(ids), AT_ONCE):
            if until():
                break
            with self._in_flight.track():
                passages = self.library.passages(ids[first : first + AT_ONCE])
                segments = [self.engine.segment(self.prompts.module(PassageText.of(p))) for p in passages]
                tokens = list(accumulate((len(segment.tokens) for segment in segments), initial=0))
                fitting = bisect_right(tokens, room) - 1
                room -= tokens[fitting]
                report.waiting += len(segments) - fitting
                keys = {p.id: self.engine.key(segment) for p, segment in zip(passages, segments, strict=True)}
                self.library.set_module_keys({p.id: keys[p.id] for p in passages if p.module_key != keys[p.id]})
                if fitting:
                    running.append((self.engine.encode(segments[:fitting]), fitting))
            collect(JOBS_IN_FLIGHT - 1)
        collect(0)
        self.engine.flush()
        return report
