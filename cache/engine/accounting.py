"""Where the tokens of a prompt came from, counted when its request starts to run."""

from collections.abc import Iterator

from cache.engine.request import ModuleUse, Usage
from cache.engine.waiting import Waiting
from cache.memory.module_header import MissReason
from cache.memory.prefix_tree import PrefixNode
from cache.prompt.plan import Plan, Segment


def count_usage(waiting: Waiting, prefix: PrefixNode, computed: int) -> Usage:
    """Sources of the prompt's tokens. computed: rows behind the matched prefix, without modules encoded meanwhile."""
    plan, session = waiting.plan, waiting.request.session
    usage = Usage(prompt_tokens=plan.num_tokens, computed=computed)
    if waiting.request.reuse == "on" and waiting.places_modules:
        usage.recomputed = supplied_tokens(waiting.request.plan) - supplied_tokens(plan)
    for node in prefix.path():
        if node.step.key is None and session is not None and node.owner == session:
            usage.session += len(node.step.tokens)
        elif node.step.key is None:
            usage.prefix += len(node.step.tokens)
    encoded: dict[str, Segment] = {}  # segments of equal content share one encoding: only the first one pays
    for span in plan.spans:
        if span.segment is None:
            continue
        key = waiting.entries[span.segment].header.key
        if span.segment in waiting.misses and encoded.setdefault(key, span.segment) == span.segment:
            usage.computed += len(span.tokens)
        else:
            usage.module += len(span.tokens)
    assert usage.prompt_tokens == usage.computed + usage.cached_tokens, usage
    return usage


def supplied_tokens(plan: Plan) -> int:
    """Tokens of a plan that modules supply."""
    return sum(len(span.tokens) for span in plan.spans if span.segment is not None)


def module_uses(waiting: Waiting) -> Iterator[ModuleUse]:
    """Every module of the prompt and where its rows came from. One without a cache entry was computed with the prompt:
    the model cannot place it ("placement"), or the request reuses none or computes all of it again ("bypassed").
    """
    plan = waiting.request.plan
    cannot_place = waiting.request.reuse == "on" and not waiting.places_modules
    why_computed: MissReason = "placement" if cannot_place else "bypassed"
    for segment in plan.segments():
        spans = [span for span in plan.spans if span.segment == segment]
        entry = waiting.entries.get(segment)
        yield ModuleUse(
            key="" if entry is None else entry.header.key,
            name=segment.name,
            tokens=sum(len(span.tokens) for span in spans),
            position=spans[0].start,
            source="computed" if entry is None or segment in waiting.misses else waiting.sources[segment],
            miss_reason=why_computed if entry is None else waiting.misses.get(segment),
        )
