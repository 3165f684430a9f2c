"""Call the endpoint of a look-up, and return the part of its reply that is shown.

The origin of the URL is fixed. The connection uses the IP address that was checked. No redirect is followed. Only
declared fields of the reply are used, as short plain text, never for the model. A secret is read for each request and
never returned.
"""

import json
import logging
import os
import re
import threading
import time
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

import httpx
import jwt
from babel.dates import format_date

from app.domain.errors import DeskError
from app.domain.progress import in_own_thread
from app.lookups.definitions import FORMATS, NAMED, LookUp, in_language
from app.lookups.values import fits
from app.websites.fetching import FetchFailed, Guard, Reply, Times, send
from app.websites.robots import AGENT

LookUpOutcome = Literal["found", "not_found", "failed"]
MASK = "•••"
LONGEST_FIELD, DEEPEST = 200, 20
AT_ONCE = 4  # maximum concurrent calls of one look-up, in case its endpoint is slow
_SECRET = re.compile(r"env:([A-Z_][A-Z0-9_]*)|file:(/\S+)")
_PLAIN = str.maketrans({"[": "［", "]": "］", "<": "＜", ">": "＞", "`": "｀", "*": "＊", "|": "｜"})
USER_TOKEN_S = 60
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The result of a call. says: text for the customer. links: URLs in it to open. detail: text for operators."""

    outcome: LookUpOutcome
    says: str
    links: tuple[str, ...] = ()
    status: int = 0
    ms: float = 0.0
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A request that is ready to be sent. headers: without secrets."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes


class Refused(Exception):
    """A value that must not be in a request."""


def prepared(lookup: LookUp, values: Mapping[str, str]) -> Prepared:
    """Return the request with the values inserted. Raises Refused for a value that must not be in it."""
    if any(not one or any(unicodedata.category(character) == "Cc" for character in one) for one in values.values()):
        raise Refused("a value is empty or has a control character")

    def quoted(text: str) -> str:
        return NAMED.sub(lambda found: quote(values[found[1]], safe=""), text)

    request = lookup.request
    if {".", ".."} & {unquote(quoted(segment)) for segment in request.url.partition("?")[0].split("/")}:
        raise Refused("a value would change the path")
    query = "&".join(f"{quote(name, safe='')}={quoted(text)}" for name, text in request.query.items())
    url = quoted(request.url) + (("&" if "?" in request.url else "?") + query if query else "")
    body = NAMED.sub(lambda found: json.dumps(values[found[1]])[1:-1], json.dumps(request.body)) if request.body else ""
    headers = {"accept": "application/json", "user-agent": AGENT, "accept-encoding": "gzip"}
    headers |= {"content-type": "application/json"} if body else {}
    return Prepared(method=request.method, url=url, headers=headers, body=body.encode())


def secrets_of(lookup: LookUp, environ: Mapping[str, str] = os.environ) -> dict[str, tuple[str, str]]:
    """Return by header name the whole value and its secret. Raises DeskError, whose text contains no secret."""
    found = {}
    for header, text in lookup.request.secret_header.items():
        match = _SECRET.search(text)
        assert match is not None, "checked when the file is loaded"
        if match[1]:
            secret = environ.get(match[1], "")
            cure = f"set the environment variable {match[1]}"
        else:
            file = Path(match[2])
            secret = file.read_text("utf-8").strip() if file.is_file() else ""
            cure = f"write the secret into {file}"
        if not secret or not secret.isascii() or not secret.isprintable():
            raise DeskError(
                f"look-up {lookup.name}: the secret of {header} is missing or unusable: {cure}", code="lookups"
            )
        found[header] = text[: match.start()] + secret + text[match.end() :], secret
    return found


@dataclass(slots=True)
class Caller:
    """Calls endpoints. Safe to use from any thread. If `AT_ONCE` calls of a look-up run, further calls fail at once."""

    guard: Guard
    visitor_secret: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _running: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, lookup: LookUp, values: Mapping[str, str], language: str, user: str = "") -> Called:
        """Send the request and return the text to show. A GET without a reply is sent once more. user: the signed-in
        customer. Raises no error: every failure is an outcome.
        """
        started = time.monotonic()
        with self._lock:
            is_full = self._running[lookup.name] >= AT_ONCE
            self._running[lookup.name] += not is_full
        if is_full:
            return failed(lookup, language, "too many calls run at once")
        work = in_own_thread(partial(self._exchange, lookup, values, user))
        work.add_done_callback(lambda _: self._ended(lookup.name))
        try:
            reply, secrets = work.result(lookup.limits.timeout_s + 0.5)
            called = read(lookup, reply, secrets, values, language)
        except (FetchFailed, Refused, DeskError, TooLate) as error:
            called = failed(lookup, language, str(error) or "it took too long")
        except Exception as error:  # outermost: the customer gets a text, not a broken answer
            log.error("look-up %s failed with a program error: %s", lookup.name, type(error).__name__)
            called = failed(lookup, language, f"a program error: {type(error).__name__}")
        return replace(called, ms=round((time.monotonic() - started) * 1e3, 1))

    def _ended(self, name: str) -> None:
        with self._lock:
            self._running[name] -= 1

    def _exchange(self, lookup: LookUp, values: Mapping[str, str], user: str) -> tuple[Reply, list[str]]:
        deadline = time.monotonic() + lookup.limits.timeout_s
        request, secrets = prepared(lookup, values), secrets_of(lookup, self.environ)
        headers = {**request.headers, **{name: line for name, (line, _) in secrets.items()}}
        if user and self.visitor_secret is not None:
            claims = {"sub": user, "aud": f"warmdesk-lookup:{lookup.name}", "exp": int(time.time()) + USER_TOKEN_S}
            headers["warmdesk-user"] = jwt.encode(claims, self.visitor_secret, "HS256")
        tries = 2 if request.method == "GET" else 1
        while True:
            left = deadline - time.monotonic()
            try:
                url = httpx.URL(request.url)
                address = self.guard.address_of(url.host, url.port or {"http": 80, "https": 443}[url.scheme])
                times = Times(connect=min(5.0, left), read=left, whole=left)
                most = lookup.limits.max_kib << 10
                reply = send(request.method, url, address, headers, request.body, times=times, most_bytes=most)
                return reply, [secret for _, secret in secrets.values()]
            except FetchFailed as error:
                tries -= 1
                if error.reason != "unreachable" or not tries or deadline - time.monotonic() < 0.05:
                    raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A call by an operator: what was sent, with secrets masked, and its result."""

    method: str
    url: str
    headers: Mapping[str, str]
    json: str
    called: Called


