"""Requests of programs, visitors and admins to a served desk, for `evals.hostile`: none makes an error of the server,
and no page has an element that a text brought.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import patch

from fastapi.testclient import TestClient

from app.access.identity import COOKIE, MOST_PER_MINUTE, Keys, new_account, new_token
from app.desk.service import Service
from app.storage.people import Accounts
from app.web.server import create_app
from retrieval.loaders.load import SUPPORTED

SLOWEST_S: Final = 10.0
"""Of a response, and of whatever else is tried."""
ADDRESS: Final = "http://127.0.0.1:7860"
ACTIVE: Final = ("<script>alert(1)", "<img src=x")
"""Of the texts of `evals.hostile`, what must not stand in a page as it is."""
Body = Callable[[str], dict[str, Any]]
Asked = tuple[str, str, Body]
"""Method, path, and what is sent: as JSON, as a form, or in the address."""

API: Final[tuple[tuple[str, Body], ...]] = (
    ("/v1/chat/completions", lambda text: {"model": "warmdesk", "messages": [{"role": "user", "content": text}]}),
    ("/v1/chat/completions", lambda text: {"model": text, "messages": [{"role": text, "content": [text]}]}),
    (
        "/v1/chat/completions",
        lambda text: {"model": "warmdesk", "stream": True, "messages": [{"role": "user", "content": text}]},
    ),
    (
        "/v1/chat/completions",
        lambda text: {
            "model": "llama",
            "messages": [{"role": "system", "content": text}, {"role": "user", "content": text}],
            "stop": [text[:20]],
            "stream": True,
            "max_tokens": 3,
        },
    ),
    ("/v1/embeddings", lambda text: {"model": "hash-256", "input": [text, text]}),
    ("/v1/feedback", lambda text: {"message_id": text, "value": "up", "reason": text}),
    ("/v1/handoffs", lambda text: {"user": text, "conversation_id": text, "email": text, "message": text}),
)
PAGE: Final[tuple[Asked, ...]] = (
    ("json", "/typing", lambda text: {"text": text, "conversation_id": text[:9]}),
    ("json", "/widget/ask", lambda text: {"session": text, "question": text, "conversation_id": ""}),
    ("json", "/widget/open", lambda text: {"session": text, "conversation_id": text}),
    ("json", "/widget/person", lambda text: {"session": text, "act": "ask", "email": text, "conversation_id": text}),
    ("json", "/widget/feedback", lambda text: {"message_id": text, "value": text, "reason": text}),
    (
        "json",
        "/gradio_api/queue/join",
        lambda text: {"fn_index": len(text) % 40, "session_hash": text, "data": [text] * (len(text) % 9)},
    ),
    ("json", "/gradio_api/cancel", lambda text: {"session_hash": text, "fn_index": 0, "event_id": text}),
    ("query", "/widget", lambda text: {"language": text}),
    ("query", "/my-data", lambda text: {"x": text}),
)
ADMIN: Final[tuple[Asked, ...]] = (
    ("query", "/admin/documents", lambda text: {"q": text, "collection": text, "page": "2"}),
    ("query", "/admin/modules", lambda text: {"q": text, "sort": text}),
    ("query", "/admin/search", lambda text: {"question": text}),
    ("query", "/admin/conversations", lambda text: {"query": text, "owner": text}),
    ("query", "/admin/faq", lambda text: {"question": text, "wording": [text, text], "message": text}),
    ("query", "/admin/quality", lambda text: {"days": "7", "cause": text}),
    ("query", "/admin/queue/1", lambda text: {"x": text}),
    ("json", "/admin/faq", lambda text: {"question": text, "answer": text, "wordings": [text]}),
    ("json", "/admin/faq/delete", lambda text: {"id": len(text)}),
    ("json", "/admin/documents/forget", lambda text: {"document": text}),
    ("json", "/admin/documents/collections/forget", lambda text: {"collection": text}),
    ("json", "/admin/documents/folders", lambda text: {"folder": text, "collection": text, "every_minutes": 7}),
    ("json", "/admin/documents/folders/run", lambda text: {"folder": text}),
    ("json", "/admin/documents/folders/remove", lambda text: {"folder": text}),
    ("json", "/admin/queue/1/answer", lambda text: {"text": text}),
    ("form", "/admin/settings", lambda text: {"greeting": text}),
    ("form", "/admin/settings", lambda text: {text: text}),
    ("form", "/admin/keys", lambda text: {"name": text, "scope": [text[:9]], "per_minute": "7"}),
    ("form", "/admin/keys/revoke", lambda text: {"name": text}),
    ("form", "/admin/accounts", lambda text: {"name": text, "role": "agent"}),
    ("form", "/admin/accounts/role", lambda text: {"name": text, "role": text}),
    ("form", "/admin/accounts/password", lambda text: {"name": text}),
    ("form", "/admin/modules/verify", lambda text: {"key": text, "q": text, "sort": text}),
    ("form", "/admin/login", lambda text: {"name": text, "password": text}),
)


class HostileSite:
    """A served desk, and clients of each kind. statuses: of the responses, counted."""

    def __init__(self, desk: Service) -> None:
        with patch("app.web.pacing.IN_A_ROW", 10**9):  # thousands of requests, most of them wrong
            app = create_app(desk, desk.database, desk.settings)
            app.middleware_stack = app.build_middleware_stack()
        token = Keys(desk.database).create("all", ("chat", "documents", "admin"), per_minute=MOST_PER_MINUTE)
        password = new_account(Accounts(desk.database), "boss", "admin")
        options: dict[str, Any] = {"base_url": ADDRESS, "raise_server_exceptions": False, "follow_redirects": False}
        self.program = TestClient(app, headers={"authorization": f"Bearer {token}"}, **options)
        self._visitor, self._admin = TestClient(app, **options), TestClient(app, **options)
        self._visitor.cookies.set(COOKIE, new_token(), domain="127.0.0.1")
        self._password = password
        self.statuses = Counter[str]()

    def open(self) -> None:
        """Sign in, within the block of `program`, in whose event loop all requests are answered."""
        self._visitor.portal = self._admin.portal = self.program.portal
        signed_in = self._admin.post("/admin/login", data={"name": "boss", "password": self._password})
        assert signed_in.status_code == 303, signed_in.text

    def ask_api(self, data: bytes, rng: random.Random) -> str:
        """What is wrong with the response to a program, or ""."""
        path, body = rng.choice(API)
        sent = json.dumps(body(read(data))).encode() if rng.random() < 0.5 else data
        return self._judged(path, self.program.post(path, content=sent, headers={"content-type": "application/json"}))

    def upload(self, data: bytes, rng: random.Random) -> str:
        """What is wrong with how a document is taken in and removed again, or ""."""
        name = f"a{rng.choice(sorted(SUPPORTED))}" if rng.random() < 0.9 else read(data)[:200]
        wanted = {"collection": rng.choice(("", "shop", read(data)[:90]))}
        response = self.program.post("/v1/documents", files={"file": (name, data)}, data=wanted)
        if response.status_code != 201:
            return self._judged(f"upload of {name!r}", response)
        removed = self.program.delete(f"/v1/documents/{response.json()['id']}")
        return self._judged(f"upload of {name!r}", response) or self._judged("its removal", removed)

    def ask_pages(self, data: bytes, rng: random.Random) -> str:
        """What is wrong with the response to a visitor or an admin, or ""."""
        client, (way, path, body) = rng.choice([(self._visitor, rng.choice(PAGE)), (self._admin, rng.choice(ADMIN))])
        sent = body(read(data)[:2000])
        if way == "query":
            response = client.get(path, params=sent)
        elif way == "form":
            response = client.post(path, data=sent)
        else:
            whole = json.dumps(sent).encode() if rng.random() < 0.8 else data
            response = client.post(path, content=whole, headers={"content-type": "application/json"})
        return self._judged(path, response)

    def _judged(self, what: str, response: Any) -> str:
        self.statuses[str(response.status_code)] += 1
        if response.status_code >= 500:
            return f"{what}: {response.status_code}, {response.text[:200]}"
        if (took_s := response.elapsed.total_seconds()) > SLOWEST_S:
            return f"{what}: {response.status_code} after {took_s:.1f} s"
        if response.headers.get("content-type", "").startswith("text/html"):
            return next((f"{what}: {words} on the page" for words in ACTIVE if words in response.text), "")
        return ""


def read(data: bytes) -> str:
    """Bytes as a text."""
    return data.decode("utf-8", "replace")
