"""The acceptance cases of the language (`pml_cases.json`): what each must give, and how it is run through the API.

`facts_of` runs a case; another way to run one (the command line) gives the same kind of outcome and is judged by the
same `deviations`. Every case of section 12 of the specification; the keys are explained in the file's `legend`.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from cache.errors import PMLError
from cache.pml.binding import Registry, bind
from cache.pml.layout import Layout
from cache.pml.parser import parse_prompt, parse_schema
from cache.prompt.tokenizer import NAMED, NO_ROLES, WordTokenizer

Case = Mapping[str, Any]
Facts = dict[str, Any]


@cache
def cases() -> tuple[Case, ...]:
    return tuple(json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))["cases"])


def case_of(schema: str, prompt: str | None = None, **options: Any) -> Case:
    """A case of one's own. options: template, max_positions, mode, then."""
    return {"schema": schema, "prompt": prompt} | options


def facts_of(case: Case) -> Facts | PMLError:
    tokenizer = WordTokenizer()
    roles = NAMED[case["template"]] if "template" in case else NO_ROLES

    registry = Registry(tokenizer, roles=roles, max_positions=case.get("max_positions"))
    try:
        layout = registry.add(parse_schema(case["schema"]))
        for step in case.get("then", ()):
            if "add" in step:
                layout = registry.add(parse_schema(step["add"]))
            else:
                registry.remove(step["remove"])
        facts = layout_facts(layout)
        if case["prompt"] is not None:
            facts |= prompt_facts(registry, case["prompt"], baseline=case.get("mode") == "baseline")
    except PMLError as error:
        return error
    return facts


def layout_facts(layout: Layout) -> Facts:
    items = [{"path": i.path, "kind": i.kind, "start": i.start, "length": i.length} for i in layout.items]
    return {"layout": items, "length": layout.length}


def prompt_facts(registry: Registry, text: str, *, baseline: bool) -> Facts:
    """What a prompt takes from the cache and what it computes. Raises PMLError."""
    prompt = parse_prompt(text)
    bound = bind(prompt, registry.of(prompt))
    plan = bound.plan.without_segments() if baseline else bound.plan
    return {
        "cached": [at for span in plan.spans if span.segment is not None for at in range(span.start, span.end)],
        "arguments": [list(ids) for ids in bound.arguments],
        "text": list(bound.text),
        "fed": [at for span in plan.spans if span.segment is None for at in range(span.start, span.end)],
        "first_generated": plan.next_position,
        "rendered": bound.rendered,
    }


def deviations(case: Case, outcome: Facts | PMLError) -> list[str]:
    """In what an outcome differs from what the case expects; nothing if it is right."""
    expected = case["expect"]
    if not expected.get("error"):
        if isinstance(outcome, PMLError):
            return [f"refused: {outcome}"]
        wanted = {key: normal(value) for key, value in expected.items()}
        return [f"{k}: {normal(outcome[k])}, not {v}" for k, v in wanted.items() if normal(outcome[k]) != v]
    if not isinstance(outcome, PMLError):
        return [f"accepted: {outcome}"]
    found = []
    if (part := expected["contains"]) is not None and part.lower() not in outcome.message.lower():
        found.append(f"the message does not name {part!r}: {outcome.message}")
    if (line := expected["line"]) is not None and line != outcome.line:
        found.append(f"line {outcome.line}, not {line}")
    if expected["where"] != outcome.where:
        found.append(f"in the {outcome.where}, not the {expected['where']}")
    return found


def normal(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return sorted((item["path"], item["kind"], item["start"], item["length"]) for item in value)
    return value
