"""How far weights of 8 bits are from those of the model, in what comes next in the sample answers.

    python -m evals.rounded_weights [--device cuda] [--weights fp8] [--limit 40]

Each question is asked behind the beginning of its article, and all of it and the sample answer are read in one pass,
once with either kind of weights. KL is the divergence of the rounded distribution of the next token from the other one,
in nats; top 1 is how often both have the same likeliest token. The model is that of the settings. Prints one JSON
document. Not covered: whether an answer is right.
"""

import argparse
import json
import os
from collections.abc import Sequence
from functools import partial

import torch

from app.domain.settings import Settings, load_settings
from cache.attention.items import Chunk
from cache.memory.arena import Arena, Extent
from cache.model.language_model import LanguageModel
from cache.model.loading import Weights, load_model
from cache.prompt.parts import Text
from evals.next_token import NextTokenDistance, sample_answers

ARTICLE_TOKENS = 400
SLOTS = 2048


def distributions(model: LanguageModel, arena: Arena, tokens: Sequence[int], first: int) -> torch.Tensor:
    """Log probabilities of what follows each token from `first` on."""
    chunk = Chunk(tokens, range(len(tokens)), 0, [Extent(0, len(tokens))], [])
    return model.forward([chunk], arena, range(first, len(tokens))).log_softmax(-1)


def measure(settings: Settings, weights: Weights, limit: int) -> dict[str, object]:
    """Of the settings' model on their device. Raises ModelError."""
    load = partial(
        load_model,
        settings.model,
        device=settings.device,
        converted=settings.models_folder,
        adapter=settings.adapter_folder,
    )
    exact, rounded = load(), load(weights=weights)
    if exact.native is None and exact.device.type == "cpu":
        raise SystemExit("the model does not run in compiled code here: install gcc")
    distance = compare(exact, rounded, limit)
    return {"model": exact.info.name, "device": str(exact.device), "weights": weights, **distance.summary()}


def compare(exact: LanguageModel, rounded: LanguageModel, limit: int) -> NextTokenDistance:
    """Over the first questions of the sample help centre that have an answer. Both models are on the same device."""
    arena, distance = Arena(exact.info.kv, SLOTS, exact.device), NextTokenDistance()
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
    return distance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device")
    parser.add_argument("--weights", choices=("int8", "fp8"), default="int8")
    parser.add_argument("--limit", type=int, default=40)
    arguments = parser.parse_args()
    settings = load_settings({"device": arguments.device}, os.environ)
    print(json.dumps(measure(settings, arguments.weights, arguments.limit)))


if __name__ == "__main__":
    main()
