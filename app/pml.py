"""The results of the `warmdesk pml` commands as data: check (position ids), run (one prompt on an engine), advise
(advice on a file) and export (the documents as one schema).

The exported schema:

    <schema name="desk"><system>system text</system>
    <module name="slot-1"><union>
    <module name="returns.md"><union><module name="p1">...</module> ...</union></module> ...
    </union></module> ... </schema>

A slot is a union of the documents, and a document is a union of its passages. So the schema needs only as many position
ids as the longest passages that a prompt can hold. Warmdesk itself places passages without gaps
(`app.knowledge.prompts`). The schema has the same texts at fixed positions, for prompts written by hand.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from app.desk.batch import read_text
from app.desk.output import usage_json
from app.domain.callers import PML_TENANT
from app.domain.errors import DeskError
from app.domain.json_lines import read_json_lines
from app.domain.settings import Settings
from app.knowledge.prompts import passage_text
from app.storage.library import Library
from cache.analysis.advice import advise_prompt, advise_prompts, advise_schema, advise_text
from cache.decoding.sampling import Sampling
from cache.engine.request import Request, Reuse
from cache.errors import PMLError
from cache.pml.binding import Registry, bind
from cache.pml.layout import Layout
from cache.pml.nodes import NOT_XML, RESERVED, Module, Prompt, Role, Schema, Union
from cache.pml.parser import parse_prompt, parse_schema, write_schema
from cache.prompt.parts import Text
from cache.prompt.tokenizer import NAMED, NO_ROLES, WordTokenizer
from cache.remote.remote_engine import ELSEWHERE
from cache.serving.interface import EngineInterface

T = TypeVar("T")


def registry_for(
    settings: Settings, *, tokenizer: str | None, template: str | None = None, max_positions: int | None = None
) -> Registry:
    """Return an empty registry. tokenizer: `words` or a model; default: --model. Raises DeskError, ModelError."""
    if template is not None and template not in NAMED:
        raise DeskError(f"--template is {template!r}: it must be {', '.join(NAMED)}", code="usage")
    roles = NO_ROLES if template is None else NAMED[template]
    if tokenizer == "words":
        return Registry(WordTokenizer(), roles=roles, max_positions=max_positions)
    from cache.model.source import load_positions, load_tokenizer

    name, folder = tokenizer or settings.model, settings.models_folder
    loaded = load_tokenizer(name, converted=folder)
    roles = loaded.template.roles if template is None else roles
    return Registry(loaded, roles=roles, max_positions=max_positions or load_positions(name, converted=folder))


def read_source(path: Path, parse: Callable[[bytes], T]) -> T:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DeskError(f"{path}: {error.strerror or error}", code="no-such-file") from error
    return named(path, lambda: parse(content))


def read_schema(path: Path) -> Schema:
    return read_source(path, lambda content: parse_schema(content, folder=path.parent))


def read_prompt(path: Path) -> Prompt:
    return read_source(path, parse_prompt)


def facts(
    registry: Registry, schema: Path, prompt: Path | None, *, baseline: bool, add: Sequence[Path], remove: Sequence[str]
) -> dict[str, Any]:
    """Return the layout and position ids of a prompt file or, without one, of the schema added last. add, remove:
    schemas to add to the prompt's registry, and names to remove from it. Raises DeskError, PMLError.
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
    try:
        return step()
    except PMLError as error:
        error.source = error.source or str(path)
        raise


def run_prompt(engine: EngineInterface, schema: Path, prompt: Path, sampling: Sampling, reuse: str) -> dict[str, Any]:
    if reuse not in get_args(Reuse):
        raise DeskError(f"--reuse is {reuse!r}: it must be on, prefix or off", code="usage")
    parsed_schema, parsed_prompt = read_schema(schema), read_prompt(prompt)
    if engine.info.is_elsewhere:
        raise DeskError(f"{ELSEWHERE}: PML needs a local model, set --model", code="runs-elsewhere")
    schemas = Registry.for_model(engine.tokenizer, engine.info)
    named(schema, lambda: schemas.replace(parsed_schema))
    bound = named(prompt, lambda: schemas.bind(parsed_prompt))
    request = Request(plan=bound.plan, sampling=sampling, reuse=cast("Reuse", reuse), tenant=PML_TENANT)
    completion = engine.submit(request).completion
    return {
        "text": completion.text,
        "tokens": completion.tokens,
        "finish_reason": completion.finish_reason,
        "first_generated": bound.plan.next_position,
        "usage": usage_json(completion.usage),
        "modules": [asdict(use) for use in completion.modules],
        "timings_ms": {key: round(value, 3) for key, value in asdict(completion.timings).items()},
        "exact": completion.exact,
    }


