"""Documents that change while questions are asked, and runs that are interrupted or killed."""

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from desks import finish, small_desk, write_pages
from hashed_search import HashEmbedder, HashRanker
from sqlalchemy import func, select
from tiny import build
from tiny_desk import small_settings

from app.desk.service import Service
from app.domain.answers import Answer
from app.storage import tables
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


@pytest.mark.parametrize("neighbours", [0, 2])
def test_every_answer_quotes_one_version_of_a_document_and_always_some(tmp_path: Path, neighbours: int) -> None:
    pages = write_pages(tmp_path / "pages")
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

    changes: dict[str, object] = {"passages": 3, "answer_tokens": 2, "neighbours": neighbours}
    with small_desk(tmp_path / "desk", **changes) as desk, ThreadPoolExecutor(3) as threads:
        desk.ingest([pages])
        desk.prepare()
        running = [threads.submit(ask, desk) for _ in range(3)]
        try:
            for number in range(1, 9):
                versions.append({passage.text for passage in desk.library.passages_of(str(file))})
                file.write_text(version(number))
                assert desk.ingest([pages]).replaced == 1
            versions.append({passage.text for passage in desk.library.passages_of(str(file))})
        finally:
            done.set()
        answers = [answer for future in running for answer in future.result()]
    assert len(answers) >= 12
    assert len({frozenset(quotes(answer, file.name)) for answer in answers}) > 2, "they have seen several versions"
    for answer in answers:
        assert answer.citations
        said = quotes(answer, file.name)
        assert any(said <= texts for texts in versions), said


def test_an_answer_that_began_before_a_change_quotes_the_former_version(tmp_path: Path) -> None:
    pages = write_pages(tmp_path / "pages")
    with small_desk(tmp_path / "desk", pages=pages, passages=1) as desk:
        stream = desk.ask("Can gift cards be returned?")
        (pages / "gift-cards.md").write_text("# Gift cards\n\nGift cards can be returned now.\n")
        desk.ingest([pages])
        for _ in stream:
            pass
        assert ["cannot be returned" in quote for quote in quotes(stream.answer, "gift-cards.md")] == [True]
        follow_up = finish(desk, "Can they?", conversation_id=stream.answer.conversation_id)
        assert ["can be returned now" in quote for quote in quotes(follow_up, "gift-cards.md")] == [True]


def test_a_question_between_a_change_and_the_next_snapshot_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
                time.sleep(0.5)
            return real(*arguments)

        monkeypatch.setattr(desk.library, "vectors", slow)
        file.write_text("# Gift cards\n\nGift cards can be returned now.\n")
        desk.ingest([file])
        answer = asked[0].result()
    assert quotes(answer, "gift-cards.md") == {"Gift cards can be returned now."}


def test_asked_within_a_collection_there_is_a_citation_also_while_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        stream = desk.ask(QUESTION, collections=["shop"])
        for _ in stream:
            pass
        assert stream.answer.citations


# --- interrupted runs --------------------------------------------------------------------------------------


class CountingEmbedder(HashEmbedder):
    """Remembers every text it embeds for the index."""

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
    for id_, vector in zip(*desk.library.vectors(desk.search.embedder.dimension), strict=True):
        passage = passages[int(id_)]
        found.setdefault((passage.document, passage.ordinal), []).append(np.round(vector, 5).tolist())
    return found


def test_what_was_embedded_before_an_interruption_is_not_embedded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.knowledge.ingest.EMBEDDED_AT_ONCE", 4)
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


@pytest.mark.parametrize("dimension", [128, 384])
def test_vectors_that_another_embedder_left_are_not_used(tmp_path: Path, dimension: int) -> None:
    pages = many(tmp_path / "pages", 2)
    with counting_desk(tmp_path / "desk", CountingEmbedder()) as desk, pytest.raises(KeyboardInterrupt):
        desk.ingest([pages], interrupt_after_first_chunk)
    with counting_desk(tmp_path / "whole", CountingEmbedder(dimension)) as desk:
        desk.ingest([pages])
        expected = vectors_of(desk)
    with counting_desk(tmp_path / "desk", CountingEmbedder(dimension)) as desk:
        desk.ingest([pages])
        assert vectors_of(desk) == expected


