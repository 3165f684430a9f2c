"""`warmdesk serve`: the pages on a socket until Ctrl-C or SIGTERM, and a second socket for commands.

The server listens from the first second (`middleware.Opening`). `warmdesk ingest`, `ask` and others use a Unix
socket in the data folder that only the server's user can open, who could change the data folder anyway. Out of
scope: systems without Unix sockets, and data folders with a path too long for one; there the server must be stopped
before commands change documents.
"""

import asyncio
import gc
import logging
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import uvicorn
from fastapi import Body, FastAPI
from fastapi.responses import Response
from msgspec import to_builtins
from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.access.identity import ensure_admin
from app.desk.batch import BatchQuestion
from app.desk.output import backup_json, batch_entry_json, batch_json, ingest_json
from app.desk.repeating import every_minute, following, syncing
from app.desk.service import Changes, Service
from app.domain.answers import Answer
from app.domain.callers import COMMAND_LINE
from app.domain.errors import DeskError
from app.domain.logs import of_request, say
from app.domain.progress import Bars, Progress, no_bars
from app.domain.threads import in_own_thread
from app.storage.lock import SOCKET_FILE
from app.storage.people import Accounts, Audit
from app.support.webhook import WebhookSender
from app.web.document_routes import events
from app.web.guard import at_start, come_again, is_loopback
from app.web.middleware import ALIVE, READY, Opening
from app.web.pacing import BoundedConnection
from app.web.server import create_app

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
    def sync(folder: Annotated[str, Body(embed=True)]) -> Response:
        return events(lambda progress: asdict(changes.desk.synced.run(folder, progress, who=changes.who)))

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


OPEN = (
    "this server is open to the network without TLS: others can read customers' messages and the admin password. Put a "
    "proxy with TLS in front of it and set public_url to its address."
)

GRACE_S = 1  # seconds for open connections when the server stops; answers have ended by then
ACCEPTED_AT_ONCE = 16
"""Connections accepted before other work goes on: asyncio would accept all that wait, hundreds in a flood."""
WAITING = 2048  # connections that the system keeps until they are accepted
HEADER = "x-request-id"
_requests = logging.getLogger("app.web.request_log")  # the name that operators know from their logs
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}")
_ASKED_ALL_THE_TIME = frozenset({ALIVE, READY, "/metrics"})
_LONGEST_PATH = 200


class RequestLog:
    """The outermost layer of the server: each request gets an id, which is sent back, and a line in the log.

    The line has the method, the path without the query, the status and the milliseconds: no text of customers or
    agents, and no IP address. Frequent requests of programs are logged at the level debug.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given, begun, status = Headers(scope=scope).get(HEADER, ""), time.perf_counter(), 0
        id_ = given if _SANE.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = id_

        def answered(headers: MutableHeaders, sent: int) -> None:
            nonlocal status
            headers[HEADER], status = id_, sent

        send = at_start(send, answered)
        with of_request(id_):
            try:
                await self._app(scope, receive, send)
            except asyncio.CancelledError:  # the server stops and does not wait, for example for an upload
                if status:
                    raise
                await come_again(Request(scope))(scope, receive, send)
            finally:
                spent_ms = (time.perf_counter() - begun) * 1e3
                method, path = scope["method"], quote(scope["path"][:_LONGEST_PATH])
                level = logging.DEBUG if scope["path"] in _ASKED_ALL_THE_TIME else logging.INFO
                fields = {"method": method, "path": path, "status": status, "milliseconds": round(spent_ms, 1)}
                _requests.log(level, "%s %s %d %.1f ms", method, path, status, spent_ms, extra=fields)


class DeskServer(uvicorn.Server):
    """A server that ends answers before it closes their connections."""

    def __init__(self, application: Opening, end_answers: Callable[[], None]) -> None:
        config = uvicorn.Config(
            RequestLog(application),
            http=BoundedConnection,
            ws="none",
            log_config=None,  # as all other loggers
            log_level="error",  # its warnings contain bytes of invalid requests
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            backlog=ACCEPTED_AT_ONCE,
            proxy_headers=False,  # only from the setting `trusted_proxies`: see `create_app`
        )
        super().__init__(config)
        self._end_answers = end_answers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(WAITING)  # asyncio has one number for both

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.wrap_future(in_own_thread(self._end_answers))
        await super().shutdown(sockets)


def serve(
    service: Service,
    bars: Bars = no_bars,
    *,
    first: Callable[[Progress], None] = lambda progress: None,
    when_read: Callable[[], None] = lambda: None,
) -> None:
    """Listen, load the models, serve; called by the main thread. bars: show progress. first: runs before the server is
    ready; the page shows its progress. when_read: runs once, when all passages are encoded. Raises DeskError if the
    port is in use, and the errors of loading and `first`.
    """
    settings = service.settings
    # As Ctrl-C: uvicorn stops and raises the signal again, whose default action would end us with the engine open.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    webhook = WebhookSender(service.database, settings)
    listener = bind(settings.host, settings.port)
    port = listener.getsockname()[1]
    here = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    shown = settings.public_url.rstrip("/") if settings.public_url else f"http://{here}:{port}"
    opening = Opening(service.missing, lambda: service.awaited)
    server = DeskServer(opening, service.end_answers)
    failures: list[BaseException] = []

    def open_desk() -> None:
        try:
            first(opening.report)
            say("loading the models ...")
            with permanent():
                service.prepare()
                application = create_app(service, service.database, settings)
            if not service.library.counts().documents:
                say("no documents yet: run warmdesk ingest FOLDER, or add some on the dashboard")
            opening.open(application)
            print(f"chat       {shown}/", flush=True)
            print(f"dashboard  {shown}/admin", flush=True)
            # Only now: a stored password that is not shown, because loading failed, would be lost.
            if (password := ensure_admin(Accounts(service.database))) is not None:
                print(f"admin password (shown once): {password}", flush=True)
            service.read_ahead(bars, when_read)
            service.measure_savings()
            service.examples()  # looked for now, not beside the first visitors' questions
        except BaseException as error:  # it ends the command, not only this thread
            failures.append(error)
            server.should_exit = True

    if not is_loopback(settings.host) and settings.public_url is None:
        say(OPEN, logging.WARNING)
    say(f"{shown}/ is ready soon ...")
    threading.Thread(target=open_desk, name="opening", daemon=True).start()
    with (
        listener,
        webhook,
        command_socket(Changes(service, Audit(service.database).record, COMMAND_LINE), settings.data_dir),
        every_minute(service.housekeeping),
        syncing(service.synced.run_due, service.is_ready),
        following(service.following, service.is_ready) if service.following else nullcontext(),
        suppress(KeyboardInterrupt),  # the way to stop the server
    ):
        server.run(sockets=[listener])
        if failures:
            raise failures[0]


@contextmanager
def permanent() -> Iterator[None]:
    """Garbage collections do not examine what this block makes. With PyTorch's and Gradio's 700,000 objects, each full
    one would stop all answers for 0.6 s.
    """
    gc.disable()
    try:
        yield
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio leaves Nagle's algorithm on: the second part of an answer then waits 40 ms for the
    # reader's delayed acknowledgement of the first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        reason = "it is in use by another program" if "in use" in str(error).lower() else error.strerror or str(error)
        raise DeskError(
            f"cannot listen on {host} port {port}: {reason}; use another --port", code="port-in-use"
        ) from None
    return listener
