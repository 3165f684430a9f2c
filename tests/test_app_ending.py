"""The orderly end of a desk, and what it says of itself while something hangs: nobody waits for it for long."""

import threading
from collections.abc import Callable

import anyio
import httpx
import uvicorn
from desk_site import BASE, Site
from desks import small_desk
from waiting import wait_until

import app.desk.repeating
from app.answering.answering import OpenAnswers
from app.desk.repeating import Readiness
from app.domain.errors import DeskError
from app.web.middleware import Opening
from app.web.serve import DeskServer


class Answer:
    def __init__(self, finish: Callable[[], object]) -> None:
        self.is_finished, self.finish_as, self.was_cancelled = threading.Event(), finish, False

    def cancel(self) -> None:
        self.was_cancelled = True

    def finish(self) -> None:
        self.finish_as()
        self.is_finished.set()


def test_an_answer_that_fails_or_hangs_keeps_no_other_from_its_end(caplog):
    """Was wrong once: those behind it were not recorded, and the desk's end broke off or never came."""

    def fail() -> None:
        raise DeskError("the database is busy", code="database-busy")

    goes_on, answers = threading.Event(), OpenAnswers()
    asked = [Answer(fail), Answer(lambda: None), Answer(lambda: goes_on.wait(60)), Answer(lambda: None)]
    for one in asked:
        answers.add(one)
    answers.end(0.0, 0.2)
    assert all(one.was_cancelled for one in asked)
    assert [one.is_finished.is_set() for one in asked] == [False, True, False, True]
    assert "an answer could not be recorded: the database is busy" in caplog.text
    assert "1 of the answers did not end within 0.2 s and are not recorded" in caplog.text
    goes_on.set()


def test_what_hangs_is_missing_and_looked_at_once(monkeypatch):
    monkeypatch.setattr(app.desk.repeating, "LOOK_S", 0.3)
    goes_on, looks = threading.Event(), list[str]()

    def hangs() -> bool:
        looks.append("database")
        return goes_on.wait(60)

    def fails() -> bool:
        raise ZeroDivisionError

    readiness = Readiness({"model": lambda: True, "engine": lambda: False, "database": hangs})
    assert readiness.missing() == readiness.missing() == ("engine", "database")
    assert looks == ["database"]
    goes_on.set()
    wait_until(lambda: readiness.missing() == ("engine",))
    assert Readiness({"engine": fails}).missing() == ("engine",)


def test_a_database_that_hangs_does_not_keep_whoever_asks(tmp_path, monkeypatch):
    monkeypatch.setattr(app.desk.repeating, "LOOK_S", 0.3)
    goes_on = threading.Event()
    with small_desk(tmp_path) as service:
        service.prepare()
        monkeypatch.setattr(service.library, "set_fact", lambda *_: goes_on.wait(60))
        assert service.missing() == ("database",)
        goes_on.set()
        wait_until(lambda: service.missing() == ())


def test_while_all_shared_threads_are_held_a_desk_says_what_it_is_and_ends(tmp_path, monkeypatch):
    """Was wrong once: scrapes that waited for an engine held them all, and the desk could not even be stopped."""
    site, ended = Site(tmp_path), list[str]()

    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(uvicorn.Server, "shutdown", nothing)

    async def ask() -> None:
        limiter = anyio.to_thread.current_default_thread_limiter()
        for _ in range(int(limiter.total_tokens)):
            limiter.acquire_on_behalf_of_nowait(object())
        for asgi, status in ((site.app, 200), (Opening(lambda: ("engine",)), 503)):
            async with httpx.AsyncClient(transport=httpx.ASGITransport(asgi), base_url=BASE) as client:
                for headers in ({}, {"authorization": "Bearer whoever"}):
                    assert (await client.get("/healthz", headers=headers)).status_code == 200
                    assert (await client.get("/readyz", headers=headers)).status_code == status
        await DeskServer(Opening(lambda: ()), lambda: ended.append("answers")).shutdown()

    async def in_time() -> None:
        with anyio.fail_after(30):
            await ask()

    anyio.run(in_time)
    assert ended == ["answers"]
    site.close()
