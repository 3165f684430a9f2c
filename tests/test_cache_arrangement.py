"""Contiguous placement: what stands where, and what a module may supply."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import ByteTokenizer

from cache.arrangement import arrange, module_unit
from cache.errors import PromptError
from cache.plan import Plan, Span
from cache.pml import Module, Text
from cache.text_runs import run_tokens


def text(value: str) -> Text:
    return Text(text=value)


SYSTEM = Module(name="system", children=(Text(text="<a>", structural=True), text("Answer.")))
RETURNS = Module(name="returns", children=(text("30 days."),), after=SYSTEM)
DETAIL = Module(name="detail", children=(text("Unworn."),), after=RETURNS)
EMPTY = Module(name="empty", children=(text(""),), after=SYSTEM)
LETTER = Module(name="letter", children=(text("x"),))
MODULES = {module.name: module for module in (SYSTEM, RETURNS, DETAIL, EMPTY, LETTER)}


def plan_of(*parts: Module | Text, relocatable: bool = True, max_positions: int = 4096) -> Plan:
    return arrange(parts, ByteTokenizer(), relocatable=relocatable, max_positions=max_positions)


def test_parts_stand_one_after_another() -> None:
    plan = plan_of(SYSTEM, RETURNS, text("Why?"))
    assert [(span.start, span.end, span.unit and span.unit.name) for span in plan.spans] == [
        (0, 8, "system"),
        (8, 16, "returns"),
        (16, 20, None),
    ]
    assert plan.spans[0].tokens == (256, *b"Answer.")
    assert plan.num_tokens == plan.next_position == 20
    assert [unit.name for unit in plan.units()] == ["system", "returns"]


@given(st.lists(st.sampled_from([*MODULES]) | st.text(max_size=5), min_size=1, max_size=8))
def test_any_prompt_is_contiguous_complete_and_ends_computed(parts: list[str]) -> None:
    nodes = [MODULES.get(part) or text(part) for part in parts]
    whole = [t for node in nodes for t in expected_tokens(node)]
    if not whole:
        with pytest.raises(PromptError, match="empty"):
            plan_of(*nodes)
        return
    plan = plan_of(*nodes)
    assert [t for span in plan.spans for t in span.tokens] == whole
    assert plan.spans[0].start == 0
    assert plan.spans[-1].unit is None
    assert plan.num_tokens == plan.next_position == len(whole)
    assert all(span.tokens for span in plan.spans)
    for before, after in pairwise(plan.spans):
        assert before.end == after.start
        assert before.unit is not None or after.unit is not None, "computed neighbours were not joined"
    for span in plan.spans:
        assert span.unit is None or span.unit.tokens[: len(span.tokens)] == span.tokens
    assert plan.without_units().spans == (Span(start=0, tokens=tuple(whole)),)


def expected_tokens(node: Module | Text) -> tuple[int, ...]:
    """Tokens of a part by themselves."""
    if isinstance(node, Text):
        return tuple(node.text.encode())
    return module_unit(node, ByteTokenizer()).tokens


def test_a_module_is_encoded_behind_its_conditioning_prefixes() -> None:
    unit = module_unit(DETAIL, ByteTokenizer())
    assert [(u.name, u.start, len(u.tokens)) for u in unit.with_ancestors()] == [
        ("system", 0, 8),
        ("returns", 8, 8),
        ("detail", 16, 7),
    ]


def test_without_relocation_a_module_is_encoded_where_it_stands() -> None:
    plan = plan_of(text("Hello. "), RETURNS, text("?"), relocatable=False)
    assert plan.spans[1].unit is not None
    assert plan.spans[1].unit.start == plan.spans[1].start == 7
    moved = plan_of(text("Hello. "), RETURNS, text("?"))
    assert moved.spans[1].unit is not None
    assert moved.spans[1].unit.start == 8


def test_a_prompt_that_ends_in_a_module_computes_its_last_token() -> None:
    plan = plan_of(SYSTEM, RETURNS)
    last, tail = plan.spans[-2:]
    assert (last.start, last.tokens, tail.start, tail.tokens) == (8, tuple(b"30 days"), 15, tuple(b"."))
    assert last.unit is not None
    assert last.unit.tokens == tuple(b"30 days.")
    assert tail.unit is None


def test_a_last_module_of_one_token_is_simply_computed() -> None:
    plan = plan_of(text("ab"), LETTER)
    assert plan.spans == (Span(start=0, tokens=tuple(b"abx")),)


def test_too_long_is_refused_and_just_fitting_is_not() -> None:
    assert plan_of(text("x" * 10), max_positions=10).num_tokens == 10
    with pytest.raises(PromptError, match="needs 11 positions, the model has 10"):
        plan_of(text("x" * 11), max_positions=10)


@pytest.mark.parametrize("parts", [(), (text(""),), (EMPTY,), (text(""), EMPTY)])
def test_an_empty_prompt_is_refused(parts: tuple[Module | Text, ...]) -> None:
    with pytest.raises(PromptError, match="empty"):
        plan_of(*parts)


def test_special_tokens_only_in_structural_text_and_known_tokens_as_they_are() -> None:
    assert run_tokens([Text(text="<b>", structural=True)], ByteTokenizer()) == (257,)
    assert run_tokens([text("<b>")], ByteTokenizer()) == tuple(b"<b>")
    assert run_tokens([Text(text="for people", tokens=(9, 8))], ByteTokenizer()) == (9, 8)
    assert run_tokens([Text(text="for people", tokens=())], ByteTokenizer()) == ()


def test_an_empty_conditioning_prefix_is_no_prefix() -> None:
    """Was wrong once: a unit behind an empty module keeps it as a prefix, and encoding a unit without tokens
    stops the engine (see `test_cache_engine_faults`). An empty system text is enough for that.
    """
    module = Module(name="a", children=(text("a"),), after=Module(name="system"))
    assert module_unit(module, ByteTokenizer()).prefix is None
