"""A sentence of an answer taken apart, so that it can be held against passages."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.grounding.clauses import Clause, clauses
from app.grounding.evidence import Evidence
from app.grounding.evidence_units import MARKER
from app.grounding.fact import Fact
from app.grounding.statements import facts

OPENING = re.compile(r"(?:please\s)?(?:note|be aware|keep in mind|remember)\s(?:also\s)?that\s", re.IGNORECASE)
ECHO = (
    r"[,.]?\s(?:I|you|we|they|it|that|this|there)\s(?:can|could|may|must|do|does|did|is|are|was|were|will|wo|would|should)"
    r"(?:\s?not|n?['’]t)?"
)
"""What says no more than the yes or no before it: "Yes, you can."."""
YES_NO = re.compile(rf"\s*(?P<word>yes|no|yep|nope)\s*(?:{ECHO}\s*(?:[.!]|$)|[,.!:;–—-]|$)\s*", re.IGNORECASE)
MARKUP = re.compile(r"\*\*|__|`|^#{1,6}\s|\[\d{1,2}\]")
"""Signs of Markdown and references to sources, which say nothing."""


ALONE = re.compile(rf"\W*(?:yes|no|yep|nope)\b(?:{ECHO}\b)?\W*", re.IGNORECASE)
"""A yes or no that means something only with the next sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence to check, taken apart, and where the evidence speaks of it.

    text: the sentence. body: the same without list marker and leading yes or no. question: what the answer answers.
    before: words of the sentence before, which "it" or "the link" may speak of. weights: how much each word of `words`
    and `before` counts. nearest: units of the evidence that share most with the sentence, best first. coverage: 0 to 1,
    the share of its words that the evidence holds in one place, or each clause's words in a place of its own.
    """

    text: str
    body: str
    question: str
    yes_no: str
    facts: tuple[Fact, ...]
    clauses: tuple[Clause, ...]
    words: frozenset[str]
    before: frozenset[str]
    weights: dict[str, float]
    nearest: tuple[int, ...]
    coverage: float


def claim_of(text: str, evidence: Evidence, *, question: str = "", before: frozenset[str] = frozenset()) -> Claim:
    """Take a sentence apart. question, before: see `Claim`."""
    body = MARKER.sub("", MARKUP.sub("", text), count=1)
    lead = YES_NO.match(body)
    body = OPENING.sub("", body[lead.end() :] if lead else body, count=1)
    found = tuple(facts(body, evidence.language))
    parts = tuple(clauses(body, [fact for fact in found if fact.is_bound or fact.kind == "name"]))
    words = frozenset(word for part in parts for word in part.words)
    weights = evidence.weights(words | before)
    nearest = tuple(evidence.best(words))
    return Claim(
        text=text,
        body=body,
        question=question,
        yes_no="" if not lead else "no" if lead["word"].lower().startswith("no") else "yes",
        facts=found,
        clauses=parts,
        words=words,
        before=before - words,
        weights=weights,
        nearest=nearest,
        coverage=max(
            max((evidence.units[i].held(words, weights) for i in nearest), default=0.0),
            coverage_by_clause(parts, weights, evidence),
        ),
    )


def coverage_by_clause(clauses: Sequence[Clause], weights: dict[str, float], evidence: Evidence) -> float:
    """Share of the words that stand in the passages if each clause may have a place of its own."""
    total = held = 0.0
    for part in clauses:
        own = sum(weights[word] for word in part.words)
        places = evidence.best(part.words, 3)
        total += own
        held += own * max((evidence.units[i].held(part.words, weights) for i in places), default=0.0)
    return held / total if total else 0.0
