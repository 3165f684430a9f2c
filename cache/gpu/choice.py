"""The choice of attention kernels on a device, by the size of a pass. Missing or failing kernels are found once, before
there are requests. Triton is imported only here and where it is used, so that it may be missing.
"""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch

from cache.gpu.graphs import Capture, CudaCapture

if TYPE_CHECKING:
    from cache.gpu.tiled_pass import TiledPass
    from cache.gpu.varlen_pass import VarlenPass

    PassKind = type[TiledPass] | type[VarlenPass]

log = logging.getLogger(__name__)

BEST: tuple[tuple[float, tuple[str, ...]], ...] = ((math.inf, ("tiled", "varlen")),)
"""For passes up to each number of rows: fields of `PassKinds`, best first. None was measured on a GPU yet, and Triton's
kernels cover most.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassKinds:
    """The kinds of pass that a device runs. Without any, plain kernels run."""

    tiled: "type[TiledPass] | None" = None
    varlen: "type[VarlenPass] | None" = None

    def best(self, rows: int) -> "PassKind | None":
        names = next(names for most, names in BEST if rows <= most)
        return next((kind for name in names if (kind := getattr(self, name)) is not None), None)


def kinds_for(device: torch.device, attempt: "Callable[[PassKind], None]") -> PassKinds:
    """Return the best kinds that a device runs. attempt: runs a small pass of a kind, and raises its errors."""
    working: dict[str, Any] = {}
    problems: dict[str, str] = {}
    for _, names in BEST if device.type == "cuda" else ():
        for name in names:
            if name not in working and name not in problems:
                try:
                    kind = LOADERS[name]()
                    attempt(kind)
                    working[name] = kind
                except Exception as error:
                    problems[name] = " ".join(str(error).split("\n")[:1]) or type(error).__name__
            if name in working:
                break
    if problems:
        why = "; ".join(f"{TITLES[name]}: {problem}" for name, problem in problems.items())
        instead = " and ".join(TITLES[name] for name in working) or "slower kernels"
        log.warning("attention on %s runs through %s, because others are not available (%s)", device, instead, why)
    return PassKinds(**working)


def load_tiled() -> "type[TiledPass]":
    if find_spec("triton") is None:
        raise ImportError("not installed, pip install triton")
    from cache.gpu.tiled_pass import TiledPass

    return TiledPass


def load_varlen() -> "type[VarlenPass]":
    from cache.gpu.varlen_pass import VarlenPass

    return VarlenPass


LOADERS: "dict[str, Callable[[], PassKind]]" = {"tiled": load_tiled, "varlen": load_varlen}
TITLES = {"tiled": "Triton", "varlen": "varlen_attn"}


def kinds_to_compare(device: torch.device) -> "dict[str, PassKind]":
    found: dict[str, PassKind] = {}
    for name, load in LOADERS.items() if device.type == "cuda" else ():
        with suppress(ImportError):
            found[TITLES[name]] = load()
    return found


def capture_for(device: torch.device) -> Capture | None:
    return CudaCapture(device) if device.type == "cuda" else None
