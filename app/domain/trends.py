"""How the desk did over time, as the dashboard's charts show it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenTimes:
    """Times to the first token of some answers, in milliseconds, within 5 % (see `app.storage.histogram`)."""

    answers: int
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSpan:
    """What happened within a span of time that begins at `start`. A name that is missing happened never.

    answers: by outcome. tokens: of prompts, by source: computed, session, prefix, module; together all of them. modules
    and module_tokens: uses of modules, and their tokens, by where they were found: device, host, disk, or computed.
    misses: uses that were computed, by reason. warm: answers whose modules were all found encoded; cold: some were not;
    server: those of a model that runs elsewhere. None where there was no such answer. Answers for which the model read
    nothing are in none of them.
    """

    start: datetime
    answers: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    modules: Mapping[str, int] = field(default_factory=dict)
    module_tokens: Mapping[str, int] = field(default_factory=dict)
    misses: Mapping[str, int] = field(default_factory=dict)
    warm: FirstTokenTimes | None = None
    cold: FirstTokenTimes | None = None
    server: FirstTokenTimes | None = None
