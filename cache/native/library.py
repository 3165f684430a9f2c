"""Compiling and loading `decoder.c`, once for each processor and version of the code. Not covered: what it computes.

The compiler is the machine's own (`cc`), because the code should use every instruction of this processor. Where there
is none, or it fails, nothing is lost but speed.
"""

import ctypes
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from cache.memory.durable import put_in_place, remove_abandoned
from cache.memory.keys import digest

SOURCE = Path(__file__).with_name("decoder.c")
FLAGS = ["-std=gnu11", "-O2", "-march=native", "-fPIC", "-shared", "-fopenmp"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
COMPILING_S = 120
log = logging.getLogger(__name__)


@cache
def load_library(folder: Path, dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled code for keys and values of a dtype, kept in `folder`; None where it cannot be had, and the log says
    why.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.warning("no C compiler (cc) is installed: answers are written more slowly; install gcc")
        return None
    flags = [*FLAGS, *(["-DKV_FLOAT32"] if dtype == torch.float32 else [])]
    sources = [path.read_bytes() for path in sorted(SOURCE.parent.glob("*.[ch]"))]
    name = digest(*sources, " ".join(flags), processor()).replace(":", "-")
    path = folder / f"decoder-{name}.so"
    try:
        if path.exists():
            with suppress(OSError):  # it is damaged, as after a power cut: compiled once more
                return ctypes.CDLL(str(path))
        compile_library(compiler, flags, path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        log.warning("decoder.c could not be compiled, answers are written more slowly: %s", output.strip()[-400:])
        return None


def compile_library(compiler: str, flags: list[str], path: Path) -> None:
    """Compile into a file that appears whole or not at all. Raises OSError, subprocess.SubprocessError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, "*.tmp")
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    os.close(handle)
    try:
        command = [compiler, *flags, str(SOURCE), "-o", temporary, "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILING_S)
        put_in_place(Path(temporary), path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def processor() -> str:
    """What the compiled code depends on besides its source: a data folder may move to another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
