"""Who a visitor is: cookies, tokens signed by the company's own site, how much one visitor may ask, and what pages send
while one types.
"""

import time

import jwt
import pytest
from desk_site import BASE, Site
from fastapi.testclient import TestClient
from httpx import Response

from app.access.identity import COOKIE, SESSION_S, Identity, new_token, owner_of_user
from app.access.limits import PAUSES_A_QUESTION, VISITORS_AT_AN_ADDRESS, QuestionLimits, Windows
from app.domain.callers import NOBODY
from app.domain.errors import DeskError
from app.domain.settings import Settings
from cache.memory.keys import PUBLIC_TENANT, check_tenant

SECRET = "a secret of the company, 32 characters or more"
OURS, NONE = Identity(None, SECRET), Identity(None, None)


def signed(subject: str | None = "customer 17", secret: str = SECRET, seconds: float = 60, **more: object) -> str:
    claims: dict[str, object] = {"exp": time.time() + seconds, **more}
    if subject is not None:
        claims["sub"] = subject
    return jwt.encode(claims, secret, algorithm="HS256")


def link(subject: str = "customer 17", age_s: float = 0, lasts_s: float = 300) -> str:
    made = time.time() - age_s
    return signed(subject, seconds=made + lasts_s - time.time(), iat=made)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("desk"), visitor_secret=SECRET, public_url="https://help.example")
    yield site
    site.close()


def stranger(site: Site, base: str = "https://help.example") -> TestClient:
    return TestClient(site.app, base_url=base, follow_redirects=False)


def test_owners_tell_visitors_apart_and_say_nothing_of_them():
    one, two = new_token(), new_token()
    assert NONE.bearer(one) == OURS.bearer(one) != NONE.bearer(two)
    assert one not in NONE.bearer(one).owner
    owner = OURS.bearer(signed()).owner
    assert owner.startswith("u-")
    assert "customer" not in owner
    assert OURS.bearer(signed(seconds=90)).owner == owner, "the same user in another token"
    assert OURS.visitor(OURS.session(owner)).owner == owner
    for made in (NONE.bearer(one).owner, owner):
        check_tenant(made)
        assert made not in (PUBLIC_TENANT, "operator", "pml")


