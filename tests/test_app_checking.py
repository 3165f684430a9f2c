"""Answers on their way to the reader: what is passed on, when, and what is recorded of it."""

from collections.abc import Iterator

import pytest
from desks import finish, small_desk, write_pages

from app.answering.checking import CheckedText
from app.domain.callers import QUOTED
from app.domain.errors import DeskError
from app.domain.setting_types import AnswerMode
from app.grounding.grounding import AnswerChecker, Source

SOURCES = (
    Source("Gift cards cannot be returned.", "Gift cards"),
    Source("You can return an item within 30 days of delivery.", "Returns"),
    Source("The label costs EUR 3.50.", "Returns"),
    Source("Parcels may weigh 20 kg.", "Returns"),
)
REFUSAL = "I could not find an answer to this in our help pages. Please contact our customer service team."


def pieces(text: str, size: int = 5) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


def checked(text: str, answer_mode: AnswerMode = "checked", question: str = "Can I return a gift card?") -> CheckedText:
    return CheckedText(
        pieces(text), AnswerChecker(question, SOURCES), refusal=REFUSAL, nothing=REFUSAL, answer_mode=answer_mode
    )


def test_a_sentence_is_held_back_until_it_is_complete_and_shown_with_its_citation():
    given: list[str] = []

    def slowly() -> Iterator[str]:
        for piece in (
            "[2] You can return an item ",
            "within 30 days of delivery. ",
            "[3] The label ",
            "costs EUR 3.50.",
        ):
            yield piece
            given.append(piece)

    answer = CheckedText(slowly(), AnswerChecker("?", SOURCES), refusal=REFUSAL, nothing=REFUSAL, answer_mode="checked")
    shown = iter(answer)
    assert next(shown) == "You can return an item within 30 days of delivery."
    assert len(given) == 2, "shown as soon as the next sentence begins"
    assert next(shown) == "\n\nThe label costs EUR 3.50."
    assert next(shown, None) is None
    assert answer.cited == [1, 2]
    assert (answer.is_quotation, answer.is_refusal, answer.score) == (False, False, 1.0)


@pytest.mark.parametrize(
    ("said", "shown", "cited"),
    [
        ("Yes, gift cards can be returned.", "Gift cards cannot be returned.", [0]),
        ("[1] Gift cards can be returned. [1] Yes, you can return gift cards.", "Gift cards cannot be returned.", [0]),
        ("[1] Gift cards cannot be returned. Penguins fly.", "Gift cards cannot be returned.", [0]),
        ("[3] The label costs EUR 5.30.", "The label costs EUR 3.50.", [2]),
        ("No. [1] Gift cards cannot be returned.", "No. Gift cards cannot be returned.", [0]),
        ("Yes. Gift cards cannot be returned.", "Gift cards cannot be returned.", [0]),
        ("I am happy to help you! [3] The label costs EUR 3.50.", "The label costs EUR 3.50.", [2]),
    ],
)
def test_a_sentence_that_its_statement_does_not_say_becomes_the_statement(said, shown, cited):
    for size in (1, 5, 100):
        answer = CheckedText(
            pieces(said, size), AnswerChecker("?", SOURCES), refusal=REFUSAL, nothing=REFUSAL, answer_mode="checked"
        )
        assert "".join(answer) == answer.text == shown
        assert answer.cited == cited


@pytest.mark.parametrize("said", ["The moon is made of green cheese.", "Yes.", ""])
def test_what_was_chosen_is_quoted_if_no_sentence_can_be_shown(said):
    answer = checked(said)
    assert "".join(answer) == answer.text == "\n\n".join(source.text for source in SOURCES[:2])
    assert answer.is_quotation
    assert not answer.is_refusal


