"""The search of a desk: what it opens, what it takes from the database, and what a collection finds."""

import logging
from pathlib import Path

import pytest
from hashed_search import HashEmbedder

from app.domain.documents import NewDocument, NewPassage, Replaced
from app.knowledge.search import Search
from app.storage.library import Library


def search_of(library: Library, folder: Path) -> Search:
    return Search(library, HashEmbedder(), folder / "passages.index")


def store(library: Library, name: str, *texts: str, collection: str = "") -> list[Replaced]:
    document = NewDocument(path=name, title=name, content_hash="".join(texts), collection=collection)
    passages = [
        NewPassage(
            heading_path=(name,),
            text=text,
            content_hash=text,
            num_tokens=3,
            embedding=HashEmbedder().embed_documents([f"{name}\n{text}"]),
        )
        for text in texts
    ]
    return library.replace([(document, passages)])


def found(search: Search, question: str, *collections: str) -> list[int]:
    retriever = search.snapshot.retriever(collections)
    return [hit.id for hit in retriever.search([retriever.queries([question])[0]], 9) if hit.share]


def test_what_was_saved_is_opened_without_the_texts(library, tmp_path, caplog, monkeypatch):
    search = search_of(library, tmp_path)
    search.change(lambda: store(library, "returns", "label", "parcel"))
    search.save()
    monkeypatch.setattr(library, "searchable", lambda ids: pytest.fail("the texts are read"))
    with caplog.at_level(logging.WARNING):
        assert found(search_of(library, tmp_path), "label") == [1]
    assert not caplog.records


def lose_everything(folder: Path) -> None:
    (folder / "passages.index").unlink()
    for file in (folder / "passages.keywords").iterdir():
        file.unlink()


def damage_the_index(folder: Path) -> None:
    (folder / "passages.index").write_bytes((folder / "passages.index").read_bytes()[:50])


def damage_a_segment(folder: Path) -> None:
    for file in (folder / "passages.keywords").iterdir():
        file.write_bytes(file.read_bytes()[:-1])


def leave(_: Path) -> None:
    pass


@pytest.mark.parametrize("harm", [lose_everything, damage_the_index, damage_a_segment, leave])
def test_what_the_files_lack_is_taken_from_the_database_with_a_warning(library, tmp_path, caplog, harm):
    """Also what was stored and removed after the last save: the program was killed then."""
    search = search_of(library, tmp_path)
    search.change(lambda: store(library, "returns", "label", "parcel"))
    search.save()
    store(library, "returns", "label", "voucher")
    harm(tmp_path)
    with caplog.at_level(logging.WARNING):
        again = search_of(library, tmp_path)
    assert "keyword index is updated" in caplog.text
    assert (found(again, "label"), found(again, "voucher"), found(again, "parcel")) == ([1], [3], [])
    assert again.snapshot.index.passage_ids == again.snapshot.keywords.passage_ids == {1, 3}
    caplog.clear()
    search_of(library, tmp_path)
    assert not caplog.records, "it was saved"


def test_collections_find_their_own_in_the_same_snapshot(library, tmp_path):
    search = search_of(library, tmp_path)
    search.change(lambda: store(library, "shop", "label", collection="shop"))
    search.change(lambda: store(library, "staff", "label secret", collection="staff"))
    assert found(search, "label") == [1, 2]
    assert (found(search, "label", "shop"), found(search, "label", "staff")) == ([1], [2])
    assert found(search, "label", "shop", "staff", "none") == [1, 2]
    assert found(search, "label", "none") == []
    assert search.snapshot.retriever(["shop"]) is search.snapshot.retriever(["shop", "none"])
    assert search.snapshot.retriever([]) is search.snapshot.retriever()
