"""What a desk answers before it is open, and that the application takes over with its own start and end."""

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext

import httpx
import pytest
from desk_site import BASE
from desks import serve_small, small_desk, small_settings
from fake_desk import FakeDesk
from fastapi import FastAPI
from fastapi.testclient import TestClient
from threadpoolctl import ThreadpoolController

from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.storage.people import Accounts
from app.web.middleware import Opening
from app.web.serve import DeskServer, Start, bind, serve
from cache.errors import CacheError
from cache.serving.interface import EngineInterface
from cache.serving.messages import EngineSpec


@pytest.fixture
def opening():
    desk = FakeDesk()
    desk.ready = False
    opening = Opening(desk.missing)
    with TestClient(opening, base_url=BASE) as client:
        yield client


def test_a_desk_that_starts_says_so(opening):
    client = opening
    assert client.get("/healthz").json() == {"status": "ok"}
    ready = client.get("/readyz")
    assert (ready.status_code, ready.json()["missing"]) == (503, ["model", "engine"])
    for path in ("/", "/admin", "/queue/join"):
        page = client.get(path)
        assert (page.status_code, page.headers["retry-after"]) == (503, "2")
        assert "The server is starting" in page.text
        assert 'http-equiv="refresh"' in page.text


def test_a_desk_says_what_it_waits_for(tmp_path, monkeypatch):
    seen: list[str] = []

    def start_cluster(settings: Settings, spec: EngineSpec, tell: Callable[[str], None]) -> EngineInterface:
        with TestClient(Opening(service.missing, lambda: service.awaited), base_url=BASE) as client:
            for line in ("0 of 2 engines run: the others begin", ""):
                tell(line)
                ready = client.get("/readyz")
                assert (ready.status_code, ready.json()["missing"]) == (503, ["model", "engine"])
                seen.append(ready.json().get("waiting_for", "nothing"))
        raise CacheError("enough")

    monkeypatch.setattr("app.desk.parts.start_cluster", start_cluster)
    with (
        Service(small_settings(tmp_path, cluster="local"), may_start_process=True) as service,
        pytest.raises(CacheError, match="enough"),
    ):
        service.engine  # noqa: B018
    assert seen == ["0 of 2 engines run: the others begin", "nothing"]


def test_the_server_listens_before_it_imports_what_is_large():
    """Was wrong once: `warmdesk serve` answered after ten seconds, although it said that it listens at once."""
    program = (
        "import app.cli.served, app.desk.disk_room, app.storage.data_folder, app.web.serve, cache.serving.child_process"
    )
    command = [sys.executable, "-c", f"{program}; import sys; print(*sys.modules)"]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "sqlalchemy", "fastapi", "gradio", "faiss", "scipy"}.intersection(imported)


def test_the_bundled_model_and_the_search_need_no_transformers(tmp_path, models, bundled_model):
    """Was wrong once: its import was a quarter of the time that `warmdesk ask` takes, and an ingestion of documents
    waited for it before the first one. So were the libraries of all formats, in each server.
    """
    (tmp_path / "models").symlink_to(models)
    program = """
import sys
from pathlib import Path
from cache.model.loading import load_model
load_model(None, device="cpu", converted=Path(sys.argv[1]) / "models").tokenizer.decode([5])
assert not {"sympy", "scipy"} & sys.modules.keys()
from app.desk.service import Service
from app.domain.settings import Settings
with Service(Settings(data_dir=Path(sys.argv[1]))) as service:
    assert service.search.embedder.embed_queries(["Is it open?"]).any()
    service.statements
import app.web.document_routes
print(*sys.modules)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"transformers", "sentence_transformers", "huggingface_hub", "openpyxl", "pptx"}.intersection(imported)


def test_a_server_whose_engine_has_its_own_process_needs_no_pytorch(tmp_path, models):
    """Was wrong once: 170 MB of memory and two seconds of each start, for nothing."""
    (tmp_path / "models").symlink_to(models)
    program = """
import sys
from pathlib import Path
import app.cli.opening, app.web.server
from app.desk.service import Service
from app.domain.settings import Settings
with Service(Settings(data_dir=Path(sys.argv[1])), may_start_process=True) as service:
    service.finder
    assert service.search.embedder.embed_queries(["Is it open?"]).any()
    assert service.statements.encoder.question("Is it open?").whole.any()
    service._tokenizer.decode([5])
