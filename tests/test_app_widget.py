"""The widget's routes over HTTP: whose site may show it, who asks, what is streamed."""

import json
import time
from typing import Any

import jwt
import pytest
from desk_site import BASE, Site
from fastapi.testclient import TestClient
from pydantic import ValidationError

from app.domain.settings import Settings

SHOP = "https://shop.example"
SECRET = "s" * 32
PATHS = ("/widget", "/widget.js", "/widget/page.js", "/widget/page.css")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("desk"), widget_origins=(SHOP,), visitor_secret=SECRET, questions_per_minute=50)
    yield site
    site.close()


def frame(site: Site, token: str | None = None, **headers: str) -> TestClient:
    """The page in its frame: no cookies, the visitor's token in a header."""
    client = TestClient(site.app, base_url=BASE, headers=headers)
    token = token or client.post("/widget/visitor").json()["token"]
    client.headers["authorization"] = f"Bearer {token}"
    return client


def ask(client: TestClient, question: str, conversation_id: str = "", **more: Any) -> list[dict[str, Any]]:
    body = {"session": "one", "question": question, "conversation_id": conversation_id, **more}
    response = client.post("/widget/ask", json=body)
    assert response.status_code == 200
    return [json.loads(line) for line in response.text.splitlines()]


def signed(subject: str, ends_in_s: float = 60) -> str:
    return jwt.encode({"sub": subject, "exp": time.time() + ends_in_s}, SECRET, "HS256")


def test_without_origins_there_is_no_widget(tmp_path):
    site = Site(tmp_path / "desk")
    client = site.client()
    assert {path: client.get(path).status_code for path in PATHS} == dict.fromkeys(PATHS, 404)
    assert client.post("/widget/visitor").status_code == 404
    assert client.post("/widget/ask", json={"session": "one", "question": "returns"}).status_code == 404
    site.close()


def test_only_the_named_sites_may_frame_the_page_and_nothing_else(site):
    client = site.client()
    page = client.get("/widget").headers
    assert "x-frame-options" not in page
    assert page["content-security-policy"].endswith(f"frame-ancestors {SHOP}")
    assert "unsafe-eval" not in page["content-security-policy"]
    assert client.get("/widget.js").headers["cross-origin-resource-policy"] == "cross-origin"
    for path in ("/", "/admin/login", "/widget.js", "/widget/page.js", "/desk.css", "/widget/nothing"):
        headers = client.get(path).headers
        assert headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert path == "/widget.js" or headers["cross-origin-resource-policy"] == "same-origin"


def test_another_sites_page_cannot_ask_itself(site):
    for origin in (SHOP, "https://evil.example"):
        assert site.client().post("/widget/visitor", headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["shop.example", "https://shop.example/help", "*", "https://*.example", "https://a; b"]
)
def test_what_is_no_origin_is_refused(tmp_path, origin):
    with pytest.raises(ValidationError):
        Settings(data_dir=tmp_path, widget_origins=(origin,))
    given = "https://Shop.example/, http://localhost:8000"
    settings = Settings.model_validate({"data_dir": tmp_path, "widget_origins": given})
    assert settings.widget_origins == (SHOP, "http://localhost:8000")


def test_a_frame_asks_with_its_token_and_sees_only_its_own(site):
    ann, bob = frame(site), frame(site)
    views = ask(ann, "Can I return it?")
    assert len(views) > 2
    assert views[0]["answering"] is True
    end = views[-1]
    assert "30 days" in end["transcript"]
    assert 'data-act="source" data-source="1"' in end["transcript"]
    assert all("conversations" not in view for view in views)
    shown = {"session": "one", "conversation_id": end["conversation_id"]}
    assert "30 days" in ann.post("/widget/open", json=shown).json()["transcript"]
    assert "30 days" not in bob.post("/widget/open", json=shown).json()["transcript"]
    assert "no longer exists" in ask(bob, "And now?", end["conversation_id"])[-1]["live"]


def test_a_frame_saves_and_deletes_what_is_kept_with_its_token(site):
    page = site.client().get("/widget").text
    assert all(f'data-act="{act}"' in page for act in ("keep", "erase", "erased"))
    ann, bob = frame(site), frame(site)
    for one in (ann, bob):
        ask(one, "Can I return it?")
    saved = ann.get("/my-data")
    assert saved.headers["content-disposition"] == 'attachment; filename="my-data.json"'
    assert len(saved.json()["conversations"]) == 1
    assert ann.post("/my-data/delete").json()["conversations"] == 1
    assert [len(one.get("/my-data").json()["conversations"]) for one in (ann, bob)] == [0, 1]


def test_a_signed_token_is_the_customer_of_the_site(site):
    one, again, other = (frame(site, signed(name)) for name in ("jo", "jo", "al"))
    shown = {"session": "one", "conversation_id": ask(one, "returns")[-1]["conversation_id"]}
    assert "30 days" in again.post("/widget/open", json=shown).json()["transcript"]
    assert "30 days" not in other.post("/widget/open", json=shown).json()["transcript"]


@pytest.mark.parametrize("token", ["x", signed("jo", -60), jwt.encode({"sub": "jo", "exp": 9e9}, "t" * 32, "HS256")])
def test_a_token_that_is_not_valid_asks_nothing(site, token):
    body = {"session": "one", "question": "returns"}
    assert frame(site, token).post("/widget/ask", json=body).status_code == 401
    assert TestClient(site.app, base_url=BASE).post("/widget/ask", json=body).status_code == 401


def test_limits_are_those_of_the_chat_page(tmp_path):
    site = Site(tmp_path / "desk", widget_origins=(SHOP,), questions_per_minute=2)
    client = frame(site)
    said = ["Too many questions" in ask(client, "returns")[-1].get("live", "") for _ in range(3)]
    assert said == [False, False, True]
    site.close()


@pytest.mark.parametrize(("asked", "language"), [("zh", "zh-CN"), ("de", "en"), ("", "zh-CN")])
def test_the_page_has_the_language_of_the_tag_or_the_browser(site, asked, language):
    headers = {"accept-language": "zh-CN"}
    page = site.client().get("/widget", params={"language": asked}, headers=headers).text
    assert f'<html lang="{language}">' in page


def test_the_button_has_the_words_of_all_languages_and_the_desks_colour(tmp_path):
    site = Site(tmp_path / "desk", widget_origins=(SHOP,), desk_colour="#123456", desk_name='A "</script>" shop')
    script = site.client().get("/widget.js").text
    for words in ("Open the chat", json.dumps("打开聊天"), "#123456"):
        assert words in script
    assert "#123456" in site.client().get("/widget/page.css").text
    assert "</script>" not in site.client().get("/widget").text.split("<title>")[1].split("</title>")[0]
    site.close()
