"""Documents that change while questions are asked, and runs that are interrupted or killed, also again and again: each
keeps something, and the end is as without kills.
"""

import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desks import finish, small_desk, write_pages
from forked import Forked
from hashed_search import HashEmbedder, HashRanker
from sqlalchemy import func, select, text
from tiny import build
from tiny_desk import small_settings

from app.desk.service import Service
from app.domain.answers import Answer
from app.knowledge import ingest, search, warm
from app.storage import tables
from app.storage.library import Library
from retrieval.loaders import load as loaders
from retrieval.search.embedding import Vectors

QUESTION = "How long do gift cards last and who may have them?"


def staged(desk: Service) -> int:
    with desk.database.read() as session:
        return session.scalar(select(func.count()).select_from(tables.StagedEmbeddingRow)) or 0


# --- questions meanwhile -----------------------------------------------------------------------------------


def version(number: int) -> str:
    """A page about gift cards whose passages, but for one, are all of this version."""
    return (
        "# Gift cards\n\n"
        f"## How long\n\n{' '.join([f'Gift cards last {number + 10} years, says edition {number}.'] * 3)}\n\n"
        f"## Who\n\n{' '.join([f'Gift cards are for those who may have {number + 50} of them.'] * 3)}\n\n"
        f"## Always\n\n{' '.join(['Gift cards are made of paper and long forgotten.'] * 3)}\n"
    )


def quotes(answer: Answer, name: str) -> set[str]:
    return {citation.quote for citation in answer.citations if Path(citation.document).name == name}


def test_every_answer_quotes_one_version_of_a_document_and_always_some(tmp_path, pages):
    file = pages / "gift-cards.md"
    file.write_text(version(0))
    done = threading.Event()
    versions: list[set[str]] = []

    def ask(desk: Service) -> list[Answer]:
        answers = []
        while not done.is_set():
            first = finish(desk, QUESTION)
            answers += [first, finish(desk, "And who may have them?", conversation_id=first.conversation_id)]
        return answers

    changes: dict[str, object] = {"passages": 3, "answer_tokens": 2, "neighbours": 2}
    with small_desk(tmp_path / "desk", **changes) as desk, ThreadPoolExecutor(3) as threads:
        desk.ingest([pages])
        desk.prepare()
        running = [threads.submit(ask, desk) for _ in range(3)]
        try:
            for number in range(1, 3):
                versions.append({passage.text for passage in desk.library.passages_of(str(file))})
                file.write_text(version(number))
                assert desk.ingest([pages]).replaced == 1
            versions.append({passage.text for passage in desk.library.passages_of(str(file))})
        finally:
            done.set()
        answers = [answer for future in running for answer in future.result()]
    assert len({frozenset(quotes(answer, file.name)) for answer in answers}) > 2, "they have seen several versions"
    for answer in answers:
        assert answer.citations
        said = quotes(answer, file.name)
        assert any(said <= texts for texts in versions), said


def test_an_answer_that_began_before_a_change_quotes_the_former_version(tmp_path, pages):
    with small_desk(tmp_path / "desk", pages=pages, passages=1) as desk:
        stream = desk.ask("Can gift cards be returned?")
        (pages / "gift-cards.md").write_text("# Gift cards\n\nGift cards can be returned now.\n")
        desk.ingest([pages])
        list(stream)
        assert ["cannot be returned" in quote for quote in quotes(stream.answer, "gift-cards.md")] == [True]
        follow_up = finish(desk, "Can they?", conversation_id=stream.answer.conversation_id)
        assert ["can be returned now" in quote for quote in quotes(follow_up, "gift-cards.md")] == [True]


def test_a_question_between_a_change_and_the_next_snapshot_waits_for_it(tmp_path, monkeypatch):
    """The passage that the former snapshot finds is gone from the database already."""
    file = write_pages(tmp_path / "pages") / "gift-cards.md"
    asked: list[Future[Answer]] = []
    with small_desk(tmp_path / "desk", passages=1) as desk, ThreadPoolExecutor(1) as threads:
        desk.ingest([file.parent])
        desk.prepare()
        real = desk.library.vectors

        def slow(*arguments: Any) -> Any:
            if not asked:
                asked.append(threads.submit(finish, desk, "Can gift cards be returned?"))
                time.sleep(0.1)
            return real(*arguments)

        monkeypatch.setattr(desk.library, "vectors", slow)
        file.write_text("# Gift cards\n\nGift cards can be returned now.\n")
        desk.ingest([file])
        answer = asked[0].result()
    assert quotes(answer, "gift-cards.md") == {"Gift cards can be returned now."}


