"""Values of settings that are more than a number or a text: lists and tables, remote models, office hours.

A list has one entry per line, a table one `name = value` per line. `lines_of` and `table_of` read the output of
`text_of`. The key of a remote model is read from the environment only, so that no file, page or log contains it. It is
sent to one server only. The bundled data is in `data/` of a source tree, in `warmdesk_data/` of an installed wheel.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from opening_hours import OpeningHours, validate

from app.domain.errors import DeskError

_ROW = re.compile(r'(?P<name>"(?:[^"\\]|\\.)*"|[^"=\s]+(?:\s+[^"=\s]+)*)\s*=\s*(?P<value>.*)')


def lines_of(text: str, also: str = "\n") -> tuple[str, ...]:
    """Return the entries of a list, without empty ones. also: separators besides the end of a line."""
    return tuple(entry.strip() for entry in re.split(rf"[\n{also}]", text) if entry.strip())


def table_of(text: str) -> dict[str, str]:
    """Return the entries of a table. A name can be quoted as in TOML. An empty name, or one with an equals sign, must
    be. Raises ValueError.
    """
    table: dict[str, str] = {}
    for line in lines_of(text):
        row = _ROW.fullmatch(line)
        if row is None:
            raise ValueError(f"{line!r} is not name = value")
        name, value = (_unquoted(row[part]) for part in ("name", "value"))
        if name in table:
            raise ValueError(f"{name!r} appears twice")
        table[name] = value
    return table


def text_of(value: object) -> str:
    """Return the value of a setting as text, empty if it is not set."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "\n".join(map(str, value))
    if isinstance(value, Mapping):
        return "\n".join(f"{json.dumps(name, ensure_ascii=False)} = {entry}" for name, entry in value.items())
    return str(value)


def _unquoted(text: str) -> str:
    return str(json.loads(text)) if len(text) > 1 and text[0] == text[-1] == '"' else text


SCHEME = "openai:"
KEY_VARIABLE = "WARMDESK_OPENAI_API_KEY"
KEY_VARIABLES = (KEY_VARIABLE, "OPENAI_API_KEY")
"""Variables that can hold the key. The first one wins."""
URL_VARIABLE = "WARMDESK_OPENAI_URL"
"""URL of the only server that gets the key. Its path is ignored."""
NO_SETTINGS = frozenset({KEY_VARIABLE, URL_VARIABLE})
"""Variables that look like settings but are none."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """Server of a remote model. url: base URL of OpenAI's API. name: name of the model on the server."""

    url: str
    name: str


def model_server(model: str | None) -> ModelServer | None:
    """Return the server of `openai:URL#NAME`, None for a local model. /v1 is added to a URL without a path. Raises
    ValueError for a URL without a model name, with a password or a query, or that is neither http nor https.
    """
    if model is None or not model.startswith(SCHEME):
        return None
    address, _, name = model.removeprefix(SCHEME).partition("#")
    url = urlsplit(address)  # raises ValueError for a bad port or bracket
    is_usable = url.scheme in ("http", "https") and url.hostname and url.port != 0 and not url.query
    if not is_usable or url.username or url.password or not name.strip() or not model.isprintable() or " " in address:
        raise ValueError
    return ModelServer(f"{url.scheme}://{url.netloc}{url.path.rstrip('/') or '/v1'}", name.strip())


def key_for(server: ModelServer, environ: Mapping[str, str], *, is_of_file: bool) -> str | None:
    """Return the key for the server, if any. Only the server in URL_VARIABLE gets it or, without this variable, the
    server that a flag or variable names. is_of_file: the settings file names the server; the file may come from a
    backup. Raises DeskError for a key with wrong characters, or one that this server must not get.
    """
    for variable in KEY_VARIABLES:
        if key := environ.get(variable, "").strip():
            if not key.isascii() or not key.isprintable() or " " in key:
                raise DeskError(f"{variable} has characters that no key has: set it again", code="settings")
            named = environ.get(URL_VARIABLE, "").strip()
            if is_of_file if not named else _origin(named) != _origin(server.url):
                where = f"only to {URL_VARIABLE}={named[:80]}" if named else "where only the settings file says"
                raise DeskError(
                    f"{variable} is sent {where}: if {server.url} is meant to get it, set {URL_VARIABLE}={server.url}; "
                    "if it needs no key, start the desk without this variable",
                    code="settings",
                )
            return key
    return None


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    """Return scheme, host and port of a URL, None if it is not a URL."""
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


_DAY = re.compile(r"\b(mo|tu|we|th|fr|sa|su)(n|e|es|d|dnes|u|urs|i|t|tur)?(day)?\b", re.IGNORECASE)
_ZONE = re.compile(r"(.*\S)\s+([A-Za-z]+(?:/[\w+-]+)+|UTC)")


@dataclass(frozen=True, slots=True)
class OfficeHours:
    """Hours of a week in one time zone."""

    hours: OpeningHours
    zone: ZoneInfo

    def cover(self, moment: datetime) -> bool:
        """Return whether the moment is within the hours. moment: with its time zone."""
        return self.hours.is_open(moment.astimezone(self.zone))


@cache
def office_hours(text: str) -> OfficeHours:
    """Read hours such as "Mon-Fri 9:00-17:00, Sat 10:00-14:00 Europe/Dublin": OpenStreetMap's notation, also with full
    names of days, then a time zone. Raises ValueError.
    """
    parts = _ZONE.fullmatch(text.strip())
    if parts is None:
        raise ValueError("no time zone")
    hours = _DAY.sub(lambda day: day[1].capitalize(), parts[1])
    if not validate(hours):
        raise ValueError("not hours")
    try:
        zone = ZoneInfo(parts[2])
    except (KeyError, OSError) as error:  # unknown; a folder of zones
        raise ValueError(str(error)) from None
    return OfficeHours(OpeningHours(hours, timezone=zone), zone)


def is_open(hours: str | None, now: datetime) -> bool:
    """Return whether now is within the hours. hours: see `office_hours`. None: always open."""
    return hours is None or office_hours(hours).cover(now)


_ROOT = Path(__file__).parents[2]
_IN_SOURCE_TREE = _ROOT / "data"
SHIPPED_DATA = _IN_SOURCE_TREE if (_IN_SOURCE_TREE / "search.json").is_file() else _ROOT / "warmdesk_data"

SAMPLE = "knowledge"
"""Folder of the first sample help centre."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Questions about a sample help centre. compared: questions of `warmdesk demo`. warm_up: a question before them."""

    compared: tuple[str, ...]
    warm_up: str


@cache
def samples() -> dict[str, Sample]:
    """Return the samples of `data/samples.toml`, by folder name."""
    rows = tomllib.loads((SHIPPED_DATA / "samples.toml").read_text(encoding="utf-8"))
    return {folder: Sample(compared=tuple(row["compared"]), warm_up=row["warm_up"]) for folder, row in rows.items()}


def sample_of(folder: Path) -> Sample:
    """Return the sample in a folder, or the first sample for other documents."""
    found = samples().get(folder.name) if folder.absolute().parent == SHIPPED_DATA else None
    return found or samples()[SAMPLE]
