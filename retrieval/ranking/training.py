"""Trains the ranker, from files of passages with questions.

**Examples.** A line of a file is {"title", "context", "qas": [{"question", "answers", "history"?, "from"?,
"heading"?}]}, the usual format of question answering collections. `answers` are verbatim parts of the context; if there
are none, the context does not answer. Questions made from headings count less, and half of these headings are removed,
so that matching a heading is not enough. Some questions get a typing error, as customers make them.

**Training.** Every question of a batch is compared with every statement. The right statements must win (InfoNCE, van
den Oord et al. 2018, with the sum over several right ones). For questions without an answer, the bar (the learned
minimum score) must win. Each answerable question is also compared with all statements except the right ones. Then the
bar must win, so that near misses are rejected. Embeddings and lowest layers stay those of the bundled embedder.
"""

import gzip
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.nn import functional

from durable import replacing
from retrieval.ranking.encoder import CARD, SHORT, WEIGHTS, PassageToRead, RankerTokens
from retrieval.search.minilm import bundled_weights
from retrieval.search.network import MiniLM, padded
from retrieval.statements.cut import statements_of


class RankerModel(nn.Module):
    """The network of the ranker, for training."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = MiniLM(bundled_weights())
        hidden = self.encoder.hidden
        self.shorten = nn.Linear(hidden, SHORT, bias=False)
        self.weigh = nn.Linear(hidden, 1)
        self.bar = nn.Linear(hidden, 1)
        self.mixture = nn.Parameter(torch.tensor([12.0, 12.0]))  # of cosines and of matched tokens
        nn.init.orthogonal_(self.shorten.weight)
        for layer, bias in ((self.weigh, 0.0), (self.bar, 6.0)):
            nn.init.zeros_(layer.weight)
            nn.init.constant_(layer.bias, bias)

    def questions(self, ids: Tensor, mask: Tensor, special: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return whole vectors `[questions, hidden]`, token vectors `[questions, tokens, SHORT]`, weights `[questions,
        tokens]` and bars `[questions]`. special: mask of ignored tokens, bool.
        """
        states = self.encoder.read(ids, mask)
        wholes = functional.normalize((states * mask.unsqueeze(-1)).sum(1), dim=-1)
        weights = torch.softmax(self.weigh(states).squeeze(-1).masked_fill(special, -1e4), dim=1)
        return wholes, functional.normalize(self.shorten(states), dim=-1), weights, self.bar(wholes).squeeze(-1)

    def statements(self, ids: Tensor, mask: Tensor, spans: Sequence[tuple[int, int, int]]) -> tuple[Tensor, Tensor]:
        """Return whole vectors `[spans, hidden]`, token vectors `[tokens, SHORT]`. spans: row, first and end token."""
        states = self.encoder.read(ids, mask)
        width = states.shape[1]
        where = torch.cat([torch.arange(row * width + first, row * width + end) for row, first, end in spans])
        tokens = states.reshape(-1, states.shape[-1])[where]
        sums = torch.zeros(len(spans), states.shape[-1]).index_add(0, statement_of_token(spans), tokens)
        return functional.normalize(sums, dim=-1), functional.normalize(self.shorten(tokens), dim=-1)

    def trained(self) -> dict[str, Tensor]:
        return {name: weight for name, weight in self.named_parameters() if weight.requires_grad}

    def freeze(self, lowest: int) -> None:
        self.encoder.embeddings.requires_grad_(False)
        for layer in self.encoder.layers[:lowest]:
            layer.requires_grad_(False)


def statement_of_token(spans: Sequence[tuple[int, int, int]]) -> Tensor:
    """Return for each token of the concatenated spans the number of its span."""
    return torch.repeat_interleave(torch.arange(len(spans)), torch.tensor([end - first for _, first, end in spans]))


