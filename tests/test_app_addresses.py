"""Limits per address: one name for all addresses that one host can have."""

import pytest
from starlette.requests import Request

from app.access.limits import FREE_FAILURES, LoginRateLimiter, address_of, who_at


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_the_name_under_which_an_address_is_counted(host: str, name: str) -> None:
    assert who_at(host) == name


def test_a_request_without_an_address_has_no_name() -> None:
    assert address_of(Request({"type": "http", "headers": [], "client": None})) == ""
    assert address_of(Request({"type": "http", "headers": [], "client": ("::ffff:192.0.2.7", 1)})) == "192.0.2.7"


def test_another_address_of_the_same_network_gives_no_new_tries() -> None:
    limiter = LoginRateLimiter()
    assert not any(limiter.attempt(who_at(f"2001:db8::{last}")) for last in range(FREE_FAILURES))
    assert limiter.attempt(who_at("2001:db8::ffff")) > 0
    assert limiter.attempt(who_at("2001:db8:0:1::1")) == 0
