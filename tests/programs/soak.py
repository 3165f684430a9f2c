"""Check that nothing grows or breaks over thousands of questions while the documents change.

    make soak [REQUESTS=2000] [CLIENTS=8] [MINUTES=10] [SEED=0] [MODEL=FILE.gguf TOKENS=20000]

Clients ask a tiny model, or that of a file, in conversations of several turns, each as a new customer, and stop some
answers. After every ten questions one thread changes a folder and ingests it, or deletes a document. Memory, open files
and threads of this process are read after each eighth of the questions. Findings: growth from the second to the last
quarter, an unexpected error, usage that does not add up, an answer that quotes text deleted or replaced before the
question, and anything wrong with the data folder afterwards (`desk_examination`). Also measured: the time to the first
text of an answer, and the longest time in which no client got any. Prints one JSON document, and exits with 1 if there
is a finding. Out of scope: requests over HTTP, an engine in its own process, restarts (`chaos`), runs of several days.
"""

import faulthandler
import json
import queue
import random
import re
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
import typer
from programs.desk_examination import Place, examine, left_over
from tiny import build
from tiny_desk import tiny_desk

from app.answering.answering import AnswerInProgress
from app.desk.service import Service
from app.domain.answers import Answer
from app.domain.errors import DeskError
from cache.memory.store import Store
from cache.model.loading import load_model
from cache.serving.local_engine import LocalEngine
from evals.report import describe_machine, percentile

PAGES, MOST_TURNS = 12, 5
QUESTIONS_PER_CHANGE = 10
MEMORY_TOKENS = 1800  # that memory is for: less than the conversations of 8 clients have, so that it is always full
STOPPED = 0.15  # share of the answers that their readers stop,
WAYS = ("at once", "once it began", "leaves", "never reads")  # and how a reader does it
PARTS = 8  # of the questions; the process is measured at the end of each
MORE_MEMORY, MORE_OPEN = 1.05, 3
"""What the last quarter may have: times the memory of the second one, and files and threads beyond its number."""
WAIT_S = 120.0
"""How long everything may take once no more questions are asked. Then the stacks of all threads are printed."""
EXPECTED = ("engine-full",)  # codes of errors that many questions at once may get
NEVER_BEGAN = "the request was cancelled before it started"
"""What the reader of an answer that was stopped at once may get."""
MARK = re.compile(r"page (\d+) edition (\d+)")
Found = dict[int, int]  # for each page an edition


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """Resources of the process. files: every open descriptor, sockets and pipes included."""

    memory_mib: float
    files: int
    threads: int

    @classmethod
    def now(cls) -> "ProcessReading":
        process = psutil.Process()
        return cls(round(process.memory_info().rss / 2**20, 1), process.num_fds(), process.num_threads())


def growth(readings: Sequence[ProcessReading]) -> list[str]:
    """Return resources that grew too much from the second to the last quarter of the readings."""
    quarter = len(readings) // 4
    before, last = readings[quarter : 2 * quarter], readings[-quarter:]
    found = list[str]()
    for name, times, more in (("memory_mib", MORE_MEMORY, 0), ("files", 1, MORE_OPEN), ("threads", 1, MORE_OPEN)):
        most, now = (max(getattr(one, name) for one in some) for some in (before, last))
        if now > most * times + more:
            found.append(f"{name} grew from {most} to {now}")
    return found


