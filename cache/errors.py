"""Errors of the engine, one small tree. Broken invariants are assertions and do not appear here.

CacheError
├── PromptError       the prompt cannot be run: empty, too long for the model (caller's mistake)
├── PMLError          a schema, a prompt or a prompt program is wrong: says where and what to do (author's mistake)
├── ModelError        the model cannot be loaded or is of a family the engine does not know
├── CapacityError     the KV memory cannot hold what one request needs, even when everything else is evicted
├── PlanError         what is to be planned is described wrongly: names the file, the line, the cure
├── EngineFull        too many requests wait, or this one has waited too long: try again soon
├── EngineBusy        what was to be computed while nothing else is to do: something else was
├── ServerFailed      the server of a model that runs elsewhere is away, or refused what it was asked
└── EngineStopped     the engine was shut down, or failed, while the request was waiting or running
"""

from typing import Literal

Where = Literal["schema", "prompt", "registry", "program"]


class CacheError(Exception):
    """Base of every error that `cache` raises on purpose; the message is one line for a person."""


class PromptError(CacheError):
    """The prompt cannot be run as asked; nothing was computed."""


class PMLError(CacheError):
    """A mistake in PML. Nothing was registered, laid out or computed.

    where: in which kind of text. line: 1-based, of the start tag at fault, or None. column: 0-based, or None.
    source: name of the file or function, or None; filled in by the reader of that file.
    """

    def __init__(self, message: str, *, where: Where, line: int | None = None, column: int | None = None) -> None:
        super().__init__(message)
        self.message, self.where, self.line, self.column = message, where, line, column
        self.source: str | None = None

    def __str__(self) -> str:
        """`file:line: message`, as far as they are known."""
        line = f":{self.line}" if self.line else ""
        return f"{self.source or self.where}{line}: {self.message}"


class ModelError(CacheError):
    """The model cannot be used; the message names it and says what to do."""


class CapacityError(CacheError):
    """One request needs more KV memory than the arena has."""


class PlanError(CacheError):
    """What machines are planned for cannot be read or makes no sense."""


class EngineFull(CacheError):
    """More was asked than can be answered in time."""


class EngineBusy(CacheError):
    """Something else had to be computed; try it again when the engine is idle."""


class ServerFailed(CacheError):
    """The server of a model that runs elsewhere gave no answer; the message names it and says what to do."""


class EngineStopped(CacheError):
    """The engine no longer serves requests."""
