"""Training a LoRA adapter (through peft) on lessons, with checkpoints that hold no pickle.

Not covered: what the lessons say (`app.training.training_data`), how a lesson is attended to (`lessons`), what becomes
of an adapter (`adapters`).
"""

from __future__ import annotations

import json
import math
import os
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
from cache.model.adapters import WEIGHTS, save_adapter
from cache.training.examples import Lesson
from cache.training.training_model import LessonModel

LINEAR_LAYERS = (
    "q_proj",
    "k_proj",
    "v_proj",
    "qkv_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "gate_up_proj",
    "down_proj",
)

Objective = Literal["answers", "distil"]
"""answers: the likelihood of the answers. distil: modular attention is to say what the model says under full attention,
which in turn is held to what it says without the adapter; the answers are only texts along which they are compared.
Both move, as most of what tells them apart is what one passage does to the reading of another, which no adapter can
know of passages that are read one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How an adapter is trained. steps, minutes: when it ends, whichever is first. lessons: of a step, taught side by
    side, each by its share of the threads, which on a CPU is faster than one after another by all. modular_share: of
    the lessons with answers, those that teach them to modular attention, and `paired_weight` times to say what full
    attention says; the others teach full attention.
    refusal_weight: of whether to refuse or to answer, beside the answers' tokens. anchor_weight: of what full attention
    is held to, beside what modular attention is.
    patience: evaluations without a better held-out loss before training ends.
    """

    steps: int | None = None
    minutes: float | None = None
    lessons: int = 2
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
        """Share of the training that is over, at most 1."""
        of_steps = step / self.steps if self.steps is not None else 0.0
        of_minutes = seconds / (60 * self.minutes) if self.minutes is not None else 0.0
        return min(1.0, max(of_steps, of_minutes))

    def learning_rate_at(self, step: int, done: float) -> float:
        """Linear warm-up, then a cosine down to a twentieth."""
        cosine = 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * (0.05 + 0.95 * cosine)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training stands. done: share of its schedule. loss: running mean; held_out: the latest held-out loss."""

    step: int
    done: float
    questions: int
    tokens: int
    loss: float
    held_out: float
    tokens_per_s: float


@dataclass(slots=True, kw_only=True)
class State:
    """What a checkpoint holds beside the tensors. seconds: of training. before: held-out loss before the first step.
    moved: of the best adapter, how far full attention is from what it is held to, in nats; None if to nothing.
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


