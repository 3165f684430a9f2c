"""The text of a quotation, as tokens."""

from tiny import ByteTokenizer

from app.answering.record import quotation
from app.knowledge.finder import RankedStatement

STOP = 299


def quoted(*statements: str, room: int = 10_000) -> str:
    shown = [RankedStatement(text=text, logit=0.0, passage=1, start=0, end=9) for text in statements]
    text, (*said, stop) = quotation(shown, "I could not find this.", ByteTokenizer(), STOP, room)
    assert stop == STOP
    assert bytes(said).decode() == text
    return text


def test_a_quotation_is_each_statement_once_as_a_sentence_or_the_refusal():
    assert quoted("Article: shoes; Days: 14", "Call us!", "请联系我们。", "Call us", "Call us.") == (
        "Article: shoes; Days: 14.\n\nCall us!\n\n请联系我们。\n\nCall us."
    )
    assert quoted() == "I could not find this."


def test_a_quotation_has_as_many_statements_as_fit_but_always_one():
    words = "word " * 20
    statements = [f"{words}{number}." for number in range(9)]
    assert [quoted(*statements, room=room).count("\n\n") + 1 for room in (10, 206, 207, 10_000)] == [1, 1, 2, 9]
