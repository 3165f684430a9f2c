"""The child process that reads files. `reader` starts it and sends it requests.

Requests and responses are lines of JSON on standard input and output. So a hostile file that takes over this process
can only produce a wrong document. The process ends when standard input ends. It never imports torch.
"""

import contextlib
import json
import logging
import os
import queue
import sys
import threading
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO

from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load


def main() -> None:
    """Answer requests until the parent ends. The program's argument is the limit of its address space, in bytes."""
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library's output is not a response
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    with contextlib.suppress(ImportError, ValueError, OSError):  # Windows has no such limit, macOS refuses it
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        responses.write(_response(requests.get()) + b"\n")
        responses.flush()


def _listen(source: BinaryIO, requests: "queue.SimpleQueue[bytes]") -> None:
    """End the process when the parent has ended, even while a file is being read."""
    for line in source:
        requests.put(line)
    os._exit(0)


def _response(request: bytes) -> bytes:
    try:
        return json.dumps(asdict(load(Path(json.loads(request)["path"]))), default=str).encode()
    except UnreadableDocument as error:
        reason = error.reason
    except MemoryError:
        reason = "needs too much memory to read"
    return json.dumps({"reason": reason}).encode()


if __name__ == "__main__":
    main()