# --- kill -9 -----------------------------------------------------------------------------------------------

KILLED = '''
import itertools, json, os, signal, sys
sys.path[:0] = sys.argv[1:3]
import torch
torch.set_num_threads(1)
from pathlib import Path
import app.knowledge.ingest, app.knowledge.warm
from desks import small_desk
app.knowledge.ingest.BATCH, app.knowledge.ingest.EMBEDDED_AT_ONCE = 4, 2
app.knowledge.warm.AT_ONCE = 2

def ingest(folder, last):
    """In a process of its own, forked because importing takes longer than all the rest. It is killed at the `last`
    call or return of a function; gives whether it was, and how many there were else.
    """
    found, told = os.pipe()
    child = os.fork()
    if not child:
        try:
            with small_desk(Path(folder)) as desk:
                moments = itertools.count()
                sys.setprofile(lambda *_: os.kill(os.getpid(), signal.SIGKILL) if next(moments) == last else None)
                desk.ingest([Path(sys.argv[3])])
                sys.setprofile(None)
                os.write(told, str(next(moments)).encode())
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status), 0 if os.WIFSIGNALED(status) else int(os.read(found, 100))

plain, *others = json.loads(sys.argv[4])
_, moments = ingest(plain, -1)
for folder, shares in others:
    for share in shares:
        killed, _ = ingest(folder, int(share * moments))
        print(int(killed), flush=True)
'''


def state(desk: Service) -> dict[str, Any]:
    """Documents, passages, vectors and what questions find, without the numbers that another order gives."""
    documents = {d.path: (d.title, d.content_hash, d.num_passages, d.collection) for d in desk.documents()}
    passages = desk.library.passages(desk.library.all_ids())
    by_id = {p.id: (p.document, p.ordinal) for p in passages}
    texts = {
        by_id[p.id]: (p.title, p.heading_path, p.text, p.content_hash, p.num_tokens, p.module_key) for p in passages
    }
    retriever = desk.search.retriever
    found = [
        {by_id[hit.id]: round(hit.score, 4) for hit in retriever.search([retriever.query(question)], 4)}
        for question in ("What is subject3?", "explained in edition 2", "Item5 and item4")
    ]
    words = sorted(retriever.keywords.words)
    return {"documents": documents, "texts": texts, "vectors": vectors_of(desk), "found": found, "words": words}


def test_a_killed_run_is_finished_by_the_next_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """kill -9 at random moments, some several times in a row, of runs that replace half of the documents."""
    random_share = random.Random().random
    pages = many(tmp_path / "pages", 16)
    with small_desk(tmp_path / "before", pages=pages) as desk:
        before = state(desk)
    many(pages, 18, edition=2)
    killed = {"a": [0.5], "b": [0.85], "c": [0.3, 0.7, random_share()]}
    for name in ("plain", *killed):
        shutil.copytree(tmp_path / "before", tmp_path / name)
    order = [str(tmp_path / "plain"), *((str(tmp_path / name), shares) for name, shares in killed.items())]
    root = Path(__file__).parent
    command = [sys.executable, "-c", KILLED, str(root.parent), str(root), str(pages), json.dumps(order)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("1") >= len(killed), "the first run of each was killed, whatever the machine was doing"
    with small_desk(tmp_path / "plain") as desk:
        expected = state(desk)
    assert (len(expected["documents"]), len(expected["texts"])) == (18, 36)
    assert expected["texts"] != before["texts"]
    for name, shares in killed.items():
        with small_desk(tmp_path / name) as desk:
            report = desk.ingest([pages])
            assert staged(desk) == 0
            assert (report.documents, report.failed) == (18, [])
            now = state(desk)
            for part, value in expected.items():
                assert now[part] == value, (part, shares)
            stored = desk.library.passages(desk.library.all_ids())
            assert all(desk.engine.store.tier(passage.module_key or "") for passage in stored)
