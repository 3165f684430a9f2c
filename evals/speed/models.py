"""The model under test and its engines, and the lower bounds of the machine: measured memory bandwidth and matrix
products, and the model speed that they allow.

A forward pass cannot be faster than one read of its weights, keys and values, nor than its multiplications. Both are
measured in the same process and with the same threads as the results that are compared with them. Answers always have
the requested length. Out of scope: CPU caches. They may contain the data of a short pass, which can then be faster than
a read from memory.
"""

import ctypes
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app.domain.settings import Settings
from cache.attention.items import Chunk
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, Request, Reuse
from cache.memory.arena import Arena, Extent
from cache.memory.store import Store
from cache.model.gguf_file import GGUFFile, Values
from cache.model.language_model import Model
from cache.model.loading import find_device, load_model, load_packed, load_stock
from cache.model.packed_model import in_large_pages
from cache.model.source import bundled_gguf, open_gguf
from cache.native.decoder import load_library
from cache.prompt.plan import Plan, Segment
from evals.peers.random_prompts import answer_of, no_stop_tokens
from evals.report import describe_machine, table

TIME_S = 180  # seconds in which parts of a measurement may begin; each ends within two minutes, so all within five
Report = Callable[[str], None]


@contextmanager
def using_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


READ_BYTES = 512 << 20  # more than any CPU cache
PRODUCT = (512, 2048, 8192)  # rows, inputs, outputs: large enough for the highest rate
STEPS = 2_000_000  # of products of 8 bits
REPEATS = 5
QUESTION_TOKENS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Limits of the machine, measured with `threads` threads. flops: operations per second. products: their dtype."""

    threads: int
    bytes_per_s: float
    flops: float
    products: str = "float32"

    def seconds(self, num_bytes: float, operations: float) -> float:
        return max(num_bytes / self.bytes_per_s, operations / self.flops)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCost:
    """Reads and operations of forward passes. layer_weights, head_weights: numbers of weights, without the embeddings.
    attention_width: size of the queries of all heads and layers. kv_bytes: per token.
    """

    layer_weights: int
    head_weights: int
    weight_bytes: float
    attention_width: int
    kv_bytes: int

    @classmethod
    def of_file(cls, file: GGUFFile) -> "ModelCost":
        """Return the costs of a model that runs directly from its GGUF file."""
        values = Values(file)
        matrices = {name: one for name, one in file.tensors.items() if len(one.shape) > 1}
        head = matrices.pop("output.weight" if "output.weight" in matrices else "token_embd.weight")
        matrices.pop("token_embd.weight", None)
        weights = sum(math.prod(one.shape) for one in matrices.values()), math.prod(head.shape)
        return cls(
            layer_weights=weights[0],
            head_weights=weights[1],
            weight_bytes=sum(len(one.data) for one in (*matrices.values(), head)) / sum(weights),
            attention_width=values["block_count"] * values["attention.head_count"] * values.head_dim,
            kv_bytes=4 * values["block_count"] * values.kv_heads * values.head_dim,
        )

    @classmethod
    def of(cls, hf: Any) -> "ModelCost":
        config = hf.config
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        head = hf.get_output_embeddings().weight
        matrices = [m.weight for m in hf.modules() if isinstance(m, nn.Linear) and m.weight is not head]
        return cls(
            layer_weights=sum(weight.numel() for weight in matrices),
            head_weights=head.numel(),
            weight_bytes=hf.dtype.itemsize,
            attention_width=config.num_hidden_layers * heads * head_dim,
            kv_bytes=2 * config.num_hidden_layers * kv_heads * head_dim * hf.dtype.itemsize,
        )

    def pass_seconds(self, floor: Floor, *, rows: int, seen: int, stored: int, outputs: int) -> float:
        """Return the shortest time of a pass of `rows` rows that each see `seen` tokens. stored: number of different
        tokens that all rows see. outputs: rows that need logits.
        """
        weights = self.layer_weights + self.head_weights
        operations = 2 * (rows * self.layer_weights + outputs * self.head_weights)
        operations += 4 * rows * seen * self.attention_width
        return floor.seconds(weights * self.weight_bytes + stored * self.kv_bytes, operations)

    def decode_rate(self, floor: Floor, *, conversations: int, seen: int, stored: int) -> float:
        seconds = self.pass_seconds(floor, rows=conversations, seen=seen, stored=stored, outputs=conversations)
        return conversations / seconds

    def first_token_ms(self, floor: Floor, *, computed: int, placed: int) -> float:
        """Return the shortest time to the first token after `placed` tokens that are not computed."""
        seen = placed + (computed + 1) // 2
        return 1e3 * self.pass_seconds(floor, rows=computed, seen=seen, stored=placed + computed, outputs=1)


def measure_floor(dtype: torch.dtype, library: ctypes.CDLL | None = None) -> Floor:
    """Measure memory reads and products, in `dtype` or (library: compiled code) in 8 bits as for packed weights."""
    numbers = in_large_pages(READ_BYTES).view(torch.float32).fill_(1)
    threads = torch.get_num_threads()
    bytes_per_s = READ_BYTES / shortest(numbers.sum)
    if library is not None:
        library.warmdesk_multiply_8bit.restype = ctypes.c_double
        run = partial(library.warmdesk_multiply_8bit, threads, ctypes.c_long(STEPS))
        if operations := run():
            return Floor(threads=threads, bytes_per_s=bytes_per_s, flops=operations / shortest(run), products="8-bit")
    rows, inputs, outputs = PRODUCT
    left, right = torch.randn(rows, inputs).to(dtype), torch.randn(outputs, inputs).to(dtype)
    return Floor(
        threads=threads,
        bytes_per_s=bytes_per_s,
        flops=2 * rows * inputs * outputs / shortest(lambda: nn.functional.linear(left, right)),
        products=str(dtype).removeprefix("torch."),
    )


def wall_seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def shortest(
    run: Callable[[], object], timed: Callable[[Callable[[], object]], float] = wall_seconds, repeats: int = REPEATS
) -> float:
    for _ in range(3):
        run()
    return min(timed(run) for _ in range(repeats))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A model, and the cost of its passes."""

    model: Model
    cost: ModelCost
    library: ctypes.CDLL | None = None

    @classmethod
    def load(cls, settings: Settings, report: Report = print) -> "Measured":
        """Load a model as a server does, but without an adapter. A GGUF file runs directly."""
        name, converted = settings.model, settings.models_folder
        report(f"loading {name or 'the bundled model'}")
        if (model := load_packed(name, converted, None)) is None:
            hf, _, _ = load_stock(name, device=find_device("cpu"), converted=converted)
            cost, other = ModelCost.of(hf), load_model(name, device="cpu", converted=converted)
            other.info = no_stop_tokens(other.info)
            return cls(model=other, cost=cost)
        model.info = no_stop_tokens(model.info)
        path = bundled_gguf() if name is None else Path(name).expanduser()
        library = load_library(converted, torch.bfloat16)
        return cls(model=model, cost=ModelCost.of_file(open_gguf(path)), library=library)

    def floor(self) -> Floor:
        return measure_floor(getattr(torch, self.model.info.kv.dtype), self.library)

    def described(self) -> dict[str, str]:
        info = self.model.info
        dtype = "its own bits" if self.library else info.kv.dtype
        return {"machine": describe_machine(), "model": info.name, "dtype": dtype}


