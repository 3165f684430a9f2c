"""Run an engine in a test and keep the logits it computed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Request, Reuse
from cache.memory.disk import DiskTier
from cache.model.language_model import LanguageModel
from cache.prompt.plan import Plan

MEMORY = 4 << 20


class Recorder:
    """Keeps the logits an engine computed, request by request."""

    def __init__(self, model: LanguageModel) -> None:
        self.logits: list[torch.Tensor] = []
        forward = model.forward

        def recording(*args: Any) -> torch.Tensor:
            logits = forward(*args)
            self.logits.extend(logits.unbind(0))
            return logits

        model.forward = recording  # type: ignore[method-assign]


@contextmanager
def running(model: LanguageModel, *, memory: int = MEMORY, disk: DiskTier | None = None) -> Iterator[Engine]:
    engine = Engine(model, memory=memory, disk=disk).start()
    try:
        yield engine
    finally:
        engine.close()


def answer(
    engine: Engine, plan: Plan, max_tokens: int = 1, reuse: Reuse = "on", session: str | None = None
) -> Completion:
    request = Request(plan=plan, sampling=Sampling(max_tokens=max_tokens), reuse=reuse, session=session)
    return engine.submit(request).completion
