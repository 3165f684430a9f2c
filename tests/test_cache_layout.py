"""From prompts to plans: what stands where, and what a module may supply."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import ByteTokenizer

from cache.errors import PromptError
from cache.layout import Plan, Span, Unit, end_computed, join_spans, lay_out, text_tokens, unit_of
from cache.pml import Import, Module, Prompt, Schema, Text

SCHEMA = Schema.of(
    "desk",
    (
        Module(name="system", texts=(Text(text="<a>", structural=True), Text(text="Answer."))),
        Module(name="returns", texts=(Text(text="30 days."),), after="system"),
        Module(name="detail", texts=(Text(text="Unworn."),), after="returns"),
        Module(name="empty", texts=(Text(text=""),), after="system"),
        Module(name="letter", texts=(Text(text="x"),)),
    ),
)
LENGTHS = {"system": 8, "returns": 8, "detail": 7, "empty": 0, "letter": 1}


def plan_of(*parts: Import | Text, relocatable: bool = True, max_positions: int = 4096) -> Plan:
    prompt = Prompt(schema=SCHEMA, parts=parts)
    return lay_out(prompt, ByteTokenizer(), relocatable=relocatable, max_positions=max_positions)


def text(value: str) -> Text:
    return Text(text=value)


def test_parts_stand_one_after_another() -> None:
    plan = plan_of(Import(module="system"), Import(module="returns"), text("Why?"))
    assert [(span.start, span.end, span.unit and span.unit.name) for span in plan.spans] == [
        (0, 8, "system"),
        (8, 16, "returns"),
        (16, 20, None),
    ]
    assert plan.spans[0].tokens == (256, *b"Answer.")
    assert plan.num_tokens == plan.next_position == 20
    assert [unit.name for unit in plan.units()] == ["system", "returns"]


@given(st.lists(st.sampled_from([*LENGTHS]) | st.text(max_size=5), min_size=1, max_size=8))
def test_any_prompt_is_contiguous_complete_and_ends_computed(parts: list[str]) -> None:
    nodes = [Import(module=part) if part in LENGTHS else text(part) for part in parts]
    whole = [t for part, node in zip(parts, nodes, strict=True) for t in expected_tokens(part, node)]
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


def expected_tokens(part: str, node: Import | Text) -> tuple[int, ...]:
    """Tokens of a part by themselves."""
    if isinstance(node, Text):
        return tuple(part.encode())
    return unit_of(SCHEMA, SCHEMA.modules[part], ByteTokenizer()).tokens


def test_a_module_is_encoded_behind_its_conditioning_prefixes() -> None:
    unit = unit_of(SCHEMA, SCHEMA.modules["detail"], ByteTokenizer())
    assert [(u.name, u.start, len(u.tokens)) for u in unit.with_ancestors()] == [
        ("system", 0, 8),
        ("returns", 8, 8),
        ("detail", 16, 7),
    ]


def test_without_relocation_a_module_is_encoded_where_it_stands() -> None:
    plan = plan_of(text("Hello. "), Import(module="returns"), text("?"), relocatable=False)
    assert plan.spans[1].unit is not None
    assert plan.spans[1].unit.start == plan.spans[1].start == 7
    moved = plan_of(text("Hello. "), Import(module="returns"), text("?"))
    assert moved.spans[1].unit is not None
    assert moved.spans[1].unit.start == 8


def test_a_prompt_that_ends_in_a_module_computes_its_last_token() -> None:
    plan = plan_of(Import(module="system"), Import(module="returns"))
    last, tail = plan.spans[-2:]
    assert (last.start, last.tokens, tail.start, tail.tokens) == (8, tuple(b"30 days"), 15, tuple(b"."))
    assert last.unit is not None
    assert last.unit.tokens == tuple(b"30 days.")
    assert tail.unit is None


def test_a_last_module_of_one_token_is_simply_computed() -> None:
    plan = plan_of(text("ab"), Import(module="letter"))
    assert plan.spans == (Span(start=0, tokens=tuple(b"abx")),)


def test_too_long_is_refused_and_just_fitting_is_not() -> None:
    assert plan_of(text("x" * 10), max_positions=10).num_tokens == 10
    with pytest.raises(PromptError, match="needs 11 positions, the model has 10"):
        plan_of(text("x" * 11), max_positions=10)


@pytest.mark.parametrize("parts", [(), (text(""),), (Import(module="empty"),), (text(""), Import(module="empty"))])
def test_an_empty_prompt_is_refused(parts: tuple[Import | Text, ...]) -> None:
    with pytest.raises(PromptError, match="empty"):
        plan_of(*parts)


def test_an_unknown_module_is_refused_by_name() -> None:
    with pytest.raises(PromptError, match="'nowhere' is not in schema 'desk'"):
        plan_of(Import(module="nowhere"), text("?"))


def test_join_spans_joins_what_touches_and_is_computed() -> None:
    unit = Unit(name="u", tokens=(5,))
    spans = (
        Span(start=0, tokens=(1,)),
        Span(start=1, tokens=()),
        Span(start=1, tokens=(2,)),
        Span(start=4, tokens=(3,)),
        Span(start=5, tokens=(5,), unit=unit),
        Span(start=6, tokens=(), unit=unit),
        Span(start=6, tokens=(5,), unit=unit),
        Span(start=7, tokens=(6,)),
    )
    assert [(s.start, s.tokens, s.unit) for s in join_spans(spans)] == [
        (0, (1, 2), None),
        (4, (3,), None),
        (5, (5,), unit),
        (6, (5,), unit),
        (7, (6,), None),
    ]
    assert join_spans(()) == ()


def test_a_computed_end_stays_as_it_is() -> None:
    spans = (Span(start=0, tokens=(1, 2)),)
    assert end_computed(spans) is spans


def test_special_tokens_only_in_structural_text_and_known_tokens_as_they_are() -> None:
    assert text_tokens(Text(text="<b>", structural=True), ByteTokenizer()) == (257,)
    assert text_tokens(text("<b>"), ByteTokenizer()) == tuple(b"<b>")
    assert text_tokens(Text(text="for people", tokens=(9, 8)), ByteTokenizer()) == (9, 8)
    assert text_tokens(Text(text="for people", tokens=()), ByteTokenizer()) == ()


def test_an_empty_conditioning_prefix_is_no_prefix() -> None:
    """Was wrong once: a unit behind an empty module keeps it as a prefix, and encoding a unit without tokens
    stops the engine (see `test_cache_engine_faults`). An empty system text is enough for that.
    """
    schema = Schema.of("s", (Module(name="system", texts=()), Module(name="a", texts=(text("a"),), after="system")))
    assert unit_of(schema, schema.modules["a"], ByteTokenizer()).prefix is None


def test_a_schema_names_its_mistakes() -> None:
    one = Module(name="one", texts=())
    with pytest.raises(ValueError, match="'one' is defined twice"):
        Schema.of("s", (one, one))
    with pytest.raises(ValueError, match="'two' stands after unknown 'three'"):
        Schema.of("s", (one, Module(name="two", texts=(), after="three")))
    with pytest.raises(TypeError):
        SCHEMA.modules["new"] = one  # type: ignore[index]
