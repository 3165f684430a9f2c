"""The engine against the oracle: one full forward pass with the same block mask and position ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import CONFIGS, build, make_unit, oracle_logits, stock

from cache.disk import DiskTier
from cache.engine import Engine
from cache.layout import Plan, Span, Unit
from cache.model import LanguageModel
from cache.request import Completion, Request, Reuse
from cache.sampling import Sampling

TOLERANCE = 1e-4
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


def plan_of(*parts: Unit | str) -> Plan:
    """Units and texts placed one after another."""
    spans, at = [], 0
    for part in parts:
        tokens = tuple(part.encode()) if isinstance(part, str) else part.tokens
        spans.append(Span(start=at, tokens=tokens, unit=None if isinstance(part, str) else part))
        at += len(tokens)
    return Plan(spans=tuple(spans))


def answer(engine: Engine, plan: Plan, max_tokens: int = 1, reuse: Reuse = "on", session: str | None = None) -> Completion:
    request = Request(plan=plan, sampling=Sampling(max_tokens=max_tokens), reuse=reuse, session=session)
    return engine.submit(request).completion


SYSTEM = make_unit("system", "You answer from the documents. ")
A = make_unit("a", "Returns take 30 days from delivery.", SYSTEM)
B = make_unit("b", "Gift cards cannot be returned at all, sorry.", SYSTEM)
C = make_unit("c", "Shipping costs 4.95.", SYSTEM)
QUESTION = "Can I return a gift card?"


def placed(family: str, *parts: Unit | str) -> Plan:
    """As plan_of; models with learned positions encode every unit where it stands."""
    plan = plan_of(*parts)
    if family != "gpt2":
        return plan
    spans = [
        span
        if span.unit is None
        else Span(start=span.start, tokens=span.tokens, unit=make_unit(
            span.unit.name, bytes(span.tokens).decode(), span.unit.prefix, span.start))
        for span in plan.spans
    ]
    return Plan(spans=tuple(spans))


@pytest.mark.parametrize("kernel", ["flash_cpu", "matmul"])
@pytest.mark.parametrize("family", list(CONFIGS))
def test_placed_modules_equal_one_forward_with_the_block_mask(family: str, kernel: str) -> None:
    from cache.kernels import KERNELS

    model = build(family, kernel=KERNELS[kernel])
    recorder = Recorder(model)
    plan = placed(family, SYSTEM, B, C, A, QUESTION)
    with running(model) as engine:
        first = answer(engine, plan)
        second = answer(engine, plan)
    expected = oracle_logits(stock(family), plan, rotary=family != "gpt2")
    for logits in (recorder.logits[0], recorder.logits[-1]):
        assert (logits - expected).abs().max() < TOLERANCE
    assert first.usage.computed == plan.num_tokens
    assert second.usage.module == sum(len(unit.tokens) for unit in (SYSTEM, A, B, C))
