"""How much memory would be enough, from the passages that the latest answers used."""

from collections.abc import Sequence

from app.domain.memory_plan import MemoryBudget, MemoryPlan
from cache.analysis.memory_plan import TracedModule, replay

ANSWERS = 1000
"""The latest answers that are replayed, some seconds of computing."""
SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)
"""Sizes that are tried, as shares of what all passages need that were used."""
CLOSE = 0.02
"""A size is enough from which on more memory finds less than this share of the uses more."""


def plan_memory(prompts: Sequence[Sequence[TracedModule]], current: int, bytes_per_token: int) -> MemoryPlan:
    """Replay prompts, the oldest first, with several sizes of memory. current: the size that is set, in bytes."""
    if not prompts:
        return MemoryPlan()
    everything = sum({module.key: max(1, module.tokens) for modules in prompts for module in modules}.values())
    slots = {max(1, int(share * everything)) for share in SHARES} | {max(1, current // bytes_per_token)}
    budgets = []
    for number in sorted(slots):
        replayed = replay(prompts, number)
        budgets.append(
            MemoryBudget(
                num_bytes=number * bytes_per_token,
                found=replayed.found / replayed.uses,
                tokens=replayed.missing_tokens / len(prompts),
                is_current=number == max(1, current // bytes_per_token),
            )
        )
    most = max(budget.found for budget in budgets)
    enough = next(budget.num_bytes for budget in budgets if budget.found >= most - CLOSE)
    return MemoryPlan(answers=len(prompts), budgets=budgets, enough=enough)
