"""Free disk space if the disk is too full to start: delete encoded passages, which can be computed again."""

from contextlib import suppress

from app.domain.settings import Settings
from cache.memory.disk import free_space


def make_room(settings: Settings) -> None:
    """Delete encoded passages if the disk is short of space. Call it only with the lock on the data folder."""
    folder = settings.modules_folder
    with suppress(OSError):  # the folder does not exist yet
        space = free_space(folder, settings.disk_floor_bytes)
        if folder.is_dir() and space.free < space.floor:
            from cache.memory.disk import DiskTier  # it takes a while and is rarely needed

            DiskTier(folder, settings.disk, settings.disk_floor_bytes).make_room()
