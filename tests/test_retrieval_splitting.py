"""Documents cut into passages: nothing lost, nothing too long, structure respected."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrieval.documents import Block, Document, Passage, cut, split


def words(text: str) -> int:
    return len(text.split())


def characters(text: str) -> int:
    return len(text)


def document(*blocks: Block, title: str = "Title") -> Document:
    return Document(path=Path("a.md"), title=title, blocks=blocks, content_hash="b2:0")


def heading(text: str, level: int = 2) -> Block:
    return Block(kind="heading", text=text, level=level)


def text(number: int, word: str = "word") -> Block:
    return Block(kind="text", text=" ".join(f"{word}{place}" for place in range(number)))


def paths(passages: tuple[Passage, ...]) -> list[tuple[str, ...]]:
    return [passage.heading_path for passage in passages]


def lengths(passages: tuple[Passage, ...]) -> list[int]:
    return [words(passage.text) for passage in passages]


kinds = st.sampled_from(["heading", "text", "list", "table", "code"])
shapes = st.lists(st.tuples(kinds, st.integers(0, 6), st.integers(1, 30), st.integers(0, 3)), max_size=25)


def blocks_of(shape: list[tuple[str, int, int, int]]) -> list[Block]:
    """Blocks in which every word is unique, with a separator of each kind between words."""
    found = []
    for number, (kind, level, length, seed) in enumerate(shape):
        separators = [(" ", "\n", ". ", ":\n\n", "\n\n")[(place * seed) % 5] for place in range(length)]
        text = "".join(f"{number}w{place}{separator}" for place, separator in enumerate(separators))
        found.append(Block(kind=kind, text=text.strip(), level=level))
    return found


@settings(max_examples=200, deadline=None)
@given(shapes, st.integers(16, 80), st.sampled_from([words, characters]))
def test_no_word_is_lost_and_no_passage_too_long(shape, limit, count):
    blocks = blocks_of(shape)
    passages = split(document(*blocks), count, limit)
    assert passages == split(document(*blocks), count, limit)
    assert all(0 < count(passage.text) <= limit for passage in passages)

    def words_of(texts: Iterable[str]) -> list[str]:
        return re.findall(r"\d+w\d+", "\n".join(texts))

    in_headings = set(words_of(block.text for block in blocks if block.kind == "heading"))
    in_text = words_of(passage.text for passage in passages)
    in_paths = words_of(heading for passage in passages for heading in passage.heading_path)
    assert [word for word in in_text if word not in in_headings] == words_of(
        block.text for block in blocks if block.kind != "heading"
    )
    assert in_headings <= {*in_text, *in_paths}


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ab é。.:!?\n 退款-"), max_size=300), st.integers(3, 40))
def test_cutting_loses_only_white_space(source, limit):
    parts = cut(source, characters, limit)
    assert "".join("".join(parts).split()) == "".join(source.split())
    assert all(part.strip() and len(part) <= limit for part in parts)


def test_small_sections_are_joined_with_their_headings_as_lines():
    passages = split(document(text(5), heading("A"), text(5, "a"), heading("B"), text(5, "b")), words, 100)
    assert paths(passages) == [("Title",)]
    assert passages[0].text == "word0 word1 word2 word3 word4\n\nA\na0 a1 a2 a3 a4\n\nB\nb0 b1 b2 b3 b4"


UNDER_A = (heading("A"), text(50), heading("A1", 3), text(20), heading("A2", 3), text(20))
A, B = ("Title", "A"), ("Title", "B")


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ((heading("A"), text(80), heading("A1", 3), text(70)), [(A, 80), ((*A, "A1"), 70)]),  # of good size
        ((*UNDER_A, heading("B"), text(14)), [(A, 50), (A, 42), (B, 14)]),  # only those under one heading are joined
        ((text(5), heading("A"), text(80)), [(("Title",), 86)]),  # a tiny piece is joined even above the target
        ((heading("A"), *[text(30)] * 7), [(A, 60), (A, 60), (A, 60), (A, 30)]),  # even parts between blocks
        ((text(45), text(55), text(10)), [(("Title",), 45), (("Title",), 55), (("Title",), 10)]),  # of one text
        ((heading("TITLE", 1), text(90), heading("A"), text(90)), [(("Title",), 90), (A, 90)]),  # no title in the path
    ],
)
def test_what_becomes_a_passage(blocks, expected):
    passages = split(document(*blocks), words, 100)
    assert list(zip(paths(passages), lengths(passages), strict=True)) == expected


def test_sections_of_the_same_name_are_joined_like_others():
    (passage,) = split(document(heading("Part"), text(5), heading("Part"), text(5, "b")), words, 100)
    assert passage.text.count("Part\n") == 2


def test_headings_without_text_are_kept():
    assert [passage.text for passage in split(document(heading("Only")), words)] == ["Only"]
    (passage,) = split(document(heading("A"), heading("B"), text(3)), words)
    assert passage.text == "A\n\nB\nword0 word1 word2"
    assert split(document(), words) == ()


def test_a_heading_as_long_as_a_paragraph_is_text():
    passages = split(document(heading(text(300).text)), words, 100)
    assert set(paths(passages)) == {("Title",)}
    assert sum(lengths(passages)) == 300


def test_passages_are_known_by_headings_and_text():
    one = Passage(text="x", heading_path=("A", "B"))
    assert one.content_hash == Passage(text="x", heading_path=("A", "B")).content_hash
    assert one.content_hash != Passage(text="x", heading_path=("A",)).content_hash
    assert one.content_hash != Passage(text="B\nx", heading_path=("A",)).content_hash


def test_a_limit_that_is_too_small_is_refused():
    with pytest.raises(ValueError, match="max_tokens is 3; it must be at least 16"):
        split(document(text(3)), words, 3)


def test_cuts_fall_at_the_best_place():
    rows = "\n".join(f"Row: {number}; Price: {number}" for number in range(20))
    for part in cut(rows, words, 20):
        assert re.fullmatch(r"(Row: \d+; Price: \d+(\n|$))+", part)
    sentences = "One two three. Four five six! Seven eight? Nine ten. Eleven twelve thirteen."
    assert cut(sentences, words, 6) == [
        "One two three.",
        "Four five six!",
        "Seven eight? Nine ten.",
        "Eleven twelve thirteen.",
    ]
    assert cut("退款将在五天内退回。请保留订单号！谢谢。", characters, 12) == [
        "退款将在五天内退回。",
        "请保留订单号！谢谢。",
    ]
    assert cut("x" * 25, characters, 10) == ["x" * 9, "x" * 9, "x" * 7]
    assert cut(" \n", words, 10) == cut(" \n" * 50, characters, 10) == []


def test_what_leads_in_stays_with_what_follows():
    parts = cut("One two three four five six.\n\nYou need:\n\n- a b c\n- d e f\n- g h i\n- j k l", words, 14)
    assert parts[0] == "One two three four five six."
    assert parts[1].startswith("You need:\n\n- a b c")


def test_a_megabyte_without_a_space_is_cut_quickly():
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += len(text)
        return len(text) // 4

    source = "x" * 2**20
    assert "".join(cut(source, count, 400)) == source
    assert counted < 40 * 2**20
