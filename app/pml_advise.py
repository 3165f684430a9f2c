"""`warmdesk pml advise`: which advice fits a file, and how it is shown."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.errors import DeskError
from app.pml_facts import Judge, named, read_prompt, read_schema
from cache.advice import Advice, advise_prompt, advise_prompts, advise_schema, advise_text


def advice_for(file: Path, checker: Judge) -> dict[str, Any]:
    """Advice on a schema, a PML prompt, a plain prompt or JSON lines of prompts. Raises DeskError, PMLError."""
    text = read_text(file)
    beginning = re.sub(r"<!--.*?-->|<\?.*?\?>", "", text, flags=re.DOTALL).lstrip()
    if beginning.startswith("<prompt"):
        kind, advice = "prompt", advise_prompt(read_prompt(file), checker.tokenizer)
    elif beginning.startswith("<schema") or file.suffix == ".pml":
        schema = read_schema(file)
        kind, advice = "schema", advise_schema(named(file, lambda: checker.lay_out(schema)))
    elif file.suffix == ".jsonl":
        kind, advice = "prompts", advise_prompts(prompts_of(text, file), checker.tokenizer)
    else:
        kind, advice = "text", advise_text(text, checker.tokenizer)
    return {"file": str(file), "kind": kind, **as_json(advice)}


def as_json(advice: Advice) -> dict[str, Any]:
    """Advice as plain data."""
    return {**asdict(advice), "findings": [asdict(finding) for finding in advice.findings]}


def read_text(file: Path) -> str:
    """A UTF-8 file. Raises DeskError."""
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DeskError(f"{file} is not UTF-8 text: convert it", code="not-text") from error
    except OSError as error:
        raise DeskError(f"{file}: {error.strerror or error}", code="no-such-file") from error


def prompts_of(text: str, file: Path) -> list[str]:
    """Prompts of JSON lines: a string, {"prompt": text} or {"messages": [{"role", "content"}]}. Raises DeskError."""
    prompts: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if isinstance(row, dict) and "messages" in row:
                row = "".join(f"{message['role']}: {message['content']}\n" for message in row["messages"])
            elif isinstance(row, dict):
                row = row["prompt"]
        except (ValueError, KeyError, TypeError) as error:
            raise DeskError(f"{file}, line {number}: {NEEDED}", code="bad-prompt-line") from error
        if not isinstance(row, str):
            raise DeskError(f"{file}, line {number}: {NEEDED}", code="bad-prompt-line")
        prompts.append(row)
    return prompts


NEEDED = 'each line is a JSON string, {"prompt": text} or {"messages": [{"role": ..., "content": ...}]}'


def print_advice(advice: dict[str, Any]) -> None:
    """The findings, most expensive first as they come, then the sums."""
    for finding in advice["findings"]:
        place = f"line {finding['line']}: " if finding["line"] else ""
        print(f"{place}{finding['what']}\n    {finding['tokens']} tokens; {finding['cure']}")
    if not advice["findings"]:
        print("nothing found that breaks reuse")
    print(f"{advice['reusable']} of {advice['tokens']} tokens can be reused")