def try_out(lookup: LookUp, given: Mapping[str, str], caller: Caller, user: str = "") -> Tried:
    """Call with an operator's values, without the limits of customers. Raises DeskError for an invalid value."""
    values = dict[str, str]()
    for value in lookup.values:
        found = fits(value, given.get(value.name, ""))
        if len(found) != 1:
            raise DeskError(f"{value.name} is missing or invalid: write {value.name}=...", code="lookups")
        values[value.name] = found[0]
    if unknown := sorted(given.keys() - values.keys()):
        raise DeskError(f"{lookup.name} has no value {unknown[0]!r}: known are {', '.join(values)}", code="lookups")
    try:
        request = prepared(lookup, values)
    except Refused as error:
        raise DeskError(f"refused: {error}", code="lookups") from None
    return Tried(
        method=request.method,
        url=request.url,
        headers={**request.headers, **dict.fromkeys(lookup.request.secret_header, MASK)},
        json=request.body.decode(),
        called=caller.call(lookup, values, "en", user),
    )


def failed(lookup: LookUp, language: str, detail: str, status: int = 0) -> Called:
    says = in_language(lookup.answers.failed, language)
    return Called(outcome="failed", says=says, status=status, detail=detail)


def read(lookup: LookUp, reply: Reply, secrets: list[str], values: Mapping[str, str], language: str) -> Called:
    """Return the text to show for a reply. With identity = "knows", wrong and unknown details get the same text."""
    unknown = (404, 410, 403) if lookup.identity == "knows" else (404, 410)
    shown = {value.name: values[value.name] for value in lookup.values if not value.private and value.name in values}
    if reply.status in unknown:
        says = _rendered(lookup, in_language(lookup.answers.not_found, language), shown, language)[0]
        return Called(outcome="not_found", says=says, status=reply.status, detail=f"status {reply.status}")
    if reply.status != 200:
        return failed(lookup, language, f"status {reply.status}", reply.status)
    text = reply.body.decode("utf-8", "replace")
    if any(secret in text for secret in secrets):
        log.error("look-up %s: its reply contains the secret and was not used: fix that system", lookup.name)
        return failed(lookup, language, "the reply contains the secret", 200)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return failed(lookup, language, "the reply is not JSON", 200)
    template = in_language(lookup.answers.found, language)
    found, missing = shown, ""
    for name, pointer in lookup.fields.items():
        value = scalar(document, pointer)
        if name in lookup.words:
            words = lookup.words[name].get(value or "")
            value = None if words is None else in_language(words, language)
        if value is None and not any(f"{{{name}:{form}}}" in template for form in FORMATS):
            missing = missing or name
        found[name] = value or ""
    if missing:
        return failed(lookup, language, f"the field {missing} is missing, too long or has an unknown code", 200)
    says, links = _rendered(lookup, template, found, language)
    return Called(outcome="found", says=says, links=links, status=200)


def scalar(document: Any, pointer: str) -> str | None:
    """Return the value at a JSON pointer as short plain text; None if there is none."""
    parts = pointer.split("/")[1:]
    if len(parts) > DEEPEST:
        return None
    for part in parts:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list):
            document = document[int(part)] if part.isascii() and part.isdigit() and int(part) < len(document) else None
        else:
            return None
    if isinstance(document, bool):
        return str(document).lower()
    if not isinstance(document, str | int | float):
        return None
    text = " ".join(str(document).split())
    text = "".join(one for one in text if unicodedata.category(one) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
    return text if 0 < len(text) <= LONGEST_FIELD else None


def plain(text: str) -> str:
    """Change a value so that it is not rendered as Markdown, HTML or a link."""
    return text.translate(_PLAIN).replace("://", ": //")


def _rendered(lookup: LookUp, template: str, found: Mapping[str, str], language: str) -> tuple[str, tuple[str, ...]]:
    links = list[str]()

    def shown(match: re.Match[str]) -> str:
        name, _, form = match[1].partition(":")
        value = found[name]
        if form == "date":
            return _date(value, language) or "–"
        if form == "link":
            if is_link(value, lookup.link_hosts):
                links.append(value)
                return value
            return ""
        return plain(value)

    return re.sub(r"\{([\w:-]+)\}", shown, template).strip(), tuple(links)


def is_link(text: str, hosts: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        is_simple = parts.scheme == "https" and parts.hostname in hosts and parts.netloc.lower() == parts.hostname
    except ValueError:
        return False
    return is_simple and re.fullmatch(r"[\w.~:/?&=%#+-]+", text, re.ASCII) is not None


def _date(text: str, language: str) -> str:
    try:
        day = datetime.fromisoformat(text).date() if "T" in text else date.fromisoformat(text)
    except ValueError:
        return ""
    return str(format_date(day, "long", language if language in ("de", "es", "fr", "zh") else "en_GB"))
