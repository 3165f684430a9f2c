"""What reuse costs in answers: fidelity to full attention, and answers that hold the gold answer.

Every case runs under every policy (see `policies`), all of it on the engine that serves customers.
Fidelity: one pass per policy along full attention's own greedy answer: KL in nats per token (and of the first token
alone), the share of tokens that would be chosen alike; and along the gold answer its log-probability per token, less
that of full attention. Task: real decoding: answers that hold the gold answer, token F1, answers like full attention's
(equal, or F1 of .8), right and false refusals. Intervals are bootstraps over cases, paired with full attention.
`noise` is full attention against itself in a pass of another shape: what rounding alone does.

Times to the first token are taken one request at a time, with the passages encoded before.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from app.domain.settings import Settings
from cache.engine.engine import Engine
from cache.engine.request import Completion, Request
from cache.engine.sampling import Sampling
from cache.prompt.parts import Text
from cache.prompt.tokenizer import run_tokens
from evals.cases import Case, Tokens, holds, normal
from evals.policies import ARMS, Arm, plans, read

FULL = "full"
NOISE = "noise"
ANSWER_TOKENS = 64
ALIKE = 0.8
RESAMPLES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case under one policy. Fidelity is None where there is no answer to follow. refusal_margin: logit with which
    the refusal begins, less the highest other one.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRow:
    """A policy over all cases; pairs are 95 % intervals, deltas are against full attention. recomputed_tokens: tokens
    of passages computed in the request, on average; recomputed_share: of all passage tokens. None is what was not
    measured, as all of `noise` but its distance.
    """

    policy: str
    n: int
    kl: float | None
    kl_interval: tuple[float, float] | None
    kl_p95: float | None
    kl_first: float | None
    top1: float | None
    agree: float | None
    gold_logp_delta: float | None
    gold_logp_delta_interval: tuple[float, float] | None
    contains_gold: float | None
    contains_gold_delta_interval: tuple[float, float] | None
    f1: float | None
    refused_right: float | None
    refused_wrong: float | None
    recomputed_tokens: float
    recomputed_share: float
    ttft_ms: float | None


class Bench:
    """One engine, asked every case under every policy. system, sink_prefix: tokens that stand before passages.
    refusal_bias: what a calibration adds to the refusal, None without one; set before a run.
    """

    def __init__(self, settings: Settings, engine: Engine, system: Tokens) -> None:
        self.settings, self.engine, self.system = settings, engine, system
        self.sink_prefix = engine.model.tokenizer.sink_prefix
        self.refusal = run_tokens([Text(text=settings.refusal_text)], engine.model.tokenizer)
        self.refusal_bias: float | None = None

    def run(self, case: Case, names: Sequence[str]) -> dict[str, Outcome]:
        """A case under full attention and the policies named, and the noise of full attention."""
        asked = {name: self.ready(case, ARMS[name], name) for name in dict.fromkeys([FULL, *names])}
        ttft = {name: self.timed(request) for name, request in asked.items()}
        greedy = self.engine.submit(self.answering(asked[FULL], penalty=1.0))
        spoken = {name: self.engine.submit(self.answering(request)) for name, request in asked.items()}
        said = {name: generation.completion for name, generation in spoken.items()}
        answer = greedy.completion.tokens or ()
        along = {name: self.along(request, answer) for name, request in asked.items()}
        golden = {name: self.along(request, case.gold) for name, request in asked.items()}
        outcomes = {
            name: self.outcome(case, said[name], ttft[name], along[FULL], along[name], golden[name]) for name in asked
        }
        again = self.along(Request(plan=asked[FULL].plan, reuse="off"), answer)
        outcomes[NOISE] = self.outcome(case, said[FULL], ttft[FULL], along[FULL], again, None)
        return outcomes

    def ready(self, case: Case, policy: Arm, name: str) -> Request:
        """The request of a case's last turn; the turns before it have been read by then, and its modules encoded."""
        session = f"{name}/{case.id}"
        *earlier, (last, _) = plans(case, policy, self.system, self.sink_prefix)
        for plan, answer in earlier:
            self.along(
                Request(plan=plan, reuse=policy.reuse, recomputation=policy.recomputation, session=session), answer
            )
        if policy.reuse == "on":
            self.engine.encode(last.segments()).result()
        return Request(plan=last, reuse=policy.reuse, recomputation=policy.recomputation, session=session)

    def timed(self, request: Request) -> Completion:
        """Alone on the engine, up to the first token."""
        return self.engine.submit(with_sampling(request, Sampling(max_tokens=1))).completion

    def answering(self, request: Request, penalty: float | None = None) -> Request:
        """The request with the desk's way of decoding."""
        penalty = self.settings.repetition_penalty if penalty is None else penalty
        opening = None if self.refusal_bias is None else (self.refusal[0], self.refusal_bias)
        sampling = Sampling(max_tokens=ANSWER_TOKENS, repetition_penalty=penalty, opening=opening)
        return with_sampling(request, sampling)

    def along(self, request: Request, answer: Tokens) -> Tensor | None:
        """Log-probabilities float32 `[answer, vocabulary]` along an answer, None without one."""
        if not answer:
            return None
        followed = Request(
            plan=request.plan,
            reuse=request.reuse,
            recomputation=request.recomputation,
            session=request.session,
            teacher_forced=answer,
        )
        logits = self.engine.submit(followed).completion.logits
        assert logits is not None
        return logits.log_softmax(-1)

    def outcome(
        self,
        case: Case,
        said: Completion,
        first: Completion,
        wanted: Tensor | None,
        got: Tensor | None,
        golden: Tensor | None,
    ) -> Outcome:
        """What a policy did with a case. first: its request up to the first token."""
        kl = kl_first = top1 = gold = margin = None
        if got is not None:
            begins = self.refusal[0]
            margin = (got[0, begins] - torch.cat((got[0, :begins], got[0, begins + 1 :])).max()).item()
        if wanted is not None and got is not None:
            divergence = F.kl_div(got, wanted, log_target=True, reduction="none").sum(-1)
            kl, kl_first = divergence.mean().item(), divergence[0].item()
            top1 = (got.argmax(-1) == wanted.argmax(-1)).float().mean().item()
        if golden is not None:
            gold = golden[range(len(case.gold)), list(case.gold)].mean().item()
        return Outcome(
            kl=kl,
            kl_first=kl_first,
            top1=top1,
            gold_logp=gold,
            text=said.text,
            refusal_margin=margin,
            refused=normal(self.settings.refusal_text)[:30] in normal(said.text),
            ttft_ms=first.timings.ttft,
            recomputed_tokens=first.usage.recomputed,
            prompt_tokens=first.usage.prompt_tokens,
        )