def test_asked_within_a_collection_there_is_a_citation_also_while_it_changes(tmp_path, monkeypatch):
    file = tmp_path / "gift-cards.md"
    file.write_text(version(0))
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([file], collection="shop")
        real = desk.library.ids_in

        def ids_in(collections: Collection[str]) -> frozenset[int]:
            ids = real(collections)
            monkeypatch.undo()
            file.write_text("# Gift cards\n\nGift cards last seven years.\n")
            desk.ingest([file], collection="shop", warm=False)
            return ids

        monkeypatch.setattr(desk.library, "ids_in", ids_in)
        assert finish(desk, QUESTION, collections=["shop"]).citations


# --- interrupted runs --------------------------------------------------------------------------------------


class CountingEmbedder(HashEmbedder):
    def __init__(self, dimension: int = 256) -> None:
        super().__init__(dimension)
        self.texts: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.texts += texts
        return super().embed_documents(texts)


def counting_desk(folder: Path, embedder: CountingEmbedder) -> Service:
    folder.mkdir(exist_ok=True)
    parts = {"embedder": lambda _: embedder, "ranker": lambda _: HashRanker()}
    return Service(small_settings(folder), model=lambda _: build(), **parts)


def many(folder: Path, count: int, *, edition: int = 1) -> Path:
    """Pages of two passages, of which another edition changes one on every other page."""
    folder.mkdir(exist_ok=True)
    for i in range(count):
        own = f"Subject{i} is explained in edition {edition if i % 2 else 1}."
        parts = "\n\n".join(
            f"## {head}\n\n{text}" for head, text in (("One", f"{own} " * 5), ("Two", f"Item{i}. " * 15))
        )
        (folder / f"page{i}.md").write_text(f"# Page {i}\n\n{parts}\n")
    return folder


def interrupt_after_first_chunk(stage: str, done: int, total: int) -> None:
    if stage == "embedding":
        raise KeyboardInterrupt


def vectors_of(desk: Service) -> dict[tuple[str, int], list[list[float]]]:
    """The vectors in the database, by document and ordinal."""
    passages = {passage.id: passage for passage in desk.library.passages(desk.library.all_ids())}
    found: dict[tuple[str, int], list[list[float]]] = {}
    for id_, vector in zip(*desk.library.vectors(desk.search.embedder.dimension, desk.library.all_ids()), strict=True):
        passage = passages[int(id_)]
        found.setdefault((passage.document, passage.ordinal), []).append(np.round(vector, 5).tolist())
    return found


def test_what_was_embedded_before_an_interruption_is_not_embedded_again(tmp_path, monkeypatch):
    monkeypatch.setattr("app.knowledge.search.EMBEDDED_AT_ONCE", 4)
    pages = many(tmp_path / "pages", 5)
    first, second, whole = CountingEmbedder(), CountingEmbedder(), CountingEmbedder()
    with counting_desk(tmp_path / "desk", first) as desk:
        with pytest.raises(KeyboardInterrupt):
            desk.ingest([pages], interrupt_after_first_chunk)
        assert (staged(desk), desk.documents()) == (4, [])
    with counting_desk(tmp_path / "desk", second) as desk:
        report = desk.ingest([pages])
        assert staged(desk) == 0
        found = vectors_of(desk)
    with counting_desk(tmp_path / "whole", whole) as desk:
        desk.ingest([pages])
        assert vectors_of(desk) == found
    assert report.changes.new == 10
    assert first.texts
    assert second.texts
    assert first.texts + second.texts == whole.texts, "each once, and only once"


