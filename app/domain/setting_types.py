"""Types of settings: the limits of a value, and what an error message says about them.

A type reads a Python value, a value of the settings file, or the text of an environment variable. A wrong value is a
ValueError. Out of scope: which settings there are (`desk_settings`,
`server_settings`), where values come from (`settings`).
"""

import re
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, TypeAdapter
from pydantic.fields import FieldInfo

from app.domain.setting_values import lines_of, model_server, office_hours, table_of

MIB = 1024**2
GIB = 1024**3
_MOST_BYTES = 2**53
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d{1,5})?")


class SettingGroup(BaseModel):
    """Settings that belong together. title: heading on the Settings page and in docs/configuration.md."""

    model_config = ConfigDict(use_attribute_docstrings=True)
    title: ClassVar[str]


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
    """Return the values that a setting can have, if they are a short list; else nothing."""
    annotation = field.annotation
    if annotation is bool:
        return ("true", "false")
    parts = get_args(annotation) if get_origin(annotation) not in (None, Literal) else (annotation,)
    if any(get_origin(part) is not Literal for part in parts):
        return ()
    return tuple(str(one) for part in parts for one in get_args(part))


def needs_of(field: FieldInfo) -> str:
    """Return what a value of a setting must be, for an error message."""
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
    """Return the entries of a list, or of a text (see `lines_of`)."""
    entries = lines_of(raw, also) if isinstance(raw, str) else raw
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
    """Return origins as browsers write them."""
    origins = tuple(str(text).strip().lower().rstrip("/") for text in _listed(raw, ","))
    if not all(_ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError
    return origins


def _needs(words: str, **limits: Any) -> Any:
    """Return the limits of a setting, with their words for an error message."""
    return Field(json_schema_extra={"needs": words}, **limits)


def between(least: int, most: int, kind: str = "a whole number") -> Any:
    """Return the limits of a number."""
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
        "a folder, a .gguf file, a hub name, or openai:URL#NAME as openai:http://127.0.0.1:8000/v1#Qwen/Qwen3-4B",
        pattern=r"^[^\x00]*[^\s\x00][^\x00]*$",
    ),
    AfterValidator(_model),
]
Headers = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], ...],
    BeforeValidator(_listed),
    _needs('a list of names of headers, as ["x-session-id"]'),
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
    _needs('a table of addresses by collection, each once, as {"" = "https://help.example.com/{name}"}'),
]
Networks = Annotated[
    tuple[str, ...], BeforeValidator(_networks), _needs('a list of addresses or networks, as ["127.0.0.1"]')
]
Hours = Annotated[
    str | None, AfterValidator(_hours), _needs('hours with a time zone, as "Mon-Fri 9:00-17:00 Europe/Dublin"')
]
Webhook = Annotated[
    str | None, _needs("an address that begins with https:// or http://", pattern=r"^https?://[^\s/]\S*$")
]
Origins = Annotated[
    tuple[str, ...],
    BeforeValidator(_origins),
    _needs('a list of addresses without a path, as ["https://www.example.com"]'),
]
Folder = Annotated[Path, BeforeValidator(_folder), _needs("the path of a folder")]
_Bytes = Annotated[int, BeforeValidator(parse_size)]
Size = Annotated[_Bytes, _size(0, ge=0, le=_MOST_BYTES)]
Memory = Annotated[Annotated[_Bytes, Field(ge=MIB, le=_MOST_BYTES)] | Literal["auto"], _size(MIB, ", or auto")]
Floor = Annotated[Annotated[_Bytes, Field(ge=0, le=_MOST_BYTES)] | Literal["auto"], _size(0, ", or auto")]
Probability = Annotated[float | None, between(-1, 1, "a number")]
