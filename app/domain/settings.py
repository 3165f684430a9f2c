"""Settings: one frozen value, from the settings file, environment variables and flags. The last one wins.

Every setting is a key of `<data_dir>/warmdesk.toml` (except data_dir, which says where that file is), an environment
variable WARMDESK_<KEY> and, for some, a flag. A wrong type, a value out of range and an unknown key are errors that
name the key, the value and its source. An empty variable counts as unset.

Out of scope: whether a model, device or database exists, and changes while the server runs.
"""

import difflib
import tomllib
from collections import ChainMap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError

from app.domain.errors import DeskError
from app.domain.setting_groups import (
    AnswerSettings,
    ClusterSettings,
    HandoffSettings,
    LimitSettings,
    MemorySettings,
    ModelSettings,
    PageSettings,
    PrivacySettings,
    SearchSettings,
    ServerSettings,
    WebsiteSettings,
)
from app.domain.setting_types import NO_SETTINGS, SHIPPED_DATA, ModelServer, SettingGroup, model_server, needs_of

PREFIX = "WARMDESK_"
SHIPPED_ADAPTER = SHIPPED_DATA / "adapters" / "smollm2-135m-instruct"
SETTINGS_FILE = "warmdesk.toml"
FAQ_FILE = "FAQ.jsonl"


class Settings(
    ServerSettings,  # pydantic orders fields from the last base to the first
    ClusterSettings,
    MemorySettings,
    ModelSettings,
    WebsiteSettings,
    SearchSettings,
    LimitSettings,
    PrivacySettings,
    AnswerSettings,
    HandoffSettings,
    PageSettings,
):
    """All settings, and the paths that follow from them. Creating an object writes nothing to disk.

    An object created directly has the given values and the defaults. `load_settings` reads the environment and the
    settings file. Raises pydantic's ValidationError for a wrong value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)

    @property
    def model_server(self) -> ModelServer | None:
        return model_server(self.model)

    @property
    def disk_floor_bytes(self) -> int | None:
        """Minimum free bytes of the disk. None: `cache.memory` chooses."""
        return None if self.disk_floor == "auto" else self.disk_floor

    @property
    def foresees(self) -> bool:
        """Return whether the server searches while a customer types. Never for a remote model, which cannot preload."""
        return self.prefetch and self.model_server is None

    @property
    def has_child(self) -> bool:
        return self.engine_process and self.cluster is None and self.model_server is None

    @property
    def adapter_folder(self) -> Path | None:
        if self.adapter is None:
            return SHIPPED_ADAPTER if self.model is None and SHIPPED_ADAPTER.is_dir() else None
        return None if self.adapter == "none" else Path(self.adapter).expanduser()

    @property
    def settings_file(self) -> Path:
        return self.data_dir / SETTINGS_FILE

    @property
    def index_path(self) -> Path:
        return self.data_dir / "passages.index"

    @property
    def modules_folder(self) -> Path:
        return self.data_dir / "modules"

    @property
    def uploads_folder(self) -> Path:
        return self.data_dir / "uploads"

    @property
    def websites_folder(self) -> Path:
        return self.data_dir / "websites"

    @property
    def faq_file(self) -> Path:
        return self.data_dir / "faq" / FAQ_FILE

    @property
    def faq_document(self) -> str:
        """Name of the FAQ's document: its path, or one name for all servers that share a database."""
        return str(self.faq_file.resolve()) if self.database_url.startswith("sqlite") else FAQ_FILE

    @property
    def models_folder(self) -> Path:
        return self.data_dir / "models"

    @property
    def pages_folder(self) -> Path:
        """Folder for files sent to Gradio's pages. Warmdesk's pages accept no files."""
        return self.data_dir / "pages"


GROUPS = tuple(
    group for group in reversed(Settings.__mro__) if group.__base__ is SettingGroup and issubclass(group, SettingGroup)
)


class _Source(NamedTuple):
    """Values by key, and the place where each was set, in words."""

    values: Mapping[str, object]
    place: Callable[[str], str]


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Read the file, then WARMDESK_* variables, then flags (None: not given). The last value wins. Raises DeskError."""
    given = {key: value for key, value in flags.items() if value is not None}
    variables = {
        name.removeprefix(PREFIX).lower(): text
        for name, text in environ.items()
        if name.startswith(PREFIX) and name not in NO_SETTINGS and text.strip()
    }
    sources = (
        _Source(given, lambda key: f"the flag --{key.replace('_', '-')}"),
        _Source(
            {key: _from_text(key, text) for key, text in variables.items()},
            lambda key: f"the environment variable {PREFIX}{key.upper()}",
        ),
    )
    file = _merged(*sources).settings_file
    in_file = _parse(file)
    if "data_dir" in in_file:
        raise _error(f"data_dir cannot be set in {file}, because it determines where the file is: use --data-dir")
    return _merged(*sources, _Source(in_file, lambda key: str(file)))


def settings_in(values: Mapping[str, object], file: Path) -> Settings:
    """Return the settings of a file with these values alone. Raises DeskError (code "settings")."""
    return _merged(_Source(values, lambda key: str(file)))


def value_in(key: str, text: str) -> Any:
    """Return a person's text as a value of the settings file. A text that does not fit stays text."""
    value = _from_text(key, text)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _merged(*sources: _Source) -> Settings:
    """Return the settings of several sources. The value of a key is from the first source that has it."""
    try:
        return Settings.model_validate(dict(ChainMap(*(dict(source.values) for source in sources))))
    except ValidationError as error:
        wrong = error.errors()[0]
    key = str(wrong["loc"][0])
    place = next(source.place(key) for source in sources if key in source.values)
    known = Settings.model_fields
    if key not in known:
        near = difflib.get_close_matches(key, known)
        hint = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known are {', '.join(known)}"
        raise _error(f"unknown setting {_shown(key)} in {place}: {hint}")
    value = _shown(wrong["input"]) if known[key].repr else "not usable"
    raise _error(f"{key} is {value} in {place}: it must be {needs_of(known[key])}")


def _from_text(key: str, text: str) -> object:
    """Return the value of a variable's text. A text that does not fit stays text, and is refused later."""
    field = Settings.model_fields.get(key)
    try:
        return text if field is None else TypeAdapter(field.rebuild_annotation()).validate_strings(text)
    except ValidationError:
        return text


def _parse(settings_file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(settings_file.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):  # locking reports a wrong folder
        return {}
    except OSError as error:
        raise _error(f"cannot read the settings file {settings_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _error(f"the settings file {settings_file} is not UTF-8 text: save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _error(f"the settings file {settings_file} is not valid TOML: {error}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _error(message: str) -> DeskError:
    return DeskError(message, code="settings")
