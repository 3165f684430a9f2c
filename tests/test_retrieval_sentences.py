"""Sentences of texts as documents have them."""

from __future__ import annotations

import pytest

from retrieval.sentences import complete, sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two? Three!", ["One.", "Two?", "Three!"]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("See Dr. Smith or J. R. Jones at 3.5 km.", ["See Dr. Smith or J. R. Jones at 3.5 km."]),
        ("- one item. Two\n1. Choose it. Then go.", ["one item.", "Two", "Choose it.", "Then go."]),
        ("What: A; Limit: 4\nWhat: B; Limit: 5", ["What: A; Limit: 4", "What: B; Limit: 5"]),
        ("a line that\nwas wrapped.\nAnother", ["a line that was wrapped.", "Another"]),
        ("A long line of prose which ends before its sentence does, at the\nGalway store.", None),
        ("你好。再见！", ["你好。", "再见！"]),
        (" \n\n", []),
    ],
)
def test_sentences(text: str, expected: list[str] | None) -> None:
    assert sentences(text) == ([" ".join(text.split())] if expected is None else expected)


def test_a_growing_text_gives_its_sentences_once() -> None:
    text, found, rest = "It costs EUR 3.50. Free in stores.\nAsk us! Bye", [], ""
    for character in text:
        ended, rest = complete(rest + character)
        found += ended
    assert found == ["It costs EUR 3.50.", "Free in stores.", "Ask us!"]
    assert rest == "Bye"
