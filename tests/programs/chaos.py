"""Check that Warmdesk survives failures of processes, disks, files and database servers.

    make chaos [ROUNDS=200] [SEED=0] [POSTGRES=1] [MODEL=FILE.gguf]

Each round works with a tiny model, or that of a file, in a process of its own: ingest, ask, upload, change the FAQ,
delete, calibrate, back up, restore, migrate or read a website. Half of the rounds start with a new data folder, half of
them upload, delete or restore. During the work one fault happens: kill -9, SIGTERM, a limit on the size of files (a
full disk), a data folder that cannot be written, a clock that jumps (`time.time` only), a damaged module, search or
calibration file, or a damaged database. With POSTGRES=1 the database is on a server that is stopped and started
instead; its programs must be installed.

Afterwards another process opens the data folder, ingests the pages and examines it (`desk_examination`). A damaged
database must be refused in one line that names its file, or the damage must not matter, and a backup must restore it.
A database of an older version must be migrated, with a complete copy next to it. Prints one JSON document with every
finding, and exits with 1 if there is one. Out of scope: failures of a database server's disk.
"""

import ctypes
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import typer
from local_site import LocalSite
from postgres_server import EMPTY, PostgresServer, binaries, running_server
from programs.desk_examination import (
    Place,
    ask,
    calibrate,
    change_faq,
    examine,
    examine_older,
    forget,
    make_older,
    open_older,
    synchronise,
    upload,
    write_pages,
    write_site,
)
from tiny_desk import small_settings, tiny_desk

from app.desk import doctor
from app.desk.calibration import FILE, SEARCH_FILE
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage.archive import back_up_folder, read_archive, restore_folder
from app.storage.database import sqlite_file
from cache.model.loading import load_model

LONGEST_S: Final = 60.0  # work that takes longer hangs
LARGEST_FILE: Final = 600_000  # maximum bytes of a file on a full disk
MEMORY_OF_FILE: Final = 64 << 20  # bytes for keys and values of a model of a file
LOAD_S: Final = 3.0  # about how long it takes to load
IGNORES_PERMISSIONS: Final = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root ignores permissions."""
LONGEST_TEXT: Final = 10_000
"""Characters of an error that are kept: the parent reads at the end, and a pipe holds 64 KB."""
_CAPABILITIES_VERSION: Final = 0x20080522


def in_process(
    work: Callable[[], Any], at_s: float | None = None, strike: Callable[[int], object] = lambda process: None
) -> Any:
    """Run some work in a forked process. Returns its result as JSON, None if it was ended before. strike: called with
    the process's id after `at_s`, if it still runs. Raises TimeoutError.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        with os.fdopen(write, "w") as told, suppress(KeyboardInterrupt):
            try:
                result = work()
            except Exception:
                result = {"error": traceback.format_exc()[-LONGEST_TEXT:]}
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
    resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(20_000, LARGEST_FILE), resource.RLIM_INFINITY))


def jump_clock(rng: random.Random) -> None:
    real, jump = time.time, rng.choice([-1, 1]) * rng.random() * 3e8
    time.time = lambda: real() + jump


def end_as_served() -> None:
    """Let SIGTERM end this process as it ends `warmdesk serve`, instead of as other commands."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


class ReadOnlyFolder:
    """A folder in which nothing can be written, from `freeze` until `thaw`. Open files stay open."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._modes = folder, dict[Path, int]()

    def freeze(self) -> None:
        for path in [self._folder, *self._folder.rglob("*")]:
            with suppress(FileNotFoundError):  # a file that was deleted meanwhile
                mode = path.stat().st_mode & 0o777
                path.chmod(mode & 0o555)
                self._modes.setdefault(path, mode)

    def thaw(self) -> None:
        for path, mode in self._modes.items():
            with suppress(FileNotFoundError):
                path.chmod(mode)


def obey_permissions() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable of the first 32, and of the others
    if libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    sets[0] &= ~sum(1 << number for number in IGNORES_PERMISSIONS)
    if libc.capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")


