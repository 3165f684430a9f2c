"""The effect of reuse on answers: fidelity to full attention, and answers that contain the gold answer.

Each case runs under each arm on the engine that serves customers. Arms differ only in the tokens that each token
attends to, and in the tokens that the request computes (see `ARMS`).

- Fidelity, by teacher-forced scoring of full attention's own greedy answer: KL divergence in nats per token (also of
  the first token alone), and the share of tokens with the same most likely token. For the gold answer, the
  log-probability per token, minus its value under full attention.
- Task, by real decoding: answers that contain the gold answer, token F1, answers like those of full attention (the same
  words, or an F1 of 0.8), right and wrong refusals.
- Intervals are 95 % bootstrap intervals over cases, paired with full attention.
- `noise` compares full attention with itself in a forward pass of another shape: the effect of rounding alone.
- The time to the first token is measured one request at a time, with the passages encoded before.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import bootstrap
from torch import Tensor

from app.domain.setting_types import BALANCED_SHARE, RECOMPUTATIONS
from app.domain.settings import Settings
from cache.decoding.sampling import Sampling
from cache.engine.engine import Engine
from cache.engine.recomputation import SelectiveRecomputation
from cache.engine.request import Completion, Request, Reuse
from cache.prompt.parts import Text
from cache.prompt.plan import Plan, Segment, Span
from cache.prompt.tokenizer import run_tokens
from evals.answers.cases import Case, Tokens, holds, normal
from evals.report import percentile

SLOT = 256  # position ids of a slot, for arms that place passages in slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to use the passages of a case. behind: the text before a passage while it is encoded: the system text and
    its neighbours (as in the product), the system text alone, or nothing. placement: contiguous; slotted (each passage
    begins at a multiple of `SLOT`); unions (also slots, but the question begins after the end of the last slot, as
    after a union of a PML schema); shared (all passages begin at the same position id). reads: all passages of the
    case; the best passages, at least one, with at most `BALANCED_SHARE` of the tokens of all; only the gold passage;
    none.
    """

    behind: Literal["neighbours", "system", "nothing"] = "neighbours"
    placement: Literal["contiguous", "slotted", "unions", "shared"] = "contiguous"
    recomputation: SelectiveRecomputation = field(default_factory=SelectiveRecomputation)
    reuse: Reuse = "on"
    reads: Literal["all", "best", "gold", "none"] = "all"


BALANCED = RECOMPUTATIONS["balanced"]
ARMS: dict[str, Arm] = {
    "full": Arm(reuse="prefix"),  # full attention, exact prefixes reused
    "exact": Arm(recomputation=RECOMPUTATIONS["exact"]),
    "balanced": Arm(recomputation=BALANCED),
    "fast": Arm(recomputation=RECOMPUTATIONS["fast"]),
    "random": Arm(recomputation=replace(BALANCED, by="random")),  # a control
    "alone": Arm(behind="system"),
    "slotted": Arm(placement="slotted"),
    "shared": Arm(placement="shared"),
    "prompt_cache": Arm(behind="nothing", placement="unions"),
    "fewer": Arm(reuse="prefix", reads="best"),
    "gold": Arm(reuse="prefix", reads="gold"),
    "none": Arm(reuse="prefix", reads="none"),
}


def plans(case: Case, arm: Arm, system: Tokens) -> Iterator[tuple[Plan, Tokens]]:
    """Yield for each turn of a case its prompt and its answer, which is empty for the last turn. system: the system
    text as tokens.
    """
    system_segment = Segment(name="system", tokens=system)
    spans = [Span(start=0, tokens=system, segment=system_segment)]
    for turn in case.earlier:
        passages = [] if arm.reads == "none" else zip(turn.modules, turn.left_contexts, strict=True)
        start = place(spans, passages, arm, system_segment)
        spans.append(Span(start=start, tokens=turn.question))
        yield Plan(spans=tuple(spans)), turn.answer
        spans[-1] = Span(start=start, tokens=turn.question + turn.answer)
    start = place(spans, passages_read(case, arm), arm, system_segment)
    yield Plan(spans=(*spans, Span(start=start, tokens=case.question))), ()


def passages_read(case: Case, arm: Arm) -> list[tuple[Tokens, Tokens]]:
    pairs = list(zip(case.modules, case.left_contexts, strict=True))
    if arm.reads == "none":
        return []
    if arm.reads == "gold":
        return pairs if case.right is None else [pairs[case.right]]
    if arm.reads == "best":
        budget = BALANCED_SHARE * sum(map(len, case.modules))
        first = len(pairs) - 1
        while first > 0 and sum(len(module) for module, _ in pairs[first - 1 :]) <= budget:
            first -= 1
        return pairs[first:]
    return pairs


