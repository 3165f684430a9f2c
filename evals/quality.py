"""What reuse costs in answers: fidelity to full attention, and answers that hold the gold answer.

Every request is a question, its document and others of the same topic. Policies:
  full          full attention over everything
  fast          the desk's default: passages encoded behind the system text, one after another
  prompt_cache  as published: passages encoded alone, in slots of SLOT ids
  none          no passages at all
  gold          full attention over the one right passage
Fidelity is teacher-forced along the greedy answer of full attention: KL in nats per token and the share of tokens
that would be chosen alike; `gold_logp_delta` is the log-probability of the gold answer per token, less that of full
attention. Task figures come from real decoding on the engine. Intervals are bootstraps over requests, paired with
full attention.

Not yet: link policies that recompute, neighbours, multi-turn and multi-hop sets, resuming.
"""

from __future__ import annotations

import random
import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from app.errors import DeskError
from app.prompting import PassageText, PromptBuilder, passage_text, question_text
from app.schooling import read_rows
from app.settings import Settings
from cache.engine import Engine
from cache.lesson_model import LessonModel
from cache.lessons import Branch, Lesson
from cache.model import load_model
from cache.plan import Plan, Span, Unit
from cache.pml import Text
from cache.request import Completion, Request
from cache.sampling import Sampling
from cache.text_runs import run_tokens

SLOT = 256
POLICIES = ("full", "fast", "prompt_cache", "none", "gold")
SOURCES = ("squad", "policyqa")
ANSWER_TOKENS = 40
RESAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A question with its passages as tokens. answers: gold answers, none if no passage has one. right: index of the
    document's own passage.
    """

    modules: tuple[tuple[int, ...], ...]
    right: int
    question: tuple[int, ...]
    answers: tuple[str, ...]
    gold: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case under one policy. Fidelity is None where the case has no answer."""

    kl: float | None
    top1: float | None
    gold_logp: float | None
    text: str
    refused: bool
    ttft_ms: float
    recomputed_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """A policy over all cases; pairs are 95 % intervals."""

    policy: str
    n: int
    kl: float | None
    kl_interval: tuple[float, float] | None
    top1: float | None
    gold_logp_delta: float | None
    gold_logp_delta_interval: tuple[float, float] | None
    contains_gold: float | None
    refused_right: float | None
    refused_wrong: float | None
    recomputed_tokens: float
    ttft_ms: float


