"""Kernels against each other and against plain attention, and partial results merged."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import KERNELS
from torch import Tensor

from cache.attention.forward_pass import HIDDEN, Kernel, default_kernel, flash_cpu, matmul

SCALE = 0.37
each_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def inputs(
    rows: int, keys: int, heads: int, group: int, size: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    q = torch.randn(heads, rows, group, size, generator=random).to(dtype)
    arena = torch.randn(2, keys + 7, heads, size, generator=random).to(dtype)
    return q, arena[0, 3 : 3 + keys], arena[1, 3 : 3 + keys]


def run(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """A kernel on queries `[H, n, G, D]` and keys and values `[L, H, D]`, folded as kernels want them."""
    heads, rows, group, size = q.shape
    folded = q.reshape(1, heads, rows * group, size)
    out, lse = kernel(folded, k.transpose(0, 1)[None], v.transpose(0, 1)[None], group, causal, scale, bias)
    return out.reshape(q.shape), lse.reshape(heads, rows, group)


def plain(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """One head and one row at a time, in float64. A row that sees nothing gets zeros and -inf."""
    heads, rows, group, _ = q.shape
    out = torch.zeros(q.shape, dtype=torch.float64)
    lse = torch.zeros(heads, rows, group, dtype=torch.float64)
    added = torch.zeros(heads, rows, len(k)) if bias is None else bias[0].expand(heads, rows, -1)
    for h in range(heads):
        for n in range(rows):
            seen = (added[h, n] > HIDDEN) & (torch.arange(len(k)) <= (n if causal else len(k)))
            for g in range(group):
                scores = k[seen, h].double() @ q[h, n, g].double() * scale + added[h, n, seen].double()
                lse[h, n, g] = scores.logsumexp(0)
                out[h, n, g] = scores.softmax(0) @ v[seen, h].double()
    return out, lse


shapes = st.tuples(*map(st.integers, (1, 1, 1, 1), (9, 40, 3, 4)), st.sampled_from([4, 8, 16, 20, 64]))


@settings(max_examples=30, deadline=None)
@given(shape=shapes, causal=st.booleans(), seed=st.integers(0, 99))
def test_flash_equals_matmul_equals_plain_attention(shape, causal, seed):
    rows, keys, heads, group, size = shape
    q, k, v = inputs(rows, rows if causal else keys, heads, group, size, seed)
    expected, expected_lse = plain(q, k, v, causal, SCALE)
    for kernel in (flash_cpu, matmul):
        out, lse = run(kernel, q, k, v, causal, SCALE)
        assert out.shape == q.shape
        assert lse.shape == q.shape[:3]
        assert lse.dtype == torch.float32
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse.double(), expected_lse, atol=1e-5, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    shape=shapes,
    causal=st.booleans(),
    differs=st.tuples(st.booleans(), st.booleans()),
    hidden=st.sampled_from([0.0, 0.3, 0.9]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_a_bias_is_added_and_rows_that_see_nothing_weigh_nothing(shape, causal, differs, hidden, dtype):
    """By head, by query position, by both or by neither; some keys of it hidden, at times all keys of a row."""
    rows, keys, heads, group, size = shape
    keys = rows if causal else keys
    q, k, v = inputs(rows, keys, heads, group, size, dtype=dtype)
    by_head, by_row = differs
    random = torch.Generator().manual_seed(keys)
    shape_of_bias = (1, heads if by_head else 1, rows if by_row else 1, keys)
    bias = torch.randn(shape_of_bias, generator=random) * 2
    bias[torch.rand(shape_of_bias, generator=random) < hidden] = HIDDEN
    expected, expected_lse = plain(q, k, v, causal, SCALE, bias)
    tolerance = 1e-5 if dtype == torch.float32 else 4e-2
    for kernel in (flash_cpu, matmul):
        out, lse = run(kernel, q, k, v, causal, SCALE, bias)
        sees = expected_lse.isfinite()
        torch.testing.assert_close(out[sees].double(), expected[sees], atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(lse[sees].double(), expected_lse[sees], atol=tolerance, rtol=tolerance)
        assert out.isfinite().all()
        weight = torch.stack([lse, torch.full_like(lse, -1e6)]).softmax(0)[0]
        assert not weight[~sees].any(), "merged with the least of parts it counts for nothing"


def test_a_soft_cap_bounds_scores_before_the_bias():
    q, k, v = inputs(4, 9, 2, 3, 8)
    bias = torch.arange(9.0).view(1, 1, 1, 9)
    out, lse = matmul(
        q.reshape(1, 2, 12, 8), k.transpose(0, 1)[None], v.transpose(0, 1)[None], 3, False, SCALE, bias, softcap=0.5
    )
    scores = torch.einsum("hngd,lhd->hngl", q, k) * SCALE
    scores = 0.5 * torch.tanh(scores / 0.5) + torch.arange(9.0)
    torch.testing.assert_close(lse.view(2, 4, 3), scores.logsumexp(-1), atol=1e-5, rtol=1e-5)
    expected = torch.einsum("hngl,lhd->hngd", scores.softmax(-1), v)
    torch.testing.assert_close(out.view(q.shape), expected, atol=1e-5, rtol=1e-5)


@each_kernel
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("group", [1, 3, 4])
def test_bfloat16_is_as_good_as_bfloat16_can_be(kernel, group, causal):
    q, k, v = inputs(33, 33, 3, group, 64, dtype=torch.bfloat16)
    expected, expected_lse = plain(q, k, v, causal, 0.125)
    out, lse = run(kernel, q, k, v, causal, 0.125)
    assert out.dtype == torch.bfloat16
    assert lse.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse.double(), expected_lse, atol=2e-2, rtol=2e-2)


@each_kernel
def test_long_runs_of_keys_and_rows(kernel):
    """Beyond one tile of the flash kernel."""
    q, k, v = inputs(3, 1100, 2, 3, 16)
    torch.testing.assert_close(
        run(kernel, q, k, v, False, SCALE)[0], run(matmul, q, k, v, False, SCALE)[0], atol=1e-5, rtol=1e-5
    )
    q, k, v = inputs(700, 700, 1, 2, 16)
    torch.testing.assert_close(
        run(kernel, q, k, v, True, SCALE)[1], run(matmul, q, k, v, True, SCALE)[1], atol=1e-5, rtol=1e-5
    )


@each_kernel
@settings(max_examples=30, deadline=None)
@given(shape=shapes, data=st.data())
def test_partial_results_merge_to_the_whole(kernel, shape, data):
    rows, keys, heads, group, size = shape
    q, k, v = inputs(rows, keys, heads, group, size)
    cuts = sorted(data.draw(st.sets(st.integers(1, max(keys - 1, 1)), max_size=3)) - {keys})
    parts = [run(kernel, q, k[a:b], v[a:b], False, SCALE) for a, b in zip([0, *cuts], [*cuts, keys], strict=True)]
    weights = torch.stack([lse for _, lse in parts]).softmax(0)
    merged = (torch.stack([out for out, _ in parts]) * weights.unsqueeze(-1)).sum(0)
    whole, whole_lse = run(kernel, q, k, v, False, SCALE)
    torch.testing.assert_close(merged, whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.stack([lse for _, lse in parts]).logsumexp(0), whole_lse, atol=1e-5, rtol=1e-5)


@each_kernel
def test_a_causal_square_and_the_past_merge_to_a_causal_whole(kernel):
    q, k, v = inputs(12, 12, 2, 3, 16)
    whole, _ = run(kernel, q, k, v, True, SCALE)
    past, past_lse = run(kernel, q[:, 5:], k[:5], v[:5], False, SCALE)
    own, own_lse = run(kernel, q[:, 5:], k[5:], v[5:], True, SCALE)
    weights = torch.stack([past_lse, own_lse]).softmax(0).unsqueeze(-1)
    torch.testing.assert_close((torch.stack([past, own]) * weights).sum(0), whole[:, 5:], atol=1e-5, rtol=1e-5)


@each_kernel
def test_the_future_and_the_rest_of_the_arena_are_not_read(kernel):
    arena = torch.full((2, 20, 2, 8), float("nan"))
    q, k, v = inputs(6, 6, 2, 2, 8)
    arena[0, 4:10], arena[1, 4:10] = k, v
    out, lse = run(kernel, q, arena[0, 4:10], arena[1, 4:10], True, SCALE)
    assert not out.isnan().any()
    assert not lse.isnan().any()
    changed_k, changed_v = k.clone(), v.clone()
    changed_k[5], changed_v[5] = 9.0, 9.0
    assert torch.equal(run(kernel, q, changed_k, changed_v, True, SCALE)[0][:, :5], out[:, :5])


def test_the_processor_gets_the_flash_kernel_and_others_the_reference():
    assert default_kernel(torch.device("cpu")) is flash_cpu
    assert default_kernel(torch.device("cuda")) is matmul
