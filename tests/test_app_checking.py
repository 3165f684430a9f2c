"""Answers on their way to the reader: what is passed on, when, and what is recorded of it."""

from collections.abc import Iterator

import pytest
from desks import finish, small_desk, write_pages

from app.answering.checking import CheckedText
from app.domain.callers import QUOTED
from app.domain.errors import DeskError
from app.domain.setting_types import AnswerMode
from app.grounding.grounding import CHECKS, AnswerChecker, Claim

PASSAGES = [
    "Gift cards\nGift cards cannot be returned.",
    "Returns\nYou can return an item within 30 days of delivery. The label costs EUR 3.50.",
]
REFUSAL = "I could not find an answer to this in our help pages. Please contact our customer service team."


def pieces(text: str, size: int = 5) -> Iterator[str]:
    return (text[i : i + size] for i in range(0, len(text), size))


def checked(text: str, answer_mode: AnswerMode = "checked", question: str = "Can I return a gift card?") -> CheckedText:
    return CheckedText(
        pieces(text), AnswerChecker(question, PASSAGES), refusal=REFUSAL, nothing=REFUSAL, answer_mode=answer_mode
    )


def test_a_sentence_is_held_back_until_it_is_complete():
    given: list[str] = []

    def slowly() -> Iterator[str]:
        for piece in ("You can return an item ", "within 30 days of delivery. ", "The label ", "costs EUR 3.50."):
            yield piece
            given.append(piece)

    answer = CheckedText(
        slowly(), AnswerChecker("?", PASSAGES), refusal=REFUSAL, nothing=REFUSAL, answer_mode="checked"
    )
    shown = iter(answer)
    assert next(shown) == "You can return an item within 30 days of delivery."
    assert len(given) == 2, "shown as soon as the next sentence begins"
    assert next(shown) == " The label costs EUR 3.50."
    assert next(shown, None) is None
    assert (answer.is_changed, answer.is_quotation, answer.is_refusal, answer.score) == (False, False, False, 1.0)


STEPS = "To send it:\n\n1. Open the app\n2. Choose the item. Check it.\n3. Print the label"


def test_a_list_keeps_its_lines_also_where_an_item_is_left_out():
    passage = "Send it\nTo send it:\n1. Open the app\n2. Choose the item. Check it.\n3. Print the label"
    for size in (1, 5, 100):
        answer = CheckedText(
            pieces(STEPS, size), AnswerChecker("?", [passage]), refusal=REFUSAL, nothing=REFUSAL, answer_mode="checked"
        )
        assert "".join(answer) == answer.text == STEPS
        assert not answer.is_changed
        assert answer.score == 1.0
    answer = checked("- The moon is made of green cheese.\n- The label costs EUR 3.50.\n\nThank you.", question="?")
    assert "".join(answer) == answer.text == "- The label costs EUR 3.50.\n\nThank you."
    answer = checked("- I am happy to help you! The label costs EUR 3.50.")
    assert "".join(answer) == "- I am happy to help you! The label costs EUR 3.50."


def test_a_contradiction_is_replaced_by_a_quotation_or_the_refusal():
    answer = checked("Yes, gift cards can be returned.")
    assert "".join(answer) == answer.text == "Gift cards cannot be returned."
    assert answer.is_changed
    assert answer.is_quotation
    assert answer.score is not None
    assert answer.score <= 0.5
    for second in ("Yes, you can return gift cards.", "Gift cards cannot be returned."):
        assert "".join(checked(f"Gift cards can be returned. {second}")) == "Gift cards cannot be returned."
    answer = checked("The moon is made of green cheese.", question="What is the moon made of?")
    assert "".join(answer) == answer.text == REFUSAL
    assert answer.is_refusal
    assert answer.is_changed
    assert not answer.is_quotation


def test_yes_and_no_are_checked_with_what_follows_and_politeness_is_no_answer():
    assert "".join(checked("No. Gift cards cannot be returned.")) == "No. Gift cards cannot be returned."
    assert "".join(checked("Yes. Gift cards cannot be returned.")) == "Gift cards cannot be returned."
    assert "".join(checked("Yes, you can. Gift cards cannot be returned.")) == "Gift cards cannot be returned."
    assert checked("Yes.").text == ""
    assert "Yes" not in "".join(checked("Yes."))
    assert "".join(checked("I am happy to help you!")) == REFUSAL
    answer = checked("I am happy to help you! The label costs EUR 3.50. Thank you.")
    assert "".join(answer) == "I am happy to help you! The label costs EUR 3.50. Thank you."


def test_a_check_added_from_outside_decides_what_is_shown():
    def no_labels(claim: Claim) -> str | None:
        return "labels are not spoken of" if "label" in claim.said.words and "Stickers" in claim.text else None

    said = "Stickers: The label costs EUR 3.50. You can return an item within 30 days of delivery."
    checker = AnswerChecker("?", PASSAGES, (*CHECKS, no_labels))
    answer = CheckedText(pieces(said), checker, refusal=REFUSAL, nothing=REFUSAL, answer_mode="checked")
    assert (
        "".join(answer) == "The label costs EUR 3.50. You can return an item within 30 days of delivery." == answer.text
    )
    assert answer.is_quotation
    assert "".join(checked(said)) == said


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


@pytest.mark.parametrize("answer_mode", ["free", "quote"])
def test_other_wordings_pass_as_they_come(answer_mode):
    answer = checked("Yes, gift cards can be returned.\n- A line", answer_mode)
    assert list(answer) == list(pieces("Yes, gift cards can be returned.\n- A line"))
    assert answer.text == "Yes, gift cards can be returned.\n- A line"
    assert answer.is_quotation == (answer_mode == "quote")
    assert answer.score == (1.0 if answer_mode == "quote" else None)
    refusal = checked(REFUSAL + " Bye.", answer_mode)
    assert "".join(refusal) == REFUSAL + " Bye."
    assert (refusal.is_refusal, refusal.is_changed) == (True, False)


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
