"""Decoding with weights of 8 bits beside those of the model: what they save in memory, and what they cost or gain."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from cache.memory.keys import digest
from cache.model.language_model import LanguageModel
from cache.model.loading import Weights, check_rounding, round_weights
from evals.gpu.decoding import alone_rates, alone_row
from evals.gpu.memory import in_use
from evals.gpu.plan import RowPlan
from evals.gpu.row import GpuRow
from evals.gpu.session import OpenedModel, Session
from evals.gpu.shapes import twin
from evals.random_prompts import no_stop_tokens

AS_THEY_ARE = "weights as the model has them"


def measure_weights(session: Session, plan: RowPlan) -> Iterator[GpuRow]:
    """Each kind in turn; the floor is that of the bytes which it has to read."""
    assert plan.shape is not None
    subject = session.opened(plan.shape)
    plain = alone_rates(session, subject)
    for weights in get_args(Weights):
        if weights == "model":
            continue
        if session.is_gpu:
            check_rounding(weights, session.device)
        before = in_use(session)
        rounded = with_rounded_weights(subject, weights)
        taken = (in_use(session) - before) / 2**30
        row = alone_row(session, plan, rounded, alone_rates(session, rounded))
        whole = subject.cost.layer_weights * subject.cost.weight_bytes / 2**30
        yield replace(
            row,
            what=f"{row.what}: {weights}",
            baseline=plain.median,
            baseline_name=AS_THEY_ARE,
            note=f"linear layers take {taken:.2f} GiB instead of {whole:.2f}" if session.is_gpu else "",
        )


def with_rounded_weights(subject: OpenedModel, weights: Weights) -> OpenedModel:
    """The same model with its layers rounded; those of the other stay beside it."""
    hf, info, cost = twin(subject.peer.hf), subject.model.info, subject.cost
    fingerprint = digest(info.fingerprint, round_weights(hf, weights))
    model = LanguageModel(hf, subject.model.tokenizer, name=info.name, fingerprint=fingerprint)
    model.info = no_stop_tokens(model.info)
    read = (cost.layer_weights + cost.head_weights * cost.weight_bytes) / (cost.layer_weights + cost.head_weights)
    return replace(subject, model=model, cost=replace(cost, weight_bytes=read))
