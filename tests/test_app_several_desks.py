"""Two desks on one PostgreSQL database, each with a data folder and an engine of its own."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from types import SimpleNamespace

import pytest
from desks import finish, small_desk
from fake_server import FakeServer, stream, whole
from forgetting import NOTHING, SECRET, files_with, kept, modules, write_secret
from refusals import one_line
from waiting import wait_until

from app.desk import repeating as following_file
from app.desk.repeating import following
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.quality import FaqDraft
from app.storage.document_change import count_change
from cache.memory.keys import PUBLIC_TENANT
from cache.remote.remote_engine import RemoteEngine

QUESTION = "What is the word of the day?"
Desks = tuple[Service, Service]


@pytest.fixture
def desks(tmp_path, postgres_url, monkeypatch):
    """Neither waits for the other, which looks for changes only when the test says so."""
    monkeypatch.setattr(following_file, "WAIT_S", 0.0)
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(small_desk(tmp_path / name, database_url=postgres_url)) for name in ("one", "other")
        )


@pytest.fixture
def pages(tmp_path):
    return write_secret(tmp_path / "pages")


@contextmanager
def looking(desk: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The desk looks for changes again and again, as one that is served, and the other waits for it."""
    monkeypatch.setattr(following_file, "WAIT_S", 60.0)
    monkeypatch.setattr(following_file, "FOLLOW_EVERY_S", 0.02)
    look(desk)
    assert desk.following is not None
    with following(desk.following, lambda: True):
        yield


def look(desk: Service) -> None:
    assert desk.following is not None
    desk.following.look()


def refused(error: pytest.ExceptionInfo[DeskError]) -> str:
    assert "\n" not in str(error.value)
    return error.value.code


def test_what_one_takes_in_the_other_finds_on_postgres(desks, pages):
    one, other = desks
    look(other)
    assert len(other.search.snapshot.index) == 0
    one.ingest([pages])
    look(other)
    assert other.search.snapshot.index.passage_ids == one.search.snapshot.index.passage_ids
    assert SECRET in finish(other, QUESTION).citations[0].quote
    (pages / "secret.md").write_text("# Plans\n\nThe word of the day is another one now.\n")
    one.ingest([pages])
    look(other)
    assert "another one now" in finish(other, QUESTION).citations[0].quote


def test_before_it_has_looked_it_finds_nothing_that_is_gone_on_postgres(desks, pages):
    one, other = desks
    one.ingest([pages])
    look(other)
    one.forget("secret.md")
    assert SECRET not in repr(finish(other, QUESTION))


def test_what_one_forgets_is_nowhere_in_the_other_on_postgres(desks, pages, tmp_path, monkeypatch):
    one, other = desks
    one.ingest([pages])
    look(other)
    other._warming.run([str(pages / "secret.md")], lambda *_: None)
    conversation = finish(other, QUESTION).conversation_id
    gone = {key for passage in one.library.passages_of(str(pages / "secret.md")) if (key := passage.module_key)}
    assert gone <= modules(other) | other.engine.modules_of_prefixes()
    assert files_with(tmp_path / "other", SECRET.split()[0])
    with looking(other, monkeypatch):
        assert one.forget("secret.md").left == NOTHING  # when this returns, the other one has let go of it, too
    assert gone.isdisjoint(modules(other) | other.engine.modules_of_prefixes())
    assert modules(other) <= kept(other)
    assert files_with(tmp_path / "other", *SECRET.split()) == set()
    for desk in desks:
        assert SECRET not in repr(desk.turns(conversation)[-1].answer.citations)
        later = finish(desk, QUESTION, conversation_id=conversation)
        assert SECRET not in repr(later)
        assert later.usage.session == 0, "the earlier turn stood on the document"


def test_what_was_forgotten_while_a_desk_was_stopped_goes_when_it_starts_on_postgres(tmp_path, postgres_url, pages):
    with small_desk(tmp_path / "other", pages=pages, database_url=postgres_url) as other:
        other.upload("plans.md", f"# Plans\n\nThe word is {SECRET}.\n".encode())
    with small_desk(tmp_path / "one", database_url=postgres_url) as one:
        assert one.forget("pages/secret.md").left == NOTHING
        assert one.forget("plans.md").left == NOTHING
    assert files_with(tmp_path / "other", SECRET)
    with small_desk(tmp_path / "other", database_url=postgres_url) as other:
        look(other)
        assert modules(other) <= kept(other)
        assert files_with(tmp_path / "other", *SECRET.split()) == set()