def test_vectors_that_another_embedder_left_are_not_used(tmp_path):
    pages = many(tmp_path / "pages", 2)
    with counting_desk(tmp_path / "desk", CountingEmbedder()) as desk, pytest.raises(KeyboardInterrupt):
        desk.ingest([pages], interrupt_after_first_chunk)
    with counting_desk(tmp_path / "whole", CountingEmbedder(128)) as desk:
        desk.ingest([pages])
        expected = vectors_of(desk)
    with counting_desk(tmp_path / "desk", CountingEmbedder(128)) as desk:
        desk.ingest([pages])
        assert vectors_of(desk) == expected


# --- kill -9 -----------------------------------------------------------------------------------------------


def ingest_until(moment: int, folder: Path, pages: Path) -> None:
    """In a process of its own. It is killed at this call or return of a function; tells how many there were else."""
    ingest.BATCH, ingest.READ_AT_ONCE, search.EMBEDDED_AT_ONCE, warm.AT_ONCE = 4, 2, 2, 2
    with small_desk(folder) as desk:
        moments = count()
        sys.setprofile(lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(moments) == moment else None)
        desk.ingest([pages])
        sys.setprofile(None)
        print(next(moments))


def state(desk: Service) -> dict[str, Any]:
    """Documents, passages, vectors and what questions find, without the numbers that another order gives."""
    documents = {d.path: (d.title, d.content_hash, d.num_passages, d.collection) for d in desk.documents()}
    passages = desk.library.passages(desk.library.all_ids())
    by_id = {p.id: (p.document, p.ordinal) for p in passages}
    texts = {
        by_id[p.id]: (p.title, p.heading_path, p.text, p.content_hash, p.num_tokens, p.module_key) for p in passages
    }
    retriever = desk.search.snapshot.retriever()
    found = [
        {by_id[hit.id]: round(hit.score, 4) for hit in retriever.search([retriever.queries([question])[0]], 4)}
        for question in ("What is subject3?", "explained in edition 2", "Item5 and item4")
    ]
    words = sorted({word for segment in retriever.keywords.segments for word in segment.words})
    return {"documents": documents, "texts": texts, "vectors": vectors_of(desk), "found": found, "words": words}


def test_a_killed_run_is_finished_by_the_next_as_if_nothing_had_happened(tmp_path):
    """kill -9 at random moments, also twice in a row, of runs that replace half of the documents."""
    random_share = random.Random().random
    pages = many(tmp_path / "pages", 4)
    with small_desk(tmp_path / "before", pages=pages) as desk:
        before = state(desk)
    many(pages, 6, edition=2)
    killed = {"a": [0.8], "b": [0.4, random_share()]}
    for name in ("plain", *killed):
        shutil.copytree(tmp_path / "before", tmp_path / name)
    status, moments, errors = Forked(ingest_until, -1, tmp_path / "plain", pages).result()
    assert status == 0, errors
    for name, shares in killed.items():
        ended = [Forked(ingest_until, int(one * int(moments)), tmp_path / name, pages).result()[0] for one in shares]
        assert ended[0] == -signal.SIGKILL, "the first run was killed, whatever the machine was doing"
    with small_desk(tmp_path / "plain") as desk:
        expected = state(desk)
    assert (len(expected["documents"]), len(expected["texts"])) == (6, 12)
    assert expected["texts"] != before["texts"]
    for name, shares in killed.items():
        with small_desk(tmp_path / name) as desk:
            report = desk.ingest([pages])
            assert staged(desk) == 0
            assert (report.documents, report.failed) == (6, [])
            now = state(desk)
            for part, value in expected.items():
                assert now[part] == value, (part, shares)
            stored = desk.library.passages(desk.library.all_ids())
            assert all(desk.engine.store.tier(passage.module_key or "") for passage in stored)


