"""Planted errors: each kind changes what it says, and what is measured is what the checks say."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from evals.planted import PlantedClaim, PlantedDocuments, is_flagged, measure_planted, planted, row
from evals.planted_errors import KINDS, Surroundings
from evals.rewording import condition_last, contracted, reworded

WHERE = Surroundings(heading="Refunds", other_heading="Parking", names=("Galway", "Cork"))
PAGE = """# Refunds

You must send an item back within 30 days after delivery. We refund at least EUR 10 before Friday. The store in Galway
is open from 9:00 to 17:00.

If the item is broken, you can ask for a new one.
"""
OTHER = "# Parking\n\nParking is free for two hours. You can park behind the store in Cork.\n"


@pytest.mark.parametrize(
    ("kind", "claim", "wrong"),
    [
        ("number", "It takes 3 days.", None),
        ("date or time", "We open at 9:00.", None),
        ("name", "The store is in Galway.", "The store is in Cork."),
        ("negation", "You cannot return it.", "You can return it."),
        ("negation", "It is returned.", "It is not returned."),
        ("opposite", "Uploads are optional.", "Uploads are required."),
        ("order", "Pay before delivery.", "Pay after delivery."),
        ("bound", "It costs at least 5 euros.", "It costs at most 5 euros."),
        ("other page", "The item is refunded.", "Parking: The item is refunded."),
    ],
)
def test_an_error_changes_one_thing(kind: str, claim: str, wrong: str | None) -> None:
    made = KINDS[kind](claim, WHERE, random.Random(1))
    assert made not in (None, claim)
    assert wrong is None or made == wrong


@pytest.mark.parametrize("kind", KINDS)
def test_where_there_is_nothing_to_spoil_there_is_no_error(kind: str) -> None:
    assert KINDS[kind]("thanks", WHERE, random.Random(1)) is None


def test_rewording_keeps_what_is_said() -> None:
    assert contracted("You cannot return it.") == "You can't return it."
    assert condition_last("If it is broken, you can return it.") == "You can return it if it is broken."
    assert reworded("thanks", "", random.Random(1)) is None


def test_claims_have_their_own_passage_and_are_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "refunds.md").write_text(PAGE, encoding="utf-8")
    (tmp_path / "parking.md").write_text(OTHER, encoding="utf-8")
    (tmp_path / "empty.md").write_text("", encoding="utf-8")
    cases = list(planted(PlantedDocuments(tmp_path), each=1))
    assert cases == list(planted(PlantedDocuments(tmp_path), each=1))
    assert {"number", "order", "negation"} <= {case.kind for case in cases}
    for case in cases:
        assert case.claim != case.wrong
        assert any(case.claim in passage.replace("\n", " ") for passage in case.passages) or case.kind == "other page"


def test_the_share_of_errors_found_and_of_true_claims_flagged() -> None:
    passages = ("Refunds\nThe refund takes 5 days.",)
    right, wrong = "Please note that the refund takes 5 days.", "The refund takes 7 days."
    assert (is_flagged(right, passages), is_flagged(wrong, passages)) == (False, True)
    cases = [
        PlantedClaim(kind="number", is_verbatim=False, claim=right, wrong=wrong, passages=passages),
        PlantedClaim(kind="number", is_verbatim=False, claim=wrong, wrong=right, passages=passages),
    ]
    figures = measure_planted(cases)
    assert [figures["number"][key].value for key in ("found", "wrongly flagged")] == [0.5, 0.5]
    assert figures["order"]["found"].value is None
    assert row("number", figures["number"]).split(" | ")[1].strip() == "50 [9, 91] of 2"
