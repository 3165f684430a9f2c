"""`warmdesk adapt`: material, lessons, training, and a record of how the adapter came about."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from app.domain.errors import DeskError
from app.domain.settings import Settings
from app.knowledge.prompts import PromptBuilder
from app.training.training_data import LABELLED, LONGEST_PASSAGE, OWN, Material, School, read_rows
from cache.memory.keys import digest
from cache.model.adapters import keep_base, merge_adapter
from cache.model.loading import find_device, load_stock
from cache.prompt.model_tokenizer import ModelTokenizer
from cache.training.trainer import AdapterTraining, Progress, Schedule

HELD_OUT_LESSONS = 8
RECORD = "training.json"
STEPS = 1000
"""Of a training on questions, unless told."""
MINUTES = 30
"""Of a training on the desk's own passages, unless told."""


def adapt(
    settings: Settings,
    files: Sequence[Path],
    folder: Path,
    *,
    steps: int | None,
    minutes: float | None,
    seed: int,
    report: Callable[[Progress], None],
) -> dict[str, Any]:
    """Train an adapter into `folder`, from files of questions or, without any, from the desk's own passages, on top of
    the adapter in use. It ends after so many steps or minutes, whichever is first; None for both: after `STEPS` with
    files, `MINUTES` without.

    Raises DeskError if there is nothing to train on or the folder is that of the adapter in use, ModelError if the
    model cannot be adapted or the folder holds another training.
    """
    below = settings.adapter_folder
    if below is not None and folder.resolve() in (below.resolve(), *below.resolve().parents):
        raise DeskError(
            f"{folder} holds the adapter in use: --output another folder to train on top of it, "
            "or --adapter the one it was trained on top of (or none) to go on training it",
            code="adapter-in-use",
        )
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    hf, hf_tokenizer, fingerprint = load_stock(
        settings.model, device=find_device(settings.device), converted=settings.models_folder
    )
    tokenizer = ModelTokenizer(hf_tokenizer)
    adapted = ""
    if below is not None:
        hf, adapted = merge_adapter(hf, below)
    prompts = PromptBuilder(tokenizer.template, settings.system_text)
    school = School(prompts, tokenizer, settings.refusal_text, neighbours=settings.neighbours, seed=seed)
    material, left_out = gather(school, files, settings)
    lessons = school.lessons(material, LABELLED if files else OWN)
    training = AdapterTraining(
        hf,
        lessons.lesson_at,
        lessons.held_out(HELD_OUT_LESSONS),
        schedule_of(labelled=bool(files), steps=steps, minutes=minutes, seed=seed),
        folder,
        subject=digest(fingerprint, adapted, lessons.identity),
    )
    keep_base(folder, below)
    end = training.run(report)
    result = {
        "adapter": folder.name,
        "model": fingerprint,
        "on_top_of": None if below is None else below.name,
        "documents": len(material),
        "left_out": left_out,
        "held_out_documents": lessons.held_out_documents,
        "files": [file.name for file in files],
        "steps": end.step,
        "minutes": round(training.state.seconds / 60, 1),
        "questions": end.questions,
        "tokens": end.tokens,
        "loss": round(end.loss, 4),
        "held_out": round(training.state.best, 4),
        "held_out_moved": None if training.state.moved is None else round(training.state.moved, 4),
        "held_out_before": None if training.state.before is None else round(training.state.before, 4),
        "schedule": asdict(training.schedule),
    }
    (folder / RECORD).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def schedule_of(*, labelled: bool, steps: int | None, minutes: float | None, seed: int) -> Schedule:
    """Answers are learned slowly. That modular attention is to say what full attention says has many right solutions,
    and large steps find one in half an hour.
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


def gather(school: School, files: Sequence[Path], settings: Settings) -> tuple[list[Material], int]:
    """Everything there is to train on, and how many documents of the files are not. Raises DeskError if all are."""
    if files:
        read = [school.material(row) for row in read_rows(files)]
        found = [one for one in read if one is not None]
        if not found:
            raise DeskError(
                f"none of the {len(read)} documents can be taught: one needs a question whose answer it holds (or that "
                f"has no answers), and {LONGEST_PASSAGE} tokens at most",
                code="no-material",
            )
        return found, len(read) - len(found)
    from app.desk.service import Service

    if not settings.data_dir.is_dir():
        raise DeskError("there is no desk to learn from: ingest documents first, or give --data", code="no-data")
    with Service(settings) as service:
        found = list(school.own_material(service.library))
    if not found:
        raise DeskError("there is nothing to train on: ingest documents first, or give --data", code="no-material")
    return found, 0
