"""The free space of a disk, and how much of it encoded modules leave free. Freed memory that the C library keeps."""

import ctypes
import shutil
from contextlib import suppress
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


def return_freed_memory() -> None:
    """Return freed memory to the system, if the C library can (glibc). Otherwise it would keep half a gigabyte after a
    model was loaded, and 40 MB for every 64 embedded passages, whose different lengths fragment it.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
