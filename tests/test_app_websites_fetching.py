"""Requests of a website: the address that is asked was checked, and limits of time, size and pauses are kept."""

import gzip
import zlib
from datetime import date
from types import SimpleNamespace

import pytest
from local_site import LocalSite

from app.websites.fetching import Fetcher, FetchFailed, Guard, inflated, is_public
from app.websites.urls import Scope, key_of, shape_of


@pytest.fixture
def site():
    with LocalSite() as site:
        yield site


def fetcher(guard: Guard, **options) -> Fetcher:
    return Fetcher(guard, agent="Warmdesk", **{"wait": lambda seconds: None, "pause_s": 0.0, **options})


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "169.254.169.254", "100.100.100.200", "0.0.0.0", "255.255.255.255", "192.0.2.1"),
        *("168.63.129.16", "224.0.0.1", "192.88.99.1", "::1", "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:a9fe:a9fe::1", "2001:0:1::1", "::a9fe:a9fe"),
        *("", "example.com", "127.1"),
    ],
)
def test_addresses_that_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_addresses_that_are_public(address):
    assert is_public(address)


@pytest.mark.parametrize(
    "url", ["http://2130706433/", "http://127.1/", "http://0x7f.1/", "http://[::1]/", "http://[::ffff:7f00:1]/"]
)
def test_a_host_in_disguise_is_refused_before_anything_is_asked(url):
    with fetcher(Guard()) as one, pytest.raises(FetchFailed) as caught:
        one.get(key_of(url))
    assert caught.value.reason == "private"


def test_a_name_with_one_private_address_is_refused():
    guard = Guard(resolve=lambda host, port: ["93.184.216.34", "10.0.0.1"])
    with pytest.raises(FetchFailed, match="name it in private_hosts"):
        guard.address_of("help.example.com", 443)
    named = Guard(private_hosts=frozenset({"help.example.com:443"}), resolve=guard.resolve)
    assert named.address_of("help.example.com", 443) == "93.184.216.34"
    with pytest.raises(FetchFailed):
        named.address_of("help.example.com", 80)
    with pytest.raises(FetchFailed, match="not known"):
        Guard(resolve=lambda host, port: []).address_of("nowhere.example", 80)


def test_a_name_is_resolved_once_and_the_connection_goes_to_the_checked_address(site):
    """Otherwise a name could first have a public address and then a private one."""
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["127.0.0.99"]

    site.pages["/"] = "<p>hello</p>"
    guard = Guard(private_hosts=frozenset({"help.example.com"}), resolve=resolve)
    with fetcher(guard) as one:
        url = f"http://help.example.com:{site.port}/"
        assert [one.get(url).body for _ in range(3)] == [b"<p>hello</p>"] * 3
    assert asked == ["help.example.com"]
    assert {headers["host"] for headers in site.headers} == {f"help.example.com:{site.port}"}


