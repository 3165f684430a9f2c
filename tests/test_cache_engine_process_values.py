"""What is sent to the process of an engine arrives as it was."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cache.errors
from cache.decoding.sampling import Sampling
from cache.engine.recomputation import SelectiveRecomputation
from cache.engine.request import Completion, Encoded, FinishReason, ModuleUse, Request, Reuse, Timings, Usage
from cache.errors import CacheError, PMLError
from cache.memory.disk import ModuleHeader, TierContents
from cache.memory.keys import ModuleCheck, PrefixUse
from cache.prompt.plan import Plan, Segment, Span
from cache.serving.interface import EngineInterface
from cache.serving.messages import (
    CallName,
    Encode,
    EncodingEnded,
    Ended,
    Failed,
    FromEngine,
    SentPlan,
    Submit,
    arguments_of,
    decoded,
    encoded,
    result_of,
)

TOKENS = st.lists(st.integers(0, 1 << 17), min_size=1, max_size=6).map(tuple)
NAMES = st.text(st.characters(codec="utf-8"), max_size=8)


@st.composite
def segments(draw: st.DrawFn, prefixes: tuple[Segment, ...] = ()) -> Segment:
    tokens, context = draw(TOKENS), draw(st.lists(st.integers(0, 99), max_size=3).map(tuple))
    gaps = tuple((row, draw(st.integers(1, 9))) for row in range(1, len(tokens)) if draw(st.booleans()))
    start = draw(st.integers(len(context), 1 << 20))
    prefix = draw(st.sampled_from([None, *prefixes]))
    return Segment(name=draw(NAMES), tokens=tokens, start=start, gaps=gaps, prefix=prefix, left_context=context)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Spans in any order, some of rows of a segment, some with other tokens than those, some of equal segments."""
    first = tuple(draw(st.lists(segments(), max_size=2)))
    known = [*first, *draw(st.lists(segments(first), max_size=3))]
    spans: list[Span] = []
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, 1 << 20))
        if not known or draw(st.booleans()):
            spans.append(Span(start=start, tokens=draw(TOKENS)))
            continue
        segment = draw(st.sampled_from(known))
        row = draw(st.integers(0, len(segment.tokens) - 1))
        tokens = draw(st.one_of(st.just(segment.tokens[row:]), TOKENS))
        spans.append(Span(start=start, tokens=tokens, segment=segment, row=row))
    return Plan(spans=(*spans, Span(start=1 << 21, tokens=draw(TOKENS))))


requests = st.builds(
    Request,
    plan=plans(),
    sampling=st.builds(
        Sampling,
        max_tokens=st.integers(1, 1 << 20),
        temperature=st.floats(0.01, 100),
        seed=st.none() | st.integers(0, 2**63 - 1),
        stop=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), max_size=2).map(tuple),
        given=st.lists(st.integers(0, 9)).map(tuple),
        opening=st.none() | st.tuples(st.integers(0, 99), st.floats(-9, 9)),
    ),
    reuse=st.sampled_from(get_args(Reuse)),
    recomputation=st.builds(SelectiveRecomputation, share=st.floats(0, 1)),
    session=st.none() | NAMES,
    module_tenant=st.none() | st.just("public"),
)
completions = st.builds(
    Completion,
    text=NAMES,
    tokens=st.none() | TOKENS,
    finish_reason=st.sampled_from(get_args(FinishReason)),
    usage=st.builds(Usage, prompt_tokens=st.integers(0, 9), session=st.integers(0, 9)),
    modules=st.lists(
        st.builds(
            ModuleUse,
            key=NAMES,
            name=NAMES,
            tokens=st.integers(0, 99),
            position=st.integers(0, 1 << 20),
            source=st.just("disk"),
            miss_reason=st.sampled_from([None, "evicted"]),
        ),
        max_size=2,
    ).map(tuple),
    timings=st.builds(Timings, queue=st.floats(0, 1e9), total=st.floats(0, 1e9)),
    exact=st.booleans(),
    logits=st.none(),
)


def sent(plan: Plan) -> Plan:
    return decoded(encoded(SentPlan.of(plan)), SentPlan).plan()


@given(plans())
@settings(max_examples=25, deadline=None)
def test_a_plan_arrives_as_it_was(plan):
    arrived = sent(plan)
    assert arrived == plan
    assert (arrived.exact_spans, arrived.segments()) == (plan.exact_spans, plan.segments())


