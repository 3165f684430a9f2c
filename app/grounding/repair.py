"""A checked answer made fit to be shown: what is not supported is replaced by the passages' own sentences, or left out.

Not covered: what counts as supported (`check`).
"""

from collections.abc import Iterable

from app.grounding.claims import claim_of
from app.grounding.clauses import ROW
from app.grounding.evidence import Evidence
from app.grounding.evidence_units import MARKER, EvidenceUnit, plain
from app.grounding.grounding import Grounding
from app.grounding.statements import facts

ENOUGH_WORDS, SAME_KIND = 0.4, 0.1
"""Share of the words of sentence and question that a quotation must hold; what a fact of the kind in question adds."""
FIGURES = frozenset({"number", "time", "date"})
"""What is wrong most often, by kind of fact."""


def repaired(grounding: Grounding, question: str, evidence: Evidence) -> tuple[str, bool]:
    """The text to show for checked sentences, and whether it holds quotations.

    Supported sentences stay. Another one is replaced by the sentence of the passages that shares most with it and the
    question, or dropped if none shares enough. Where nothing but courtesy is left, the text is empty.
    """
    kept = {plain(s.support) for s in grounding.sentences if s.problem is None and s.support}
    shown: dict[str, str] = {}
    has_quotation = has_content = False
    for sentence in grounding.sentences:
        text = sentence.text
        if sentence.problem is not None:
            unit = quotation(text, question, evidence)
            if unit is None or plain(unit.text) in kept:
                continue
            text = quoted(unit)
            has_quotation = has_quotation or plain(text) not in shown
        has_content = has_content or sentence.problem is not None or sentence.support is not None
        shown.setdefault(plain(text), text)
    return (joined(shown.values()), has_quotation) if has_content else ("", False)


def quotation(sentence: str, question: str, evidence: Evidence) -> EvidenceUnit | None:
    """The unit of the passages that shares most words with a sentence and the question; None if not enough."""
    claim = claim_of(f"{sentence}\n{question}", evidence)
    asked = {fact.measures for fact in claim.facts if fact.is_bound and fact.kind not in ("name", "code")}
    # what may be wrong must not choose its own correction
    asked_facts = {fact.key for fact in facts(question, evidence.language)}
    told = {fact.key for fact in facts(sentence, evidence.language) if fact.kind in FIGURES} - asked_facts
    words = claim.words - told
    shares = []
    for i in evidence.best(words):
        unit = evidence.units[i]
        has_kind = any(fact.measures in asked for fact in unit.facts)
        if not unit.is_heading and not unit.text.rstrip().endswith(("?", ":")):
            shares.append((unit.held(words, claim.weights) + SAME_KIND * has_kind, i))
    share, best = max(shares, default=(0.0, 0), key=lambda found: found[0])
    return evidence.units[best] if share >= ENOUGH_WORDS else None


def quoted(unit: EvidenceUnit) -> str:
    """The text of a unit without its list marker; with the line above it if that turns round what it says."""
    text = MARKER.sub("", unit.text, count=1)
    return f"{unit.lead.rstrip(' :')}: {text}" if unit.lead else text


def joined(texts: Iterable[str]) -> str:
    """Sentences as one text; table rows stand on lines of their own."""
    lines: list[str] = []
    for text in texts:
        if lines and not ROW.match(text) and not ROW.match(lines[-1]):
            lines[-1] += " " + text
        else:
            lines.append(text)
    return "\n".join(lines)
