"""The choice of attention kernels on a device. Missing or failing kernels are detected once, before the first request.
Only this file and the code that runs kernels import Triton, so it is optional.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from cache.gpu.graphs import Capture, CudaCapture

if TYPE_CHECKING:
    from cache.gpu.tiled_pass import TiledPass
    from cache.gpu.varlen_pass import VarlenPass

    PassKind = type[TiledPass] | type[VarlenPass]

log = logging.getLogger(__name__)


def best_kind(device: torch.device, attempt: "Callable[[PassKind], None]") -> "PassKind | None":
    """Return the best kind of pass that works on a device; None: plain kernels. attempt: runs a small pass of a kind,
    and raises its errors.
    """
    best: PassKind | None = None
    title, problems = "slower kernels", list[str]()
    for name, load in KINDS.items() if device.type == "cuda" else ():
        try:
            attempt(kind := load())
            best, title = kind, name
            break
        except Exception as error:
            what, *_ = str(error).splitlines() or [type(error).__name__]
            problems.append(f"{name}: {what}")
    if problems:
        why = "; ".join(problems)
        log.warning("attention on %s uses %s, because better kernels are not available (%s)", device, title, why)
    return best


def load_tiled() -> "type[TiledPass]":
    if find_spec("triton") is None:
        raise ImportError("not installed, pip install triton")
    from cache.gpu.tiled_pass import TiledPass

    return TiledPass


def load_varlen() -> "type[VarlenPass]":
    from cache.gpu.varlen_pass import VarlenPass

    return VarlenPass


KINDS: "dict[str, Callable[[], PassKind]]" = {"Triton": load_tiled, "varlen_attn": load_varlen}
"""Best first: Triton's kernels cover most. None was measured on a GPU yet."""


def kinds_to_compare(device: torch.device) -> "dict[str, PassKind]":
    found: dict[str, PassKind] = {}
    for name, load in KINDS.items() if device.type == "cuda" else ():
        with suppress(ImportError):
            found[name] = load()
    return found


def capture_for(device: torch.device) -> Capture | None:
    return CudaCapture(device) if device.type == "cuda" else None