def test_no_proxy_no_cookie_no_redirect(site, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    site.pages["/"] = (302, {"Location": "http://169.254.169.254/latest", "Set-Cookie": "session=1"}, b"")
    with fetcher(Guard(allow_private=True)) as one:
        replies = [one.get(site.url("/")) for _ in range(2)]
    assert [(one.status, one.target) for one in replies] == [(302, "http://169.254.169.254/latest")] * 2
    assert not any("cookie" in headers for headers in site.headers)


def test_a_header_of_the_operator_goes_to_its_host_only(site):
    site.pages["/"] = "<p>hello</p>"
    guard = Guard(allow_private=True, resolve=lambda host, port: ["127.0.0.1"])
    with fetcher(guard, headers={"a.example": "Authorization: Bearer x"}) as one:
        for host in ("a.example", "b.example"):
            one.get(f"http://{host}:{site.port}/")
    assert [headers.get("authorization") for headers in site.headers] == ["Bearer x", None]


def test_a_busy_server_is_asked_again_after_the_time_it_names(site):
    waits: list[float] = []
    site.pages["/"] = [(503, {"Retry-After": "7"}, b""), (429, {"Retry-After": "9999"}, b""), "<p>now</p>"]
    with fetcher(Guard(allow_private=True), wait=waits.append) as one:
        assert one.get(site.url("/")).status == 200
    assert [one for one in waits if one] == [7, 120]
    site.pages["/"] = (500, {}, b"")
    with fetcher(Guard(allow_private=True)) as one:
        assert (one.get(site.url("/")).status, len(site.headers)) == (500, 6)


def test_a_pause_is_kept_between_requests(site, monkeypatch):
    monkeypatch.setattr("app.websites.fetching.time", SimpleNamespace(monotonic=lambda: 100.0))
    waits: list[float] = []
    site.pages["/"] = "<p>hello</p>"
    with fetcher(Guard(allow_private=True), wait=waits.append, pause_s=9.0) as one:
        one.get(site.url("/"))
        one.get(site.url("/"))
    assert waits[-1] == 9.0


def test_a_body_is_decompressed_up_to_the_limit(site):
    bomb = gzip.compress(b"0" * 30_000_000, 1)
    site.pages["/bomb"] = (200, {"Content-Encoding": "gzip"}, bomb)
    site.pages["/odd"] = (200, {"Content-Encoding": "br"}, b"x")
    site.pages["/bad"] = (200, {"Content-Encoding": "gzip"}, b"\x1f\x8b\x08 not gzip at all")
    with fetcher(Guard(allow_private=True)) as one:
        for path, reason in (("/bomb", "too-large"), ("/odd", "unreadable"), ("/bad", "unreadable")):
            with pytest.raises(FetchFailed) as caught:
                one.get(site.url(path))
            assert caught.value.reason == reason
        assert one.get(site.url("/bomb"), most_bytes=1000, cuts=True).body == b"0" * 1000
    assert inflated([zlib.compress(b"abc")], "deflate", 20) == b"abc"
    with pytest.raises(FetchFailed):
        inflated([b"abc", b"defg"], "", 5)


def test_one_page_has_one_key():
    base = "https://help.example.com/hc/"
    same = [
        "HTTPS://HELP.example.com:443/hc/%61%2fb?z=1&a=2&utm_source=m#x",
        "a%2Fb?a=2&z=1&gclid=7",
        "./x/../a%2fb;jsessionid=9?a=2&z=1",
    ]
    assert {key_of(one, base) for one in same} == {"https://help.example.com/hc/a%2Fb?a=2&z=1"}
    assert key_of("http://Bücher.example/ä", base) == "http://xn--bcher-kva.example/%C3%A4"
    assert key_of("https://help.example.com/hc/%2e%2e/private", base) == "https://help.example.com/private"
    for bad in (
        "mailto:a@b.c",
        "javascript:x",
        "ftp://a/b",
        "https://a\\@b/",
        "https://user@a/",
        "x" * 9999,
        "http://[1/",
    ):
        with pytest.raises(ValueError):
            key_of(bad, base)
    with pytest.raises(ValueError):
        key_of("https://")


def test_what_belongs_to_a_website():
    scope = Scope("https://help.example.com/hc", include=("/faq/*",), exclude=("/hc/blog*",))
    refused = {
        "/hc": "", "/hc/": "", "/hc/a?page=2": "", "/faq/x": "", "/hcx": "outside", "/": "outside",
        "/hc/blog/1": "excluded", "/hc/logout": "action", "/hc/a?action=edit": "action", "/hc/a.PNG": "file",
        "/hc/a.pdf": "", "/hc/calendar/2026/12": "", "/hc/calendar/2028/01": "trap", "/hc/?year=7749": "trap",
        "/hc/a/b/a/b/a": "trap", "/hc/" + "x/y/z/" * 5: "trap", "/hc/a?a=1&b=2&c=3": "trap",
        "/hc/" + "x" * 1000: "trap",
    }  # fmt: skip
    said = {place: scope.refusal(f"https://help.example.com{place}", date(2026, 11, 26)) for place in refused}
    assert said == refused
    assert scope.refusal("https://example.com/hc", date(2026, 11, 26)) == "outside"
    assert scope.key("http://help.example.com/hc/a", "https://help.example.com/") == "https://help.example.com/hc/a"
    assert Scope("https://a.example/docs/index.html").folder == "/docs/"
    assert shape_of("https://a.example/c/2026/11?b=1&a=2") == "/c/#/#?b&a"
