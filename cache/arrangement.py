"""Contiguous placement: modules and texts one after another, in the order in which they are given.

How conversations are laid out. (Measured with the bundled model, gaps between modules cost answer quality.) Modules
here have text only; each may stand behind another while it is encoded (`Module.after`). Fixed positions: `layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cache.errors import PromptError
from cache.plan import Plan, Span, Unit, end_computed, join_spans
from cache.pml import Module, Text
from cache.text_runs import Tokenizer, run_tokens


def arrange(parts: Sequence[Module | Text], tokenizer: Tokenizer, *, relocatable: bool, max_positions: int) -> Plan:
    """Tokenise and place the parts of a prompt.

    relocatable: whether a module encoded once can be placed at any offset. If not, a unit is encoded at the position
        where it stands, and its key says so.
    max_positions: usable position ids of the model, 0 .. max_positions-1.

    Raises PromptError for a prompt without tokens or with more than `max_positions`.
    """
    spans: list[Span] = []
    position = 0
    pending: list[Text] = []

    def end_run() -> None:
        nonlocal position
        spans.append(Span(start=position, tokens=run_tokens(pending, tokenizer)))
        position = spans[-1].end
        pending.clear()

    for part in parts:
        if isinstance(part, Text):
            pending.append(part)
            continue
        end_run()
        unit = module_unit(part, tokenizer)
        if not relocatable:
            unit = replace(unit, start=position)
        spans.append(Span(start=position, tokens=unit.tokens, unit=unit))
        position = spans[-1].end
    end_run()
    joined = join_spans(spans)
    if not joined:
        raise PromptError("the prompt is empty: it has neither text nor a module with text")
    if position > max_positions:
        raise PromptError(f"the prompt needs {position} positions, the model has {max_positions}")
    return Plan(spans=end_computed(joined))


def module_unit(module: Module, tokenizer: Tokenizer) -> Unit:
    """The encoding unit of a module that has text only, behind its conditioning prefix if it has one."""
    prefix = None if module.after is None else module_unit(module.after, tokenizer)
    if prefix is not None and not prefix.tokens:
        prefix = prefix.prefix
    tokens = run_tokens([child for child in module.children if isinstance(child, Text)], tokenizer)
    start = 0 if prefix is None else prefix.end
    return Unit(name=module.name, tokens=tokens, start=start, prefix=prefix)
