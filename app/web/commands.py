"""The second socket of a server: commands that change documents while it runs.

`warmdesk ingest`, `forget`, `sync` and `backup` use a Unix socket in the data folder that only the server's user can
open, who could change the data folder anyway. Out of scope: systems without Unix sockets, and data folders with a path
too long for one; there the server must be stopped before commands change documents.
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

from app.desk.output import backup_json, ingest_json
from app.desk.service import Changes
from app.storage.lock import SOCKET_FILE
from app.web.document_routes import events

log = logging.getLogger(__name__)

_STOPPED_S = 5.0


class IngestOrder(BaseModel):
    """What to ingest, as for `Changes.ingest`."""

    paths: list[Path]
    collection: str = ""
    sync: bool = False
    warm: bool = True


class BackupOrder(BaseModel):
    """What to save, as for `Changes.back_up`."""

    file: Path
    with_modules: bool = False
    overwrite: bool = False


def command_app(changes: Changes) -> FastAPI:
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
    """Serve commands inside the block. folder: the data folder, which this process holds."""
    file = folder / SOCKET_FILE
    with socket.socket(socket.AF_UNIX) as listener:
        file.unlink(missing_ok=True)  # from a killed process
        try:
            listener.bind(str(file))
        except OSError as error:
            log.warning("commands cannot change documents while this server runs: %s: %s", file, error)
            yield
            return
        file.chmod(0o600)  # before any client can connect
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
