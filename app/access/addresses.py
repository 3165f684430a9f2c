"""The name of a client address. Every limit per address uses it."""

from ipaddress import IPv6Address, ip_address

from starlette.requests import HTTPConnection

PREFIX = 64
"""Bits of an IPv6 address that name a network. A household has at least one such network, with 2^64 addresses."""


def who_at(host: str) -> str:
    """Return the name under which an address is counted: IPv4 as it is, also if it is written as IPv6; of IPv6 its
    network. A text that is not an address is counted as it is.
    """
    try:
        address = ip_address(host.partition("%")[0])  # %: the interface of a link-local address
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    network = IPv6Address(int(address) >> (128 - PREFIX) << (128 - PREFIX))
    return f"{network}/{PREFIX}"


def address_of(connection: HTTPConnection) -> str:
    """Return the client's address as it is counted; "" if the server does not know it."""
    return who_at(connection.client.host) if connection.client else ""
