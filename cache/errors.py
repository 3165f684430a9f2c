"""The errors of the engine. Broken invariants are assertions instead."""

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
    """A mistake in PML. line: 1-based, of the wrong start tag, or None. column: 0-based, or None. source: name of the
    file or function, or None; filled in by the file's reader.
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
    """Other work had to be computed. Try again when the engine is idle."""


class ServerFailed(CacheError):
    """The server of a remote model is unreachable or refused a request; the message names it and the fix."""


class EngineStopped(CacheError):
    """The engine was stopped, or failed, while the request was waiting or running."""
