"""Keyword search against a naive BM25, updates against an index from scratch, near copies; the index on disk."""

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.errors import IndexDamaged
from retrieval.search.keyword_index import K1, LIST, B, KeywordIndex, fingerprint, load_keywords, save_keywords
from retrieval.search.vector_index import WINDOWS_PER_PASSAGE as WINDOWS
from retrieval.text.terms import asked_words, stem, words

Texts = Mapping[int, Sequence[str]]

VOCABULARY = ["return", "returns", "label", "退款", "无法退款", "km-450", "450", "the", "refund", "e-mail", "x", "!"]
sentences = st.lists(st.sampled_from(VOCABULARY), max_size=8).map(" ".join)
unit_lists = st.lists(sentences, max_size=3)
libraries = st.dictionaries(st.integers(0, 6), unit_lists, max_size=6)
changes = st.lists(st.tuples(st.frozensets(st.integers(0, 8), max_size=3), libraries), max_size=5)
often = settings(max_examples=40, deadline=None)


def words_in(index: KeywordIndex) -> frozenset[str]:
    return frozenset().union(*(segment.words for segment in index.segments))


def naive_scores(texts: Texts, query: str) -> dict[int, float]:
    """BM25 as in the books, over the best score that a window could have."""
    windows = {id_ * WINDOWS + n: Counter(map(stem, words(t))) for id_, of in texts.items() for n, t in enumerate(of)}
    mean = max(1.0, sum(window.total() for window in windows.values()) / max(1, len(windows)))
    scores, most = dict.fromkeys(windows, 0.0), 0.0
    for term in {stem(word) for word in asked_words(query)}:
        having = sum(term in window for window in windows.values())
        rarity = math.log(1 + (len(windows) - having + 0.5) / (having + 0.5))
        most += rarity * (K1 + 1)
        for id_, window in windows.items():
            norm = K1 * (1 - B + B * window.total() / mean)
            scores[id_] += rarity * window[term] * (K1 + 1) / (window[term] + norm) if window[term] else 0.0
    return {id_: score / most if most else 0.0 for id_, score in scores.items()}


def scores(index: KeywordIndex, query: str) -> dict[int, float]:
    return dict(zip(index.window_ids.tolist(), index.scores(query).tolist(), strict=True))


def index_of(texts: Texts) -> KeywordIndex:
    return KeywordIndex().updated((), texts)


@often
@given(libraries, sentences)
def test_scores_are_bm25(texts, query):
    found = scores(index_of(texts), query)
    assert found == pytest.approx(naive_scores(texts, query), abs=1e-5)
    assert all(0 <= score <= 1 for score in found.values())


@often
@given(changes, sentences)
def test_updates_equal_an_index_from_scratch_and_leave_snapshots_alone(history, query):
    """With segments that are merged, and with segments that are too large for it."""
    for largest in (20_000, 3):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("retrieval.search.vector_index.LARGEST", largest)
            check_history(history, query)


def check_history(history: Sequence[tuple[frozenset[int], Texts]], query: str) -> None:
    texts: dict[int, Sequence[str]] = {}
    index = KeywordIndex()
    snapshots = [(index, scores(index, query), list(words_in(index)))]
    for removed, added in history:
        index = index.updated(removed, added)
        texts = {id_: of for id_, of in texts.items() if id_ not in removed} | dict(added)
        scratch = index_of(texts)
        assert scores(index, query) == pytest.approx(scores(scratch, query), abs=1e-5)
        assert (
            set(words_in(index)) == set(words_in(scratch)) == {w for of in texts.values() for t in of for w in words(t)}
        )
        assert all(index.rarity(word) == pytest.approx(scratch.rarity(word)) for word in words_in(index))
        assert all(index.having(word) for word in words_in(index))
        assert sorted(index.window_ids.tolist()) == sorted(scratch.window_ids.tolist())
        assert index.rows_of(index.window_ids).tolist() == list(range(len(index)))
        for first in texts:
            assert [index.is_near_copy(first, other) for other in texts] == [
                scratch.is_near_copy(first, other) for other in texts
            ]
        snapshots.append((index, scores(index, query), list(words_in(index))))
    for snapshot, of_query, in_it in snapshots:
        assert scores(snapshot, query) == of_query
        assert list(words_in(snapshot)) == in_it


