"""Sentences of an answer that state nothing and need no support: politeness and bare introductions."""

import re

from app.grounding.claims import Claim
from app.grounding.words import all_words, content_words

COURTESY = content_words(
    "happy glad pleased welcome hello hi dear thanks thank sorry apologise apologize help assist assistance support "
    "question questions contact us let know feel free further else anything hope great sure course best regards day "
    "nice moment hesitate reach inconvenience understand certainly absolutely information following follows summary "
    "unfortunately customer service team look"
)
BARE_WORDS = frozenset(
    all_words(
        "yes no of course sure great certainly absolutely unfortunately sorry i you we they it that this there so not "
        "can cannot ca could may must do does is are will wo would should have has to need be also always never"
    )
)
"""Words that alone say no more than yes or no."""
VERDICT = re.compile(r"\b(?:possible|available|allowed|permitted)\b", re.IGNORECASE)


def is_courtesy(claim: Claim) -> bool:
    """Whether a sentence is politeness alone. "Of course you can." is none, and neither is "Support is free."."""
    says_free = any(part.says_free for part in claim.clauses)
    if not claim.words <= COURTESY or says_free or VERDICT.search(claim.body):
        return False
    is_bare = BARE_WORDS.issuperset(all_words(claim.body)) and not claim.body.rstrip().endswith((":", "?"))
    return not is_bare or not (claim.yes_no or any(part.denies or part.has_verb for part in claim.clauses))
