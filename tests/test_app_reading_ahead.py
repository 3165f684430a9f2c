"""The model reads in the background what it has not read, while the desk serves."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from desks import finish, small_desk, write_pages
from waiting import wait_until

from app.cli.operate import serve_demo
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.progress import DocumentsRead, PassagesRead, no_progress
from app.domain.settings import Settings
from cache.errors import CacheError

LONG_S = 60.0


def read_ahead(service: Service) -> threading.Event:
    """Begin; the event is set when everything has been read."""
    done = threading.Event()
    service.read_ahead(when_read=done.set)
    return done


def stored(service: Service) -> list[bool]:
    passages = service.library.passages(service.library.all_ids())
    keys = [service.engine.store.key(service.engine.segment(service.prompts.module(p))) for p in passages]
    return service.engine.call(lambda store: [store.tier(key) is not None for key in keys])


def test_what_a_stopped_run_recorded_but_did_not_read_is_read_at_the_next_start(tmp_path, pages):
    """A module's key is recorded before it is computed, and its file may be gone."""
    with small_desk(tmp_path / "desk", pages=pages) as service:
        (file, *_) = (f for key in service.library.module_keys() for f in tmp_path.rglob(f"*{key.split(':')[1]}*"))
    file.unlink()
    with small_desk(tmp_path / "desk") as service:
        service.prepare()
        assert stored(service).count(False) == 1
        assert read_ahead(service).wait(LONG_S)
        assert stored(service) == [True] * 4


def test_what_is_added_while_the_desk_serves_is_read_too(tmp_path, pages):
    with small_desk(tmp_path / "desk") as service:
        assert service.ingest([pages], warm=False).modules.encoded == 0
        assert service.passages_read() is None
        assert read_ahead(service).wait(LONG_S)
        assert service.passages_read() == PassagesRead(read=4, total=4, is_reading=False)
        assert service.overview().reading == service.passages_read()
        (pages / "returns.md").write_text("# Returns\n\nReturns take sixty days now.\n")
        service.ingest([pages / "returns.md"], warm=False)
        wait_until(lambda: stored(service) == [True] * 4)
        service.forget("stores.txt")
        wait_until(lambda: service.passages_read() == PassagesRead(read=3, total=3, is_reading=False))


def test_a_passage_without_room_is_unread_while_others_are_encoded(tmp_path, monkeypatch, pages):
    with small_desk(tmp_path / "desk") as service:
        service.ingest([pages], warm=False)
        ids, seen = service.library.all_ids(), list[set[int]]()
        monkeypatch.setattr(service._warming, "survey", lambda: (ids, ids[:1]))
        encode = service.engine.encode
        unread = service._in_flight.unread
        monkeypatch.setattr(service.engine, "encode", lambda some: (seen.append(set(unread)), encode(some))[1])
        assert read_ahead(service).wait(LONG_S)
    assert seen == [set(ids)]


def test_what_has_no_room_waits_for_a_question(tmp_path, pages):
    with small_desk(tmp_path / "desk", disk=0, device_memory=1) as service:
        service.ingest([pages], warm=False)
        assert read_ahead(service).wait(LONG_S)
        assert service.passages_read() == PassagesRead(read=0, total=4, is_reading=False)


def test_a_failure_leaves_the_desk_answering(tmp_path, monkeypatch, caplog, pages):
    with small_desk(tmp_path / "desk") as service:
        service.ingest([pages], warm=False)
        failing, survey = True, service._warming.survey

        def sometimes() -> tuple[list[int], list[int]]:
            if failing:
                raise RuntimeError("broken")
            return survey()

        monkeypatch.setattr(service._warming, "survey", sometimes)
        read = read_ahead(service)
        wait_until(lambda: "could not be encoded" in caplog.text)
        assert finish(service, "Can I return a gift card?").answer
        failing = False
        service.ingest([pages], warm=False)
        assert read.wait(LONG_S)


