"""Answers that are sentences of the passages: which sentences are offered, and how much is expected of each before the
model reads it (`cache.constraints` keeps the model to them).

A sentence's prior is the log-odds, judged by search, that it answers the question, times WEIGHT. The refusal is offered
only where there is no sentence: whether anything answers the question was judged before.

Not covered: two list items without full stops in one answer, tokenizers that do not give back the text they were given,
and models without a chat template, whose answers begin with a space.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.finding import RankedSentence
from cache.constraints import Choice, Choices
from cache.pml import Text
from cache.text_runs import Tokenizer
from retrieval.sentences import ENDED

WEIGHT = 40.0
"""What a nat of search's judgement is worth against one of the model's: models of the bundled one's size only break
ties. (Without adapter, 40 SQuAD questions with five passages each, gold answer in one quoted sentence: 0.23 by the
model alone, 0.88 by search alone. The first word decides too much to let so small a model choose; a better one may earn
more.)"""
SENTENCES = 5
MARGIN = 3.5
"""An answer has at most so many statements, none of them less likely than the best one by more than this, in nats.
(Sample questions, nothing refused: all facts in 79 % of the answers with three, in 86 % with five.)"""
MOST_SENTENCES = 60


def choices_of(ranked: Sequence[RankedSentence], refusal: str, tokenizer: Tokenizer, stop: int) -> Choices:
    """Sentences of the passages, likeliest first; the refusal if there are none. stop: token that ends an answer."""
    found: dict[tuple[int, ...], Choice] = {}
    for sentence in ranked[:MOST_SENTENCES] or [RankedSentence(text=refusal, logit=0.0)]:
        said = sentence.text if ENDED.search(sentence.text) else sentence.text.rstrip(",;:") + "."  # a list item, a row
        choice = Choice(
            tokens=tuple(tokenizer.encode([Text(text=said)])),
            behind=tokens_behind(said, tokenizer),
            prior=WEIGHT * sentence.logit,
        )
        found.setdefault(choice.tokens, choice)
    enough = WEIGHT * (ranked[0].logit - MARGIN) if ranked else 0.0
    return Choices(choices=tuple(found.values()), stop=stop, most=SENTENCES, enough=enough)


def tokens_behind(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens of a statement that stands behind another one, as a paragraph of its own, what parts the two included.

    Found behind a full stop, since some tokenizers write the beginning of a text in another way than its middle.
    """
    before = tokenizer.encode([Text(text=".")])
    joined = tokenizer.encode([Text(text=f".\n\n{text}")])
    return tuple(joined[len(before) :])
