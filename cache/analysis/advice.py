"""Find the parts of a prompt that prevent the reuse of its tokens, and count the tokens that each costs.

Four kinds of input: a schema, a PML prompt, one plain prompt, and many plain prompts, which show the real differences.
For plain prompts reuse means prefix caching: everything after the first difference is computed again. They are compared
by lines, because a line is the part of a prompt that a person can move.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from cache.pml.binding import bind
from cache.pml.layout import Layout
from cache.pml.nodes import Import, Module, Prompt, Role, Schema, Union, open_turns
from cache.prompt.parts import Text
from cache.prompt.tokenizer import Tokenizer, run_tokens

DATE = r"\d{4}-\d{2}-\d{2}"
DAY = r"\d{1,2}(?:st|nd|rd|th)?"
VOLATILE = (
    ("a time stamp", re.compile(rf"\b{DATE}[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{{1,9}})?)?(?:Z|[+-]\d\d:?\d\d)?")),
    ("a date", re.compile(rf"\b{DATE}\b")),
    ("a date", re.compile(r"\b\d{1,2}[./]\d{1,2}[./]\d{4}\b|\b\d{1,2}\. ?[A-Z][a-z]+ \d{4}\b")),
    ("a date", re.compile(rf"\b[A-Z][a-z]{{2,8}} {DAY}, \d{{4}}\b|\b{DAY} [A-Z][a-z]{{2,8}},? \d{{4}}\b")),
    ("a time of day", re.compile(r"\b\d{1,2}:\d{2}(:\d{2})?\b")),
    ("an identifier", re.compile(r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F-]{13,22}\b|\b[0-9a-fA-F]{16,}\b")),
    ("an e-mail address", re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}")),
    ("a long number", re.compile(r"\b\d{8,}\b")),
)
"""Text that usually differs between requests. A match that never changes is a false alarm: this is advice only."""

MOST_FINDINGS = 50
"""Maximum findings in one plain prompt. The first ones matter most, because all tokens after a finding are lost."""

LONG_TEXT = 64  # a new text or argument with more tokens is worth a module

MOVE = "move it after everything that stays the same, or make it a parameter of a module"


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause of lost reuse. line: 1-based, None if unknown. tokens: number computed again because of it."""

    line: int | None
    what: str
    tokens: int
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Advice on prompts. tokens: number in all prompts, or in a schema's texts. reusable: number of reusable ones."""

    prompts: int
    tokens: int
    reusable: int
    findings: tuple[Finding, ...]


class LineTree(dict[str, "LineTree"]):
    """A prefix tree of prompts. Each edge is one line."""

    def insert(self, prompt: Sequence[str]) -> int:
        """Add a prompt. Returns how many of its first lines were already in the tree."""
        node, same = self, 0
        for line in prompt:
            same += line in node  # below a new line the tree is empty
            node = node.setdefault(line, LineTree())
        return same


def volatile(text: str) -> Iterator[tuple[int, str]]:
    """Return offset and description of each part of a text that probably changes, in order, without overlaps."""
    found = sorted(
        (match.start(), -match.end(), what) for what, pattern in VOLATILE for match in pattern.finditer(text)
    )
    end = 0
    for start, minus_end, what in found:
        if start >= end:
            yield start, f"{what} ({text[start:-minus_end]!r})"
            end = -minus_end


def advise_text(text: str, tokenizer: Tokenizer) -> Advice:
    """Return advice on one plain prompt: the parts that probably change, and the number of tokens after each part."""
    tokens = count(text, tokenizer)
    findings = [
        Finding(text.count("\n", 0, at) + 1, f"{what} probably changes", count(text[at:], tokenizer), MOVE)
        for at, what in islice(volatile(text), MOST_FINDINGS)
    ]
    reusable = tokens - max((finding.tokens for finding in findings), default=0)
    return Advice(prompts=1, tokens=tokens, reusable=reusable, findings=tuple(findings))