def place(spans: list[Span], passages: Iterable[tuple[Tokens, Tokens]], arm: Arm, system: Segment) -> int:
    base = position = end(spans)
    for tokens, left_context in passages:
        if arm.placement in ("slotted", "unions"):
            position += -(position - base) % SLOT
        elif arm.placement == "shared":
            position = base
        prefix = None if arm.behind == "nothing" else system
        left_context = left_context if arm.behind == "neighbours" else ()
        segment = Segment(
            name="passage",
            tokens=tokens,
            start=(prefix.end if prefix else 0) + len(left_context),
            prefix=prefix,
            left_context=left_context,
        )
        spans.append(Span(start=position, tokens=tokens, segment=segment))
        position = spans[-1].end
    return position + -(position - base) % SLOT if arm.placement == "unions" else end(spans)


def end(spans: Sequence[Span]) -> int:
    return max(span.end for span in spans)


Report = Callable[[str], None]  # called with a line of progress
FULL = "full"
NOISE = "noise"
ANSWER_TOKENS = 64
SAME_ANSWER_F1 = 0.8  # two answers with at least this token F1 count as the same
RESAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseOutcome:
    """One case under one arm. kl, kl_first, top1 and gold_logp are None if there is no answer to score. refusal_margin:
    log-probability of the first token of the refusal, minus the highest of all other tokens. recomputed_tokens: tokens
    of encoded passages that the request recomputed.
    """

    kl: float | None
    kl_first: float | None
    top1: float | None
    gold_logp: float | None
    text: str
    refused: bool
    refusal_margin: float | None
    ttft_ms: float
    recomputed_tokens: int
    prompt_tokens: int


class Bench:
    """One engine that answers each case under each arm. system: the system text as tokens. refusal_bias: logit bias of
    the first token of the refusal, as calibrated, None without a calibration. Set it before a run.
    """

    def __init__(self, settings: Settings, engine: Engine, system: Tokens) -> None:
        self.settings, self.engine, self.system = settings, engine, system
        self.refusal = run_tokens([Text(text=settings.refusal_text)], engine.model.tokenizer)
        self.refusal_bias: float | None = None

    def run(self, case: Case, names: Sequence[str]) -> dict[str, CaseOutcome]:
        """Run a case under full attention and the named arms, and the noise of full attention."""
        requests = {name: self.ready(case, ARMS[name], name) for name in dict.fromkeys([FULL, *names])}
        first = {name: self.first_token(request) for name, request in requests.items()}
        greedy = self.engine.submit(self.answering(requests[FULL], penalty=1.0))
        generations = {name: self.engine.submit(self.answering(request)) for name, request in requests.items()}
        answers = {name: generation.completion for name, generation in generations.items()}
        reference = greedy.completion.tokens or ()
        scores = {name: self.score(request, reference) for name, request in requests.items()}
        gold = {name: self.score(request, case.gold) for name, request in requests.items()}
        outcomes = {
            name: self.outcome(case, answers[name], first[name], scores[FULL], scores[name], gold[name])
            for name in requests
        }
        again = self.score(Request(plan=requests[FULL].plan, reuse="off"), reference)
        outcomes[NOISE] = self.outcome(case, answers[FULL], first[FULL], scores[FULL], again, None)
        return outcomes

    def ready(self, case: Case, arm: Arm, name: str) -> Request:
        """Compute a case's earlier turns, encode its passages, and return the request of its last turn."""
        session = f"{name}/{case.id}"
        *earlier, (last, _) = plans(case, arm, self.system)
        request = Request(plan=last, reuse=arm.reuse, recomputation=arm.recomputation, session=session)
        for plan, answer in earlier:
            self.score(replace(request, plan=plan), answer)
        if arm.reuse == "on":
            self.engine.encode(last.segments()).result()
        return request

    def first_token(self, request: Request) -> Completion:
        return self.engine.submit(replace(request, sampling=Sampling(max_tokens=1))).completion

    def answering(self, request: Request, penalty: float | None = None) -> Request:
        """Return the request with the product's decoding. penalty: replaces the repetition penalty of the settings."""
        penalty = self.settings.repetition_penalty if penalty is None else penalty
        opening = None if self.refusal_bias is None else (self.refusal[0], self.refusal_bias)
        sampling = Sampling(max_tokens=ANSWER_TOKENS, repetition_penalty=penalty, opening=opening, ends_loops=True)
        return replace(request, sampling=sampling)

    def score(self, request: Request, answer: Tokens) -> Tensor | None:
        """Score an answer by teacher forcing. Returns log-probabilities, float32 `[answer, vocabulary]`; None for an
        empty answer.
        """
        if not answer:
            return None
        logits: Tensor = self.engine.submit(replace(request, teacher_forced=answer)).completion.logits
        return logits.log_softmax(-1)

    def outcome(
        self,
        case: Case,
        answer: Completion,
        first: Completion,
        full: Tensor | None,
        scores: Tensor | None,
        gold: Tensor | None,
    ) -> CaseOutcome:
        """Sum up a case under an arm. first: its request up to the first token. full, scores: log-probabilities
        `[answer, vocabulary]` of full attention's answer, under full attention and under this arm. gold: the same for
        the gold answer, under this arm.
        """
        kl = kl_first = top1 = gold_logp = margin = None
        if full is not None and scores is not None:
            refusal = self.refusal[0]
            margin = (scores[0, refusal] - torch.cat((scores[0, :refusal], scores[0, refusal + 1 :])).max()).item()
            divergence = F.kl_div(scores, full, log_target=True, reduction="none").sum(-1)
            kl, kl_first = divergence.mean().item(), divergence[0].item()
            top1 = (scores.argmax(-1) == full.argmax(-1)).float().mean().item()
        if gold is not None:
            gold_logp = gold[range(len(case.gold)), list(case.gold)].mean().item()
        return CaseOutcome(
            kl=kl,
            kl_first=kl_first,
            top1=top1,
            gold_logp=gold_logp,
            text=answer.text,
            refusal_margin=margin,
            refused=normal(self.settings.refusal_text)[:30] in normal(answer.text),
            ttft_ms=first.timings.ttft,
            recomputed_tokens=first.usage.recomputed,
            prompt_tokens=first.usage.prompt_tokens,
        )


