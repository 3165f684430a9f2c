"""Costs of a model's forward passes on a machine: measured for one model, scaled for others by operations.

Out of scope: measuring (`calibration`).
"""

import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cache.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a Llama-like model, with weights of `number_bytes` each."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def layer_weights(self) -> int:
        attention = 2 * self.hidden * (self.heads + self.kv_heads) * self.head_dim
        return self.layers * (attention + 3 * self.hidden * self.intermediate)

    @property
    def weights(self) -> int:
        return self.layer_weights + self.hidden * self.vocabulary

    @property
    def attention_width(self) -> int:
        """Width of the queries of all heads and layers."""
        return self.layers * self.heads * self.head_dim

    def bytes_per_token(self, number_bytes: int) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * number_bytes


BUNDLED = "bundled"
SHAPES = {
    BUNDLED: ModelShape(layers=30, hidden=576, intermediate=1536, heads=9, kv_heads=3, head_dim=64, vocabulary=49_152),
    "Qwen2.5-0.5B": ModelShape(
        layers=24, hidden=896, intermediate=4864, heads=14, kv_heads=2, head_dim=64, vocabulary=151_936
    ),
    "Qwen3-4B": ModelShape(
        layers=36, hidden=2560, intermediate=9728, heads=32, kv_heads=8, head_dim=128, vocabulary=151_936
    ),
    "Llama-3.1-8B": ModelShape(
        layers=32, hidden=4096, intermediate=14_336, heads=32, kv_heads=8, head_dim=128, vocabulary=128_256
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PassCosts:
    """Costs in seconds. A pass costs pass_s, plus prefill_row_s per prompt row, decode_row_s per row of a running
    answer, read_token_s per token whose keys and values some row sees, and pair_s per pair of a row and such a token. A
    request costs request_s once, a token from disk load_token_s. threads: an engine's, on a machine of `cores`.
    crowded: slowdown of a pass while one engine per core computes. is_scaled: scaled, not measured.
    """

    model: str
    machine: str
    threads: int
    cores: int
    number_bytes: int
    pass_s: float
    prefill_row_s: float
    decode_row_s: float
    read_token_s: float
    pair_s: float
    request_s: float
    load_token_s: float
    crowded: float = 1.0
    is_scaled: bool = False

    @property
    def bytes_per_token(self) -> int:
        return SHAPES[self.model].bytes_per_token(self.number_bytes)

    @property
    def weight_bytes(self) -> int:
        return SHAPES[self.model].weights * self.number_bytes

    def pass_seconds(self, prefill_rows: int, decode_rows: int, read_tokens: float, pairs: float) -> float:
        rows = prefill_rows * self.prefill_row_s + decode_rows * self.decode_row_s
        return self.pass_s + rows + read_tokens * self.read_token_s + pairs * self.pair_s

    def shares_cores(self, busy: int) -> bool:
        return busy * self.threads > self.cores

    def slowdown(self, busy: int, chance: float) -> float:
        """Return the slowdown of a pass while `busy` engines of a machine compute. Up to the number of cores they
        compete for memory; beyond it they share cores, and some cores have one thread more. chance: from 0 to 1,
        decides whether this engine has a thread on such a core.
        """
        most = max(1, self.cores // self.threads)
        waiting = (min(busy, most) - 1) / (most - 1) if most > 1 else 0.0
        on_each, left = divmod(busy * self.threads, self.cores)
        crowded_threads = left * (on_each + 1) / (busy * self.threads)
        is_on_one = chance < 1 - (1 - crowded_threads) ** self.threads
        return (1 + (self.crowded - 1) * waiting) * max(1, on_each + is_on_one)

    def scaled_to(self, model: str) -> "PassCosts":
        """Return the costs of another model on the same machine: passes scaled by weights read, rows by weights
        multiplied, pairs by queries, reads of tokens by bytes.
        """
        if model == self.model:
            return self
        old, new = SHAPES[self.model], SHAPES[model]
        rows = new.layer_weights / old.layer_weights
        width = new.bytes_per_token(1) / old.bytes_per_token(1)
        return replace(
            self,
            model=model,
            pass_s=self.pass_s * new.weights / old.weights,
            prefill_row_s=self.prefill_row_s * rows,
            decode_row_s=self.decode_row_s * rows,
            pair_s=self.pair_s * new.attention_width / old.attention_width,
            read_token_s=self.read_token_s * width,
            load_token_s=self.load_token_s * width,
            is_scaled=True,
        )


def threads_each(engines: int) -> int:
    return max(1, (os.cpu_count() or 1) // engines)


def known_shape(model: str) -> str:
    if model not in SHAPES:
        raise PlanError(f"--model is {model!r}: give one of {', '.join(SHAPES)}")
    return model


def read_costs(file: Path) -> PassCosts:
    try:
        costs = PassCosts(**json.loads(file.read_text(encoding="utf-8")))
        known_shape(costs.model)
        if min(costs.pass_s, costs.prefill_row_s, costs.threads, costs.cores, costs.number_bytes) <= 0:
            raise ValueError(costs)
    except OSError as error:
        raise PlanError(f"{file}: {error.strerror or error}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise PlanError(f"{file} has no costs of forward passes: delete it, and they are measured again") from error
    return costs


def write_costs(costs: PassCosts, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(costs), indent=2) + "\n", encoding="utf-8")
