"""Whether a desk survives what happens to processes and disks.

    python -m evals.chaos [--rounds 200] [--seed 0]

Each round does something with a desk with a tiny model in a process of its own, and something happens to it: kill -9,
SIGTERM, a disk that takes no more (a limit on the size of files), a clock that jumps (`time.time` only), files of
modules and search that are cut or altered. Afterwards another process opens the desk, ingests what there is, and looks:
documents whole, no conversation lost, nothing left over. Prints one JSON document, with every finding. Not covered:
files of the database that are altered, folders that cannot be written, `calibrate`, PostgreSQL.
"""

import argparse
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import text

from app.desk import doctor
from app.desk.service import Service
from app.domain.errors import DeskError
from app.storage.database import open_database
from evals.tiny_desk import tiny_desk

FAULTS = ("kill", "terminate", "full", "clock", "damage")
ACTIONS = ("ingest", "ask", "forget", "migrate")
LONGEST_S = 60.0
LARGEST_FILE = 600_000
"""Bytes to which a full disk lets a file grow at most."""
LATEST_S = 0.6
"""After which a process is killed at the latest: the work takes about as long."""


def write_pages(folder: Path, rng: random.Random) -> None:
    """Some of eight pages anew."""
    folder.mkdir(exist_ok=True)
    for number in range(8):
        if rng.random() < 0.5 or not (folder / f"page{number}.md").exists():
            parts = (f"## Part {part}\n\nItem {rng.randrange(99)} costs {rng.randrange(99)}.\n" for part in range(3))
            (folder / f"page{number}.md").write_text(f"# Page {number}\n\n" + "\n".join(parts))


