"""A desk that is killed, or told to stop, in the middle of an answer: what was said stays, and the desk goes on."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import httpx
from desks import finish, small_desk
from sqlalchemy import select

from app.domain.callers import STOPPED
from app.storage.lock import OWNER_FILE, SOCKET_FILE
from app.storage.tables import ConversationRow
from app.web.rendering import render

SERVE = """
import sys, time
from pathlib import Path
from desks import finish, small_desk
from app.storage.lock import lock_data_folder
from app.web.serve import serve
from cache.engine.running import Running

advance = Running.advance
def slowly(self, *given):
    time.sleep(0.05)
    return advance(self, *given)

folder = Path(sys.argv[1])
with lock_data_folder(folder, "warmdesk serve"), small_desk(folder, port=0, answer_tokens=500) as service:
    service.ingest([Path(sys.argv[2])])
    finish(service, "Can I return a gift card?")
    Running.advance = slowly
    serve(service)
"""


@contextmanager
def in_the_middle_of_an_answer(folder: Path, pages: Path) -> Iterator[subprocess.Popen[str]]:
    """A served desk that has begun to answer."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(folder), str(pages)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[1]
        with httpx.Client(base_url=address, timeout=60) as client:
            client.get("/")  # for a visitor's cookie
            events = client.get("/config").json()["dependencies"]
            submit = next(d for d in events if any(target[1] == "submit" for target in d["targets"]))
            data = ["Where is the repair bench?", *[""] * (len(submit["inputs"]) - 1)]
            body = {"fn_index": submit["id"], "session_hash": "one", "data": data}
            client.post("/gradio_api/queue/join", json={**body, "event_data": None, "trigger_id": None})
            with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": "one"}) as stream:
                lines = (line[6:] for line in stream.iter_lines() if line.startswith("data: "))
                kinds = (json.loads(line)["msg"] for line in lines)
                begun = (kind for kind in kinds if kind == "process_generating")
                assert len(list(islice(begun, 5))) == 5
                yield server
    finally:
        server.kill()
        server.wait()


def test_a_desk_that_is_killed_keeps_the_conversation_and_says_what_was_lost(tmp_path: Path, pages: Path) -> None:
    with in_the_middle_of_an_answer(tmp_path / "desk", pages) as server:
        server.kill()
    with small_desk(tmp_path / "desk") as service:
        lost, whole = service.database.rows(
            select(ConversationRow.id, ConversationRow.owner).order_by(ConversationRow.updated.desc())
        )
        assert [turn.unanswered for turn in service.turns(*whole)] == [None, None]
        (question,) = service.turns(*lost)
        assert (question.text, question.unanswered) == ("Where is the repair bench?", "lost")
        shown = render(
            "chat/transcript.html",
            language="en",
            turns=[question],
            contacts={},
            technical=False,
            topics=(),
            has_older=False,
        )
        assert "This answer was not finished: the server was stopped. Ask again." in " ".join(shown.split())
        assert service.history.past(*lost) == [], "the next prompt leaves it out"
        again = finish(service, "Can I return a gift card?", conversation_id=lost[0], owner=lost[1])
        assert again.answer
        turns = service.turns(*lost)
        assert [turn.role for turn in turns] == ["user", "user", "assistant"]
        assert [turn.unanswered for turn in turns] == ["lost", None, None]


def test_a_desk_that_is_stopped_keeps_what_it_said_so_far(tmp_path: Path, pages: Path) -> None:
    """SIGTERM; Ctrl-C takes the same way from the first line on (`app.web.serve`), see `test_app_cli`."""
    with in_the_middle_of_an_answer(tmp_path / "desk", pages) as server:
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=60) == 0
        assert server.stderr is not None
        assert "Traceback" not in server.stderr.read()
    left = {file.name for file in (tmp_path / "desk").rglob("*")}
    assert not left & {OWNER_FILE, SOCKET_FILE}
    assert not [name for name in left if name.startswith((".", "tmp", "partial"))]
    with small_desk(tmp_path / "desk") as service:
        [stopped, _] = service.database.rows(
            select(ConversationRow.id, ConversationRow.owner).order_by(ConversationRow.updated.desc())
        )
        question, answer = service.turns(*stopped)
        assert question.unanswered is None
        assert answer.answer is not None
        assert answer.text
        assert answer.answer.notice == STOPPED
