"""The keyword index on disk: what is written, what is read again, what is refused."""

import os

import pytest

from retrieval.errors import IndexDamaged
from retrieval.search.keyword_index import LIST, KeywordIndex, fingerprint, load_keywords, save_keywords

TEXTS = {1: ["return label", "return"], 2: ["无法退款 KM-450"], 5: ["", "voucher \ud800 x"]}
QUERIES = ("returns", "km450", "退款 voucher", "the", "")


def some() -> KeywordIndex:
    return KeywordIndex().updated((), {id_: ["label"] * 9 for id_ in range(10, 14)}).updated((), TEXTS)


def same(one: KeywordIndex, other: KeywordIndex) -> bool:
    return (
        one.window_ids.tolist() == other.window_ids.tolist()
        and one.words == other.words
        and all(one.scores(query).tolist() == other.scores(query).tolist() for query in QUERIES)
        and one.is_near_copy(10, 11) == other.is_near_copy(10, 11)
    )


def test_saved_and_loaded(tmp_path):
    index = some()
    save_keywords(index, tmp_path / "words")
    loaded = load_keywords(tmp_path / "words")
    assert same(loaded, index)
    assert same(loaded.updated([1], {7: ["gift card"]}), index.updated([1], {7: ["gift card"]}))
    assert (tmp_path / "words").stat().st_mode & 0o777 == 0o700
    save_keywords(KeywordIndex(), tmp_path / "words")
    assert len(load_keywords(tmp_path / "words")) == 0
    assert [file.name for file in (tmp_path / "words").iterdir()] == [LIST]


def test_only_new_segments_are_written_and_old_ones_go(tmp_path):
    index = some()
    assert len(index.segments) == 2
    save_keywords(index, tmp_path)
    before = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    (tmp_path / ".unfinished").write_text("of a process that was killed")
    save_keywords(load_keywords(tmp_path).updated([1], {}), tmp_path)
    after = {file.name: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    big, small = (segment.name for segment in index.segments)
    assert after[big] == before[big]
    assert len(after) == 3
    assert not {small, ".unfinished"} & after.keys()


def test_a_folder_of_words_that_are_counted_differently_is_refused(tmp_path, monkeypatch):
    save_keywords(some(), tmp_path)
    monkeypatch.setattr("retrieval.search.keyword_index.stem", lambda word: word[:4])
    fingerprint.cache_clear()
    try:
        with pytest.raises(IndexDamaged, match="other rules for words"):
            load_keywords(tmp_path)
    finally:
        monkeypatch.undo()
        fingerprint.cache_clear()
    assert same(load_keywords(tmp_path), some())


def test_a_damaged_folder_is_refused_whatever_the_damage(tmp_path):
    with pytest.raises(IndexDamaged, match="no index file"):
        load_keywords(tmp_path / "none")
    save_keywords(some(), tmp_path)
    for file in list(tmp_path.iterdir()):
        whole = file.read_bytes()
        step = max(1, len(whole) // 40)
        damages = [whole[:length] for length in range(0, len(whole), step)]
        damages += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), step)]
        for damage in damages:
            file.write_bytes(damage)
            with pytest.raises(IndexDamaged):
                load_keywords(tmp_path)
        file.unlink()
        with pytest.raises(IndexDamaged):
            load_keywords(tmp_path)
        file.write_bytes(whole)
    assert same(load_keywords(tmp_path), some())


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_failed_save_leaves_the_old_index(tmp_path, monkeypatch, failing):
    index = some()
    save_keywords(index, tmp_path)
    replace, written = os.replace, list[str]()

    def fail(temporary: str, path: str) -> None:
        if len(written) == failing:
            raise OSError(28, "No space left on device")
        written.append(path)
        replace(temporary, path)

    monkeypatch.setattr("os.replace", fail)
    changed = KeywordIndex().updated((), {id_: ["gift"] * 9 for id_ in range(4)}).updated((), {9: ["card"]})
    with pytest.raises(OSError, match="No space"):
        save_keywords(changed, tmp_path)
    monkeypatch.undo()
    assert same(load_keywords(tmp_path), index)
