"""A document is forgotten, also while questions about it are asked, answered and waited for: what is counted, what is
left (nothing), and what happens where that fails.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from desks import finish, small_desk, write_pages
from forgetting import NOTHING, SECRET, files_with, kept, modules, write_secret
from refusals import one_line
from sqlalchemy import func, select
from test_app_neighbours import check, stored

from app.answering.prepare import PreparedQuestion
from app.desk.service import Service
from app.domain.answers import Answer
from app.domain.errors import DeskError
from app.domain.progress import no_progress
from app.knowledge import ingest
from app.knowledge.forget import Footprint
from app.knowledge.prompts import PromptTurn
from app.storage import tables
from app.storage.history import PastMessage


@pytest.fixture
def pages(tmp_path):
    return write_secret(tmp_path / "pages")


def test_a_file_that_cannot_be_deleted_is_not_said_to_be_gone(tmp_path, pages, monkeypatch):
    """Was wrong once: the error of the disk ended it, and what was removed before it was not looked for."""
    unlink = Path.unlink

    def refuse(path: Path, missing_ok: bool = False) -> None:
        if path.suffix == ".safetensors":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, missing_ok)

    with small_desk(tmp_path / "desk", pages=pages, neighbours=0) as desk:
        monkeypatch.setattr(Path, "unlink", refuse)
        with pytest.raises(DeskError, match=r"is not deleted completely \(1 modules left\): try again"):
            desk.forget("secret.md")
        finish(desk, "What is the word of the day?")
        monkeypatch.undo()
        assert desk.forget("secret.md").left == NOTHING
        assert modules(desk) == kept(desk)


# --- what goes ---------------------------------------------------------------------------------------------


def test_what_there_was_is_counted_and_nothing_is_left(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, neighbours=0) as desk:
        finish(desk, "What is the word of the day?")
        finish(desk, "What is the word of the day?")
        key = stored(desk)["secret"].module_key
        before = modules(desk)
        forgotten = desk.forget("secret.md")
        assert modules(desk) == before - {key}
        assert len(desk.documents()) == desk.library.counts().documents == 4
    assert forgotten.document == str(pages / "secret.md")
    assert forgotten.removed == Footprint(passages=1, vectors=1, keywords=1, quotes=2, modules=1)
    assert forgotten.left == NOTHING


def test_a_long_document_is_counted_whole(tmp_path):
    parts = [f"## Part {i}\n\n{' '.join([f'Sentence {i} about parcels.'] * 7)}" for i in range(5)]
    (tmp_path / "long.md").write_text("# Long\n\n" + "\n\n".join(parts))
    with small_desk(tmp_path / "desk", pages=tmp_path / "long.md") as desk:
        ids, _ = desk.library.vectors(desk.search.embedder.dimension, desk.library.all_ids())
        forgotten = desk.forget("long.md")
        assert len(desk.search.snapshot.index) == 0
        assert len(desk.search.snapshot.keywords.window_ids) == 0
    assert (forgotten.removed.passages, forgotten.removed.modules) == (5, 5)
    assert forgotten.removed.vectors == 5
    assert forgotten.removed.keywords == len(ids)


@pytest.mark.parametrize(("neighbours", "answer_mode"), [(0, "free"), (2, "quote")])
def test_no_file_holds_its_words_any_more(tmp_path, pages, neighbours, answer_mode):
    """While the desk runs, and after it was closed. The question was the customer's own."""
    folder = tmp_path / "desk"
    with small_desk(folder, pages=pages, neighbours=neighbours, answer_mode=answer_mode, answer_tokens=90) as desk:
        desk.upload("upload.md", f"# More\n\nAlso {SECRET} forever.\n".encode())
        for _ in range(2):
            finish(desk, "What is the word of the day?")
        (pages / "secret.md").write_text(f"# Plans\n\nThe word of the day is {SECRET}, it was changed.\n")
        desk.ingest([pages])
        assert files_with(folder, SECRET) >= {"upload.md"}
        assert any("sqlite3" in name for name in files_with(folder, SECRET))
        desk.forget("secret.md")
        desk.forget("upload.md")
        assert files_with(folder, SECRET, "zeppelin") == set()
        words = {word for segment in desk.search.snapshot.keywords.segments for word in segment.words}
        assert not {"xylophone", "marmalade", "zeppelin"} & words
        assert "galway" in words
        check(desk)
        assert "zeppelin" not in "".join(c.quote for c in finish(desk, "What is the word of the day?").citations)
    assert files_with(folder, SECRET, "zeppelin") == set()
    with small_desk(folder, neighbours=neighbours) as desk:
        assert not desk.search.snapshot.keywords.having("zeppelin")
        check(desk)