def stored_at_each_batch(desk: Service, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    real, sizes = desk.library.replace, list[int]()

    def replace(documents: list[object]) -> object:
        sizes.append(len(documents))
        return real(documents)  # type: ignore[arg-type]

    monkeypatch.setattr(desk.library, "replace", replace)
    return sizes


@pytest.mark.parametrize(
    ("step", "expected"), [(ingest.BATCH_S, [1] * 6), (ingest.BATCH_S / 2, [2] * 3), (0.0, [4, 2])]
)
def test_a_batch_ends_by_time(tmp_path, monkeypatch, step, expected):
    """step: seconds by which the clock goes on whenever it is read: once as a batch begins, then after each file. It
    also goes on while the tokenizer is loaded, which ends no batch. It is not known how long the first passages take.
    """
    with small_desk(tmp_path / "desk") as desk:
        sizes = stored_at_each_batch(desk, monkeypatch)
        seconds, loaded, ingestion = count(), list[str](), desk._ingestion
        real = ingestion._count_tokens
        monkeypatch.setattr(ingestion, "_count_tokens", lambda text: (loaded.append(text), real(text))[1])
        monkeypatch.setattr(ingestion, "_clock", lambda: next(seconds) * step + bool(loaded) * ingest.BATCH_S)
        desk.ingest([many(tmp_path / "pages", 6)], warm=False)
    assert sizes == expected


def test_the_next_file_is_read_while_a_batch_is_embedded(tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "BATCH", 1)
    embedder, is_next, waited = CountingEmbedder(), threading.Event(), list[bool]()
    real = embedder.embed_documents
    monkeypatch.setattr(embedder, "embed_documents", lambda texts: (waited.append(is_next.wait(30)), real(texts))[1])
    with counting_desk(tmp_path / "desk", embedder) as desk:
        reads_next = lambda stage, done, _: is_next.set() if (stage, done) == ("reading", 1) else None  # noqa: E731
        assert desk.ingest([many(tmp_path / "pages", 2)], reads_next, warm=False).documents == 2
    assert waited == [True, True]


def test_statements_are_read_when_all_documents_are_stored(tmp_path, monkeypatch):
    """So a run that is killed early keeps more documents."""
    done = list[str]()
    monkeypatch.setattr(ingest, "BATCH", 2)
    with small_desk(tmp_path / "desk") as desk:
        for name in ("replace", "keep_statement_vectors"):
            real = getattr(desk.library, name)
            monkeypatch.setattr(desk.library, name, lambda *a, name=name, real=real: (done.append(name), real(*a))[1])
        report = desk.ingest([many(tmp_path / "pages", 4)], warm=False)
    assert done == ["replace"] * 4 + ["keep_statement_vectors"]
    assert report.timings_s.embedding > 0


def test_unchanged_files_are_read_only_if_an_older_version_stored_them(tmp_path, monkeypatch):
    pages, read = many(tmp_path / "pages", 3), list[str]()
    load = loaders.load
    monkeypatch.setattr(loaders, "load", lambda path: (read.append(path.name), load(path))[1])
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        with desk.database.write() as session:
            session.execute(text("UPDATE documents SET remarks = NULL WHERE path LIKE '%page1.md'"))
        (pages / "new.md").write_text("# New\n\nThis page is new.\n")
        read.clear()
        for new, expected in ((1, ["new.md", "page1.md"]), (0, [])):
            report = desk.ingest([pages], warm=False)
            assert (report.documents, report.unchanged, report.changes.new) == (4, 4 - new, new)
            assert read == expected
            read.clear()


def test_a_run_waits_once_for_the_running_answers(tmp_path, monkeypatch):
    """Was wrong once: it waited for all of them after each changed document."""
    monkeypatch.setattr(ingest, "BATCH", 1)
    pages, waited = many(tmp_path / "pages", 4), list[bool]()
    with small_desk(tmp_path / "desk", pages=pages, neighbours=0) as desk:
        for number in range(3):
            (pages / f"page{number}.md").write_text(f"# Page\n\nSubject{number} is told in another way.\n")
        (pages / "page3.md").unlink()
        settle = desk.engine.settle
        monkeypatch.setattr(desk.engine, "settle", lambda: (waited.append(True), settle())[1])
        report = desk.ingest([pages], sync=True, warm=False)
        assert (report.replaced, report.removed, report.modules.dropped, len(waited)) == (3, 1, 8, 1)
        assert desk._warming.unused() == frozenset()


def interrupt_at(calls: int) -> Callable[..., None]:
    made = count(1)

    def interrupt(*_: object) -> None:
        if next(made) == calls:
            raise KeyboardInterrupt

    return interrupt


def test_embedding_again_for_another_embedder_goes_on_where_it_was_killed(tmp_path, monkeypatch):
    monkeypatch.setattr("app.knowledge.search.EMBEDDED_AT_ONCE", 2)
    with counting_desk(tmp_path / "desk", CountingEmbedder(128)) as desk:
        desk.ingest([many(tmp_path / "pages", 5)], warm=False)
    embedder, stop = CountingEmbedder(256), interrupt_at(3)
    real = embedder.embed_documents
    monkeypatch.setattr(embedder, "embed_documents", lambda texts: (stop(), real(texts))[1])
    with counting_desk(tmp_path / "desk", embedder) as desk, pytest.raises(KeyboardInterrupt):
        len(desk.search.snapshot.index)
    with counting_desk(tmp_path / "desk", embedder) as desk:
        assert len(desk.search.snapshot.index) == len(embedder.texts) == len(set(embedder.texts))


def test_an_embedder_that_is_given_up_while_its_vectors_are_stored_leaves_none(tmp_path, monkeypatch):
    with counting_desk(tmp_path / "desk", CountingEmbedder(128)) as desk:
        desk.ingest([many(tmp_path / "pages", 5)], warm=False)
        vectors = desk.library.vectors(128, desk.library.all_ids())[1]
    real, stop = Library.set_embeddings, interrupt_at(3)
    with monkeypatch.context() as killed, counting_desk(tmp_path / "desk", CountingEmbedder(256)) as desk:
        killed.setattr(Library, "set_embeddings", lambda *given: (stop(), real(*given))[1])
        with pytest.raises(KeyboardInterrupt):
            len(desk.search.snapshot.index)
    with counting_desk(tmp_path / "desk", CountingEmbedder(128)) as desk:
        assert len(desk.search.snapshot.index) == len(vectors)
        assert (desk.library.vectors(128, desk.library.all_ids())[1] == vectors).all()


def ingest_until_kept(folder: Path, pages: Path) -> None:
    """In a process of its own, which is killed behind the next piece of work that is kept."""
    ingest.BATCH, ingest.READ_AT_ONCE, ingest.CHOSEN_AT_ONCE = 2, 2, 2
    search.EMBEDDED_AT_ONCE, warm.AT_ONCE = 2, 2

    def deadly(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def kept(*given: Any) -> object:
            result, work = real(*given), given[-1]
            pieces = work.values() if isinstance(work, dict) else work
            if given[1] == ingest.CHOOSING if name == "set_fact" else any(map(len, pieces)):
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return kept

    with small_desk(folder, neighbours=1) as desk:
        for name in ("replace", "stage", "keep_statement_vectors", "set_fact", "set_module_keys"):
            setattr(Library, name, deadly(name, getattr(Library, name)))
        desk.ingest([pages])


def kept_in(folder: Path) -> list[Any]:
    with small_desk(folder, neighbours=1) as desk:
        tables = ("documents", "staged_embeddings", "passage_statements")
        counts = [next(iter(desk.database.values(text(f"SELECT count(*) FROM {table}")))) for table in tables]
        ids = desk.library.all_ids
        return [*counts, desk.library.fact(ingest.CHOOSING), len(ids()) - len(ids(only_unencoded=True))]


def test_every_run_that_is_killed_behind_its_first_work_keeps_it(tmp_path):
    pages = many(tmp_path / "pages", 2)
    folder = tmp_path / "killed"
    history = [kept_in(folder)]
    while len(history) < 100 and Forked(ingest_until_kept, folder, pages).wait():
        history.append(kept_in(folder))
    assert len(history) > 2 + 2, "killed while vectors were staged, and while statements were read"
    assert any(chosen not in (None, "0 0") for *_, chosen, _ in history), "and while neighbours were chosen"
    for before, after in pairwise(history):
        assert before != after, "each run keeps something"
    with small_desk(tmp_path / "plain", pages=pages, neighbours=1) as desk:
        expected = state(desk)
    with small_desk(tmp_path / "killed", neighbours=1) as desk:
        now = state(desk)
        assert {name: now[name] for name in ("documents", "vectors", "found", "words")} == {
            name: expected[name] for name in ("documents", "vectors", "found", "words")
        }
        assert not desk.library.all_ids(only_unencoded=True)
        assert not desk.library.without_statements(desk.statements.name)
        assert not desk._warming.unused()
