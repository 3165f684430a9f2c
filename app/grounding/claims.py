"""A sentence of an answer taken apart, so that it can be held against passages."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.grounding.clauses import Clause, clauses
from app.grounding.evidence import MARKER, Evidence
from app.grounding.fact import Fact
from app.grounding.statements import facts

OPENING = re.compile(r"(?:please\s)?(?:note|be aware|keep in mind|remember)\s(?:also\s)?that\s", re.IGNORECASE)
ECHO = (
    r"[,.]?\s(?:I|you|we|they|it|that|this|there)\s(?:can|could|may|must|do|does|did|is|are|was|were|will|wo|would|should)"
    r"(?:\s?not|n?['’]t)?"
)
"""What says no more than the yes or no before it: "Yes, you can."."""
YES_NO = re.compile(
    rf"\s*(?P<word>yes|no|yep|nope)\s*(?:{ECHO}\s*(?:[.!]|$)|[,.!:;–—-]|$)\s*",
    re.IGNORECASE,
)
MARKUP = re.compile(r"\*\*|__|`|^#{1,6}\s|\[\d{1,2}\]")
"""Signs of Markdown and references to sources, which say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence to check, taken apart. body: without list marker and leading yes or no."""

    body: str
    yes_no: str
    facts: tuple[Fact, ...]
    clauses: tuple[Clause, ...]
    words: frozenset[str]
    before: frozenset[str]
    weights: dict[str, float]


def claim(text: str, evidence: Evidence, before: frozenset[str] = frozenset()) -> Claim:
    """Take a sentence apart. before: words of the sentence before, which "it" or "the link" may speak of."""
    body = MARKER.sub("", MARKUP.sub("", text), count=1)
    lead = YES_NO.match(body)
    body = OPENING.sub("", body[lead.end() :] if lead else body, count=1)
    found = tuple(facts(body))
    parts = tuple(clauses(body, [fact for fact in found if fact.is_bound or fact.kind == "name"]))
    words = frozenset(word for part in parts for word in part.words)
    return Claim(
        body=body,
        yes_no="" if not lead else "no" if lead["word"].lower().startswith("no") else "yes",
        facts=found,
        clauses=parts,
        words=words,
        before=before - words,
        weights=evidence.weights(words | before),
    )
