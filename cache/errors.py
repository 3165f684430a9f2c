"""Errors of the engine, and messages for errors of libraries. Broken invariants are assertions instead."""

import logging
from typing import Literal

Where = Literal["schema", "prompt", "registry", "program"]


class CacheError(Exception):
    """Base of all errors that `cache` raises on purpose. The message is one line for a person. wait_s: seconds until
    the next try, if a model server has asked for a wait.
    """

    wait_s = 0.0


class PromptError(CacheError):
    """The prompt cannot be run: it is empty or too long for the model. Nothing was computed."""


class PMLError(CacheError):
    """A mistake in PML. line: of the wrong start tag, from 1, or None. column: from 0, or None. source: name of the
    file or function, or None; set by the code that reads the file.
    """

    def __init__(self, message: str, *, where: Where, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.message, self.where, self.line, self.column = message, where, line, column
        self.source: str | None = None

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        return f"{self.source or self.where}{line}: {self.message}"


class ModelError(CacheError):
    """The model cannot be used; the message names it and the fix."""


class CapacityError(CacheError):
    """One request needs more KV memory than exists, even after evicting everything else."""


class PlanError(CacheError):
    """The input of a plan is unreadable or inconsistent."""


class EngineFull(CacheError):
    """Too many requests wait, or this one has waited too long."""


class EngineBusy(CacheError):
    """Work for idle time was refused or stopped, because the engine has other work. Try again when it is idle."""


class ServerFailed(CacheError):
    """The server of a remote model is unreachable or refused a request; the message names it and the fix."""


class EngineStopped(CacheError):
    """The engine was stopped, or failed, while the request was waiting or running."""


log = logging.getLogger(__name__)

_TEXTS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "[CUDA]: out of memory")
"""Messages of cuBLAS, CUDA and Triton when memory is short. PyTorch raises them as untyped errors."""
NO_MEMORY = (
    "the device has no memory left for passes, not even for one token: lower device_memory "
    "(--memory), or stop other programs on the device"
)


def failure_of(what: str, error: Exception) -> CacheError:
    """Return the error to show for a failure. Unforeseen errors go to the log only: their text may name files."""
    if isinstance(error, CacheError):
        return error
    log.error("%s could not be computed", what, exc_info=error)
    if is_shortage(error):
        return CapacityError(NO_MEMORY)
    return CacheError(f"{what} could not be computed: ask again (the log has the cause)")


def is_shortage(error: BaseException) -> bool:
    return type(error).__name__ == "OutOfMemoryError" or any(text in str(error) for text in _TEXTS)