@pytest.mark.parametrize("is_of_database", [False, True])
def test_reading_goes_on_when_engine_or_database_is_back(tmp_path, monkeypatch, caplog, is_of_database, pages):
    """Was wrong once: it ended for good, or until documents changed. That the database is away it says itself."""
    monkeypatch.setattr("app.knowledge.warm.AGAIN_S", 0.0)
    with small_desk(tmp_path / "desk") as service:
        service.ingest([pages], warm=False)
        part, name, failures = service.engine, "encode", iter([CacheError("the engine failed")])
        if is_of_database:
            codes = ("database-unreachable", "database-lost")
            part, name = service._warming, "survey"  # type: ignore[assignment]
            failures = iter(DeskError("the database is away", code=code) for code in codes)  # type: ignore[misc]
        real = getattr(part, name)

        def failing_first(*given: Any, **options: Any) -> Any:
            if (error := next(failures, None)) is not None:
                raise error
            return real(*given, **options)

        monkeypatch.setattr(part, name, failing_first)
        assert read_ahead(service).wait(LONG_S)
        assert stored(service) == [True] * 4
    assert ("could not be encoded" in caplog.text) != is_of_database


def test_a_desk_that_closes_while_it_reads_loses_nothing(tmp_path, pages):
    for number in range(20):
        (pages / f"page{number}.md").write_text(f"# Page {number}\n\n" + f"Sentence {number} of it. " * 20)
    with small_desk(tmp_path / "desk") as service:
        service.ingest([pages], warm=False)
        read_ahead(service)
    assert service._ahead is not None
    assert not service._ahead._thread.is_alive()
    with small_desk(tmp_path / "desk", device_memory=64 << 20) as service:
        assert read_ahead(service).wait(LONG_S)
        assert all(stored(service))


def test_a_question_waits_for_little_of_what_is_being_read_and_that_is_read_next(tmp_path, monkeypatch, pages):
    monkeypatch.setattr("app.knowledge.warm.AT_ONCE", 1)
    with small_desk(tmp_path / "desk") as service:
        service.ingest([pages], warm=False)
        in_flight, ids, order = service._in_flight, service.library.all_ids(), list[str]()
        in_flight.unread.update(ids)

        def documents() -> list[str]:
            return [one.document for one in finish(service, "Can I return a gift card?").modules if one.document]

        assert len(documents()) == 1
        wanted = [f"{one.document}#0" for one in service.library.passages(in_flight.wanted)]
        assert len(wanted) == 2, "the best one was encoded without its neighbours"
        encode = service.engine.encode
        monkeypatch.setattr(
            service.engine, "encode", lambda some: (order.extend(s.name for s in some), encode(some))[1]
        )
        service._warming.encode(ids, no_progress)
        assert order[:2] == wanted
        assert len(order) == len(ids)
        assert not in_flight.unread
        assert len(documents()) == 2


def test_a_question_does_not_wait_for_neighbours_of_its_passage(tmp_path, pages):
    """They are only needed to encode it, and would double the wait."""
    with small_desk(tmp_path / "desk", neighbours=1, passages=2) as service:
        service.ingest([pages], warm=False)
        service._in_flight.unread.update(service.library.all_ids())
        plan = service._answering.questions.prepare("Can I return a gift card?", []).plan
        [passage] = [one for one in plan.segments() if "#" in one.name]
        assert not passage.left_context


def test_a_demo_serves_before_it_reads_and_compares_then(tmp_path, monkeypatch, capsys):
    """The order of `make demo`, without a socket. Was wrong once: the pages waited for the index."""
    pages = write_pages(tmp_path / "pages")
    with small_desk(tmp_path / "desk") as service:

        def serve(settings: Settings, *, first: Callable[..., None], when_read: Callable[..., None]) -> None:
            service.prepare()
            assert service.is_ready()
            first(service)
            assert seen[-1] == DocumentsRead(read=4, total=4, is_most=True)
            assert service.documents_read() is None
            assert stored(service) == [False] * 4
            done = threading.Event()
            service.read_ahead(when_read=lambda: (when_read(service), done.set()))  # type: ignore[func-returns-value]
            assert done.wait(LONG_S)

        def noting(stage: str, done: int, total: int) -> None:
            seen.append(service.documents_read())

        seen: list[DocumentsRead | None] = []
        monkeypatch.setattr("app.cli.reports.progress_bar", lambda: nullcontext(noting))
        monkeypatch.setattr("app.cli.operate.serve_desk", serve)
        serve_demo(service.settings, pages)
    assert "median" in capsys.readouterr().out
