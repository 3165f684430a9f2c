"""Whether each sentence of an answer is what the passages say: its words, numbers, units, dates, names, negations.

A language model may mix up what it was given. Here every sentence is held against the sentences, list items and table
rows of the passages. `CHECKS` is the one list of what is checked; answers that are shown and answers that are measured
both pass an `AnswerChecker`, so what is measured is what readers get. Not covered: what follows from several passages
by calculation or common sense, paraphrase with other words throughout, and other words than numbers, names and
negations that were exchanged ("before" for "after").
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from app.grounding import coverage_check, denial_check, fact_check, repair
from app.grounding.claims import ALONE, Claim, claim_of
from app.grounding.courtesy import is_courtesy
from app.grounding.evidence import Evidence
from app.grounding.evidence_units import plain
from app.grounding.grounding import CheckedSentence, Grounding
from app.grounding.words import content_words
from retrieval.text.sentences import sentences

LONGEST = 600
"""Characters of a sentence that is checked as one."""


AnswerCheck: TypeAlias = Callable[[Claim, Evidence], str | None]
"""One check of answers: takes a sentence with its evidence, returns what is wrong with it, or None.

To add one, write a file with such a function and name it in `CHECKS`. A check that needs a model is an object with
`__call__` that loads the model at its first call. Returns a short reason for people, such as 'the number "45 days" is
not in the passages'. `NOT_SAID` means that the passages neither say nor deny it; every other reason is measured as a
contradiction.

The checks are asked in the order of `CHECKS` until one finds a problem. They are not asked about sentences that
stand in the passages word for word, nor about politeness. They may be called from several threads at once and must
not change what they are given.
"""
CHECKS: tuple[AnswerCheck, ...] = (
    fact_check.fact_problem,
    coverage_check.coverage_problem,
    denial_check.denial_problem,
    denial_check.yes_no_problem,
)
"""Everything that is checked, in this order."""


class AnswerChecker:
    """Checks one answer against the passages it was made from, a sentence or more at a time as they are said."""

    def __init__(self, question: str, passages: Sequence[str], checks: Sequence[AnswerCheck] = CHECKS) -> None:
        """passages: each below its heading path."""
        self._question, self._evidence, self._checks = question, Evidence(passages), checks
        self._before: frozenset[str] = frozenset()

    def check(self, text: str) -> Grounding:
        """Check the next sentences of the answer. What was said before them is known."""
        return Grounding(sentences=tuple(self._checked(sentence) for sentence in sentences_of(text)))

    def repaired(self, grounding: Grounding) -> tuple[str, bool]:
        """The text to show for checked sentences, empty if nothing is left, and whether it holds quotations."""
        return repair.repaired(grounding, self._question, self._evidence)

    def _checked(self, text: str) -> CheckedSentence:
        evidence = self._evidence
        before, self._before = self._before, content_words(text)
        best, score, problem = evidence.texts.get(plain(text)), 1.0, None
        if best is None:
            claim = claim_of(text, evidence, question=self._question, before=before)
            if is_courtesy(claim):
                return CheckedSentence(text=text, score=1.0)
            problem = next((found for check in self._checks if (found := check(claim, evidence))), None)
            score = min(claim.coverage, 0.5) if problem else claim.coverage
            if not claim.nearest:
                return CheckedSentence(text=text, score=score, problem=problem)
            best = claim.nearest[0]
        support, passage = evidence.units[best].text, evidence.passage_of[best]
        return CheckedSentence(text=text, score=score, problem=problem, support=support, passage=passage)


def sentences_of(answer: str) -> Iterator[str]:
    """Sentences of an answer; "Yes." stays with the sentence it belongs to, and endless ones are cut."""
    before = ""
    for text in sentences(answer):
        if ALONE.fullmatch(text) and not before:
            before = text + " "
            continue
        whole, before = before + text, ""
        while len(whole) > LONGEST:
            end = whole.rfind(" ", LONGEST // 2, LONGEST) + 1 or LONGEST
            yield whole[:end].rstrip()
            whole = whole[end:]
        yield whole
    if before:
        yield before.strip()
