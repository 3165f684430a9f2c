"""Training batches of the ranker: passages, some of them near misses of each other, and their questions as asked.

Half of the batches hold the documents that are most alike by their words, as search would find them together, so that
the ranker learns to tell near misses apart. Customers misspell: some questions get a slip of the finger.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sklearn.feature_extraction.text import TfidfVectorizer

from retrieval.ranking.examples import ExamplePassage, TrainingQuestion

ALIKE = 0.5
"""Share of the batches whose documents are alike."""
PASSAGES, QUESTIONS = 16, 56
"""In a batch, about and at most; a small file has fewer passages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """Passages, and questions each with the number of its passage."""

    passages: Sequence[ExamplePassage]
    questions: Sequence[tuple[int, TrainingQuestion]]


def batches(documents: Sequence[Sequence[ExamplePassage]], generator: random.Random) -> Iterator[TrainingBatch]:
    """Endless batches; passages of a document come together with one of it that nothing is asked about."""
    weights = [sum(one.weight for passage in passages for one in passage.questions) for passages in documents]
    near = _NearDocuments(documents)
    while True:
        passages: list[ExamplePassage] = []
        first = generator.choices(range(len(documents)), weights)[0]
        if generator.random() < ALIKE:
            numbers = near.to(first)
        else:
            numbers = [first, *generator.choices(range(len(documents)), weights, k=PASSAGES)]
        for number in numbers:
            if len(passages) >= PASSAGES:
                break
            asked = [passage for passage in documents[number] if passage.questions]
            unasked = [passage for passage in documents[number] if not passage.questions]
            some = [*generator.sample(asked, min(2, len(asked))), *generator.sample(unasked, min(1, len(unasked)))]
            passages += [passage for passage in some if not any(passage is other for other in passages)]
        questions = [
            (number, question)
            for number, passage in enumerate(passages)
            for question in passage.questions
            if generator.random() < question.weight
        ]
        if len(questions) > QUESTIONS:
            questions = generator.sample(questions, QUESTIONS)
        if questions:
            yield TrainingBatch(passages=passages, questions=questions)


class _NearDocuments:
    """Which documents are alike, by TF-IDF."""

    def __init__(self, documents: Sequence[Sequence[ExamplePassage]]) -> None:
        texts = ["\n".join([*some[0].read.headings, *(one.read.text for one in some)]) for some in documents]
        self._matrix = TfidfVectorizer(sublinear_tf=True, token_pattern=r"\w+").fit_transform(texts)

    def to(self, number: int) -> list[int]:
        """As many documents as a batch may need, the one asked for first, then the nearest."""
        cosines = (self._matrix @ self._matrix[number].T).toarray()[:, 0]
        cosines[number] = 2.0  # two documents may have the same text
        return [int(one) for one in (-cosines).argsort(kind="stable")[:PASSAGES]]


def as_asked(question: TrainingQuestion, generator: random.Random) -> str:
    """The text of a question as a customer may write it."""
    text = question.text
    if generator.random() < 0.35:
        text = text.rstrip("? ")
    if generator.random() < 0.12:
        text = _misspelt(text, generator)
    return f"{question.earlier} {text}" if question.earlier and generator.random() < 0.7 else text


def _misspelt(text: str, generator: random.Random) -> str:
    said = text.split()
    place = generator.randrange(len(said)) if said else 0
    if not said or len(said[place]) < 5:
        return text
    word = said[place]
    at = generator.randrange(1, len(word) - 1)
    said[place] = generator.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at] + word[at:],
        )
    )
    return " ".join(said)
