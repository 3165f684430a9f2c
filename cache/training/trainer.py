"""Training of a LoRA adapter with peft: schedule, losses, checkpoints, evaluation, and early stopping.

A checkpoint is one safetensors file (without pickle) that is replaced as a whole. Logits `[A, vocabulary]` predict the
tokens of an example's answers. Out of scope: contents of examples (`app.training`), and merging a finished adapter
(`cache.model.loading`).
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from cache.errors import ModelError
from cache.model.loading import WEIGHTS, save_adapter
from cache.training.examples import TrainingExample, TrainingModel
from durable import replacing

Objective = Literal["answers", "distil"]
"""Objectives. answers: maximise the likelihood of the answers. distil: modular attention learns to predict the same as
full attention, and full attention stays close to the model without the adapter. Both are compared on the answers' text.
The adapter changes both attentions: most of their difference comes from the influence of one passage on another, which
is unknown when passages are encoded separately.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The settings of a training. It ends after `steps` or `minutes`, whichever comes first. batch_size: examples per
    step, each in its own thread with its share of the cores (on a CPU faster than one after another). rank: of the LoRA
    matrices. For `answers`: modular_share: share of examples with modular attention; paired_weight: weight of the
    divergence of modular from full attention; refusal_weight: weight of the refusal loss. For `distil`: anchor_weight:
    weight of the divergence of full attention from the model without the adapter. warmup, evaluate_every: in steps.
    patience: number of evaluations without a better held-out loss after which training ends.
    """

    steps: int | None = None
    minutes: float | None = None
    batch_size: int = 2
    objective: Objective = "answers"
    rank: int = 16
    learning_rate: float = 3e-4
    warmup: int = 40
    modular_share: float = 0.5
    paired_weight: float = 4.0
    anchor_weight: float = 0.35
    refusal_weight: float = 2.0
    evaluate_every: int = 50
    patience: int = 4
    seed: int = 0

    def done(self, step: int, seconds: float) -> float:
        of_steps = step / self.steps if self.steps is not None else 0.0
        of_minutes = seconds / (60 * self.minutes) if self.minutes is not None else 0.0
        return min(1.0, max(of_steps, of_minutes))

    def learning_rate_at(self, step: int, done: float) -> float:
        """Return the learning rate: linear warm-up, then cosine decay to 5 %."""
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * (0.05 + 0.95 * cosine)

    def is_modular(self, number: int) -> bool:
        """Return whether an example is trained with modular attention. Such examples are spread evenly (golden ratio
        sequence). The result is the same after training is resumed.
        """
        return self.objective == "distil" or (number * 0.6180339887) % 1 < self.modular_share


CHECKPOINT = "checkpoint.safetensors"


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """The state of a training, except its tensors. loss: running mean. held_out: latest held-out loss; best: lowest
    held-out loss; before: held-out loss before the first step. moved: divergence of full attention with the best
    adapter from the model without it, in nats per token; None for `answers`. without_gain: evaluations since the best.
    """

    step: int = 0
    seconds: float = 0.0
    questions: int = 0
    tokens: int = 0
    loss: float = 0.0
    best: float = math.inf
    held_out: float = math.inf
    before: float | None = None
    moved: float | None = None
    without_gain: int = 0


def save_checkpoint(
    folder: Path, state: TrainingState, optimizer: torch.optim.Optimizer, schedule: Schedule, subject: str
) -> None:
    """Write state, parameters and the optimizer's moments. subject: identifies the model and the training data."""
    tensors: dict[str, Tensor] = {}
    for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
        tensors |= {f"{number}.value": parameter.data}
        tensors |= {f"{number}.{name}": tensor for name, tensor in optimizer.state[parameter].items()}
    metadata = {"state": json.dumps(asdict(state)), "schedule": json.dumps(asdict(schedule)), "subject": subject}
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / CHECKPOINT) as temporary:
        save_file(tensors, temporary, metadata)


def load_checkpoint(folder: Path, optimizer: torch.optim.Optimizer, schedule: Schedule, subject: str) -> TrainingState:
    """Read a checkpoint into the optimizer and return its state; a new state if the folder has no checkpoint. Raises
    ModelError if the folder has another training, or an adapter that cannot be trained further.
    """
    file = folder / CHECKPOINT
    if not file.is_file():
        if (folder / WEIGHTS).is_file():
            raise ModelError(f"{folder} contains an adapter without a checkpoint: use another folder")
        return TrainingState()
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    if metadata.get("subject") != subject:
        raise ModelError(
            f"{folder} contains the training of another model or adapter, or with other documents: use another folder"
        )
    limits = {"steps": schedule.steps, "minutes": schedule.minutes}  # these may change when training is resumed
    if json.loads(metadata["schedule"]) | limits != asdict(schedule):  # also if a version had other settings
        raise ModelError(f"{folder} contains a training with another schedule: finish it, or use another folder")
    tensors = load_file(file)
    state = TrainingState(**json.loads(metadata["state"]))
    parameters = optimizer.param_groups[0]["params"]
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        if name == "value":
            parameter.data.copy_(tensor)
        else:
            optimizer.state[parameter][name] = tensor if name == "step" else tensor.to(parameter.device)
    return state


