"""The three ways of linking passages to each other, from fast to exact.

fast      nothing is computed again: a question costs the question
balanced  the share of passage tokens that the question looks at is computed again
exact     whatever is not exact as it stands: full attention, no approximation
What each costs in answers, for the model at hand, is measured by `warmdesk calibrate` (see `calibration`).
"""

from __future__ import annotations

from typing import Literal, get_args

from app.domain.errors import DeskError
from cache.engine.recomputation import EXACT, Link

Profile = Literal["fast", "balanced", "exact"]

Wording = Literal["free", "checked", "quote"]
"""Who words an answer; see the setting `wording`."""
PROFILES: tuple[Profile, ...] = get_args(Profile)

BALANCED_SHARE = 0.15
LINKS: dict[Profile, Link] = {"fast": Link(), "balanced": Link(share=BALANCED_SHARE), "exact": EXACT}


def profile_named(name: str) -> Profile:
    """Raises DeskError for a name that is none."""
    for profile in PROFILES:
        if profile == name:
            return profile
    raise DeskError(f"policy is {name!r}: it must be {', '.join(PROFILES[:-1])} or {PROFILES[-1]}", code="bad-policy")
