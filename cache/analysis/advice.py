"""What in a prompt keeps its tokens from being reused, and how many tokens that costs.

Four kinds of input: a schema, a PML prompt, one plain prompt, and many plain prompts (which show what really changes).
Plain prompts are judged as prefix caching sees them: everything behind the first difference is computed again. Lines
are compared, because that is where people move things.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice

from cache.pml.binding import bind
from cache.pml.layout import Layout
from cache.pml.nodes import Child, Import, Module, Prompt, Role, Schema, Union
from cache.prompt.parts import Text
from cache.prompt.tokenizer import Tokenizer, run_tokens

DAY = r"\d{1,2}(?:st|nd|rd|th)?"
VOLATILE = (
    (
        "a time stamp",
        re.compile(r"\b\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:Z|[+-]\d{2}:?\d{2})?"),
    ),
    ("a date", re.compile(r"\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2}[./]\d{1,2}[./]\d{4}\b|\b\d{1,2}\. ?[A-Z][a-z]+ \d{4}\b")),
    ("a date", re.compile(rf"\b[A-Z][a-z]{{2,8}} {DAY}, \d{{4}}\b|\b{DAY} [A-Z][a-z]{{2,8}},? \d{{4}}\b")),
    ("a time of day", re.compile(r"\b\d{1,2}:\d{2}(:\d{2})?\b")),
    ("an identifier", re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F-]{13,22}\b|\b[0-9a-fA-F]{16,}\b")),
    ("an e-mail address", re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}")),
    ("a long number", re.compile(r"\b\d{8,}\b")),
)
"""What usually differs from request to request. A pattern that is stable is a false alarm: advice, not a verdict."""

MOST_FINDINGS = 50
"""Of one plain prompt: each is priced by itself, and the first ones matter most."""

MOVE = "move it behind everything that stays the same, or make it a parameter of a module"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that breaks reuse. line: 1-based, None if it has no place. tokens: what it costs in one request."""

    line: int | None
    what: str
    tokens: int
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """tokens: of all prompts together (of a schema: of its texts). reusable: those that need not be computed again."""

    prompts: int
    tokens: int
    reusable: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Beginnings of prompts, line by line, as a tree."""

    following: dict[str, Lines] = field(default_factory=dict)

    def learn(self, prompt: Sequence[str]) -> int:
        """Add a prompt; returns how many of its first lines were known."""
        node, same = self, 0
        for line in prompt:
            same += line in node.following  # below a new line nothing is known
            node = node.following.setdefault(line, Lines())
        return same


def volatile(text: str) -> Iterator[tuple[int, str]]:
    """Offset and description of everything in a text that probably changes, in order, nothing twice."""
    found = sorted(
        (match.start(), -match.end(), what) for what, pattern in VOLATILE for match in pattern.finditer(text)
    )
    end = 0
    for start, minus_end, what in found:
        if start >= end:
            yield start, f"{what} ({text[start:-minus_end]!r})"
            end = -minus_end


def advise_text(text: str, tokenizer: Tokenizer) -> Advice:
    """One plain prompt: what probably changes in it, and what stands behind that."""
    tokens = count(text, tokenizer)
    findings: list[Finding] = []
    reusable = tokens
    for at, what in islice(volatile(text), MOST_FINDINGS):
        behind = count(text[at:], tokenizer)
        findings.append(Finding(line=line_of(text, at), what=f"{what} probably changes", tokens=behind, cure=MOVE))
        reusable = min(reusable, tokens - behind)
    return Advice(prompts=1, tokens=tokens, reusable=reusable, findings=tuple(findings))


def advise_prompts(prompts: Sequence[str], tokenizer: Tokenizer) -> Advice:
    """Many plain prompts: the lines in which they part, and what they have in common behind those."""
    lines = [prompt.splitlines(keepends=True) for prompt in prompts]
    costs: dict[str, int] = {line: count(line, tokenizer) for line in {line for prompt in lines for line in prompt}}
    shared = Counter(line for prompt in lines for line in set(prompt))
    known = Lines()
    lost: Counter[tuple[int, str]] = Counter()
    total = reusable = 0
    for prompt in lines:
        total += sum(costs[line] for line in prompt)
        is_first = not known.following
        same = known.learn(prompt)
        reusable += sum(costs[line] for line in prompt[:same])
        behind = sum(costs[line] for line in prompt[same + 1 :] if shared[line] > 1 and line.strip())
        if behind and not is_first:
            lost[same + 1, prompt[same]] += behind
    by_line: dict[int, list[tuple[str, int]]] = {}
    for (number, line), tokens in lost.items():
        by_line.setdefault(number, []).append((line, tokens))
    findings = [
        Finding(
            line=number,
            what=f"differs between prompts ({example(entries)}) and stands before lines that others have, too",
            tokens=sum(tokens for _, tokens in entries),
            cure=MOVE,
        )
        for number, entries in sorted(by_line.items(), key=lambda item: -sum(tokens for _, tokens in item[1]))
    ]
    return Advice(prompts=len(prompts), tokens=total, reusable=reusable, findings=tuple(findings))


def advise_schema(layout: Layout) -> Advice:
    """A schema: what is computed in every request, and what changes would encode more than themselves again."""
    findings: list[Finding] = []
    total = reusable = 0
    for placed in layout.placed():
        own = sum(len(run.tokens) for run in placed.runs)
        total += own
        reusable += own if placed.is_cached else 0
        name = f"module {placed.path!r}" if placed.path else "the schema's own text"
        line = placed.node.line or None
        if not placed.is_cached:
            findings.append(
                Finding(
                    line=line,
                    what=f"{name} has cache='false' and is computed in every request",
                    tokens=own,
                    cure="let it be cached, and put what changes into a parameter or behind the modules",
                )
            )
            continue
        for text in own_texts(placed.node):
            for _, what in volatile(text):
                findings.append(
                    Finding(
                        line=line,
                        what=f"{name} contains {what}: if it changes, the module is encoded again",
                        tokens=own,
                        cure="make it a parameter, or a small module of its own",
                    )
                )
        if stands_on_both_sides(placed.node):
            findings.append(
                Finding(
                    line=line,
                    what=f"{name} stands on both sides of modules: if one of them grows, it is encoded again",
                    tokens=own,
                    cure="put its text together, before the modules",
                )
            )
    findings.sort(key=lambda finding: -finding.tokens)
    return Advice(prompts=0, tokens=total, reusable=reusable, findings=tuple(findings))


def own_texts(owner: Schema | Module) -> Iterator[str]:
    """Pieces of text of an owner, of its file and of the turns in it."""
    if owner.file is not None:
        yield owner.file.text
    yield from (child.text for child in own_children(owner) if isinstance(child, Text))


def own_children(owner: Schema | Module) -> Iterator[Child]:
    """Children of an owner, turns opened."""
    for child in owner.children:
        yield from child.children if isinstance(child, Role) else (child,)


def stands_on_both_sides(owner: Schema | Module) -> bool:
    """Whether there is written text before and behind nested modules. (A template's closing string cannot be moved.)"""
    is_text = [isinstance(child, Text) for child in own_children(owner) if isinstance(child, Text | Module | Union)]
    if owner.file is not None:
        is_text.insert(0, True)
    texts_in_a_row = [kind for kind, _ in groupby(is_text)].count(True)
    return texts_in_a_row > 1


def advise_prompt(prompt: Prompt, tokenizer: Tokenizer, layout: Layout | None = None) -> Advice:
    """A PML prompt: its text and its arguments are computed in every request.

    layout: of its schema; without it, only those count, because nothing is known about what the modules hold. Raises
    PMLError if the prompt does not fit the schema.
    """
    findings: list[Finding] = []
    total = 0
    imports = [part for part in reversed(prompt.parts) if isinstance(part, Import)]
    while imports:
        reference = imports.pop()
        for name, value in reference.arguments:
            tokens = count(value, tokenizer)
            total += tokens
            if tokens > LONG_TEXT:
                findings.append(
                    Finding(
                        line=reference.line or None,
                        what=f"the long argument {name!r} of {reference.module!r} is computed in every request",
                        tokens=tokens,
                        cure="if other prompts pass the same, make it a module of the schema",
                    )
                )
        imports.extend(reversed(reference.children))
    for part in prompt.parts:
        if isinstance(part, Import):
            continue
        inner = part.children if isinstance(part, Role) else (part,)
        tokens = sum(count(child.text, tokenizer) for child in inner if isinstance(child, Text))
        total += tokens
        if tokens > LONG_TEXT:
            findings.append(
                Finding(
                    line=getattr(part, "line", 0) or None,
                    what="long text in the prompt is computed in every request",
                    tokens=tokens,
                    cure="if other prompts say the same, make it a module of the schema",
                )
            )
    findings.sort(key=lambda finding: -finding.tokens)
    reusable = 0
    if layout is not None:
        plan = bind(prompt, layout).plan
        total = plan.num_tokens
        reusable = sum(len(span.tokens) for span in plan.spans if span.segment is not None)
    return Advice(prompts=1, tokens=total, reusable=reusable, findings=tuple(findings))


LONG_TEXT = 64
"""Tokens of prompt text, or of an argument, from which a module would pay."""


def count(text: str, tokenizer: Tokenizer) -> int:
    """Tokens of a text."""
    return len(run_tokens([Text(text=text)], tokenizer))


def line_of(text: str, offset: int) -> int:
    """1-based line of an offset."""
    return text.count("\n", 0, offset) + 1


def example(entries: Sequence[tuple[str, int]]) -> str:
    """One of the lines, shortened."""
    line = entries[0][0].strip()
    return repr(line if len(line) <= 60 else line[:57] + "...")
