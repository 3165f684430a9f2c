"""Read the look-ups of a desk from one TOML file. docs/lookups.md explains every key.

A file with a mistake is not used at all. Each mistake is reported with its line. Out of scope: recognising the wish of
a message (`recognising`), and the requests (`calling`).
"""

import importlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import httpx
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from app.domain.errors import DeskError
from app.domain.settings import Settings

LOOKUPS_FILE = "lookups.toml"
MOST_BYTES = 1 << 20
_MOST_LOOKUPS = 50


def _by_language(value: object) -> object:
    return {"en": value} if isinstance(value, str) else value


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
Text = Annotated[str, Field(min_length=1, max_length=1000)]
Texts: TypeAlias = Annotated[dict[Name, Text], BeforeValidator(_by_language), Field(min_length=1)]
"""A text by language code. A plain text counts as English."""
Json: TypeAlias = dict[str, Any]


class Part(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


class Value(Part):
    """A value to ask the customer for. clean: changes before the pattern is tried. choices: by value, its words in each
    language. private: masked in stored texts, and never in a URL.
    """

    name: Name
    ask: Texts
    kind: Literal["pattern", "email", "phone", "date", "choice"]
    pattern: Annotated[str, Field(max_length=200)] = ""
    clean: tuple[Literal["upper", "lower", "no-spaces", "digits"], ...] = Field((), strict=False)
    example: Annotated[str, Field(max_length=64)] = ""
    choices: dict[Text, Texts] = Field(default_factory=dict)
    private: bool = False


class Request(Part):
    """The HTTP request of a look-up. secret_header: by header name, a text with env:NAME or file:PATH."""

    method: Literal["GET", "POST"] = "GET"
    url: Annotated[str, Field(max_length=1000)]
    query: dict[str, str] = Field(default_factory=dict)
    body: Json = Field(default_factory=dict, alias="json")
    secret_header: dict[str, str] = Field(default_factory=dict)


class Answers(Part):
    """Texts that the customer sees after a call, by outcome."""

    found: Texts
    not_found: Texts
    failed: Texts


class Limits(Part):
    """Limits of a call and of a dialogue."""

    timeout_s: Annotated[float, Field(gt=0, le=30, strict=False)] = 8.0
    max_kib: Annotated[int, Field(ge=1, le=1024)] = 64
    per_visitor_hour: Annotated[int, Field(ge=1, le=1000)] = 10
    wrong_per_visitor_hour: Annotated[int, Field(ge=1, le=1000)] = 5
    tries_per_value: Annotated[int, Field(ge=1, le=10)] = 3
    expires_min: Annotated[int, Field(ge=1, le=240)] = 15


class LookUp(Part):
    """A look-up. words: by field, the texts for its codes; with another code the call fails."""

    name: Name
    title: Texts
    effect: Literal["read"] = "read"  # look-ups that write may come later; a file can state that its own only read
    examples: tuple[Text, ...] = Field(min_length=1, max_length=500, strict=False)
    not_examples: tuple[Text, ...] = Field((), max_length=500, strict=False)
    values: tuple[Value, ...] = Field((), max_length=10, strict=False)
    identity: Literal["none", "knows", "signed_in"]
    confirm: Literal["always", "inferred", "never"] = "inferred"
    request: Request
    fields: dict[Name, str] = Field(min_length=1)
    words: dict[Name, dict[Text, Texts]] = Field(default_factory=dict)
    answers: Answers
    link_hosts: tuple[str, ...] = Field((), strict=False)
    limits: Limits = Limits()

    def value(self, name: str) -> Value:
        return next(one for one in self.values if one.name == name)

    def has(self, name: str) -> bool:
        return any(one.name == name for one in self.values)


class _File(Part):
    lookup: tuple[LookUp, ...] = Field(max_length=_MOST_LOOKUPS, strict=False)


def in_language(texts: Mapping[str, str], language: str) -> str:
    return texts.get(language) or texts.get("en") or next(iter(texts.values()))


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in the file. line: from 1."""

    line: int
    message: str


def file_of(settings: Settings) -> Path:
    named = settings.lookups_file
    return settings.data_dir / LOOKUPS_FILE if named is None else Path(named).expanduser()


def load(file: Path, settings: Settings) -> tuple[LookUp, ...]:
    """Return the look-ups of a file; none if it is missing. Raises DeskError "lookups" for the first mistake."""
    if not file.exists() and settings.lookups_file is None:
        return ()
    lookups, problems = checked(file, settings)
    if problems:
        first = problems[0]
        more = f" ({len(problems) - 1} more: warmdesk lookups check)" if len(problems) > 1 else ""
        raise DeskError(f"{file}, line {first.line}: {first.message}{more}", code="lookups")
    return lookups


def checked(file: Path, settings: Settings) -> tuple[tuple[LookUp, ...], list[Problem]]:
    """Return the look-ups and the mistakes of a file; with mistakes no look-ups. Raises DeskError if it is
    unreadable.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(MOST_BYTES + 1).decode("utf-8-sig")
    except OSError as error:
        raise DeskError(f"cannot read {file}: {error.strerror}", code="lookups") from None
    except UnicodeDecodeError:
        raise DeskError(f"{file} is not UTF-8 text: save it as UTF-8", code="lookups") from None
    if len(text) > MOST_BYTES:
        raise DeskError(f"{file} is larger than 1 MiB: remove texts that no look-up needs", code="lookups")
    try:
        lookups = _File.model_validate(tomllib.loads(text)).lookup
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        found = re.search(r"line (\d+)", str(error))
        at_end = text.count("\n") + 1
        return (), [Problem(int(found[1]) if found else at_end, f"this is not valid TOML: {error}")]
    except ValidationError as error:
        mistakes = [(one["loc"], _words(one)) for one in error.errors(include_url=False, include_context=False)]
    else:
        names = [one.name for one in lookups]
        mistakes = [
            (("lookup", place, *where), message)
            for place, one in enumerate(lookups)
            for where, message in _mistakes(one, names[:place], settings)
        ]
    problems = [Problem(line_of(text, where), message) for where, message in mistakes]
    return (() if problems else lookups), sorted(problems, key=lambda one: one.line)


def _words(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"][2:] if part != "str")
    known = {"missing": "is missing", "extra_forbidden": "is not a known key"}
    return f"{where or 'lookup'} {known.get(error['type']) or '- ' + error['msg']}"


def line_of(text: str, where: Sequence[int | str]) -> int:
    """Return the line of a key. The names of its path are searched one after another, within the look-up's table."""
    starts = [found.end() for found in re.finditer(r"^\s*\[\[\s*lookup\s*\]\]", text, re.M)] + [len(text)]
    number = next((part for part in where if isinstance(part, int)), 0)
    at, end = starts[number], starts[min(number + 1, len(starts) - 1)]
    for part in where[2:]:
        wanted = r"\{" if isinstance(part, int) else rf"(?<![\w-])[\"']?{re.escape(part)}[\"']?\s*="
        for _ in range(part + 1 if isinstance(part, int) else 1):
            found = re.compile(wanted).search(text, at + 1, end)
            at = found.start() if found else at
    return text.count("\n", 0, at) + 1


_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
NAMED = re.compile(r"\{([\w-]+)\}")
"""A placeholder of a request."""
_LITERAL_REST = re.compile(r"(?:env:[A-Z_][A-Z0-9_]*|file:/\S+)")
FORMATS: tuple[str, ...] = ("date", "link")


def placeholders(text: str) -> list[tuple[str, str]]:
    """Return the names between braces, each with its format or ""."""
    return [(name.partition(":")[0], name.partition(":")[2]) for name in _PLACEHOLDER.findall(text)]


Where: TypeAlias = tuple[int | str, ...]


def _mistakes(lookup: LookUp, before: Sequence[str], settings: Settings) -> Iterator[tuple[Where, str]]:
    if lookup.name in before:
        yield ("name",), f"there are two look-ups {lookup.name!r}: rename one"
    for place, value in enumerate(lookup.values):
        if problem := _value_problem(value):
            yield ("values", place, "pattern" if "pattern" in problem else "name"), f"{value.name}: {problem}"
    names = [value.name for value in lookup.values]
    if double := {one for one in names if names.count(one) > 1 or one in lookup.fields}:
        yield ("values",), f"two values or fields have the name {sorted(double)[0]}: rename one"
    if lookup.identity == "knows" and not names:
        yield ("identity",), "identity knows needs a value that only the customer knows"
    if lookup.identity == "signed_in" and settings.visitor_secret is None:
        yield ("identity",), "identity signed_in needs the setting visitor_secret"
    yield from _request_mistakes(lookup, settings)
    for name, pointer in lookup.fields.items():
        if pointer and not pointer.startswith("/"):
            yield ("fields", name), f"{pointer!r} is not a JSON pointer: begin with /, for example /status"
    for name in lookup.words:
        if name not in lookup.fields:
            yield ("words", name), f"words has {name}, which is not a field"
    shown = {*lookup.fields, *(value.name for value in lookup.values if not value.private)}
    formats = dict.fromkeys(lookup.fields, FORMATS)
    formats |= {value.name: ("date",) for value in lookup.values if value.kind == "date"}
    for kind in ("found", "not_found", "failed"):
        allowed = shown if kind == "found" else shown - set(lookup.fields)
        for text in getattr(lookup.answers, kind).values():
            for name, form in placeholders(text):
                if name not in allowed:
                    yield ("answers", kind), f"unknown placeholder {{{name}}}: known are {', '.join(sorted(allowed))}"
                elif form and form not in formats.get(name, ()):
                    yield ("answers", kind), f"unknown format {{{name}:{form}}}: date, or link of a field"


def _value_problem(value: Value) -> str:
    if value.kind == "choice":
        return "" if value.choices else "a value of the kind choice needs choices"
    if value.kind != "pattern":
        return ""
    if not value.pattern:
        return "a value of the kind pattern needs a pattern"
    try:
        parsed = importlib.import_module("re._parser").parse(value.pattern, re.ASCII)
    except re.error as error:
        return f"the pattern is not valid: {error}"
    if not _is_quick(parsed, set()):
        return "the pattern may never finish: it has repeats within repeats, or more than three unlimited repeats"
    if value.example and not re.compile(value.pattern, re.ASCII).fullmatch(value.example):
        return f"its example {value.example!r} does not fit the pattern"
    return ""


def _is_quick(parsed: Any, seen: set[int], within: bool = False) -> bool:
    """Return whether matching is fast for every text, because `re` has no time limit. seen: the repeats of more than 64
    times so far.
    """
    for name, argument in parsed:
        kind, inner = str(name), []
        if "REPEAT" in kind:
            least, most, repeated = argument
            if most > 64:
                seen.add(id(repeated))
            if (within and least != most) or not _is_quick(repeated, seen, within or most > 1):
                return False
        elif kind == "SUBPATTERN":
            inner = [argument[-1]]
        elif kind == "BRANCH":
            inner = argument[1]
        is_refused = (kind == "BRANCH" and within) or kind in ("GROUPREF", "GROUPREF_EXISTS", "ASSERT", "ASSERT_NOT")
        if is_refused or not all(_is_quick(one, seen, within) for one in inner):
            return False
    return len(seen) <= 3


def _request_mistakes(lookup: LookUp, settings: Settings) -> Iterator[tuple[Where, str]]:
    request, by_name = lookup.request, {value.name: value for value in lookup.values}
    url = ("request", "url")
    origin, _, path = re.sub(r"^(\w+://[^/?#]*)", "\\1\n", request.url).partition("\n")
    problem = _origin_problem(origin, settings)
    if problem or not path.startswith("/") or re.search(r"[\s\\\x00-\x20\x7f#]", request.url):
        yield url, problem or "the address has no path, or a forbidden character"
    elif {".", ".."} & set(path.partition("?")[0].split("/")):
        yield url, "the path contains . or ..: write the full path"
    in_json = [(name, "") for name in re.findall(r'\{([^{}"]+)\}', json.dumps(request.body))]
    sent = [(url, request.url), *((("request", "query"), one) for one in request.query.values())]
    for where, text in sent:
        for name, _ in placeholders(text):
            if name in by_name and by_name[name].private:
                yield where, f"{name} is private, and addresses are logged: send it in json"
    for where, found in [*((one, placeholders(text)) for one, text in sent), (("request", "json"), in_json)]:
        for name, form in found:
            if name not in by_name or form:
                yield where, f"unknown placeholder {{{name}}}: known are {', '.join(by_name) or 'none'}"
    if request.method == "GET" and request.body:
        yield ("request", "json"), "a GET request cannot have json: use POST"
    for name, text in request.secret_header.items():
        where = ("request", "secret_header")
        if not _LITERAL_REST.search(text):
            yield where, f"{name} contains its secret: put the secret into an environment variable and write env:NAME"
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name) or name.lower() in ("host", "content-length"):
            yield where, f"{name!r} is not the name of a header that may be set"


def _origin_problem(origin: str, settings: Settings) -> str:
    if re.search("[{}@]", origin):
        return "scheme, host and port must not contain a placeholder or a password"
    try:
        url = httpx.URL(origin)
    except httpx.InvalidURL:
        return f"{origin!r} is not an address"
    is_named = not {url.host, f"{url.host}:{url.port or 80}"}.isdisjoint(settings.private_hosts)
    schemes = ("http", "https") if is_named or settings.allow_private_addresses else ("https",)
    is_allowed = url.host and url.scheme in schemes
    return "" if is_allowed else "the address must begin with https://; for http://, add its host to private_hosts"
