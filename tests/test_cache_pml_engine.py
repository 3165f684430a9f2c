"""PML prompts on the engine, against one full forward pass with the block mask."""

import pytest
from recording import Recorder, answer, running
from tiny import build, oracle_logits, stock

from cache.engine.engine import Engine
from cache.memory.disk import DiskTier
from cache.pml.binding import Registry
from cache.pml.parser import parse_prompt, parse_schema
from cache.prompt.plan import Plan

TOLERANCE = 1e-4
SCHEMA = """<schema name="trip">You plan trips.
<module name="city">A city <parameter name="name" length="12" scaffold="somewhere"/> is chosen, for
<parameter name="days" length="4"/> days.<module name="hotel">The hotel is near.</module> Bring shoes.</module>
<union><module name="rain">It rains a lot.</module><module name="sun">Sun, mostly.</module></union>
<module name="live" cache="false">It is noon.</module>
<module name="food">Eat well.</module>
<scaffold modules="city food"/>
Answer in one line.</schema>"""
PROMPTS = {
    "arguments": '<prompt schema="trip"><city name="Oslo" days="3"><hotel/></city><sun/>What now?</prompt>',
    "text between": '<prompt schema="trip"><city><hotel/></city>hm<food/>Why?</prompt>',
    "computed module": '<prompt schema="trip"><live/><rain/>And?</prompt>',
    "modules only": '<prompt schema="trip"><rain/><food/></prompt>',
    "scaffold": '<prompt schema="trip"><food/><city name="Bergen"/>Well?</prompt>',
    "text only": '<prompt schema="trip">Hello?</prompt>',
}


def bound(schemas: Registry, prompt: str) -> Plan:
    return schemas.bind(parse_prompt(prompt)).plan


@pytest.mark.parametrize(("family", "prompt"), [*(("llama", prompt) for prompt in PROMPTS), ("gpt2", "arguments")])
def test_cached_logits_equal_the_block_mask(family, prompt):
    model = build(family)
    recorder = Recorder(model)
    with running(model) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        schemas.add(parse_schema(SCHEMA))
        plan = bound(schemas, PROMPTS[prompt])
        first = answer(engine, plan)
        second = answer(engine, plan)
    expected = oracle_logits(stock(family), plan)
    for logits in (recorder.logits[0], recorder.logits[-1]):
        assert (logits - expected).abs().max() < TOLERANCE
    assert first.usage.computed == plan.num_tokens
    supplied = sum(len(span.tokens) for span in plan.spans if span.segment is not None)
    assert second.usage.module == supplied


def test_one_module_at_the_start_is_exact():
    """What precedes nothing was encoded behind nothing: the cached answer is the plain one."""
    model = build()
    recorder = Recorder(model)
    with running(model) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        schemas.add(parse_schema('<schema name="s"><module name="doc">Gift cards stay.</module></schema>'))
        plan = bound(schemas, '<prompt schema="s"><doc/>Why is that?</prompt>')
        completion = answer(engine, plan)
    assert completion.exact
    assert (recorder.logits[0] - oracle_logits(stock(), plan.without_segments())).abs().max() < TOLERANCE


def test_a_changed_module_is_encoded_again_and_nothing_else(tmp_path):
    def encoded_anew(engine: Engine, schemas: Registry, text: str) -> int:
        layout = schemas.replace(parse_schema(text))
        return engine.encode(schemas.segments_of(layout)).result(timeout=60).computed

    with running(build(), disk=DiskTier(tmp_path, 1 << 30)) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        assert encoded_anew(engine, schemas, SCHEMA) == 7  # root, city, hotel, rain, sun, food, and the set
        assert encoded_anew(engine, schemas, SCHEMA.replace("Sun, mostly.", "Sun, always.")) == 1
        completion = answer(engine, bound(schemas, PROMPTS["scaffold"]))
        assert {use.source for use in completion.modules} == {"device"}
        assert (
            encoded_anew(engine, schemas, SCHEMA.replace("Eat well.", "Eat less.")) == 2
        )  # food, and the set it is in
        longer = SCHEMA.replace("Sun, mostly.", "Sun, all of the time.")
        # The union grows: what was encoded on both sides of it (root text, the set) stands further apart now.
        assert encoded_anew(engine, schemas, longer) == 3
        completion = answer(engine, bound(schemas, '<prompt schema="trip"><city><hotel/></city><rain/>?</prompt>'))
        assert {use.source for use in completion.modules} == {"device"}


def test_modules_of_equal_text_are_computed_once():
    """Two names, one encoding: the books count it once."""
    with running(build()) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        schemas.add(
            parse_schema(
                '<schema name="s">in<module name="a">same words</module><module name="b">same words</module></schema>'
            )
        )
        completion = answer(engine, bound(schemas, '<prompt schema="s"><a/><b/>?</prompt>'))
    assert (completion.usage.computed, completion.usage.module) == (len("insame words?"), len("same words"))


def test_text_whose_distance_changed_was_built_for_another_place():
    schema = '<schema name="s">in<module name="a">{}</module>out</schema>'
    prompt = '<prompt schema="s"><a/>?</prompt>'
    with running(build()) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        schemas.add(parse_schema(schema.format("aaa")))
        answer(engine, bound(schemas, prompt))
        schemas.replace(parse_schema(schema.format("aaaa")))
        completion = answer(engine, bound(schemas, prompt))
    assert {use.name: use.miss_reason for use in completion.modules} == {"s": "placement", "s/a": "document changed"}


def test_what_fits_the_model_can_be_encoded_ahead_behind_a_stub():
    model = build()
    model.tokenizer.sink_prefix = (257, 258, 259)
    text = "b" * (model.info.max_positions - 2)
    with running(model, memory=32 << 20) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        layout = schemas.add(parse_schema(f'<schema name="s">a<module name="m">{text}</module></schema>'))
        assert engine.encode(schemas.segments_of(layout)).result(timeout=120).computed == 2