class ChangingPages:
    """A folder of pages. Each sentence of a page names its edition."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self._rng = folder, rng
        self.editions: Found = dict.fromkeys(range(PAGES), 0)
        self.oldest: Found = dict(self.editions)
        """The oldest edition of each page that a question asked now may find."""
        self.forgotten: Found = dict.fromkeys(range(PAGES), -1)
        """The last edition of each page that was forgotten: nothing stored may quote it, or one before it."""
        folder.mkdir()
        for page in range(PAGES):
            self._write(page)

    def change(self, desk: Service) -> str:
        there = [page for page in range(PAGES) if self._file(page).exists()]
        action = self._rng.choice(("replace", "remove", "forget")) if len(there) > PAGES // 2 else "replace"
        page = self._rng.choice(there)
        if action == "replace":
            for one in {page, self._rng.randrange(PAGES)}:
                self._write(one)
        else:
            self._file(page).unlink()
        if action == "forget":
            desk.forget(str(self._file(page).resolve()))
            self.forgotten[page] = self.editions[page]
        else:
            report = desk.ingest([self.folder], sync=True)
            assert not report.failed, report.failed
        self.oldest = {one: edition + (not self._file(one).exists()) for one, edition in self.editions.items()}
        return action

    def _file(self, page: int) -> Path:
        return self.folder / f"page{page}.md"

    def _write(self, page: int) -> None:
        self.editions[page] += 1
        mark = f"page {page} edition {self.editions[page]}"
        items = (f"## Item {item}\n\nItem {item} of {mark} costs {self._rng.randrange(99)}." for item in range(3))
        self._file(page).write_text(f"# Page {page}\n\n" + "\n\n".join(items) + "\n")


def quoted_before(answer: Answer, oldest: Found) -> list[str]:
    said = [answer.answer, *(one.quote for one in answer.citations)]
    marks = {(int(page), int(edition)) for text in said for page, edition in MARK.findall(text)}
    return [f"quotes page {page} edition {edition}" for page, edition in sorted(marks) if edition < oldest[page]]


def read(stream: AnswerInProgress, way: str, heard: Callable[[], None]) -> None:
    """Read an answer. way: how it is stopped, "" if it is not. heard: called for each piece."""
    if way == "at once":
        stream.cancel()
    for _ in () if way == "never reads" else stream:
        heard()
        if way == "leaves":
            break
        if way:
            stream.cancel()


@dataclass(slots=True)
class Soak:
    """State that the clients and the thread that changes documents share. ends: `time.monotonic` after which nothing
    starts. answered: conversations with their owners. due: True for each change, False at the end; holds one, so that
    questions wait for late changes. first_ms: times to the first text. last: when a client last got text. longest_s:
    the longest time without any.
    """

    desk: Service
    pages: ChangingPages
    requests: int
    ends: float
    asked: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    readings: list[ProcessReading] = field(default_factory=list)
    answered: dict[str, str] = field(default_factory=dict)
    first_ms: list[float] = field(default_factory=list)
    last: float = 0.0
    longest_s: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)
    due: "queue.Queue[bool]" = field(default_factory=lambda: queue.Queue(1))

    def begin(self) -> bool:
        with self.lock:
            if self.asked == self.requests or time.monotonic() > self.ends:
                return False
            self.asked += 1
            is_due = self.asked % QUESTIONS_PER_CHANGE == 0
        if is_due:
            self.due.put(True)
        return True

    def heard(self) -> None:
        with self.lock:
            now = time.monotonic()
            self.longest_s, self.last = max(self.longest_s, now - (self.last or now)), now

    def done(self, outcome: str, found: Sequence[str]) -> None:
        with self.lock:
            self.outcomes[outcome] += 1
            self.findings += found
            total = self.outcomes.total()
            if total * PARTS // self.requests > len(self.readings):
                self.readings.append(ProcessReading.now())
                print(total, self.readings[-1], len(self.findings), file=sys.stderr, flush=True)

    def ask(self, client: int, rng: random.Random) -> None:
        number = 0
        while True:
            owner, conversation = f"v-{client}-{number}", None
            number += 1
            for _ in range(rng.randint(1, MOST_TURNS)):
                if not self.begin():
                    return
                conversation = self.turn(owner, conversation, rng)

    def turn(self, owner: str, conversation: str | None, rng: random.Random) -> str | None:
        oldest, way = self.pages.oldest, rng.choice(WAYS) if rng.random() < STOPPED else ""
        question = f"What does item {rng.randrange(3)} of page {rng.randrange(PAGES)} cost?"
        outcome, found = "no answer", list[str]()
        try:
            stream = self.desk.ask(question, owner=owner, conversation_id=conversation)
            conversation = stream.conversation_id
            read(stream, way, self.heard)
            answer = stream.answer
            self.first_ms += [] if way else [answer.timings.ttft]
            outcome, self.answered[conversation] = "stopped" if way else answer.outcome, owner
            found = quoted_before(answer, oldest)
            if not answer.usage.is_reuse_known:
                found.append(f"usage does not add up: {answer.usage}")
        except DeskError as error:
            self.errors[error.code] += 1
            is_none = way and (error.code == "no-answer" or str(error) == NEVER_BEGAN)
            if error.code not in EXPECTED and not is_none:
                found = [f"{error.code}: {error}"]
        except Exception:
            found = [traceback.format_exc()]
        self.done(outcome, found)
        return conversation

    def change(self) -> None:
        while self.due.get():
            if time.monotonic() > self.ends:
                continue
            try:
                self.changes[self.pages.change(self.desk)] += 1
            except Exception:
                with self.lock:
                    self.findings.append(traceback.format_exc())

    def run(self, clients: int, rng: random.Random) -> None:
        changing = threading.Thread(target=self.change, name="changing")
        asking = [threading.Thread(target=self.ask, args=(n, random.Random(rng.random()))) for n in range(clients)]
        for thread in (changing, *asking):
            thread.start()
        for thread in asking:
            thread.join()
        self.due.put(False)
        changing.join()

    def look(self) -> None:
        engine = self.desk.engine
        assert isinstance(engine, LocalEngine)
        engine.call(Store.check_integrity)
        if engine.num_restarts:
            self.findings.append(f"the engine began anew {engine.num_restarts} times")
        self.findings += left_over(self.desk)
        kept = {page: edition + 1 for page, edition in self.pages.forgotten.items()}
        for conversation, owner in self.answered.items():
            answers = [one.answer for one in self.desk.turns(conversation, owner) if one.answer is not None]
            self.findings += [f"stored: {wrong}" for answer in answers for wrong in quoted_before(answer, kept)]
        if len(self.readings) == PARTS:
            self.findings += growth(self.readings)
        else:
            self.findings.append(f"only {self.asked} of {self.requests} questions in time: growth is not known")


def measure(
    requests: int, clients: int, minutes: float, seed: int, model: str | None = None, tokens: int = MEMORY_TOKENS
) -> dict[str, Any]:
    """Run the soak. outcomes: of questions; stopped: by their readers. errors: by code. readings: after each eighth.
    first_ms: median, 95th percentile and maximum of the time to the first text. longest_s: without text for anybody.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="soak") as name:
        folder = Path(name)
        pages = ChangingPages(folder / "pages", rng)
        asked = build() if model is None else load_model(model, device="cpu", converted=folder / "models")
        memory = tokens * asked.info.kv.bytes_per_token
        with tiny_desk(folder / "desk", lambda: asked, answer_mode="quote", device_memory=memory) as desk:
            desk.ingest([pages.folder])
            desk.prepare()
            soak = Soak(desk, pages, requests, time.monotonic() + minutes * 60)
            soak.run(clients, rng)
            soak.look()
            evicted = desk.engine.contents(with_modules=False).evictions
        (place := Place(folder, load=lambda: asked)).asked.write_text("\n".join(soak.answered))
        found = soak.findings + examine(place)
    return {
        "machine": describe_machine(),
        "requests": soak.asked,
        "clients": clients,
        "seed": seed,
        "conversations": len(soak.answered),
        "outcomes": dict(soak.outcomes),
        "errors": dict(soak.errors),
        "changes": dict(soak.changes),
        "evictions": evicted,
        "first_ms": [round(of(soak.first_ms)) for of in (statistics.median, partial(percentile, percent=95), max)],
        "longest_s": round(soak.longest_s, 1),
        "readings": [asdict(one) for one in soak.readings],
        "findings": found,
    }


def main(
    requests: int = 2000,
    clients: int = 8,
    minutes: float = 10.0,
    seed: int = 0,
    model: str | None = None,
    tokens: int = MEMORY_TOKENS,
) -> None:
    faulthandler.dump_traceback_later(minutes * 60 + WAIT_S, exit=True)
    if model is None:
        torch.set_num_threads(1)
    result = measure(requests, clients, minutes, seed, model, tokens)
    print(json.dumps(result))
    sys.exit(bool(result["findings"]))


if __name__ == "__main__":
    typer.run(main)
