"""The three ways of linking passages to each other, from fast to exact.

fast      nothing is computed again: a question costs the question
balanced  the share of passage tokens that the question looks at is computed again
exact     whatever is not exact as it stands: full attention, no approximation
What each costs in answers, for the model at hand, is measured by `warmdesk calibrate` (see `calibration`).
"""

from typing import Literal, get_args

from app.domain.errors import DeskError
from cache.engine.recomputation import EXACT, SelectiveRecomputation

Policy = Literal["fast", "balanced", "exact"]

AnswerMode = Literal["free", "checked", "quote"]
"""Who words an answer; see the setting `answer_mode`."""
POLICIES: tuple[Policy, ...] = get_args(Policy)

BALANCED_SHARE = 0.15
RECOMPUTATIONS: dict[Policy, SelectiveRecomputation] = {
    "fast": SelectiveRecomputation(),
    "balanced": SelectiveRecomputation(share=BALANCED_SHARE),
    "exact": EXACT,
}


def policy_named(name: str) -> Policy:
    """Raises DeskError for an unknown name."""
    if name in POLICIES:
        return name
    raise DeskError(f"policy is {name!r}: it must be {', '.join(POLICIES[:-1])} or {POLICIES[-1]}", code="bad-policy")
