"""Whether a device runs the kernels for GPUs. Triton is imported only there, so that it may be missing elsewhere."""

import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from cache.gpu.graphs import Capture, CudaCapture

if TYPE_CHECKING:
    from cache.gpu.tiled_pass import TiledPass

log = logging.getLogger(__name__)


def tiled_pass_for(device: torch.device) -> "type[TiledPass] | None":
    """The kind of pass with kernels for GPUs; None on other devices, and where Triton is missing."""
    if device.type != "cuda":
        return None
    if find_spec("triton") is None:
        log.warning(
            "attention on %s runs through slower kernels, because Triton is missing: pip install triton", device
        )
        return None
    from cache.gpu.tiled_pass import TiledPass

    return TiledPass


def capture_for(device: torch.device) -> Capture | None:
    """What captures graphs on a device; None where there are none."""
    return CudaCapture(device) if device.type == "cuda" else None
