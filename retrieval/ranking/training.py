"""Trains the ranker: questions against all statements of a batch of passages.

Of a batch every question is compared with every statement: those that answer must win (InfoNCE, van den Oord et al.
2018, with the sum over several right ones), and for questions without an answer the learned bar. Each answerable
question is also compared with all statements but the right ones: then the bar must win, which is how near misses are
learned. Embeddings and the lowest layers stay those of the bundled embedder.
"""

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from retrieval.ranking.encoder import CARD, WEIGHTS, RankerModel, RankerTokens, statement_of_token
from retrieval.ranking.examples import ExamplePassage, TrainingBatch, as_asked, batches

LONGEST = 224
"""Tokens of a training passage."""
FROZEN = 2
"""Layers that stay as they are."""
RATES = (5e-5, 1e-3, 2e-2)
"""Learning rates of the layers, of the heads, and of the two weights of the mixture."""
WARM_UP = 60
"""Steps until the learning rate is reached; from the beginning it falls to 2 % at the end."""
BAR = 0.5
"""How much the loss of the bar counts."""
SAVED_EVERY_S = 300.0
_IMPOSSIBLE = -1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class RankerCard:
    """What a ranker is and how it was made. name: of its vectors, from its weights; unset before there are any."""

    name: str = ""
    data: tuple[str, ...]
    left_out: tuple[str, ...]
    questions: int
    steps: int
    minutes: float
    seed: int
    loss: float
    machine: str = ""


def train_ranker(
    documents: Sequence[Sequence[ExamplePassage]],
    folder: Path,
    card: RankerCard,
    *,
    minutes: float,
    start: Path | None,
    report: Callable[[int, float, float], None],
) -> RankerCard:
    """Train for some minutes and write weights and card, also in between. start: the folder of a ranker to go on from.
    report: called with step, share of the time and loss. Returns the card as written. Raises OSError.
    """
    torch.manual_seed(card.seed)
    generator = random.Random(card.seed)
    model, tokens = RankerModel().eval(), RankerTokens()  # eval: dropout costs three times the time here
    if start is not None:
        model.load_state_dict({n: w.float() for n, w in load_file(start / WEIGHTS).items()}, strict=False)
    model.freeze(FROZEN)
    optimizer = torch.optim.AdamW(_groups(model), weight_decay=0.01)
    began = saved = time.monotonic()
    losses: list[float] = []
    for batch in batches(documents, generator):
        done = (time.monotonic() - began) / (60 * minutes)
        if done >= 1:
            break
        factor = min(1.0, (len(losses) + 1) / WARM_UP) * max(0.02, 1 - done)
        for group, rate in zip(optimizer.param_groups, RATES, strict=True):
            group["lr"] = rate * factor
        loss = loss_of(model, tokens, batch, generator)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.trained().values(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        report(len(losses), done, losses[-1])
        if time.monotonic() - saved > SAVED_EVERY_S:
            saved = time.monotonic()
            save_ranker(model, folder, _card(card, losses, began))
    return save_ranker(model, folder, _card(card, losses, began))


def _card(card: RankerCard, losses: Sequence[float], began: float) -> RankerCard:
    last = losses[-50:]
    known = {"steps": len(losses), "minutes": round((time.monotonic() - began) / 60, 1)}
    return RankerCard(**{**asdict(card), **known, "loss": round(sum(last) / max(1, len(last)), 3)})


def _groups(model: RankerModel) -> list[dict[str, object]]:
    weights = model.trained()
    layers = [weight for name, weight in weights.items() if name.startswith("encoder.")]
    heads = [weight for name, weight in weights.items() if not name.startswith("encoder.") and name != "mixture"]
    return [
        {"params": layers},
        {"params": heads, "weight_decay": 0.0},
        {"params": [model.mixture], "weight_decay": 0.0},
    ]


def loss_of(model: RankerModel, tokens: RankerTokens, batch: TrainingBatch, generator: random.Random) -> Tensor:
    """The loss of a batch, in nats."""
    ids, mask, cut = tokens.passages([passage.read for passage in batch.passages], LONGEST)
    spans = [span for span in cut if span[2] > span[1]]
    numbers = [n for passage in batch.passages for n in range(len(passage.read.spans))]
    number_of = [number for number, span in zip(numbers, cut, strict=True) if span[2] > span[1]]
    asked = tokens.questions([as_asked(question, generator) for _, question in batch.questions])
    scores, bars = all_scores(model, asked, model.statements(ids, mask, spans), spans)
    right, own = (torch.zeros(scores.shape, dtype=torch.bool) for _ in range(2))
    for row, (place, question) in enumerate(batch.questions):
        passage = batch.passages[place]
        for column, ((at, _, _), number) in enumerate(zip(spans, number_of, strict=True)):
            right[row, column] = at == place and number in question.right
            own[row, column] = not passage.is_local or batch.passages[at].document == passage.document
    scores = scores.masked_fill(~own, _IMPOSSIBLE)
    found = right.any(1)
    unanswerable = torch.tensor([not question.right for _, question in batch.questions])
    others = torch.cat([scores.masked_fill(right, _IMPOSSIBLE), bars.unsqueeze(1)], 1).logsumexp(1) - bars
    counted = found * 0.5 + unanswerable * 1.0
    loss = BAR * (others * counted).sum() / counted.sum().clamp(min=1.0)
    if found.any():
        answers = scores.masked_fill(~right, _IMPOSSIBLE).logsumexp(1)
        loss = loss + (torch.cat([scores, bars.unsqueeze(1)], 1).logsumexp(1) - answers)[found].mean()
    return loss


def all_scores(
    model: RankerModel,
    asked: tuple[Tensor, Tensor, Tensor],
    statements: tuple[Tensor, Tensor],
    spans: Sequence[tuple[int, int, int]],
) -> tuple[Tensor, Tensor]:
    """Scores `[questions, spans]` and bars `[questions]`, as `scoring.Mixture` computes them."""
    wholes, tokens, weights, bars = model.questions(*asked)
    statement_wholes, statement_tokens = statements
    number, length, _ = tokens.shape
    similarity = tokens.flatten(0, 1) @ statement_tokens.T
    lowest = torch.full((number * length, len(spans)), -1.0)
    columns = statement_of_token(spans).expand(number * length, -1)
    best = lowest.scatter_reduce(1, columns, similarity, "amax", include_self=False).view(number, length, -1)
    matched = (weights.unsqueeze(-1) * best).sum(1)
    return model.mixture[0] * (wholes @ statement_wholes.T) + model.mixture[1] * matched, bars


def save_ranker(model: RankerModel, folder: Path, card: RankerCard) -> RankerCard:
    """Write weights (float16) and card, each whole or not at all. Returns the card, named by the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({name: weight.detach().half().contiguous() for name, weight in model.trained().items()})
    card = replace(card, name=f"ranker-{blake2b(weights, digest_size=4).hexdigest()}")
    described = json.dumps(asdict(card), indent=2) + "\n"
    for file, contents in ((folder / WEIGHTS, weights), (folder / CARD, described.encode())):
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(contents)
        temporary.replace(file)
    return card
