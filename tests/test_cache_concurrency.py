"""Many requests over thirty modules on one small engine, one after another and from eight threads: every answer
is the one that a fresh engine gives to that request alone.
"""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import pytest
from recording import Recorder, running
from tiny import build

from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.request import Completion, FinishReason, Request, Reuse
from cache.memory.disk import DiskTier
from cache.pml.binding import Registry, module_segments
from cache.pml.parser import parse_prompt, parse_schema

REQUESTS = 60
THREADS = 8
TOKENS = 4
ARENA = 700  # tokens of KV memory: about half of the modules, so that they come and go
WORDS = ["refund", "parcel", "gift", "delivery", "return", "thirty", "days", "shop", "order", "label", "size"]
REUSES: list[Reuse] = ["on", "on", "on", "on", "on", "on", "prefix", "off"]
EARLY = tuple(map(chr, [*range(1, 128), 0xFFFD]))
"""Stop strings that end most answers before their last token, with rows of their own left over."""
QUESTIONS = ["Why?", "Can I return a gift card?", "How long does it take?", "And then?", "Is it free of charge?"]


@dataclass(frozen=True)
class Ask:
    prompt: str
    reuse: Reuse
    tenant: str
    session: str | None
    stop: tuple[str, ...]


Answer = tuple[tuple[int, ...] | None, str, FinishReason, bool]
"""Tokens, text, why it ended, and whether it is exact."""


def answer_of(completion: Completion) -> Answer:
    return completion.tokens, completion.text, completion.finish_reason, completion.exact


@cache
def schema() -> str:
    """Thirty modules: nested, in unions, with slots, with sets and one that is never kept."""
    chance = random.Random(1)

    def text(words: int) -> str:
        return " ".join(chance.choice(WORDS) for _ in range(words))

    parts = ["Answer from the documents."]
    for i in range(8):
        parts.append(f'<module name="plain{i}">{text(5)}<module name="more">{text(3)}</module> {text(2)}</module>')
    for i in range(4):
        members = "".join(f'<module name="u{i}{k}">{text(3 + k)}</module>' for k in range(2))
        parts.append(f"<union scaffold='u{i}1'>{members}</union>" if i == 0 else f"<union>{members}</union>")
    for i in range(5):
        parts.append(f'<module name="form{i}">Dear <param name="who" len="8" scaffold="you"/>, {text(4)}</module>')
    parts.append(f'<module name="live" cache="false">{text(3)}</module>')
    parts.append('<scaffold modules="plain0 form0"/><scaffold modules="plain1 plain1/more form1"/> Be brief.')
    return f'<schema name="desk">{"".join(parts)}</schema>'


@cache
def asks() -> tuple[Ask, ...]:
    chance = random.Random(2)

    def prompt() -> str:
        parts = [f"<plain{i}>{chance.choice(['', '<more/>'])}</plain{i}>" for i in chance.sample(range(8), 2)]
        parts += [f"<u{i}{chance.randrange(2)}/>" for i in chance.sample(range(4), 2)]
        parts += [f'<form{i} who="{chance.choice(["", "Ann", "Mr Bo"])}"/>' for i in chance.sample(range(5), 1)]
        parts += ["<live/>"] * (chance.random() < 0.2)
        chosen = chance.sample(parts, chance.randrange(1, 4))
        return f'<prompt schema="desk">{"".join(chosen)}{chance.choice([*QUESTIONS, ""])}</prompt>'

    several = [
        Ask(
            prompt(),
            chance.choice(REUSES),
            chance.choice(["public", "public", "other"]),
            chance.choice([None, "s"]),
            chance.choice([(), (), EARLY]),
        )
        for _ in range(REQUESTS * 3 // 4)
    ]
    return tuple(chance.choices(several, k=REQUESTS))


def ask(engine: Engine, schemas: Registry, one: Ask) -> Completion:
    plan = schemas.bind(parse_prompt(one.prompt)).plan
    sampling = Sampling(max_tokens=TOKENS, stop=one.stop)
    request = Request(plan=plan, sampling=sampling, reuse=one.reuse, tenant=one.tenant, session=one.session)
    return engine.submit(request).completion


@pytest.fixture(scope="module")
def expected():
    """What fresh engines answer, each to one request. No answer is a close call, so rounding decides none."""
    model = build()
    recorder = Recorder(model)
    answers = {}
    for one in dict.fromkeys(asks()):
        with running(model) as engine:
            schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
            schemas.add(parse_schema(schema()))
            completion = ask(engine, schemas, one)
        answers[one] = answer_of(completion)
    assert Counter(reason for _, _, reason, _ in answers.values())["stop"] > len(answers) / 10
    for logits in recorder.logits:
        best, second = logits.topk(2).values
        assert best - second > 1e-4
    return answers


def check(engine: Engine, completions: list[Completion], expected: dict[Ask, Answer]) -> None:
    """Same answers, exact accounting, and modules that were evicted and came back."""
    for one, completion in zip(asks(), completions, strict=True):
        assert answer_of(completion) == expected[one], one
        assert completion.usage.prompt_tokens == completion.usage.computed + completion.usage.cached_tokens
    engine.call(lambda store: store.check_integrity())
    assert engine.call(lambda store: store.device.evictions["module"]) > 0
    assert {"device", "disk", "computed"} <= {use.source for completion in completions for use in completion.modules}


def test_history_changes_no_answer(tmp_path, expected):
    model = build()
    memory = ARENA * model.info.kv.bytes_per_token
    with running(model, memory=memory, disk=DiskTier(tmp_path, 1 << 30)) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        schemas.add(parse_schema(schema()))
        check(engine, [ask(engine, schemas, one) for one in asks()], expected)


def test_neighbours_change_no_answer(tmp_path, expected):
    """Eight threads, while all modules are encoded ahead of use and the schema is replaced by itself."""
    model = build()
    memory = ARENA * model.info.kv.bytes_per_token
    with running(model, memory=memory, disk=DiskTier(tmp_path, 1 << 30)) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        layout = schemas.add(parse_schema(schema()))
        with ThreadPoolExecutor(THREADS) as pool:
            answers = [pool.submit(ask, engine, schemas, one) for one in asks()]
            encoded = engine.encode(module_segments(layout))
            schemas.replace(parse_schema(schema()))
            completions = [answer.result() for answer in answers]
        assert encoded.result().computed <= len(module_segments(layout))
        check(engine, completions, expected)
