"""The child process in which files are read; `reading` starts it and talks to it.

One question a line on standard input, one answer a line on standard output, both JSON: what a hostile file made
of this process can then at worst be a wrong document. Ends when standard input does. Never imports torch.
"""

import argparse
import json
import logging
import os
import queue
import sys
import threading
import warnings
from pathlib import Path
from typing import BinaryIO

from retrieval.documents.document import Document
from retrieval.errors import UnreadableDocument
from retrieval.loaders.load import load


def main() -> None:
    """Answer until the parent goes."""
    options = argparse.ArgumentParser()
    options.add_argument("--memory", type=int, default=0, help="bytes of address space")
    memory = options.parse_args().memory
    answers = os.fdopen(os.dup(1), "wb")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)  # a library that prints must not answer
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if memory:
        _limit_memory(memory)
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, questions), daemon=True).start()
    while True:
        answers.write(_answer(questions.get()) + b"\n")
        answers.flush()


def _listen(source: BinaryIO, questions: "queue.SimpleQueue[bytes]") -> None:
    """Notices that the parent is gone even while a file is being read."""
    for line in source:
        questions.put(line)
    os._exit(0)


def _limit_memory(size: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    try:
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    except (ValueError, OSError):  # macOS knows the limit and refuses to set it
        return


def _answer(question: bytes) -> bytes:
    try:
        return json.dumps(_document(load(Path(json.loads(question)["path"])))).encode()
    except UnreadableDocument as error:
        reason = error.reason
    except MemoryError:
        reason = "needs too much memory to read"
    return json.dumps({"reason": reason}).encode()


def _document(document: Document) -> dict[str, object]:
    return {
        "title": document.title,
        "blocks": [[block.kind, block.text, block.level] for block in document.blocks],
        "content_hash": document.content_hash,
        "is_faq": document.is_faq,
        "remarks": document.remarks,
    }


if __name__ == "__main__":
    main()
