"""Ten unions: a learner has one member of each, and a combination is ready as soon as each of its members is encoded.

Prompts are built as data here, without XML. The third learner mixes traits of the first two. This combination is new,
but only the question is computed.
"""

from __future__ import annotations

from shared import SCHEMAS, ask, registry_of, running_engine

from cache.pml.nodes import Import, Prompt, Role
from cache.pml.parser import parse_schema
from cache.prompt.parts import Text

QUESTION = "Why does the moon change its shape in the course of a month?"
LEARNERS = {
    "a teenager who plays the violin": (
        *("teenager", "middle-school", "by-seeing", "curious", "heard-of-it"),
        *("music", "five-minutes", "plain", "second-language", "to-teach"),
    ),
    "a gardener after retirement": (
        *("senior", "high-school", "by-doing", "tired", "new-to-it"),
        *("gardening", "half-an-hour", "gentle", "first-language", "for-fun"),
    ),
    "a tired teenager with a garden": (
        *("teenager", "middle-school", "by-doing", "tired", "new-to-it"),
        *("gardening", "five-minutes", "plain", "first-language", "for-fun"),
    ),
}


def main(max_tokens: int = 60) -> None:
    """Explain the same thing to three learners."""
    with running_engine() as engine:
        schemas = registry_of(engine)
        layout = schemas.add(parse_schema((SCHEMAS / "persona.pml").read_bytes()))
        unions = sum(item.kind == "union" for item in layout.items)
        members = len(layout.root.children)
        print(f"{members} members in {unions} unions, {layout.length} position ids")
        for learner, traits in LEARNERS.items():
            imports = [Import(module=trait) for trait in traits]
            question = Role(role="user", children=(Text(text=QUESTION),))
            bound = schemas.bind(Prompt(schema="persona", parts=(*imports, question)))
            ask(engine, learner, bound.plan, max_tokens=max_tokens)


if __name__ == "__main__":
    main()
