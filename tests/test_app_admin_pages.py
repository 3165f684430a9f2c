"""The admins' pages: one frame for all, charts over time, passages, accounts, keys, who did what."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from desk_site import HTML, Site
from fake_overview import make_usage
from fastapi.testclient import TestClient
from quick_account import quick_account

from app.domain.statistics import UsageSpan
from app.storage.people import Accounts, Audit
from app.web.access_rules import find_rule
from app.web.accounts import ACTIONS
from app.web.admin_pages import ACTIONS as MODULE_ACTIONS
from app.web.admin_pages import DONE, PAGES
from app.web.dashboard import RANGES, Axis, charts

NOW = datetime(2026, 3, 12, 10, 42, 30, tzinfo=UTC)
PLAIN_PAGES = [path for path, _ in PAGES if path != "/admin/" and find_rule(path, "GET") is not None]


@pytest.fixture
def site(site):
    site.forget()
    return site


def test_every_page_has_the_navigation_and_says_where_one_is(site):
    admin = site.admin()
    for path in PLAIN_PAGES:
        page = admin.get(path, headers=HTML)
        assert page.status_code == 200, path
        assert page.headers["cache-control"] == "no-store"
        assert re.findall(r'href="([^"]+)" aria-current="page"', page.text) == [path]
        assert page.text.count("</nav></header>") == 1


def test_an_agent_begins_at_a_page_of_agents(site):
    password = quick_account(Accounts(site.database), "ann", "agent")
    agent = site.client()
    signed_in = agent.post("/admin/login", data={"name": "ann", "password": password})
    assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/admin/queue")
    for back, location in (("/admin/queue/7", "/admin/queue/7"), ("//evil.example", "/admin/queue")):
        again = agent.post("/admin/login", params={"next": back}, data={"name": "ann", "password": password})
        assert again.headers["location"] == location
    form = agent.get("/admin/login", params={"next": "/admin/queue/7"}).text
    assert "Your password comes from an admin." in form
    assert (
        'action="/admin/login?next=%2Fadmin%2Fqueue%2F7"' in form or 'action="/admin/login?next=/admin/queue/7"' in form
    )
    sent_on = agent.get("/admin/", headers=HTML)
    assert (sent_on.status_code, sent_on.headers["location"]) == (303, "/admin/queue")
    page = agent.get("/admin/queue", headers=HTML)
    assert page.status_code == 200
    links = set(re.findall(r'href="(/admin/[^"#?]*)"', page.text))
    assert {agent.get(link, headers=HTML).status_code for link in links} == {200}
    assert agent.get("/admin/settings", headers=HTML).status_code == 403, "no other page sends on"
    assert site.admin().get("/admin/", headers=HTML).status_code == 200


def test_what_was_done_is_said_in_our_words_only(site):
    admin = site.admin()
    assert DONE["key-revoked"] in admin.get("/admin/api?did=key-revoked").text
    assert "evil" not in admin.get("/admin/api?did=evil").text


@pytest.mark.parametrize("name", RANGES)
def test_an_axis_ends_with_the_step_that_is_now(name):
    axis = Axis.ending(NOW, name)
    assert axis.until - axis.range.step < NOW <= axis.until
    assert (axis.until - axis.since) == axis.range.length
    assert axis.since.timestamp() % axis.range.step.total_seconds() == 0
    assert len(axis.ticks) == axis.range.ticks + 1


def test_charts_share_an_axis_and_break_where_nothing_was_measured():
    axis = Axis.ending(NOW, "day")
    spans = make_usage(axis.since, axis.until, axis.range.step)
    drawn = charts(axis, spans, False)
    for chart in drawn:
        assert [x for x, *_ in chart.bins] == [x for x, *_ in drawn[0].bins]
        assert len(chart.bins) == len(spans) < axis.range.length / axis.range.step
    warm = drawn[-1].layers[0][2]
    assert warm.count("M") == 2, "one line before the pause and one behind it"
    cold = drawn[-1].layers[2][2]
    assert cold.count("M") > 2, "no line across a step without a cold answer"
    assert {path.count("M") for _, _, path in drawn[0].layers} == {len(spans)}


def test_shares_fill_their_bar_and_counts_do_not_exceed_the_scale():
    axis = Axis.ending(NOW, "hour")
    tokens = {"module": 30, "computed": 10}
    drawn = charts(
        axis, [UsageSpan(start=axis.since, tokens=tokens), UsageSpan(start=axis.since - timedelta(1))], False
    )
    assert drawn[0].scale == ("50", "25", "0")
    assert drawn[0].layers[0][2].startswith("M0.00 40.00")
    assert [row for *_, row in drawn[0].bins] == [["30", "0", "0", "10"]]
    assert drawn[1].bins == drawn[2].bins == []
    found = charts(axis, [UsageSpan(start=axis.since, modules={"device": 30, "computed": 10})], False)[1]
    assert [path.split("v")[1].split("h")[0] for _, _, path in found.layers if path] == ["75.00", "25.00"]
    assert found.bins[0][2][0] == "75%"


def test_passages_are_searched_sorted_and_paged(site):
    admin = site.admin()
    assert len(re.findall(r"<tr><td", admin.get("/admin/modules").text)) == 50
    assert len(re.findall(r"<tr><td", admin.get("/admin/modules?page=2").text)) == 25
    found = admin.get("/admin/modules?q=warranty+2&sort=tokens").text
    tokens = [int(one) for one in re.findall(r'</small></td><td class="wd-num">(\d+)', found)]
    assert tokens == sorted(tokens, reverse=True)
    assert len(tokens) > 1
    assert "returns/" not in found
    assert "No passage was found" in admin.get("/admin/modules?q=%3Cnone%3E&sort=x&page=-4").text


@pytest.mark.parametrize("action", MODULE_ACTIONS)
def test_a_passage_is_acted_on_and_it_is_written_down(site, action):
    form = {"key": "b2:0000000000000000", "q": "a b", "sort": "size", "page": "1"}
    response = site.admin().post(f"/admin/modules/{action}", data=form)
    assert response.status_code == 303
    did = "sound" if action == "verify" else action
    assert response.headers["location"] == f"/admin/modules?q=a+b&sort=size&page=1&did={did}"
    assert site.desk.cared == [(action, form["key"])]
    assert site.audited() == [("admin", f"module-{action}", "returns/returns-policy.md Section 1 · 1")]
    assert f"module-{action}" in ACTIONS


def test_a_passage_that_is_gone_is_said(site):
    response = site.admin().post("/admin/modules/verify", data={"key": "b2:gone"})
    assert response.status_code == 409
    assert "no longer exists" in response.text
    assert site.audited() == []


def sign_in(site: Site, name: str, password: str) -> TestClient:
    client = site.client()
    assert client.post("/admin/login", data={"name": name, "password": password}).status_code == 303
    return client


def test_accounts_are_added_changed_and_removed(site):
    admin = site.admin()
    page = admin.post("/admin/accounts", data={"name": "ann", "role": "agent"})
    password = re.findall(r"<code>([\w-]+)</code>", page.text)[0]
    ann = sign_in(site, "ann", password)
    assert ann.get("/admin/accounts").status_code == 403
    assert password not in admin.get("/admin/accounts").text, "shown once"
    assert admin.post("/admin/accounts/role", data={"name": "ann", "role": "admin"}).status_code == 303
    assert ann.get("/admin/accounts").status_code == 401, "its sessions ended"
    again = re.findall(r"<code>([\w-]+)</code>", admin.post("/admin/accounts/password", data={"name": "ann"}).text)[0]
    assert sign_in(site, "ann", again).get("/admin/accounts").status_code == 200
    assert admin.post("/admin/accounts/remove", data={"name": "ann"}).status_code == 303
    assert Accounts(site.database).named("ann") is None
    assert [entry[1:] for entry in site.audited()] == [
        ("account-add", "ann (agent)"),
        ("account-role", "ann (admin)"),
        ("account-password", "ann"),
        ("account-remove", "ann"),
    ]
    assert password not in repr(site.audited())


def test_nobody_removes_or_demotes_himself(site):
    quick_account(Accounts(site.database), "bob", "admin")
    admin = site.admin()
    for action in ("remove", "role"):
        response = admin.post(f"/admin/accounts/{action}", data={"name": "admin", "role": "agent"})
        assert response.status_code == 409
        assert "your own account" in response.text
    for name, words in (("bob", "already"), ("a b", "1 to 80 letters"), ("", "1 to 80 letters")):
        assert words in admin.post("/admin/accounts", data={"name": name}).text
    assert site.audited() == []


def test_keys_are_made_shown_once_and_revoked(site):
    admin = site.admin()
    page = admin.post("/admin/api/keys", data={"name": "shop", "scope": ["chat", "documents"], "per_minute": "7"})
    key = re.findall(r"<code>(wd_[\w-]+)</code>", page.text)[0]
    program = site.client()
    assert program.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
    listed = admin.get("/admin/api").text
    assert key not in listed
    assert key[:9] in listed
    assert admin.post("/admin/api/keys/revoke", data={"name": "shop"}).status_code == 303
    assert program.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 401
    assert "Choose at least one scope" in admin.post("/admin/api/keys", data={"name": "x"}).text
    assert [entry[1:] for entry in site.audited()] == [("key-create", "shop (chat, documents)"), ("key-revoke", "shop")]
    assert key not in repr(site.audited())


def test_the_log_says_who_signed_in_and_who_could_not(site):
    """Of who could not: the name of an account only. Another one may be a password in the wrong field."""
    for name in ("admin", "my secret", "command line", "x" * 4_000):
        site.client(name[:9]).post("/admin/login", data={"name": name, "password": "x"})
    assert [entry[0] for entry in site.audited()] == ["admin", "", "", ""]
    page = site.admin().get("/admin/audit").text
    assert page.index("signed in") < page.index("<b>an unknown user</b>") < page.rindex("could not sign in")
    assert "command line" not in page


def test_the_log_keeps_a_year_and_pages_back(site):
    audit = Audit(site.database)
    for number in range(103):
        audit.record("admin", "settings", f"s{number}")
    admin = site.admin()
    page = admin.get("/admin/audit").text
    older = re.findall(r'href="(/admin/audit\?before=\d+)"', page)[0]
    assert [f"s{n}</span>" in admin.get(older).text for n in (0, 3, 4)] == [True, True, False]
