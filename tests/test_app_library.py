"""Documents and passages in the database: what is kept, what gets a new number, what an index is rebuilt
from.
"""

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.domain.documents import Counts, NewDocument, NewPassage, Replaced, StoredPassage, Vectors
from app.domain.errors import DeskError
from app.storage import document_change
from app.storage.database import open_database
from app.storage.library import Library


def store(library: Library, document: NewDocument, passages: Sequence[NewPassage]) -> Replaced:
    return library.replace([(document, passages)])[0]


def vector(content: str) -> Vectors:
    return np.array([len(content), ord(content[0]), 1 / 3], np.float32)


def passage(content: str, *, embedded: bool = True) -> NewPassage:
    return NewPassage(
        heading_path=("Returns", content.upper()),
        text=f"text of {content}",
        content_hash=f"b2:{content}",
        num_tokens=len(content),
        embedding=vector(content) if embedded else None,
    )


def document(path: str = "/kb/returns.md", content_hash: str = "b2:1") -> NewDocument:
    return NewDocument(path=path, title="Returns", content_hash=content_hash)


def test_new_document(library):
    assert library.find("/kb/returns.md") is None
    replaced = store(library, document(), [passage("a"), passage("b")])
    assert (replaced.ids, replaced.new, replaced.kept, replaced.removed) == ((1, 2), (1, 2), (), ())
    found = library.find("/kb/returns.md")
    assert found is not None
    assert (found.title, found.content_hash, found.num_passages) == ("Returns", "b2:1", 2)
    assert library.documents() == [found]
    assert library.counts() == Counts(documents=1, passages=2)
    assert library.passages([2, 99, 1, 2])[0] == StoredPassage(
        id=2,
        document="/kb/returns.md",
        title="Returns",
        ordinal=1,
        heading_path=("Returns", "B"),
        text="text of b",
        content_hash="b2:b",
        num_tokens=1,
        module_key=None,
    )
    assert [found.id for found in library.passages([2, 99, 1, 2])] == [2, 1, 2]
    assert library.passages([2])[0].label == "Returns > B (2)"


def test_any_text_comes_back_also_from_within_json(library):
    """Headings are JSON, which has escapes of its own for what the columns of texts cannot hold."""
    odd = replace(passage("a"), heading_path=("a\0b", "\ud83d", "退款 'Grüße' \\ \""), text="a\0b \ud83d 😀")
    [id_] = store(library, document("/a\0b.md"), [odd]).ids
    [stored] = library.passages_of("/a\0b.md")
    assert (stored.id, stored.heading_path, stored.text) == (id_, odd.heading_path, "a\\x00b \\ud83d 😀")
    assert library.headings() == [("/a\\x00b.md", odd.heading_path)]


def test_unchanged_passages_keep_number_embedding_and_module(library):
    store(library, document(), [passage("a"), passage("b"), passage("c")])
    library.set_module_keys({1: "key-a", 2: "key-b", 3: "key-c"})
    known = library.known_hashes("/kb/returns.md")
    assert known == {"b2:a", "b2:b", "b2:c"}
    replaced = store(
        library,
        document(content_hash="b2:2"),
        [passage("c", embedded=False), passage("new"), passage("a", embedded=False)],
    )
    assert (replaced.ids, replaced.kept, replaced.new, replaced.removed) == ((3, 4, 1), (3, 1), (4,), (2,))
    assert replaced.removed_module_keys == ("key-b",)
    stored = library.passages_of("/kb/returns.md")
    assert [(one.id, one.ordinal, one.module_key) for one in stored] == [(3, 0, "key-c"), (4, 1, None), (1, 2, "key-a")]
    ids, vectors = library.vectors(3, library.all_ids())
    assert ids.tolist() == [1, 3, 4]
    assert np.array_equal(vectors, np.stack([vector("a"), vector("c"), vector("new")]))


def test_same_content_in_two_documents_is_two_passages_with_one_module(library):
    store(library, document("/one"), [passage("a")])
    store(library, document("/two"), [passage("a")])
    library.set_module_keys({1: "key-a", 2: "key-a"})
    assert library.module_labels(["key-a", "none"])["key-a"].document == "/one"
    (removed,) = library.remove(["/one"])
    assert (removed.removed, removed.removed_module_keys) == ((1,), ())
    assert library.module_labels(["key-a"])["key-a"].document == "/two"
    (removed,) = library.remove(["/two"])
    assert removed.removed_module_keys == ("key-a",)


