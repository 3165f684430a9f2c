"""A desk with a tiny random model for the evaluations of reliability: that of the tests, whose folder must be there."""

import importlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

from app.desk.service import Service

TESTS = Path(__file__).resolve().parents[1] / "tests"


def tiny_desk(folder: Path, **changes: object) -> AbstractContextManager[Service]:
    """A desk that opens in a moment and reads files in this process. changes: of its settings."""
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
    made = cast("Callable[..., AbstractContextManager[Service]]", importlib.import_module("desks").small_desk)
    return made(folder, **changes)
