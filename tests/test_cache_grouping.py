"""Groups of requests, and what they save, counted by the engine's own books."""

from recording import answer, running
from test_cache_engine import plan_of as parts_in_order
from tiny import build, make_segment

from cache.analysis.memory_plan import count_tokens, group
from cache.engine.request import Request
from cache.prompt.plan import Plan, Segment, Span

SYSTEM = make_segment("system", "Answer. ")
DOCUMENTS = [make_segment(f"d{i}", f"Document {i} says quite a lot of things. ", SYSTEM) for i in range(6)]


def plan_of(question: str, *segments: Segment) -> Plan:
    return parts_in_order(SYSTEM, *segments, question)


def test_requests_that_share_a_module_stand_together() -> None:
    a, b, c, *_ = DOCUMENTS
    plans = [plan_of("1", a), plan_of("2", b), plan_of("3", a, c), plan_of("4", b), plan_of("5", a)]
    groups = group(plans)
    assert sorted(index for members in groups for index in members) == [0, 1, 2, 3, 4]
    assert [sorted(members) for members in groups] == [[0, 2, 4], [1, 3]]


def test_plain_prompts_stand_together_by_their_beginning() -> None:
    plans = [Plan(spans=(Span(start=0, tokens=tuple(text.encode())),)) for text in ("ab1", "xy1", "ab2", "xy2")]
    assert [index for members in group(plans) for index in members] == [0, 2, 1, 3]


def test_nothing_to_group() -> None:
    assert group([]) == []
    assert group([plan_of("?")]) == [[0]]


def test_a_dry_run_counts_what_the_engine_counts() -> None:
    """Also under eviction: both have an arena of the same number of tokens."""
    model = build()
    memory = 170 * model.info.kv.bytes_per_token
    requests = [Request(plan=plan_of(f"{i}?", DOCUMENTS[i % 6], DOCUMENTS[(i + 1) % 6])) for i in range(14)]
    counted = [usage.computed for usage in count_tokens(requests, model.info, model.tokenizer, memory)]
    with running(model, memory=memory) as engine:
        measured = [answer(engine, request.plan).usage.computed for request in requests]
        assert engine.call(lambda store: store.device.evictions["module"]) > 0
    assert counted == measured


def test_grouping_saves_tokens_where_memory_is_short() -> None:
    model = build()
    plans = [plan_of(f"{i}?", DOCUMENTS[i % 6]) for i in range(24)]
    requests = [Request(plan=plan) for plan in plans]
    order = [index for members in group(plans) for index in members]
    memory = 110 * model.info.kv.bytes_per_token
    ungrouped = sum(usage.computed for usage in count_tokens(requests, model.info, model.tokenizer, memory))
    in_order = [requests[i] for i in order]
    grouped = sum(usage.computed for usage in count_tokens(in_order, model.info, model.tokenizer, memory))
    once = len(SYSTEM.tokens) + sum(len(segment.tokens) for segment in DOCUMENTS)
    assert grouped < ungrouped
    assert grouped >= once
