"""Code that the examples share: start an engine with the model of the settings, and print a finished answer.

The settings apply as in Warmdesk (for example `WARMDESK_MODEL`), and a converted model in the data folder is used
again. Encoded modules are kept in memory until the example ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.domain.settings import load_settings
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Request, Reuse
from cache.model.loading import load_model
from cache.pml.binding import Registry
from cache.prompt.plan import Plan

SCHEMAS = Path(__file__).parent.parent / "data" / "schemas"


@contextmanager
def running_engine() -> Iterator[Engine]:
    """Yield an engine without a disk tier, so that every example begins without encoded modules."""
    settings = load_settings({}, os.environ)
    model = load_model(settings.model, device=settings.device, converted=settings.models_folder)
    engine = Engine(model, memory=settings.device_memory).start()
    try:
        yield engine
    finally:
        engine.close()


def registry_of(engine: Engine) -> Registry:
    """Return an empty registry of schemas for the engine's model."""
    return Registry.for_model(engine.model.tokenizer, engine.model.info)


def ask(engine: Engine, title: str, plan: Plan, *, max_tokens: int, reuse: Reuse = "on") -> None:
    """Answer a prompt; print what was computed, what was reused, the time to the first token and the answer."""
    sampling = Sampling(max_tokens=max_tokens, repetition_penalty=1.15)
    completion = engine.submit(Request(plan=plan, sampling=sampling, reuse=reuse)).completion
    usage = completion.usage
    print(f"\n{title}")
    print(
        f"  {usage.computed} of {usage.prompt_tokens} prompt tokens computed, {usage.module} from modules, "
        f"{usage.prefix} from an earlier prompt; first token after {completion.timings.ttft:.0f} ms; "
        f"{'exact' if completion.exact else 'approximate'}"
    )
    print("  " + " ".join(completion.text.split()))
