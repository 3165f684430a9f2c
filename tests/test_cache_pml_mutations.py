"""The 96 acceptance cases of the language, and thousands of damaged ones: each is a valid schema or prompt, or a
PMLError, after a linear number of calls.

(Paths of modules nested thousands deep are long, so memory grows faster there.)
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from pml_cases import cases, deviations, facts_of

from cache.errors import PMLError
from cache.pml.binding import bind, module_segments
from cache.pml.layout import Layout, lay_out
from cache.pml.nodes import Prompt
from cache.pml.parser import parse_prompt, parse_schema, write_prompt, write_schema
from cache.prompt.tokenizer import NAMED, WordTokenizer

INPUTS = 1_500
POSITIONS = 50_000
DEPTH = 1200  # more than Python lets functions call each other
COMPARABLE = 200  # python cannot compare deep trees
BLOCKS = Path(__file__).with_name("pml_pieces.txt").read_text(encoding="utf-8").split("\n\n")
SCRAPS, WRAPPERS, ATTRIBUTES, ELEMENTS = (block.splitlines() for block in BLOCKS)
CHARACTERS = list(" \n\0\x01\x1b\x7f\x85\ufeff\ufffe\uffff\ud800\udfff\udc80\u202e\u0301")
MANY = "".join(f' q{i}="v"' for i in range(300))
HUGE = [
    "x" * 5000,
    f'<module name="{"n" * 5000}"/>',
    f"<{'t' * 5000}/>",
    f'<a {"p" * 5000}="{"v" * 5000}"/>',
    f"<a{MANY}/>",
    f"&#{'9' * 5000};",
]
PIECES = [*SCRAPS, *CHARACTERS, *ELEMENTS, *HUGE]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"]
TAGS = re.compile("<[^>]*>|[^<]+")


def torn(text: str, others: list[str], chance: random.Random) -> str:
    """A text with characters deleted, doubled, moved, changed or taken from elsewhere, or something put in."""
    for _ in range(chance.choice([1, 1, 1, 1, 2, 3])):
        start, end = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        if chance.random() < 0.5:
            end = min(end, start + chance.randrange(1, 12))
        match chance.randrange(8):
            case 0:
                text = text[:start] + text[end:]
            case 1:
                text = text[:end] + text[start:]
            case 2:
                text = text[:start] + text[end:] + text[start:end]
            case 3:
                other = chance.choice(others)
                text = text[:start] + other[start:end] + text[end:]
            case 4:
                text = text[:start] + chr(chance.choice([32, 10, 120, chance.randrange(0x110000)])) + text[end:]
            case _:
                text = text[:start] + chance.choice(PIECES) + text[start:]
        text = text[:20_000]
    return text


def rebuilt(text: str, others: list[str], chance: random.Random) -> str:
    """A text with tags and texts deleted, doubled, swapped, wrapped, put in or given attributes: often well-formed."""
    parts = TAGS.findall(text)
    for _ in range(chance.choice([1, 1, 2, 3])):
        at, other = (chance.randrange(1, max(2, len(parts) - 1)) for _ in range(2))
        if at >= len(parts):
            continue
        match chance.randrange(8):
            case 0:
                del parts[at]
            case 1:
                parts.insert(other, parts[at])
            case 2 if other < len(parts):
                parts[at], parts[other] = parts[other], parts[at]
            case 3:
                parts[at] = chance.choice(TAGS.findall(chance.choice(others)))
            case 4:
                tag = chance.choice(WRAPPERS)
                start, end = sorted((at, other))
                parts[start:end] = [f"<{tag}>", *parts[start:end], f"</{tag.split()[0]}>"]
            case 5 | 6 if parts[at].startswith("<") and not parts[at].startswith("</"):
                name = re.match("<[^ />]*", parts[at])
                assert name is not None
                parts[at] = f"{name.group()} {chance.choice(ATTRIBUTES)}{parts[at][name.end() :]}"
            case _:
                parts.insert(at, chance.choice(ELEMENTS))
    return "".join(parts)


def damaged(text: str, chance: random.Random) -> bytes:
    content = bytearray(text.encode(chance.choice(ENCODINGS), "surrogatepass" if chance.random() < 0.5 else "replace"))
    for _ in range(chance.randrange(3)):
        if content:
            content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content[: chance.choice([len(content), chance.randrange(len(content) + 1)])])


def outcome(schema: str | bytes, prompt: str | bytes, folder: Path | None = None) -> str:
    try:
        check(schema, prompt, folder)
    except PMLError as error:
        return error.where if "\n" not in str(error) else "not one line"
    return "fine"


def check(schema: str | bytes, prompt: str | bytes, folder: Path | None) -> None:
    parsed = parse_schema(schema, folder=folder)
    text = write_schema(parsed)
    if text.count("<") < COMPARABLE:
        assert parse_schema(text, folder=folder) == parsed
    layout = lay_out(parsed, WordTokenizer(), roles=NAMED["chatml"], max_positions=POSITIONS)
    module_segments(layout)
    question = parse_prompt(prompt)
    written = write_prompt(question)
    if written.count("<") < COMPARABLE:
        assert parse_prompt(written) == question
    bind(question, layout)


def test_damaged_inputs_are_refused_or_valid(tmp_path):
    (tmp_path / "file.txt").write_text("some text")
    chance = random.Random(0)
    pairs = [(c["schema"], c["prompt"]) for c in cases() if c["prompt"] and "error" not in c["expect"]]
    schemas, prompts = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    seen: Counter[str] = Counter()
    for number in range(INPUTS):
        schema, prompt = chance.choice(pairs)
        mutated = chance.choice([torn, rebuilt, rebuilt])
        if chance.random() < 0.6:
            schema = mutated(schema, schemas, chance)
        else:
            prompt = mutated(prompt, prompts, chance)
        folder = tmp_path if chance.random() < 0.5 else None
        try:
            if chance.random() < 0.1:
                seen[outcome(damaged(schema, chance), damaged(prompt, chance), folder)] += 1
            else:
                seen[outcome(schema, prompt, folder)] += 1
        except Exception as error:
            pytest.fail(f"input {number}: {error!r}\n{schema!r}\n{prompt!r}")
    assert set(seen) == {"fine", "schema", "prompt"}
    assert min(seen.values()) > INPUTS / 10, seen


DEEP: dict[str, tuple[str, str, str]] = {
    "modules": ('<module name="a">x', "</module>", "fine"),
    "unions": ('<module name="a"><union scaffold="a"><module name="a">', "</module></union></module>", "fine"),
    "turns": ('<module name="a"><user>x</user>', "</module>", "fine"),
    "slots": ('<module name="a"><param name="p" len="2" scaffold="x"/>', "</module>", "fine"),
    "nested turns": ("<user>x", "</user>", "schema"),
    "unclosed": ('<module name="a">', "", "schema"),
    "unknown": ("<x>", "</x>", "schema"),
    "params": ('<param name="p" len="1">', "</param>", "schema"),
    "scaffolds": ('<scaffold modules="a b">', "</scaffold>", "schema"),
}
"""An element's beginning and end, and what becomes of thousands of it, one in the other."""


