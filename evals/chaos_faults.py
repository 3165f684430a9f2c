"""What happens to processes, disks and files in `evals.chaos`.

Not covered: what is done meanwhile (`chaos_work`), and how the desk must be afterwards (`desk_examination`).
"""

import ctypes
import json
import os
import random
import resource
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

LONGEST_S: Final = 60.0
"""Work that takes longer hangs."""
LARGEST_FILE: Final = 600_000
"""Bytes to which a full disk lets a file grow at most."""
IGNORES_PERMISSIONS: Final = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: what makes root write where nobody may."""
_CAPABILITIES_VERSION: Final = 0x20080522


def in_process(
    work: Callable[[], Any], at_s: float | None = None, strike: Callable[[int], object] = lambda process: None
) -> Any:
    """What a forked process makes of some work, as JSON; None if it was ended before. strike: called with the process's
    id after `at_s`, if it is still there. Raises TimeoutError.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with os.fdopen(write, "w") as told, suppress(KeyboardInterrupt):
            try:
                result = work()
            except Exception:
                result = {"error": traceback.format_exc()}
            json.dump(result, told)
        os._exit(0)
    os.close(write)
    begun, is_struck = time.monotonic(), at_s is None
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        passed = time.monotonic() - begun
        if not is_struck and passed >= (at_s or 0.0):
            strike(child)
            is_struck = True
        if passed > LONGEST_S:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError
        time.sleep(0.005)
    with os.fdopen(read) as told:
        said = told.read()
    return json.loads(said) if said else None


def fill_disk(rng: random.Random) -> None:
    """From now on no file of this process grows beyond some size."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(20_000, LARGEST_FILE), resource.RLIM_INFINITY))


def jump_clock(rng: random.Random) -> None:
    """From now on `time.time` of this process is years off."""
    real, jump = time.time, rng.choice([-1, 1]) * rng.random() * 3e8
    time.time = lambda: real() + jump


def end_as_served() -> None:
    """From now on SIGTERM ends this process as it ends `warmdesk serve`; else it ends it as other commands."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class ReadOnlyFolder:
    """A folder in which nothing can be written, from `freeze` until `thaw`. Files that are open stay so."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._modes = folder, dict[Path, int]()

    def freeze(self) -> None:
        """Processes that `obey_permissions` cannot write from now on."""
        for path in [self._folder, *self._folder.rglob("*")]:
            with suppress(FileNotFoundError):  # a file that was deleted meanwhile
                mode = path.stat().st_mode & 0o777
                path.chmod(mode & 0o555)
                self._modes.setdefault(path, mode)

    def thaw(self) -> None:
        """As it was."""
        for path, mode in self._modes.items():
            with suppress(FileNotFoundError):
                path.chmod(mode)


def obey_permissions() -> None:
    """From now on this process may write only what its user may, also if that is root. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable of the first 32, and of the others
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    sets[0] &= ~sum(1 << number for number in IGNORES_PERMISSIONS)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def damage(file: Path, rng: random.Random) -> None:
    """Cut a file, or alter a bit or a block of it."""
    data = bytearray(file.read_bytes())
    at = rng.randrange(len(data))
    match rng.randrange(4):
        case 0:
            del data[at:]
        case 1:
            data[at] ^= 1 << rng.randrange(8)
        case 2:
            data[at : at + 4096] = bytes(len(data[at : at + 4096]))
        case _:
            data[at : at + 512] = rng.randbytes(len(data[at : at + 512]))
    file.write_bytes(data)


def files_beside_database(folder: Path) -> list[Path]:
    """Files of a data folder that may be damaged without harm to what is only in the database."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and ".sqlite3" not in file.name]
    return [file for file in files if file.stat().st_size and "lock" not in file.name]
