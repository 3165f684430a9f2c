"""`warmdesk pml check`: the position ids of a schema and of a prompt for it, as data."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from app.domain.errors import DeskError
from app.domain.settings import Settings
from cache.errors import PMLError
from cache.pml.binding import bind
from cache.pml.nodes import Prompt, Schema
from cache.pml.parser import parse_prompt, parse_schema
from cache.pml.registry import Registry
from cache.prompt.roles import NAMED, NO_ROLES
from cache.prompt.tokenizer import WordTokenizer

T = TypeVar("T")


def registry_for(
    settings: Settings, *, tokenizer: str | None, template: str | None = None, max_positions: int | None = None
) -> Registry:
    """An empty registry for a tokenizer: `words`, a model's, or the desk's own. Raises DeskError and ModelError."""
    if template is not None and template not in NAMED:
        raise DeskError(f"--template is {template!r}: it must be {', '.join(NAMED)}", code="usage")
    roles = NO_ROLES if template is None else NAMED[template]
    if tokenizer == "words":
        return Registry(WordTokenizer(), roles=roles, max_positions=max_positions)
    from cache.model.loading import load_tokenizer

    loaded, positions = load_tokenizer(tokenizer or settings.model, converted=settings.models_folder)
    return Registry(
        loaded, roles=loaded.template.roles if template is None else roles, max_positions=max_positions or positions
    )


def read_source(path: Path, parse: Callable[[bytes], T]) -> T:
    """Parse a file. Raises DeskError if it cannot be read, PMLError that names it if it is wrong."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DeskError(f"{path}: {error.strerror or error}", code="no-such-file") from error
    return named(path, lambda: parse(content))


def read_schema(path: Path) -> Schema:
    """A schema file; `src` files lie beside it. Raises as `read_source`."""
    return read_source(path, lambda content: parse_schema(content, folder=path.parent))


def read_prompt(path: Path) -> Prompt:
    """A prompt file. Raises as `read_source`."""
    return read_source(path, parse_prompt)


def facts(
    registry: Registry, schema: Path, prompt: Path | None, *, baseline: bool, add: Sequence[Path], remove: Sequence[str]
) -> dict[str, Any]:
    """Position ids of a schema file and, if given, of a prompt file.

    add, remove: more schemas for the registry the prompt is bound in, and names to take out again. The position ids are
    those of the prompt's schema; without a prompt, of the schema added last. Raises DeskError, PMLError.
    """
    for path in (schema, *add):
        parsed_schema = read_schema(path)
        layout = named(path, partial(registry.add, parsed_schema))
    for name in remove:
        registry.remove(name)
    if prompt is not None:
        parsed = read_prompt(prompt)
        layout = named(prompt, lambda: registry.of(parsed))
    items = [asdict(item) for item in layout.items]
    found: dict[str, Any] = {"schema": layout.schema.name, "layout": items, "length": layout.length}
    if prompt is None:
        return found
    bound = named(prompt, lambda: bind(parsed, layout))
    plan = bound.plan.without_segments() if baseline else bound.plan
    return found | {
        "cached": [at for span in plan.spans if span.segment is not None for at in range(span.start, span.end)],
        "arguments": [list(ids) for ids in bound.arguments],
        "text": list(bound.text),
        "fed": [at for span in plan.spans if span.segment is None for at in range(span.start, span.end)],
        "first_generated": plan.next_position,
        "rendered": bound.rendered,
    }


def named(path: Path, step: Callable[[], T]) -> T:
    """A step about a file: its mistakes name the file."""
    try:
        return step()
    except PMLError as error:
        error.source = error.source or str(path)
        raise
