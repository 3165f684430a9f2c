"""Hand commands to the running server of a data folder, so that it need not be stopped.

The server listens on a Unix socket in its data folder, which only its user can open (`app.web.serve`).
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from app.domain.errors import DeskError
from app.domain.progress import no_progress
from app.storage.lock import SOCKET_FILE, is_locked


def order(socket: Path, path: str, body: dict[str, Any], progress: Any = no_progress) -> dict[str, Any]:
    """Send work to the server: a path and a body of `app.web.serve`. Return the result as JSON. Raises DeskError."""
    import httpx  # most commands find no running server

    try:
        with (
            httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=None) as client,
            client.stream("POST", f"http://desk{path}", json=body) as response,
        ):
            if response.status_code != 200:
                message = f"the running server answered {response.status_code}: restart it"
                raise DeskError(message, code="desk-refused")
            return read_events(response.iter_lines(), progress)
    except httpx.HTTPError as error:
        raise DeskError(
            f"the running server is lost ({error or type(error).__name__}): finished work is saved, try again",
            code="desk-lost",
        ) from error


def find_running(folder: Path) -> Callable[..., dict[str, Any]] | None:
    """`order` for the running server of a folder, if any. A killed process leaves its socket, but holds no folder."""
    file = folder / SOCKET_FILE
    return partial(order, file) if file.is_socket() and is_locked(folder) else None


def read_events(lines: Any, progress: Callable[..., None]) -> dict[str, Any]:
    lost = DeskError("the running server is lost: finished work is saved, try again", code="desk-lost")
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
