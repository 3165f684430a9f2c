"""What the web application refuses: foreign hosts and origins, unused routes; its headers and endpoints.

The browser's side is in test_app_browser.py.
"""

import re
from contextlib import closing

import pytest
from desk_site import BASE, config_of
from fake_desk import FakeDesk
from fastapi.testclient import TestClient

from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage.database import open_database
from app.storage.people import ApiKeyTable, Sessions
from app.web.guard import ADMIN
from app.web.server import MAX_BODY, create_app

pytestmark = pytest.mark.usefixtures("running_site")


@pytest.fixture
def database(tmp_path):
    with closing(open_database(f"sqlite:///{tmp_path}/desk.sqlite3")) as opened:
        yield opened


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "localhost@evil.example", "[::1].evil"])
def test_foreign_host_names_are_refused_on_loopback(site, host):
    for path in ("/", "/healthz", "/admin/login", "/config"):
        assert site.client().get(path, headers={"host": host}).status_code == 421
    for own in ("localhost", "LOCALHOST:7860", "127.0.0.1:1", "[::1]:7860"):
        assert site.client().get("/healthz", headers={"host": own}).status_code == 200


@pytest.mark.parametrize("header", ["x-forwarded-host", "x-gradio-server"])
def test_nobody_names_another_desk_to_the_page(site, header):
    named = {header: "http://evil.example" if "server" in header else "evil.example"}
    for path in ("/", "/config", "/admin/"):
        answer = site.admin().get(path, headers=named)
        assert (answer.status_code, "evil.example" in answer.text) == (200, False)


def test_a_proxy_may_name_the_public_address(tmp_path, database):
    app = create_app(FakeDesk(), database, Settings(data_dir=tmp_path, public_url="https://Help.example/"))
    client = TestClient(app, base_url=BASE)
    forwarded = {"x-forwarded-proto": "https", "x-forwarded-host": "help.example"}
    assert client.get("/config", headers=forwarded).json()["root"] == "https://help.example"
    app = create_app(FakeDesk(), database, Settings(data_dir=tmp_path, host="0.0.0.0"))
    assert TestClient(app, base_url="http://any.example").get("/healthz").status_code == 200, "bound to the network"


def test_without_its_database_the_desk_asks_to_try_again(site, monkeypatch):
    def unreachable(*_: object) -> None:
        raise DeskError("the database postgresql://desk@db/desk cannot be reached", code="database-unreachable")

    monkeypatch.setattr(Sessions, "account", unreachable)
    monkeypatch.setattr(ApiKeyTable, "find", unreachable)
    key = {"authorization": "Bearer wd_any"}
    for path, headers in (("/admin/", {"cookie": f"{ADMIN.name}=any"}), ("/v1/models", key)):
        reply = site.client().get(path, headers=headers)
        assert reply.status_code == 503
        assert "postgresql" not in reply.text
    assert site.client().get("/healthz").status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:9999"])
def test_requests_from_other_sites_are_refused(site, origin):
    for path in ("/gradio_api/queue/join", "/admin/login", "/admin/logout"):
        assert site.client().post(path, headers={"origin": origin}).status_code == 403
    reply = site.client().get("/config", headers={"origin": "http://localhost:9999"})
    assert not [name for name in reply.headers if name.startswith("access-control-")]
    assert site.client().post("/admin/logout", headers={"origin": BASE}).status_code == 303


def test_large_requests_are_refused(site):
    body = b"x" * (MAX_BODY + 1)
    for content in (body, iter([body[:9], body[9:]])):
        refused = site.client().post("/gradio_api/queue/join", content=content)
        assert refused.status_code == 413
        assert refused.headers["x-content-type-options"] == "nosniff"


def test_security_headers_on_every_answer(site):
    client = site.client()
    for path in ("/", "/healthz", "/admin/login", "/admin/", "/nosuch", "/assets/nosuch.js", "/config"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
        assert not re.search(r"https?:|\*", policy)


def test_page_scripts_carry_the_nonce_of_their_own_answer(site):
    one, two = site.client().get("/"), site.client().get("/")
    nonces = [re.findall(r"'nonce-([^']+)'", page.headers["content-security-policy"])[0] for page in (one, two)]
    assert nonces[0] != nonces[1]
    scripts = re.findall(r"<script[^>]*>", one.text)
    assert scripts
    assert all(f'nonce="{nonces[0]}"' in script for script in scripts)


def test_vibe_mode_stops_the_start(tmp_path, database, monkeypatch):
    monkeypatch.setenv("GRADIO_VIBE_MODE", "1")
    with pytest.raises(DeskError, match="GRADIO_VIBE_MODE"):
        create_app(FakeDesk(), database, Settings(data_dir=tmp_path))


def test_endpoints_are_the_known_ones(site):
    """A new endpoint must be added here on purpose; none is public."""
    client = site.client()
    config = config_of(client, "")
    assert all(d["api_visibility"] == "private" for d in config["dependencies"])
    assert config["analytics_enabled"] is False
    assert client.get("/gradio_api/info").json() == {"named_endpoints": {}, "unnamed_endpoints": {}}
    assert sorted(target[1] for d in config["dependencies"] for target in d["targets"]) == [
        *("change", "change", "edit", "example", "example", "find", "load", "look", "open", "open", "person"),
        *("remove", "rename", "restore", "retry", "stop", "submit", "then", "tick", "tick", "verdict"),
    ]
