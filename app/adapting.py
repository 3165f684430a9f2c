"""`warmdesk adapt`: material, lessons, training, and a record of how the adapter came about."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from app.errors import DeskError
from app.prompting import PromptBuilder
from app.schooling import OWN_PASSAGES, PASSAGES, Lessons, Material, School, read_rows
from app.settings import Settings
from cache.adapter_training import AdapterTraining, Progress, Schedule
from cache.adapters import keep_base, merge_adapter
from cache.engine import Engine
from cache.lesson_answers import AnsweredLessons, with_answers
from cache.lessons import Lesson
from cache.model import find_device, load_model, load_stock
from cache.tokenizer import ModelTokenizer

HELD_OUT_LESSONS = 12
RECORD = "training.json"

Source = tuple[list[Lesson], Callable[[int], Lesson]]
"""Lessons held out, and lessons by number."""


def adapt(
    settings: Settings,
    files: Sequence[Path],
    folder: Path,
    *,
    steps: int,
    seed: int,
    report: Callable[[Progress], None],
) -> dict[str, Any]:
    """Train an adapter into `folder`, from files of questions or, without any, from the desk's own passages, on top of
    the adapter in use.

    Raises DeskError if there is nothing to train on, ModelError if the model cannot be adapted.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    hf, hf_tokenizer, fingerprint = load_stock(
        settings.model, device=find_device(settings.device), converted=settings.models_folder
    )
    tokenizer = ModelTokenizer(hf_tokenizer)
    below = settings.adapter_folder
    if below is not None:
        hf, _ = merge_adapter(hf, below)
    prompts = PromptBuilder(tokenizer.template, settings.system_text)
    school = School(prompts, tokenizer, settings.refusal_text, neighbours=settings.neighbours, seed=seed)
    material = gather(school, files, settings)
    lessons = school.lessons(material, PASSAGES if files else OWN_PASSAGES)
    schedule = Schedule(steps=steps, objective="answers" if files else "distil", seed=seed)
    with as_given(lessons) if files else answered(lessons, settings) as (held_out, lesson_at):
        training = AdapterTraining(hf, lesson_at, held_out, schedule, folder)
        keep_base(folder, below)
        end = training.run(report)
    result = {
        "adapter": folder.name,
        "model": fingerprint,
        "on_top_of": None if below is None else below.name,
        "documents": len(material),
        "files": [file.name for file in files],
        "steps": end.step,
        "questions": end.questions,
        "tokens": end.tokens,
        "loss": round(end.loss, 4),
        "held_out": round(training.state.best, 4),
        "held_out_before": None if training.state.before is None else round(training.state.before, 4),
        "schedule": asdict(schedule),
    }
    (folder / RECORD).write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return result


def as_given(lessons: Lessons) -> AbstractContextManager[Source]:
    """Lessons that have their answers."""
    return nullcontext((lessons.held_out(HELD_OUT_LESSONS), lessons.lesson_at))


@contextmanager
def answered(lessons: Lessons, settings: Settings) -> Iterator[Source]:
    """Lessons without answers, answered by the model that is to be adapted, as it is. Raises CacheError."""
    model = load_model(
        settings.model, device=settings.device, converted=settings.models_folder, adapter=settings.adapter_folder
    )
    engine = Engine(model, memory=settings.memory).start()
    taught = AnsweredLessons(lessons.lesson_at, engine)
    try:
        yield [with_answers(lesson, engine) for lesson in lessons.held_out(HELD_OUT_LESSONS)], taught.lesson_at
    finally:
        taught.close()
        engine.close()


def gather(school: School, files: Sequence[Path], settings: Settings) -> list[Material]:
    """Everything there is to train on. Raises DeskError if that is nothing."""
    if files:
        found = [one for row in read_rows(files) if (one := school.material(row)) is not None]
    else:
        from app.service import Service

        if not settings.data_dir.is_dir():
            raise DeskError("there is no desk to learn from: ingest documents first, or give --data", code="no-data")
        with Service(settings) as service:
            found = list(school.own_material(service.library))
    if not found:
        raise DeskError("there is nothing to train on: ingest documents first, or give --data", code="no-material")
    return found
