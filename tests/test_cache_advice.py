"""What breaks reuse, found and priced; groups of requests, and what they save, counted by the engine's own books."""

import pytest
from recording import answer, running
from test_cache_engine import plan_of as parts_in_order
from tiny import build, make_segment

from cache.analysis.advice import advise_prompt, advise_prompts, advise_schema, advise_text, volatile
from cache.analysis.memory_plan import count_tokens, group
from cache.engine.request import Request
from cache.errors import PMLError
from cache.pml.layout import lay_out
from cache.pml.parser import parse_prompt, parse_schema
from cache.prompt.plan import Plan, Segment
from cache.prompt.tokenizer import WordTokenizer


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("on 2026-11-21 it", "a date ('2026-11-21')"),
        ("on November 21, 2026 it", "a date ('November 21, 2026')"),
        ("on 2025-06-02T09:14:33.123+00:00 it", "a time stamp ('2025-06-02T09:14:33.123+00:00')"),
        ("on June 2nd, 2025 it", "a date ('June 2nd, 2025')"),
        ("at 10:33 it", "a time of day ('10:33')"),
        ("id 123e4567-e89b-12d3-a456-426614174000 is", "an identifier ('123e4567-e89b-12d3-a456-426614174000')"),
        ("trace 0af7651916cd43dd8448eb211c80319c x", "an identifier ('0af7651916cd43dd8448eb211c80319c')"),
        ("from ann@example.org here", "an e-mail address ('ann@example.org')"),
        ("order 123456789 is", "a long number ('123456789')"),
    ],
)
def test_what_usually_changes_is_found(text, what):
    assert [found for _, found in volatile(text)] == [what]


@pytest.mark.parametrize("text", ["Returns take 30 days.", "Call 555 0199.", "It costs 4.95 in 2026.", "a/b 1.2.3"])
def test_ordinary_numbers_are_left_alone(text):
    assert list(volatile(text)) == []


def test_a_plain_prompt_loses_what_stands_behind_the_first_change():
    advice = advise_text("one two\nthree 2026-11-21 four\nfive 10:33", WordTokenizer())
    assert (advice.tokens, advice.reusable) == (7, 3)
    assert [(f.line, f.tokens) for f in advice.findings] == [(2, 4), (3, 1)]


def test_many_prompts_show_where_they_part_and_what_they_have_in_common_behind():
    prompts = [f"You help.\nToday is day {n}.\nRules one two three.\nQuestion {n}?" for n in range(4)]
    advice = advise_prompts(prompts, WordTokenizer())
    assert (advice.prompts, advice.tokens, advice.reusable) == (4, 4 * 12, 3 * 2)
    (finding,) = advice.findings
    assert (finding.line, finding.tokens) == (2, 3 * 4)
    assert "'Today is day" in finding.what


def test_stable_parts_first_leave_nothing_to_say():
    prompts = [f"You help.\nRules one two three.\nToday is day {n}.\nQuestion {n}?" for n in range(4)]
    advice = advise_prompts(prompts, WordTokenizer())
    assert advice.findings == ()
    assert advice.reusable == 3 * 6


def test_a_schema_is_told_what_is_computed_anew():
    schema = parse_schema(
        '<schema name="s">before it<module name="now" cache="false">a b c d</module>\n'
        '<module name="news">on 2026-11-21</module><module name="fine">f</module>after</schema>'
    )
    advice = advise_schema(lay_out(schema, WordTokenizer()))
    assert (advice.tokens, advice.reusable) == (10, 6)
    assert [(f.line, f.tokens, f.what.split(" ")[0:2]) for f in advice.findings] == [
        (1, 4, ["module", "'now'"]),
        (1, 3, ["the", "schema's"]),
        (2, 2, ["module", "'news'"]),
    ]


def test_long_text_of_a_prompt_wants_to_be_a_module():
    long = " ".join(["word"] * 100)
    advice = advise_prompt(parse_prompt(f'<prompt schema="s"><a/>\n<user>{long}</user></prompt>'), WordTokenizer())
    assert [(f.line, f.tokens) for f in advice.findings] == [(2, 100)]
    assert (advice.tokens, advice.reusable) == (100, 0)
    assert advise_prompt(parse_prompt('<prompt schema="s">short</prompt>'), WordTokenizer()).findings == ()


@pytest.mark.parametrize("piece", ["a", "f0", "1-"])
def test_long_lines_without_a_break_are_read_once(piece):
    """Was quadratic once: 200 KB of one word took minutes."""
    advise_text(piece * (200_000 // len(piece)), WordTokenizer())


def test_arguments_are_computed_in_every_request():
    prompt = parse_prompt('<prompt schema="s"><a x="one two"><b y="three"/></a>four five</prompt>')
    assert advise_prompt(prompt, WordTokenizer()).tokens == 5
    long = " ".join(["word"] * 100)
    prompt = parse_prompt(f'<prompt schema="s"><a>\n<b x="{long}"/></a></prompt>')
    (finding,) = advise_prompt(prompt, WordTokenizer()).findings
    assert (finding.line, finding.tokens) == (2, 100)
    assert "'x' of 'b'" in finding.what


def test_with_its_schema_a_prompt_is_told_what_it_reuses():
    schema = parse_schema(
        '<schema name="s">r1 r2<module name="a">a1 a2 a3 <parameter name="x" length="4"/></module>'
        '<module name="now" cache="false">n1</module></schema>'
    )
    layout = lay_out(schema, WordTokenizer())
    prompt = parse_prompt('<prompt schema="s"><a x="one two"/><now/>three four</prompt>')
    advice = advise_prompt(prompt, layout.tokenizer, layout)
    assert (advice.tokens, advice.reusable, advice.findings) == (10, 5, ())
    ends_in_a_module = parse_prompt('<prompt schema="s"><a/></prompt>')
    advice = advise_prompt(ends_in_a_module, layout.tokenizer, layout)
    assert (advice.tokens, advice.reusable) == (5, 4)
    with pytest.raises(PMLError):
        advise_prompt(parse_prompt('<prompt schema="s"><b/></prompt>'), layout.tokenizer, layout)


SYSTEM = make_segment("system", "Answer. ")
DOCUMENTS = [make_segment(f"d{i}", f"Document {i} says quite a lot of things. ", SYSTEM) for i in range(6)]


def plan_of(question: str, *segments: Segment) -> Plan:
    return parts_in_order(SYSTEM, *segments, question)


def test_requests_that_share_a_module_stand_together():
    a, b, c, *_ = DOCUMENTS
    plans = [plan_of("1", a), plan_of("2", b), plan_of("3", a, c), plan_of("4", b), plan_of("5", a)]
    groups = group(plans)
    assert sorted(index for members in groups for index in members) == [0, 1, 2, 3, 4]
    assert [sorted(members) for members in groups] == [[0, 2, 4], [1, 3]]


def test_a_dry_run_counts_what_the_engine_counts():
    """Also under eviction: both have an arena of the same number of tokens."""
    model = build()
    memory = 170 * model.info.kv.bytes_per_token
    requests = [Request(plan=plan_of(f"{i}?", DOCUMENTS[i % 6], DOCUMENTS[(i + 1) % 6])) for i in range(14)]
    counted = [usage.computed for usage in count_tokens(requests, model.info, model.tokenizer, memory)]
    with running(model, memory=memory) as engine:
        measured = [answer(engine, request.plan).usage.computed for request in requests]
        assert engine.call(lambda store: store.device.evictions["module"]) > 0
    assert counted == measured