def measure_floors(
    settings: Settings, threads: tuple[int, ...], sizes: tuple[int, ...], report: Report
) -> dict[str, Any]:
    measured = Measured.load(settings, report)
    floors, rows = [], []
    for count in threads:
        with using_threads(count):
            floor = measured.floor()
            floors.append(describe_floor(floor) | reached_by(measured, floor))
        rows += [allowed(measured.cost, floor, size) for size in sizes]
    return {
        "machine": describe_machine(),
        "model": settings.model or "bundled",
        "question_tokens": QUESTION_TOKENS,
        "cost": asdict(measured.cost),
        "floors": floors,
        "rows": rows,
    }


def reached_by(measured: Measured, floor: Floor) -> dict[str, str]:
    """Return shares of the limits that passes reach. Their rows see only themselves, so the passes are all products."""
    model = measured.model
    arena = Arena(model.info.kv, PRODUCT[0], model.device)

    def share(rows: int, outputs: int) -> str:
        chunks = [Chunk([0], [0], 0, [Extent(row, 1)], []) for row in range(rows)]
        allowed = measured.cost.pass_seconds(floor, rows=rows, seen=1, stored=rows, outputs=outputs)
        return f"{allowed / shortest(lambda: model.forward(chunks, arena, range(outputs))):.0%}"

    return {"at_512_rows": share(PRODUCT[0], 0), "at_1_row": share(1, 1)}