def divergence(wanted: Tensor, got: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence of logits `got` from target logits `wanted`, in nats per row."""
    return F.kl_div(got.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")


def answer_loss(example: TrainingExample, logits: Tensor, refusal_weight: float) -> Tensor:
    """Return the cross-entropy of the answers in nats per token, plus the weighted refusal loss."""
    labels = torch.tensor([token for query in example.queries for token in query.answer], device=logits.device)
    return F.cross_entropy(logits, labels) + refusal_weight * refusal_loss(example, logits)


def refusal_loss(example: TrainingExample, logits: Tensor) -> Tensor:
    """Return the binary cross-entropy, in nats per query, of the first token: does it start a refusal exactly when the
    right answer is a refusal? Zero for an example without refusals. The first token decides whether to refuse, but has
    little weight among all tokens.
    """
    begins = next((query.answer[0] for query in example.queries if query.refused), None)
    if begins is None:
        return logits.new_zeros(())
    lengths = [0, *(len(query.answer) for query in example.queries[:-1])]
    first = logits[torch.tensor(lengths, device=logits.device).cumsum(0)]
    others = first.index_fill(1, torch.tensor([begins], device=logits.device), -torch.inf)
    wanted = torch.tensor([float(query.refused) for query in example.queries], device=logits.device)
    return F.binary_cross_entropy_with_logits(first[:, begins] - others.logsumexp(-1), wanted)


LINEAR_LAYERS = (
    *("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"),
    *("gate_proj", "up_proj", "gate_up_proj", "down_proj"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """The report before each step. done: share of the schedule. loss: running mean. held_out: latest held-out loss."""

    step: int
    done: float
    loss: float
    held_out: float
    tokens_per_s: float


class AdapterTraining:
    """Trains one adapter and stores it in `folder`; continues from a checkpoint there. hf: transformers' own rotary
    model; its attention is replaced. example_at: returns the training example of a number, always the same. subject:
    identifies the model and the training data. Raises ModelError if the model's passages cannot be placed, it has no
    layers to adapt, or the folder has another training or an adapter that cannot be trained further.
    """

    def __init__(
        self,
        hf: Any,
        example_at: Callable[[int], TrainingExample],
        held_out: Sequence[TrainingExample],
        schedule: Schedule,
        folder: Path,
        *,
        subject: str,
    ) -> None:
        self.schedule, self.folder, self.subject = schedule, folder, subject
        self._example_at, self._held_out = example_at, held_out
        self._model = TrainingModel(hf)
        threads = max(1, torch.get_num_threads() // schedule.batch_size)
        self._pool = ThreadPoolExecutor(schedule.batch_size, "warmdesk-training", torch.set_num_threads, (threads,))
        torch.manual_seed(schedule.seed)
        layers = {name.rpartition(".")[2] for name, _ in hf.named_modules()} & set(LINEAR_LAYERS)
        if not layers:
            raise ModelError(f"model type {hf.config.model_type!r} has none of the layers {', '.join(LINEAR_LAYERS)}")
        config = LoraConfig(
            r=schedule.rank, lora_alpha=2 * schedule.rank, target_modules=sorted(layers), task_type="CAUSAL_LM"
        )
        self._peft: Any = get_peft_model(hf, config)
        self._weights = [p for p in self._peft.parameters() if p.requires_grad]
        # The optimizer works in float32. The model has copies in its own type, so that no layer must convert them.
        self._parameters = [weight.detach().float().clone() for weight in self._weights]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0, weight_decay=0.0, betas=(0.9, 0.98))
        self.state = load_checkpoint(folder, self._optimizer, schedule, subject)
        self._update_model()

    def run(self, report: Callable[[TrainingProgress], None]) -> TrainingProgress:
        """Train to the end of the schedule, or until the held-out loss stops falling. The best adapter is stored. If
        training never improves the loss, the stored adapter changes nothing.
        """
        state, schedule = self.state, self.schedule
        start, seconds, tokens = time.perf_counter(), state.seconds, state.tokens
        if state.before is None and state.step == 0:
            self._evaluate()
            state.before = state.held_out
            self._checkpoint()
        done = schedule.done(state.step, state.seconds)
        while True:
            progress = TrainingProgress(
                step=state.step,
                done=done,
                loss=state.loss,
                held_out=state.held_out,
                tokens_per_s=(state.tokens - tokens) / (time.perf_counter() - start),
            )
            report(progress)
            if done >= 1 or state.without_gain >= schedule.patience:
                return progress
            self._step(done)
            state.seconds = seconds + time.perf_counter() - start
            done = schedule.done(state.step, state.seconds)
            if state.step % schedule.evaluate_every == 0 or done >= 1:
                self._evaluate()
                self._checkpoint()

    def _step(self, done: float) -> None:
        state, schedule = self.state, self.schedule
        for group in self._optimizer.param_groups:
            group["lr"] = schedule.learning_rate_at(state.step, done)
        numbers = range(state.step * schedule.batch_size, (state.step + 1) * schedule.batch_size)
        examples = [self._example_at(number) for number in numbers]
        modular = map(schedule.is_modular, numbers)
        results = list(self._pool.map(self._gradients, examples, self._anchors(examples), modular))
        for parameter, *gradients in zip(self._parameters, *(found for _, found in results), strict=True):
            parameter.grad = torch.stack(gradients).float().mean(0)
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._update_model()
        state.step += 1
        for example, (loss, _) in zip(examples, results, strict=True):
            state.questions += len(example.queries)
            state.tokens += len(example.prefix) + sum(map(len, example.modules))
            state.tokens += sum(len(query.question) + len(query.answer) - 1 for query in example.queries)
            state.loss = loss if state.step == 1 else 0.98 * state.loss + 0.02 * loss

    def _update_model(self) -> None:
        for weight, parameter in zip(self._weights, self._parameters, strict=True):
            weight.data = parameter.to(self._peft.dtype)

    def _gradients(
        self, example: TrainingExample, anchor: Tensor | None, modular: bool
    ) -> tuple[float, tuple[Tensor, ...]]:
        """Return the loss of an example, and the gradients of all adapter weights."""
        logits = self._model.logits(example, modular=modular)
        if anchor is not None:
            full = self._model.logits(example, modular=False)
            loss = reported = divergence(full, logits) + self.schedule.anchor_weight * divergence(anchor, full)
        else:
            loss = reported = answer_loss(example, logits, self.schedule.refusal_weight)
            if modular:
                loss = loss + self.schedule.paired_weight * divergence(self._full_logits(example), logits)
        return reported.item(), torch.autograd.grad(loss, self._weights)

    def _anchors(self, examples: Sequence[TrainingExample]) -> list[Tensor | None]:
        """Return each example's logits of full attention without the adapter; for `answers`, None for each example."""
        if self.schedule.objective == "answers":
            return [None] * len(examples)
        with self._peft.disable_adapter():  # affects all threads, so never during `_gradients`
            return list(self._pool.map(self._full_logits, examples))

    @torch.no_grad()
    def _full_logits(self, example: TrainingExample) -> Tensor:
        return self._model.logits(example, modular=False)

    def _evaluate(self) -> None:
        state, size = self.state, self.schedule.batch_size
        losses: list[tuple[float, float]] = []
        for first in range(0, len(self._held_out), size):
            examples = self._held_out[first : first + size]
            losses += self._pool.map(self._held_out_loss, examples, self._anchors(examples))
        loss, moved = (sum(parts) / len(losses) for parts in zip(*losses, strict=True))
        state.held_out = loss + self.schedule.anchor_weight * moved
        if state.held_out < state.best:
            state.best, state.without_gain = state.held_out, 0
            state.moved = moved if self.schedule.objective == "distil" else None
            save_adapter(self._peft, self.folder)
        else:
            state.without_gain += 1

    @torch.no_grad()
    def _held_out_loss(self, example: TrainingExample, anchor: Tensor | None) -> tuple[float, float]:
        """Return the loss without the anchor term, and the divergence from the anchor (0 without an anchor)."""
        modular, full = (self._model.logits(example, modular=modular) for modular in (True, False))
        if anchor is not None:
            return divergence(full, modular).item(), divergence(anchor, full).item()
        weight = self.schedule.refusal_weight
        return (answer_loss(example, modular, weight) + answer_loss(example, full, weight)).item() / 2, 0.0

    def _checkpoint(self) -> None:
        save_checkpoint(self.folder, self.state, self._optimizer, self.schedule, self.subject)
