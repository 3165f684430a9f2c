"""The vector index as a snapshot, in memory and on disk."""

import random

import faiss
import numpy as np
import pytest

from retrieval.errors import IndexDamaged, RetrievalError
from retrieval.search.embedding import Vectors
from retrieval.search.vector_index import WINDOWS_PER_PASSAGE as WINDOWS
from retrieval.search.vector_index import VectorIndex, passage_id, window_ids, window_texts


def vectors(number: int, dimension: int = 8, seed: int = 0) -> Vectors:
    found = np.random.default_rng(seed).standard_normal((number, dimension)).astype(np.float32)
    unit: Vectors = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


HALF = 5e-4  # what half precision changes in a cosine, at most


def index_of(number: int) -> VectorIndex:
    return VectorIndex("hash", 8).updated((), range(number), vectors(number))


def found(index: VectorIndex, vector: Vectors, k: int = 3) -> list[int]:
    return [passage_id(hit.id) for hit in index.search(vector, k)]


def test_search_finds_the_nearest_of_all():
    index, stored = index_of(50), vectors(50)
    for query in vectors(10, seed=1):
        scores = stored @ query
        hits = index.search(query, 5)
        assert [hit.id for hit in hits] == (np.argsort(-scores)[:5] * WINDOWS).tolist()
        assert [hit.score for hit in hits] == pytest.approx(sorted(scores, reverse=True)[:5], abs=HALF)


def test_small_indexes_and_small_k():
    query = vectors(1)[0]
    assert VectorIndex("hash", 8).search(query, 5) == []
    assert sorted(found(index_of(2), query, 5)) == [0, 1]
    assert index_of(2).search(query, 0) == index_of(2).search(query, -1) == []


def test_an_update_leaves_the_old_snapshot_alone():
    old = index_of(5)
    new = old.updated([0, 1, 99], [7], vectors(1, seed=3))
    assert (old.passage_ids, new.passage_ids) == ({0, 1, 2, 3, 4}, {2, 3, 4, 7})
    assert found(old, vectors(5)[0], 1) == [0]
    assert 0 not in found(new, vectors(5)[0], 9)
    assert old.updated(old.passage_ids, (), None).search(vectors(1)[0], 3) == []


def test_hits_are_windows_numbered_in_the_order_they_were_given():
    stored = vectors(4)
    index = VectorIndex("hash", 8).updated((), [7, 8, 7, 7], stored)
    assert window_ids([7, 8, 7, 7]).tolist() == [7 * WINDOWS, 8 * WINDOWS, 7 * WINDOWS + 1, 7 * WINDOWS + 2]
    assert [index.search(vector, 1)[0].id for vector in stored] == window_ids([7, 8, 7, 7]).tolist()
    assert index.updated([7]).passage_ids == {8}
    replaced = index.updated((), [7], stored[:1])
    assert [hit.id for hit in replaced.search(stored[2], 9)].count(7 * WINDOWS) == 1
    assert len(replaced) == 2


def found_within(index: VectorIndex, vector: Vectors, k: int, within: list[int]) -> list[int]:
    return [passage_id(hit.id) for hit in index.search(vector, k, within=index.selection(within))]


def test_the_cosine_of_each_window_is_known():
    stored, query = vectors(6), vectors(1, seed=5)[0]
    index = VectorIndex("hash", 8).updated((), [9, 2, 2, 5, 7, 7], stored).updated([5])
    wanted = np.array([7 * WINDOWS + 1, 5 * WINDOWS, 2 * WINDOWS, 9 * WINDOWS, 99], np.int64)
    expected = [stored[5] @ query, 0, stored[1] @ query, stored[0] @ query, 0]
    assert index.cosines(query, wanted) == pytest.approx(expected, abs=HALF)
    assert VectorIndex("hash", 8).cosines(query, wanted).tolist() == [0] * 5
    assert index.cosines(query, wanted[:0]).tolist() == []


@pytest.mark.parametrize("largest", [4, 64])
def test_an_index_changed_step_by_step_is_as_one_made_at_once(monkeypatch, largest):
    monkeypatch.setattr("retrieval.search.vector_index.LARGEST", largest)
    chance, there = random.Random(largest), dict[int, Vectors]()
    index, query = VectorIndex("hash", 8), vectors(1, seed=99)[0]
    for step in range(60):
        removed = chance.sample(sorted(there), min(len(there), chance.randrange(3)))
        some_ids = chance.sample(range(200), chance.randrange(4))
        added = {id_: vectors(chance.randint(1, 3), seed=1000 * step + id_) for id_ in some_ids}
        rows = [(id_, row) for id_, some in added.items() for row in some]
        new = np.array([row for _, row in rows], np.float32).reshape(-1, 8)
        index = index.updated(removed, [id_ for id_, _ in rows], new)
        there = {id_: some for id_, some in there.items() if id_ not in removed} | added
        whole = [(id_, row) for id_, some in there.items() for row in some]
        rows_now = np.array([row for _, row in whole], np.float32).reshape(-1, 8)
        scratch = VectorIndex("hash", 8).updated((), [id_ for id_, _ in whole], rows_now)
        assert (len(index), index.passage_ids) == (len(scratch), scratch.passage_ids)
        assert index.search(query, 7) == scratch.search(query, 7)
        some = index.selection(list(there)[::2])
        assert index.search(query, 7, within=some) == scratch.search(query, 7, within=some)
        wanted = window_ids([id_ for id_, _ in whole] + [999])
        assert np.array_equal(index.cosines(query, wanted), scratch.cosines(query, wanted))
        assert max(map(len, index.segments), default=0) <= largest