@pytest.mark.parametrize("kind", DEEP)
def test_depth_breaks_nothing(kind):
    opening, closing, expected = DEEP[kind]
    schema = '<schema name="s">r' + opening * DEPTH + closing * DEPTH + "</schema>"
    deep, flat = (f'<prompt schema="s">{"<a>" * depth}{"</a>" * depth}q</prompt>' for depth in (DEPTH, 1))
    assert outcome(schema, deep) == outcome(schema, flat) == expected
    assert outcome(flat, deep) == "schema"
    assert outcome('<schema name="s"><module name="a"/></schema>', deep) == "prompt"
    assert outcome('<schema name="s"><module name="a"/></schema>', flat.replace("q", schema)) == "prompt"


def nested(depth: int) -> str:
    return "<a>" * depth + "</a>" * depth


def nested_schema(depth: int, text: str = "x") -> str:
    return f'<module name="a">{text}' * depth + "</module>" * depth


FAMILIES: dict[str, Callable[[int], tuple[str, str]]] = {
    "modules side by side": lambda n: ("".join(f'<module name="m{i}">x</module>y' for i in range(n)), "<m0/>q"),
    "arguments": lambda n: (
        '<module name="m">' + "".join(f'<param name="p{i}" len="1"/>' for i in range(n)) + "</module>",
        "<m " + " ".join(f'p{i}="x"' for i in range(n)) + "/>q",
    ),
    "texts in gaps": lambda n: (
        "".join(f'<module name="m{i}">x</module><module name="n{i}">x</module>' for i in range(n)),
        "y".join(f"<m{i}/>" for i in range(n)) + "q",
    ),
    "sets": lambda n: (
        "".join(f'<module name="m{i}">x</module><module name="n{i}">x</module>' for i in range(n))
        + "".join(f'<scaffold modules="m{i} n{i}"/>' for i in range(n)),
        "".join(f"<m{i}/><n{i}/>" for i in range(n)) + "q",
    ),
    "depth": lambda n: (nested_schema(n), nested(n) + "q"),
    "turns in depth": lambda n: (nested_schema(n, "<user>x</user>"), nested(n) + "q"),
    "comments": lambda n: ("x<!-- y --> " * n, "x<!-- y --> " * n),
}


def calls_of(function: Callable[[], object]) -> int:
    """How many functions a function calls, built-in ones included: a clock that always goes the same."""
    count = 0

    def tick(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tick)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("family", FAMILIES)
def test_work_grows_with_the_input_and_not_faster(family):
    def run(size: int) -> None:
        schema, prompt = FAMILIES[family](size)
        layout: Layout = lay_out(
            parse_schema(f'<schema name="s">{schema}</schema>'), WordTokenizer(), roles=NAMED["chatml"]
        )
        parsed: Prompt = parse_prompt(f'<prompt schema="s">{prompt}</prompt>')
        bind(parsed, layout)

    run(1)  # what is computed once
    small, large = (calls_of(lambda size=size: run(size)) for size in (100, 200))  # type: ignore[misc]
    assert large < 2.2 * small + 500


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_a_case_gives_what_it_must(case):
    assert deviations(case, facts_of(case)) == [], case["title"]


@pytest.mark.parametrize("case", [c for c in cases() if "error" not in c["expect"]], ids=lambda case: case["id"])
def test_a_case_survives_being_written_again(case):
    schema = parse_schema(case["schema"])
    assert parse_schema(write_schema(schema)) == schema
    if case["prompt"] is not None:
        prompt = parse_prompt(case["prompt"])
        assert parse_prompt(write_prompt(prompt)) == prompt


def test_a_wrong_outcome_is_seen():
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
