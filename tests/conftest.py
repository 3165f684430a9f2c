"""Fixtures all tests share. One thread, also in the processes that tests start: on a busy machine more are slower and
less predictable.

What takes seconds to import is imported by fixtures, for who runs a file that needs none of it.
"""

from __future__ import annotations

import gc
import os
import ssl
import sys
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels for GPUs run on a processor
os.environ.setdefault("TQDM_DISABLE", "1")  # read at import, as the line above: both must stand before any
sys.path.insert(0, str(Path(__file__).parent))

import pytest
from filelock import FileLock

pytest_plugins = ["side_by_side"]

if TYPE_CHECKING:
    from postgres_server import PostgresServer


def pytest_configure(config):
    from compiled_once import keeping

    import app.cli
    import durable

    app.cli.COLLECTED = gc.get_threshold()  # the rare collections of commands, also after a desk was opened
    durable.compile_library = keeping(config.cache.mkdir("compiled"), durable.compile_library)


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _any_pace():
    """A test may send as many requests as it likes, also such as fail."""
    from app.web import pacing

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pacing, "IN_A_ROW", 10**6)
        yield


@pytest.fixture(scope="session", autouse=True)
def _read_here():
    """Let this process read files, as in a `tiny_desk`."""
    from reading_here import ReaderHere

    with pytest.MonkeyPatch.context() as patched:
        for place in ("app.knowledge.ingest", "app.knowledge.uploads"):
            patched.setattr(f"{place}.FileReader", ReaderHere)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks():
    """Make os.fsync do nothing: tests do not lose power, and waiting for the disk takes long."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates_read_once():
    """Clients share their TLS settings, which take 50 ms to read and none of them changes."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture(scope="session", autouse=True)
def _statements_compiled_once():
    """Databases of a kind share what is compiled of their statements: each compiling its own takes longer than the
    statements.
    """
    from sqlalchemy import create_engine
    from sqlalchemy.engine.default import DefaultDialect

    kept = dict[str, Any]()

    def sharing(*given: Any, **options: Any) -> Any:
        engine: Any = create_engine(*given, **options)
        engine._compiled_cache = kept.setdefault(engine.name, engine._compiled_cache)
        return engine

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("app.storage.database.create_engine", sharing)
        patched.setattr(DefaultDialect, "__eq__", lambda one, other: type(one) is type(other))
        patched.setattr(DefaultDialect, "__hash__", lambda one: hash(type(one)))
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A folder `models`, of all test processes. Code is compiled here: what other processes compile is not kept."""
    import torch

    from cache.native.decoder import load_library
    from durable import FLAGS, load_compiled
    from retrieval.search.minilm import SOURCE

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "TESTS_PROCESS" in os.environ else base) / "models"
    with FileLock(folder.with_suffix(".lock")):
        load_compiled(SOURCE, FLAGS, folder, "")
        for dtype in (torch.bfloat16, torch.float32):
            load_library(folder, dtype)
    return folder


@pytest.fixture(scope="session")
def bundled_model(models):
    """A folder with configuration and tokenizer of the bundled model, made once for all test processes."""
    from cache.model.dequantised import config_of
    from cache.model.gguf_file import GGUFFile
    from cache.model.source import bundled_gguf, find_source

    folder = models / "bundled"
    with FileLock(models.with_suffix(".lock")):
        if not folder.is_dir():
            find_source(None, models).load_tokenizer().save_pretrained(folder)
            config_of(GGUFFile(bundled_gguf())).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def chromium(tmp_path_factory):
    """The browser of this test process. A file of tests leaves it with `forget`, before it ends its server."""
    from browser import Browser

    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.driver.quit()


@pytest.fixture(scope="session")
def tiny_folder(models):
    """The tiny model in a folder, for processes that load it; its parent is for what is made of it."""
    from tiny import save

    with FileLock(models.with_suffix(".lock")):
        return folder if (folder := models / "tiny").is_dir() else save(folder)


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server of this test process."""
    from postgres_server import binaries, running_server

    if binaries() is None:
        pytest.skip("no PostgreSQL server is installed")
    with running_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres):
    """A PostgreSQL database of this test."""
    with postgres.database() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request, tmp_path):
    """A database of this test, of either kind, with all tables."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    from made_database import put_database

    url = f"sqlite:///{tmp_path / 'desk.sqlite3'}"
    put_database(url)
    return url


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def module_database_url(request, tmp_path_factory):
    """A database of the tests of a file, of either kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('database') / 'desk.sqlite3'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url


@pytest.fixture
def database(database_url):
    """That database, opened."""
    from app.storage.database import open_database

    with closing(open_database(database_url)) as opened:
        yield opened


@pytest.fixture
def history(database):
    from app.storage.history import History

    return History(database)


@pytest.fixture
def library(database):
    from app.storage.library import Library

    return Library(database)


@pytest.fixture
def warmdesk(monkeypatch, capfd):
    """Runs `warmdesk ARGS`. Gives its status, and what it wrote to stdout and stderr."""
    from app.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["warmdesk", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capfd.readouterr()

    return run


@pytest.fixture
def pages(tmp_path):
    """A folder of four help pages."""
    from desks import write_pages

    return write_pages(tmp_path / "pages")


@pytest.fixture
def desk():
    from fake_desk import FakeDesk

    return FakeDesk()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages of a fake desk, for the tests of a file."""
    from desk_site import Site

    with closing(Site(tmp_path_factory.mktemp("site"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def running_site(site):
    """The same, with the queues of the pages started."""
    from desk_site import BASE
    from fastapi.testclient import TestClient

    with TestClient(site.app, base_url=BASE) as site.running:
        yield site


@pytest.fixture
def engine():
    """An engine with the tiny model."""
    from tiny import build

    from cache.engine.engine import Engine

    engine = Engine(build(), memory=4 << 20).start()
    yield engine
    engine.close()
