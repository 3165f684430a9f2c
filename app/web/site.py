"""Where the desk is reached: the names it answers to, the origins it takes requests from, whether browsers use TLS.

With the setting `public_url` these follow it, because a proxy in front may hide what the browser asked for. Without it,
a desk on loopback answers to loopback names only, and one that is open to the network to any.
"""

import re
from urllib.parse import urlsplit

from starlette.requests import Request

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def host_name(host: str) -> str:
    """Host header without port and brackets, in lower case."""
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:\[\]]+))(?::\d+)?", host.strip())
    return (match[1] or match[2]).lower().rstrip(".") if match else ""


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is this machine's own."""
    return host in LOOPBACK or host_name(host) in LOOPBACK


class Site:
    """The desk's own addresses. bound_to: what the server listens on. public_url: as customers write it, or None."""

    def __init__(self, bound_to: str, public_url: str | None) -> None:
        url = urlsplit(public_url or "")
        self._origin = f"{url.scheme}://{url.netloc}".lower() if public_url else None
        self._hosts = LOOPBACK | {host_name(url.netloc)} if public_url else LOOPBACK if is_loopback(bound_to) else None
        self._is_tls = url.scheme == "https"

    def answers_to(self, request: Request) -> bool:
        """Whether the Host header names this desk."""
        return self._hosts is None or host_name(request.headers.get("host", "")) in self._hosts

    def takes_from(self, request: Request) -> bool:
        """Whether a request that changes something comes from a page of this desk, or from no page."""
        origin = request.headers.get("origin")
        if origin is None or origin.lower() == self._origin:
            return True
        return origin.partition("://")[2].lower() == request.headers.get("host", "").lower()

    def keeps_to_tls(self, request: Request) -> bool:
        """Whether browsers are told to use TLS only. On loopback that would bind other programs of the machine."""
        return self.is_secure(request) and host_name(request.headers.get("host", "")) not in LOOPBACK

    def is_called(self, host: str) -> bool:
        """Whether a name is that of the public address, as a proxy says which one the browser asked for."""
        return self._origin is not None and host.strip().lower() == self._origin.partition("://")[2]

    def is_secure(self, request: Request) -> bool:
        """Whether the browser reaches the desk over TLS, so that cookies may ask for it."""
        return self._is_tls or request.url.scheme == "https"
