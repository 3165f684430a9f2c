"""PyTorch's attention for sequences of different lengths, by a plain function of the same contract; and which kernels
are taken on a GPU.
"""

import inspect
import logging
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recording import Recorder, answer, running
from test_cache_engine import plan_of
from tiny import build, make_segment, oracle_logits, stock
from torch import Tensor
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from cache.attention.forward_pass import Pass, PassGivenUp, matmul
from cache.attention.items import Chunk
from cache.gpu import graphs, varlen_pass
from cache.gpu.graphs import best_kind, kinds_to_compare
from cache.gpu.varlen_pass import VarlenPass
from cache.memory.arena import Extent

pytest.importorskip("triton", reason="needs pip install -e '.[kernels]'")

from test_cache_triton import CHUNKS, ROTATION, SCALE, arena_of, passes

from cache.gpu.tiled_pass import TiledPass

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """`varlen_attn` in plain operations: keys of an entry from where it says on, as many as it says; the causal mask
    ends at the last key; the log-sum-exp by heads, and plus infinity where there are no keys.
    """
    inspect.signature(varlen_attn).bind(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, **options)
    used, causal = options["seqused_k"], options["window_size"] == (-1, 0)
    assert options["return_aux"] == AuxRequest(lse=True)
    assert options["num_splits"] == 1
    assert {x.dtype for x in (cu_seq_q, cu_seq_k, used)} == {torch.int32}
    assert len(cu_seq_q) == len(cu_seq_k) == len(used) + 1
    assert query.is_contiguous()
    group = query.shape[1] // key.shape[1]
    assert options["enable_gqa"] is (group > 1)
    out, lse = torch.zeros_like(query), torch.full((query.shape[1], len(query)), torch.inf)
    for (first, last), start, length in zip(
        pairwise(cu_seq_q.tolist()), cu_seq_k.tolist(), used.tolist(), strict=False
    ):
        assert last - first <= max_q
        assert length <= max_k
        if not length:
            continue
        k, v = (x[start : start + length].repeat_interleave(group, 1).float() for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[first:last].float(), k) * options["scale"]
        if causal:
            hidden = torch.ones(last - first, length, dtype=torch.bool).triu(1 + length - (last - first))
            scores = scores.masked_fill(hidden, -torch.inf)
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).to(query.dtype)
        lse[:, first:last] = scores.logsumexp(-1)
    return out, lse


@settings(max_examples=30, deadline=None)
@given(chunks=passes(), shape=st.sampled_from([(1, 4), (2, 3), (4, 1)]), most_keys=st.sampled_from([16, 40, 512]))
def test_items_of_all_kinds_equal_the_plain_kernel(chunks, shape, most_keys):
    kv_heads, group = shape
    random = torch.Generator().manual_seed(0)
    rows = sum(len(chunk.tokens) for chunk in chunks)
    q = torch.randn(1, kv_heads * group, rows, 10, generator=random)
    k, v = torch.randn(2, 1, kv_heads, rows, 10, generator=random)
    ours, theirs = (arena_of(kv_heads, 10, torch.float32) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen_pass, "varlen_attn", reference)
        mine = VarlenPass(chunks, ours, group, rotation=ROTATION, most_keys=most_keys)
        out = mine.attend(0, q, k, v, SCALE)
    plain = Pass(chunks, theirs, matmul, CPU, rotation=ROTATION)
    torch.testing.assert_close(out, plain.attend(0, q, k, v, SCALE), atol=1e-5, rtol=1e-5)
    assert torch.equal(mine.positions, plain.positions)
    assert torch.equal(ours.positions, theirs.positions)
    assert torch.equal(ours.keys[0], theirs.keys[0])


def test_rows_without_keys_weigh_nothing():
    out, lse = torch.tensor([[[5.0]], [[1.0]]]), torch.tensor([[-torch.inf], [2.0]])
    assert varlen_pass.merged(out, lse, torch.tensor([[0, 1, 2]])).item() == 1


SYSTEM = make_segment("system", "Answer so. ")
PLAN = plan_of(SYSTEM, make_segment("b", "Not gift cards.", SYSTEM), make_segment("a", "A month.", SYSTEM), "Gift?")


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_answers_equal_one_forward_with_the_block_mask(family, monkeypatch):
    monkeypatch.setattr(varlen_pass, "varlen_attn", reference)
    plan = PLAN if family != "gpt2" else plan_of(SYSTEM, "Gift?")
    model = build(family, kind=VarlenPass)
    recorder = Recorder(model)
    with running(model) as engine:
        answer(engine, plan, 2)
    assert (recorder.logits[-2] - oracle_logits(stock(family), plan)).abs().max() < 1e-4


def test_what_it_does_not_cover_it_refuses():
    arena = arena_of(1, 10, torch.float32)
    with pytest.raises(NotImplementedError):
        VarlenPass.of(CHUNKS, arena, 2, slopes=torch.ones(2))
    own = [Chunk([0], [0], 0, [Extent(0, 1)], [])]
    for given_up, options, error in (
        (False, {"window": 5}, NotImplementedError),
        (False, {"softcap": 0.5}, NotImplementedError),
        (True, {}, PassGivenUp),
    ):
        one = VarlenPass.of(own, arena, 2, give_up=lambda given_up=given_up: given_up)  # type: ignore[misc]
        with pytest.raises(error):
            one.attend(0, torch.zeros(1, 2, 1, 10), *torch.zeros(2, 1, 1, 1, 10), SCALE, **options)


def message_of(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = caplog.records
    caplog.clear()
    return record.getMessage()


def failing(*kinds: object) -> Callable[[object], None]:
    def attempt(kind: object) -> None:
        tried.append(kind)
        if kind in kinds:
            raise RuntimeError("no kernel image\nis available")

    tried: list[object] = []
    attempt.tried = tried  # type: ignore[attr-defined]
    return attempt


def test_kernels_that_do_not_run_are_found_out_at_the_start(monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    assert best_kind(CPU, failing()) is None
    attempt = failing()
    assert best_kind(CUDA, attempt) is TiledPass
    assert attempt.tried == [TiledPass]  # type: ignore[attr-defined]
    assert not caplog.records
    assert best_kind(CUDA, failing(TiledPass)) is VarlenPass
    assert message_of(caplog) == (
        "attention on cuda:0 uses varlen_attn, because better kernels are not available (Triton: no kernel image)"
    )
    monkeypatch.setattr(graphs, "find_spec", lambda name: None if name == "triton" else find_spec(name))
    assert best_kind(CUDA, failing(VarlenPass)) is None
    assert kinds_to_compare(CUDA) == {"varlen_attn": VarlenPass}
    assert not kinds_to_compare(CPU)
    assert message_of(caplog) == (
        "attention on cuda:0 uses slower kernels, because better kernels are not available "
        "(Triton: not installed, pip install triton; varlen_attn: no kernel image)"
    )


@pytest.mark.parametrize("kind", [TiledPass, VarlenPass])
def test_a_small_pass_runs_through_a_model(kind, monkeypatch):
    monkeypatch.setattr(varlen_pass, "varlen_attn", reference)
    model = build("multi-query", layers=1)
    model._try(kind)
    monkeypatch.setattr(kind, "attend", lambda self, layer, q, k, v, *_: torch.full_like(q, torch.nan).transpose(1, 2))
    with pytest.raises(ArithmeticError):
        model._try(kind)


def test_models_that_varlen_does_not_cover_are_found_out():
    for family in ("bloom", "gemma2"):
        with pytest.raises(NotImplementedError):
            build(family)._try(VarlenPass)
