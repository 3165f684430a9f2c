"""Answers that are statements of the passages: which are offered to the model, and how likely each is beforehand.

`cache.decoding.constraints` keeps the model to these choices.

A statement's prior is the log-odds, judged by search, that it answers the question, times WEIGHT. The refusal is
offered only if there is no statement: whether the passages answer the question was decided before.

Not covered: two list items without full stops in one answer, tokenizers that do not give back the text they were given,
and models without a chat template, whose answers begin with a space.
"""

from collections.abc import Sequence
from dataclasses import replace

from app.domain.answers import BETWEEN
from app.knowledge.finder import RankedStatement
from cache.decoding.constraints import Choice, Choices
from cache.prompt.parts import Text
from cache.prompt.tokenizer import Tokenizer
from retrieval.text.sentences import as_said

WEIGHT = 40.0
"""How much the log-odds of search count against those of the model. A model of the bundled one's size only decides the
order of statements that search finds about equal. (Without adapter, 40 SQuAD questions with five passages each, gold
answer in one quoted sentence: 0.23 by the model alone, 0.88 by search alone.)"""


def choices_of(shown: Sequence[RankedStatement], refusal: str, tokenizer: Tokenizer, stop: int, room: int) -> Choices:
    """Statements that are to be shown, likeliest first; the refusal if there are none. stop: token that ends an answer.
    room: tokens that an answer may have; only as many statements are allowed as surely fit.
    """
    found: dict[tuple[int, ...], Choice] = {}
    for text, logit in [(one.text, one.logit) for one in shown] or [(refusal, 0.0)]:
        said = as_said(text)
        choice = Choice(
            tokens=tuple(tokenizer.encode([Text(text=said)])),
            behind=tokens_behind(said, tokenizer),
            prior=WEIGHT * logit,
        )
        found.setdefault(choice.tokens, choice)
    enough = WEIGHT * (shown[-1].logit - 1.0) if shown else 0.0  # below all: what was composed is said as a whole
    choices = Choices(choices=tuple(found.values()), stop=stop, most=max(1, len(found)), enough=enough)
    while choices.longest > room and choices.most > 1:
        choices = replace(choices, most=choices.most - 1)
    return choices


def tokens_behind(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Tokens of a statement that follows another one, with what stands between the two.

    They are taken from a text with a full stop before them, because some tokenizers write the beginning of a text
    differently from its middle. Where a tokenizer makes one token of the full stop and the line break, both parts are
    written on their own.
    """
    before = tokenizer.encode([Text(text=".")])
    joined = tokenizer.encode([Text(text=f".{BETWEEN}{text}")])
    if joined[: len(before)] == before:
        return tuple(joined[len(before) :])
    return tuple(tokenizer.encode([Text(text=BETWEEN), Text(text=text)]))
