"""One request computed while the engine has nothing else to do, to see what it takes without any reuse.

It has KV memory of its own, for as long as it runs, so that nothing is evicted for it and it finds nothing; and it ends
where another request arrives, in the middle of a pass if need be. Not covered: which requests, and what is made of the
result.
"""

import logging
import time
from collections.abc import Callable

from cache.attention.forward_pass import PassGivenUp
from cache.engine.engine_core import EngineCore
from cache.engine.request import Generation, Request
from cache.engine.row_limit import RowLimit
from cache.engine.waiting import Waiting
from cache.errors import CacheError, EngineBusy
from cache.memory.arena import Arena
from cache.memory.store import Store
from cache.model.language_model import Model

log = logging.getLogger(__name__)


class IdleRun:
    """A request with reuse "off" and what it is computed with. Owned by the engine thread."""

    def __init__(
        self,
        model: Model,
        request: Request,
        generation: Generation,
        give_up: Callable[[], bool],
        row_limit: RowLimit,
    ) -> None:
        """give_up: whether something else is to be done; asked at every layer of a pass. row_limit: of the device."""
        slots = request.plan.num_tokens + max(1, request.sampling.max_tokens)
        store = Store(Arena(model.info.kv, slots, model.device), model.info.fingerprint)
        self._core = EngineCore(model, store, give_up, row_limit=row_limit)
        self._core.inbox.append(Waiting(request, generation, time.perf_counter(), model.info.places_modules))
        self.has_ended = False

    def step(self) -> None:
        """Compute one pass. What fails, such as memory that ends, fails the request alone."""
        try:
            self._core.step()
        except PassGivenUp:
            self.give_up()
        except Exception as error:
            log.warning("a request could not be computed again: %s", error)
            self.fail(CacheError(f"the request could not be computed again: {error}"))
        self.has_ended = self.has_ended or not self._core.has_work

    def give_up(self) -> None:
        """End it, because something else is to be done."""
        self.fail(EngineBusy("another request arrived"))

    def fail(self, error: CacheError) -> None:
        """End it with an error."""
        if not self.has_ended:
            self.has_ended = True
            self._core.fail(error)
