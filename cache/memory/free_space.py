"""How much of a disk is free, and how much of it stays so: a full disk stops all that shares it, such as a database.

Not covered: what is removed to keep it so (`disk`).
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

FLOOR_BYTES, FLOOR_SHARE = 512 << 20, 20
"""What stays free unless it is set otherwise: the first, or one in so many bytes of a small disk."""


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """Of a disk, when it was looked at. free: bytes. floor: those of them that encoded modules do not use."""

    free: int
    floor: int

    @property
    def is_short(self) -> bool:
        """Whether there is less, or hardly more, than is to stay free."""
        return self.free < self.floor + self.floor // 4


def free_space(folder: Path | str, floor: int | None) -> FreeSpace:
    """Of the disk that a folder is on. floor: bytes; None: as a disk of its size has it. Raises OSError."""
    usage = shutil.disk_usage(folder)
    return FreeSpace(usage.free, min(FLOOR_BYTES, usage.total // FLOOR_SHARE) if floor is None else floor)
