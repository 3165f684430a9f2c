"""Errors of the engine, one small tree. Broken invariants are assertions and do not appear here.

CacheError
├── PromptError       the prompt cannot be run: empty, too long for the model (caller's mistake)
├── ModelError        the model cannot be loaded or is of a family the engine does not know
├── CapacityError     the KV memory cannot hold what one request needs, even when everything else is evicted
└── EngineStopped     the engine was shut down, or failed, while the request was waiting or running
"""


class CacheError(Exception):
    """Base of every error that `cache` raises on purpose; the message is one line for a person."""


class PromptError(CacheError):
    """The prompt cannot be run as asked; nothing was computed."""


class ModelError(CacheError):
    """The model cannot be used; the message names it and says what to do."""


class CapacityError(CacheError):
    """One request needs more KV memory than the arena has."""


class EngineStopped(CacheError):
    """The engine no longer serves requests."""
