"""How far weights of 8 bits are from those of the model, in what comes next in the sample answers.

    python -m evals.rounded_weights [--limit 40]

Each question is asked behind the beginning of its article, and all of it and the sample answer are read in one pass,
once with either kind of weights. KL is the divergence
of the rounded distribution of the next token from the other one, in nats; top 1 is how often both have the same
likeliest token. Prints one JSON document. Not covered: whether an answer is right.
"""

import argparse
import json
import os
from collections.abc import Sequence
from typing import get_args

import torch

from app.domain.settings import Settings, load_settings
from cache.attention.items import Chunk
from cache.memory.allocator import Extent
from cache.memory.arena import Arena
from cache.model.language_model import LanguageModel
from cache.model.loading import load_model
from cache.native.decoder import Weights
from cache.prompt.parts import Text
from evals.next_token import NextTokenDistance, sample_answers

ARTICLE_TOKENS = 400


def distributions(model: LanguageModel, arena: Arena, tokens: Sequence[int], first: int) -> torch.Tensor:
    """Log probabilities of what follows each token from `first` on."""
    chunk = Chunk(tokens, range(len(tokens)), 0, [Extent(0, len(tokens))], [])
    return model.forward([chunk], arena, range(first, len(tokens))).log_softmax(-1)


def measure(settings: Settings, limit: int) -> dict[str, object]:
    """Over the first questions of the sample help centre that have an answer."""
    exact, rounded = (
        load_model(
            settings.model,
            device="cpu",
            converted=settings.models_folder,
            adapter=settings.adapter_folder,
            weights=weights,
        )
        for weights in get_args(Weights)
    )
    if exact.native is None:
        raise SystemExit("the model does not run in compiled code here: install gcc")
    arena, distance = Arena(exact.info.kv, 2048, exact.device), NextTokenDistance()
    template, tokenizer = exact.tokenizer.template, exact.tokenizer
    for article, question, answer in sample_answers(tokenizer, ARTICLE_TOKENS, limit):
        asked = [
            Text(text=template.open + template.to_user, structural=True),
            Text(text=f"{article}\n\n{question}"),
            Text(text=template.to_answer, structural=True),
        ]
        prompt, answered = tokenizer.encode(asked), tokenizer.encode([Text(text=answer)])
        tokens, first = [*prompt, *answered[:-1]], len(prompt) - 1  # the last token of the prompt predicts the answer
        distance.add(*(distributions(model, arena, tokens, first) for model in (exact, rounded)))
    return {"model": exact.info.name, **distance.summary()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=40)
    print(json.dumps(measure(load_settings({}, os.environ), parser.parse_args().limit)))


if __name__ == "__main__":
    main()