def damage(file: Path, rng: random.Random) -> None:
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
    """Return the files of a data folder that may be damaged without harm to data that nothing else has."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and ".sqlite3" not in file.name]
    kept = small_settings(folder).uploads_folder
    return [one for one in files if one.stat().st_size and "lock" not in one.name and not one.is_relative_to(kept)]


ACTIONS: Final = (
    "ingest",
    "ask",
    "upload",
    "faq",
    "forget",
    "calibrate",
    "back up",
    "restore",
    "migrate",
    "synchronise",
)
OFTEN: Final = ("upload", "forget", "restore")
"""The actions of half of the rounds: they change files and the database."""
FAULTS: Final = ("kill", "terminate", "full", "read-only", "clock", "damage")
ON_A_FILE, ON_A_SERVER = (*FAULTS, "database"), (*FAULTS, "server")
LATEST_S: Final = dict.fromkeys(ACTIONS, 0.6) | {"calibrate": 1.5, "back up": 0.1, "restore": 0.3, "migrate": 0.1}
WITHOUT_DESK: Final = ("back up", "restore", "migrate")
"""The actions that load no model."""
"""Latest time of the fault: the work takes about as long."""
COLD: Final = 0.5  # share of the rounds with a new desk
FILES_TOO: Final = 0.2
"""Share of the rounds that are always OFTEN actions; with their normal share, half of all rounds."""
REFUSALS: Final[dict[str, tuple[type[Exception], ...]]] = {
    "full": (DeskError, OSError),
    "read-only": (DeskError, OSError),
    "damage": (DeskError,),
    "database": (DeskError,),
    "server": (DeskError,),
}
"""Errors that the work may end with. Their text is one line for the operator."""


def act(place: Place, action: str, fault: str, rng: random.Random) -> dict[str, str]:
    if fault == "full":
        fill_disk(rng)
    if fault == "clock":
        jump_clock(rng)
    if fault == "read-only":
        obey_permissions()
    if fault == "terminate" and rng.random() < 0.5:
        end_as_served()
    try:
        if action == "migrate":
            open_older(place)
        elif action == "restore":
            restored(place.desk, place.archive)
        elif action == "back up":
            backed_up(small_settings(place.desk, **place.settings), place.archive)
        else:
            with tiny_desk(place.desk, place.load, **place.settings) as desk:
                if action == "ingest":
                    desk.ingest([place.pages])
                elif action == "upload":
                    upload(desk, rng)
                elif action == "faq":
                    change_faq(desk, rng)
                elif action == "forget":
                    forget(desk, place.forgotten, rng)
                elif action == "ask":
                    ask(desk, place.asked)
                elif action == "synchronise":
                    synchronise(desk, place.site)
                elif action == "calibrate":
                    calibrate(desk, place.pages)
    except REFUSALS.get(fault, ()) as error:
        return {"refused": str(error)[:LONGEST_TEXT]}
    return {}


def unclear(said: dict[str, str], words: str) -> list[str]:
    line = said.get("refused", words)
    return [] if words in line and "\n" not in line else [f"unclear: {line}"]


def forget_calibrations(folder: Path) -> list[str]:
    """Delete damaged calibrations, as the operator is told to. Returns refusals that do not say so."""
    settings, wrong = small_settings(folder), list[str]()
    for file, check in ((folder / FILE, doctor.calibration), (folder / SEARCH_FILE, doctor.search_classifier)):
        found = doctor.run(check, settings)
        if file.exists() and not found.ok:
            wrong += unclear({"refused": found.detail}, "warmdesk calibrate")
            file.unlink()
    return wrong


@dataclass(slots=True)
class Chaos:
    """Rounds with a desk that stays from one to the next. done: rounds by action and fault. refused: rounds that ended
    with a clear line. ended: rounds that were interrupted. load_s: how long the model takes to load; the fault
    may come later by it.
    """

    place: Place
    server: PostgresServer | None
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    ended: int = 0
    load_s: float = 0.0

    def round(self, action: str, fault: str) -> list[str]:
        write_pages(self.place.pages, self.rng)
        write_site(self.place.site, self.rng)
        self.done[f"{action}, {fault}"] += 1
        try:
            if action == "migrate":
                with self._older() as (place, rows):
                    wrong = self._struck(place, place.older, action, fault)
                    return wrong + told(lambda: examine_older(place, rows))
            return self._struck(self.place, self.place.desk, action, fault) + told(lambda: examine(self.place))
        except TimeoutError:
            return ["hangs"]

    @contextmanager
    def _older(self) -> Iterator[tuple[Place, dict[str, int]]]:
        with nullcontext() if self.server is None else self.server.database(EMPTY) as url:
            place = Place(self.place.folder, self.place.database_url, url)
            rows = in_process(lambda: make_older(place))
            assert "error" not in rows, rows
            yield place, rows
            shutil.rmtree(place.older)

    def _struck(self, place: Place, folder: Path, action: str, fault: str) -> list[str]:
        """Do the work with a fault, and what an operator does about it. Returns what was wrong."""
        asked = place.asked.read_text() if place.asked.exists() else ""
        database, beside = sqlite_file(small_settings(folder).database_url), files_beside_database(folder)
        assert database is not None
        if action in ("back up", "restore"):
            told(lambda: prepared(place, self.rng))
            told(lambda: backed_up(small_settings(folder, **place.settings), place.archive))
            beside = files_beside_database(folder)
        is_damaged = fault == "database" and database.exists()
        if is_damaged:
            told(lambda: backed_up(small_settings(folder), place.archive))
            damage(database, self.rng)
        elif fault == "damage" and beside:
            damage(self.rng.choice(beside), self.rng)
        frozen = ReadOnlyFolder(folder)
        if fault == "read-only" and self.rng.random() < 0.5:
            frozen.freeze()
        strikes: dict[str, Callable[[int], object]] = {
            "kill": lambda process: os.kill(process, signal.SIGKILL),
            "terminate": lambda process: os.kill(process, signal.SIGTERM),
            "read-only": lambda process: frozen.freeze(),
            "server": lambda process: self._restart(),
        }
        latest_s = LATEST_S[action] + (0 if action in WITHOUT_DESK else self.load_s)
        at_s = self.rng.random() * latest_s if fault in strikes else None
        own = random.Random(self.rng.random())
        said = in_process(lambda: act(place, action, fault, own), at_s, strikes.get(fault, lambda process: None))
        frozen.thaw()
        self.ended += said is None
        self.refused[fault] += "refused" in (said or {})
        wrong = [said["error"]] if said and "error" in said else []
        if action == "back up":
            wrong += told(lambda: complete(place.archive))
        if fault == "damage":
            wrong += told(lambda: forget_calibrations(folder))
        if is_damaged:
            wrong += unclear(said or {}, str(database))
            wrong += told(lambda: restored(folder, place.archive))
            place.asked.write_text(asked)
        return wrong

    def _restart(self) -> None:
        assert self.server is not None
        self.server.stop(self.rng.choice((signal.SIGINT, signal.SIGQUIT)))
        self.server.start()


def told(look: Callable[[], list[str]]) -> list[str]:
    found: list[str] | dict[str, str] = in_process(look)
    return [found["error"]] if isinstance(found, dict) else found


def prepared(place: Place, rng: random.Random) -> list[str]:
    with tiny_desk(place.desk, place.load, **place.settings) as desk:
        desk.ingest([place.pages])
        upload(desk, rng)
    return []


def backed_up(settings: Settings, archive: Path) -> list[str]:
    back_up_folder(settings, archive, overwrite=True)
    return []


def complete(archive: Path) -> list[str]:
    read_archive(archive)  # the one of before, or the new one
    return []


def restored(folder: Path, archive: Path) -> list[str]:
    restore_folder(small_settings(folder), archive, force=True)
    return []


def measure(rounds: int, seed: int, *, on_server: bool = False, model: str | None = None) -> dict[str, Any]:
    """Run the rounds. findings: one for each thing that was wrong after a round, with its action and fault. model: a
    GGUF file.
    """
    torch.set_num_threads(1)
    rng, findings = random.Random(seed), list[dict[str, Any]]()
    with ExitStack() as stack:
        server = stack.enter_context(running_server(keeps_commits=True)) if on_server else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos")))
        url = None if server is None else stack.enter_context(server.database(EMPTY))
        site = stack.enter_context(LocalSite())
        chaos = Chaos(Place(folder, url, site=site), server, rng)
        if model is not None:
            converted = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="model")))
            chaos.place.load = partial(load_model, model, device="cpu", converted=converted)
            chaos.place.settings["device_memory"] = MEMORY_OF_FILE
            chaos.load_s = LOAD_S
        for number in range(rounds):
            action = rng.choice(OFTEN if rng.random() < FILES_TOO else ACTIONS)
            fault = rng.choice(ON_A_FILE if server is None else ON_A_SERVER)
            wrong = chaos.round(action, fault)
            findings += [{"round": number, "action": action, "fault": fault, "found": one} for one in wrong]
            print(number + 1, action, fault, *wrong, file=sys.stderr, flush=True)
            if wrong or rng.random() < COLD:  # the next round must not find it again
                for one in folder.iterdir():
                    shutil.rmtree(one) if one.is_dir() else one.unlink()
                if server is not None:
                    chaos.place = Place(folder, stack.enter_context(server.database(EMPTY)), site=site)
    return {
        "rounds": rounds,
        "seed": seed,
        "ended_early": chaos.ended,
        "refused": dict(chaos.refused),
        "done": dict(chaos.done),
        "findings": findings,
    }


def main(rounds: int = 200, seed: int = 0, postgres: bool = False, model: str | None = None) -> None:
    if postgres and model:
        sys.exit("MODEL and POSTGRES together are not supported")
    if postgres and binaries() is None:
        sys.exit("initdb and postgres are not installed")
    result = measure(rounds, seed, on_server=postgres, model=model)
    print(json.dumps(result))
    sys.exit(bool(result["findings"]))


if __name__ == "__main__":
    typer.run(main)
