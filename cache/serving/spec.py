"""What an engine needs to begin, as values: which model, where its files are, how much memory, how many requests."""

from pathlib import Path

import torch
from msgspec import Struct

from cache.engine.device_memory import ArenaSize
from cache.engine.limits import Limits
from cache.engine.log_lines import LogFormat, LogLevel
from cache.memory.kv_format import KVStorage
from cache.model.rounding import Weights
from cache.prompt.arrangement import Placement


class EngineSpec(Struct, frozen=True, kw_only=True):
    """What an engine needs to begin. model, device, converted, adapter, weights, dtype: see `load_model`. disk: bytes
    on disk in `modules`; 0: no disk tier. disk_floor: bytes that stay free there, see `cache.memory.free_space`.
    shared: where the disk tier is instead, if engines share it: a folder or a URL of fsspec. threads: CPU threads of
    computing; None: PyTorch's own choice, but no more than the process may use processors. log_format, log_level: of a
    process of its own. The others: see `Engine`.
    """

    model: str | None
    converted: Path
    modules: Path
    memory: ArenaSize
    host_memory: int = 0
    disk: int = 0
    disk_floor: int | None = None
    shared: str | None = None
    kv_storage: KVStorage = "model"
    device: str = "cpu"
    adapter: Path | None = None
    weights: Weights = "model"
    dtype: torch.dtype | None = None
    placement: Placement = "contiguous"
    slot: int = 256
    limits: Limits = Limits()
    threads: int | None = None
    log_format: LogFormat = "text"
    log_level: LogLevel = "warning"
