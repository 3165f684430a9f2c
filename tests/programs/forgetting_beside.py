"""Whether customers are answered while thousands of passages are forgotten.

    make forgetting [PASSAGES=5000]

Customers ask a desk with a tiny model, again and again, while a collection of so many passages is forgotten. Every
answer must arrive and be stored, nothing of the collection be left, and no transaction of the forgetting change more
than some rows: who writes meanwhile waits for one at most. Prints one JSON document, with how long a transaction of a
customer waited at the most, and exits with 1 if there is a finding. Not covered: PostgreSQL.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import typer
from sqlalchemy import Connection, event
from tiny_desk import tiny_desk

from app.desk.service import Service
from app.domain.errors import DeskError
from app.storage.database import Database
from app.storage.document_change import ROWS_AT_ONCE

ON_A_PAGE: Final = 100
MOST_ROWS: Final = 3 * ROWS_AT_ONCE  # of a transaction that forgets: a passage's own, and what hangs on it


class Writes:
    """What transactions of a desk did. most_rows: that one of this thread changed. longest_s: that one of another
    thread waited for its turn.
    """

    def __init__(self) -> None:
        self.most_rows, self.longest_s = 0, 0.0
        self._its, self._of = threading.local(), threading.get_ident()

    def asks(self, connection: Connection) -> None:
        self._its.asked_at = time.perf_counter()

    def begins(self, connection: Connection) -> None:
        self._its.rows = num_changed(connection)
        if threading.get_ident() != self._of:
            self.longest_s = max(self.longest_s, time.perf_counter() - self._its.asked_at)

    def ends(self, connection: Connection) -> None:
        if threading.get_ident() == self._of:
            self.most_rows = max(self.most_rows, num_changed(connection) - self._its.rows)


def num_changed(connection: Connection) -> int:
    return int(connection.connection.dbapi_connection.total_changes)


@contextmanager
def watched(database: Database) -> Iterator[Writes]:
    writes = Writes()
    event.listen(database.engine, "begin", writes.asks, insert=True)  # before the lock is taken
    listeners = (("begin", writes.asks), ("begin", writes.begins), ("commit", writes.ends))
    for name, listener in listeners[1:]:
        event.listen(database.engine, name, listener)
    try:
        yield writes
    finally:
        for name, listener in listeners:
            event.remove(database.engine, name, listener)


def write_pages(folder: Path, passages: int) -> None:
    """Pages with so many passages, or a few more."""
    folder.mkdir()
    for first in range(0, passages, ON_A_PAGE):
        parts = (f"## Item {number}\n\nIt costs {number}.\n" for number in range(first, first + ON_A_PAGE))
        (folder / f"page{first}.md").write_text("\n".join(parts))


def ask_until(desk: Service, owner: str, is_over: threading.Event) -> tuple[int, list[str]]:
    """Ask until it is over, once at least; gives how often, and what was wrong."""
    wrong, number = list[str](), 0
    while not number or not is_over.is_set():
        number += 1
        try:
            stream = desk.ask(f"What does item {number} cost?", owner=owner)
            said = "".join(stream)
            turns = desk.turns(stream.conversation_id, owner)
        except DeskError as error:
            wrong.append(f"{owner}, question {number}: {error}")
        else:
            if [turn.text for turn in turns][1:] not in ([said], [stream.answer.answer]):
                wrong.append(f"{owner}, question {number}: the answer is not stored")
    return number, wrong


def measure(passages: int, customers: int) -> dict[str, Any]:
    """findings: what was wrong. answered: questions. forgotten: passages. most_rows, longest_s: see `Writes`."""
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory(prefix="forgetting") as name,
        tiny_desk(Path(name, "desk"), neighbours=0, passage_tokens=40, answer_tokens=2) as desk,
        ThreadPoolExecutor(customers) as pool,
    ):
        write_pages(Path(name, "pages"), passages)
        desk.ingest([Path(name, "pages")], warm=False, collection="shop")
        desk.upload("stays.md", b"# Delivery\n\nIt takes three days.\n")
        desk.prepare()
        is_over = threading.Event()
        with watched(desk.database) as writes:
            asked = [pool.submit(ask_until, desk, f"customer-{number}", is_over) for number in range(customers)]
            try:
                forgotten = desk.forget_collection("shop")
            finally:
                is_over.set()
                wait(asked)
        results = [one.result() for one in asked]
        findings = [one for _, wrong in results for one in wrong]
        findings += [f"left: {forgotten.left}"] * (desk.library.counts().documents != 1)
        if writes.most_rows > MOST_ROWS:
            findings.append(f"a transaction that forgets changed {writes.most_rows} rows")
    return {
        "findings": findings,
        "answered": sum(number for number, _ in results),
        "forgotten": forgotten.removed.passages,
        "most_rows": writes.most_rows,
        "longest_s": round(writes.longest_s, 3),
    }


def main(passages: int = 5000, customers: int = 16) -> None:
    result = measure(passages, customers)
    print(json.dumps(result))
    sys.exit(bool(result["findings"]))


if __name__ == "__main__":
    typer.run(main)
