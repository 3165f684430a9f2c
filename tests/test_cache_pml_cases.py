"""The 96 acceptance cases of the language, through the API."""

import pytest
from pml_cases import Case, cases, deviations, facts_of

from cache.errors import PMLError
from cache.pml.parser import parse_prompt, parse_schema, write_prompt, write_schema


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_case_gives_what_it_must(case: Case) -> None:
    assert deviations(case, facts_of(case)) == [], case["title"]


@pytest.mark.parametrize("case", [c for c in cases() if "error" not in c["expect"]], ids=lambda case: case["id"])
def test_a_case_survives_being_written_again(case: Case) -> None:
    schema = parse_schema(case["schema"])
    assert parse_schema(write_schema(schema)) == schema
    if case["prompt"] is not None:
        prompt = parse_prompt(case["prompt"])
        assert parse_prompt(write_prompt(prompt)) == prompt


def test_the_cases_cover_every_group_of_the_specification() -> None:
    groups = {*range(1, 36), 47}
    assert {case["covers"] for case in cases()} == groups
    assert len({case["id"] for case in cases()}) == len(cases()) == 96


def test_a_wrong_outcome_is_seen() -> None:
    """The judge itself: no error passes for facts, no facts for an error, and every single fact counts."""
    for case in cases():
        outcome = facts_of(case)
        if isinstance(outcome, PMLError):
            assert deviations(case, {})
            assert deviations(case, PMLError("?", where="program", line=99))
            continue
        assert deviations(case, PMLError("?", where="prompt"))
        for key, value in outcome.items():
            changed = value + 1 if isinstance(value, int) else value + value[:1] if value else None
            assert bool(deviations(case, outcome | {key: changed})) == (key in case["expect"]), key
