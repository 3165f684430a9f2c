"""Whether two questions ask the same: how alike they are, and whether they have the same telling words.

An embedder says how alike two questions sound. It does not tell those apart that matter most: "Is the store open on
Sunday?" and "... on Saturday?" have a cosine of .93, "Are returns free?" and "... not free?" one of .97. So questions
count as the same only if no telling word (a stem that is none of the commonest words) stands in one of them alone. (The
1,690 questions about the sample shop, compared with each other: eight pairs have the same telling words. All ask the
same, and their cosines are .89 or more. By the cosine alone, some pairs of .88 to .89 are wrong.)

Of a language that the embedder does not know, the cosine says little and counts as little as in search.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.documents import Vectors
from retrieval.search.embedding import Embedder
from retrieval.text.terms import COMMON, asked_words, folded, stem, telling_words

_DENYING = re.compile(r"\b(?:not|no|never|without|cannot|\w+n['’]t)\b")
_SAY_LITTLE = frozenset(
    stem(word)
    for word in (
        *("possible", "item", "thing", "something", "anything", "tell", "know", "want", "like"),
        *("help", "question", "still"),
    )
)
Telling = tuple[frozenset[str], bool]
"""The telling words of a question, and whether it denies something."""


@dataclass(frozen=True, slots=True)
class EmbeddedQuestion:
    """A question with its vector. trust: how much its cosines count, 0 to 1."""

    text: str
    vector: Vectors
    trust: float
    telling: Telling


def telling(question: str) -> Telling:
    """What a question is about; of one without a telling word, all of its words."""
    stems = frozenset(map(stem, telling_words(question))) - COMMON - _SAY_LITTLE
    return stems or frozenset(asked_words(question)), bool(_DENYING.search(folded(question)))


def embedded(embedder: Embedder, texts: Sequence[str]) -> list[EmbeddedQuestion]:
    """Questions, ready to be compared."""
    vectors = embedder.embed_queries(texts)
    return [
        EmbeddedQuestion(text, vector, embedder.knowledge(text) ** 2, telling(text))
        for text, vector in zip(texts, vectors, strict=True)
    ]


def likeness(one: EmbeddedQuestion, other: EmbeddedQuestion) -> float:
    """How alike two questions are, 0 to 1: the cosine, and the telling words as far as it cannot be trusted."""
    trust = min(one.trust, other.trust)
    (words, _), (others, _) = one.telling, other.telling
    shared = 2 * len(words & others) / (len(words) + len(others)) if words or others else 0.0
    return min(1.0, max(0.0, trust * float(one.vector @ other.vector) + (1 - trust) * shared))
