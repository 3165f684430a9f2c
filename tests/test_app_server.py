"""The web application over HTTP: streaming through Gradio's queue, and the admin login.

The browser's side is in test_app_browser.py.
"""

import threading
from typing import Any

import pytest
from desk_site import BASE, Site
from fastapi.testclient import TestClient
from starlette.routing import Mount

from app.access import identity
from app.access.limits import FREE_FAILURES
from app.storage.database import open_database
from app.web.event_gate import EventGate
from app.web.server import create_app, without_stubs

pytestmark = pytest.mark.usefixtures("running_site")


def test_the_chat_becomes_an_application_once(tmp_path, monkeypatch):
    """Was wrong once: Gradio made seven, which took half of the time in which a desk opened its pages."""
    from gradio.routes import App

    make, made = App.create_app, list[App]()

    def create_app(*given: Any, **options: Any) -> App:
        made.append(make(*given, **options))
        return made[-1]

    monkeypatch.setattr(App, "create_app", staticmethod(create_app))
    site = Site(tmp_path)
    gates = [route.app for route in site.app.routes if isinstance(route, Mount) and isinstance(route.app, EventGate)]
    assert [gate._app for gate in gates] == made == [page.get_blocks().app for page in made]
    assert App.create_app is create_app
    site.close()


ADMIN_PATHS = (
    *("GET /admin", "GET /admin/", "GET /admin/config/", "GET /admin/gradio_api/queue/data?session_hash=x"),
    *("POST /admin/gradio_api/queue/join", "POST /admin/gradio_api/upload", "GET /admin/gradio_api/file=/etc/passwd"),
    *("GET /admin//config", "GET /admin/documents/", "POST /admin/documents/upload/?name=a.md"),
    *("GET /admin/login/../config", "GET /admin/%63onfig", "GET //admin/config", "GET /ADMIN/config"),
)


@pytest.mark.parametrize("cookie", ["", "warmdesk_admin=", "warmdesk_admin=9999999999.x.y", "warmdesk_admin"])
def test_anonymous_reaches_nothing_of_the_admin_page(site, cookie):
    for method, path in (one.split(" ") for one in ADMIN_PATHS):
        response = site.client().request(method, BASE + path, headers={"cookie": cookie} if cookie else {})
        assert response.status_code in (401, 404), path
        assert len(response.content) < 100


def test_login_opens_the_page_and_logout_closes_it(site):
    client = site.client()
    response = client.post("/admin/login", data={"password": site.password})
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "path=/admin" in cookie
    assert client.get("/admin/").status_code == 200
    assert client.get("/admin").headers["location"] == "/admin/"
    assert "Prompt tokens reused" in client.get("/admin/engine").text
    token = client.cookies["warmdesk_admin"]
    assert client.post("/admin/logout").status_code == 303
    assert client.get("/admin/engine").status_code == 401
    kept = site.client().get("/admin/engine", headers={"cookie": f"warmdesk_admin={token}"})
    assert kept.status_code == 401


def test_who_finds_many_signing_in_is_told_to_come_again(site, monkeypatch):
    monkeypatch.setattr(identity, "_PLACES", threading.BoundedSemaphore(1))
    with identity._PLACES:
        response = site.client().post("/admin/login", data={"password": site.password})
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


def test_a_login_outlives_a_restart_until_it_is_ended(tmp_path):
    site = Site(tmp_path)
    cookies = [{"cookie": f"warmdesk_admin={site.admin().cookies['warmdesk_admin']}"} for _ in range(2)]

    def restart() -> TestClient:
        site.close()
        site.database = open_database(site.settings.database_url)
        return TestClient(create_app(site.desk, site.database, site.settings), base_url=BASE, follow_redirects=False)

    client = restart()
    assert [client.get("/admin/", headers=cookie).status_code for cookie in cookies] == [200, 200]
    client.post("/admin/logout", headers=cookies[0])
    client = restart()
    assert [client.get("/admin/", headers=cookie).status_code for cookie in cookies] == [401, 200]
    site.close()


def test_guessing_is_stopped_even_for_the_right_password(site):
    client = site.client("10.0.0.66")
    for _ in range(FREE_FAILURES):
        response = client.post("/admin/login", data={"password": "guess"})
        assert response.status_code == 401
        assert "set-cookie" not in response.headers
    response = client.post("/admin/login", data={"password": site.password})
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) > 0
    assert "set-cookie" not in response.headers
    assert site.admin().get("/admin/").status_code == 200  # from another address


def test_gradio_writes_no_stubs_into_its_folder(tmp_path, monkeypatch):
    from gradio.component_meta import create_or_modify_pyi

    (tmp_path / "widgets.py").write_text("\nclass Widget:\n    def __init__(self): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    from widgets import Widget

    with without_stubs():
        create_or_modify_pyi(Widget, "Widget", [])
    assert not (tmp_path / "widgets.pyi").exists()
    create_or_modify_pyi(Widget, "Widget", [])
    assert (tmp_path / "widgets.pyi").exists(), "it would have"
