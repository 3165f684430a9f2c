"""Answers that are sentences of the passages: which sentences are offered, and how much is expected of each before the
model reads it (`cache.constraints` keeps the model to them).

A sentence's similarity to the question is the sum of three cosines: of characters (rare words weigh more; keywords),
of its passage (search) and, with an embedder, of its own meaning. Its prior is that similarity as a z-score over the
sentences, times WEIGHT. The refusal competes as a sentence of similarity NEAR would, so it is what remains when no
sentence is near the question.

Not covered: sentences that need the one before them ("It takes ten days"), two list items without full stops in one
answer, tokenizers that do not give back the text they were given, and models without a chat template, whose answers
begin with a space.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator, Sequence

from app.prompting import PassageText
from cache.constraints import Choice, Choices
from cache.pml import Text
from cache.text_runs import Tokenizer
from retrieval.embedding import Vectors
from retrieval.keywords import KeywordIndex
from retrieval.sentences import STANDS_ALONE, joined_lines, sentences

WEIGHT = 64.0
"""Nats that a standard deviation of similarity is worth against the model: models of this size only break ties.
(Bundled model without adapter, 40 SQuAD questions with five passages each, gold answer in one quoted sentence: 0.23 at
0, 0.35 at 1, 0.60 at 2, 0.75 at 8, 0.78 at 16, 0.83 by the priors alone, 0.88 by the priors with an embedder. The first
word decides too much to let so small a model choose; a better one may earn more.)
"""
NEAR = 0.5
NEAR_EMBEDDED = 1.0
"""Similarity from which a sentence is preferred to the refusal, without and with an embedder. (Without: nearest
sentence to 80 SQuAD questions, 5th percentile 0.63; to questions about something else, 95th percentile 0.39. With: 160
questions of data/training.jsonl that have an answer, 5 % below 1.0; 100 that have none, 12 %.)"""
SENTENCES = 3
MARGIN = 0.2
"""An answer has at most so many sentences, none of them less similar to the question than the best one by more than
this. (Sentences with all facts, 70 sample questions among five passages: 0.41 for one, 0.60 so with 2.4, 0.64 for
three.)"""
MOST_SENTENCES = 60
NARROW = 0.1
"""Least standard deviation counted: sentences that are all alike are not told apart by chance."""
SHORT = 60
"""Characters up to which a line without an end is taken for a heading."""

ENDED = re.compile(r"[.!。！…][\"'”’)」』]*$")
ASKS = re.compile(r"[?？:：][\"'”’)」』]*$")
"""Questions, and lines that only lead to a list."""
LETTER = re.compile(r"[^\W\d_]")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Chinese and Japanese: no space stands between sentences."""


def choices_of(
    question: str,
    passages: Sequence[tuple[PassageText, float]],
    refusal: str,
    tokenizer: Tokenizer,
    stop: int,
    embed: Callable[[Sequence[str]], Vectors] | None = None,
) -> Choices:
    """Sentences of the passages, or the refusal alone.

    passages: with the cosine search found for each. stop: the token that ends an answer. embed: texts to vectors of
    length 1 `[texts, dimension]`, the question among them; costs about 13 ms a sentence on one core.
    """
    near = similarities(question, passages, embed)
    threshold = NEAR if embed is None else NEAR_EMBEDDED
    mean = statistics.fmean(near.values()) if near else threshold
    spread = max(statistics.pstdev(near.values()), NARROW) if near else NARROW
    found: dict[tuple[int, ...], Choice] = {}
    for text, similarity in [(refusal, threshold), *near.items()]:
        said = text if ENDED.search(text) else f"{text}."  # a table row among sentences
        choice = Choice(
            tokens=tuple(tokenizer.encode([Text(text=said)])),
            behind=tokens_behind(said, tokenizer),
            prior=WEIGHT * (similarity - mean) / spread,
            alone=text == refusal,
        )
        found.setdefault(choice.tokens, choice)
    best = max(near.values(), default=threshold)
    enough = WEIGHT * (best - MARGIN - mean) / spread
    return Choices(choices=tuple(found.values()), stop=stop, most=SENTENCES, enough=enough)


def similarities(
    question: str, passages: Sequence[tuple[PassageText, float]], embed: Callable[[Sequence[str]], Vectors] | None
) -> dict[str, float]:
    """How near each sentence that can be offered is to the question; at most MOST_SENTENCES, nearest first."""
    passage_scores: dict[str, float] = {}
    for passage, score in passages:
        for sentence in statements(passage.text):
            passage_scores[sentence] = max(score, passage_scores.get(sentence, score))
    written = KeywordIndex(range(len(passage_scores)), list(passage_scores)).scores(question).tolist()
    near = {text: score + cosine for (text, score), cosine in zip(passage_scores.items(), written, strict=True)}
    texts = sorted(near, key=lambda text: -near[text])[:MOST_SENTENCES]
    if embed is not None and texts:
        asked, *meant = embed([question, *texts])
        near |= {text: near[text] + float(vector @ asked) for text, vector in zip(texts, meant, strict=True)}
    return {text: near[text] for text in sorted(texts, key=lambda text: -near[text])}


def statements(text: str) -> Iterator[str]:
    """The sentences of a passage that can be an answer: no questions, no headings, nothing without a word."""
    for line in joined_lines(text):
        is_heading = len(line) <= SHORT and not ENDED.search(line) and not STANDS_ALONE.match(line)
        for sentence in () if is_heading else sentences(line):
            if LETTER.search(sentence) and not ASKS.search(sentence):
                yield sentence


def tokens_behind(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens of a sentence that stands behind another one, what parts the two included.

    Found behind a full stop, since byte-level tokenizers put the space on the word and SentencePiece puts it there
    by itself: either way the ids are those of the joined text.
    """
    before = tokenizer.encode([Text(text=".")])
    joined = tokenizer.encode([Text(text="." if UNSPACED.match(text) else ". "), Text(text=text)])
    return tuple(joined[len(before) :])
