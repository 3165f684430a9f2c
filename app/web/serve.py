"""`warmdesk serve`: the pages on a socket, until Ctrl-C or SIGTERM."""

import signal
import socket
import sys
from contextlib import suppress

import uvicorn

from app.desk.service import Service
from app.domain.errors import DeskError
from app.web.command_socket import command_socket
from app.web.passwords import ensure_password
from app.web.server import create_app


def serve(service: Service) -> None:
    """Listen, load the models, serve; called by the main thread. Raises DeskError when the port is taken."""
    settings = service.settings
    # As Ctrl-C: uvicorn stops and raises the signal again, whose default action would end us with the engine open.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    listener = bind(settings.host, settings.port)
    port = listener.getsockname()[1]
    password = ensure_password(settings.admin_folder)
    print("loading the models ...", file=sys.stderr, flush=True)
    service.prepare()
    if not service.library.counts().documents:
        print("no documents yet: run warmdesk ingest FOLDER, or add some on the dashboard", file=sys.stderr)
    application = create_app(service, settings.admin_folder, service.database, host=settings.host)
    shown = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    print(f"chat       http://{shown}:{port}/", flush=True)
    print(f"dashboard  http://{shown}:{port}/admin", flush=True)
    if password is not None:
        print(f"admin password (shown once): {password}", flush=True)
    config = uvicorn.Config(application, log_level="warning", access_log=False, timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    with listener, command_socket(service, settings.data_dir), suppress(KeyboardInterrupt):  # how a desk is stopped
        server.run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, taken before anything slow. Raises DeskError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
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
