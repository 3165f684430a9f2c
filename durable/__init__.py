"""Files and folders that appear whole, also after a power failure: their bytes are on the disk before their name is.

C code is compiled into such files by this machine's own compiler, so that it uses every instruction of this processor.
"""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)
ABANDONED_S = 3600.0
"""A temporary file that has not changed for so long was left by a killed process."""


@contextmanager
def replacing(file: Path, prefix: str = ".new-") -> Iterator[Path]:
    """Give an empty temporary file, readable for this user only. It replaces `file` when the block ends; if the block
    raises, it is removed. prefix: start of its name. Raises OSError.
    """
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=prefix, suffix=file.suffix)
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        put_in_place(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, place: Path) -> None:
    """Rename a file, or a folder of files, once its content is on the disk. Raises OSError."""
    for path in [*temporary.rglob("*"), temporary] if temporary.is_dir() else [temporary]:
        sync(path)
    temporary.replace(place)
    sync(place.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove unfinished files and folders of killed processes. Those of running processes stay."""
    for path in folder.glob(pattern):
        with suppress(OSError):  # another process has just removed it
            if time.time() - path.stat().st_mtime < ABANDONED_S:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `parent` that is removed after the block, or as far as possible: `tempfile.TemporaryDirectory` of
    Python 3.11 recurses without end in a parent that became read-only. Raises OSError if it cannot be made.
    """
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Compilers for ARM have another option for it.
NATIVE = "-mcpu=native" if platform.machine() in {"aarch64", "arm64"} else "-march=native"
FLAGS = ["-std=gnu11", "-O2", NATIVE, "-fPIC", "-shared", "-fopenmp"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
COMPILING_S = 120
COMPILING = ".compiling-"


def load_compiled(source: Path, flags: Sequence[str], folder: Path, without: str) -> ctypes.CDLL | None:
    """Return the compiled code of a file and its headers, stored in `folder`; log a failure and return None. without:
    the effect of a failure.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.warning("no C compiler (cc) is installed, so %s: install gcc", without)
        return None
    texts = [path.read_bytes() for path in (source, *sorted(source.parent.glob("*.h")))]
    identity = hashlib.sha256(b"\0".join([*texts, " ".join(flags).encode(), processor().encode()])).hexdigest()
    path = folder / f"{source.stem}-{identity}.so"
    try:
        if path.exists():
            with suppress(OSError):  # it is damaged, as after a power cut: compiled once more
                return ctypes.CDLL(str(path))
        compile_library([compiler, *flags, str(source)], path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        log.warning("%s could not be compiled, so %s: %s", source.name, without, output.strip()[-400:])
        return None


def compile_library(command: Sequence[str], path: Path) -> None:
    """Compile into a file, completely or not at all. Raises OSError, subprocess.SubprocessError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, f"{COMPILING}*")
    with replacing(path, COMPILING) as temporary:
        whole = [*command, "-o", str(temporary), "-lm"]
        subprocess.run(whole, check=True, capture_output=True, text=True, timeout=COMPILING_S)


def processor() -> str:
    """Return an id of the CPU, because a data folder with compiled code may move to another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
