"""One GET at a time: to an address that was checked, within limits of time and size, with the site's pauses.

No redirect is followed automatically, because each target must be checked first. No cookie is stored, and proxies of
the environment are ignored. The body is decompressed in small steps, so that a zip bomb stops at the limit.

Only public addresses are requested, unless the operator allows more. Otherwise a page could make the server read its
own network: a router, a cloud's metadata, a database. A name is resolved once. All of its addresses are checked, and
the connection uses a checked address. So it does no harm if the name later resolves to another address.
"""

import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from email.utils import parsedate_to_datetime
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeAlias

import httpx

from app.domain.words import utc_now

Resolve: TypeAlias = Callable[[str, int], list[str]]
"""Return the IP addresses of a host, for a port. Raises OSError."""

_REFUSED = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # metadata of a cloud
            "192.88.99.0/24",  # 6to4: tunnels to other addresses, like the next ones
            "2002::/16",
            "2001::/32",
            "64:ff9b:1::/48",
            "::/96",
        ),
    )
)
"""Addresses that are not public, although `is_global` returns True for them."""
_NAT64 = ip_network("64:ff9b::/96")  # networks without IPv4 reach public servers through it


class FetchFailed(Exception):
    """A request that was refused or failed. reason: a key of `PAGE_REASONS`. detail: one line."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def is_public(text: str) -> bool:
    """Return whether an IP address is public. If an IPv6 address contains an IPv4 address, that one decides."""
    try:
        address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(str(address.ipv4_mapped))
        if address in _NAT64:
            return is_public(str(IPv4Address(int(address) & 0xFFFFFFFF)))
    is_special = address.is_multicast or address.is_reserved or address.is_unspecified or not address.is_global
    return (
        not is_special
        and not (isinstance(address, IPv6Address) and address.is_site_local)
        and not any(address in network for network in _REFUSED)
    )


def resolve(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """Chooses the IP address of a host. allow_private: hosts of private networks are also allowed. private_hosts:
    always allowed, as HOST or HOST:PORT.
    """

    allow_private: bool = False
    private_hosts: frozenset[str] = frozenset()
    resolve: Resolve = field(default=resolve)

    def address_of(self, host: str, port: int) -> str:
        """Return the address to connect to. Raises FetchFailed: "private" or "unreachable"."""
        try:
            addresses = self.resolve(host, port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            raise FetchFailed("unreachable", f"the name {host} is not known: check the address")
        is_allowed = self.allow_private or not self.private_hosts.isdisjoint((host, f"{host}:{port}"))
        if not is_allowed and not all(map(is_public, addresses)):
            cure = "if it may be read, name it in private_hosts"
            raise FetchFailed("private", f"{host} is in a private network or has a reserved address: {cure}")
        return addresses[0]


MOST_BYTES = 5 * 2**20
CONNECT_S, READ_S, WHOLE_S = 5.0, 20.0, 30.0
RETRIES = 2
LONGEST_WAIT_S = 120.0
REDIRECTS = frozenset((301, 302, 303, 307, 308))
_BUSY = frozenset((429, 500, 502, 503, 504))
_PIECE = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A server's reply. body: decompressed; empty unless the status is 200. target: the target of a redirect, as it was
    sent.
    """

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
    """Sends requests to servers. Not safe for several threads."""

    def __init__(
        self,
        guard: Guard,
        *,
        agent: str,
        headers: Mapping[str, str] | None = None,
        wait: Callable[[float], None] = time.sleep,
        pause_s: float = 1.0,
    ) -> None:
        """agent: the name sent to servers. headers: by host, a line "Name: value" that only this host gets. wait:
        waits a number of seconds, and may raise to end the run. pause_s: pause between two requests.
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
        """Request a page, and retry if the server is busy or does not respond. validators: headers of a conditional
        request. cuts: a body above `most_bytes` is cut instead of refused. Raises FetchFailed.
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
        """Return whether the host is an IP address that must not be requested. No name is resolved."""
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
        # One transport per host: a connection must not be reused for another host with the same address.
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
    return httpx.create_ssl_context()  # takes a tenth of a second


def _in_time(pieces: Iterable[bytes], deadline: float) -> Iterator[bytes]:
    for piece in pieces:
        if time.monotonic() > deadline:
            raise FetchFailed("unreachable", "the reply takes too long")
        yield piece


def inflated(pieces: Iterable[bytes], encoding: str, most_bytes: int, *, cuts: bool = False) -> bytes:
    """Return the decompressed bytes. cuts: as `Fetcher.get`. Raises FetchFailed, also for an unknown encoding."""
    if encoding.lower() not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise FetchFailed("unreadable", f"it is sent in the encoding {encoding[:40]!r}, which was not requested")
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
    """Return the seconds that a busy server asks for, at most `LONGEST_WAIT_S`; 1 if its header is not usable."""
    asked = headers.get("retry-after", "").strip()
    try:
        seconds = float(asked) if asked.isdigit() else (parsedate_to_datetime(asked) - utc_now()).total_seconds()
    except (ValueError, TypeError):
        seconds = 1.0
    return min(max(seconds, 0.0), LONGEST_WAIT_S)
