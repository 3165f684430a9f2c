"""The second socket of a server, for commands while it runs.

`warmdesk ingest`, `ask` and others use a Unix socket in the data folder. Only the server's user can open it, and this
user could change the data folder anyway. Out of scope: systems without Unix sockets, and data folders whose path is too
long for a socket. There the server must be stopped before commands change documents.
"""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Body, FastAPI
from fastapi.responses import Response
from msgspec import to_builtins
from pydantic import BaseModel

from app.desk.batch import BatchQuestion
from app.desk.output import backup_json, batch_entry_json, batch_json, ingest_json
from app.desk.service import Changes
from app.domain.answers import Answer
from app.storage.data_folder import SOCKET_FILE
from app.web.document_routes import events

log = logging.getLogger(__name__)

_STOPPED_S = 5.0


class IngestOrder(BaseModel):
    """The arguments of `Changes.ingest`."""

    paths: list[Path]
    collection: str = ""
    sync: bool = False
    warm: bool = True


class BackupOrder(BaseModel):
    """The arguments of `Changes.back_up`."""

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
    def sync(folder: Annotated[str, Body()], accepts_losses: Annotated[bool, Body()] = False) -> Response:
        run = partial(changes.desk.synced.run, folder, who=changes.who, accepts_losses=accepts_losses)
        return events(lambda progress: asdict(run(progress)))

    @app.post("/erase")
    def erase(owner: Annotated[str, Body(embed=True)]) -> Response:
        return events(lambda progress: asdict(changes.erase(owner)))

    @app.post("/backup")
    def backup(order: BackupOrder) -> Response:
        options = order.model_dump(exclude={"file"})
        return events(lambda progress: backup_json(changes.back_up(order.file, progress, **options)))

    @app.post("/ask")
    def ask(order: Annotated[dict[str, Any], Body()]) -> Response:
        def answered(progress: Any) -> Any:
            stream = changes.desk.ask(**order)
            for piece in stream:
                progress("answering", 0, 1, piece=piece)
            return to_builtins(stream.answer)

        return events(answered, until_left=True)

    @app.post("/batch")
    def batch(questions: Annotated[list[BatchQuestion], Body(embed=True)]) -> Response:
        def answered(progress: Any) -> Any:
            def keep(question: BatchQuestion, answer: Answer) -> None:
                progress("answering", 0, len(questions), entry=batch_entry_json(question, answer))

            return batch_json(changes.desk.batch(questions, partial(progress, "answering"), keep))

        return events(answered, until_left=True)

    @app.post("/stats")
    def stats() -> Response:
        always, desk = (datetime.min.replace(tzinfo=UTC), datetime.now(UTC)), changes.desk
        return events(lambda progress: to_builtins((desk.overview(), desk.savings(*always))))

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