print(*sys.modules)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    imported = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers"}.intersection(imported)


@pytest.fixture
def as_before():
    """The handler of SIGTERM, which `serve` replaces."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("as_before")
def test_products_of_numpy_get_one_thread(tmp_path):
    numpys = ThreadpoolController().select(prefix="libscipy_openblas")
    if not numpys.info():
        pytest.skip("numpy has another library for products here")
    with numpys.limit(limits=2), small_desk(tmp_path) as desk:
        assert {one["num_threads"] for one in numpys.info()} == {2}
        assert desk.search.embedder
        assert {one["num_threads"] for one in numpys.info()} == {1}


def test_a_server_answers_while_its_desk_is_opened(tmp_path, capsys):
    did: list[object] = []

    @contextmanager
    def part(name: str) -> Iterator[str]:
        yield name
        did.append(f"{name} closed")

    def open_desk(start: Start) -> None:
        with httpx.Client(base_url=start.address, timeout=20) as client:
            did.extend(client.get(path).status_code for path in ("/healthz", "/readyz", "/"))
            did.extend(client.get("/readyz").json()["missing"])
        did.extend(start.enter(part(name)) for name in ("one", "two"))
        raise DeskError("too little memory", code="memory")

    with pytest.raises(DeskError, match="too little memory"):
        serve(small_settings(tmp_path, port=0), open_desk)
    assert did == [200, 503, 503, "model", "engine", "database", "one", "two", "two closed", "one closed"]
    assert "is ready soon" in capsys.readouterr().err


def test_a_server_that_ended_opens_no_more():
    opening = Opening()
    with Start(opening, DeskServer(opening), "") as start:
        pass
    with pytest.raises(DeskError, match="stopped while it started"):
        start.enter(nullcontext())


def test_a_request_without_end_is_refused_and_writes_nothing_into_the_log(caplog):
    """Was wrong once: with httptools a header could fill the memory, and each handshake was an error in the log."""
    handshake = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    listener = bind("127.0.0.1", 0)
    server = DeskServer(Opening(lambda: ["models"]), lambda: None)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()

    def answer(request: str) -> bytes:
        with socket.create_connection(listener.getsockname(), timeout=20) as stranger:
            stranger.sendall(request.encode())
            return stranger.recv(15)

    start = "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    assert answer(f"{start}{handshake}Sec-WebSocket-Version: 13\r\n\r\n") == b"HTTP/1.1 200 OK"
    assert answer(f"{start}X-A: {'a' * 100_000}") == b"HTTP/1.1 400 Ba"
    assert answer("no request at all\r\n\r\n") == b"HTTP/1.1 400 Ba"
    server.should_exit = True
    thread.join(20)
    assert caplog.text == ""


def test_the_application_takes_over_and_ends_with_the_server():
    lived: list[str] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        lived.append("began")
        yield
        lived.append("ended")

    app = FastAPI(lifespan=lifespan)
    app.get("/")(lambda: "open")
    opening = Opening(lambda: ())
    with TestClient(opening, base_url=BASE) as client:
        opening.open(app)
        assert client.get("/").json() == "open"
        assert lived == ["began"]
    assert lived == ["began", "ended"]


def test_an_application_that_cannot_start_is_an_error():
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        raise OSError("no queue")
        yield

    opening = Opening(lambda: ())
    with TestClient(opening, base_url=BASE) as client:
        with pytest.raises(OSError, match="no queue"):
            opening.open(FastAPI(lifespan=lifespan))
        assert client.get("/").status_code == 503


@pytest.mark.usefixtures("as_before")
def test_a_start_that_fails_leaves_the_first_password_to_the_next(tmp_path, monkeypatch, capsys):
    with small_desk(tmp_path, port=0) as service:
        monkeypatch.setattr(service, "prepare", unready)
        with pytest.raises(DeskError, match="too little memory"):
            serve_small(service)
        assert Accounts(service.database).all() == []
    assert "password" not in capsys.readouterr().out


def unready(_: object) -> None:
    raise DeskError("too little memory", code="memory")