class Bench:
    """One model, read by lessons (teacher forcing) and by the engine (decoding)."""

    def __init__(self, settings: Settings, engine: Engine, reader: LessonModel) -> None:
        self.settings, self.engine, self.reader = settings, engine, reader
        self.tokenizer = engine.model.tokenizer
        self.prompts = PromptBuilder(self.tokenizer.template, settings.system_text)
        system = self.prompts.prompt([])[0]
        assert not isinstance(system, Text)
        self.prefix = run_tokens([child for child in system.children if isinstance(child, Text)], self.tokenizer)

    def tokens(self, text: str) -> tuple[int, ...]:
        """Literal text as tokens."""
        return run_tokens([Text(text=text)], self.tokenizer)

    def cases(self, file: Path, passages: int, limit: int) -> list[Case]:
        """Questions of the single-passage sources, in an order that depends on nothing else. Raises DeskError."""
        by_title: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in read_rows([file]):
            if row.get("src") in SOURCES:
                by_title[row["title"]].append(row)
        rng = random.Random(0)
        found: list[Case] = []
        topics = [rows for rows in by_title.values() if len(rows) >= passages]
        if not topics:
            raise DeskError(f"{file} has no title with {passages} documents of {', '.join(SOURCES)}", code="no-cases")
        for _ in range(limit):
            rows = rng.sample(rng.choice(topics), passages)
            right = rng.randrange(passages)
            qa = rng.choice(rows[right]["qas"])
            question = [
                Text(text=question_text(qa["question"])),
                Text(text=self.prompts.template.to_answer, structural=True),
            ]
            found.append(
                Case(
                    modules=tuple(self.module(row) for row in rows),
                    right=right,
                    question=run_tokens(question, self.tokenizer),
                    answers=tuple(qa["answers"]),
                    gold=self.tokens(qa["answers"][0]) if qa["answers"] else (),
                )
            )
        return found

    def module(self, row: dict[str, Any]) -> tuple[int, ...]:
        """A document as the desk's prompt says it."""
        text = PassageText(name="", title=row["title"], heading_path=(), text=row["context"])
        return self.tokens(passage_text(text))

    def run(self, case: Case, policies: Sequence[str]) -> dict[str, Outcome]:
        """A case under all policies; full attention goes first, the others follow its answer."""
        full = self.decode(case, "full")
        answer = full.tokens or self.tokens(full.text)
        wanted = self.log_probabilities(case, "full", answer) if answer else None
        outcomes: dict[str, Outcome] = {}
        for policy in policies:
            completion = full if policy == "full" else self.decode(case, policy)
            kl = top1 = None
            if wanted is not None:
                got = self.log_probabilities(case, policy, answer)
                kl = F.kl_div(got, wanted, log_target=True, reduction="batchmean").item()
                top1 = (got.argmax(-1) == wanted.argmax(-1)).float().mean().item()
            gold = None
            if case.gold:
                logs = self.log_probabilities(case, policy, case.gold)
                gold = logs.gather(1, torch.tensor(case.gold)[:, None]).mean().item()
            outcomes[policy] = Outcome(
                kl=kl,
                top1=top1,
                gold_logp=gold,
                text=completion.text,
                refused=self.settings.refusal_text[:30].lower() in completion.text.lower(),
                ttft_ms=completion.timings.ttft,
                recomputed_tokens=document_tokens(case, policy),
            )
        return outcomes

    def log_probabilities(self, case: Case, policy: str, answer: tuple[int, ...]) -> Tensor:
        """Float32 `[answer, vocabulary]`: what the model would say along an answer."""
        lesson = lesson_of(case, policy, self.prefix)
        branch = Branch(question=case.question, answer=answer)
        modular = policy in ("fast", "prompt_cache")
        return self.reader.logits(replace(lesson, branches=(branch,)), modular=modular).log_softmax(-1)

    def decode(self, case: Case, policy: str) -> Completion:
        """The greedy answer on the engine. Modules are encoded before, so that times are those of reuse."""
        plan = plan_of(case, policy, self.prefix)
        modular = policy in ("fast", "prompt_cache")
        if modular:
            self.engine.encode(plan.units()).result()
        sampling = Sampling(max_tokens=ANSWER_TOKENS, repetition_penalty=self.settings.repetition_penalty)
        request = Request(plan=plan, sampling=sampling, reuse="on" if modular else "off")
        return self.engine.submit(request).completion


def chosen(case: Case, policy: str) -> tuple[tuple[int, ...], ...]:
    """The passages a policy reads."""
    return {"none": (), "gold": (case.modules[case.right],)}.get(policy, case.modules)


def lesson_of(case: Case, policy: str, prefix: tuple[int, ...]) -> Lesson:
    """The case as a lesson without branches yet."""
    modules = chosen(case, policy)
    in_slots = policy == "prompt_cache"
    gaps = [0, *(-len(module) % SLOT for module in modules[:-1])] if in_slots else [0] * len(modules)
    return Lesson(
        prefix=prefix, modules=modules, gaps=tuple(gaps[: len(modules)]), branches=(), is_conditioned=not in_slots
    )


def plan_of(case: Case, policy: str, prefix: tuple[int, ...]) -> Plan:
    """The same for the engine."""
    system = Unit(name="system", tokens=prefix)
    spans, at = [Span(start=0, tokens=prefix, unit=system)], len(prefix)
    lesson = lesson_of(case, policy, prefix)
    for module, gap in zip(lesson.modules, lesson.gaps, strict=True):
        unit = Unit(name="module", tokens=module)
        if lesson.is_conditioned:
            unit = replace(unit, start=len(prefix), prefix=system)
        spans.append(Span(start=at + gap, tokens=module, unit=unit))
        at = spans[-1].end
    return Plan(spans=(*spans, Span(start=at, tokens=case.question)))


