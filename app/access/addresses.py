"""Who an address is, for limits: one function for every limit per address."""

from ipaddress import IPv6Address, ip_address

from starlette.requests import HTTPConnection

PREFIX = 64
"""Bits of an IPv6 address that name a network. A household has at least one such network, with 2^64 addresses in it."""


def who_at(host: str) -> str:
    """The name under which an address is counted: an IPv4 address itself, also where it is written as IPv6, and of
    an IPv6 address its network. A text that is no address is counted as it is.
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
    """The address of whoever sends a request, as it is counted; "" where the server does not know it."""
    return who_at(connection.client.host) if connection.client else ""