def describe_floor(floor: Floor) -> dict[str, Any]:
    return {
        "threads": floor.threads,
        "memory_gb_per_s": round(floor.bytes_per_s / 1e9, 1),
        "products_gop_per_s": round(floor.flops / 1e9, 1),
        "products": floor.products,
    }


def limits_in_words(floor: dict[str, Any]) -> str:
    return f"{floor['memory_gb_per_s']} GB/s, {floor['products_gop_per_s']} GOP/s of {floor['products']} products"


def allowed(cost: ModelCost, floor: Floor, size: int) -> dict[str, float]:
    return {
        "threads": floor.threads,
        "document_tokens": size,
        "decode_tokens_per_s": round(cost.decode_rate(floor, conversations=1, seen=size, stored=size), 1),
        "decode_16_tokens_per_s": round(cost.decode_rate(floor, conversations=16, seen=size, stored=size), 1),
        "reuse_ttft_ms": round(cost.first_token_ms(floor, computed=QUESTION_TOKENS, placed=size), 2),
        "full_prefill_ttft_ms": round(cost.first_token_ms(floor, computed=size + QUESTION_TOKENS, placed=0), 1),
    }


def markdown(result: dict[str, Any], command: str) -> str:
    floors = {
        "threads": "threads",
        "memory_gb_per_s": "memory, GB/s",
        "products_gop_per_s": "products, GOP/s",
        "products": "of",
        "at_512_rows": "reached by products of 512 rows",
        "at_1_row": "of memory, by 1 row",
    }
    rows = {
        "threads": "threads",
        "document_tokens": "document tokens",
        "decode_tokens_per_s": "one answer, tokens/s",
        "decode_16_tokens_per_s": "16 that share all documents, tokens/s",
        "reuse_ttft_ms": "first token with reuse, ms",
        "full_prefill_ttft_ms": "without, ms",
    }
    return (
        f"`{command}` on {result['machine']}; model {result['model']}, best of {REPEATS} repeats.\n\n"
        + table(result["floors"], floors)
        + f"\n\nLimits that follow, with a question of {result['question_tokens']} tokens:\n\n"
        + table(result["rows"], rows)
    )


class Deadline:
    """Ends a measurement in time: parts that would begin too late are skipped and reported. report: gets a line."""

    def __init__(self, report: Report, seconds: float = TIME_S) -> None:
        self._report, self._end = report, time.monotonic() + seconds

    def allows(self, what: str) -> bool:
        if time.monotonic() < self._end:
            return True
        self._report(f"skipped, because no time is left: {what}")
        return False


@contextmanager
def warm_engine(model: Model, tokens: int, segments: Sequence[Segment] = (), **options: Any) -> Iterator[Engine]:
    """Open an engine with KV memory for `tokens` tokens and encode the segments. options: passed to `Engine`."""
    engine = Engine(model, memory=tokens * model.info.kv.bytes_per_token, **options).start()
    try:
        if segments:
            engine.encode(segments).result()
        yield engine
    finally:
        engine.close()


def first_token(engine: Engine, plan: Plan, reuse: Reuse = "on") -> Completion:
    return engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1), reuse=reuse)).completion


def decode_rate(engine: Engine, plans: Sequence[Plan], sampling: Sampling, reuse: Reuse = "on") -> float:
    """Answer all prompts at once. Returns tokens per second without each answer's first token, from the earliest first
    token to the last token.
    """
    started, answers = [], []
    for plan in plans:
        started.append(time.perf_counter())
        answers.append(engine.submit(Request(plan=plan, sampling=sampling, reuse=reuse)))
    timings = [answer.completion.timings for answer in answers]
    first = min(at + 1e-3 * timing.ttft for at, timing in zip(started, timings, strict=True))
    last = max(at + 1e-3 * timing.total for at, timing in zip(started, timings, strict=True))
    return len(plans) * (sampling.max_tokens - 1) / (last - first)


def most_slots_used(engine: Engine, plans: Sequence[Plan], answer_tokens: int) -> int:
    answers = [engine.submit(Request(plan=plan, sampling=answer_of(answer_tokens))) for plan in plans]
    used = 0
    for answer in answers:
        for _ in answer:
            used = max(used, engine.call(_slots_in_use))
    return max(used, engine.call(_slots_in_use))


def _slots_in_use(store: Store) -> int:
    return store.device.allocator.capacity - store.device.allocator.free_slots