def with_sampling(request: Request, sampling: Sampling) -> Request:
    """The request, decoded so."""
    return Request(
        plan=request.plan,
        reuse=request.reuse,
        recomputation=request.recomputation,
        session=request.session,
        sampling=sampling,
    )


def summarise(policy: str, cases: Sequence[Case], outcomes: Sequence[dict[str, Outcome]]) -> QualityRow:
    """Means and intervals of a policy."""
    mine = [outcome[policy] for outcome in outcomes]
    full = [outcome[FULL] for outcome in outcomes]
    pairs = list(zip(cases, mine, full, strict=True))
    kls = [one.kl for one in mine if one.kl is not None]
    deltas = [
        one.gold_logp - base.gold_logp
        for _, one, base in pairs
        if one.gold_logp is not None and base.gold_logp is not None
    ]
    held = [(is_right(case, one.text), is_right(case, base.text)) for case, one, base in pairs if case.answers]
    documents = [sum(map(len, case.modules)) for case in cases]
    arm = ARMS[FULL if policy == NOISE else policy]
    recomputed = [
        one.recomputed_tokens if arm.reuse == "on" else sum(len(module) for module, _ in read(case, arm))
        for case, one, _ in pairs
    ]
    row = QualityRow(
        policy=policy,
        n=len(mine),
        kl=mean(kls),
        kl_interval=interval(kls),
        kl_p95=round(sorted(kls)[int(0.95 * (len(kls) - 1))], 4) if kls else None,
        kl_first=mean([one.kl_first for one in mine if one.kl_first is not None]),
        top1=mean([one.top1 for one in mine if one.top1 is not None]),
        agree=mean([alike(one.text, base.text) for _, one, base in pairs]),
        gold_logp_delta=mean(deltas),
        gold_logp_delta_interval=interval(deltas),
        contains_gold=mean([got for got, _ in held]),
        contains_gold_delta_interval=interval([got - base for got, base in held]),
        f1=mean([max(f1(one.text, answer) for answer in case.answers) for case, one, _ in pairs if case.answers]),
        refused_right=mean([one.refused for case, one, _ in pairs if not case.answers]),
        refused_wrong=mean([one.refused for case, one, _ in pairs if case.answers]),
        recomputed_tokens=round(statistics.mean(recomputed), 1),
        recomputed_share=round(sum(recomputed) / max(1, sum(documents)), 4),
        ttft_ms=round(statistics.median(one.ttft_ms for one in mine), 1),
    )
    return only_distance(row) if policy == NOISE else row


def only_distance(row: QualityRow) -> QualityRow:
    """Without what comes from more than following full attention's answer."""
    return replace(
        row,
        agree=None,
        gold_logp_delta=None,
        gold_logp_delta_interval=None,
        contains_gold=None,
        contains_gold_delta_interval=None,
        f1=None,
        refused_right=None,
        refused_wrong=None,
        ttft_ms=None,
    )


def is_right(case: Case, text: str) -> bool:
    """Whether an answer holds what it must."""
    return holds(text, case.facts) if case.facts else any(holds(text, [answer]) for answer in case.answers)


def alike(text: str, other: str) -> bool:
    """Whether two answers say the same, or nearly."""
    return normal(text) == normal(other) or f1(text, other) >= ALIKE


def f1(text: str, other: str) -> float:
    """Harmonic mean of the shares of words that two texts have in common."""
    ours, theirs = Counter(normal(text).split()), Counter(normal(other).split())
    common = (ours & theirs).total()
    return 2 * common / (ours.total() + theirs.total()) if common else 0.0


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


def rows_of(
    names: Sequence[str], cases: Sequence[Case], outcomes: Sequence[dict[str, Outcome]]
) -> list[dict[str, Any]]:
    """A row for every policy."""
    return [asdict(summarise(name, cases, outcomes)) for name in names]


Report = Callable[[str], None]
