"""Types of settings: limits, the words for them in error messages, and values with a structure.

A type reads a Python value, a value of the settings file, or the text of an environment variable. A wrong value is a
ValueError. A list has one entry per line, or the form of TOML. A table has one `name = value` per line. The key of a
remote model is read from the environment only, so that no file, page or log contains it. It is sent to one server only.
The bundled data is in `data/` of a source tree, in `warmdesk_data/` of an installed wheel.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

from opening_hours import OpeningHours, validate
from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, TypeAdapter
from pydantic.fields import FieldInfo

from app.domain.errors import DeskError
from cache.engine.recomputation import EXACT, SelectiveRecomputation

Policy = Literal["fast", "balanced", "exact"]
"""How much of the passages is recomputed. fast: nothing. balanced: the passage tokens that the question attends to
most. exact: everything, as with full attention. `warmdesk calibrate` compares their answers.
"""
AnswerMode = Literal["free", "checked", "quote"]  # who words an answer; see the setting `answer_mode`
POLICIES: tuple[Policy, ...] = get_args(Policy)

BALANCED_SHARE = 0.15
RECOMPUTATIONS: dict[Policy, SelectiveRecomputation] = {
    "fast": SelectiveRecomputation(),
    "balanced": SelectiveRecomputation(share=BALANCED_SHARE),
    "exact": EXACT,
}


def policy_named(name: str) -> Policy:
    if name in POLICIES:
        return name
    raise DeskError(f"policy is {name!r}: it must be {', '.join(POLICIES[:-1])} or {POLICIES[-1]}", code="bad-policy")


_ROW = re.compile(r'(?P<name>"(?:[^"\\]|\\.)*"|[^"=\s]+(?:\s+[^"=\s]+)*)\s*=\s*(?P<value>.*)')


def lines_of(text: str, also: str = "\n") -> tuple[str, ...]:
    """Return the entries of a list, without empty ones. also: additional separators."""
    return tuple(entry.strip() for entry in re.split(rf"[\n{also}]", text) if entry.strip())


def table_of(text: str) -> dict[str, str]:
    """Return the entries of a table. A name can be quoted as in TOML. It must be quoted if it is empty or has an equals
    sign. Raises ValueError.
    """
    table: dict[str, str] = {}
    for line in lines_of(text):
        row = _ROW.fullmatch(line)
        if row is None:
            raise ValueError(f"{line!r} does not have the form name = value")
        name, value = (_unquoted(row[part]) for part in ("name", "value"))
        if name in table:
            raise ValueError(f"{name!r} appears twice")
        table[name] = value
    return table


def text_of(value: object) -> str:
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


@dataclass(frozen=True, slots=True)
class ModelServer:
    """Server of a remote model. url: its OpenAI-compatible base URL. name: name of the model on the server."""

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
                raise DeskError(f"{variable} contains invalid characters: set it again", code="settings")
            named = environ.get(URL_VARIABLE, "").strip()
            if is_of_file if not named else _origin(named) != _origin(server.url):
                where = f"only to {URL_VARIABLE}={named[:80]}" if named else "only to a server set by flag or variable"
                raise DeskError(
                    f"{variable} is sent {where}: if {server.url} is meant to get it, set {URL_VARIABLE}={server.url}; "
                    "if it needs no key, start the server without this variable",
                    code="settings",
                )
            return key
    return None


def _origin(url: str) -> tuple[str, str | None, int | None] | None:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return None


_DAY = re.compile(r"\b(mo|tu|we|th|fr|sa|su)(n|e|es|d|dnes|u|urs|i|t|tur)?(day)?\b", re.IGNORECASE)
_ZONE = re.compile(r"(.*\S)\s+([A-Za-z]+(?:/[\w+-]+)+|UTC)")


@cache
def office_hours(text: str) -> tuple[OpeningHours, ZoneInfo]:
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
    return OpeningHours(hours, timezone=zone), zone


def is_open(hours: str | None, now: datetime) -> bool:
    """Return whether `now`, with a time zone, is within the hours. hours: see `office_hours`. None: always open."""
    if hours is None:
        return True
    opening, zone = office_hours(hours)
    return opening.is_open(now.astimezone(zone))


_ROOT = Path(__file__).parents[2]
_IN_SOURCE_TREE = _ROOT / "data"
SHIPPED_DATA = _IN_SOURCE_TREE if (_IN_SOURCE_TREE / "search.json").is_file() else _ROOT / "warmdesk_data"

SAMPLE = "knowledge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Questions about a sample help centre. compared: questions of `warmdesk demo`. warm_up: a question asked before
    them. examples: questions of its page, each with the document that answers it.
    """

    compared: tuple[str, ...]
    warm_up: str
    examples: Mapping[str, str]


