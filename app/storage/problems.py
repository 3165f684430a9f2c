"""Common parts of `sqlite` and `postgres`: problems, and execution options of transactions."""

from typing import Final, NamedTuple

WRITES: Final = "warmdesk_writes"
"""Execution option of connections whose transactions hold the write lock from their start."""

MIGRATES: Final = "warmdesk_migrates"
"""Execution option of a transaction that changes tables: it waits for other writers, and has no time limit."""


class Problem(NamedTuple):
    """A problem that a person can fix. code: of the DeskError. what: happened. cure: the fix."""

    code: str
    what: str
    cure: str