class AdapterTraining:
    """Trains one adapter, with checkpoints in `folder`/checkpoint; an interrupted training goes on from the last one.

    hf: transformers' own rotary model on its device; its attention is replaced. lesson_at: the lesson of a step, the
    same one for the same number. held_out: at least one lesson. subject: identity of the model and of what it is
    taught. Raises ModelError if passages of the model cannot be placed or it has no layers to adapt, and for a folder
    that holds another training, or an adapter whose training cannot go on.
    """

    def __init__(
        self,
        hf: Any,
        lesson_at: Callable[[int], Lesson],
        held_out: Sequence[Lesson],
        schedule: Schedule,
        folder: Path,
        *,
        subject: str,
    ) -> None:
        self.schedule, self.folder, self.subject = schedule, folder, subject
        self._lesson_at, self._held_out = lesson_at, held_out
        self._reader = LessonModel(hf)
        self._pool = ThreadPoolExecutor(
            schedule.lessons,
            "warmdesk-teaching",
            torch.set_num_threads,
            (max(1, torch.get_num_threads() // schedule.lessons),),
        )
        torch.manual_seed(schedule.seed)
        names = {name.rpartition(".")[2] for name, _ in hf.named_modules()}
        if not names & set(LINEAR_LAYERS):
            raise ModelError(f"model type {hf.config.model_type!r} has none of the layers {', '.join(LINEAR_LAYERS)}")
        config = LoraConfig(
            r=schedule.rank,
            lora_alpha=2 * schedule.rank,
            target_modules=sorted(names & set(LINEAR_LAYERS)),
            task_type="CAUSAL_LM",
        )
        self._model: Any = get_peft_model(hf, config)
        self._taught = [p for p in self._model.parameters() if p.requires_grad]
        # The optimizer's are float32; the model reads with copies of its own type, so that nothing is cast on the way.
        self._parameters = [p.detach().float().clone() for p in self._taught]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=0.0, weight_decay=0.0, betas=(0.9, 0.98))
        self.state = State()
        self._resume()
        self._take_over()

    def run(self, report: Callable[[Progress], None]) -> Progress:
        """Train to the end of the schedule, or until the held-out loss no longer falls; keep the best adapter, which is
        one that changes nothing if training only did harm.
        """
        state, schedule = self.state, self.schedule
        began, tokens = time.perf_counter(), state.tokens
        earlier = state.seconds
        if state.before is None and state.step == 0:
            self._evaluate()
            state.before = state.held_out
            self._checkpoint()
        done = schedule.done(state.step, state.seconds)
        while True:
            progress = Progress(
                step=state.step,
                done=done,
                questions=state.questions,
                tokens=state.tokens,
                loss=state.loss,
                held_out=state.held_out,
                tokens_per_s=(state.tokens - tokens) / (time.perf_counter() - began),
            )
            report(progress)
            if done >= 1 or state.without_gain >= schedule.patience:
                return progress
            self._step(done)
            state.seconds = earlier + time.perf_counter() - began
            done = schedule.done(state.step, state.seconds)
            if state.step % schedule.evaluate_every == 0 or done >= 1:
                self._evaluate()
                self._checkpoint()

    def _step(self, done: float) -> None:
        """One step of the optimizer, over the mean of its lessons. done: share of the schedule."""
        state, schedule = self.state, self.schedule
        for group in self._optimizer.param_groups:
            group["lr"] = schedule.learning_rate_at(state.step, done)
        numbers = range(state.step * schedule.lessons, (state.step + 1) * schedule.lessons)
        lessons = [self._lesson_at(number) for number in numbers]
        spread = [(number * 0.6180339887) % 1 for number in numbers]  # evenly, the same after a resume
        modular = [schedule.objective == "distil" or share < schedule.modular_share for share in spread]
        losses = list(self._pool.map(self._learn, lessons, self._wanted(lessons), modular))
        for parameter, *gradients in zip(self._parameters, *(found for _, found in losses), strict=True):
            parameter.grad = torch.stack(gradients).float().mean(0)
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self._take_over()
        state.step += 1
        for lesson, (loss, _) in zip(lessons, losses, strict=True):
            state.questions += len(lesson.branches)
            state.tokens += len(lesson.prefix) + sum(map(len, lesson.modules))
            state.tokens += sum(len(b.question) + len(b.answer) - 1 for b in lesson.branches)
            state.loss = loss if state.step == 1 else 0.98 * state.loss + 0.02 * loss

    def _take_over(self) -> None:
        """Let the model read with the parameters as they are now."""
        for taught, parameter in zip(self._taught, self._parameters, strict=True):
            taught.data = parameter.to(self._model.dtype)

    def _learn(self, lesson: Lesson, wanted: Tensor | None, modular: bool) -> tuple[float, tuple[Tensor, ...]]:
        """A lesson's loss, and the gradients of everything that is taught with it."""
        logits = self._reader.logits(lesson, modular=modular)
        if wanted is not None:
            full = self._reader.logits(lesson, modular=False)
            loss = own = divergence(full, logits) + self.schedule.anchor_weight * divergence(wanted, full)
        else:
            loss = own = self._loss(lesson, logits)
            if modular:
                with torch.no_grad():
                    full = self._reader.logits(lesson, modular=False)
                loss = own + self.schedule.paired_weight * divergence(full, logits)
        return own.item(), torch.autograd.grad(loss, self._taught)

    def _wanted(self, lessons: Sequence[Lesson]) -> list[Tensor | None]:
        """What the model says without the adapter, where that is the objective."""
        if self.schedule.objective == "answers":
            return [None] * len(lessons)
        with self._model.disable_adapter():  # in all threads: only while none of them teaches
            return list(self._pool.map(self._full, lessons))

    @torch.no_grad()
    def _full(self, lesson: Lesson) -> Tensor:
        return self._reader.logits(lesson, modular=False)

    def _loss(self, lesson: Lesson, logits: Tensor) -> Tensor:
        labels = torch.tensor([token for branch in lesson.branches for token in branch.answer], device=logits.device)
        return F.cross_entropy(logits, labels) + self.schedule.refusal_weight * indecision(lesson, logits)

    def _evaluate(self) -> None:
        """Held-out loss, over every way of reading that is taught; the best adapter is kept."""
        state, at_once = self.state, self.schedule.lessons
        losses: list[tuple[float, float]] = []
        for first in range(0, len(self._held_out), at_once):
            lessons = self._held_out[first : first + at_once]
            losses += self._pool.map(self._held_out_loss, lessons, self._wanted(lessons))
        loss, moved = (sum(parts) / len(losses) for parts in zip(*losses, strict=True))
        state.held_out = loss + self.schedule.anchor_weight * moved
        if state.held_out < state.best:
            state.best, state.without_gain = state.held_out, 0
            state.moved = moved if self.schedule.objective == "distil" else None
            save_adapter(self._model, self.folder)
        else:
            state.without_gain += 1

    @torch.no_grad()
    def _held_out_loss(self, lesson: Lesson, wanted: Tensor | None) -> tuple[float, float]:
        """Of a lesson, without the anchor, and how far full attention is from what it is held to, if to anything."""
        modular, full = (self._reader.logits(lesson, modular=modular) for modular in (True, False))
        if wanted is not None:
            return divergence(full, modular).item(), divergence(wanted, full).item()
        return (self._loss(lesson, modular) + self._loss(lesson, full)).item() / 2, 0.0

    # --- checkpoints: no pickle, whole or not at all ---------------------------------------------------------------

    @property
    def _checkpoint_file(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def _checkpoint(self) -> None:
        tensors: dict[str, Tensor] = {}
        for number, parameter in enumerate(self._parameters):
            moments = self._optimizer.state[parameter]  # empty before the first step
            tensors[f"{number}.value"] = parameter.data
            tensors[f"{number}.mean"] = moments.get("exp_avg", torch.zeros_like(parameter))
            tensors[f"{number}.square"] = moments.get("exp_avg_sq", torch.zeros_like(parameter))
        metadata = {"state": json.dumps(asdict(self.state)), "schedule": json.dumps(asdict(self.schedule))}
        metadata["subject"] = self.subject
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self._checkpoint_file.with_suffix(".tmp")
        save_file(tensors, temporary, metadata)
        os.replace(temporary, self._checkpoint_file)

    def _resume(self) -> None:
        if not self._checkpoint_file.is_file():
            if (self.folder / WEIGHTS).is_file():
                raise ModelError(f"{self.folder} holds an adapter without a checkpoint: use another folder")
            return
        with safe_open(self._checkpoint_file, framework="pt") as file:
            metadata = file.metadata()
        if metadata.get("subject") != self.subject:
            raise ModelError(
                f"{self.folder} holds a training of another model or adapter, or on other documents: use another folder"
            )
        before = json.loads(metadata["schedule"])  # perhaps of a version that knew other settings
        length = {"steps": self.schedule.steps, "minutes": self.schedule.minutes}
        if before | length != asdict(self.schedule):  # longer or shorter is the same training
            raise ModelError(f"{self.folder} holds a training with another schedule: finish it, or use another folder")
        tensors = load_file(self._checkpoint_file)
        self.state = State(**json.loads(metadata["state"]))
        for number, parameter in enumerate(self._parameters):
            parameter.data.copy_(tensors[f"{number}.value"])
            self._optimizer.state[parameter] = {
                "step": torch.tensor(float(self.state.step)),
                "exp_avg": tensors[f"{number}.mean"].to(parameter.device),
                "exp_avg_sq": tensors[f"{number}.square"].to(parameter.device),
            }


def divergence(wanted: Tensor, got: Tensor) -> Tensor:
    """Kullback-Leibler divergence of logits `[A, vocabulary]` from wanted ones, in nats per row."""
    return F.kl_div(got.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")


def indecision(lesson: Lesson, logits: Tensor) -> Tensor:
    """Binary cross-entropy, in nats per branch, of beginning a refusal where one is due and anything else elsewhere;
    zero for a lesson without refusals. logits: `[A, vocabulary]` along the answers.

    It is decided at one token, which hardly counts among the others of an answer.
    """
    begins = next((branch.answer[0] for branch in lesson.branches if branch.refused), None)
    if begins is None:
        return logits.new_zeros(())
    first = torch.tensor([0, *(len(branch.answer) for branch in lesson.branches[:-1])], device=logits.device).cumsum(0)
    others = logits[first].index_fill(1, torch.tensor([begins], device=logits.device), -torch.inf)
    leaning = logits[first, begins] - others.logsumexp(-1)
    due = torch.tensor([float(branch.refused) for branch in lesson.branches], device=logits.device)
    return F.binary_cross_entropy_with_logits(leaning, due)
