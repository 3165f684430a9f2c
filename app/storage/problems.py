"""What `sqlite` and `postgres` share: how they name a problem, and how a transaction is marked that may write."""

from typing import Final, NamedTuple

WRITES: Final = "warmdesk_writes"
"""Execution option of connections whose transactions hold the write lock from their start."""

MIGRATES: Final = "warmdesk_migrates"
"""Execution option of a transaction that changes tables: it waits patiently for other writers, and has time."""


class Problem(NamedTuple):
    """A problem that a person can correct. code: of the DeskError. what: happened. cure: what to do."""

    code: str
    what: str
    cure: str