def quality_row(name: str, cases: Sequence[Case], outcomes: Sequence[dict[str, CaseOutcome]]) -> dict[str, Any]:
    """Sum up an arm over all cases. Pairs are 95 % intervals; deltas are against full attention. agree: share of
    answers similar to the answers with full attention. recomputed_tokens: mean number of passage tokens computed in a
    request; recomputed_share: their share of all passage tokens. A value that was not measured is None. `noise` has
    only the divergence.
    """
    mine = [outcome[name] for outcome in outcomes]
    full = [outcome[FULL] for outcome in outcomes]
    pairs = list(zip(cases, mine, full, strict=True))
    judged = [] if name == NOISE else pairs
    kls = [one.kl for one in mine if one.kl is not None]
    deltas = [
        one.gold_logp - base.gold_logp
        for _, one, base in judged
        if one.gold_logp is not None and base.gold_logp is not None
    ]
    held = [(is_right(case, one.text), is_right(case, base.text)) for case, one, base in judged if case.answers]
    documents = [sum(map(len, case.modules)) for case in cases]
    arm = ARMS[FULL if name == NOISE else name]
    recomputed = [
        one.recomputed_tokens if arm.reuse == "on" else sum(len(module) for module, _ in passages_read(case, arm))
        for case, one, _ in pairs
    ]
    return {
        "policy": name,
        "n": len(mine),
        "kl": mean(kls),
        "kl_interval": interval(kls),
        "kl_p95": round(percentile(kls, 95), 4) if kls else None,
        "kl_first": mean([one.kl_first for one in mine if one.kl_first is not None]),
        "top1": mean([one.top1 for one in mine if one.top1 is not None]),
        "agree": mean([f1(one.text, base.text) >= SAME_ANSWER_F1 for _, one, base in judged]),
        "gold_logp_delta": mean(deltas),
        "gold_logp_delta_interval": interval(deltas),
        "contains_gold": mean([got for got, _ in held]),
        "contains_gold_delta_interval": interval([got - base for got, base in held]),
        "f1": mean([max(f1(one.text, answer) for answer in case.answers) for case, one, _ in judged if case.answers]),
        "refused_right": mean([one.refused for case, one, _ in judged if not case.answers]),
        "refused_wrong": mean([one.refused for case, one, _ in judged if case.answers]),
        "recomputed_tokens": round(statistics.mean(recomputed), 1),
        "recomputed_share": round(sum(recomputed) / max(1, sum(documents)), 4),
        "ttft_ms": round(statistics.median(one.ttft_ms for one in mine), 1) if judged else None,
    }


def is_right(case: Case, text: str) -> bool:
    return holds(text, case.facts) if case.facts else any(holds(text, [answer]) for answer in case.answers)


def f1(text: str, other: str) -> float:
    ours, theirs = Counter(normal(text).split()), Counter(normal(other).split())
    common = (ours & theirs).total()
    return 2 * common / (ours.total() + theirs.total()) if common else float(ours == theirs)


def mean(values: Sequence[float]) -> float | None:
    return round(statistics.mean(values), 4) if values else None


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    if not values:
        return None
    twice = [*values, *values] if len(values) == 1 else values  # SciPy needs two
    found = bootstrap((twice,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=0).confidence_interval
    return round(float(found.low), 4), round(float(found.high), 4)


def rows_of(
    names: Sequence[str], cases: Sequence[Case], outcomes: Sequence[dict[str, CaseOutcome]]
) -> list[dict[str, Any]]:
    return [quality_row(name, cases, outcomes) for name in names]
