"""`warmdesk pml advise`: which advice fits a file."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.desk.text_file import read_text
from app.domain.errors import DeskError
from app.pml.facts import named, read_prompt, read_schema
from cache.analysis.advice import advise_prompt, advise_prompts, advise_schema, advise_text
from cache.pml.layout import Layout
from cache.pml.registry import Registry

NEEDED = 'each line is a JSON string, {"prompt": text} or {"messages": [{"role": ..., "content": ...}]}'


def advice_for(file: Path, registry: Registry, schema_file: Path | None = None) -> dict[str, Any]:
    """Advice on a schema, a PML prompt, a plain prompt or JSON lines of prompts.

    schema_file: the schema of a PML prompt, so that what it reuses can be counted. Raises DeskError, PMLError.
    """
    text = read_text(file)
    beginning = root_of(text)
    if beginning.startswith("<prompt"):
        prompt = read_prompt(file)
        layout = None if schema_file is None else laid_out(schema_file, registry)
        kind, advice = "prompt", named(file, lambda: advise_prompt(prompt, registry.tokenizer, layout))
    elif schema_file is not None:
        raise DeskError(f"--schema is for a PML prompt, {file} is none: leave it out", code="usage")
    elif beginning.startswith("<schema") or file.suffix == ".pml":
        kind, advice = "schema", advise_schema(laid_out(file, registry))
    elif file.suffix == ".jsonl":
        kind, advice = "prompts", advise_prompts(prompts_of(text, file), registry.tokenizer)
    else:
        kind, advice = "text", advise_text(text, registry.tokenizer)
    schema = None if schema_file is None else str(schema_file)
    return {"file": str(file), "kind": kind, "schema": schema, **asdict(advice)}


def laid_out(file: Path, registry: Registry) -> Layout:
    """A schema file at its position ids. Raises DeskError, PMLError."""
    schema = read_schema(file)
    return named(file, lambda: registry.lay_out(schema))


def root_of(text: str) -> str:
    """The text from its first element on: white space, comments and processing instructions left out."""
    return re.sub(r"\A(?:\s|<!--.*?-->|<\?.*?\?>)+", "", text, flags=re.DOTALL)


def prompts_of(text: str, file: Path) -> list[str]:
    """Prompts of JSON lines: a string, {"prompt": text} or {"messages": [{"role", "content"}]}. Raises DeskError."""
    prompts: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if isinstance(row, dict) and "messages" in row:
                row = "".join(f"{message['role']}: {message['content']}\n" for message in row["messages"])
            elif isinstance(row, dict):
                row = row["prompt"]
            if not isinstance(row, str):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DeskError(f"{file}, line {number}: {NEEDED}", code="bad-prompt-line") from error
        prompts.append(row)
    return prompts
