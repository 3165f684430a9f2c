"""Groups questions that ask about the same: each joins the group whose first question is most like it, or begins one.

One pass and no model: leader clustering (Hartigan 1975). The number of groups need not be known. Vectors
are kept for the questions of the last report.
"""

import threading
from collections.abc import Mapping, Sequence

from app.domain.quality import BadAnswer, QuestionGroup
from app.knowledge.likeness import EmbeddedQuestion, embedded, likeness
from retrieval.search.embedding import Embedder

ALIKE = 0.65
"""Questions at least this alike are in one group. (Sample shop: "how long does a refund take" and "how long till refund
after you checked my return" are .82 alike; "How do I open an account?" and "How do I close my account?" .65.)"""
AT_ONCE = 64
"""Questions that are embedded together: customers' questions wait no longer than that takes."""


class Grouping:
    """Groups answers by their questions. Safe to use from any thread."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: Mapping[str, EmbeddedQuestion] = {}
        self._lock = threading.Lock()

    def groups(self, answers: Sequence[BadAnswer]) -> tuple[QuestionGroup, ...]:
        """The largest group first, then the latest. answers: the latest first."""
        questions = self._questions(list(dict.fromkeys(one.question for one in answers)))
        groups: list[tuple[EmbeddedQuestion, list[BadAnswer]]] = []
        for answer in answers:
            asked = questions[answer.question]
            scored = [(likeness(asked, leader), members) for leader, members in groups]
            score, nearest = max(scored, key=lambda one: one[0], default=(0.0, []))
            if score >= ALIKE:
                nearest.append(answer)
            else:
                groups.append((asked, [answer]))
        return tuple(
            QuestionGroup(answers=tuple(members)) for _, members in sorted(groups, key=lambda one: -len(one[1]))
        )

    def _questions(self, texts: list[str]) -> Mapping[str, EmbeddedQuestion]:
        with self._lock:
            known = {text: self._known[text] for text in texts if text in self._known}
            missing = [text for text in texts if text not in known]
            for first in range(0, len(missing), AT_ONCE):
                some = missing[first : first + AT_ONCE]
                known |= zip(some, embedded(self._embedder, some), strict=True)
            self._known = known
            return known
