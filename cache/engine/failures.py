"""Errors of the engine's work: shortages of device memory, and what a reader is told."""

import logging

import torch

from cache.errors import CacheError, CapacityError

log = logging.getLogger(__name__)

_TEXTS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "[CUDA]: out of memory")
"""Messages of cuBLAS, CUDA and Triton when memory is short. PyTorch raises them as untyped errors."""
NO_MEMORY = (
    "the device has no memory left for passes, not even of one token: lower device_memory "
    "(--memory), or stop other programs on the device"
)


def failure_of(what: str, error: Exception) -> CacheError:
    """Return the reader's error for a failure. An unforeseen one may name files, so its text is only in the log."""
    if isinstance(error, CacheError):
        return error
    log.error("%s could not be computed", what, exc_info=error)
    if is_shortage(error):
        return CapacityError(NO_MEMORY)
    return CacheError(f"{what} could not be computed: ask again (the log has the cause)")


def is_shortage(error: BaseException) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _TEXTS)