def question_tensors(tokens: RankerTokens, texts: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, mask and mask of special tokens of questions, each `[texts, tokens]`."""
    ids, mask = padded(tokens.rows(texts))
    opening, closing = tokens.special
    return ids, mask, (mask == 0) | (ids == opening) | (ids == closing)


MOST_WORDS = 260
"""Maximum number of words of a training passage. Longer ones are cut at lines, so that a step stays short."""
MADE = 0.5  # weight of a question that a program made
FIRST = 4  # number of first statements of a long answer that count as right
RELATED = 0.5  # share of the batches whose passages are neighbours in their file, and so near misses of each other
PASSAGES, QUESTIONS = 16, 56  # passages (about) and questions (at most) of a batch. A small file has fewer passages.


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingQuestion:
    """A question. right: numbers of the statements that answer it. weight: probability of use in a batch."""

    text: str
    earlier: str
    right: tuple[int, ...]
    weight: float


@dataclass(slots=True, kw_only=True)
class ExamplePassage:
    """A part of a document. document: the document's number. is_local: its questions do not name their subject, so they
    are compared only with statements of their own document.
    """

    read: PassageToRead
    document: int
    is_local: bool
    questions: list[TrainingQuestion] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """Passages, and questions with the number of their passage."""

    passages: Sequence[ExamplePassage]
    questions: Sequence[tuple[int, TrainingQuestion]]


def read_examples(
    files: Sequence[Path], left_out: frozenset[str], local: frozenset[str], seed: int
) -> list[list[ExamplePassage]]:
    """Return the documents of all files, each a list of passages. left_out: sources reserved for measuring. local:
    sources whose questions do not name their document. Raises OSError or ValueError.
    """
    generator = random.Random(seed)
    documents: list[list[ExamplePassage]] = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                if row["src"] not in left_out:
                    documents.append(_document(row, len(documents), row["src"] in local, generator))
    return [passages for passages in documents if any(passage.questions for passage in passages)]


def _document(row: dict[str, Any], number: int, is_local: bool, generator: random.Random) -> list[ExamplePassage]:
    context = row["context"]
    for heading in dict.fromkeys(qa["heading"] for qa in row["qas"] if qa.get("heading")):
        if generator.random() < 0.5:
            context = context.replace(f"\n{heading}\n", "\n", 1)
    passages: list[ExamplePassage] = []
    starts: list[int] = []
    for start, text in _parts(context):
        spans = [(one.start, one.end) for one in statements_of(text, (row["title"],))]
        if spans:
            read = PassageToRead(headings=(row["title"],), text=text, spans=spans)
            passages.append(ExamplePassage(read=read, document=number, is_local=is_local))
            starts.append(start)
    for qa in row["qas"]:
        place, right = _place(qa, context, passages, starts)
        if place is not None:
            passages[place].questions.append(
                TrainingQuestion(
                    text=qa["question"].strip(),
                    earlier=_earlier(qa.get("history") or ()),
                    right=right,
                    weight=MADE if qa.get("from") in ("heading", "faq_title") else 1.0,
                )
            )
    return passages


def _parts(context: str) -> Iterator[tuple[int, str]]:
    start = at = num = 0
    for line in context.splitlines(keepends=True):
        length = len(line.split())
        if num and num + length > MOST_WORDS:
            yield start, context[start:at]
            start, num = at, 0
        at += len(line)
        num += length
    yield start, context[start:at]


def _place(
    qa: dict[str, Any], context: str, passages: Sequence[ExamplePassage], starts: Sequence[int]
) -> tuple[int | None, tuple[int, ...]]:
    """Return the passage of a question and the statements that answer it. An unanswerable question gets the passage
    that shares most words, a near miss. The passage is None if no statement contains the answer.
    """
    if not qa["answers"]:
        asked = _long_words(qa["question"])
        shared = [len(asked & _long_words(passage.read.text)) for passage in passages]
        return (shared.index(max(shared)) if shared else None), ()
    found = [(first, first + len(answer)) for answer in qa["answers"] if (first := context.find(answer)) >= 0]
    for place, (passage, start) in enumerate(zip(passages, starts, strict=True)):
        spans = [(start + first, start + end) for first, end in passage.read.spans]
        right = [n for n, (a, b) in enumerate(spans) if any(a < end and b > first for first, end in found)]
        if right:
            return place, tuple(right[:FIRST])
    return None, ()


def _long_words(text: str) -> set[str]:
    return set(re.findall(r"\w{4,}", text.lower()))


def _earlier(history: Sequence[Any]) -> str:
    asked = [said for who, said in history if who.lower().startswith("u")]
    return " ".join(asked[-1].split()[-22:]) if asked else ""


def batches(documents: Sequence[Sequence[ExamplePassage]], generator: random.Random) -> Iterator[TrainingBatch]:
    """Yield batches without end. A document adds at most two passages with questions and one without."""
    weights = [sum(one.weight for passage in passages for one in passage.questions) for passages in documents]
    while True:
        passages: list[ExamplePassage] = []
        is_related = generator.random() < RELATED
        at = generator.choices(range(len(documents)), weights)[0]
        for _ in range(PASSAGES):
            if len(passages) >= PASSAGES:
                break
            asked = [passage for passage in documents[at] if passage.questions]
            unasked = [passage for passage in documents[at] if not passage.questions]
            some = [*generator.sample(asked, min(2, len(asked))), *generator.sample(unasked, min(1, len(unasked)))]
            passages += [passage for passage in some if not any(passage is other for other in passages)]
            at = (at + 1) % len(documents) if is_related else generator.choices(range(len(documents)), weights)[0]
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


def as_asked(question: TrainingQuestion, generator: random.Random) -> str:
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


LONGEST = 512  # maximum number of tokens of a training passage
FROZEN = 2  # number of lowest layers that are not trained
RATES = (5e-5, 1e-3, 2e-2)  # learning rates of the layers, the heads, and the two weights of the mixture
WARM_UP = 60  # steps until the full learning rate. It also falls during training, to 2 % at the end.
BAR = 0.5  # weight of the bar's loss
SAVED_EVERY_S = 300.0
_IMPOSSIBLE = -1e4
TOGETHER = 64  # spans that are compared together


@dataclass(frozen=True, slots=True, kw_only=True)
class RankerCard:
    """A description of a ranker and its training. name: a digest of the weights; empty before training."""

    name: str = ""
    data: tuple[str, ...]
    left_out: tuple[str, ...]
    questions: int
    steps: int = 0
    minutes: float = 0.0
    seed: int
    loss: float = 0.0


def train_ranker(
    documents: Sequence[Sequence[ExamplePassage]],
    folder: Path,
    card: RankerCard,
    *,
    minutes: float,
    start: Path | None,
    report: Callable[[int, float, float], None],
) -> RankerCard:
    """Train for some minutes. Write weights and card at the end and several times before. start: folder of a ranker to
    continue from. report: called with step, share of the time and loss. Returns the card as written. Raises OSError.
    """
    torch.manual_seed(card.seed)
    generator = random.Random(card.seed)
    model, tokens = RankerModel().eval(), RankerTokens()  # eval: dropout would take three times as long here
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
    minutes, loss = round((time.monotonic() - began) / 60, 1), round(sum(last) / max(1, len(last)), 3)
    return replace(card, steps=len(losses), minutes=minutes, loss=loss)


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
    rows, cut = tokens.passages([passage.read for passage in batch.passages], LONGEST)
    spans = [span for span in cut if span[2] > span[1]]
    numbers = [n for passage in batch.passages for n in range(len(passage.read.spans))]
    number_of = [number for number, span in zip(numbers, cut, strict=True) if span[2] > span[1]]
    asked = question_tensors(tokens, [as_asked(question, generator) for _, question in batch.questions])
    scores, bars = all_scores(model, asked, model.statements(*padded(rows), spans), spans)
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
    """Return scores `[questions, spans]` and bars `[questions]`, as `Mixture` computes them."""
    wholes, tokens, weights, bars = model.questions(*asked)
    statement_wholes, statement_tokens = statements
    number, length, _ = tokens.shape
    lengths = torch.tensor([end - first for _, first, end in spans])
    best = best_matches(tokens.flatten(0, 1), statement_tokens, lengths).view(number, length, -1)
    matched = (weights.unsqueeze(-1) * best).sum(1)
    return model.mixture[0] * (wholes @ statement_wholes.T) + model.mixture[1] * matched, bars


def best_matches(asked: Tensor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """Return the highest cosine of each asked token in each span, `[asked, spans]`. tokens: of all spans. lengths:
    their number in each span. Spans of similar length are compared together, which is faster than `scatter_reduce`.
    """
    starts, order = lengths.cumsum(0) - lengths, lengths.argsort()
    found: list[Tensor] = []
    for at in range(0, len(order), TOGETHER):
        spans = order[at : at + TOGETHER]
        places = torch.arange(int(lengths[spans].max()))
        rows = (starts[spans].unsqueeze(1) + places).clamp(max=len(tokens) - 1)
        cosines = (asked @ tokens[rows].flatten(0, 1).T).view(-1, *rows.shape)
        is_padding = places >= lengths[spans].unsqueeze(1)
        found.append(cosines.masked_fill(is_padding, -1.0).amax(2))
    return torch.cat(found, 1)[:, order.argsort()]


def save_ranker(model: RankerModel, folder: Path, card: RankerCard) -> RankerCard:
    """Write weights (float16) and card, each file completely or not at all. Returns the card with its name."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({name: weight.detach().half().contiguous() for name, weight in model.trained().items()})
    card = replace(card, name=f"ranker-{blake2b(weights, digest_size=4).hexdigest()}")
    described = json.dumps(asdict(card), indent=2) + "\n"
    for file, contents in ((folder / WEIGHTS, weights), (folder / CARD, described.encode())):
        with replacing(file) as temporary:
            temporary.write_bytes(contents)
    return card
