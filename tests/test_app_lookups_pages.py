"""Look-ups for programs and in the admin's page, and what a slow endpoint costs others."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from desk_site import Site
from order_endpoint import TOKEN, order_endpoint

from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.lookups.calling import AT_ONCE, Caller, try_out
from app.lookups.definitions import load
from app.storage.lookups import Figures
from app.web.rendering import lookup_html
from app.websites.fetching import Guard


@pytest.fixture
def endpoint(monkeypatch):
    monkeypatch.setenv("SHOP_TOKEN", TOKEN)
    with order_endpoint() as one:
        yield one


def lookup_of(folder, endpoint, *changes):
    (folder / "lookups.toml").write_text(endpoint.definitions(*changes), "utf-8")
    return load(folder / "lookups.toml", Settings(data_dir=folder, private_hosts=(f"127.0.0.1:{endpoint.port}",)))[0]


def test_of_many_calls_to_a_slow_endpoint_few_wait(tmp_path, endpoint):
    lookup, caller = lookup_of(tmp_path, endpoint), Caller(Guard(allow_private=True))
    endpoint.wait.clear()
    values = {"order": "AB-123456", "email": "ann@example.com"}
    with ThreadPoolExecutor(48) as pool:
        calls = [pool.submit(caller.call, lookup, values, "en") for _ in range(48)]
        done = threading.Event()
        while sum(call.done() for call in calls) < 48 - AT_ONCE and not done.wait(0.01):
            pass
        assert {call.result().outcome for call in calls if call.done()} == {"failed"}
        endpoint.wait.set()
        assert sum(call.result().outcome == "found" for call in calls) == AT_ONCE
    assert caller.call(lookup, values, "en").outcome == "found", "the places are free again"


def test_a_get_without_an_answer_is_sent_once_more_and_a_post_is_not(tmp_path, endpoint):
    asked = ('method = "POST", url', 'method = "GET", url'), (', json = { email = "{email}" }', "")
    for changes, number in ((asked, 2), ((), 1)):
        lookup = lookup_of(tmp_path, endpoint, *((old, new) for old, new in changes))
        tried = []

        def address(host, port, tried=tried):
            tried.append(host)
            return ["127.0.0.1"]

        lookup = lookup.model_copy(
            update={"request": lookup.request.model_copy(update={"url": "http://a.example:9/x"})}
        )
        called = Caller(Guard(allow_private=True, resolve=address)).call(lookup, {"email": "a@b.example"}, "en")
        assert (called.outcome, len(tried)) == ("failed", number)


def test_the_address_is_checked_before_anything_is_sent(tmp_path, endpoint):
    lookup = lookup_of(tmp_path, endpoint)
    for address in ("127.0.0.1", "169.254.169.254", "64:ff9b::a9fe:a9fe", "::ffff:10.0.0.1"):
        caller = Caller(Guard(resolve=lambda host, port, address=address: [address]))
        assert caller.call(lookup, {"order": "AB-123456", "email": "a@b.example"}, "en").outcome == "failed"
    assert endpoint.seen == []


def test_no_proxy_of_the_environment_gets_a_request(tmp_path, endpoint, monkeypatch):
    with order_endpoint() as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        values = {"order": "AB-123456", "email": "ann@example.com"}
        assert Caller(Guard(allow_private=True)).call(lookup_of(tmp_path, endpoint), values, "en").outcome == "found"
        assert proxy.seen == []
    assert json.loads(endpoint.seen[0][2]) == {"email": "ann@example.com"}
    assert httpx.Headers(endpoint.seen[0][1])["host"] == f"127.0.0.1:{endpoint.port}"


class FewLookUps:
    """What the admin's page asks the desk's look-ups."""

    def __init__(self, lookup):
        self.lookup = lookup

    def all(self):
        return [self.lookup]

    def figures(self, name):
        return Figures(by_event={"asked": 7, "found": 5}, ms=41.0)

    def try_out(self, name, given):
        if name != self.lookup.name:
            raise DeskError("there is no such look-up", code="lookups")
        names = [value.name for value in self.lookup.values]
        return try_out(self.lookup, dict(zip(names, given, strict=False)), Caller(Guard(allow_private=True)))


def test_the_page_has_the_figures_and_tries_one_without_the_secret(tmp_path, endpoint):
    site = Site(tmp_path / "site")
    site.desk.lookups = FewLookUps(lookup_of(tmp_path, endpoint))
    admin, path = site.admin(), "/admin/lookups/try"
    assert ">7<" in admin.get("/admin/lookups").text
    values = ["AB-123456", "ann@example.com"]
    tried = admin.post(path, data={"name": "order-status", "given": values})
    assert "Order AB-123456 is on its way" in tried.text
    assert TOKEN not in tried.text
    refused = admin.post(path, data={"name": "order-status", "given": ["<b>", "x"]})
    assert refused.status_code == 400
    assert "order is missing or invalid" in refused.text
    assert site.audited() == [("admin", "lookup-try", "order-status")] * 2
    site.close()


def test_the_chat_shows_plain_text_and_links_only_what_was_checked():
    html = lookup_html("<img src=x> ![x](https://evil.example) https://ok.example/1", ["https://ok.example/1"])
    assert "<img" not in html
    assert html.count("<a ") == 1
    assert 'href="https://ok.example/1"' in html