def advise_prompts(prompts: Sequence[str], tokenizer: Tokenizer) -> Advice:
    """Return advice on many plain prompts: where they first differ, and the shared lines after that place."""
    lines = [prompt.splitlines(keepends=True) for prompt in prompts]
    costs: dict[str, int] = {line: count(line, tokenizer) for line in {line for prompt in lines for line in prompt}}
    shared = Counter(line for prompt in lines for line in set(prompt))
    tree = LineTree()
    lost: defaultdict[int, Counter[str]] = defaultdict(Counter)  # tokens, by line number and first different line
    reusable = 0
    for prompt in lines:
        is_first = not tree
        same = tree.insert(prompt)
        reusable += sum(costs[line] for line in prompt[:same])
        behind = sum(costs[line] for line in prompt[same + 1 :] if shared[line] > 1 and line.strip())
        if behind and not is_first:
            lost[same + 1][prompt[same]] += behind
    findings: list[Finding] = []
    for number, by_line in lost.items():
        what = f"differs between prompts ({shortened(next(iter(by_line)))}) and is before lines that other prompts have"
        findings.append(Finding(number, what, by_line.total(), MOVE))
    tokens = sum(costs[line] for prompt in lines for line in prompt)
    return Advice(prompts=len(prompts), tokens=tokens, reusable=reusable, findings=costliest_first(findings))


def advise_schema(layout: Layout) -> Advice:
    """Return advice on a schema: texts that every request computes, and modules that a change may re-encode."""
    findings: list[Finding] = []
    total = reusable = 0
    for owner in layout.owners():
        own = sum(len(run.tokens) for run in owner.runs)
        total += own
        name = f"module {owner.path!r}" if owner.path else "the schema's own text"
        line = owner.node.line or None
        if not owner.is_cached:
            cure = "cache it, and move the changing text into a parameter or after the modules"
            findings.append(Finding(line, f"{name} has cache='false' and is computed in every request", own, cure))
            continue
        reusable += own
        for text in own_texts(owner.node):
            for _, what in volatile(text):
                message = f"{name} contains {what}: if it changes, the module is encoded again"
                findings.append(Finding(line, message, own, "make it a parameter, or a small module of its own"))
        if is_on_both_sides(owner.node):
            message = f"{name} has text before and after modules: if one of them grows, it is encoded again"
            findings.append(Finding(line, message, own, "put its text together, before the modules"))
    return Advice(prompts=0, tokens=total, reusable=reusable, findings=costliest_first(findings))


def own_texts(owner: Schema | Module) -> Iterator[str]:
    if owner.file is not None:
        yield owner.file.text
    yield from (child.text for child in open_turns(owner.children) if isinstance(child, Text))


def is_on_both_sides(owner: Schema | Module) -> bool:
    """Return whether an owner has text of its own before and after nested modules. A template's text does not count."""
    children = [child for child in open_turns(owner.children) if isinstance(child, Text | Module | Union)]
    is_text = [*([True] if owner.file is not None else []), *(isinstance(child, Text) for child in children)]
    return [kind for kind, _ in groupby(is_text)].count(True) > 1


def advise_prompt(prompt: Prompt, tokenizer: Tokenizer, layout: Layout | None = None) -> Advice:
    """Return advice on a PML prompt: its new text and its arguments are computed in every request. layout: of its
    schema; None: do not count the schema's text. Raises PMLError if the prompt does not fit the schema.
    """
    findings: list[Finding] = []
    total = reusable = 0

    def add(line: int, what: str, tokens: int, verb: str) -> None:
        nonlocal total
        total += tokens
        if tokens > LONG_TEXT:
            cure = f"if other prompts {verb} the same, make it a module of the schema"
            findings.append(Finding(line or None, f"{what} is computed in every request", tokens, cure))

    imports = [part for part in reversed(prompt.parts) if isinstance(part, Import)]
    while imports:
        reference = imports.pop()
        for name, value in reference.arguments:
            what = f"the long argument {name!r} of {reference.module!r}"
            add(reference.line, what, count(value, tokenizer), "pass")
        imports.extend(reversed(reference.children))
    for part in prompt.parts:
        if isinstance(part, Text | Role):
            tokens = sum(count(piece.text, tokenizer) for piece in open_turns([part]) if isinstance(piece, Text))
            add(getattr(part, "line", 0), "long text in the prompt", tokens, "say")
    if layout is not None:
        plan = bind(prompt, layout).plan
        total = plan.num_tokens
        reusable = sum(len(span.tokens) for span in plan.spans if span.segment is not None)
    return Advice(prompts=1, tokens=total, reusable=reusable, findings=costliest_first(findings))


def costliest_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: -finding.tokens))


def count(text: str, tokenizer: Tokenizer) -> int:
    return len(run_tokens([Text(text=text)], tokenizer))


def shortened(line: str) -> str:
    line = line.strip()
    return repr(line if len(line) <= 60 else line[:57] + "...")