def in_process(work: Callable[[], Any], at_s: float | None = None, signal_: int = signal.SIGKILL) -> Any:
    """What a forked process makes of some work, as JSON; None if it was ended before. at_s: when it is sent the signal.
    Raises TimeoutError.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            result = work()
        except BaseException:
            result = {"error": traceback.format_exc()}
        with os.fdopen(write, "w") as told:
            json.dump(result, told)
        os._exit(0)
    os.close(write)
    ends, sent = time.monotonic() + LONGEST_S, at_s is None
    begun = time.monotonic()
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if not sent and time.monotonic() - begun >= (at_s or 0.0):
            os.kill(child, signal_)
            sent = True
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError
        time.sleep(0.005)
    with os.fdopen(read) as told:
        said = told.read()
    return json.loads(said) if said else None


def act(folder: Path, action: str, fault: str, rng: random.Random, asked: Path) -> dict[str, Any]:
    """Do something with the desk. asked: a file to which the conversations that were answered are added."""
    if fault == "full":
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, resource.RLIM_INFINITY))
    if fault == "clock":
        real, jump = time.time, rng.choice([-1, 1]) * rng.random() * 3e8
        time.time = lambda: real() + jump
    if action == "migrate":
        open_database(f"sqlite:///{folder / 'migrated.db'}").close()
        return {}
    expected = (DeskError, OSError) if fault == "full" else ()
    with suppress(*expected), tiny_desk(folder / "desk") as desk:
        if action == "ingest":
            desk.ingest([folder / "pages"])
        elif action == "forget" and (stored := desk.documents()):
            desk.forget(rng.choice(stored).path)
        elif action == "ask":
            for number in range(3):
                stream = desk.ask(f"What does item {number} cost?")
                for _ in stream:
                    pass
                with asked.open("a") as file:
                    file.write(f"{stream.answer.conversation_id}\n")
    return {}


def damage(folder: Path, rng: random.Random) -> None:
    """Cut or alter one file beside the database."""
    files = [file for file in sorted((folder / "desk").rglob("*")) if file.is_file() and ".sqlite3" not in file.name]
    files = [file for file in files if file.stat().st_size and "lock" not in file.name]
    if files:
        file = rng.choice(files)
        data = bytearray(file.read_bytes())
        if rng.random() < 0.5:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(bytes(data))


def examine(folder: Path, asked: Path) -> list[str]:
    """Everything that is wrong once the pages are ingested again; nothing, if the desk is as new."""
    found = list[str]()
    if (migrated := folder / "migrated.db").exists():
        database = open_database(f"sqlite:///{migrated}")
        found += broken_rows(database)
        database.close()
        migrated.unlink()
    with tiny_desk(folder / "desk") as desk:
        half = [one.path for one in desk.documents() if one.num_passages != len(desk.library.passages_of(one.path))]
        found += [f"half there: {path}" for path in half]
        report = desk.ingest([folder / "pages"])
        found += [f"not ingested: {one.reason}" for one in report.failed]
        found += broken_rows(desk.database)
        found += left_over(desk)
        known = {id_ for (id_,) in desk.database.rows(text("SELECT id FROM conversations"))}  # type: ignore[arg-type]
        answered = asked.read_text().split() if asked.exists() else []
        found += [f"conversation lost: {id_}" for id_ in answered if id_ not in known]
        settings = desk.settings
    checks = (doctor.database, doctor.data_folder, doctor.documents)
    found += [f"doctor: {one.detail}" for one in (doctor.run(check, settings) for check in checks) if not one.ok]
    names = [file.name for file in (folder / "desk").rglob("*")]
    return found + [f"left over: {name}" for name in names if name.startswith(".") or name.endswith((".tmp", ".part"))]


def broken_rows(database: Any) -> list[str]:
    """What SQLite itself finds."""
    whole = [str(row[0]) for row in database.rows(text("PRAGMA integrity_check")) if row[0] != "ok"]
    return whole + [f"orphan row of {row[0]}" for row in database.rows(text("PRAGMA foreign_key_check"))]


def left_over(desk: Service) -> list[str]:
    """Passages and modules without each other."""
    ids, snapshot = set(desk.library.all_ids()), desk.search.retriever
    windows = {"vectors": snapshot.index.passage_ids, "keywords": snapshot.keywords.passage_ids}
    found = [f"{name} differ from passages" for name, there in windows.items() if set(there) != ids]
    found += [f"module without passage: {key}" for key in desk._warming.unused()]
    found += ["passage without module"] * len(desk.library.all_ids(only_unencoded=True))
    return found + ["passage without statements"] * len(desk.library.without_statements(desk.statements.name))


def measure(rounds: int, seed: int) -> dict[str, Any]:
    """findings: one for each thing that was wrong after a round, with what was done in it."""
    torch.set_num_threads(1)
    rng, done, findings, ended = random.Random(seed), Counter[str](), list[dict[str, Any]](), 0
    folder = Path(tempfile.mkdtemp(prefix="chaos"))
    asked = folder / "asked"
    for number in range(rounds):
        action, fault = rng.choice(ACTIONS), rng.choice(FAULTS)
        write_pages(folder / "pages", rng)
        if fault == "damage":
            damage(folder, rng)
        at_s = rng.random() * LATEST_S if fault in {"kill", "terminate"} else None
        sent = signal.SIGTERM if fault == "terminate" else signal.SIGKILL
        said = dict[str, Any]()
        try:
            own = random.Random(rng.random())
            result = in_process(lambda a=action, f=fault, r=own: act(folder, a, f, r, asked), at_s, sent)  # type: ignore[misc]
            ended += result is None
            said = result or {}
            wrong = [said["error"]] if "error" in said else []
            seen = in_process(lambda: {"found": examine(folder, asked)})
            wrong += seen["found"] if "found" in seen else [seen["error"]]
        except TimeoutError:
            wrong = ["hangs"]
        done[f"{action}, {fault}"] += 1
        findings += [{"round": number, "action": action, "fault": fault, "found": one} for one in wrong]
        print(number + 1, len(findings), file=sys.stderr, flush=True)
        if wrong:  # the next round must not find it again
            shutil.rmtree(folder / "desk", ignore_errors=True)
            asked.unlink(missing_ok=True)
    shutil.rmtree(folder)
    return {"rounds": rounds, "seed": seed, "ended_early": ended, "done": dict(done), "findings": findings}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    print(json.dumps(measure(asked.rounds, asked.seed)))


if __name__ == "__main__":
    main()
