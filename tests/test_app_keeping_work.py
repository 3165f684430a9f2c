"""Runs that are killed again and again: each keeps something, and the end is as without kills."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path

import pytest
from desks import small_desk
from test_app_ingestion_live import CountingEmbedder, counting_desk, many, state

from app.desk.service import Service
from app.knowledge.ingest import BATCH_S, choose_neighbours
from app.storage.library import Library


def stored_at_each_batch(desk: Service, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    real, sizes = desk.library.replace, list[int]()

    def replace(documents: list[object]) -> object:
        sizes.append(len(documents))
        return real(documents)  # type: ignore[arg-type]

    monkeypatch.setattr(desk.library, "replace", replace)
    return sizes


@pytest.mark.parametrize(("step", "expected"), [(BATCH_S, [1] * 6), (BATCH_S / 2, [2] * 3), (0.0, [6])])
def test_a_batch_ends_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: float, expected: list[int]
) -> None:
    """step: seconds by which the clock goes on whenever it is read: once as a batch begins, then after each file."""
    with small_desk(tmp_path / "desk") as desk:
        sizes = stored_at_each_batch(desk, monkeypatch)
        seconds = count()
        monkeypatch.setattr(desk._ingestion, "_clock", lambda: next(seconds) * step)
        desk.ingest([many(tmp_path / "pages", 6)], warm=False)
    assert sizes == expected


def test_unchanged_files_are_read_when_the_work_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, seen = many(tmp_path / "pages", 3), list[str]()
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        (pages / "new.md").write_text("# New\n\nThis page is new.\n")
        report = desk.ingest([pages], lambda stage, *_: seen.append(stage))
    assert (report.documents, report.unchanged, report.changes.new) == (4, 3, 1)
    last = len(seen) - 1 - seen[::-1].index("encoding")
    assert seen[last + 1 :] == ["reading"] * 4, "three files, and the end"


def interrupt_at(calls: int) -> Callable[..., None]:
    made = count(1)

    def interrupt(*_: object) -> None:
        if next(made) == calls:
            raise KeyboardInterrupt

    return interrupt


def test_neighbours_that_were_chosen_before_an_interruption_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.knowledge.ingest.CHOSEN_AT_ONCE", 2)
    with small_desk(tmp_path / "desk", neighbours=0) as desk:
        desk.ingest([many(tmp_path / "pages", 5)], warm=False)
        real, asked = desk.search.nearest, list[int]()
        stop = interrupt_at(3)

        def nearest(ids: list[int], *arguments: object, **named: object) -> object:
            stop()
            asked.extend(ids)
            return real(ids, *arguments, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(desk.search, "nearest", nearest)
        with pytest.raises(KeyboardInterrupt):
            choose_neighbours(desk.library, desk.search, 1)
        choose_neighbours(desk.library, desk.search, 1)
        assert sorted(asked) == desk.library.all_ids(), "each once, and only once"
        assert not desk.library.all_ids(only_alone=True)


def test_embedding_again_for_another_embedder_goes_on_where_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.knowledge.search.EMBEDDED_AT_ONCE", 2)
    with counting_desk(tmp_path / "desk", CountingEmbedder(128)) as desk:
        desk.ingest([many(tmp_path / "pages", 5)], warm=False)
    embedder, stop = CountingEmbedder(256), interrupt_at(3)
    real = embedder.embed_documents
    monkeypatch.setattr(embedder, "embed_documents", lambda texts: (stop(), real(texts))[1])
    with counting_desk(tmp_path / "desk", embedder) as desk, pytest.raises(KeyboardInterrupt):
        len(desk.search.retriever.index)
    with counting_desk(tmp_path / "desk", embedder) as desk:
        assert len(desk.search.retriever.index) == len(embedder.texts) == len(set(embedder.texts))


def test_an_embedder_that_is_given_up_while_its_vectors_are_stored_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with counting_desk(tmp_path / "desk", CountingEmbedder(128)) as desk:
        desk.ingest([many(tmp_path / "pages", 5)], warm=False)
        vectors = desk.library.vectors(128)[1]
    real, stop = Library.set_embeddings, interrupt_at(3)
    with monkeypatch.context() as killed, counting_desk(tmp_path / "desk", CountingEmbedder(256)) as desk:
        killed.setattr(Library, "set_embeddings", lambda *given: (stop(), real(*given))[1])
        with pytest.raises(KeyboardInterrupt):
            len(desk.search.retriever.index)
    with counting_desk(tmp_path / "desk", CountingEmbedder(128)) as desk:
        assert len(desk.search.retriever.index) == len(vectors)
        assert (desk.library.vectors(128)[1] == vectors).all()


KILLED = '''
import json, os, signal, sys
sys.path[:0] = sys.argv[1:3]
import torch
torch.set_num_threads(1)
from pathlib import Path
import app.knowledge.ingest, app.knowledge.ingest, app.knowledge.warm
from app.knowledge.ingest import CHOOSING
from app.storage.library import Library
from desks import small_desk
app.knowledge.ingest.BATCH, app.knowledge.ingest.EMBEDDED_AT_ONCE = 6, 2
app.knowledge.ingest.CHOSEN_AT_ONCE, app.knowledge.warm.AT_ONCE = 4, 2

def run(folder):
    """In a process of its own that dies behind the next piece of work that is kept; gives whether it did."""
    child = os.fork()
    if not child:
        try:
            with small_desk(Path(folder), neighbours=1) as desk:
                for name in ("replace", "stage", "keep_statement_vectors", "set_fact", "set_module_keys"):
                    def kept(self, *given, real=getattr(Library, name), name=name):
                        result = real(self, *given)
                        work = given[-1]
                        pieces = work.values() if isinstance(work, dict) else work
                        if given[0] == CHOOSING if name == "set_fact" else any(map(len, pieces)):
                            os.kill(os.getpid(), signal.SIGKILL)
                        return result
                    setattr(Library, name, kept)
                desk.ingest([Path(sys.argv[3])])
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])

def kept(folder):
    with small_desk(Path(folder), neighbours=1) as desk:
        counts = {
            table: next(iter(desk.database.values(text(f"SELECT count(*) FROM {table}"))))
            for table in ("documents", "staged_embeddings", "passage_statements")
        }
        chosen = desk.library.fact(CHOOSING)
        return [*counts.values(), chosen, len(desk.library.all_ids()) - len(desk.library.all_ids(only_unencoded=True))]

from sqlalchemy import text
history = [kept(sys.argv[4])]
while len(history) < 100 and run(sys.argv[4]):
    history.append(kept(sys.argv[4]))
print(json.dumps(history))
'''


def test_every_run_that_is_killed_behind_its_first_work_keeps_it(tmp_path: Path) -> None:
    pages, root = many(tmp_path / "pages", 4), Path(__file__).parent
    command = [sys.executable, "-c", KILLED, str(root.parent), str(root), str(pages), str(tmp_path / "killed")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    history = json.loads(ran.stdout)
    assert len(history) > 4 + 4, "killed while vectors were staged, and while statements were read"
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
