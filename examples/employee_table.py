"""A table before every question, without PML: the engine finds by itself that two prompts have the same prefix.

Nothing is declared, and nothing is encoded in advance. The second prompt reuses the tokens computed for the first one,
up to the first different token. These tokens follow the same text as without reuse, so the answer is exact.
"""

from __future__ import annotations

from shared import SCHEMAS, ask, running_engine

from cache.engine.engine import Engine
from cache.prompt.parts import Text
from cache.prompt.plan import Plan

QUESTIONS = (
    "In which office does Brigid Asante work?",
    "Since when has Nerys Abbot been with the company?",
)


def plan_of(engine: Engine, table: str, question: str) -> Plan:
    """Return a prompt: the table as system text, then the question, in the model's own chat template."""
    template = engine.model.tokenizer.template
    parts = [
        Text(text=template.open, structural=True),
        Text(text=f"Answer from this table.\n\n{table}"),
        Text(text=template.to_user, structural=True),
        Text(text=question),
        Text(text=template.to_answer, structural=True),
    ]
    return engine.arrange(parts)


def main(max_tokens: int = 40) -> None:
    """Ask two questions about the same table."""
    table = (SCHEMAS / "employees.txt").read_text(encoding="utf-8")
    with running_engine() as engine:
        for question in QUESTIONS:
            ask(engine, question, plan_of(engine, table, question), max_tokens=max_tokens)


if __name__ == "__main__":
    main()
