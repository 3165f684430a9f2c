"""An idle run: one request that is computed without reuse while the engine has no other work.

It has separate KV memory, so it evicts nothing and reuses nothing. It ends when a request arrives, even during a pass.
"""

import logging
import time
from collections.abc import Callable

from cache.attention.forward_pass import PassGivenUp
from cache.engine.device_memory import RowLimit
from cache.engine.engine_core import EngineCore
from cache.engine.request import Generation, Request
from cache.engine.waiting import Waiting
from cache.errors import CacheError, EngineBusy
from cache.memory.arena import Arena
from cache.memory.store import Store
from cache.model.language_model import Model

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
