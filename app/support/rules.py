"""When a conversation goes to a person although nobody asked for one.

A rule never fires twice for the same reason: after a hand-off only what came since counts, and nothing does until the
customer has asked some more questions (the setting `handoff_pause`), so a conversation cannot go back and forth.
"""

from collections.abc import Sequence

from app.domain.handoffs import HandoffReason
from app.storage.handoffs import Judged

IN_A_ROW = 2
"""As many answers in a row must be empty or hardly supported, and as many be judged bad."""
LOW_SUPPORT = 0.5
"""Answers with less support by the documents count as hardly supported."""


def due(answers: Sequence[Judged], came_back: bool, pause: int) -> HandoffReason | None:
    """Why a person should step in now, or None. answers: see `Handoffs.judged_since`. came_back: from a person."""
    if came_back and len(answers) < pause:
        return None
    last = answers[-IN_A_ROW:]
    if len(last) == IN_A_ROW and all(answer.outcome == "nothing" for answer in last):
        return "refused"
    if sum(answer.feedback == "down" for answer in answers) >= IN_A_ROW:
        return "thumbs"
    hardly = [answer for answer in last if answer.grounding is not None and answer.grounding < LOW_SUPPORT]
    return "support" if len(hardly) == IN_A_ROW else None