def test_new_passage_without_embedding_changes_nothing(library):
    store(library, document(), [passage("a")])
    with pytest.raises(ValueError, match="passage 1 is new to its document and has no embedding"):
        store(library, document(content_hash="b2:2"), [passage("b"), passage("c", embedded=False)])
    found = library.find("/kb/returns.md")
    assert found is not None
    assert (found.content_hash, found.num_passages) == ("b2:1", 1)
    assert [one.content_hash for one in library.passages_of("/kb/returns.md")] == ["b2:a"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_removed_text_is_gone_from_the_disk(library, tmp_path):
    store(library, document(), [passage("confidential")] + [passage(f"p{number}") for number in range(50)])
    assert any(b"confidential" in file.read_bytes() for file in tmp_path.iterdir())
    library.remove(["/kb/returns.md"])
    assert not any(b"confidential" in file.read_bytes() for file in tmp_path.iterdir())


def test_what_is_gone_is_ignored_and_embeddings_of_two_models_are_an_error(library):
    ids, vectors = library.vectors(3, library.all_ids())
    assert library.remove(["/none"]) == []
    assert (str(ids.dtype), ids.shape) == ("int64", (0,))
    assert (str(vectors.dtype), vectors.shape) == ("float32", (0, 3))
    store(library, document(), [passage("a"), passage("b")])
    library.set_module_keys({1: "key", 77: "lost"})
    library.set_module_keys({1: None, 2: "key-b"})
    assert [one.module_key for one in library.passages([1, 2])] == [None, "key-b"]
    library.set_embeddings({2: np.array([7, 8, 9], np.float32), 77: np.zeros(3, np.float32)})
    assert library.vectors(3, library.all_ids())[1][1].tolist() == [7, 8, 9]
    library.set_embeddings({1: np.zeros(5, np.float32)})
    with pytest.raises(DeskError, match="ingest everything again"):
        library.vectors(3, library.all_ids())


def test_more_passages_than_one_query_may_name(library, monkeypatch):
    monkeypatch.setattr(document_change, "_IN_A_QUERY", 3)
    many = [passage(f"p{number}") for number in range(20)]
    replaced = store(library, document(), many)
    assert [found.id for found in library.passages(replaced.ids)] == list(replaced.ids)
    library.set_module_keys({id_: f"key-{id_}" for id_ in replaced.ids})
    assert len(library.module_labels([f"key-{id_}" for id_ in replaced.ids])) == 20
    assert len(store(library, document(), many[:4]).removed_module_keys) == 16
    assert library.counts() == Counts(documents=1, passages=4)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["/one", "/two"]), st.lists(st.sampled_from("abcde"), max_size=6)), max_size=6)
)
def test_any_history_of_replacements(steps):
    """The library against a plain list: content, order and embeddings right, and as much kept as can be."""
    with TemporaryDirectory() as folder, closing(open_database(f"sqlite:///{folder}/x")) as database:
        library = Library(database)
        now: dict[str, list[str]] = {"/one": [], "/two": []}
        seen: set[int] = set()
        for path, contents in steps:
            before = {one.id for one in library.passages_of(path)}
            known = library.known_hashes(path)
            new = [passage(content, embedded=f"b2:{content}" not in known) for content in contents]
            replaced = store(library, document(path), new)
            assert len(replaced.kept) == (Counter(now[path]) & Counter(contents)).total()
            assert sorted((*replaced.kept, *replaced.new)) == sorted(replaced.ids)
            assert before - set(replaced.removed) == set(replaced.kept)
            assert not seen & set(replaced.new)
            seen.update(replaced.new)
            now[path] = contents
        for path, contents in now.items():
            stored = library.passages_of(path)
            assert [one.content_hash for one in stored] == [f"b2:{content}" for content in contents]
            assert [one.ordinal for one in stored] == list(range(len(contents)))
        ids, vectors = library.vectors(3, library.all_ids())
        texts = {one.id: one.heading_path[1].lower() for one in library.passages(ids.tolist())}
        assert all(np.array_equal(row, vector(texts[id_])) for id_, row in zip(ids.tolist(), vectors, strict=True))
