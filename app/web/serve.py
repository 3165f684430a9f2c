"""`warmdesk serve`: the pages on a socket, until Ctrl-C or SIGTERM."""

import signal
import socket
import sys
from contextlib import suppress

import uvicorn

from app.access.passwords import ensure_admin
from app.desk.housekeeping import every_minute
from app.desk.service import Service
from app.domain.errors import DeskError
from app.storage.accounts import Accounts
from app.web.command_socket import command_socket
from app.web.server import create_app
from app.web.site import is_loopback

OPEN = """\
warning: this desk is open to the network without TLS: what customers write, and the admin password, can be read on the
way. Put a proxy with TLS before it and set public_url to its address."""


def serve(service: Service) -> None:
    """Listen, load the models, serve; called by the main thread. Raises DeskError when the port is taken."""
    settings = service.settings
    # As Ctrl-C: uvicorn stops and raises the signal again, whose default action would end us with the engine open.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    listener = bind(settings.host, settings.port)
    port = listener.getsockname()[1]
    password = ensure_admin(Accounts(service.database), settings.admin_folder)
    print("loading the models ...", file=sys.stderr, flush=True)
    service.prepare()
    if not service.library.counts().documents:
        print("no documents yet: run warmdesk ingest FOLDER, or add some on the dashboard", file=sys.stderr)
    if not is_loopback(settings.host) and settings.public_url is None:
        print(OPEN, file=sys.stderr)
    application = create_app(service, service.database, settings)
    here = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    shown = settings.public_url.rstrip("/") if settings.public_url else f"http://{here}:{port}"
    print(f"chat       {shown}/", flush=True)
    print(f"dashboard  {shown}/admin", flush=True)
    if password is not None:
        print(f"admin password (shown once): {password}", flush=True)
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,
        proxy_headers=False,  # only from the setting `trusted_proxies`: see `create_app`
    )
    server = uvicorn.Server(config)
    with (
        listener,
        command_socket(service, settings.data_dir),
        every_minute(service.housekeeping),
        suppress(KeyboardInterrupt),  # how a desk is stopped
    ):
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