def test_desks_whose_model_runs_elsewhere_forget_for_each_other_on_postgres(tmp_path, postgres_url, pages, monkeypatch):
    """Nothing of a document is sent to the model's server any more, whatever was said before; nor is it in the files of
    an engine that ran here before.
    """
    server = FakeServer(stream(whole(f"The word is {SECRET}.")))
    monkeypatch.setattr("app.desk.parts.RemoteEngine", partial(RemoteEngine, transport=server))
    with small_desk(tmp_path / "other", pages=pages, database_url=postgres_url) as before:
        [passage] = before.library.passages_of(str(pages / "secret.md"))
    elsewhere = {"database_url": postgres_url, "model": "openai:http://model.test#m"}
    with small_desk(tmp_path / "one", **elsewhere) as one, small_desk(tmp_path / "other", **elsewhere) as other:
        look(one)
        look(other)
        assert passage.module_key in other.engine.modules(PUBLIC_TENANT)
        conversations = [finish(desk, QUESTION).conversation_id for desk in (one, other)]
        assert all(SECRET in repr(chat["messages"]) for chat in server.chats)
        with looking(other, monkeypatch):
            assert one.forget("secret.md").left == NOTHING
        assert files_with(tmp_path / "other", *SECRET.split()) == set()
        assert passage.module_key not in other.engine.modules(PUBLIC_TENANT)
        server.chats.clear()
        server.replies = [stream(whole("The shop in Galway has a bench."))]
        for desk, conversation in zip((other, one), conversations, strict=True):
            for later in (finish(desk, QUESTION), finish(desk, QUESTION, conversation_id=conversation)):
                assert SECRET not in repr(later)
        assert len(server.chats) == 4
        assert not [word for word in SECRET.split() if word in repr(server.chats)]


def test_an_answer_under_way_elsewhere_brings_no_quotation_back_on_postgres(desks, pages):
    one, other = desks
    one.ingest([pages])
    look(other)
    stream = other.ask(QUESTION)
    assert one.forget("secret.md").left.quotes == 0
    for _ in stream:
        pass
    assert SECRET not in repr(one.turns(stream.answer.conversation_id)[-1].answer.citations)
    assert one.history.quotes_of(str(pages / "secret.md")) == 0
    assert [message.text for message in other.history.past(stream.answer.conversation_id)][1:] == [""]


def test_a_clock_that_is_ahead_hides_nothing_on_postgres(desks, pages, monkeypatch):
    one, other = desks
    one.ingest([pages])
    look(other)

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(UTC) + timedelta(minutes=5)

    monkeypatch.setattr("app.answering.answering.datetime", Ahead)
    stream = other.ask(QUESTION)
    one.forget("secret.md")
    for _ in stream:
        pass
    assert one.history.quotes_of(str(pages / "secret.md")) == 0


def test_only_one_changes_documents_at_a_time_on_postgres(desks, pages):
    one, other = desks
    with one._ingestion.alone():
        for change in (lambda: other.ingest([pages]), lambda: other.upload("a.md", b"# A\n\nText.\n")):
            with one_line("ingestion-running", "another server is ingesting documents"):
                change()
    other.ingest([pages])
    assert one.forget("secret.md").left == NOTHING  # it knows what the other one took in


def test_a_folder_is_read_by_one_desk_on_postgres(desks, pages):
    one, other = desks
    one.synced.save(str(pages), "", 60, who="ann")
    begun, go_on = threading.Event(), threading.Event()

    def wait(stage: str, done: int, total: int) -> None:
        begun.set()
        go_on.wait()

    reading = threading.Thread(target=one.synced.run_due, args=(wait,))
    reading.start()
    begun.wait()
    other.synced.run_due()  # returns at once
    assert other.documents() == []
    go_on.set()
    reading.join()
    [folder] = other.synced.all()
    assert folder.last_result is not None
    assert folder.last_result.added == 5
    other.synced.run_due()  # nothing is due any more
    assert other.synced.all() == [folder]


