"""The three use cases of the Prompt Cache paper on this engine: code generation, personalisation, parameters.

Each is a schema and a prompt in data/schemas. Arms, in turn within each repeat:
  computed   nothing reused, the same tokens at the same ids (the paper's baseline: the same pipeline)
  reused     modules encoded before; arguments and the question computed
No prefixes stay between runs, so `reused` shows modules alone. Encoding the modules is done once and reported
separately.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from app.domain.settings import Settings
from app.pml import read_prompt, read_schema
from cache.engine.engine import Engine
from cache.engine.request import Completion, Reuse
from cache.memory.keys import PUBLIC_TENANT
from cache.model.language_model import Model
from cache.model.loading import load_model
from cache.pml.binding import Registry
from evals.report import describe_machine, table
from evals.speed.models import first_token, using_threads, warm_engine

Row = dict[str, Any]
USE_CASES = {"code generation": "code", "personalisation": "persona", "parameters": "trip"}


def measure_use_cases(
    *,
    settings: Settings,
    folder: Path,
    threads: tuple[int, ...],
    repeats: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    desk = load_model(settings.model, device="cpu", converted=settings.models_folder)
    rows: list[Row] = []
    for count in threads:
        with using_threads(count):
            for row in measure_model(desk, folder, count, repeats):
                rows.append(row)
                report("{model}, {threads} threads, {use_case}: {ratio:.1f}x".format(**row))
    return {
        "machine": describe_machine(),
        "dtype": desk.info.kv.dtype,
        "repeats": repeats,
        "rows": rows,
    }


def measure_model(model: Model, folder: Path, threads: int, repeats: int) -> Iterator[Row]:
    for use_case, name in USE_CASES.items():
        with warm_engine(model, 16_384) as engine:
            schema, prompt = folder / f"{name}.pml", folder / f"{name}-prompt.pml"
            yield {"use_case": use_case} | measure_case(engine, schema, prompt, threads, repeats)


def measure_case(engine: Engine, schema: Path, prompt: Path, threads: int, repeats: int) -> Row:
    """Run both arms in turn. ratio: between the smallest times. encode_ms: time to encode all modules of the schema."""
    schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
    layout = schemas.add(read_schema(schema))
    plan = schemas.bind(read_prompt(prompt)).plan
    started = time.perf_counter()
    engine.encode(schemas.segments_of(layout)).result()
    encode_ms = (time.perf_counter() - started) * 1e3

    def answered(reuse: Reuse) -> Completion:
        engine.drop_prefixes(PUBLIC_TENANT)  # those of earlier runs
        return first_token(engine, plan, reuse)

    answered("on")
    computed: list[Completion] = []
    reused: list[Completion] = []
    for _ in range(repeats):
        computed.append(answered("off"))
        reused.extend(answered("on") for _ in range(3))
    slow = [completion.timings.ttft for completion in computed]
    fast = [completion.timings.ttft for completion in reused]
    return {
        "model": engine.model.info.name,
        "threads": threads,
        "prompt_tokens": plan.num_tokens,
        "computed_tokens": reused[-1].usage.computed,
        "computed_ms_min": round(min(slow), 1),
        "computed_ms_median": round(statistics.median(slow), 1),
        "reused_ms_min": round(min(fast), 1),
        "reused_ms_median": round(statistics.median(fast), 1),
        "ratio": round(min(slow) / min(fast), 1),
        "encode_ms": round(encode_ms, 1),
    }


def markdown(result: dict[str, Any], command: str) -> str:
    columns = {
        "use_case": "use case",
        "model": "model",
        "threads": "threads",
        "prompt_tokens": "prompt tokens",
        "computed_tokens": "computed with reuse",
        "computed_ms_min": "nothing reused, ms",
        "reused_ms_min": "modules reused, ms",
        "ratio": "ratio",
        "encode_ms": "encoding, once, ms",
    }
    return (
        f"`{command}` on {result['machine']}; {result['dtype']}; smallest of {result['repeats']} runs "
        f"({3 * result['repeats']} with reuse), both arms in turn, the same tokens at the same position ids. "
        "Encoding covers every module of the schema, imported or not.\n\n" + table(result["rows"], columns)
    )
