"""Files and folders that are complete as soon as they appear, even after a power failure: the content is on the disk
before the name. C code is compiled into such files by this machine's compiler, so that it can use all CPU instructions.
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
"""A temporary file that has not changed for this time (seconds) is considered left by a killed process."""


@contextmanager
def replacing(file: Path, prefix: str = ".new-") -> Iterator[Path]:
    """Yield an empty temporary file that only this user can read. It replaces `file` when the block ends. If the block
    raises, it is removed. prefix: start of the temporary file's name. Raises OSError.
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
    """Rename a file or a folder after its content is on the disk. An existing file is replaced. Raises OSError."""
    for path in [*temporary.rglob("*"), temporary] if temporary.is_dir() else [temporary]:
        sync(path)
    temporary.replace(place)
    sync(place.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_abandoned(folder: Path, pattern: str) -> None:
    """Remove unfinished files and folders that did not change for ABANDONED_S: they are from killed processes."""
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
    """Yield a new folder in `parent`. It is removed after the block, as far as possible. (`TemporaryDirectory` of
    Python 3.11 recurses endlessly if the parent became read-only.) Raises OSError if the folder cannot be created.
    """
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Compilers for ARM have another option for "all instructions of this CPU".
NATIVE = "-mcpu=native" if platform.machine() in {"aarch64", "arm64"} else "-march=native"
FLAGS = ["-std=gnu11", "-O2", NATIVE, "-fPIC", "-shared", "-fopenmp"]
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
COMPILING_S = 120
COMPILING = ".compiling-"


def load_compiled(source: Path, flags: Sequence[str], folder: Path, without: str) -> ctypes.CDLL | None:
    """Return the compiled code of a file and its headers, stored in `folder`. Logs a failure and returns None. without:
    effect of a failure, for the log.
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
            with suppress(OSError):  # the file is damaged: compile again
                return ctypes.CDLL(str(path))
        compile_library([compiler, *flags, str(source)], path)
        return ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        log.warning("%s could not be compiled, so %s: %s", source.name, without, output.strip()[-400:])
        return None


def compile_library(command: Sequence[str], path: Path) -> None:
    """Compile into a file; a failure leaves no partial file. Raises OSError, subprocess.SubprocessError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, f"{COMPILING}*")
    with replacing(path, COMPILING) as temporary:
        whole = [*command, "-o", str(temporary), "-lm"]
        subprocess.run(whole, check=True, capture_output=True, text=True, timeout=COMPILING_S)


def processor() -> str:
    """Return a text that identifies the CPU. A data folder with compiled code may be moved to another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
