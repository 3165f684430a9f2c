"""What the chat page adds to the first piece of an answer: `python -m evals.page_latency [--messages N]`.

In Chromium, from pressing Enter to the first words on the screen, minus what the desk took to say them. The desk is a
stand-in that waits a known time, over a real database; the conversation holds no message, and then N. Both in turn, so
that whatever else the machine does meets both. Needs selenium, Chromium and chromedriver.

Not covered: the network between browser and desk, the model, and the search.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn
from selenium import webdriver

from app.desk.service import Service
from app.domain.answers import Answer, AnswerTimings, AnswerUsage, Citation, ConversationSummary, Mark, Turn
from app.domain.settings import Settings
from app.storage.database import open_database
from app.storage.history import AnswerDetails, History, new_id
from app.web.server import create_app
from evals.machine import describe_machine

WARM_UP = 3
DESK_S = 0.15
"""How long the stand-in is silent. Longer than the page takes to say that it looks, as with a real desk."""
SENTENCE = "You can send an item back within 30 days of delivery, without giving a reason. "
PARAGRAPH = SENTENCE * 5
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,900")
WATCH = """
window.seen = new Promise((done) => {
  let pressed;
  document.addEventListener("keydown", () => { pressed ??= performance.now(); }, { capture: true, once: true });
  const watcher = new MutationObserver(() => {
    if (!document.querySelector("#wd-live .wd-text")) return;
    watcher.disconnect();
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - pressed)));  // it is on the screen
  });
  watcher.observe(document.querySelector("#wd-live"), { childList: true, subtree: true });
});
"""
SEEN = "const done = arguments[arguments.length - 1]; window.seen.then(done);"
READY = "return !!document.querySelector('#wd-box .submit-button') && !document.querySelector('#wd-live .wd-question')"


class SlowStream:
    """Says nothing for `DESK_S`, then one paragraph in pieces. took_ms: from the question to the first piece."""

    def __init__(self, conversation_id: str) -> None:
        self._started = time.perf_counter()
        self.answer = an_answer(conversation_id)
        self.took_ms = 0.0

    def __iter__(self) -> Iterator[str]:
        time.sleep(DESK_S)
        for start in range(0, len(PARAGRAPH), 20):
            self.took_ms = self.took_ms or (time.perf_counter() - self._started) * 1e3
            yield PARAGRAPH[start : start + 20]
            time.sleep(0.02)

    def cancel(self) -> None:
        """Nothing runs on."""


class SlowDesk:
    """What the chat page asks for. It stores no answer, so that the conversation stays as long as it is."""

    def __init__(self, history: History) -> None:
        self._history = history
        self.last = SlowStream("")

    def ask(self, question: str, *, owner: str, conversation_id: str | None = None) -> SlowStream:
        """The same answer to every question."""
        self.last = SlowStream(conversation_id or "")
        return self.last

    def prefetch(self, text: str, *, owner: str, conversation_id: str | None = None) -> None:
        """Nothing is read ahead."""

    def turns(self, conversation_id: str, owner: str, last: int | None = None) -> list[Turn]:
        """Every visitor may read the one conversation."""
        return self._history.turns(conversation_id, last=last)

    def conversations(self, owner: str, limit: int = 50, query: str = "") -> list[ConversationSummary]:
        """As stored."""
        return self._history.conversations()

    def to_person(self, text: str, conversation_id: str | None, owner: str) -> None:
        """Nobody steps in."""

    def hand_off_by_rule(self, conversation_id: str, owner: str) -> None:
        """Nobody steps in."""

    def handoff(self, conversation_id: str, owner: str) -> None:
        """Nobody steps in."""

    def listen(self, listener: object) -> None:
        """Nothing is counted."""

    def contacts(self) -> Mapping[str, str]:
        """None."""
        return {}

    def examples(self) -> list[str]:
        """None."""
        return []

    def is_ready(self) -> bool:
        """Always."""
        return True


def an_answer(conversation_id: str) -> Answer:
    """An answer of usual length, with three sources."""
    mark = (Mark(0, 0, len(SENTENCE)),)
    named = {"document": "returns.md", "title": "Returns", "quote": PARAGRAPH, "score": 0.8}
    return Answer(
        answer=PARAGRAPH,
        outcome="answered",
        conversation_id=conversation_id,
        message_id=new_id(),
        citations=tuple(Citation(passage=f"Part {n}", marks=mark, **cast("Any", named)) for n in range(3)),
        usage=AnswerUsage(prompt_tokens=900, completion_tokens=80, computed=50, session=0, prefix=50, module=800),
        modules=(),
        timings=AnswerTimings(retrieve=9.0, load=1.0, prefill=90.0, ttft=100.0, total=900.0),
        policy="fast",
        exact=False,
        notice=None,
    )


def fill(history: History, messages: int) -> str:
    """Store a conversation; gives its id."""
    conversation = history.start_conversation("A long conversation")
    for number in range(messages // 2):
        asked = history.record_question(conversation, f"How long do I have to send item {number} back?")
        details = AnswerDetails(question_id=asked, finish_reason="stop", passage_ids=(None,) * 3)
        history.record_answer(an_answer(conversation), details)
    return conversation


@contextmanager
def served(folder: Path, messages: int) -> Iterator[tuple[SlowDesk, str, str]]:
    """The stand-in on a free port, its address, and its conversation."""
    settings = Settings(data_dir=folder, questions_per_minute=1000)
    with closing(open_database(settings.database_url)) as database:
        history = History(database)
        desk, conversation = SlowDesk(history), fill(history, messages)
        app = create_app(cast("Service", desk), database, settings)
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield desk, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}", conversation
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def chromium(folder: Path) -> Iterator[webdriver.Chrome]:
    """A browser without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def wait_for(ready: Any, *, most_s: float = 60.0) -> None:
    """Raises TimeoutError."""
    end = time.monotonic() + most_s
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"the page was not ready after {most_s:.0f} s")
        time.sleep(0.05)


