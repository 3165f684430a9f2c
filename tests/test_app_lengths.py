"""Texts that are far too long, on every way in: nothing costly is done with them, and nothing breaks.

What is costly are the rooms that read a text: words, languages, small talk, redaction, search. A profile function looks
at every call into them. The bound is that of a question, or of a title; programs may send more to the models alone.
What is done with a text within the bounds takes time that grows with its length and not faster.
"""

import inspect
import json
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from desks import small_desk
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.testclient import TestClient
from forked import Forked
from quick_account import quick_account

import app
import retrieval
from app.access.identity import COOKIE, SCOPES, Keys, new_token
from app.access.limits import QuestionLimits
from app.domain.answers import PlainOptions, Said
from app.domain.callers import LONGEST_LINE, LONGEST_TEXT
from app.domain.errors import DeskError
from app.domain.setting_types import table_of
from app.knowledge.prompts import question_text
from app.privacy import redact
from app.storage.people import Accounts, Sessions
from app.web.chat_flow import ChatFlow, Reader
from app.web.chat_routes import HandoffView
from app.web.guard import ADMIN
from app.web.server import create_app
from cache.errors import CacheError
from retrieval.text.codes import codes
from retrieval.text.terms import telling_words

SITE = "https://shop.example"
GROWS = "\ufdfa"  # eighteen characters, normalised
LONG = {"grows": GROWS * 340_000, "line": GROWS * (LONGEST_TEXT // 2)}
"""A megabyte, and what may be read where texts are long."""
MODELS_ALONE = ("/v1/embeddings", "/v1/chat/completions")
_APP, _RETRIEVAL = Path(app.__file__).parent, Path(retrieval.__file__).parent
READING = (*(str(_APP / room) for room in ("privacy", "replies", "grounding", "knowledge/finder")), str(_RETRIEVAL))


class Watch:
    """Notes the functions of the rooms that read which are called with a longer text than `bound`."""

    def __init__(self) -> None:
        self.bound, self.found = LONGEST_LINE, set[str]()
        self._is_reading: dict[CodeType, bool] = {}

    def look(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if (is_reading := self._is_reading.get(code)) is None:
            is_reading = self._is_reading[code] = code.co_filename.startswith(READING)
        if is_reading:
            given = (frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
            if any(isinstance(value, str) and len(value) > self.bound for value in given):
                self.found.add(code.co_qualname)


@pytest.fixture(scope="module")
def watch():
    """In all threads that begin from now on: those of the application, and not in that of its clients."""
    watch = Watch()
    threading.setprofile(watch.look)
    yield watch
    threading.setprofile(None)  # type: ignore[arg-type]


@pytest.fixture
def watched(watch):
    watch.bound, watch.found = LONGEST_LINE, set()
    yield watch
    sys.setprofile(None)
    assert not watch.found


@pytest.fixture(scope="module")
def desk(watch, tmp_path_factory):
    limits = {"questions_per_minute": 1000, "handoff": "rules", "redact": True, "widget_origins": (SITE,)}
    with small_desk(tmp_path_factory.mktemp("desk"), **limits) as desk:
        desk.prepare()
        yield desk


@pytest.fixture(scope="module")
def clients(desk):
    """Who may call a path: a program, an admin, a visitor."""
    quick_account(Accounts(desk.database), "admin", "admin")
    served = create_app(desk, desk.database, desk.settings)
    token = Keys(desk.database).create("program", SCOPES, 100_000)

    def client(**more: Any) -> TestClient:
        return TestClient(served, base_url="http://127.0.0.1:7860", raise_server_exceptions=False, **more)

    with client(headers={"authorization": f"Bearer {token}"}) as program:
        admin, visitor = client(), client(cookies={COOKIE: new_token()})
        admin.portal = visitor.portal = program.portal
        account = Accounts(desk.database).named("admin")
        assert account is not None
        admin.cookies.set(ADMIN.name, Sessions(desk.database).start(account))
        yield lambda path: program if path.startswith(("/v1/", "/metrics")) else admin if "/admin" in path else visitor


def filled(schema: dict[str, Any], parts: dict[str, Any], text: Callable[[], str]) -> Any:
    """A value that fits a schema. text: gives each of its texts."""
    if "$ref" in schema:
        schema = parts[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        schema = next(one for one in schema["anyOf"] if one.get("type") != "null")
        return filled(schema, parts, text)
    if "enum" in schema or "const" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    kinds: dict[str, Callable[[], Any]] = {
        "object": lambda: {name: filled(one, parts, text) for name, one in schema.get("properties", {}).items()},
        "array": lambda: [filled(schema["items"], parts, text)],
        "integer": lambda: 1,
        "number": lambda: 0.5,
        "boolean": lambda: False,
    }
    return kinds.get(schema.get("type", ""), text)()


def requests(served: FastAPI) -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Requests to all own routes: in each, one of its texts is too long. Method, path, options of the client, and that
    text.
    """
    document = get_openapi(title="", version="", routes=served.routes)
    parts = document.get("components", {}).get("schemas", {})
    for path, methods in document["paths"].items():
        long = LONG["grows" if path.startswith(MODELS_ALONE) else "line"]
        for method, operation in methods.items():
            place, is_found = 0, True
            while is_found:
                taken = iter(range(1000))
                seen: list[int] = []

                def text(
                    place: int = place, taken: Iterator[int] = taken, seen: list[int] = seen, long: str = long
                ) -> str:
                    seen.append(next(taken))
                    return long if seen[-1] == place else "x"

                def short(text: Callable[[], str] = text) -> str:
                    return text()[:5000]  # of an address, whose length the server bounds

                address, options = path, dict[str, Any](params={})
                for one in operation.get("parameters", ()):
                    value = filled(one["schema"], parts, short)
                    if one["in"] == "path":
                        name = one["name"]
                        address = re.sub(rf"{{{name}(:path)?}}", str(value)[:200], address)
                    else:
                        options["params"][one["name"]] = value
                for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                    body = filled(content["schema"], parts, text)
                    if kind == "application/json":
                        body = json.dumps(body, ensure_ascii=False).encode()
                        options |= {"content": body, "headers": {"content-type": kind}}
                    elif "multipart" in kind:
                        file = {"file": ("a.txt", b"words")}
                        options |= {"data": {k: v for k, v in body.items() if k != "file"}, "files": file}
                    else:
                        # clients are slow to write letters of other scripts in forms
                        options["data"] = {k: v[:5000] if isinstance(v, str) else v for k, v in body.items()}
                is_found, place = place in seen, place + 1
                if is_found:
                    yield method.upper(), address, options, long


def test_no_route_does_anything_costly_with_a_long_text(watched, clients):
    sent = 0
    for method, path, options, long in requests(clients("/").app):
        watched.bound = LONGEST_TEXT if path.startswith(MODELS_ALONE) else LONGEST_LINE
        reply = clients(path).request(method, path, follow_redirects=False, **options)
        assert reply.status_code < 500, (method, path[:80], reply.text[:200])
        assert reply.status_code not in (401, 403), (method, path[:80])
        assert long[:6000] not in reply.text, (method, path[:80])
        sent += 1
    assert sent > 80


@pytest.mark.parametrize("long", LONG)
@pytest.mark.parametrize("of", ["flow", "view"])
def test_no_event_of_the_page_does_anything_costly_with_a_long_text(watched, desk, of, long):
    sys.setprofile(watched.look)
    limits = QuestionLimits(desk.settings)
    made = ChatFlow(desk, limits, desk.settings) if of == "flow" else HandoffView(desk, desk.settings, limits)
    reader = Reader(owner="v-1", session="s")
    for method, given in calls(made, LONG[long]):
        with suppress(DeskError):
            views = getattr(made, method)(**given, reader=reader)
            deque(views if inspect.isgenerator(views) else (), maxlen=0)


@pytest.mark.parametrize("long", LONG)
def test_no_method_of_the_desk_does_anything_costly_with_a_long_text(watched, desk, long):
    sys.setprofile(watched.look)
    text = LONG[long]
    for method, given in calls(desk, text):
        with suppress(DeskError, CacheError, TypeError, ValueError):
            getattr(desk, method)(**given)
    with pytest.raises(DeskError, match="shorten it"):
        desk.quality.explain(text)
    watched.bound = LONGEST_TEXT
    if len(text) > LONGEST_TEXT:
        with pytest.raises(DeskError, match="shorten it"):
            desk.complete([Said("user", text)], PlainOptions(), owner="k-1")
        with pytest.raises(DeskError, match="shorten it"):
            desk.embed([text])


def calls(made: object, long: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The methods of an object that take texts: each with one of them too long, and the others short."""
    for name in {*dir(type(made)), *vars(made)}:
        method = inspect.getattr_static(made, name)
        if not (inspect.isfunction(method) or inspect.ismethod(method)):
            continue
        parameters = inspect.signature(method).parameters
        texts = [one for one, of in parameters.items() if of.annotation in (str, "str", str | None, "str | None")]
        for place in () if name.startswith("_") else texts:
            yield name, {one: long if one == place else "x" for one in texts}


MUCH = 100_000  # characters: seconds where time grows with the length, minutes where it grows with its square
UNITS = (
    *("a", "a.", "1", "12 34 ", "#", "@", "-@a.de", " "),
    *("order ", "a1-", "a0", "\u5462", "4111111111111111 ", "0171 "),
)


def read_all() -> None:
    for unit in UNITS:
        text = "b" + unit * (MUCH // len(unit)) + "b"
        reading: tuple[Callable[[str], object], ...] = (redact, telling_words, codes, question_text)
        for read in (*reading, lambda text: table_of(text + "=1")):
            print(read.__name__, repr(unit), flush=True)
            read(text)


def test_time_does_not_grow_faster_than_a_text():
    # no clock: what grows with the square of the length would take minutes, and is ended
    done = Forked(read_all)
    try:
        status = done.wait(100)
    except subprocess.TimeoutExpired:
        done.kill()
        raise AssertionError(f"this does not end: {done.stdout.read().splitlines()[-1]}") from None
    assert status == 0, done.stderr.read()[-2000:]