@given(plans())
@settings(max_examples=25, deadline=None)
def test_equal_segments_of_a_plan_are_one_object(plan):
    """Also if they were several: which spans continue one another is told by identity."""
    arrived = sent(Plan(spans=(*copied(plan).spans, *plan.spans)))
    found = [part for span in arrived.spans if span.segment for part in span.segment.with_ancestors()]
    assert len({id(part) for part in found}) == len(set(found))


def copied(plan: Plan) -> Plan:
    """With a segment of its own for each span, and for each segment that stands behind another."""

    def copy(segment: Segment | None) -> Segment | None:
        return None if segment is None else replace(segment, prefix=copy(segment.prefix))

    return Plan(spans=tuple(replace(span, segment=copy(span.segment)) for span in plan.spans))


def test_a_segment_is_sent_once():
    long = Segment(name="long", tokens=tuple(range(1000, 3000)))
    behind = [Segment(name=str(i), tokens=(i,), prefix=long) for i in range(20)]
    spans = tuple(Span(start=i, tokens=one.tokens, segment=one) for i, one in enumerate(behind))
    one, all_ = (len(encoded(SentPlan.of(Plan(spans=some)))) for some in (spans[:1], spans))
    assert all_ < one + 20 * 150


@given(requests)
@settings(max_examples=25, deadline=None)
def test_a_request_arrives_as_it_was(request):
    arrived = decoded(encoded(Submit.of(1, request, is_idle=False)), Submit).asked()
    assert arrived == request


@given(completions)
@settings(max_examples=25, deadline=None)
def test_a_completion_arrives_as_it_was(completion):
    assert decoded(encoded(Ended(3, completion)), FromEngine) == Ended(3, completion)


def test_what_is_not_carried_is_refused():
    plan = Plan(spans=(Span(start=0, tokens=(1,)),))
    with pytest.raises(ValueError, match="does not support teacher forcing"):
        Submit.of(1, Request(plan=plan, teacher_forced=(1,)), is_idle=False)
    with pytest.raises(NotImplementedError, match="Tensor cannot be sent"):
        encoded([torch.zeros(1)])


def every_error() -> list[CacheError]:
    kinds = [kind for kind in vars(cache.errors).values() if isinstance(kind, type) and issubclass(kind, CacheError)]
    return [PMLError("wrong", where="schema", line=3) if kind is PMLError else kind("one line") for kind in kinds]


@pytest.mark.parametrize("error", every_error(), ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_itself(error):
    arrived = decoded(encoded(Failed(1, error)), Failed).error
    assert type(arrived) is type(error)
    assert (str(arrived), vars(arrived)) == (str(error), vars(error))


def test_an_error_of_an_unknown_class_is_a_cache_error():
    assert type(decoded(encoded(("Strange", "one line")), CacheError)) is CacheError


@given(st.lists(segments(), max_size=4, unique=True))
@settings(max_examples=25, deadline=None)
def test_what_became_of_modules_names_those_that_failed(asked):
    result = Encoded(2, {one: CacheError(one.name) for one in asked[::2]})
    arrived = decoded(encoded(EncodingEnded.of(1, result, asked)), EncodingEnded).encoded(asked)
    assert arrived.computed == 2
    assert {one: str(why) for one, why in arrived.failed.items()} == {one: one.name for one in asked[::2]}
    assert decoded(encoded(Encode.of(1, asked, "public")), Encode).modules() == asked


HEADER = ModuleHeader(
    key="k", name="n", tenant="t", fingerprint="f", prefix="", tokens="d", start=3, num_tokens=4, gaps="1+2"
)
VALUES: dict[str, object] = {
    "contents": TierContents(modules=(("disk", HEADER, 5),), num_bytes={"device": 1}, evictions={"module": 2}),
    "verify": ModuleCheck(largest_difference=0.5),
    "prefix_uses": [PrefixUse(tokens=(1, 2), num_tokens=3, hits=4)],
    "modules": frozenset({"a", "b"}),
    "forget": 3,
}


@pytest.mark.parametrize("name", get_args(CallName))
def test_methods_take_and_return_values(name):
    assert callable(getattr(EngineInterface, name))
    assert decoded(encoded(VALUES.get(name)), result_of(name) if name in VALUES else None) == VALUES.get(name)
    segment = Segment(name="a", tokens=(1,), prefix=Segment(name="b", tokens=(2,)), start=1)
    given_ = {"str": "a", "Set": {"a"}, "int": 3, "bool": False, "Segment": segment}
    values = tuple(given_[kind.__name__] for kind in getattr(arguments_of(name), "__args__", ()))
    assert decoded(encoded(values), arguments_of(name)) == values
