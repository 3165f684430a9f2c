"""Sentences of an answer that state nothing and need no support: politeness and bare introductions."""

import re

from app.grounding.claim import Claim
from app.grounding.words import content_words

POLITE = content_words(
    "happy glad pleased welcome hello hi dear thanks thank sorry apologise apologize help assist assistance support "
    "question questions contact us let know feel further else anything hope best regards day nice moment hesitate "
    "reach inconvenience understand information following follows summary customer service team look"
)
FILLERS = content_words("of course sure great certainly absolutely unfortunately free")
INTERJECTION = re.compile(r"\W*(?:of course|sure|great|certainly|absolutely)\W*", re.IGNORECASE)
STATES = re.compile(r"\b(?:possible|available|allowed|permitted|(?<!feel )free)\b", re.IGNORECASE)


def is_courtesy(claim: Claim) -> bool:
    """Whether a sentence is politeness alone. "Of course you can." is none, and neither is "Support is free."."""
    said = claim.said.text
    words = content_words(said)
    if not words <= POLITE | FILLERS or claim.said.facts or STATES.search(said):
        return False
    return bool(words & POLITE) or said.rstrip().endswith((":", "?")) or bool(INTERJECTION.fullmatch(claim.text))