def ask_once(driver: webdriver.Chrome, desk: SlowDesk) -> float:
    """Ask in the open conversation. Gives the milliseconds that were not the desk's."""
    wait_for(lambda: driver.execute_script(READY))
    box = driver.find_element("css selector", "#wd-box textarea")
    box.send_keys("How long do I have?")
    time.sleep(0.3)  # what typing sets off
    driver.execute_script(WATCH)
    box.send_keys("\n")
    seen: float = driver.execute_async_script(SEEN)
    return seen - desk.last.took_ms


def measure(messages: int, repeats: int) -> dict[str, Any]:
    """Both conversations in turn, a fresh page for each of them every five questions."""
    added: dict[int, list[float]] = {0: [], messages: []}
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder), messages) as (desk, url, conversation),
        chromium(Path(folder) / "chromium") as driver,
    ):
        pages = ((0, url + "/", ".wd-empty"), (messages, f"{url}/#{conversation}", "#wd-transcript .wd-answer"))
        while len(added[messages]) < repeats + WARM_UP:
            for number, address, wanted in pages:
                driver.get("about:blank")
                driver.get(address)
                wait_for(lambda wanted=wanted: driver.find_elements("css selector", wanted))
                time.sleep(1)  # what the page does after it was opened
                added[number] += [ask_once(driver, desk) for _ in range(5)]
    rows = [row(number, some[WARM_UP:]) for number, some in added.items()]
    return {"machine": describe_machine(), "desk_ms": DESK_S * 1e3, "rows": rows}


def row(messages: int, added: Sequence[float]) -> dict[str, Any]:
    """The least, which other programs of the machine disturb least, the median, and the 95th percentile."""
    ordered = sorted(added)
    return {
        "messages": messages,
        "n": len(ordered),
        "added_ms_min": round(ordered[0], 1),
        "added_ms_p50": round(statistics.median(ordered), 1),
        "added_ms_p95": round(ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))], 1),
    }


def main() -> None:
    """Read the arguments, measure, print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=30)
    given = parser.parse_args()
    print(json.dumps(measure(given.messages, given.repeats)))


if __name__ == "__main__":
    main()