@pytest.mark.parametrize(
    "said",
    [
        REFUSAL,
        REFUSAL[:-20],
        REFUSAL + " However, gift cards can be returned within 90 days.",
        REFUSAL[:45] + " But gift cards can be returned within 90 days.",
    ],
)
def test_a_model_may_say_that_it_does_not_know(said):
    answer = checked(said)
    assert "".join(answer) == answer.text == REFUSAL
    assert answer.is_refusal
    assert answer.is_changed == (said != REFUSAL)
    assert answer.score is None


def test_free_words_pass_as_they_come():
    answer = checked("Yes, gift cards can be returned.\n- A line", "free")
    assert list(answer) == list(pieces("Yes, gift cards can be returned.\n- A line"))
    assert answer.text == "Yes, gift cards can be returned.\n- A line"
    assert not answer.is_quotation
    assert answer.score is None
    refusal = checked(REFUSAL + " Bye.", "free")
    assert "".join(refusal) == REFUSAL + " Bye."
    assert (refusal.is_refusal, refusal.is_changed) == (True, False)


@pytest.mark.parametrize("quotation", ["Gift cards last five years.", REFUSAL])
def test_a_quotation_is_shown_before_the_model_has_read(quotation):
    has_read: list[str] = []

    def reading() -> Iterator[str]:
        has_read.append(quotation)
        yield from pieces(quotation)

    answer = CheckedText(
        reading(),
        AnswerChecker("?", ()),
        refusal=REFUSAL,
        nothing=REFUSAL,
        answer_mode="quote",
        quotation=quotation,
    )
    shown = iter(answer)
    assert next(shown) == answer.text == quotation
    assert not has_read
    assert answer.is_changed, "the tokens are not known yet"
    assert next(shown, None) is None
    assert has_read
    assert (answer.is_changed, answer.is_whole) == (False, True)
    assert (answer.is_quotation, answer.is_refusal) == (quotation != REFUSAL, quotation == REFUSAL)
    assert answer.score == (1.0 if quotation != REFUSAL else None)


def test_a_desk_that_quotes_says_only_sentences_of_its_pages(tmp_path):
    """The tiny model knows nothing; what it may choose from are whole sentences, or the refusal."""
    with small_desk(tmp_path / "data", pages=write_pages(tmp_path), answer_mode="quote", answer_tokens=200) as desk:
        stream = desk.ask("Can gift cards be returned?")
        said = "".join(stream)
        answer = stream.answer
        assert said.strip() == answer.answer
        pages = " ".join(citation.quote for citation in answer.citations)
        assert "Gift cards cannot be returned." in answer.answer
        for sentence in answer.answer.removesuffix(".").split(". "):
            assert sentence in pages
        assert answer.quoted
        assert answer.notice == QUOTED
        assert desk.turns(answer.conversation_id)[-1].answer == answer


def test_a_checked_desk_records_what_it_showed(tmp_path):
    """The tiny model's noise is supported by nothing: the reader sees the pages' words or the refusal."""
    with small_desk(tmp_path / "data", pages=write_pages(tmp_path), answer_mode="checked") as desk:
        stream = desk.ask("Can gift cards be returned?")
        said = "".join(stream)
        answer = stream.answer
        assert said == answer.answer
        assert answer.refused or answer.quoted
        assert answer.refused == (not answer.citations)
        assert desk.turns(answer.conversation_id)[-1].answer == answer
        past = desk.history.past(answer.conversation_id)[-1]
        assert past.tokens is None, "the next turn must read what was shown, not what was said"


def test_a_question_may_choose_its_policy(tmp_path):
    with small_desk(tmp_path / "data", pages=write_pages(tmp_path), policy="balanced") as desk:
        answers = {}
        for policy in (None, "fast", "exact"):
            answers[policy] = finish(desk, "How long do returns take?", policy=policy)
        assert [answer.policy for answer in answers.values()] == ["balanced", "fast", "exact"]
        assert [answer.exact for answer in answers.values()] == [False, False, True]
        assert answers["exact"].usage.computed > answers[None].usage.computed > answers["fast"].usage.computed
        with pytest.raises(DeskError, match="it must be fast, balanced or exact"):
            desk.ask("How?", policy="slow")
