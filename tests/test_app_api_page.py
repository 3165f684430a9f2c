"""The admin's page of the API, and its examples in docs: every block is run as it stands there."""

import html
import json
import re
import subprocess
from pathlib import Path

import httpx
import pytest
from api_site import served_api
from quick_account import quick_account

from app.storage.people import Accounts
from app.web.access_rules import find_rule

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "api.md").read_text()
SHELL = [
    block
    for text in (PAGE, *((ROOT / name).read_text() for name in ("README.md", "README.zh-CN.md")))
    for block in re.findall(r"^```bash\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
ROUTES = {
    *("POST /v1/chat/completions", "GET /v1/models", "GET /v1/models/{model}", "POST /v1/embeddings"),
    *("GET /v1/conversations", "GET /v1/conversations/{conversation_id}", "POST /v1/feedback"),
    *("GET /v1/conversations/{conversation_id}/export", "DELETE /v1/conversations/{conversation_id}"),
    *("GET /v1/documents", "POST /v1/documents", "GET /v1/documents/{document_id}"),
    *("DELETE /v1/documents/{document_id}", "GET /metrics", "GET /healthz"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with served_api(tmp_path_factory.mktemp("examples")) as opened:
        yield opened


@pytest.fixture(scope="module")
def admin(site):
    password = quick_account(Accounts(site.desk.database), "boss", "admin")
    with httpx.Client(base_url=site.url, trust_env=False) as client:
        signed_in = client.post("/admin/login", data={"name": "boss", "password": password})
        assert signed_in.status_code == 303
        yield client


def test_calls_are_tried_out_with_a_key_and_never_with_a_sign_in(site, admin):
    page = admin.get("/admin/api").text
    forms = set(re.findall(r'data-method="(\w+)" data-path="([^"]+)"', page))
    assert {("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("DELETE", "/v1/documents/{document_id}")} <= forms
    assert ("POST", "/v1/documents") not in forms, "a form with a file"
    assert html.escape('{"model": "", "messages": []}').replace("&quot;", "&#34;") in page
    for cookie in admin.cookies.jar:
        assert (cookie.path, cookie.get_nonstandard_attr("SameSite")) == ("/admin", "strict")
    token = next(cookie.value for cookie in admin.cookies.jar)
    for path in ("/v1/models", "/v1/documents", "/v1/conversations"):
        forged = httpx.get(site.url + path, headers={"cookie": f"warmdesk_admin={token}"}, trust_env=False)
        assert forged.status_code == 401


def test_every_route_for_programs_is_described_and_served(admin):
    document = admin.get("/admin/openapi.json").json()
    described = {f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods}
    assert described >= ROUTES
    assert not [one for one in described if one.split()[1].startswith("/admin")]
    page = admin.get("/admin/api").text
    for one in described:
        method, path = one.split()
        assert f"<code>{one}</code>" in page
        assert find_rule(re.sub(r"\{\w+\}", "x", path), method) is not None
    body = document["components"]["schemas"]["ChatRequest"]["properties"]
    assert {"model", "messages", "stream", "conversation_id", "user"} <= set(body)
    assert "Separates your users&#39; conversations." in page
    for kind in ("string or list of string", "list of Message", "'up', 'down'", "file"):
        assert f"<td>{kind}" in html.unescape(page), kind
    assert re.findall(r"<script[^>]*>", page) == [f'<script src="/{name}.js" defer>' for name in ("admin", "api")]
    assert "//" not in re.sub(r"https?://[\w.:]+", "", re.sub(r"<style.*?</style>", "", page))


@pytest.mark.parametrize("block", SHELL)
def test_the_examples_for_a_shell_work(site, tmp_path, block):
    environment = {"DESK_URL": site.url, "DESK_KEY": site.token, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block],
        cwd=tmp_path,
        env={**environment, "no_proxy": "*"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
    if ran.stdout.startswith("{"):
        assert "error" not in json.loads(ran.stdout)
    else:
        assert ran.stdout.startswith(("data: ", "# HELP"))


def test_the_example_for_python_works(site, capsys, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    [block] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(block, {"url": site.url, "key": site.token})
    assert "Returns returns.md" in capsys.readouterr().out


def test_there_is_a_block_for_each_subject():
    assert len(re.findall(r"^```bash$", PAGE, re.MULTILINE)) == 8
