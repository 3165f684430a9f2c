"""How far weights of 8 bits are from those of the model, in what comes next in the sample answers.

    python -m evals.rounded_weights [--limit 40]

Each question is asked behind the beginning of its article, and the sample answer is read in passes of few rows, once
with either kind of weights; keys and values before the answer are the same, as they are on a desk. KL is the divergence
of the rounded distribution of the next token from the other one, in nats; top 1 is how often both have the same
likeliest token. Prints one JSON document. Not covered: whether an answer is right.
"""

import argparse
import json
import os
import statistics
from collections.abc import Sequence
from typing import get_args

import torch

from app.domain.settings import Settings, load_settings
from app.domain.shipped import SHIPPED_DATA
from cache.attention.items import Chunk
from cache.memory.allocator import Extent
from cache.memory.arena import Arena
from cache.model.language_model import LanguageModel
from cache.model.loading import load_model
from cache.native.few_rows import MAX_ROWS, Weights
from cache.prompt.parts import Text

ARTICLE_TOKENS = 400


def distributions(model: LanguageModel, arena: Arena, tokens: Sequence[int], first: int) -> torch.Tensor:
    """Log probabilities of what follows each token from `first` on; the keys of those before are in the arena."""
    found = []
    for at in range(first, len(tokens), MAX_ROWS):
        part = tokens[at : at + MAX_ROWS]
        chunk = Chunk(part, range(at, at + len(part)), at, [Extent(0, len(tokens))], [])
        found.append(model.forward([chunk], arena, range(len(part))).log_softmax(-1))
    return torch.cat(found)


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
    if exact.few_rows is None:
        raise SystemExit("passes of few rows do not run in compiled code here: install gcc")
    arena = Arena(exact.info.kv, 2048, exact.device)
    means, worst, same, count = list[float](), 0.0, 0, 0
    template, tokenizer = exact.tokenizer.template, exact.tokenizer
    lines = (SHIPPED_DATA / "questions.jsonl").read_text("utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("answer")][:limit]
    for row in rows:
        article = (SHIPPED_DATA / "knowledge" / row["article"]).read_text("utf-8")
        text = tokenizer.decode(tokenizer.encode([Text(text=article)])[:ARTICLE_TOKENS])
        asked = [
            Text(text=template.open + template.to_user, structural=True),
            Text(text=f"{text}\n\n{row['question']}"),
            Text(text=template.to_answer, structural=True),
        ]
        prompt, answer = tokenizer.encode(asked), tokenizer.encode([Text(text=row["answer"])])
        tokens, first = [*prompt, *answer], len(prompt)
        # the answer's predictions begin at the last token of the prompt
        before = Chunk(tokens[: first - 1], range(first - 1), 0, [Extent(0, len(tokens))], [])
        exact.forward([before], arena, [])
        one, other = (distributions(model, arena, tokens[:-1], first - 1) for model in (exact, rounded))
        divergence = (one.exp() * (one - other)).sum(-1)
        means.append(float(divergence.mean()))
        worst = max(worst, float(divergence.max()))
        same += int((one.argmax(-1) == other.argmax(-1)).sum())
        count += len(one)
    return {
        "model": exact.info.name,
        "questions": len(rows),
        "tokens": count,
        "kl_mean": statistics.mean(means),
        "kl_of_the_worst_question": max(means),
        "kl_of_the_worst_token": worst,
        "top_1": same / count,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=40)
    print(json.dumps(measure(load_settings({}, os.environ), parser.parse_args().limit)))


if __name__ == "__main__":
    main()
