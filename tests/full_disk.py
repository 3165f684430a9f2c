"""A disk of a size of its own, for tests: what is free of it is what its files leave."""

from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """As `shutil.disk_usage` gives it."""

    total: int
    used: int
    free: int


class SmallDisk:
    """Holds one folder, and others of which only the bytes are known."""

    def __init__(self, folder: Path, total: int) -> None:
        self.folder, self.total, self.others = folder, total, 0

    def usage(self, _: object = None) -> Usage:
        used = self.others + sum(file.stat().st_size for file in self.folder.rglob("*") if file.is_file())
        return Usage(self.total, used, self.total - used)
