"""Lower bounds of the machine: measured memory bandwidth and matrix products, and the model speed that they allow.

A forward pass cannot be faster than one read of its weights, keys and values, nor than its multiplications. Both are
measured in the same process and with the same threads as the results that are compared with them. Out of scope: CPU
caches. They may contain the data of a short pass, which can then be faster than a read from memory.
"""

import ctypes
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app.domain.settings import Settings
from cache.attention.items import Chunk
from cache.memory.arena import Arena, Extent
from cache.model.gguf_file import GGUFFile
from cache.model.loading import bundled_gguf, find_device, load_packed, load_stock, open_gguf
from cache.model.packed_model import PackedModel, Values, in_large_pages
from cache.native.decoder import load_library
from evals.report import describe_machine, table


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
    """Measured limits of the machine with a number of threads. flops: operations of products of such numbers."""

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
        """Of a model that runs from its GGUF file as it is."""
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
        """Return the shortest time of a pass of `rows` rows that each see `seen` tokens, of which `stored` are
        different. outputs: rows that need logits.
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
    """Measure reading, and products of a dtype, or with compiled code those of 8 bits, as packed weights need them."""
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


def measure_floors(settings: Settings, threads: tuple[int, ...], sizes: tuple[int, ...]) -> dict[str, Any]:
    path = bundled_gguf() if settings.model is None else Path(settings.model).expanduser()
    library = load_library(settings.models_folder, torch.bfloat16) if path.suffix == ".gguf" else None
    if path.suffix == ".gguf":
        cost, dtype = ModelCost.of_file(open_gguf(path)), torch.bfloat16
    else:
        hf, _, _ = load_stock(settings.model, device=find_device("cpu"), converted=settings.models_folder)
        cost, dtype = ModelCost.of(hf), hf.dtype
    model = load_packed(settings.model, settings.models_folder, None)
    floors, rows = [], []
    for count in threads:
        with using_threads(count):
            floor = measure_floor(dtype, library)
            reached = {} if model is None else reached_by(model, cost, floor)
        floors.append(describe_floor(floor) | reached)
        rows += [allowed(cost, floor, size) for size in sizes]
    return {
        "machine": describe_machine(),
        "model": settings.model or "bundled",
        "question_tokens": QUESTION_TOKENS,
        "cost": asdict(cost),
        "floors": floors,
        "rows": rows,
    }


def reached_by(model: PackedModel, cost: ModelCost, floor: Floor) -> dict[str, str]:
    """Return the shares of the limits that passes reach which read no other rows, so that all they do are products."""
    arena = Arena(model.info.kv, PRODUCT[0], model.device)

    def share(rows: int, outputs: int) -> str:
        chunks = [Chunk([0], [0], 0, [Extent(row, 1)], []) for row in range(rows)]
        seconds = shortest(lambda: model.forward(chunks, arena, range(outputs)))
        return f"{cost.pass_seconds(floor, rows=rows, seen=1, stored=rows, outputs=outputs) / seconds:.0%}"

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
        + f"\n\nWhat that allows, with a question of {result['question_tokens']} tokens:\n\n"
        + table(result["rows"], rows)
    )
