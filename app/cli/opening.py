"""Opens the desk of a server that already listens: loads its parts, opens its pages, starts its repeated work."""

import gc
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from fastapi import FastAPI

from app.access.identity import ensure_admin
from app.cli import COLLECTED
from app.desk.repeating import every_minute, following, syncing
from app.desk.service import Changes, Service
from app.domain.callers import COMMAND_LINE
from app.domain.logs import say
from app.domain.progress import Bars, no_bars
from app.storage.people import Accounts, Audit
from app.support.webhook import WebhookSender
from app.web.commands import command_socket
from app.web.guard import is_loopback
from app.web.serve import Start
from app.web.server import create_app

OPEN = (
    "this server is open to the network without TLS: others can read customers' messages and the admin password. Put a "
    "proxy with TLS in front of it and set public_url to its address."
)


def open_desk(
    start: Start,
    desk: AbstractContextManager[Service],
    bars: Bars = no_bars,
    *,
    first: Callable[[Service], None] = lambda service: None,
    when_read: Callable[[Service], None] = lambda service: None,
) -> None:
    """Load the models and open the pages. bars: show progress. first: runs once the pages are open, before passages are
    encoded. when_read: runs when all are encoded. Raises the errors of loading, and DeskError.
    """
    service = start.enter(desk)
    settings, database = service.settings, service.database
    start.opening.watch(service.missing, lambda: service.awaited)
    start.server.end_answers = service.end_answers
    if not is_loopback(settings.host) and settings.public_url is None:
        say(OPEN, logging.WARNING)
    start.enter(WebhookSender(database, settings))
    start.enter(command_socket(Changes(service, Audit(database).record, COMMAND_LINE), settings.data_dir))
    start.enter(every_minute(service.housekeeping))
    start.enter(syncing(service.synced.run_due, service.is_ready))
    if service.following:
        start.enter(following(service.following, service.is_ready))
    say("loading the models ...")
    pages: list[FastAPI] = []
    service.prepare(lambda: pages.append(create_app(service, database, settings)))
    start.opening.open(pages[0])
    gc.freeze()  # a full garbage collection of PyTorch's and Gradio's objects would stop all answers for 0.6 s
    gc.set_threshold(*COLLECTED)
    gc.enable()
    print(f"chat       {start.address}/", flush=True)
    print(f"dashboard  {start.address}/admin", flush=True)
    # Only now: a stored password that is not shown, because loading failed, would be lost.
    if (password := ensure_admin(Accounts(database))) is not None:
        print(f"admin password (shown once): {password}", flush=True)
    first(service)
    if not service.library.counts().documents:
        say("no documents yet: run warmdesk ingest FOLDER, or add some on the dashboard")
    service.read_ahead(bars, lambda: when_read(service))
    service.measure_savings()
    service.examples()  # searched now, not during the first visitors' questions
