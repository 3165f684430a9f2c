"""`warmdesk adapt` and `warmdesk train-ranker`: collect training data, train an adapter or a ranker, and record it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from app.desk.calibration import find_ranker
from app.desk.service import Service
from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.knowledge.prompts import PromptBuilder
from app.training.training_data import (
    LABELLED,
    LONGEST_PASSAGE,
    OWN,
    TrainingData,
    TrainingPassage,
    TrainingTokenizer,
    read_rows,
)
from cache.memory.keys import digest
from cache.model.loading import find_device, keep_base, load_stock, merge_adapter
from cache.prompt.tokenizer import ModelTokenizer
from cache.training.trainer import AdapterTraining, Schedule, TrainingProgress
from retrieval.ranking.training import RankerCard, read_examples, train_ranker

HELD_OUT_EXAMPLES = 8
RECORD = "training.json"
STEPS = 1000
MINUTES = 30


def adapt(
    settings: Settings,
    files: Sequence[Path],
    folder: Path,
    *,
    steps: int | None,
    minutes: float | None,
    seed: int,
    report: Callable[[TrainingProgress], None],
) -> dict[str, Any]:
    """Train an adapter into `folder`, from files of questions or, without any, from the ingested passages, on top of
    the adapter in use. Returns the record that is written there. steps, minutes: limits, the first one ends training;
    see `schedule_of`. Raises DeskError if there is nothing to train on or the folder holds the adapter in use,
    ModelError if the model cannot be adapted or the folder contains another training.
    """
    below = settings.adapter_folder
    if below is not None and folder.resolve() in (below.resolve(), *below.resolve().parents):
        raise DeskError(
            f"{folder} holds the adapter in use: to train a second adapter on top of it, set another --output; "
            "to continue its training, set --adapter to its base adapter, or none",
            code="adapter-in-use",
        )
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    hf, hf_tokenizer, fingerprint = load_stock(
        settings.model, device=find_device(settings.device), converted=settings.models_folder
    )
    model_tokenizer = ModelTokenizer(hf_tokenizer)
    adapted = ""
    if below is not None:
        hf, adapted = merge_adapter(hf, below)
    prompts = PromptBuilder(model_tokenizer.template, settings.system_text)
    tokenizer = TrainingTokenizer(prompts, model_tokenizer, settings.refusal_text)
    passages, left_out = gather(tokenizer, files, settings)
    mix = LABELLED if files else OWN
    data = TrainingData(passages, tokenizer, mix, neighbours=settings.neighbours, seed=seed)
    training = AdapterTraining(
        hf,
        data.example_at,
        data.held_out(HELD_OUT_EXAMPLES),
        schedule_of(labelled=bool(files), steps=steps, minutes=minutes, seed=seed),
        folder,
        subject=digest(fingerprint, adapted, data.identity),
    )
    keep_base(folder, below)
    training.run(report)
    state = training.state
    record = {
        "adapter": folder.name,
        "model": fingerprint,
        "on_top_of": None if below is None else below.name,
        "documents": len(passages),
        "left_out": left_out,
        "held_out_documents": data.held_out_documents,
        "files": [file.name for file in files],
        "steps": state.step,
        "minutes": round(state.seconds / 60, 1),
        "questions": state.questions,
        "tokens": state.tokens,
        "loss": round(state.loss, 4),
        "held_out": round(state.best, 4),
        "held_out_moved": None if state.moved is None else round(state.moved, 4),
        "held_out_before": None if state.before is None else round(state.before, 4),
        "schedule": asdict(training.schedule) | {"lessons": training.schedule.batch_size},  # lessons: the older name
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return record


def schedule_of(*, labelled: bool, steps: int | None, minutes: float | None, seed: int) -> Schedule:
    """Return the schedule. Training on answers needs many small steps. Imitating full attention has many good
    solutions, and large steps find one in half an hour.
    """
    unlimited = steps is None and minutes is None
    if labelled:
        return Schedule(steps=STEPS if unlimited else steps, minutes=minutes, objective="answers", seed=seed)
    return Schedule(
        steps=steps,
        minutes=MINUTES if unlimited else minutes,
        objective="distil",
        learning_rate=1.5e-3,
        warmup=10,
        evaluate_every=30,
        seed=seed,
    )


def gather(
    tokenizer: TrainingTokenizer, files: Sequence[Path], settings: Settings
) -> tuple[list[TrainingPassage], int]:
    """Return the passages to train on, and the number of skipped documents. Raises DeskError if none is left."""
    if files:
        read = [tokenizer.labelled_passage(row) for row in read_rows(files)]
        found = [passage for passage in read if passage is not None]
        if not found:
            raise DeskError(
                f"none of the {len(read)} documents can be used for training: a document needs at most "
                f"{LONGEST_PASSAGE} tokens, and a question with its answer in the document or with no answers",
                code="no-material",
            )
        return found, len(read) - len(found)
    if not settings.data_dir.is_dir():
        raise DeskError("there is no Warmdesk data: ingest documents first, or set --data", code="no-data")
    with Service(settings, upgrade=False) as service:
        found = list(tokenizer.own_passages(service.library))
    if not found:
        raise DeskError("there is nothing to train on: ingest documents first, or set --data", code="no-material")
    return found, 0


REPORTED = 20


def make_ranker(
    settings: Settings,
    data: Sequence[Path],
    folder: Path,
    *,
    minutes: float,
    go_on: bool,
    left_out: frozenset[str],
    local: frozenset[str],
    seed: int,
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Train and write a ranker; return its card. go_on: start from the current one. Raises DeskError if data is bad."""
    try:
        documents = read_examples(data, left_out, local, seed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeskError(f"the questions cannot be read: {error}", code="bad-questions") from error
    questions = sum(len(passage.questions) for passages in documents for passage in passages)
    if not any(one.right for passages in documents for passage in passages for one in passage.questions):
        raise DeskError("no context contains the answer to its question", code="too-few-questions")
    report(f"{len(documents):,} documents, {questions:,} questions")
    card = RankerCard(
        data=tuple(sorted(file.name for file in data)),
        left_out=tuple(sorted(left_out)),
        questions=questions,
        steps=0,
        minutes=0.0,
        seed=seed,
        loss=0.0,
    )

    def progress(step: int, done: float, loss: float) -> None:
        if step % REPORTED == 0:
            report(f"step {step}, {done:.0%} of the time, loss {loss:.3f}")

    start = find_ranker(settings) if go_on else None
    return asdict(train_ranker(documents, folder, card, minutes=minutes, start=start, report=progress))
