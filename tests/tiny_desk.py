"""A service with a tiny random model and search by hashed words, which reads files in this process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hashed_search import HashEmbedder, HashRanker
from reading_here import ReaderHere
from tiny import build

from app.desk.service import Service
from app.domain.settings import Settings
from cache.model.language_model import LanguageModel


def small_settings(folder: Path, **changes: Any) -> Settings:
    """Small passages, short answers, memory for about 1,700 tokens of the tiny model, and every question
    answered."""
    values: dict[str, Any] = {
        "data_dir": folder,
        "device_memory": 3 << 20,
        "disk": 1 << 30,
        "passages": 2,
        "passage_tokens": 200,
        "answer_tokens": 8,
        "refuse_below": -1.0,
        "answer_above": -1.0,
        "system_text": "Answer from the pages.",
        "answer_mode": "free",
        "adapter": "none",  # the model's own is hashed at each start
    }
    return Settings.model_construct(**{**values, **changes})  # unchecked: limits of a desk in use are above these


@contextmanager
def tiny_desk(
    folder: Path, load: Callable[[], LanguageModel] = build, may_start_process: bool = False, **changes: Any
) -> Iterator[Service]:
    """An open desk. load: its model. may_start_process: whether the engine gets a process of its own, which loads the
    model of the settings. changes: of its settings. Raises DeskError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (
        patch("app.knowledge.ingest.FileReader", ReaderHere),
        patch("app.knowledge.uploads.FileReader", ReaderHere),
        patch("app.knowledge.websites.FileReader", ReaderHere),
        Service(
            small_settings(folder, **changes),
            model=lambda _: load(),
            embedder=lambda _: HashEmbedder(),
            ranker=lambda _: HashRanker(),
            may_start_process=may_start_process,
        ) as service,
    ):
        yield service
