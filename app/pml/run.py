"""`warmdesk pml run`: one prompt written in PML on an engine, with where its tokens came from."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast, get_args

from app.desk.json_output import usage_json
from app.domain.errors import DeskError
from app.domain.tenants import PML_TENANT
from app.pml.facts import named, read_prompt, read_schema
from cache.decoding.sampling import Sampling
from cache.engine.request import Request, Reuse
from cache.pml.registry import Registry
from cache.remote.without_modules import ELSEWHERE
from cache.serving.interface import EngineInterface


def run_prompt(engine: EngineInterface, schema: Path, prompt: Path, sampling: Sampling, reuse: str) -> dict[str, Any]:
    """Run a prompt file for a schema file. Raises DeskError, CacheError."""
    if reuse not in get_args(Reuse):
        raise DeskError(f"--reuse is {reuse!r}: it must be on, prefix or off", code="usage")
    parsed_schema, parsed_prompt = read_schema(schema), read_prompt(prompt)
    if engine.info.is_elsewhere:
        raise DeskError(f"{ELSEWHERE}: PML needs a model that runs here, give --model", code="runs-elsewhere")
    schemas = Registry.for_model(engine.tokenizer, engine.info)
    named(schema, lambda: schemas.replace(parsed_schema))
    bound = named(prompt, lambda: schemas.bind(parsed_prompt))
    request = Request(plan=bound.plan, sampling=sampling, reuse=cast("Reuse", reuse), tenant=PML_TENANT)
    completion = engine.submit(request).completion
    return {
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "first_generated": bound.plan.next_position,
        "usage": usage_json(completion.usage),
        "modules": [asdict(use) for use in completion.modules],
        "timings_ms": {key: round(value, 3) for key, value in asdict(completion.timings).items()},
        "exact": completion.exact,
    }