def test_nothing_in_any_tier_was_computed_with_it(tmp_path, pages):
    """Also what a conversation holds in memory: the next turn computes its own."""
    with small_desk(tmp_path / "desk", pages=pages, neighbours=3) as desk:
        answer = finish(desk, "What is the word of the day?")
        before = modules(desk)
        desk.forget("secret.md")
        check(desk)
        names = desk.engine.call(lambda store: [r.header.name for r in store.device.entries.values()])
        assert not any("secret.md" in name for name in names)
        assert not any("secret.md" in header.name for header in desk.engine.store.disk.headers())  # type: ignore[union-attr]
        gone = before - modules(desk)
        assert len(gone) >= 1
        again = finish(desk, "And tomorrow?", conversation_id=answer.conversation_id)
        assert again.usage.session == 0
        assert not gone & {module.id for module in again.modules}


def test_an_uploaded_file_is_deleted_and_one_of_the_user_is_not(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        desk.upload("upload.md", b"# Upload\n\nUploaded text.\n")
        upload = desk.settings.uploads_folder / "upload.md"
        desk.ingest([])  # the model reads what it has not read
        desk.forget("upload.md")
        desk.forget("secret.md")
        assert not upload.exists()
        assert (pages / "secret.md").exists()
        assert list(desk.settings.uploads_folder.iterdir()) == []


def test_another_document_with_the_same_text_keeps_its_module(tmp_path, pages):
    twin = tmp_path / "twin"
    twin.mkdir()
    (twin / "secret.md").write_text((pages / "secret.md").read_text())
    with small_desk(tmp_path / "desk", passages=1, neighbours=0) as desk:
        desk.ingest([pages, twin])
        first, second = (desk.library.passages_of(str(folder / "secret.md"))[0] for folder in (pages, twin))
        assert first.module_key == second.module_key
        assert first.module_key is not None
        forgotten = desk.forget(str(pages / "secret.md"))
        assert desk.engine.store.tier(first.module_key) == "device"
        assert forgotten.left == NOTHING
        answer = finish(desk, "What is the word of the day?")
        assert answer.citations[0].document == str(twin / "secret.md")
        assert {module.source for module in answer.modules} == {"device"}
        desk.forget(str(twin / "secret.md"))
        assert desk.engine.store.tier(first.module_key) is None


# --- which one ---------------------------------------------------------------------------------------------


def test_an_ambiguous_or_unknown_name_forgets_nothing(tmp_path, pages):
    other = write_pages(tmp_path / "other")
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([pages, other])
        for name, code in (
            ("returns.md", "document-ambiguous"),
            ("eturns.md", "document-unknown"),
            ("", "document-unknown"),
            ("%", "document-unknown"),
        ):
            with one_line(code):
                desk.forget(name)
        for name, code in (("plans", "collection-unknown"), ("faq", "collection-faq")):
            with one_line(code):
                desk.forget_collection(name)
        assert len(desk.documents()) == 9
        assert desk.forget("other/returns.md").document == str(other / "returns.md")


# --- where it fails ----------------------------------------------------------------------------------------


def keep_modules(desk: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.engine, "forget", lambda keys: 0)


def keep_vectors(desk: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.search, "change", lambda write, gone: write())


def keep_quotes(desk: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.history, "forget_document", lambda path: None)


@pytest.mark.parametrize(
    ("broken", "says"),
    [(keep_modules, "3 modules left"), (keep_vectors, "1 vectors, 1 keywords left"), (keep_quotes, "1 quotes left")],
)
def test_an_incomplete_removal_is_an_error_that_says_what_is_left(tmp_path, pages, monkeypatch, broken, says):
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        finish(desk, "What is the word of the day?")
        with monkeypatch.context() as context:
            broken(desk, context)  # type: ignore[operator]
            with one_line("forget-incomplete", f"{says}.*try again"):
                desk.forget("secret.md")
        assert desk.forget("secret.md").left == NOTHING
        check(desk)


def test_a_removal_that_another_run_stops_changes_nothing_and_can_be_repeated(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        finish(desk, "What is the word of the day?")
        path = str(pages / "secret.md")

        def meanwhile(stage: str, done: int, total: int) -> None:
            with pytest.raises(DeskError, match="already being ingested"):
                desk.forget("secret.md")

        desk.ingest([pages], meanwhile, warm=False)  # while passages are encoded, nobody waits
        assert desk.library.passages_of(path)
        assert desk.history.quotes_of(path) == 1
        assert desk.forget("secret.md").removed.passages == 1
        assert files_with(tmp_path / "desk", SECRET) == set()


def test_vectors_of_an_interrupted_run_go_too(tmp_path, pages):
    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "embedding":
            raise KeyboardInterrupt

    with small_desk(tmp_path / "desk", pages=pages) as desk:
        (pages / "secret.md").write_text(f"# Plans\n\nThe word is {SECRET} again.\n")
        with pytest.raises(KeyboardInterrupt):
            desk.ingest([pages], interrupt)
        desk.forget("secret.md")
        assert staged(desk) == 0


def staged(desk: Service) -> int:
    with desk.database.read() as session:
        return session.scalar(select(func.count()).select_from(tables.StagedEmbeddingRow)) or 0


def test_passages_that_a_stopped_run_left_to_be_encoded_do_not_come_back(tmp_path, pages):
    def stop(stage: str, _done: int, _total: int) -> None:
        if stage == "encoding":
            raise KeyboardInterrupt

    for number in range(4):  # one batch; the next one, with the secret, is under way
        (pages / f"a{number:02}.md").write_text(
            f"# Page {number}\n\n" + f"Parcel {number} weighs {number * number}. " * 4
        )
    with small_desk(tmp_path / "desk", neighbours=0) as desk:
        with pytest.raises(KeyboardInterrupt):
            desk.ingest([pages], stop)
        assert desk.forget("secret.md").left == NOTHING
        assert modules(desk) <= kept(desk)


def test_nothing_of_a_forgotten_document_stays_in_memory(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, neighbours=0) as desk:
        for _ in desk.ask("What is the word of the day?", policy="balanced"):
            pass
        assert desk.engine._core.row_selector._selected
        desk.forget("secret.md")
        assert not desk.engine._core.row_selector._selected


# --- a whole collection ------------------------------------------------------------------------------------


def test_a_collection_goes_whole_and_nothing_else(tmp_path, pages):
    others = write_pages(tmp_path / "others")
    with small_desk(tmp_path / "desk", pages=others) as desk:
        desk.ingest([pages], collection="plans")
        desk.upload("upload.md", f"# Upload\n\n{SECRET}\n".encode(), collection="plans")
        upload = desk.settings.uploads_folder / "plans.d" / "upload.md"
        desk.ingest([])  # the model reads what it has not read
        assert upload.exists()
        kept_keys = {p.module_key for p in desk.library.passages(desk.library.all_ids()) if not p.collection}
        finish(desk, "What is the word of the day?")
        sizes = {one.name: (one.documents, one.passages) for one in desk.collections()}
        assert sizes == {"": (4, 4), "plans": (6, 6)}
        forgotten = desk.forget_collection("plans")
        check(desk)
        assert (forgotten.documents, forgotten.removed.passages, forgotten.left) == (6, 6, NOTHING)
        assert [one.name for one in desk.collections()] == [""]
        assert not upload.exists()
        assert (pages / "secret.md").exists()
        assert modules(desk) == kept(desk)
        now = {p.module_key for p in desk.library.passages(desk.library.all_ids())}
        assert now == kept_keys, "the others were not read again"
    assert files_with(tmp_path / "desk", SECRET) == set()


def test_what_a_killed_removal_left_goes_with_the_next(tmp_path, pages, monkeypatch):
    """Killed when the documents were out of the database, but not out of the answers and the memory."""
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        desk.ingest([write_pages(tmp_path / "others")], collection="others")
        finish(desk, "What is the word of the day?")
        with monkeypatch.context() as context:
            context.setattr(desk._in_flight, "wait", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
            context.setattr(desk.history, "forget_document", lambda path: None)
            with pytest.raises(KeyboardInterrupt):
                desk.forget_collection("")
        assert desk.history.quotes_of(str(pages / "secret.md"))
        forgotten = desk.forget_collection("others")
        assert (forgotten.documents, forgotten.left) == (4, NOTHING)
        assert desk.history.quotes_of(str(pages / "secret.md")) == 0
        assert modules(desk) == kept(desk)


def test_an_answer_under_way_brings_no_quotation_back(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        stream = desk.ask("What is the word of the day?")
        assert desk.forget("secret.md").left == NOTHING
        list(stream)
        assert desk.history.quotes_of(str(pages / "secret.md")) == 0
        assert files_with(tmp_path / "desk", SECRET) == set()


def test_no_later_prompt_holds_an_answer_that_rests_on_it(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        conversation = finish(desk, "What is the word of the day?").conversation_id
        assert len(prompt_turns(desk, conversation)) == 2
        desk.forget("secret.md")
        assert len(prompt_turns(desk, conversation)) == 1
        finish(desk, "How long do returns take?", conversation_id=conversation)
        assert [turn.question for turn in prompt_turns(desk, conversation)] == ["How long do returns take?", "Next?"]


def prompt_turns(desk: Service, conversation: str) -> list[PromptTurn]:
    return desk._answering.questions._turns(desk.history.past(conversation), (), "Next?")[0]


def test_a_question_asked_while_it_is_being_removed_brings_no_quotation_back(tmp_path, pages, monkeypatch):
    with small_desk(tmp_path / "desk", pages=pages, answer_mode="quote", answer_tokens=90) as desk:
        remove = desk._ingestion.remove
        streams = []

        def asked_before(path: str) -> object:
            streams.append(desk.ask("What is the word of the day?"))
            assert SECRET in "".join(streams[0])  # recorded before the document is gone
            streams.append(desk.ask("What is the word of the day?"))
            return remove(path)

        monkeypatch.setattr(desk._ingestion, "remove", asked_before)
        assert desk.forget("secret.md").left == NOTHING
        assert SECRET in "".join(streams[1])
        assert files_with(tmp_path / "desk", SECRET) == set()
        assert desk.history.turns(streams[0].answer.conversation_id)[-1].text == "(removed)"


# --- what is under way -------------------------------------------------------------------------------------


def replaced(desk: Service, page: Path) -> None:
    page.write_text("# Words\n\nThere are no words of the day any more.\n")
    assert desk.ingest([page]).replaced == 1


def removed(desk: Service, page: Path) -> None:
    assert desk.forget(page.name).left == NOTHING


@pytest.mark.parametrize("change", [removed, replaced])
def test_a_question_that_had_read_the_document_is_answered_first(tmp_path, pages, monkeypatch, change):
    with small_desk(tmp_path / "desk", pages=pages, neighbours=0) as desk:
        desk.prepare()
        questions = desk._answering.questions
        prepare, is_prepared, may_go_on = questions.prepare, threading.Event(), threading.Event()

        def slow(question: str, past: Sequence[PastMessage], collections: Sequence[str] = ()) -> PreparedQuestion:
            prepared = prepare(question, past, collections)
            is_prepared.set()
            assert may_go_on.wait(20)
            return prepared

        monkeypatch.setattr(questions, "prepare", slow)
        with ThreadPoolExecutor(2) as pool:
            answer = pool.submit(finish, desk, "What is the word of the day?")
            assert is_prepared.wait(20)
            before = desk.documents()
            changing = pool.submit(change, desk, pages / "secret.md")
            while desk.documents() == before:
                time.sleep(0.01)
            time.sleep(0.05)  # enough to end without waiting
            assert not changing.done()
            may_go_on.set()
            assert answer.result(20).citations[0].document == str(pages / "secret.md")
            changing.result(20)
        assert modules(desk) == kept(desk)


def test_a_question_asked_before_neighbours_are_chosen_leaves_no_module(tmp_path, pages, monkeypatch):
    """It encodes a new passage without its neighbours: a module that no passage has then."""
    with small_desk(tmp_path / "desk", pages=pages, neighbours=1) as desk, ThreadPoolExecutor(1) as pool:
        desk.prepare()
        questions, choose = desk._answering.questions, ingest.choose_neighbours
        prepare, is_prepared, may_go_on = questions.prepare, threading.Event(), threading.Event()

        def prepared(*given: object) -> PreparedQuestion:
            found = prepare(*given)
            is_prepared.set()
            assert may_go_on.wait(20)
            return found

        def chosen(*given: Any) -> frozenset[str]:
            answers.append(pool.submit(finish, desk, "What is the word of the day?"))
            assert is_prepared.wait(20)
            threading.Timer(0.3, may_go_on.set).start()
            return choose(*given)

        answers = list[Future[Answer]]()
        monkeypatch.setattr(questions, "prepare", prepared)
        monkeypatch.setattr(ingest, "choose_neighbours", chosen)
        replaced(desk, pages / "secret.md")
        assert answers[0].result(20).citations[0].document == str(pages / "secret.md")
        assert modules(desk) == kept(desk)


def test_a_question_that_waits_for_its_turn_brings_nothing_back(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, neighbours=1, answer_tokens=60, questions_at_once=2) as desk:
        streams = [desk.ask("How long do returns take?") for _ in range(2)]
        streams.append(desk.ask("What is the word of the day?"))
        assert desk.forget("secret.md").left == NOTHING
        for stream in streams:
            assert "".join(stream)
        assert modules(desk) == kept(desk)


def test_a_question_is_waited_for_from_before_it_reads_its_conversation(tmp_path, pages, monkeypatch):
    """An answer in it may rest on the document. Was wrong once: it was waited for only while it searched."""
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        conversation = finish(desk, "What is the word of the day?").conversation_id
        read, is_waited_for = desk.history.past, list[bool]()

        def past(conversation_id: str, owner: str, without: str = "") -> list[PastMessage]:
            is_waited_for.append(bool(desk._in_flight._open))
            return read(conversation_id, owner)

        monkeypatch.setattr(desk.history, "past", past)
        finish(desk, "And tomorrow?", conversation_id=conversation)
        assert is_waited_for == [True]
        assert not desk._in_flight._open


def test_passages_read_ahead_meanwhile_keep_their_modules(tmp_path, pages, monkeypatch):
    """Was wrong once: which modules are in use was looked up before the wait, not behind it."""
    with small_desk(tmp_path / "desk", pages=pages / "secret.md", neighbours=0) as desk:
        desk.ingest([pages / "returns.md"], warm=False)
        settle = desk.engine.settle

        def waits() -> None:
            unread = desk.library.all_ids(only_unencoded=True)
            assert desk._warming.encode(unread, no_progress).encoded == 1
            settle()

        monkeypatch.setattr(desk.engine, "settle", waits)
        assert desk.forget("secret.md").left == NOTHING
        assert stored(desk)["returns"].module_key in modules(desk)


@pytest.mark.parametrize("reuse", ["on", "prefix"])
def test_what_was_computed_with_it_goes_although_its_module_is_gone(tmp_path, pages, reuse):
    """Evicted, or never encoded. Was wrong once: only modules that were in memory or on disk were forgotten."""
    with small_desk(tmp_path / "desk", passages=1, neighbours=0) as desk:
        desk.ingest([pages], warm=reuse == "on")
        finish(desk, "What is the word of the day?", reuse=reuse)
        finish(desk, "Can gift cards be returned?", reuse=reuse)
        key = desk.engine.store.key(desk.engine.segment(desk.prompts.module(stored(desk)["secret"])))
        assert key in computed_with(desk)
        desk.engine.call(lambda store: store.remove(key))
        assert desk.forget("secret.md").left == NOTHING
        assert key not in computed_with(desk)
        if reuse == "on":
            assert stored(desk)["gift-cards"].module_key in computed_with(desk)


def computed_with(desk: Service) -> frozenset[str]:
    """The modules that stand in what conversations hold in memory."""
    return desk.engine.call(lambda store: store.device.prefixes.modules())
