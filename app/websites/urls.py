"""Addresses of pages: one key per page, the limits of a website, and addresses that are generated without end.

A key has no fragment and no tracking or session parameters. Its parameters are sorted, and characters have one form.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from fnmatch import fnmatchcase
from urllib.parse import urljoin, urlsplit

import httpx

LONGEST_URL = 1000
_MOST_SEGMENTS, _MOST_REPEATS, _MOST_PARAMETERS = 12, 2, 2
_TRACKING = re.compile(r"utm_\w+|gclid|fbclid|msclkid|mc_[ce]id|_ga|_gl|ref|phpsessid|jsessionid|sessionid|sid", re.I)
_SESSION_IN_PATH = re.compile(r";jsessionid=[^/?]*", re.I)
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_BAD = re.compile(r"[\\\x00-\x1f\x7f\s]")
_ACTIONS = re.compile(r"/(log|sign)[-_]?(out|off)\b|[?&](action|do|add-to-cart|replytocom)=", re.I)
_FILES = re.compile(
    r"\.(jpe?g|png|gif|svg|webp|ico|bmp|css|m?js|json|xml|rss|atom|woff2?|ttf|zip|gz|tgz|rar|7z|exe|dmg|apk|iso|mp[34]|"
    r"m4a|mov|avi|webm|wav|ogg|docx?|xlsx?|pptx?|csv|ics)$",
    re.I,
)
_YEAR = re.compile(r"[?&/](?:year|y|date|month)[=/](\d{4,})|(?<!\d)(\d{4})[-/](?:0[1-9]|1[0-2])(?!\d)", re.I)


def key_of(text: str, base: str = "") -> str:
    """Return the key of an address, which may be relative to `base`. Raises ValueError if it is not a web page's."""
    text = re.sub(r"[\t\n\r]", "", text.strip())
    if len(text) > 4 * LONGEST_URL or "\\" in text:
        raise ValueError("too long, or a backslash in it")
    try:
        parts = urlsplit(urljoin(base, text) if base else text)
        if parts.scheme.lower() not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
            raise ValueError("no address of a web page")
        url = httpx.URL(parts._replace(scheme=parts.scheme.lower(), fragment="").geturl())
        host = url.raw_host.decode("ascii").lower().rstrip(".")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ValueError(str(error)) from None
    if not host or _BAD.search(host):
        raise ValueError("no usable host name")
    path, _, query = url.raw_path.decode("ascii").partition("?")
    path = _ESCAPED.sub(_plain, _SESSION_IN_PATH.sub("", path)) or "/"
    if "/." in path:  # written as %2e
        path = httpx.URL(f"http://x{path}").raw_path.decode("ascii")
    kept = sorted(one for one in query.split("&") if one and not _TRACKING.fullmatch(one.partition("=")[0]))
    query = "?" + _ESCAPED.sub(_plain, "&".join(kept)) if kept else ""
    host = f"[{host}]" if ":" in host else host
    return f"{url.scheme}://{host}{'' if url.port is None else f':{url.port}'}{path}{query}"


def _plain(escaped: "re.Match[str]") -> str:
    code = int(escaped[1], 16)
    return chr(code) if code in _UNRESERVED else escaped[0].upper()


def origin_of(key: str) -> str:
    scheme, _, rest = key.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def is_same_site(one: str, other: str) -> bool:
    """Return whether two keys are of one site. It may have moved from http to https, or added or dropped "www."."""

    def plain(key: str) -> str:
        return origin_of(key).partition("://")[2].removeprefix("www.")

    return plain(one) == plain(other) and not (one.startswith("https:") and other.startswith("http:"))


@dataclass(frozen=True, slots=True)
class Scope:
    """The pages of a website: pages of its host that are in the folder of its first page or match `include`, and that
    do not match `exclude`. Patterns are globs of path and query, for example "/blog/*".
    """

    start: str  # a key
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()

    def key(self, text: str, base: str) -> str:
        """Return the key of a link; pages of this host get its scheme. Raises ValueError."""
        key, origin = key_of(text, base), origin_of(self.start)
        return origin + key[len(origin_of(key)) :] if is_same_host(key, origin) else key

    def refusal(self, key: str, today: date) -> str:
        """Return the reason not to read a page, a key of `PAGE_REASONS`; "" if it may be read."""
        if origin_of(key) != origin_of(self.start):
            return "outside"
        place = key[len(origin_of(key)) :]
        if not self._is_inside(place):
            return "outside"
        if any(fnmatchcase(place, pattern) for pattern in self.exclude):
            return "excluded"
        if _ACTIONS.search(place):
            return "action"
        if _FILES.search(place.partition("?")[0]):
            return "file"
        return "trap" if is_endless(place, today) else ""

    def _is_inside(self, place: str) -> bool:
        folder = self.folder
        inside = place.startswith(folder) or place.partition("?")[0] == folder.rstrip("/")
        return inside or any(fnmatchcase(place, pattern) for pattern in self.include)

    @property
    def folder(self) -> str:
        """Path of the folder, with a slash at its end."""
        path = self.start[len(origin_of(self.start)) :].partition("?")[0]
        above, _, last = path.rpartition("/")
        return f"{above}/" if not last or "." in last else f"{path}/"


def is_same_host(one: str, other: str) -> bool:
    return origin_of(one).partition("://")[2] == origin_of(other).partition("://")[2]


def is_endless(place: str, today: date) -> bool:
    """Return whether path and query look like one of endlessly many generated addresses, for example of a calendar."""
    path, _, query = place.partition("?")
    segments = [one for one in path.split("/") if one]
    if len(place) > LONGEST_URL or len(segments) > _MOST_SEGMENTS or query.count("&") >= _MOST_PARAMETERS:
        return True
    if any(segments.count(one) > _MOST_REPEATS for one in segments):
        return True
    years = (int(found[1] or found[2]) for found in _YEAR.finditer(place))
    return any(year > today.year + 1 for year in years)


def shape_of(key: str) -> str:
    """Return the address with # for numbers and without the values of parameters."""
    path, _, query = key[len(origin_of(key)) :].partition("?")
    names = "&".join(one.partition("=")[0] for one in query.split("&"))
    return re.sub(r"\d+", "#", path) + (f"?{names}" if query else "")


def may_be_endless(shape: str) -> bool:
    return "?" in shape or shape.count("#") > 1