def test_an_uploaded_file_goes_from_the_desk_that_kept_it_on_postgres(desks, monkeypatch):
    one, other = desks
    other.upload("plans.md", f"# Plans\n\nThe word is {SECRET}.\n".encode())
    kept_file = other.settings.uploads_folder / "plans.md"
    assert kept_file.exists()
    with looking(other, monkeypatch):
        one.forget("plans.md")
    assert not kept_file.exists()


def test_a_desk_that_waits_for_answers_is_there_to_the_others(monkeypatch):
    monkeypatch.setattr(following_file, "ALIVE_EVERY_S", 0.01)
    monkeypatch.setattr(following_file, "FOLLOW_EVERY_S", 0.01)
    noted, changes, waits = list[int](), [0], threading.Event()
    library = SimpleNamespace(generation=lambda: changes[-1])
    desks = SimpleNamespace(note=noted.append)
    one = following_file.Following(library, desks, lambda: None, lambda: None)  # type: ignore[arg-type]
    with following(one, lambda: True):
        wait_until(lambda: bool(noted))
        one._follow = waits.wait  # type: ignore[assignment]
        changes.append(1)
        wait_until(one._lock.locked)
        before = len(noted)
        wait_until(lambda: len(noted) > before + 2)
        assert set(noted) == {0}
        waits.set()
        wait_until(lambda: noted[-1] == 1)


def test_the_faq_is_one_document_of_all_desks_on_postgres(desks):
    one, other = desks
    one.quality.save_faq(FaqDraft(question="Do you deliver to Malta?", answer="Yes, in five days."), "ann")
    look(other)
    assert finish(other, "Do you deliver to Malta?").answer == "Yes, in five days."
    other.quality.save_faq(FaqDraft(question="Do you have a shop in Cork?", answer="No, only in Galway."), "bob")
    look(one)
    assert [document.path for document in one.documents()] == ["FAQ.jsonl"]
    assert finish(one, "Do you have a shop in Cork?").answer == "No, only in Galway."
    one.quality.delete_faq(2)
    look(other)
    assert "Galway" not in other.settings.faq_file.read_text()
    assert "Galway" not in finish(other, "Do you have a shop in Cork?").answer


def test_what_was_computed_for_a_conversation_goes_with_it_on_postgres(desks, pages):
    one, other = desks
    one.ingest([pages])
    look(other)
    conversation = finish(other, QUESTION, owner="v-ann").conversation_id
    finish(other, QUESTION, owner="v-bob")
    assert other.turns(conversation, "v-ann")
    dropped: list[str] = []
    other.housekeeping._drop_prefixes = lambda owner: dropped.append(owner) is None
    one.erase("v-ann")
    other.housekeeping.tidy(datetime.now(UTC))
    other.housekeeping.tidy(datetime.now(UTC))
    assert dropped == ["v-ann"]


def test_a_question_that_another_desk_answers_is_not_lost_on_postgres(desks, pages):
    one, other = desks
    one.ingest([pages])
    look(other)
    stream = other.ask(QUESTION)
    conversation = stream.conversation_id
    assert [turn.unanswered for turn in one.turns(conversation)] == [None]
    one.history._longest = timedelta(0)
    assert [turn.unanswered for turn in one.turns(conversation)] == ["lost"]
    for _ in stream:
        pass
    assert [turn.unanswered for turn in one.turns(conversation)] == [None, None]


def test_a_desk_with_another_embedder_says_so_on_postgres(desks, pages):
    one, other = desks
    look(other)
    one.library.set_fact("embedder", "another")
    with one.database.write() as session:
        count_change(session)
    with one_line("embedder-differs", "uses the embedder another"):
        look(other)


def test_desks_go_on_when_the_server_was_restarted_on_postgres(desks, pages, postgres):
    one, other = desks
    one.ingest([pages])
    look(other)
    answer = finish(other, QUESTION)
    postgres.stop()
    with pytest.raises(DeskError) as error:
        one.documents()
    assert refused(error) in ("database-unreachable", "database-lost")
    assert "database" in one.missing()
    postgres.start()
    assert "database" not in one.missing()
    assert finish(other, QUESTION, conversation_id=answer.conversation_id).answer
    one.forget("secret.md")
    look(other)
    assert SECRET not in repr(finish(other, QUESTION))