def test_many_windows_with_common_words_are_scored_exactly_too():
    """More than 10,000 windows, from where common words once did not count."""
    shelf = ["card", "return", "label", "voucher", "the", "of"]
    texts = {id_: [f"the {shelf[id_ % 4]} of {shelf[id_ % 3]}", "the of"] for id_ in range(5100)}
    index = index_of(texts)
    query = "the label of the voucher"
    found = scores(index, query)
    few = {id_: found[id_ * WINDOWS] for id_ in range(24)}
    expected = naive_scores(texts, query)
    assert few == pytest.approx({id_: expected[id_ * WINDOWS] for id_ in few}, abs=1e-5)
    assert found[WINDOWS + 1] == pytest.approx(expected[WINDOWS + 1], abs=1e-5)
    assert found[WINDOWS + 1] > 0


def test_what_is_added_shares_the_segments_there_are_and_what_is_removed_copies_its_own():
    big = {id_: ["return label"] * 4 for id_ in range(1, 9)}
    index = index_of(big).updated((), {20: ["voucher"] * 8})
    assert [len(segment) for segment in index.segments] == [32, 8]
    more = index.updated((), {30: ["gift"]})
    assert more.segments[:2] == index.segments
    assert [len(segment) for segment in more.updated((), {31: ["card"]}).segments] == [32, 8, 2]
    less = more.updated([20], {})
    assert less.segments == (index.segments[0], more.segments[2])
    assert [len(segment) for segment in less.updated([1], {}).segments] == [28, 1]


def test_there_are_few_segments_whatever_is_added_and_removed(monkeypatch):
    monkeypatch.setattr("retrieval.search.vector_index.LARGEST", 64)
    index = KeywordIndex()
    for id_ in range(150):
        index = index.updated([id_ - 100, id_ // 2], {id_: ["return label", "return"]})
        assert len(index.segments) <= 2 * len(index) / 64 + 8
        assert all(len(segment) <= 64 for segment in index.segments)


def test_words_and_terms_among_some_windows():
    index = index_of({1: ["returned label"]}).updated((), {2: ["returns voucher", "return"], 3: ["retro"]})
    assert sorted(word for some in index.words_from("r") for word in some) == ["retro", "return", "returned", "returns"]
    assert index.words_from("z") == [[]] * len(index.segments)
    assert index.having("voucher")
    assert not index.having("voucher", index.are_of([1, 3]))
    assert index.having("return", index.are_of([1])) == 1
    assert not index.having("zeppelin")


SAME = " ".join(f"word{letter}" for letter in "abcdefghijklmnopqrstuvwxyz") + " and delivery within"


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (f"{SAME} 14 days", f"{SAME} 14 days", True),
        (f"{SAME} 14 days", f"{SAME} 14 day", True),
        (f"{SAME} 14 days", f"{SAME} 30 days", False),
        (f"{SAME} KM-450", f"{SAME} KM-451", False),
        (f"{SAME} 14 days", f"{SAME} 14 days or at the latest before the end of the month", False),
        ("Boots cost ten.", "Shoes cost ten.", False),
        ("one", "two", False),
    ],
)
def test_near_copies(one, other, expected):
    index = index_of({1: [one, "a stretch 7"], 2: [other, "another stretch"]})
    assert index.is_near_copy(1, 2) == index.is_near_copy(2, 1) == expected
    assert not index.is_near_copy(1, 3)


def test_chinese_texts_with_a_denial_or_another_written_number_are_no_copies():
    numbers = (
        "您可以在收到商品之后的若干时间内联系客服办理退货手续并获得退款，请保留好发票和包装，运费由我们承担，期限为"
    )
    same = "您在收到商品之后的三十日内联系客服，请保留好发票和包装，运费由我们承担，特价商品以及定制商品在此期间" * 3
    index = index_of({1: [f"{same}可以退货"], 2: [f"{same}不可以退货"], 3: [f"{same}可以来退货"]})
    index = index.updated((), {4: [f"{numbers}三天。"], 5: [f"{numbers}七天。"]})
    assert not index.is_near_copy(1, 2)
    assert index.is_near_copy(1, 3)
    assert not index.is_near_copy(4, 5)


TEXTS = {1: ["return label", "return"], 2: ["无法退款 KM-450"], 5: ["", "voucher \ud800 x"]}
QUERIES = ("returns", "km450", "退款 voucher", "the", "")


def some() -> KeywordIndex:
    return KeywordIndex().updated((), {id_: ["label"] * 9 for id_ in range(10, 14)}).updated((), TEXTS)


def same(one: KeywordIndex, other: KeywordIndex) -> bool:
    return (
        one.window_ids.tolist() == other.window_ids.tolist()
        and words_in(one) == words_in(other)
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
        with pytest.raises(IndexDamaged, match="different rules for words"):
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
