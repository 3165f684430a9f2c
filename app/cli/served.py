"""Start a server in an order that lets it respond at once and be ready soon.
Commands are sent to the running server of a data folder, so that it need not be stopped.

The data folder is locked, the engine's process is started, and the server listens. Then another thread imports the desk
and loads it while the engine loads the model. The server also listens on a Unix socket in its data folder, which only
its user can open (`app.web.commands`).
"""

import gc
import json
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.domain.errors import DeskError
from app.domain.progress import no_progress
from app.domain.settings import Settings
from app.storage.data_folder import SOCKET_FILE, is_locked, lock_data_folder

if TYPE_CHECKING:
    from app.desk.service import Service
    from app.web.serve import Start


def serve_desk(
    settings: Settings,
    *,
    first: Callable[["Service"], None] = lambda service: None,
    when_read: Callable[["Service"], None] = lambda service: None,
) -> None:
    """Serve until stopped. first, when_read: see `app.cli.opening`. Raises the errors of `app.web.serve.serve`, and
    DeskError if the data folder is in use.
    """
    from app.desk.disk_room import make_room
    from app.web.serve import serve
    from cache.serving.child_process import ChildProcess

    def open_desk(start: "Start") -> None:
        gc.disable()  # until the pages are open: imports make objects that stay
        from app.cli.opening import open_desk
        from app.cli.reports import progress_bar
        from app.desk.service import Service

        desk = Service(settings, may_start_process=True, process=process)
        open_desk(start, desk, progress_bar, first=first, when_read=when_read)

    with (
        lock_data_folder(settings.data_dir, "warmdesk serve", lambda: make_room(settings)),
        closing(ChildProcess()) if settings.has_child else nullcontext() as process,
    ):
        serve(settings, open_desk)


def order(socket: Path, path: str, body: dict[str, Any], progress: Any = no_progress) -> dict[str, Any]:
    """Send work to the server: a path and a body of `app.web.commands`. Return the result as JSON. Raises DeskError."""
    import httpx  # most commands find no running server

    try:
        with (
            # Without TLS there is nothing to verify, and reading certificates takes longer than an order.
            httpx.Client(transport=httpx.HTTPTransport(uds=str(socket), verify=False), timeout=None) as client,
            client.stream("POST", f"http://desk{path}", json=body) as response,
        ):
            if response.status_code != 200:
                message = f"the running server returned status {response.status_code}: restart it"
                raise DeskError(message, code="desk-refused")
            return read_events(response.iter_lines(), progress)
    except httpx.HTTPError as error:
        raise DeskError(
            f"the server connection is lost ({error or type(error).__name__}): finished work is saved, try again",
            code="desk-lost",
        ) from error


def find_running(folder: Path) -> Callable[..., dict[str, Any]] | None:
    """Return `order` for the running server of a folder, if any. A killed server leaves its socket, but no lock."""
    file = folder / SOCKET_FILE
    return partial(order, file) if file.is_socket() and is_locked(folder) else None


def read_events(lines: Any, progress: Callable[..., None]) -> dict[str, Any]:
    lost = DeskError("the server connection is lost: finished work is saved, try again", code="desk-lost")
    for line in lines:
        try:
            event = json.loads(line)
            if "error" in event:
                raise DeskError(event["error"]["message"], code=event["error"]["code"])
            if "result" in event:
                result: dict[str, Any] = event["result"]
                return result
            progress(**event)
        except (ValueError, KeyError, TypeError) as error:  # half a line, or another program's
            raise lost from error
    raise lost
