"""What a measurement ran on, as one line for people."""

import platform
from pathlib import Path

import torch


def describe_machine() -> str:
    """Processor, threads, and the versions that matter for speed."""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    return f"{processor()}, {torch.get_num_threads()} threads at most, {versions}"


def processor() -> str:
    """Name of the processor as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
