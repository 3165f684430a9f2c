"""Training examples by number: which passages an example holds, which questions are asked, and what answers them.

Questions about passages that the example does not hold, and questions marked as unanswerable, are answered by the
desk's refusal. An example depends only on the seed and its number, so training can go on after an interruption.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from app.training.passages import QuestionAnswer, TrainingPassage, TrainingTokenizer
from app.training.topics import Topic, split_topics, topic_weights
from cache.memory.keys import digest
from cache.training.examples import TokenIds, TrainingExample, TrainingQuery

T = TypeVar("T")
GAP_SHARE, LONGEST_GAP = 0.2, 64
"""Share of the examples with gaps between modules, and below how many position ids a gap is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryMix:
    """What an example is made of.

    passages: numbers of passages to draw from. Fewer than at run time cost less and train the same.
    answered, misleading, absent: the most queries of each kind: answered by a passage; only seemingly answered; about
        passages that are not there. Many queries over few passages cost little.
    whole_answers: answered queries that are trained on to the end of the answer. The others are trained on their first
        token only, which shows whether the model answers or refuses.
    elsewhere: share of the questions that are not about the last passage.
    """

    passages: tuple[int, ...]
    answered: int
    misleading: int
    absent: int
    whole_answers: int
    elsewhere: float


LABELLED = QueryMix(passages=(1, 1, 1, 2, 3, 5), answered=10, misleading=8, absent=2, whole_answers=3, elsewhere=0.2)
"""A model that sees few misleading questions learns how a refusal is worded, but not when to refuse. The desk places
the most relevant passage last, and search is seldom wrong about it (in 13 % of SQuAD's questions and 25 % of DSTC11's,
among five passages of one topic).
"""
OWN = QueryMix(passages=(2, 3, 3, 4), answered=8, misleading=0, absent=0, whole_answers=8, elsewhere=0.5)
"""Trains only to read passages one by one, so an example has two or more: one alone is read as with full attention."""


class TrainingData:
    """Examples over passages. Some topics are held out of training, if there are enough (see `split_topics`).

    neighbours: how many other passages each one is read behind.
    """

    def __init__(
        self,
        passages: Sequence[TrainingPassage],
        tokenizer: TrainingTokenizer,
        mix: QueryMix,
        *,
        neighbours: int,
        seed: int,
    ) -> None:
        self._tokenizer, self._mix, self._neighbours, self._seed = tokenizer, mix, neighbours, seed
        self._train, self._test = split_topics(passages)
        parts = (tokenizer.prefix, tokenizer.refusal, tokenizer.end, mix, neighbours, seed, tuple(passages))
        self.identity = digest(repr(parts))

    @property
    def held_out_documents(self) -> int:
        """How many documents training never sees."""
        return sum(map(len, self._test))

    def example_at(self, number: int) -> TrainingExample:
        """An example to train on, always the same for a number."""
        return self._make(self._train, random.Random(f"{self._seed}/{number}"))

    def held_out(self, count: int) -> list[TrainingExample]:
        """Examples of topics that training never sees; without such topics, other examples of those it does."""
        return [self._make(self._test or self._train, random.Random(f"held out/{number}")) for number in range(count)]

    def _make(self, topics: Sequence[Topic], rng: random.Random) -> TrainingExample:
        topic = rng.choices(topics, weights=topic_weights(topics))[0]
        passages = choose_passages(topic, topics, rng.choice(self._mix.passages), rng)
        queries = self._queries(passages, topic, topics, rng)
        has_gaps = rng.random() < GAP_SHARE
        nearby = sample_up_to(self._neighbours + 1, list(dict.fromkeys([*topic, *passages])), rng)
        return TrainingExample(
            prefix=self._tokenizer.prefix,
            modules=tuple(passage.tokens for passage in passages),
            left_contexts=tuple(self._left_context(passage, nearby) for passage in passages),
            gaps=tuple(rng.randrange(LONGEST_GAP) if has_gaps else 0 for _ in passages),
            queries=tuple(queries),
        )

    def _queries(
        self, passages: Sequence[TrainingPassage], topic: Topic, topics: Sequence[Topic], rng: random.Random
    ) -> list[TrainingQuery]:
        mix, refusal = self._mix, self._tokenizer.refusal
        asked = ask_about(passages, mix.elsewhere, rng)
        others = [passage for passage in topic if passage not in passages]
        others = others or [passage for other in topics for passage in other if passage not in passages]
        refused = sample_up_to(mix.misleading, [question for question, answer in asked if answer is None], rng)
        refused += sample_up_to(mix.absent, [question for passage in others for question, _ in passage.questions], rng)
        answerable = [(question, answer) for question, answer in asked if answer is not None]
        answered = sample_up_to(mix.answered, answerable, rng)
        queries = [self._query(*pair, whole=number < mix.whole_answers) for number, pair in enumerate(answered)]
        queries += [self._query(q, refusal, whole=number == 0, refused=True) for number, q in enumerate(refused)]
        return queries

    def _query(self, question: TokenIds, answer: TokenIds, *, whole: bool, refused: bool = False) -> TrainingQuery:
        ended = (*answer, *self._tokenizer.end)
        return TrainingQuery(question=question, answer=ended if whole else ended[:1], refused=refused)

    def _left_context(self, passage: TrainingPassage, nearby: Sequence[TrainingPassage]) -> TokenIds:
        """The passages to read another one behind. At run time these are the most similar ones; here all passages of an
        example share a few, because a shared left context is computed once.
        """
        others = [other for other in nearby if other != passage][: self._neighbours]
        return tuple(token for other in others for token in other.tokens)


def choose_passages(topic: Topic, topics: Sequence[Topic], size: int, rng: random.Random) -> list[TrainingPassage]:
    """Passages of a topic, and of others if it is too small. One with many questions is likely to be the last."""
    chosen = sample_up_to(size, topic, rng)
    if len(chosen) < size:
        chosen += sample_up_to(size - len(chosen), [p for other in topics if other is not topic for p in other], rng)
    rng.shuffle(chosen)
    last = rng.choices(range(len(chosen)), weights=[len(passage.questions) for passage in chosen])[0]
    chosen.append(chosen.pop(last))
    return chosen


def ask_about(passages: Sequence[TrainingPassage], elsewhere: float, rng: random.Random) -> list[QuestionAnswer]:
    """All questions of the last passage, and some of the others, so that these are a share `elsewhere` of all."""
    last, others = passages[-1].questions, [pair for passage in passages[:-1] for pair in passage.questions]
    wanted = len(last) * elsewhere / (1 - elsewhere) + rng.random()
    return [*last, *sample_up_to(int(wanted), others, rng)]


def sample_up_to(most: int, items: Sequence[T], rng: random.Random) -> list[T]:
    """So many different items at random, or all in random order if there are fewer."""
    return rng.sample(items, min(most, len(items)))
