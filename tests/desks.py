"""Desks for tests, pages for them, and questions to them."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from made_database import put_database
from tiny import build
from tiny_desk import small_settings, tiny_desk

from app.desk.service import Service
from app.domain.answers import Answer


@contextmanager
def small_desk(
    folder: Path, *, pages: Path | None = None, family: str = "llama", seed: int = 0, **changes: Any
) -> Iterator[Service]:
    """A desk that loads in a moment, with these pages in it. With the folder of a model its engine has a process of
    its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    put_database(small_settings(folder, **changes).database_url)
    with tiny_desk(
        folder, lambda: build(family, seed, layers=2), may_start_process="model" in changes, **changes
    ) as desk:
        if pages is not None:
            desk.ingest([pages])
        yield desk


def serve_small(service: Service) -> None:
    """Serve an open desk, as `warmdesk serve` does."""
    from app.cli.opening import open_desk
    from app.web.serve import serve

    serve(service.settings, lambda start: open_desk(start, nullcontext(service)))


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


def finish(service: Service, question: str, **options: Any) -> Answer:
    """The whole answer."""
    stream = service.ask(question, **options)
    list(stream)
    return stream.answer