WRONG = {
    **{name: name for name in ("", "x", "operator", "v-1", "a.b.c")},
    "too long": "x" * 5000,
    "not ASCII": "\u00e4" * 43,
    "of another secret": signed(secret="another secret of 32 characters or more"),
    "ended": signed(seconds=-10),
    "of nobody": signed(subject=None),
    "not signed": jwt.encode({"sub": "customer 17", "exp": time.time() + 60}, "", algorithm="none"),
    "without end": jwt.encode({"sub": "customer 17"}, SECRET, algorithm="HS256"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_token_is_nobody(what):
    assert OURS.bearer(WRONG[what]) == OURS.visitor(WRONG[what]) == NOBODY


def test_without_a_secret_or_after_its_end_nobody_is_handed_over(monkeypatch):
    began = time.time() - SESSION_S - 1
    with monkeypatch.context() as before:
        before.setattr("time.time", lambda: began)
        session = OURS.session("u-1")
    assert OURS.visitor(session) == NOBODY
    assert NONE.bearer(signed()) == NOBODY
    assert NONE.visitor(OURS.session("u-1")) == NOBODY
    with pytest.raises(DeskError, match="This link is invalid"):
        NONE.linked(link())


def test_a_session_is_the_desks_own():
    """What a company signs is no cookie, and a cookie says nothing in a header or a link."""
    session = OURS.session("u-1")
    assert OURS.visitor(link()) == NOBODY
    assert OURS.bearer(session) == NOBODY
    assert Identity(None, f"another {SECRET}").visitor(session) == NOBODY
    with pytest.raises(DeskError):
        OURS.linked(session)


def test_the_page_gives_a_cookie_that_scripts_cannot_read(site):
    page = stranger(site).get("/")
    cookie = page.headers["set-cookie"]
    assert page.status_code == 200
    for part in (f"__Host-{COOKIE}=", "HttpOnly", "SameSite=lax", "Path=/", "Secure"):
        assert part in cookie
    kept = stranger(site).get("/", headers={"cookie": cookie.partition(";")[0]})
    assert "set-cookie" not in kept.headers
    planted = stranger(site).get("/", headers={"cookie": cookie.removeprefix("__Host-").partition(";")[0]})
    assert "set-cookie" in planted.headers, "a neighbouring domain may have set a name without the prefix"


def follow(browser: TestClient, token: str) -> Response:
    return browser.get("/", params={"visitor": token})


def owner_in(browser: TestClient) -> str:
    return OURS.visitor(browser.cookies.get(f"__Host-{COOKIE}") or "").owner


def test_the_companys_site_hands_a_customer_over(site):
    browser, token = stranger(site), link()
    reply = follow(browser, token)
    assert (reply.status_code, reply.headers["location"]) == (303, "/")
    assert token not in reply.headers["set-cookie"]
    assert f"Max-Age={SESSION_S};" in reply.headers["set-cookie"]
    assert owner_in(browser) == owner_of_user("customer 17")
    assert browser.get("/my-data").status_code == 200
    assert "set-cookie" not in browser.get("/").headers, "the session stays"


def test_only_a_link_that_was_made_for_it_hands_a_customer_over(site):
    for token in (new_token(), link(age_s=400), signed(seconds=-60), link()[:-1], OURS.session("u-1")):
        reply = follow(stranger(site), token)
        assert (reply.status_code, "open the link again" in reply.text) == (401, True), "nobody may choose a cookie"
        assert "set-cookie" not in reply.headers
    for token in (signed(), link(lasts_s=301), link(lasts_s=-10, age_s=-20), signed(iat=time.time(), seconds=86_400)):
        reply = follow(stranger(site), token)
        assert reply.status_code == 401
        assert "its token must have iat, and exp at most 5 minutes later (docs/serving.md)" in reply.text
    for token in (link(age_s=290), link(age_s=-20)):  # clocks differ
        assert follow(stranger(site), token).status_code == 303


def test_a_link_does_not_sign_a_customer_in_as_somebody_else(site):
    """Was wrong once: a link with somebody else's token, a day old, changed the account without a word."""
    browser = stranger(site)
    browser.get("/")
    assert follow(browser, link("ann", age_s=200)).status_code == 303, "nobody was signed in"
    reply = follow(browser, link("eve", age_s=200))
    assert (reply.status_code, "Another customer is signed in" in reply.text) == (409, True)
    assert owner_in(browser) == owner_of_user("ann")
    assert follow(browser, link("ann", age_s=200)).status_code == 303
    assert follow(browser, link("bob", age_s=5)).status_code == 303, "just made: the site's own page was left"
    assert owner_in(browser) == owner_of_user("bob")


def test_browsers_keep_to_tls(site, tmp_path):
    assert stranger(site).get("/healthz").headers["strict-transport-security"] == "max-age=31536000"
    assert "strict-transport-security" not in stranger(site, BASE).get("/healthz").headers, "of the whole machine"
    signed_in = stranger(site).post("/admin/login", data={"password": site.password})
    assert signed_in.headers["set-cookie"].startswith("__Secure-warmdesk_admin=")
    plain = Site(tmp_path / "plain")
    assert "strict-transport-security" not in plain.client().get("/healthz").headers
    plain.close()


def test_host_and_origin_follow_the_public_address(site):
    client = stranger(site, "http://127.0.0.1:7860")
    assert client.get("/healthz").status_code == 200
    for host, status in (("help.example", 200), ("HELP.example:443", 200), ("evil.example", 421)):
        assert client.get("/healthz", headers={"host": host}).status_code == status
    for origin, status in (("https://help.example", 303), ("https://help.example.evil.example", 403)):
        assert client.post("/admin/logout", headers={"origin": origin}).status_code == status


def test_forwarded_addresses_are_believed_from_trusted_proxies_only(tmp_path):
    for trusted, wanted in (((), "10.9.9.9"), (("10.9.9.9/32",), "203.0.113.7")):
        site = Site(tmp_path / wanted, trusted_proxies=trusted)
        seen = []
        client = site.client("10.9.9.9")
        for _ in range(6):
            reply = client.post("/admin/login", data={"password": "x"}, headers={"x-forwarded-for": "203.0.113.7"})
            seen.append(reply.status_code)
        assert seen[-1] == 429
        blocked = site.client(wanted).post("/admin/login", data={"password": "x"})
        assert blocked.status_code == 429, "it is this address whose tries were counted"
        site.close()


def test_neither_a_visitor_nor_an_address_can_ask_without_end():
    limits = QuestionLimits(Settings(questions_per_minute=3))
    for number in range(15):
        with limits.asking(f"v-{number // 3}", "10.0.0.1"):
            pass
        if number == 2:
            with pytest.raises(DeskError, match="try again in"), limits.asking("v-0", "10.0.0.1"):
                pass
    with pytest.raises(DeskError, match="too many"), limits.asking("v-new", "10.0.0.1"):
        pass
    with limits.asking("v-new", "10.0.0.2"):
        pass


def test_who_asked_once_is_not_remembered_for_ever(monkeypatch):
    """Was wrong once: the library keeps the name of everybody who ever asked."""
    monkeypatch.setattr("app.access.limits.MOST_ASKERS", 6)
    limits = QuestionLimits(Settings())
    for number in range(10):
        with limits.asking(f"v-{number}", f"10.0.0.{number}"):
            pass
    assert len(limits._limiter.storage.events) == 6
    monkeypatch.setattr("app.access.limits.MOST_ASKERS", 2)
    windows = Windows()
    for name in ("ann", "bob"):
        windows.acquire_entry(name, limit=1, expiry=60)
    windows.events["bob"] = []
    windows.acquire_entry("eve", limit=1, expiry=60)
    assert [*windows.events] == ["ann", "eve"]
    windows.acquire_entry("bob", limit=1, expiry=60)
    assert [*windows.events] == ["eve", "bob"]


def test_answers_at_once_are_counted_until_they_end():
    limits = QuestionLimits(Settings(answers_at_once=1))
    with limits.asking("v-ann", "10.0.0.1"):
        with pytest.raises(DeskError, match="still running"), limits.asking("v-ann", "10.0.0.1"):
            pass
        with limits.asking("v-bob", "10.0.0.1"):
            pass
    assert not limits._running


def test_typing_has_a_limit_that_is_not_seen_and_takes_nothing_from_questions(tmp_path):
    box = Site(tmp_path / "typing", questions_per_minute=1)
    client = box.client()
    for number in range(2 * PAUSES_A_QUESTION):
        assert client.post("/typing", json={"text": f"text {number}"}).status_code == 204
    assert len(box.desk.typed) == PAUSES_A_QUESTION
    assert client.post("/typing", json={"text": ""}).status_code == 204
    assert box.desk.typed[-1] == ("", None), "to take back is always possible"
    box.close()


def test_visitors_and_addresses_are_counted_apart_from_their_questions():
    limits = QuestionLimits(Settings(questions_per_minute=1))
    typed = [limits.may_type(f"v-{i}", "1.2.3.4") for i in range(PAUSES_A_QUESTION * VISITORS_AT_AN_ADDRESS + 1)]
    assert typed == [True] * PAUSES_A_QUESTION * VISITORS_AT_AN_ADDRESS + [False]
    assert not limits.may_type("v-new", "1.2.3.4")
    assert limits.may_type("v-new", "1.2.3.5")
    with limits.asking("v-0", "1.2.3.4"):
        pass
