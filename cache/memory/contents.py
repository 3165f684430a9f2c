"""What the tiers of a store hold, as values that can be shown and sent. Not covered: changing it (`store`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cache.memory.disk import DiskTier
from cache.memory.free_space import FreeSpace
from cache.memory.kv_format import kept_bytes_per_token
from cache.memory.module_header import ModuleHeader
from cache.memory.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class TierContents:
    """What the tiers hold. modules: tier, header and bytes, the slowest tier first. num_bytes, capacity: by tier.
    evictions: by tier, of the device by kind of what was evicted. space: of the disk tier's disk, if that is known.
    failed_writes, skipped_writes: modules that the disk did not take, and had no time for.
    """

    modules: tuple[tuple[str, ModuleHeader, int], ...] = ()
    num_bytes: Mapping[str, int] = field(default_factory=dict)
    capacity: Mapping[str, int] = field(default_factory=dict)
    evictions: Mapping[str, int] = field(default_factory=dict)
    space: FreeSpace | None = None
    failed_writes: int = 0
    skipped_writes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleCheck:
    """What is stored of a module against what the model computes. largest_difference: of a number, as a share of the
    largest one; None if what is stored could not be read, and why is in `problem`.
    """

    largest_difference: float | None
    problem: str = ""


def contents_of(store: Store, *, with_modules: bool) -> TierContents:
    """The tiers of a store. with_modules: whether each module is in it. On the engine's thread."""
    device, host, disk, shape = store.device, store.host, store.disk, store.arena.shape
    per_token, per_kept = shape.bytes_per_token, kept_bytes_per_token(shape, store.kv_storage)
    sizes = {"device": per_token, "host": per_kept, "disk": per_kept}
    held = [("device", entry.header) for entry in device.entries.values()]
    num_bytes = {"device": (device.allocator.capacity - device.allocator.free_slots) * per_token}
    capacity, evictions = {"device": device.allocator.capacity * per_token}, dict(device.evictions)
    if host.capacity:
        held = [("host", entry.header) for entry in host.entries.values()] + held
        num_bytes["host"], capacity["host"], evictions["host"] = host.num_bytes, host.capacity, host.evictions
    if disk is not None:
        held = [("disk", header) for header in disk.headers()] + held
        num_bytes["disk"], capacity["disk"], evictions["disk"] = disk.num_bytes, disk.capacity, disk.evictions
    return TierContents(
        modules=tuple((tier, header, header.num_tokens * sizes[tier]) for tier, header in held if with_modules),
        num_bytes=num_bytes,
        capacity=capacity,
        evictions=evictions,
        space=None if disk is None else disk.space,
        failed_writes=store.unwritten[0],
        skipped_writes=store.unwritten[1],
    )


def contents_on_disk(disk: DiskTier) -> TierContents:
    """The disk tier alone, where no engine runs."""
    return TierContents(
        modules=tuple(("disk", entry.header, entry.num_bytes) for entry in disk.entries.values()),
        num_bytes={"disk": disk.num_bytes},
        capacity={"disk": disk.capacity},
        space=disk.look(),
    )


def module_room(store: Store) -> int:
    """Tokens of modules that the largest tier holds."""
    per_token = kept_bytes_per_token(store.arena.shape, store.kv_storage)
    on_disk = 0 if store.disk is None else store.disk.capacity // per_token
    return max(on_disk, store.device.allocator.capacity)


def largest_difference(stored: Tensor, computed: Tensor) -> float:
    """Of two numbers at the same place, as a share of the largest stored number."""
    largest = stored.abs().max().item() or 1.0
    return float((stored - computed).to(torch.float32).abs().max().item() / largest)
