"""The sample help centres that come with the program, and questions to ask them (`data/samples.toml`)."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from app.domain.shipped import SHIPPED_DATA

SAMPLE = "knowledge"
"""The folder of the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Questions about a help centre. compared: what `warmdesk demo` asks. warm_up: asked before."""

    compared: tuple[str, ...]
    warm_up: str


@cache
def samples() -> dict[str, Sample]:
    """All of them, by the name of their folder in the data that comes with the program."""
    rows = tomllib.loads((SHIPPED_DATA / "samples.toml").read_text(encoding="utf-8"))
    return {folder: Sample(compared=tuple(row["compared"]), warm_up=row["warm_up"]) for folder, row in rows.items()}


def sample_among(paths: Iterable[str]) -> Sample | None:
    """The help centre that one of these paths is or lies in, if any; paths are absolute."""
    folders = {SHIPPED_DATA / name: sample for name, sample in samples().items()}
    found = (folders[place] for path in map(Path, paths) for place in (path, *path.parents) if place in folders)
    return next(found, None)
