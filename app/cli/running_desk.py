"""A desk that is being served: commands that change documents are handed to it, so that nobody has to stop it.

The serving process writes where it listens and a secret into its note in the data folder, which only its user can read;
who can read that may as well change the data folder itself. Not covered: the routes it answers on (`document_routes`).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from app.domain.errors import DeskError
from app.domain.progress import Progress
from app.storage.lock import read_note


@dataclass(frozen=True, slots=True)
class RunningDesk:
    """Where a desk listens, and the secret that opens its document routes."""

    url: str
    secret: str

    def ingest(self, order: dict[str, Any], progress: Progress) -> dict[str, Any]:
        """Let it ingest: {paths, collection, sync, warm}. Gives the report as JSON. Raises DeskError."""
        return self._post("/desk/ingest", order, progress)

    def forget(self, document: str, progress: Progress) -> dict[str, Any]:
        """Let it forget a document. Gives what was removed as JSON. Raises DeskError."""
        return self._post("/desk/forget", {"document": document}, progress)

    def _post(self, path: str, order: dict[str, Any], progress: Progress) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.secret}"}
        try:
            with httpx.stream(
                "POST", self.url + path, json=order, headers=headers, timeout=None, trust_env=False
            ) as response:
                if response.status_code != 200:
                    message = f"the running desk answered {response.status_code}: restart it"
                    raise DeskError(message, code="desk-refused")
                return read_events(response.iter_lines(), progress)
        except httpx.HTTPError as error:
            raise DeskError(
                f"the running desk at {self.url} broke off ({error}): what it finished is kept, try again",
                code="desk-lost",
            ) from error


def find_running(folder: Path) -> RunningDesk | None:
    """The desk that is being served from a data folder, if one is."""
    note = read_note(folder)
    if note is None or not note.get("url") or not note.get("secret"):
        return None
    desk = RunningDesk(str(note["url"]), str(note["secret"]))
    headers = {"Authorization": f"Bearer {desk.secret}"}
    try:
        httpx.get(f"{desk.url}/desk/check", headers=headers, timeout=5.0, trust_env=False).raise_for_status()
    except httpx.HTTPError:  # the note is of a process that was killed; whatever listens there is not its desk
        return None
    return desk


def read_events(lines: Any, progress: Callable[[str, int, int], None]) -> dict[str, Any]:
    """The result at the end of a stream of events, one JSON object a line. Raises DeskError for an error among them."""
    lost = DeskError("the running desk broke off: what it finished is kept, try again", code="desk-lost")
    for line in lines:
        try:
            event = json.loads(line)
            if "error" in event:
                raise DeskError(event["error"]["message"], code=event["error"]["code"])
            if "result" in event:
                result: dict[str, Any] = event["result"]
                return result
            progress(event["stage"], event["done"], event["total"])
        except (ValueError, KeyError, TypeError) as error:  # half a line, or another program's
            raise lost from error
    raise lost
