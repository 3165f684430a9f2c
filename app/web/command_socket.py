"""A served desk's socket for commands beside it: `warmdesk ingest`, `warmdesk forget`, `warmdesk sync` and
`warmdesk backup` hand their work over.

It is a Unix socket in the data folder that only the desk's user can open; who can may as well change the data folder
itself. So there is no secret that another program could be told. Not covered: systems without Unix sockets, and data
folders whose path is too long for one; there a desk is stopped before commands change documents.
"""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import Body, FastAPI
from fastapi.responses import Response
from pydantic import BaseModel

from app.desk.changes import Changes
from app.desk.json_output import backup_json, ingest_json
from app.storage.lock import SOCKET_FILE
from app.web.event_stream import events

log = logging.getLogger(__name__)

_STOPPED_S = 5.0


class IngestOrder(BaseModel):
    """What to ingest, as `Changes.ingest` takes it."""

    paths: list[Path]
    collection: str = ""
    sync: bool = False
    warm: bool = True


class BackupOrder(BaseModel):
    """What to save, as `Changes.back_up` takes it."""

    file: Path
    with_modules: bool = False
    overwrite: bool = False


def command_app(changes: Changes) -> FastAPI:
    """The routes of commands."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.post("/ingest")
    def ingest(order: IngestOrder) -> Response:
        options = order.model_dump(exclude={"paths"})
        return events(lambda progress: ingest_json(changes.ingest(order.paths, progress, **options)))

    @app.post("/forget")
    def forget(document: Annotated[str, Body(embed=True)]) -> Response:
        return events(lambda progress: asdict(changes.forget(document)))

    @app.post("/sync")
    def sync(folder: Annotated[str, Body(embed=True)]) -> Response:
        return events(lambda progress: asdict(changes.desk.synced.run(folder, progress, who=changes.who)))

    @app.post("/erase")
    def erase(owner: Annotated[str, Body(embed=True)]) -> Response:
        return events(lambda progress: asdict(changes.erase(owner)))

    @app.post("/backup")
    def backup(order: BackupOrder) -> Response:
        options = order.model_dump(exclude={"file"})
        return events(lambda progress: backup_json(changes.back_up(order.file, progress, **options)))

    return app


@contextmanager
def command_socket(changes: Changes, folder: Path) -> Iterator[None]:
    """Serve commands for the block. folder: the data folder, which this process holds."""
    file = folder / SOCKET_FILE
    with socket.socket(socket.AF_UNIX) as listener:
        file.unlink(missing_ok=True)  # of a process that was killed
        try:
            listener.bind(str(file))
        except OSError as error:
            log.warning("documents cannot be changed by commands while this desk runs: %s: %s", file, error)
            yield
            return
        file.chmod(0o600)  # before anybody can connect
        listener.listen()
        config = uvicorn.Config(
            command_app(changes), log_config=None, log_level="warning", access_log=False, lifespan="off"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="commands", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = server.force_exit = True
            thread.join(_STOPPED_S)
            file.unlink(missing_ok=True)
