"""Room on a disk that is so full that a desk could not even be opened, beside encoded passages, which may go."""

from contextlib import suppress

from app.domain.settings import Settings
from cache.memory.free_space import free_space


def make_room(settings: Settings) -> None:
    """Remove encoded passages where less of the disk is free than should be. Only for who holds the data folder."""
    folder = settings.modules_folder
    with suppress(OSError):  # there is none yet
        space = free_space(folder, settings.disk_floor_bytes)
        if folder.is_dir() and space.free < space.floor:
            from cache.memory.disk import DiskTier  # it takes a while, and mostly there is room

            DiskTier(folder, settings.disk, settings.disk_floor_bytes).make_room()
