"""Renames many files of a data folder: all or none, also if the process or the machine stops in between.

The renames are noted in the folder before the first one. While the note exists, the next process that locks the folder
undoes them.

Out of scope: the choice of files (`app.storage.restoring`).
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from app.storage.files import replace_file
from durable import sync

SWAP_FILE = "warmdesk.swap.json"


def swap(folder: Path, renames: Sequence[tuple[Path, Path]]) -> None:
    """Rename files in `folder` and its subfolders, in this order, from one path to another; make the folders that they
    go to. Raises OSError; then none is renamed, or the note stays for `undo_swap`.
    """
    noted = [[str(path.relative_to(folder)) for path in pair] for pair in renames]
    replace_file(folder / SWAP_FILE, json.dumps(noted).encode())
    try:
        for source, target in renames:
            target.parent.mkdir(mode=0o700, exist_ok=True)
            source.rename(target)
        for changed in {path.parent for pair in renames for path in pair}:
            sync(changed)
    except BaseException:
        with suppress(OSError):
            undo_swap(folder)
        raise
    (folder / SWAP_FILE).unlink()
    sync(folder)


def undo_swap(folder: Path) -> bool:
    """Undo unfinished renames, and remove their temporary folders. Returns False if there were none. It can be
    interrupted and repeated. Raises OSError.
    """
    try:
        noted = json.loads((folder / SWAP_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    renames = [(folder / source, folder / target) for source, target in noted]
    aside = dict(renames)
    for source, target in reversed(renames):
        is_back = target in aside and not aside[target].exists()  # then the file is the former one
        if target.exists() and not source.exists() and not is_back:
            source.parent.mkdir(exist_ok=True)
            target.rename(source)
    for place in {target.parent for _, target in renames} - {folder}:
        with suppress(OSError):  # it is gone already, or it has other content
            place.rmdir()
    for changed in {path.parent for pair in renames for path in pair}:
        if changed.is_dir():
            sync(changed)
    (folder / SWAP_FILE).unlink()
    sync(folder)
    for staged in {source.parent for source, _ in renames} - {folder}:  # after the note is removed
        shutil.rmtree(staged, ignore_errors=True)
    return True
