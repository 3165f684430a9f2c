"""Whether the passages speak of what a sentence says at all. Not covered: whether they say the opposite."""

from app.grounding.claim import ALONE, Claim

ENOUGH_WORDS = 0.5
"""Share of a sentence's words that the passages must hold in one place."""
UNKNOWN = 2
"""So many words that stand nowhere in the passages are an addition, such as "in any condition"."""
BARE = "a bare yes or no cannot be checked"
NOT_SAID = "the passages do not say this"


def support_problem(claim: Claim) -> str | None:
    """Whether a sentence says only yes or no, or too few of its words stand in the passages."""
    if ALONE.fullmatch(claim.text):
        return BARE
    unknown = [word for word in claim.said.words - claim.evidence.known if not word.startswith("#")]
    return NOT_SAID if claim.coverage < ENOUGH_WORDS or len(unknown) >= UNKNOWN else None
