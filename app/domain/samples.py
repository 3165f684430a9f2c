"""The sample help centres that come with the program, and questions to ask them (`data/samples.toml`)."""

import tomllib
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


def sample_of(folder: Path) -> Sample:
    """The help centre in a folder; the first one's questions for other documents."""
    found = samples().get(folder.name) if folder.absolute().parent == SHIPPED_DATA else None
    return found or samples()[SAMPLE]
