"""Misspelt words of a question, corrected to words that the passages have.

A word counts as misspelt if no passage has it or another form of it, and the embedder does not know it. It is replaced
by the nearest word of the passages with the same first letter (optimal string alignment distance), if one is near
enough; of several by the one that most windows have. Only words of four letters or more, in scripts with spaces.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from rapidfuzz import process
from rapidfuzz.distance import OSA

from retrieval.text.terms import UNSPACED, folded

_WORD = re.compile(rf"[^\W\d_{UNSPACED}]{{4,}}")
_LEAST_SIMILARITY = 0.7  # corrects all but two words of 16 misspelt sample questions


class Spelling:
    """Knows how the words of some passages are written. Asks for words only when a question has an unknown one."""

    def __init__(
        self,
        words_from: Callable[[str], Iterable[Sequence[str]]],
        having: Callable[[str], int],
        is_known: Callable[[str], bool],
    ) -> None:
        """words_from: lists of words, folded, that begin with a letter; words of other passages may be among them.
        having: how many windows of the passages have a form of a word. is_known: whether a folded word is correct
        although no passage has it.
        """
        self._words_from, self._having, self._is_known = words_from, having, is_known

    def corrected(self, question: str) -> str:
        """The question with its misspelt words replaced; the same text if there are none."""
        return _WORD.sub(lambda found: self._corrected_word(found[0]), question)

    def _corrected_word(self, written: str) -> str:
        word = folded(written)
        if self._having(word) or self._is_known(word):
            return written
        near = {
            other: similarity
            for words in self._words_from(word[:1])
            for other, similarity, _ in process.extract(
                word, words, scorer=OSA.normalized_similarity, score_cutoff=_LEAST_SIMILARITY, limit=None
            )
            if _WORD.fullmatch(other)
        }
        having = {other: count for other in near if (count := self._having(other))}
        return min(having, key=lambda other: (-near[other], -having[other], other), default=written)
