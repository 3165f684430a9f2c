"""Bodies in chunks are read, and cut off at the limit, whatever the application makes of that."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient

from app.web.middleware import BodyLimit

MOST = 1000


@pytest.fixture
def taken():
    return []


@pytest.fixture
def client(taken):
    app = FastAPI()

    @app.post("/read")
    async def read(request: Request) -> PlainTextResponse:
        body = await request.body()
        taken.append(len(body))
        return PlainTextResponse(str(len(body)))

    @app.post("/swallow")
    async def swallow(request: Request) -> PlainTextResponse:
        try:
            await request.body()
        except Exception:
            return PlainTextResponse("fine")
        return PlainTextResponse("read")

    @app.post("/json")
    def json(body: dict[str, str]) -> PlainTextResponse:
        return PlainTextResponse(body["a"])

    @app.post("/unread")
    def unread() -> PlainTextResponse:
        return PlainTextResponse("not read")

    def refused(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"too large for {request.url.path}", 413)

    with TestClient(BodyLimit(app, most=lambda path: MOST, refused=refused)) as opened:
        yield opened


def chunks(size: int) -> Iterator[bytes]:
    for first in range(0, size, 100):
        yield b"x" * min(100, size - first)


def test_a_body_in_chunks_is_read(client):
    assert client.post("/read", content=chunks(MOST)).text == str(MOST)
    sent = client.post("/json", content=iter([b'{"a":', b'"b"}']), headers={"content-type": "application/json"})
    assert sent.text == "b"


@pytest.mark.parametrize("path", ["/read", "/swallow", "/json"])
def test_one_byte_more_is_refused(client, taken, path):
    response = client.post(path, content=chunks(MOST + 1), headers={"content-type": "application/json"})
    assert (response.status_code, response.text) == (413, f"too large for {path}")
    assert response.headers["connection"] == "close"
    assert taken == []


@pytest.mark.parametrize("length", [str(MOST + 1), "-1", "many", "1e3"])
def test_a_declared_length_is_refused_before_anything_is_read(client, length):
    assert client.post("/unread", content=chunks(1), headers={"content-length": length}).status_code == 413
