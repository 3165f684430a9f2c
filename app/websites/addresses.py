"""Which hosts a website may lead to: public addresses only, unless the operator allows more.

Otherwise a page could make the server read its own network: a router, a cloud's metadata, a database. A name is
resolved once; all of its addresses are checked, and the connection goes to one that was checked. So a name that
resolves to another address later changes nothing.
"""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeAlias

Resolve: TypeAlias = Callable[[str, int], list[str]]
"""Return the IP addresses of a host, for a port. Raises OSError."""

_REFUSED = tuple(
    map(
        ip_network,
        (
            "168.63.129.16/32",  # metadata of a cloud
            "192.88.99.0/24",  # 6to4: tunnels to other addresses, as are the next
            "2002::/16",
            "2001::/32",
            "64:ff9b:1::/48",
            "::/96",
        ),
    )
)
"""Addresses that `is_global` takes for public."""
_NAT64 = ip_network("64:ff9b::/96")  # networks without IPv4 reach public servers through it


class FetchFailed(Exception):
    """A request that was refused or failed. reason: a key of `app.domain.websites.REASONS`. detail: one line."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


def is_public(text: str) -> bool:
    """Return whether an IP address belongs to the public internet, also as the end of a tunnel."""
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
    """Chooses the address of a host. allow_private: hosts of private networks are allowed, too. private_hosts: those
    that are allowed anyway, as HOST or HOST:PORT.
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
            raise FetchFailed("private", f"{host} is in a private network or is no ordinary address: {cure}")
        return addresses[0]
