"""The free space of a disk, and how much of it encoded modules leave free."""

import shutil
from dataclasses import dataclass
from pathlib import Path

FLOOR_BYTES, FLOOR_SHARE = 512 << 20, 20  # default floor: FLOOR_BYTES, or one in FLOOR_SHARE bytes of a small disk


@dataclass(frozen=True, slots=True)
class FreeSpace:
    """A disk's free bytes at one moment. floor: free bytes that encoded modules do not use."""

    free: int
    floor: int

    @property
    def is_short(self) -> bool:
        return self.free < self.floor + self.floor // 4


def free_space(folder: Path | str, floor: int | None) -> FreeSpace:
    """Return the free space of the disk with a folder. floor: bytes; None: the default for the disk's size. Raises
    OSError.
    """
    usage = shutil.disk_usage(folder)
    return FreeSpace(usage.free, min(FLOOR_BYTES, usage.total // FLOOR_SHARE) if floor is None else floor)
