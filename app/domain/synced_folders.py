"""Folders that the desk reads again and again: what is known of each, and what its last reading did."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadFile:
    """A file that was not taken in, or not in whole, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """What one reading of a folder did, in documents. files: those that were not taken in, or not in whole; only the
    first of them, num_files says how many there are. problem: why the reading failed, "" if it did not; code: of that
    DeskError.
    """

    added: int = 0
    changed: int = 0
    removed: int = 0
    unchanged: int = 0
    files: tuple[UnreadFile, ...] = ()
    num_files: int = 0
    code: str = ""
    problem: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether the folder was read; single files may be left out."""
        return not self.problem

    @property
    def num_changes(self) -> int:
        """Documents that are not as they were before."""
        return self.added + self.changed + self.removed


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedFolder:
    """A folder that is read every so many minutes, into a collection. folder: its absolute path. last_run, last_result:
    None before the first reading. next_run: when it is due.
    """

    folder: str
    collection: str
    every_minutes: int
    next_run: datetime
    last_run: datetime | None = None
    last_result: SyncResult | None = None
