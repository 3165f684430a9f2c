"""Misspelt words of a question, corrected to words that the passages have.

A word counts as misspelt if no passage has it or another form of it, and the embedder does not know it. It is replaced
by the nearest word of the passages with the same first letter (optimal string alignment distance), if one is near
enough. Only words of four letters or more, in scripts with spaces.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable

from rapidfuzz import process
from rapidfuzz.distance import OSA

from retrieval.text.terms import UNSPACED, folded, stem

_WORD = re.compile(rf"[^\W\d_{UNSPACED}]{{4,}}")
_LEAST_SIMILARITY = 0.7  # corrects all but two words of 16 misspelt sample questions


class Spelling:
    """Knows how the words of the passages are written."""

    def __init__(self, words: Iterable[str], is_known: Callable[[str], bool]) -> None:
        """words: of the passages, folded. is_known: whether a folded word is correct although no passage has it."""
        self._is_known = is_known
        self._words = frozenset(word for word in words if _WORD.fullmatch(word))
        self._stems = frozenset(map(stem, self._words))
        self._by_letter: defaultdict[str, list[str]] = defaultdict(list)
        for word in sorted(self._words):
            self._by_letter[word[0]].append(word)

    def corrected(self, question: str) -> str:
        """The question with its misspelt words replaced; the same text if there are none."""
        return _WORD.sub(lambda found: self._corrected_word(found[0]), question)

    def _corrected_word(self, written: str) -> str:
        word = folded(written)
        if word in self._words or stem(word) in self._stems or self._is_known(word):
            return written
        nearest = process.extractOne(
            word, self._by_letter[word[0]], scorer=OSA.normalized_similarity, score_cutoff=_LEAST_SIMILARITY
        )
        return written if nearest is None else nearest[0]
