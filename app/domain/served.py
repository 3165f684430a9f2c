"""What a desk did and is doing, for those who count it (`app.api.metrics`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from app.domain.answers import AnswerTimings, AnswerUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An answer that was given. outcome: of the desk (`app.domain.answers.Outcome`), or "plain" for the language model
    alone. queue_ms: how long it waited for the engine.
    """

    outcome: str
    usage: AnswerUsage
    timings: AnswerTimings
    queue_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a desk holds and does now. running, waiting: requests in the engine. num_bytes, capacity, evictions: by
    tier, or by kind of what was evicted. restarts: how often the engine began anew after an error.
    disk_free, disk_floor: bytes of the disk that encoded passages are on, as far as known, and those that stay free of
    them. failed_writes, skipped_writes: passages that the disk did not take, and had no time for.
    shortages: how often device memory has run out in a pass, which was tried again with fewer rows.
    """

    model: str
    running: int = 0
    waiting: int = 0
    documents: int = 0
    passages: int = 0
    num_bytes: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    evictions: Mapping[str, int] = field(default_factory=dict)
    disk_free: int | None = None
    disk_floor: int | None = None
    failed_writes: int = 0
    skipped_writes: int = 0
    restarts: int = 0
    shortages: int = 0