NEEDED = 'each line is a JSON string, {"prompt": text} or {"messages": [{"role": ..., "content": ...}]}'


def advice_for(file: Path, registry: Registry, schema_file: Path | None = None) -> dict[str, Any]:
    """Return advice on a schema, a PML prompt, a plain prompt or JSON lines of prompts.

    schema_file: the schema of a PML prompt, to count reused tokens. Raises DeskError, PMLError.
    """
    text = read_text(file)
    beginning = re.sub(r"\A(?:\s|<!--.*?-->|<\?.*?\?>)+", "", text, flags=re.DOTALL)  # the first element
    if beginning.startswith("<prompt"):
        prompt = read_prompt(file)
        layout = None if schema_file is None else laid_out(schema_file, registry)
        kind, advice = "prompt", named(file, lambda: advise_prompt(prompt, registry.tokenizer, layout))
    elif schema_file is not None:
        raise DeskError(f"--schema is for a PML prompt, but {file} is not one: remove --schema", code="usage")
    elif beginning.startswith("<schema") or file.suffix == ".pml":
        kind, advice = "schema", advise_schema(laid_out(file, registry))
    elif file.suffix == ".jsonl":
        prompts = [*read_json_lines(file, prompt_of, f"prompt: {NEEDED}", "bad-prompt-line").values()]
        kind, advice = "prompts", advise_prompts(prompts, registry.tokenizer)
    else:
        kind, advice = "text", advise_text(text, registry.tokenizer)
    schema = None if schema_file is None else str(schema_file)
    return {"file": str(file), "kind": kind, "schema": schema, **asdict(advice)}


def laid_out(file: Path, registry: Registry) -> Layout:
    schema = read_schema(file)
    return named(file, lambda: registry.lay_out(schema))


def prompt_of(row: Any) -> str:
    if isinstance(row, dict) and "messages" in row:
        row = "".join(f"{message['role']}: {message['content']}\n" for message in row["messages"])
    elif isinstance(row, dict):
        row = row["prompt"]
    if not isinstance(row, str):
        raise TypeError("no text")
    return row


NAME = "desk"


def export_schema(library: Library, system_text: str, slots: int) -> tuple[str, int, int]:
    """Return the schema as XML (one element per line), and the numbers of documents and passages in it."""
    documents: list[Module] = []
    taken = set(RESERVED)
    passages = 0
    for document in library.documents():
        members = tuple(
            Module(
                name=f"p{number}", children=(literal(passage_text(passage.title, passage.heading_path, passage.text)),)
            )
            for number, passage in enumerate(library.passages_of(document.path), start=1)
        )
        passages += len(members)
        documents.append(Module(name=module_name(document.path, taken), children=(Union(members=members),)))
    choice = Union(members=tuple(documents))
    schema = Schema(
        name=NAME,
        children=(
            Role(role="system", children=(literal(system_text),)),
            *(Module(name=f"slot-{number}", children=(choice,)) for number in range(1, slots + 1)),
        ),
    )
    return write_schema(schema) + "\n", len(documents), passages


def module_name(path: str, taken: set[str]) -> str:
    """Make a document's file name a PML name that is not in `taken`. Add the name to `taken` and return it."""
    name = re.sub(r"[^\w.-]+", "-", re.split(r"[/\\]", path)[-1]) or "document"
    if not re.match(r"[^\W\d]", name):
        name = f"_{name}"
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    unique = next(name for name in names if name not in taken)
    taken.add(unique)
    return unique


def literal(text: str) -> Text:
    """Return a text node. Characters that XML does not allow become spaces."""
    return Text(text=NOT_XML.sub(" ", text))
