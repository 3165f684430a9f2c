"""Training a LoRA adapter (through peft) on examples: steps, evaluation, and when to stop.

Not covered: what the examples say (`app.training.training_data`), and merging a finished adapter
(`cache.model.adapters`).
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from cache.errors import ModelError
from cache.model.adapters import save_adapter
from cache.training.checkpoint import load_checkpoint, save_checkpoint
from cache.training.examples import TrainingExample
from cache.training.loss import answer_loss, divergence
from cache.training.schedule import Schedule
from cache.training.training_model import TrainingModel

LINEAR_LAYERS = (
    *("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"),
    *("gate_proj", "up_proj", "gate_up_proj", "down_proj"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """A report before each step. done: share of the schedule. loss: running mean. held_out: latest held-out loss."""

    step: int
    done: float
    loss: float
    held_out: float
    tokens_per_s: float


class AdapterTraining:
    """Trains one adapter into `folder`. An interrupted training goes on from its last checkpoint.

    hf: transformers' own rotary model on its device; its attention is replaced. example_at: the training example of a
    number, always the same. held_out: one or more examples. subject: identity of the model and the training data.
    Raises ModelError if passages of the model cannot be placed or it has no layers to adapt, and for a folder with
    another training or with an adapter that cannot be trained further.
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
        # The optimizer works in float32. The model has copies in its own type, so no layer converts them.
        self._parameters = [weight.detach().float().clone() for weight in self._weights]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0, weight_decay=0.0, betas=(0.9, 0.98))
        self.state = load_checkpoint(folder, self._optimizer, schedule, subject)
        self._update_model()

    def run(self, report: Callable[[TrainingProgress], None]) -> TrainingProgress:
        """Train to the end of the schedule, or until the held-out loss stops falling; the best adapter is kept. If
        training only did harm, that is an adapter that changes nothing.
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
        """One optimizer step over the mean gradient of a batch. done: share of the schedule."""
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
        """Copy the optimizer's parameters into the model."""
        for weight, parameter in zip(self._weights, self._parameters, strict=True):
            weight.data = parameter.to(self._peft.dtype)

    def _gradients(
        self, example: TrainingExample, anchor: Tensor | None, modular: bool
    ) -> tuple[float, tuple[Tensor, ...]]:
        """The loss of an example, and the gradients of all adapter weights."""
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
        """For `distil`, logits of full attention without the adapter."""
        if self.schedule.objective == "answers":
            return [None] * len(examples)
        with self._peft.disable_adapter():  # for all threads: never while gradients are computed
            return list(self._pool.map(self._full_logits, examples))

    @torch.no_grad()
    def _full_logits(self, example: TrainingExample) -> Tensor:
        return self._model.logits(example, modular=False)

    def _evaluate(self) -> None:
        """Compute the held-out loss; keep the adapter if it is the best so far."""
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
        """The loss without the anchor term, and the divergence of full attention from the anchor (0 without one)."""
        modular, full = (self._model.logits(example, modular=modular) for modular in (True, False))
        if anchor is not None:
            return divergence(full, modular).item(), divergence(anchor, full).item()
        weight = self.schedule.refusal_weight
        return (answer_loss(example, modular, weight) + answer_loss(example, full, weight)).item() / 2, 0.0

    def _checkpoint(self) -> None:
        save_checkpoint(self.folder, self.state, self._optimizer, self.schedule, self.subject)
