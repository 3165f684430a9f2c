"""Whether a desk survives what happens to processes, disks, files and database servers.

    python -m evals.chaos [--rounds 200] [--seed 0] [--postgres]

Each round does something with a desk with a tiny model in a process of its own, half of them with a new one, in its
first moments: ingest, ask, upload, change the FAQ, forget, calibrate, restore, migrate; half of them upload, forget or
restore. And something happens to it:
kill -9, SIGTERM, a disk that takes no more (a limit on the size of files), a data folder that cannot be written, a
clock that jumps (`time.time` only), files of modules, search and calibration that are cut or altered, a damaged
database. With --postgres the database is on a server of its own (its programs must be installed), which is stopped and
started instead of damaged. Afterwards another process opens the desk, ingests what there is, and looks: documents
whole, no conversation lost, nothing left over, uploads and FAQ in step with their documents, nothing of what was
forgotten in any file. A damaged database must be refused in a line that names its file, or not matter; a backup from
before brings the desk back. An older database must be brought up to date, with a whole copy beside it.
Prints one JSON document, with every finding, and exits with 1 if there is one. Not covered: the disk of a server.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import torch

from app.desk import doctor
from app.desk.calibration import FILE, SEARCH_FILE
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage.archive import back_up_folder
from app.storage.database import sqlite_file
from app.storage.restoring import restore_folder
from evals.chaos_faults import (
    ReadOnlyFolder,
    damage,
    end_as_served,
    files_beside_database,
    fill_disk,
    in_process,
    jump_clock,
    obey_permissions,
)
from evals.chaos_work import (
    Place,
    ask,
    calibrate,
    change_faq,
    forget,
    make_older,
    open_older,
    upload,
    write_pages,
)
from evals.desk_examination import examine, examine_older
from evals.postgres_server import EMPTY, PostgresServer, binaries, running_server
from evals.tiny_desk import small_settings, tiny_desk

ACTIONS: Final = ("ingest", "ask", "upload", "faq", "forget", "calibrate", "restore", "migrate")
OFTEN: Final = ("upload", "forget", "restore")
"""What half of all rounds do: they touch files and the database."""
FAULTS: Final = ("kill", "terminate", "full", "read-only", "clock", "damage")
ON_A_FILE, ON_A_SERVER = (*FAULTS, "database"), (*FAULTS, "server")
LATEST_S: Final = dict.fromkeys(ACTIONS, 0.6) | {"calibrate": 1.5, "restore": 0.3, "migrate": 0.1}
"""After which something happens at the latest: the work takes about as long."""
COLD: Final = 0.5
"""Of all rounds, how many are with a new desk."""
FILES_TOO: Final = 0.2
"""Of all rounds, how many more than their share do what touches files and the database: with it, half of them."""
REFUSALS: Final[dict[str, tuple[type[Exception], ...]]] = {
    "full": (DeskError, OSError),
    "read-only": (DeskError, OSError),
    "damage": (DeskError,),
    "database": (DeskError,),
    "server": (DeskError,),
}
"""Errors that work may end with, whose text is one line for a person."""


def act(place: Place, action: str, fault: str, rng: random.Random) -> dict[str, str]:
    """Do something with the desk; gives the error with which that was refused, if it was."""
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
        else:
            with tiny_desk(place.desk, **place.settings) as desk:
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
                elif action == "calibrate":
                    calibrate(desk, place.pages)
    except REFUSALS.get(fault, ()) as error:
        return {"refused": str(error)}
    return {}


def unclear(said: dict[str, str], words: str) -> list[str]:
    """A refusal that is no line with these words."""
    line = said.get("refused", words)
    return [] if words in line and "\n" not in line else [f"unclear: {line}"]


def forget_calibrations(folder: Path) -> list[str]:
    """Delete damaged calibrations, as those are told who open the desk; gives refusals that do not say so."""
    settings, wrong = small_settings(folder), list[str]()
    for file, check in ((folder / FILE, doctor.calibration), (folder / SEARCH_FILE, doctor.search_classifier)):
        found = doctor.run(check, settings)
        if file.exists() and not found.ok:
            wrong += unclear({"refused": found.detail}, "warmdesk calibrate")
            file.unlink()
    return wrong


@dataclass(slots=True)
class Chaos:
    """Rounds with a desk that stays from one to the next. done: rounds by what happened. refused: of those how many the
    work ended with a clear line. ended: how many it ended in its middle.
    """

    place: Place
    server: PostgresServer | None
    rng: random.Random
    done: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    ended: int = 0

    def round(self, action: str, fault: str) -> list[str]:
        """One round; gives everything that was wrong."""
        write_pages(self.place.pages, self.rng)
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
        """The place with an older database, and how many rows its tables have."""
        with nullcontext() if self.server is None else self.server.database(EMPTY) as url:
            place = replace(self.place, older_url=url)
            rows = in_process(lambda: make_older(place))
            assert "error" not in rows, rows
            yield place, rows
            shutil.rmtree(place.older)

    def _struck(self, place: Place, folder: Path, action: str, fault: str) -> list[str]:
        """Work to which something happens, and what a person does about it; gives what was wrong."""
        asked = place.asked.read_text() if place.asked.exists() else ""
        database, beside = sqlite_file(small_settings(folder).database_url), files_beside_database(folder)
        assert database is not None
        if action == "restore":
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
        at_s = self.rng.random() * LATEST_S[action] if fault in strikes else None
        own = random.Random(self.rng.random())
        said = in_process(lambda: act(place, action, fault, own), at_s, strikes.get(fault, lambda process: None))
        frozen.thaw()
        self.ended += said is None
        self.refused[fault] += "refused" in (said or {})
        wrong = [said["error"]] if said and "error" in said else []
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
    """What a process finds. Raises TimeoutError."""
    found: list[str] | dict[str, str] = in_process(look)
    return [found["error"]] if isinstance(found, dict) else found


def prepared(place: Place, rng: random.Random) -> list[str]:
    """Let there be a desk with documents of each kind."""
    with tiny_desk(place.desk, **place.settings) as desk:
        desk.ingest([place.pages])
        upload(desk, rng)
    return []


def backed_up(settings: Settings, archive: Path) -> list[str]:
    """Save a desk, in place of the archive there was."""
    back_up_folder(settings, archive, overwrite=True)
    return []


def restored(folder: Path, archive: Path) -> list[str]:
    """Put a backup back, in place of what there is."""
    restore_folder(small_settings(folder), archive, force=True)
    return []


def measure(rounds: int, seed: int, *, on_server: bool = False) -> dict[str, Any]:
    """findings: one for each thing that was wrong after a round, with what was done in it."""
    torch.set_num_threads(1)
    rng, findings = random.Random(seed), list[dict[str, Any]]()
    with ExitStack() as stack:
        server = stack.enter_context(running_server(keeps_commits=True)) if on_server else None
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos")))
        url = None if server is None else stack.enter_context(server.database(EMPTY))
        chaos = Chaos(Place(folder, url), server, rng)
        for number in range(rounds):
            action = rng.choice(OFTEN if rng.random() < FILES_TOO else ACTIONS)
            fault = rng.choice(ON_A_FILE if server is None else ON_A_SERVER)
            wrong = chaos.round(action, fault)
            findings += [{"round": number, "action": action, "fault": fault, "found": one} for one in wrong]
            print(number + 1, action, fault, len(findings), file=sys.stderr, flush=True)
            if wrong or rng.random() < COLD:  # the next round must not find it again
                for one in folder.iterdir():
                    shutil.rmtree(one) if one.is_dir() else one.unlink()
                if server is not None:
                    chaos.place = Place(folder, stack.enter_context(server.database(EMPTY)))
    return {
        "rounds": rounds,
        "seed": seed,
        "ended_early": chaos.ended,
        "refused": dict(chaos.refused),
        "done": dict(chaos.done),
        "findings": findings,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    asked = parser.parse_args()
    if asked.postgres and binaries() is None:
        parser.error("initdb and postgres are not installed")
    result = measure(asked.rounds, asked.seed, on_server=asked.postgres)
    print(json.dumps(result))
    sys.exit(bool(result["findings"]))


if __name__ == "__main__":
    main()
