"""Long work answered as a stream of events, one JSON object a line: {stage, done, total} while it runs, then {result}
or {error}.
"""

import json
import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from fastapi.responses import StreamingResponse

from app.domain.errors import DeskError
from app.domain.logs import in_request
from app.domain.progress import Progress

log = logging.getLogger(__name__)

FAILED = "something went wrong on our side; the log of the desk says more"


def events(
    work: Callable[[Progress], dict[str, Any]], words: Callable[[str, str], str] = lambda code, message: message
) -> StreamingResponse:
    """Run work in a thread of its own; it goes on if nobody listens any more. words: what is said of an error, given
    its code and the desk's own line.
    """
    waiting: queue.Queue[dict[str, Any]] = queue.Queue()

    def run() -> None:
        try:
            result = work(lambda stage, done, total: waiting.put({"stage": stage, "done": done, "total": total}))
            waiting.put({"result": result})
        except DeskError as error:
            waiting.put({"error": {"code": error.code, "message": words(error.code, str(error))}})
        except OSError as error:
            message = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
            waiting.put({"error": {"code": "system", "message": message}})
        except Exception:
            log.exception("a change of the documents failed")
            waiting.put({"error": {"code": "internal", "message": words("internal", FAILED)}})

    def lines() -> Iterator[str]:
        while True:
            event = waiting.get()
            yield json.dumps(event) + "\n"
            if "stage" not in event:
                return

    threading.Thread(target=in_request(run), name="documents", daemon=True).start()
    return StreamingResponse(lines(), media_type="application/x-ndjson")
