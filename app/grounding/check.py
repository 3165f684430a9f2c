"""Whether each sentence of an answer is what the passages say: its facts, its words, and not the opposite.

A language model may mix up what it was given. Here every sentence is held against the statements of the passages.
`CHECKS` is the one list of what is checked; answers that are shown and answers that are measured both pass an
`AnswerChecker`, so what is measured is what readers get. Not covered: what follows from several passages by
calculation or common sense, and paraphrase with other words throughout.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from app.grounding import fact_check, opposite_check, support_check
from app.grounding.claim import ALONE, Claim
from app.grounding.courtesy import is_courtesy
from app.grounding.evidence import Evidence, plain
from app.grounding.grounding import CheckedSentence, Grounding
from app.grounding.words import content_words
from retrieval.text.sentences import sentences

ENOUGH_TO_QUOTE = 0.4
"""Share of the words of sentence and question that a quotation in place of the sentence must hold."""
FIGURES = ("#number", "#time", "#date")
"""How the facts begin, as words, that are wrong most often."""
AnswerCheck: TypeAlias = Callable[[Claim], str | None]
"""One check of answers: takes a sentence with its evidence, returns what is wrong with it, or None.

To add one, write a file with such a function and name it in `CHECKS`. Returns a short reason for people, such as 'the
number "45 days" is not in the passages'. `NOT_SAID` means that the passages neither say nor deny it; every other reason
is measured as a contradiction.

The checks are asked in the order of `CHECKS` until one finds a problem. They are not asked about sentences that
stand in the passages word for word, nor about politeness. They may be called from several threads at once and must
not change what they are given.
"""
CHECKS: tuple[AnswerCheck, ...] = (
    fact_check.fact_problem,
    support_check.support_problem,
    opposite_check.opposite_problem,
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

    def _checked(self, text: str) -> CheckedSentence:
        before, self._before = self._before, content_words(text)
        claim = Claim(text, self._evidence, self._question, before)
        if plain(text) in self._evidence.said:
            return CheckedSentence(text=text, score=1.0, shown=text, support=claim.support)
        if is_courtesy(claim):
            return CheckedSentence(text=text, score=1.0, shown=text)
        problem = next((found for check in self._checks if (found := check(claim))), None)
        score = min(claim.coverage, 0.5) if problem else claim.coverage
        shown = self._quotation(text) if problem else text
        return CheckedSentence(text=text, score=score, problem=problem, shown=shown, support=claim.support)

    def _quotation(self, text: str) -> str:
        """The statement that shares most with a sentence and its question; "" if none shares enough."""
        said = Claim(f"{text}\n{self._question}", self._evidence).said
        words = [word for word in said.words if not word.startswith(FIGURES)]  # a wrong one must not choose it
        found = [unit for unit in self._evidence.nearest(words) if unit.is_statement]
        is_near = found and found[0].share(words, self._evidence.weights(words)) >= ENOUGH_TO_QUOTE
        return found[0].said.text if is_near else ""


def sentences_of(answer: str) -> Iterator[str]:
    """Sentences of an answer; "Yes." stays with the sentence it belongs to."""
    before = ""
    for text in sentences(answer):
        if ALONE.fullmatch(text) and not before:
            before = text + " "
        else:
            yield before + text
            before = ""
    if before:
        yield before.strip()
