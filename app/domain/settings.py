"""Settings: one frozen value, from the settings file, the environment and command-line flags; later wins.

Every field of `Settings` is a key of `<data_dir>/warmdesk.toml` (except data_dir, which says where that file
is), an environment variable WARMDESK_<KEY> and, where the command line offers it, a flag. A wrong type, a
value out of range and an unknown key are errors that name the key, the value and where it came from. An empty
variable counts as unset.

Not covered: whether a model, device or database exists (whoever opens it says so), changes at run time.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Generic, TypeVar, cast, get_args
from urllib.parse import quote

import platformdirs

from app.domain.errors import DeskError
from app.domain.shipped import SHIPPED_DATA
from cache.prompt.arrangement import Placement

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

PREFIX = "WARMDESK_"
SHIPPED_ADAPTER = SHIPPED_DATA / "adapters" / "smollm2-135m-instruct"
"""What comes with the bundled model."""
SETTINGS_FILE = "warmdesk.toml"
MIB = 1024**2
GIB = 1024**3
_MOST = 2**53
_UNITS = {"b": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("ib", 1024), ("b", 1000))
}


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """What a setting may be. read: the value, or ValueError. from_text: an environment variable's text as
    what a settings file would hold; text it cannot make sense of stays text, and `read` refuses it.
    """

    needs: str
    read: Callable[[object], T_co]
    from_text: Callable[[str], object] = str


def _text() -> Kind[str]:
    def read(raw: object) -> str:
        if not isinstance(raw, str) or not raw.strip() or "\0" in raw:
            raise ValueError
        return raw

    return Kind("text, not empty", read)


def _choice(*values: str) -> Kind[str]:
    def read(raw: object) -> str:
        if raw not in values:
            raise ValueError
        return str(raw)

    return Kind(f"{', '.join(values[:-1])} or {values[-1]}", read)


def _whole_number(least: int, most: int) -> Kind[int]:
    def read(raw: object) -> int:
        if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
            raise ValueError
        return raw

    return Kind(f"a whole number from {least} to {most}", read, _number)


def _real_number(least: float, most: float) -> Kind[float]:
    def read(raw: object) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float) or not least <= raw <= most:
            raise ValueError
        return float(raw)

    return Kind(f"a number from {least:g} to {most:g}", read, _number)


def _size(least: int) -> Kind[int]:
    def read(raw: object) -> int:
        num_bytes = parse_size(raw) if isinstance(raw, str) else raw
        if isinstance(num_bytes, bool) or not isinstance(num_bytes, int) or not least <= num_bytes <= _MOST:
            raise ValueError
        return num_bytes

    return Kind(f'a size such as "512 MiB" or "4 GB", or a number of bytes, {least} or more', read)


def _folder() -> Kind[Path]:
    def read(raw: object) -> Path:
        if not isinstance(raw, str | Path) or not str(raw).strip() or "\0" in str(raw):
            raise ValueError
        try:
            return Path(raw).expanduser().absolute()
        except (RuntimeError, OSError) as error:  # "~" without a home, no current folder
            raise ValueError from error

    return Kind("the path of a folder", read)


def _number(text: str) -> object:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def parse_size(text: str) -> int:
    """Bytes of "512 MiB", "4 GB" or "1048576": KiB is 1024 bytes, kB is 1000. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([a-z]*)", text.strip().lower(), re.ASCII)
    if match is None or (match[2] or "b") not in _UNITS:
        raise ValueError(f"{text!r} is not a size")
    return int(float(match[1]) * _UNITS[match[2] or "b"])


