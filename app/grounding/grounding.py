"""What checking an answer gives: each sentence with its score, its problem and the passage's own statement."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSentence:
    """A sentence of an answer. score: 0 to 1, the share of its words that the passages hold, at most 0.5 if there is a
    problem. problem: one short reason, or None. shown: what a reader may be told: the sentence, a quotation in its
    place, or "". support: the nearest statement of the passages, if any.
    """

    text: str
    score: float
    problem: str | None = None
    shown: str = ""
    support: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounding:
    """An answer's sentences, checked."""

    sentences: tuple[CheckedSentence, ...]

    @property
    def score(self) -> float:
        """That of the weakest sentence: one wrong statement spoils an answer. 0 for an empty answer."""
        return min((sentence.score for sentence in self.sentences), default=0.0)

    @property
    def is_supported(self) -> bool:
        """Whether there is something and nothing in it lacks support."""
        return bool(self.sentences) and all(sentence.problem is None for sentence in self.sentences)
