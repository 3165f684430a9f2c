"""Lists and tables of settings as text: a list has one entry a line, a table one `name = value` a line.

`lines_of` and `table_of` read what `text_of` writes. Not covered: what the entries may be (`settings`), sizes.

A model that runs elsewhere: how the setting `model` names it, `openai:URL#NAME`, and where its key is.

The key is read from the environment only, so that it is in no file, on no page and in no log, and it is for one place.
Not covered: asking the server (`cache.remote`).

When people of the company answer: hours as people write them, with a time zone.

Where the data is that comes with the program: the adapter, the calibration, the sample help centre.

A source tree has it in `data/`; an installed wheel has it in `warmdesk_data/`, beside the packages.

The sample help centres that come with the program, and questions to ask them (`data/samples.toml`).
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
    """The entries of a list, without empty ones. also: what else than the end of a line may stand between two."""
    return tuple(entry.strip() for entry in re.split(rf"[\n{also}]", text) if entry.strip())


def table_of(text: str) -> dict[str, str]:
    """The entries of a table. A name may, and one that is empty or has an equals sign in it must, stand in quotation
    marks, as in TOML. Raises ValueError.
    """
    table: dict[str, str] = {}
    for line in lines_of(text):
        row = _ROW.fullmatch(line)
        if row is None:
            raise ValueError(f"{line!r} is not name = value")
        name, value = (_unquoted(row[part]) for part in ("name", "value"))
        if name in table:
            raise ValueError(f"{name!r} stands there twice")
        table[name] = value
    return table


def text_of(value: object) -> str:
    """The value of a setting; empty if it is not set."""
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
"""Where the key is looked for; the first wins."""
URL_VARIABLE = "WARMDESK_OPENAI_URL"
"""Names the only server that the key is sent to; its path does not count."""
NO_SETTINGS = frozenset({KEY_VARIABLE, URL_VARIABLE})
"""What is of the environment only, and begins as the variables of settings do."""


@dataclass(frozen=True, slots=True)
class ModelServer:
    """url: what OpenAI's routes stand below. name: of the model there."""

    url: str
    name: str


def model_server(model: str | None) -> ModelServer | None:
    """The server that a model's name means; None for a model that runs here. A URL without a path gets /v1. Raises
    ValueError for one that is not usable: without name, with a password or a query, or neither http nor https.
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
    """The key for the server, if there is one. It goes to the server that URL_VARIABLE names or, without that, to one
    that whoever starts the desk named. is_of_file: the settings file names it, which may come from a backup. Raises
    DeskError for a key that cannot be sent, or not to this server.
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
    """Scheme, host and port of an address; None of what is none."""
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
        """Whether somebody answers then. moment: with a zone of its own."""
        return self.hours.is_open(moment.astimezone(self.zone))


@cache
def office_hours(text: str) -> OfficeHours:
    """Hours such as "Mon-Fri 9:00-17:00, Sat 10:00-14:00 Europe/Dublin": the notation of OpenStreetMap, in which days
    may also be written out, and the name of a time zone. Raises ValueError for anything else.
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
    """Whether somebody answers now. hours: as `office_hours` reads them; None: always."""
    return hours is None or office_hours(hours).cover(now)


_ROOT = Path(__file__).parents[2]
_IN_SOURCE_TREE = _ROOT / "data"
SHIPPED_DATA = _IN_SOURCE_TREE if (_IN_SOURCE_TREE / "search.json").is_file() else _ROOT / "warmdesk_data"

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
