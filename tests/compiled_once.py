"""Compiled code is kept from one run of the tests to the next, in pytest's cache: compiling takes half a minute."""

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import durable

KEPT_S = 30 * 24 * 3600.0
"""Then it is compiled again, perhaps by a newer compiler."""
Compile = Callable[[Sequence[str], Path], None]


def keeping(folder: Path, compile_library: Compile) -> Compile:
    """As `durable.compile_library`. A file's name has a hash of its sources, the flags and the processor."""
    for old in folder.iterdir():
        if time.time() - old.stat().st_mtime > KEPT_S:
            old.unlink(missing_ok=True)

    def compile_once(command: Sequence[str], path: Path) -> None:
        kept = folder / f"{Path(command[0]).name}-{path.name}"
        if not kept.exists():
            compile_library(command, kept)
        path.parent.mkdir(parents=True, exist_ok=True)
        with durable.replacing(path, durable.COMPILING) as temporary:
            shutil.copyfile(kept, temporary)

    return compile_once