def document_tokens(case: Case, policy: str) -> int:
    """Tokens of passages that are computed for the request."""
    return 0 if policy in ("fast", "prompt_cache") else sum(map(len, chosen(case, policy)))


def measure_quality(
    settings: Settings, file: Path, *, policies: Sequence[str], passages: int, limit: int, report: Callable[[str], None]
) -> dict[str, Any]:
    """Run all cases under all policies. Raises DeskError, CacheError."""
    unknown = sorted(set(policies) - set(POLICIES))
    if unknown:
        raise DeskError(f"unknown policies {', '.join(unknown)}: choose from {', '.join(POLICIES)}", code="usage")
    name, device, converted = settings.model, settings.device, settings.models_folder
    model = load_model(name, device=device, converted=converted, adapter=settings.adapter_folder)
    reader = LessonModel.load(name, device=device, converted=converted, adapter=settings.adapter_folder)
    bench = Bench(settings, Engine(model, memory=settings.memory).start(), reader)
    try:
        cases = bench.cases(file, passages, limit)
        outcomes: list[dict[str, Outcome]] = []
        for number, case in enumerate(cases, start=1):
            outcomes.append(bench.run(case, ["full", *(p for p in policies if p != "full")]))
            report(f"{number}/{len(cases)}")
    finally:
        bench.engine.close()
    rows = [asdict(summarise(policy, cases, outcomes)) for policy in policies]
    return {"model": bench.engine.model.info.name, "adapter": settings.adapter, "rows": rows}


def summarise(policy: str, cases: Sequence[Case], outcomes: Sequence[dict[str, Outcome]]) -> QualityRow:
    """Means and intervals of a policy."""
    mine = [outcome[policy] for outcome in outcomes]
    kls = [one.kl for one in mine if one.kl is not None]
    top1 = [one.top1 for one in mine if one.top1 is not None]
    deltas = [
        one.gold_logp - full.gold_logp
        for one, full in zip(mine, (outcome["full"] for outcome in outcomes), strict=True)
        if one.gold_logp is not None and full.gold_logp is not None
    ]
    answerable = [(case, one) for case, one in zip(cases, mine, strict=True) if case.answers]
    others = [one for case, one in zip(cases, mine, strict=True) if not case.answers]
    return QualityRow(
        policy=policy,
        n=len(mine),
        kl=mean(kls),
        kl_interval=interval(kls),
        top1=mean(top1),
        gold_logp_delta=mean(deltas),
        gold_logp_delta_interval=interval(deltas),
        contains_gold=mean([contains(one.text, case.answers) for case, one in answerable]),
        refused_right=mean([one.refused for one in others]),
        refused_wrong=mean([one.refused for _, one in answerable]),
        recomputed_tokens=statistics.mean(one.recomputed_tokens for one in mine),
        ttft_ms=round(statistics.median(one.ttft_ms for one in mine), 1),
    )


def contains(text: str, answers: Sequence[str]) -> bool:
    """Whether a text holds one of the answers, letters and digits alone compared."""
    words = f" {normal(text)} "
    return any(f" {normal(answer)} " in words for answer in answers)


def normal(text: str) -> str:
    """Lower case, words separated by one space."""
    return " ".join(re.findall(r"\w+", text.lower()))


def mean(values: Sequence[float]) -> float | None:
    """Rounded mean, None of nothing."""
    return round(statistics.mean(values), 4) if values else None


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % bootstrap interval of the mean, None of nothing."""
    if not values:
        return None
    rng = random.Random(0)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return round(means[int(0.025 * RESAMPLES)], 4), round(means[int(0.975 * RESAMPLES)], 4)
