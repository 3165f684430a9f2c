"""A sentence of an answer with what the evidence says nearest to it."""

import re
from dataclasses import dataclass
from functools import cached_property

from app.grounding.evidence import Evidence, StatedUnit
from app.grounding.reading import Reading, read

OPENING = re.compile(r"(?:please\s)?(?:note|be aware|keep in mind|remember)\s(?:also\s)?that\s", re.IGNORECASE)
ECHO = (
    r"[,.]?\s(?:I|you|we|they|it|that|this|there)\s(?:can|could|may|must|do|does|did|is|are|was|were|will|wo|would|should)"
    r"(?:\s?not|n?['’]t)?"
)
"""What says no more than the yes or no before it: "Yes, you can."."""
YES_NO = re.compile(rf"^\s*(?P<word>yes|no|yep|nope)\s*(?:{ECHO}\s*(?:[.!]|$)|[,.!:;–—-]|$)\s*", re.IGNORECASE)
ALONE = re.compile(rf"\W*(?:yes|no|yep|nope)\b(?:{ECHO}\b)?\W*", re.IGNORECASE)
"""A yes or no that means something only with the next sentence."""


@dataclass(frozen=True)
class Claim:
    """A sentence to check. question: what the answer answers. before: words of the sentence before, which "it" or "the
    link" may speak of.
    """

    text: str
    evidence: Evidence
    question: str = ""
    before: frozenset[str] = frozenset()

    @cached_property
    def lead(self) -> str:
        """The yes or no that it begins with, in small letters."""
        lead = YES_NO.match(self.text)
        return lead["word"].lower() if lead else ""

    @cached_property
    def said(self) -> Reading:
        """What it says behind a yes or no and words that open it."""
        return read(OPENING.sub("", YES_NO.sub("", self.text, count=1), count=1), self.evidence.language)

    @cached_property
    def weights(self) -> dict[str, float]:
        """How much each word of it, and of the sentence before, counts."""
        return self.evidence.weights(self.said.words | self.before)

    @cached_property
    def nearest(self) -> list[StatedUnit]:
        """What shares most with it, best first."""
        return self.evidence.nearest(self.said.words)

    @property
    def support(self) -> str | None:
        """What shares most with it, as text."""
        return self.nearest[0].said.text if self.nearest else None

    @property
    def coverage(self) -> float:
        """0 to 1: the share of its words that the evidence holds in one place."""
        return max((unit.share(self.said.words, self.weights) for unit in self.nearest), default=0.0)
