"""Whether the passages speak of what a sentence says at all. Not covered: whether they say the opposite."""

from app.grounding.claims import ALONE, Claim
from app.grounding.evidence import Evidence

ENOUGH_WORDS = 0.45
"""Share of a sentence's words that the passages must hold."""
BARE = "a bare yes or no cannot be checked"
NOT_SAID = "the passages do not say this"


def coverage_problem(claim: Claim, evidence: Evidence) -> str | None:
    """Whether a sentence says only yes or no, or too few of its words stand in the passages."""
    if ALONE.fullmatch(claim.text):
        return BARE
    return NOT_SAID if not claim.nearest or claim.coverage < ENOUGH_WORDS else None
