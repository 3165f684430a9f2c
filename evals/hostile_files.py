"""Files that commands read, for `evals.hostile`: each ends with what it says or with one clear error."""

import gzip
import io
import random
import shutil
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from pathlib import Path

from app.desk.batch import read_questions
from app.desk.calibration import read_calibration, read_classifier
from app.domain.errors import DeskError
from app.domain.setting_values import SHIPPED_DATA
from app.domain.settings import Settings, load_settings
from app.pml.commands import advice_for, facts, registry_for
from app.storage.archive import back_up_folder
from app.storage.database import open_database
from app.storage.restoring import restore_folder
from cache.errors import CacheError
from cache.planning.costs import read_costs
from cache.planning.traffic import read_trace
from evals.labelled_questions import read_labelled

DEEP = b"[" * 3000 + b"]" * 3000
SCHEMAS = SHIPPED_DATA / "schemas"
LINES = (
    b'{"t": 0.5, "documents": ["a", 7], "question_tokens": 20, "answer_tokens": 48, "session": "s"}\n' * 3,
    b'{"question": "How long?", "answers": ["thirty days"], "earlier": "Returns"}\n{"question": "Why?"}\n',
    b'{"question": "How long?", "id": 7, "history": [["a", "b"]], "facts": [["x", "y"]]}\n',
    b'{"title": "a", "context": "b", "qas": [{"question": "c", "answers": ["d"]}]}\n',
    b'{"t": 1e999, "documents": [1e999], "question_tokens": 1e999, "answer_tokens": 1e999}\n',
    DEEP,
)
SETTINGS = (
    b'policy = "fast"\nneighbours = 2\nwidget_origins = ["https://a.example"]\ndevice_memory = "1 GiB"\n',
    b'profile = "fast"\n[page_urls]\n"/a" = "https://a.example"\n',
    b"keep_days = 1979-05-27T07:32:00Z\nport = 99999999999999999999\ntemperature = nan\n",
    b"a = " + DEEP,
)


class HostileFiles:
    """Reads files as commands do. folder: for these files and what is made of them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._desk = folder, folder / "files-desk"
        self._desk.mkdir()
        open_database(Settings(data_dir=self._desk).database_url).close()
        (self._desk / "uploads").mkdir()
        (self._desk / "uploads" / "a.md").write_text("# A\n\nText.\n")
        self._archive = folder / "desk.tar.gz"
        back_up_folder(Settings(data_dir=self._desk), self._archive)
        self._registry = registry_for(Settings(data_dir=self._desk), tokenizer="words")
        self._schema = SCHEMAS / "trip.pml"

    def seeds(self) -> Mapping[str, tuple[bytes, ...]]:
        """Good files of each kind, and some bad ones."""
        calibrations = ((SHIPPED_DATA / name).read_bytes() for name in ("search.json", "calibration.json"))
        return {
            "pml": tuple(path.read_bytes() for path in sorted(SCHEMAS.glob("*.pml"))),
            "archive": (gzip.decompress(self._archive.read_bytes()),),
            "lines": LINES,
            "json": (*calibrations, DEEP),
            "settings": SETTINGS,
        }

    def read(self, kind: str, data: bytes, rng: random.Random) -> str:
        """What is wrong with how a file of a kind is read, or ""."""
        readers: Mapping[str, tuple[str, tuple[Callable[[Path], object], ...]]] = {
            "pml": (".pml", (self._advise, self._bind)),
            "archive": (".tar.gz", (self._restore,)),
            "lines": (".jsonl", (read_trace, read_labelled, read_questions, self._advise)),
            "json": (".json", (read_calibration, read_classifier, read_costs)),
            "settings": (".toml", (self._load_settings,)),
        }
        suffix, reading = readers[kind]
        file = self._folder / f"hostile{suffix}"
        is_whole = kind != "archive" or rng.random() < 0.2
        file.write_bytes(data if is_whole else gzip.compress(data, 1))
        for read in reading:
            try:
                read(file)
            except (DeskError, CacheError) as error:
                if not str(error):
                    return f"{read.__name__}: an error without words"
            except Exception as error:
                return f"{read.__name__}: {type(error).__name__} {error}"
        return ""

    def _advise(self, file: Path) -> None:
        advice_for(file, self._registry)

    def _bind(self, file: Path) -> None:
        facts(self._registry, self._schema, file, baseline=False, add=(), remove=("trip",))

    def _restore(self, file: Path) -> None:
        into = self._folder / "restored"
        before = {path.name for path in self._folder.iterdir()}
        try:
            restore_folder(Settings(data_dir=into), file)
        finally:
            shutil.rmtree(into, ignore_errors=True)
        assert {path.name for path in self._folder.iterdir()} == before, "written outside of the folder"

    def _load_settings(self, file: Path) -> None:
        with redirect_stderr(io.StringIO()):  # notes about old names
            load_settings({"settings_file": file, "data_dir": self._desk}, {})
