"""Desks for tests: tiny random model, hash embedder, files read in this process, state in a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from unittest.mock import patch

from made_database import put_database
from meanings import HashEmbedder, HashRanker
from tiny import build

from app.desk.service import Service
from app.domain.answers import Answer
from app.domain.settings import Settings
from retrieval.loaders import load as loaders


class ReaderHere:
    """Reads files in this process: starting another for each run takes longer than all the rest."""

    def __init__(self, **limits: float) -> None:
        self.load = loaders.load

    def __enter__(self) -> ReaderHere:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def small_settings(folder: Path, **changes: object) -> Settings:
    """Small passages, short answers, memory for about 1,700 tokens of the tiny model, and every question
    answered."""
    values: dict[str, object] = {
        "data_dir": folder,
        "device_memory": 4 << 20,
        "disk": 1 << 30,
        "passages": 2,
        "passage_tokens": 200,
        "answer_tokens": 8,
        "refuse_below": -1.0,
        "answer_above": -1.0,
        "system_text": "Answer from the pages.",
        "answer_mode": "free",
    }
    return Settings.model_construct(**{**values, **changes})  # unchecked: limits of a desk in use are above these


@contextmanager
def small_desk(folder: Path, *, family: str = "llama", seed: int = 0, **changes: object) -> Iterator[Service]:
    """A desk that loads in a moment. With the folder of a model its engine has a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = small_settings(folder, **changes)
    put_database(settings.database_url)
    parts = {"embedder": lambda _: HashEmbedder(), "ranker": lambda _: HashRanker()}
    process = "model" in changes
    with (
        patch("app.knowledge.ingest.FileReader", ReaderHere),
        patch("app.knowledge.uploads.FileReader", ReaderHere),
        Service(settings, model=lambda _: build(family, seed), may_start_process=process, **parts) as service,
    ):
        yield service


def write_pages(folder: Path) -> Path:
    """Four short help pages."""
    pages = {
        "returns.md": "# Returns\n\nReturns take thirty days from delivery. Keep the receipt.\n",
        "gift-cards.md": "# Gift cards\n\nGift cards cannot be returned. They last five years.\n",
        "shipping.html": "<title>Shipping</title><main><h1>Shipping</h1><p>Standard costs 4.95.</p></main>",
        "stores.txt": "Stores\n\nThe store in Galway has a repair bench.\n",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (folder / name).write_text(text)
    return folder


def finish(service: Service, question: str, **options: str) -> Answer:
    """The whole answer."""
    stream = service.ask(question, **options)
    for _ in stream:
        pass
    return stream.answer