def test_which_of_equals_are_found_does_not_depend_on_the_order_of_changes(monkeypatch):
    monkeypatch.setattr("retrieval.search.vector_index.LARGEST", 8)
    alike, better = np.repeat(vectors(1), 20, axis=0), vectors(1, seed=3)
    query = vectors(1)[0] + 2 * better[0]
    for seed in range(5):
        order, index = random.Random(seed).sample(range(20), 20), VectorIndex("hash", 8)
        for at in range(0, 20, 5):
            index = index.updated((), order[at : at + 5], alike[:5])
        index = index.updated((), [50], better)
        assert found(index, query, 4) == [50, 0, 1, 2]
        assert found_within(index, query, 4, [50, *range(3, 20)]) == [50, 3, 4, 5]


def test_windows_are_the_whole_and_its_parts_below_the_headings():
    assert window_texts(["Help", "Returns"], "Short.") == ["Help > Returns\nShort."]
    text = "\n\n".join(f"Paragraph {number} has some words to fill it, up to its end." for number in range(12))
    whole, *windows = window_texts(["Help"], text)
    assert whole == f"Help\n{text}"
    assert len(windows) >= 2
    assert "\n\n".join(window.removeprefix("Help\n") for window in windows) == text


def test_vectors_that_do_not_fit_are_refused():
    index = index_of(3)
    with pytest.raises(RetrievalError, match=r"shape \[1, 9\] do not fit an index of hash, which needs \[1, 8\]"):
        index.search(vectors(1, 9)[0], 1)
    with pytest.raises(RetrievalError, match=r"shape \[2, 8\]"):
        index.updated((), [1], vectors(2))
    with pytest.raises(RetrievalError, match="undefined"):
        index.updated((), [1], np.full((1, 8), np.nan, np.float32))


def test_searching_does_not_change_the_threads_of_others():
    """Torch shares this number: searching once made every later embedding in the same thread slower."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    index_of(3).search(vectors(1)[0], 1)
    assert faiss.omp_get_max_threads() == 2
    faiss.omp_set_num_threads(before)


def test_saved_and_loaded(tmp_path):
    path = tmp_path / "vectors"
    index = index_of(5).updated([2], [9, 9], vectors(2, seed=4))
    index.save(path)
    index.save(path)
    loaded = VectorIndex.load(path, "hash", 8)
    assert [file.name for file in tmp_path.iterdir()] == ["vectors"]
    assert (loaded.passage_ids, len(loaded)) == ({0, 1, 3, 4, 9}, 6)
    query = vectors(1, seed=5)[0]
    assert loaded.search(query, 5) == index.search(query, 5)
    assert loaded.updated([9]).passage_ids == {0, 1, 3, 4}
    VectorIndex("hash", 8).save(path)
    assert len(VectorIndex.load(path, "hash", 8)) == 0


def test_a_damaged_file_is_refused_whatever_the_damage(tmp_path):
    path = tmp_path / "vectors"
    with pytest.raises(IndexDamaged, match="no index file; rebuild"):
        VectorIndex.load(path, "hash", 8)
    with pytest.raises(IndexDamaged, match="directory"):
        VectorIndex.load(tmp_path, "hash", 8)
    index_of(5).save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(IndexDamaged):
            VectorIndex.load(path, "hash", 8)
    for place in range(0, len(whole), 5):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(IndexDamaged):
            VectorIndex.load(path, "hash", 8)


def test_an_index_of_another_embedder_is_refused(tmp_path):
    path = tmp_path / "vectors"
    index_of(5).save(path)
    with pytest.raises(IndexDamaged, match="made by hash with vectors of 8 numbers, not by other with 8"):
        VectorIndex.load(path, "other", 8)
    with pytest.raises(IndexDamaged, match="not by hash with 9"):
        VectorIndex.load(path, "hash", 9)


def test_a_failed_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "vectors"
    index_of(5).save(path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        index_of(6).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["vectors"]
    assert len(VectorIndex.load(path, "hash", 8)) == 5