def setting(default: T, kind: Kind[T], help: str, *, key: str | None = None, is_secret: bool = False) -> T:
    """A field of Settings. key: its name outside, if another. is_secret: kept out of repr and messages."""
    metadata = {"help": help, "kind": kind, "key": key, "is_secret": is_secret}
    return field(default=default, metadata=metadata, repr=not is_secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, and the paths that follow from it. Nothing is created on disk here."""

    data_dir: Path = field(
        default_factory=lambda: platformdirs.user_data_path("warmdesk", appauthor=False),
        metadata={
            "help": "Folder that holds everything the program writes. Flag or environment only.",
            "kind": _folder(),
        },
    )
    model: str | None = setting(
        None, _text(), "Language model: a folder, a .gguf file or a hub name. Unset: the bundled model."
    )
    adapter: str | None = setting(
        None,
        _text(),
        "Folder of a LoRA adapter (see `warmdesk adapt`) that is merged into the model; none for the model as it is. "
        "Unset: the shipped one with the bundled model, none with another.",
    )
    device: str = setting("cpu", _text(), "Where the language model runs: cpu, cuda or cuda:N.")
    embedder: str | None = setting(
        None,
        _text(),
        "sentence-transformers model for search: a folder or a hub name. Unset: the bundled one.",
    )
    reranker: str | None = setting(
        None,
        _text(),
        "Cross-encoder that puts the best 20 passages in order: a folder or a hub name. Unset: none; on a CPU one "
        "costs a second or more a question.",
    )
    threads: int | None = setting(None, _whole_number(1, 1024), "CPU threads. Unset: PyTorch's own choice.")
    host: str = setting("127.0.0.1", _text(), "Address to listen on; anything but loopback is open to the network.")
    port: int = setting(7860, _whole_number(0, 65535), "Port to listen on; 0 picks a free one.")
    memory: int = setting(GIB, _size(MIB), 'Bytes of device memory for attention keys and values, as "1 GiB".')
    disk: int = setting(4 * GIB, _size(0), "Bytes on disk for encoded passages; 0 keeps none.")
    passages: int = setting(5, _whole_number(1, 64), "Passages given to the model for one answer, at most.")
    passage_tokens: int = setting(
        400, _whole_number(32, 100_000), "Length of a passage in the model's tokens, at most."
    )
    neighbours: int = setting(
        1,
        _whole_number(0, 10),
        "Passages read before each passage while it is encoded: answers come closer to full attention at no run-time "
        "cost, ingestion takes (neighbours + 1) times as long. 0: off.",
    )
    placement: Placement = setting(  # noqa: RUF009  # a field like the others
        "contiguous",
        cast("Kind[Placement]", _choice(*get_args(Placement))),
        "How passages stand in a prompt: contiguous (measured: closest to full attention), slotted (each at a multiple "
        "of slot_tokens) or shared (all from the same position on).",
    )
    slot_tokens: int = setting(
        256, _whole_number(1, 100_000), "Length of a slot, in positions; for placement = slotted."
    )
    answer_tokens: int = setting(
        160, _whole_number(1, 100_000), "Length of an answer in the model's own words, in tokens, at most."
    )
    policy: str = setting(
        "auto",
        _choice("auto", "fast", "balanced", "exact"),
        "How passages are linked: fast, balanced or exact (docs/evidence.md). auto: what `warmdesk calibrate` found "
        "for the model, fast if there is nothing yet.",
    )
    answer_mode: str = setting(
        "auto",
        _choice("auto", "free", "checked", "quote"),
        "free: the model's own words, as they come. checked: sentences that the passages do not support are replaced "
        "by quotations. quote: only statements of the passages. auto: what `warmdesk calibrate` found, checked if "
        "there is nothing yet.",
    )
    temperature: float = setting(
        0.0, _real_number(0, 5), "0 always takes the likeliest token; more makes answers vary."
    )
    repetition_penalty: float = setting(
        1.0,
        _real_number(1, 2),
        "More than 1 keeps small models from repeating themselves; 1 changes nothing.",
    )
    refuse_below: float | None = setting(
        None,
        _real_number(-1, 1),
        "Probability that the documents answer the question below which the desk does not; -1 always answers. Unset: "
        "as fitted (`warmdesk calibrate-search`).",
    )
    max_question_chars: int = setting(4000, _whole_number(1, 1_000_000), "Longest question, in characters.")
    system_text: str = setting(
        "You are a friendly customer service assistant. Answer the customer's question in one to three short "
        "sentences. Use only the help pages you are given, and copy numbers and conditions exactly.",
        _text(),
        "What the model is told before the passages. A change means that every passage is encoded anew.",
    )
    refusal_text: str = setting(
        "I could not find an answer to this in our help pages. Please contact our customer service team, who "
        "will be glad to help.",
        _text(),
        "The answer when no passage is close enough to the question.",
    )
    database: str | None = setting(
        None,
        _text(),
        "SQLAlchemy URL of the database (SQLite or PostgreSQL). Unset: a SQLite file in the data folder.",
        key="database_url",
        is_secret=True,
    )

    @property
    def adapter_folder(self) -> Path | None:
        """The folder of the adapter in use, if there is one."""
        if self.adapter is None:
            return SHIPPED_ADAPTER if self.model is None and SHIPPED_ADAPTER.is_dir() else None
        return None if self.adapter == "none" else Path(self.adapter).expanduser()

    @property
    def settings_file(self) -> Path:
        """The optional TOML file."""
        return self.data_dir / SETTINGS_FILE

    @property
    def database_url(self) -> str:
        """The `database` setting, or the SQLite file in the data folder."""
        # SQLAlchemy (from 2.1) decodes the path of a URL; a folder may be called "a?b" or "100%20".
        return self.database or "sqlite:///" + quote(str(self.data_dir / "warmdesk.sqlite3"))

    @property
    def index_path(self) -> Path:
        """The vector index, rebuildable from the database."""
        return self.data_dir / "passages.index"

    @property
    def modules_folder(self) -> Path:
        """Encoded passages, rebuildable from the database."""
        return self.data_dir / "modules"

    @property
    def uploads_folder(self) -> Path:
        """Files that were uploaded on the dashboard."""
        return self.data_dir / "uploads"

    @property
    def models_folder(self) -> Path:
        """Models unpacked or fetched on request."""
        return self.data_dir / "models"

    @property
    def admin_folder(self) -> Path:
        """The admin password's hash and the session key."""
        return self.data_dir / "admin"


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Defaults, then the settings file, then WARMDESK_* variables, then flags.

    flags: values by key, with `_` for `-`; None means not given. Raises DeskError (code "settings").
    """
    variables = {
        name.removeprefix(PREFIX).lower(): text
        for name, text in environ.items()
        if name.startswith(PREFIX) and text.strip()
    }
    given = {key: value for key, value in flags.items() if value is not None}
    values = _read(variables, lambda key: f"the environment variable {PREFIX}{key.upper()}", are_texts=True)
    values |= _read(given, lambda key: f"the flag --{key.replace('_', '-')}")
    settings_file = Settings(**values).settings_file  # type: ignore[arg-type]  # checked by each field's kind
    in_file = _parse(settings_file)
    if "data_dir" in in_file:
        raise _error(f"data_dir cannot be set in {settings_file}: the file is found through it; use --data-dir")
    return Settings(**_read(in_file, lambda key: str(settings_file)) | values)  # type: ignore[arg-type]


def _read(raw: Mapping[str, object], source: Callable[[str], str], *, are_texts: bool = False) -> dict[str, object]:
    known = {one.metadata.get("key") or one.name: one for one in fields(Settings)}
    values: dict[str, object] = {}
    for key, given in raw.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise _error(f"unknown setting {_shown(key)} in {source(key)}: {hint}")
        metadata = known[key].metadata
        kind: Kind[object] = metadata["kind"]
        try:
            values[known[key].name] = kind.read(
                kind.from_text(given) if are_texts and isinstance(given, str) else given
            )
        except ValueError:
            value = "not usable" if metadata.get("is_secret") else _shown(given)
            raise _error(f"{key} is {value} in {source(key)}: it must be {kind.needs}") from None
    return values


def _parse(settings_file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(settings_file.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):  # the lock says what is wrong with the folder
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
