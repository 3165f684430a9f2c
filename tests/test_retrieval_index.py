"""The vector index as a snapshot, in memory and on disk, and the retriever in front of it."""

import json
from pathlib import Path

import faiss
import numpy as np
import pytest

from retrieval.documents import Passage, content_hash
from retrieval.embedding import HashEmbedder, Vectors
from retrieval.errors import IndexDamaged, RetrievalError
from retrieval.index import VectorIndex
from retrieval.keywords import KeywordIndex
from retrieval.passage_vectors import embed_passages
from retrieval.retriever import Retriever


def vectors(number: int, dimension: int = 8, seed: int = 0) -> Vectors:
    found = np.random.default_rng(seed).standard_normal((number, dimension)).astype(np.float32)
    unit: Vectors = found / np.linalg.norm(found, axis=1, keepdims=True)
    return unit


def index_of(number: int) -> VectorIndex:
    return VectorIndex("hash", 8).updated((), range(number), vectors(number))


def found(index: VectorIndex, vector: Vectors, k: int = 3) -> list[int]:
    return [hit.id for hit in index.search(vector, k)]


def test_search_is_exact() -> None:
    index, stored = index_of(50), vectors(50)
    for query in vectors(10, seed=1):
        scores = stored @ query
        hits = index.search(query, 5)
        assert [hit.id for hit in hits] == np.argsort(-scores)[:5].tolist()
        assert [hit.score for hit in hits] == pytest.approx(sorted(scores, reverse=True)[:5], abs=1e-6)


def test_small_indexes_and_small_k() -> None:
    query = vectors(1)[0]
    assert VectorIndex("hash", 8).search(query, 5) == []
    assert sorted(found(index_of(2), query, 5)) == [0, 1]
    assert index_of(2).search(query, 0) == index_of(2).search(query, -1) == []


def test_an_update_leaves_the_old_snapshot_alone() -> None:
    old = index_of(5)
    new = old.updated([0, 1, 99], [7], vectors(1, seed=3))
    assert (old.passage_ids, new.passage_ids) == ({0, 1, 2, 3, 4}, {2, 3, 4, 7})
    assert (old.generation, new.generation) == (1, 2)
    assert found(old, vectors(5)[0], 1) == [0]
    assert 0 not in found(new, vectors(5)[0], 9)
    assert old.updated(old.passage_ids, (), None).search(vectors(1)[0], 3) == []


def test_adding_a_known_passage_replaces_its_vectors() -> None:
    other = vectors(1, seed=3)
    index = index_of(3).updated((), [1], other)
    assert len(index) == 3
    assert index.search(other[0], 1)[0].score == pytest.approx(1.0)
    assert found(index, vectors(3)[1], 9).count(1) == 1


def test_a_passage_with_several_vectors_is_found_once_by_its_best() -> None:
    stored = vectors(40)
    index = VectorIndex("hash", 8).updated((), [7] * 39 + [8], stored)
    hits = index.search(stored[5], 2)
    assert [hit.id for hit in hits] == [7, 8]
    assert hits[0].score == pytest.approx(1.0)
    assert index.updated([7]).passage_ids == {8}


def test_equal_scores_come_in_order_of_number() -> None:
    same = np.repeat(vectors(1), 3, axis=0)
    assert found(VectorIndex("hash", 8).updated((), [5, 3, 4], same), same[0]) == [3, 4, 5]


def test_vectors_that_do_not_fit_are_refused() -> None:
    index = index_of(3)
    with pytest.raises(RetrievalError, match=r"shape \[1, 9\] do not fit an index of hash, made for \[1, 8\]"):
        index.search(vectors(1, 9)[0], 1)
    with pytest.raises(RetrievalError, match=r"shape \[2, 8\]"):
        index.updated((), [1], vectors(2))
    with pytest.raises(RetrievalError, match="undefined"):
        index.updated((), [1], np.full((1, 8), np.nan, np.float32))


def test_searching_does_not_change_the_threads_of_others() -> None:
    """Torch shares this number: searching once made every later embedding in the same thread slower."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    index_of(3).search(vectors(1)[0], 1)
    assert faiss.omp_get_max_threads() == 2
    faiss.omp_set_num_threads(before)


def test_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    index = index_of(5).updated([2], [9, 9], vectors(2, seed=4))
    index.save(path)
    index.save(path)
    loaded = VectorIndex.load(path, "hash", 8)
    assert [file.name for file in tmp_path.iterdir()] == ["vectors"]
    assert (loaded.generation, loaded.passage_ids, len(loaded)) == (2, {0, 1, 3, 4, 9}, 6)
    query = vectors(1, seed=5)[0]
    assert loaded.search(query, 5) == index.search(query, 5)
    assert loaded.updated([9]).passage_ids == {0, 1, 3, 4}
    VectorIndex("hash", 8).save(path)
    assert len(VectorIndex.load(path, "hash", 8)) == 0


def test_a_damaged_file_is_refused_whatever_the_damage(tmp_path: Path) -> None:
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


def test_an_index_of_another_embedder_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    index_of(5).save(path)
    with pytest.raises(IndexDamaged, match="made by hash with 8 numbers a vector, not by other with 8"):
        VectorIndex.load(path, "other", 8)
    with pytest.raises(IndexDamaged, match="not by hash with 9"):
        VectorIndex.load(path, "hash", 9)


def test_a_failed_save_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vectors"
    index_of(5).save(path)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space"):
        index_of(6).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["vectors"]
    assert len(VectorIndex.load(path, "hash", 8)) == 5


def test_retriever_finds_the_passage_by_a_stretch_of_it() -> None:
    embedder = HashEmbedder()
    filler = " ".join(f"filler{number}" for number in range(100))
    passages = {
        3: Passage(text=f"{filler}.\n\nThe return label costs EUR 3.50.", heading_path=("Returns",), ordinal=0),
        4: Passage(text="Express delivery costs EUR 9.95.", heading_path=("Delivery",), ordinal=0),
    }
    ids, rows = embed_passages(embedder, passages, lambda text: len(text.split()))
    assert set(ids) == {3, 4}
    assert ids.count(3) > 1
    assert ids.count(4) == 1
    index = VectorIndex(embedder.name, embedder.dimension).updated((), ids, rows)
    keywords = KeywordIndex(list(passages), [passage.text for passage in passages.values()])
    retriever = Retriever(embedder, index, keywords)
    assert [hit.id for hit in retriever.search(["return label"], 2)] == [3, 4]
    assert retriever.search(["return label"], 1)[0].score == pytest.approx(
        index.search(embedder.embed_query("return label"), 1)[0].score
    )
    assert retriever.search([" "], 2) == retriever.search([], 2) == []


def test_retriever_refuses_an_index_of_another_embedder() -> None:
    with pytest.raises(RetrievalError, match="the index is of hash, the embedder is hash-256; rebuild"):
        Retriever(HashEmbedder(), index_of(1), KeywordIndex([], []))


def test_header_is_readable_json(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    index_of(1).save(path)
    _, digest, header, _ = path.read_bytes().split(b"\n", 3)
    assert json.loads(header) == {"embedder": "hash", "dimension": 8, "generation": 1}
    assert digest.decode() == content_hash(path.read_bytes().split(b"\n", 2)[2])
