"""One GET at a time: to an address that was checked, within limits of time and size, with the site's pauses.

No redirect is followed unseen, because each hop is an address to be checked. No cookie is kept, and no proxy is taken
from the environment. The body is decompressed in small steps, so that a bomb stops at the limit.
"""

import ssl
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import cache
from ipaddress import ip_address

import httpx

from app.domain.words import utc_now
from app.websites.addresses import FetchFailed, Guard, is_public

MOST_BYTES = 5 * 2**20
CONNECT_S, READ_S, WHOLE_S = 5.0, 20.0, 30.0
RETRIES = 2
LONGEST_WAIT_S = 120.0
REDIRECTS = frozenset((301, 302, 303, 307, 308))
_BUSY = frozenset((429, 500, 502, 503, 504))
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A server's reply. body: decompressed; empty unless the status is 200. target: of a redirect, as it was sent."""

    url: str
    status: int
    headers: httpx.Headers
    body: bytes = b""

    @property
    def target(self) -> str:
        return str(self.headers.get("location", "")) if self.status in REDIRECTS else ""

    @property
    def media_type(self) -> str:
        return str(self.headers.get("content-type", "")).partition(";")[0].strip().lower()


class Fetcher(AbstractContextManager["Fetcher"]):
    """Asks servers. Not safe for several threads."""

    def __init__(
        self,
        guard: Guard,
        *,
        agent: str,
        headers: Mapping[str, str] | None = None,
        wait: Callable[[float], None] = time.sleep,
        pause_s: float = 1.0,
    ) -> None:
        """agent: the name given to servers. headers: by host, a line "Name: value" that only this host gets. wait:
        waits so many seconds, and may raise to end the run. pause_s: between two requests.
        """
        self._guard, self._agent, self._headers = guard, agent, dict(headers or {})
        self._wait, self.pause_s = wait, pause_s
        self._transports: dict[str, httpx.HTTPTransport] = {}
        self._addresses: dict[tuple[str, int], str] = {}
        self._last = 0.0

    def __exit__(self, *error: object) -> None:
        for transport in self._transports.values():
            transport.close()

    def get(
        self, url: str, *, validators: Mapping[str, str] | None = None, most_bytes: int = MOST_BYTES, cuts: bool = False
    ) -> Reply:
        """Ask for a page, again if the server is busy or does not respond. validators: headers of a conditional
        request. cuts: a longer body is cut instead of refused. Raises FetchFailed.
        """
        for left in reversed(range(RETRIES + 1)):
            self._wait(max(0.0, self._last + self.pause_s - time.monotonic()))
            try:
                reply = self._once(url, validators or {}, most_bytes, cuts)
            except FetchFailed as error:
                if error.reason != "unreachable" or not left:
                    raise
                continue
            finally:
                self._last = time.monotonic()
            if reply.status not in _BUSY or not left:
                return reply
            self._wait(_asked_wait(reply.headers))
        raise AssertionError("the last try returns or raises")

    def is_private_literal(self, url: str) -> bool:
        """Return whether the host is written as an address that may not be asked. No name is resolved."""
        host = httpx.URL(url).host
        try:
            return not (is_public(str(ip_address(host))) or self._guard.allow_private)
        except ValueError:
            return False

    def _once(self, url: str, validators: Mapping[str, str], most_bytes: int, cuts: bool) -> Reply:
        asked = httpx.URL(url)
        host, port = asked.host, asked.port or {"http": 80, "https": 443}[asked.scheme]
        address = self._addresses.get((host, port)) or self._guard.address_of(host, port)
        self._addresses[host, port] = address
        headers = {"user-agent": self._agent, "accept-encoding": "gzip"}
        headers |= {"accept": "text/html,application/xhtml+xml,*/*;q=0.5", **validators}
        if line := self._headers.get(host):
            name, _, value = line.partition(":")
            headers[name.strip()] = value.strip()
        # One transport a host: a connection to one host must not be used again for another one at the same address.
        if host not in self._transports:
            self._transports[host] = _transport()
        of_host = self._transports[host]
        reply = send("GET", asked, address, headers, transport=of_host, most_bytes=most_bytes, cuts=cuts)
        return replace(reply, url=url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Maximum seconds: to connect, between two pieces of the reply, and of the whole request."""

    connect: float = CONNECT_S
    read: float = READ_S
    whole: float = WHOLE_S


def send(
    method: str,
    url: httpx.URL,
    address: str,
    headers: Mapping[str, str],
    content: bytes = b"",
    *,
    times: Times = Times(),
    most_bytes: int = MOST_BYTES,
    cuts: bool = False,
    transport: httpx.HTTPTransport | None = None,
) -> Reply:
    """Send one request to the checked address of its host. No redirect is followed. transport: for several requests;
    else a new one. Raises FetchFailed.
    """
    seconds = {"connect": times.connect, "read": times.read, "write": times.connect, "pool": times.connect}
    request = httpx.Request(
        method,
        url.copy_with(host=address.partition("%")[0]),
        headers={"host": url.netloc.decode("ascii"), **headers},
        content=content or None,
        extensions={"sni_hostname": url.raw_host.decode("ascii"), "timeout": seconds},
    )
    deadline, used = time.monotonic() + times.whole, transport or _transport()
    try:
        response = used.handle_request(request)
        try:
            body = b""
            if response.status_code == 200:
                assert isinstance(response.stream, httpx.SyncByteStream)
                encoding = response.headers.get("content-encoding", "")
                body = inflated(_in_time(response.stream, deadline), encoding, most_bytes, cuts=cuts)
        finally:
            response.close()
    except (httpx.HTTPError, OSError) as error:
        raise FetchFailed("unreachable", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from None
    finally:
        if transport is None:
            used.close()
    return Reply(url=str(url), status=response.status_code, headers=response.headers, body=body)


def _transport() -> httpx.HTTPTransport:
    return httpx.HTTPTransport(verify=_tls(), trust_env=False)


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()  # a tenth of a second


def _in_time(pieces: Iterable[bytes], deadline: float) -> Iterator[bytes]:
    for piece in pieces:
        if time.monotonic() > deadline:
            raise FetchFailed("unreachable", "it takes too long")
        yield piece


def inflated(pieces: Iterable[bytes], encoding: str, most_bytes: int, *, cuts: bool = False) -> bytes:
    """Return the decompressed bytes. cuts: as `Fetcher.get`. Raises FetchFailed, also for an unknown encoding."""
    if encoding.lower() not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise FetchFailed("unreadable", f"it is sent in the encoding {encoding[:40]!r}, which was not asked for")
    unzip = None if encoding.lower() in ("", "identity") else zlib.decompressobj(zlib.MAX_WBITS | 32)
    found, size, sent = list[bytes](), 0, 0
    for piece in pieces:
        sent += len(piece)
        while piece:
            try:
                part = piece if unzip is None else unzip.decompress(piece, _PIECE)
            except zlib.error:
                raise FetchFailed("unreadable", "its compressed bytes are damaged") from None
            piece = b"" if unzip is None else unzip.unconsumed_tail
            found.append(part)
            size += len(part)
            if max(size, sent) > most_bytes:
                if cuts:
                    return b"".join(found)[:most_bytes]
                raise FetchFailed("too-large", f"it is larger than {most_bytes / 2**20:g} MB")
    return b"".join(found)


def _asked_wait(headers: httpx.Headers) -> float:
    """Return the seconds that a busy server asks for, at most `LONGEST_WAIT_S`; 1 if it says nothing usable."""
    asked = headers.get("retry-after", "").strip()
    try:
        seconds = float(asked) if asked.isdigit() else (parsedate_to_datetime(asked) - utc_now()).total_seconds()
    except (ValueError, TypeError):
        seconds = 1.0
    return min(max(seconds, 0.0), LONGEST_WAIT_S)