@cache
def samples() -> dict[str, Sample]:
    rows = tomllib.loads((SHIPPED_DATA / "samples.toml").read_text(encoding="utf-8"))
    return TypeAdapter(dict[str, Sample]).validate_python(rows)


def sample_in(folder: Path) -> Sample | None:
    return samples().get(folder.name) if folder.absolute().parent == SHIPPED_DATA else None


def sample_of(folder: Path) -> Sample:
    """Return the sample in a folder, or the first sample for other documents."""
    return sample_in(folder) or samples()[SAMPLE]


MIB = 1024**2
GIB = 1024**3
_MOST_BYTES = 2**53
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d{1,5})?")


class SettingGroup(BaseModel):
    """Settings that belong together. title: heading on the Settings page and in docs/configuration.md. is_rare: most
    desks never change them, so the page shows them collapsed.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)
    title: ClassVar[str]
    is_rare: ClassVar[bool] = False


def parse_size(text: object) -> object:
    """Return the bytes of "512 MiB", "4 GB" or "1048576": KiB is 1024 bytes, kB is 1000. Return other types unchanged.
    Raise ValueError. pydantic's ByteSize alone reads "1,5 GB" as one byte.
    """
    if not isinstance(text, str):
        return text
    text = text.strip()
    if re.fullmatch(r"\d{1,15}(\.\d{1,9})?\s*([kmgt]?i?b)?", text, re.ASCII | re.IGNORECASE) is None:
        raise ValueError(f"{text!r} is not a size")
    return int(TypeAdapter(ByteSize).validate_python(text))


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """Return the possible values of a setting if they are a short list; else nothing."""
    annotation = field.annotation
    if annotation is bool:
        return ("true", "false")
    parts = get_args(annotation) if get_origin(annotation) not in (None, Literal) else (annotation,)
    if any(get_origin(part) is not Literal for part in parts):
        return ()
    return tuple(str(one) for part in parts for one in get_args(part))


def needs_of(field: FieldInfo) -> str:
    *others, last = choices_of(field) or ("",)
    extra = field.json_schema_extra
    return str(extra["needs"]) if isinstance(extra, dict) else f"{', '.join(others)} or {last}"


def _folder(raw: object) -> Path:
    if not isinstance(raw, str | Path) or not str(raw).strip() or "\0" in str(raw):
        raise ValueError
    try:
        return Path(raw).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # "~" without a home, no current folder
        raise ValueError from error


def _listed(raw: object, also: str = "\n") -> tuple[object, ...]:
    entries = raw
    if isinstance(raw, str):
        entries = lines_of(raw, also)
        with suppress(ValueError, RecursionError):  # lines are rarely JSON
            if isinstance(as_in_file := json.loads(raw), list):
                entries = as_in_file
    if not isinstance(entries, list | tuple):
        raise ValueError
    return tuple(entries)


def _table(raw: object) -> object:
    return table_of(raw) if isinstance(raw, str) else raw


def _networks(raw: object) -> tuple[str, ...]:
    return tuple(str(ip_network(str(text).strip())) for text in _listed(raw, ","))


def _hours(text: str | None) -> str | None:
    if text is not None:
        office_hours(text)  # raises ValueError
    return text


def _model(text: str | None) -> str | None:
    model_server(text)  # raises ValueError
    return text


def _origins(raw: object) -> tuple[str, ...]:
    origins = tuple(str(text).strip().lower().rstrip("/") for text in _listed(raw, ","))
    if not all(_ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError
    return origins


def _needs(words: str, **limits: Any) -> Any:
    return Field(json_schema_extra={"needs": words}, **limits)


def between(least: int, most: int, kind: str = "a whole number") -> Any:
    return _needs(f"{kind} from {least} to {most}", ge=least, le=most)


def _size(least: int, more: str = "", **limits: int) -> Any:
    return _needs(f'a size such as "512 MiB" or "4 GB", or a number of bytes, {least} or more{more}', **limits)


_TEXT = _needs("text, not empty", pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")
_CHARACTER = r"[^\x00-\x1f\x7f]"
_LINE = _needs("one line of text, not empty", pattern=rf"^{_CHARACTER}*[^\s\x00-\x1f\x7f]{_CHARACTER}*$")
Text = Annotated[str, _TEXT]
OptionalText = Annotated[str | None, _TEXT]
TextLine = Annotated[str, _LINE]
OptionalLine = Annotated[str | None, _LINE]
Model = Annotated[
    str | None,
    _needs(
        "a folder, a .gguf file, a hub name, or openai:URL#NAME such as openai:http://127.0.0.1:8000/v1#Qwen/Qwen3-4B",
        pattern=r"^[^\x00]*[^\s\x00][^\x00]*$",
    ),
    AfterValidator(_model),
]
Headers = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], ...],
    BeforeValidator(_listed),
    _needs('a list of names of headers, for example ["x-session-id"]'),
]
Email = Annotated[str | None, _needs("an e-mail address", pattern=r"^[^\s@<>\"'&?%]+@[^\s@<>\"'&?%]+$")]
Phone = Annotated[str | None, _needs("a phone number", pattern=r"^\+?[0-9][0-9 ()/.-]{2,30}$")]
Url = Annotated[
    str | None,
    _needs("an address that begins with https://, http:// or mailto:", pattern=r"^(https?://|mailto:)[^\s<>\"'`\\]+$"),
]
PublicUrl = Annotated[
    str | None, _needs("an address such as https://help.example.com, without a path", pattern=r"^https?://[^\s/?#]+/?$")
]
Secret = Annotated[str | None, _needs("at least 32 characters", min_length=32, max_length=1024)]
Colour = Annotated[str | None, _needs('a colour such as "#a84a24"', pattern=r"^#[0-9a-fA-F]{6}$")]
Image = Annotated[str | None, _needs("the path of an .svg or .png file", pattern=r"(?i)^[^\x00]+\.(svg|png)$")]
Questions = Annotated[tuple[Text, ...], BeforeValidator(_listed), _needs("a list of questions, none of them empty")]
PageUrls = Annotated[
    dict[str, Annotated[str, Field(pattern=r"^https?://[^\s<>\"'`\\]+$")]],
    BeforeValidator(_table),
    _needs('a table of addresses by collection, each once, for example {"" = "https://help.example.com/{name}"}'),
]
SiteHeaders = Annotated[
    dict[str, Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+: ?[\x21-\x7e][\x20-\x7e]*$")]],
    BeforeValidator(_table),
    _needs('a table of headers by host, for example {"help.example.com" = "Authorization: Bearer x"}'),
]
Hosts = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[a-z0-9._:\[\]-]+$")], ...],
    BeforeValidator(_listed),
    _needs('a list of hosts in lower case, for example ["wiki.example.lan", "10.0.0.7:8080"]'),
]
Networks = Annotated[
    tuple[str, ...], BeforeValidator(_networks), _needs('a list of addresses or networks, for example ["127.0.0.1"]')
]
Hours = Annotated[
    str | None, AfterValidator(_hours), _needs('hours with a time zone, for example "Mon-Fri 9:00-17:00 Europe/Dublin"')
]
Webhook = Annotated[
    str | None, _needs("an address that begins with https:// or http://", pattern=r"^https?://[^\s/]\S*$")
]
Origins = Annotated[
    tuple[str, ...],
    BeforeValidator(_origins),
    _needs('a list of addresses without a path, for example ["https://www.example.com"]'),
]
Folder = Annotated[Path, BeforeValidator(_folder), _needs("the path of a folder")]
_Bytes = Annotated[int, BeforeValidator(parse_size)]
Size = Annotated[_Bytes, _size(0, ge=0, le=_MOST_BYTES)]
Memory = Annotated[Annotated[_Bytes, Field(ge=MIB, le=_MOST_BYTES)] | Literal["auto"], _size(MIB, ", or auto")]
Floor = Annotated[Annotated[_Bytes, Field(ge=0, le=_MOST_BYTES)] | Literal["auto"], _size(0, ", or auto")]
Probability = Annotated[float | None, between(-1, 1, "a number")]
