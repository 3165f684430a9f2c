"""Two Triton kernels: attention of all tiles of a pass, and the merging of their partial results.

The only file that imports Triton; import it only when it is needed. Numbers of rows, tiles and keys are not constants
of the kernels, so passes of all sizes run the same compiled code. Kernels have only Triton's annotations, because
Triton reads them.

Shape letters: P partial results, T packed rows, H key/value heads, G query heads per key/value head, D head size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from cache.gpu.tiles import TilePlan

KEY_BLOCK_BYTES, LEAST_KEY_BLOCK, MOST_KEY_BLOCK = 16384, 16, 64
"""Maximum bytes, minimum and maximum number of keys to read at a time: small GPUs have little shared memory."""
MOST_PROGRAMS = 1024
"""Maximum programs of one launch: some more than the largest GPUs run at once. Graphs have memory for many more tiles
than most passes need. Starting a program for each unused one took longer than attention (32,768 for 1,056 useful ones).
"""
PART_BLOCK = 8  # partial results that are merged at a time


@triton.jit
def attend_tile(
    q,
    keys,
    values,
    key_positions,
    num_tiles,
    tiles,
    readers,
    offsets,
    positions,
    turn_cos,
    turn_sin,
    slopes,
    scale,
    window,
    softcap,
    out,
    lse,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    SIZE: tl.constexpr,
    PADDED: tl.constexpr,
    ROTARY: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Compute every n-th tile for one key/value head, where n is the number of programs of a head. q `[T, H*G, D]`;
    keys, values `[slots, H, D]` and their position ids `[slots]`; tables of a `TilePlan`; turn_cos, turn_sin float32
    `[turns, ROTARY]`; slopes float32 `[H]`; writes out float32 `[P, H*G, D]`, lse float32 `[P, H*G]`. None: no turns,
    no slopes, no window, no soft cap.
    """
    head = tl.program_id(1)
    for number in tl.range(tl.program_id(0), tl.load(num_tiles), tl.num_programs(0), disable_licm=True):
        tile = tiles + number * 6
        run, first, num_keys = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
        first_reader, num_readers, partial = tl.load(tile + 3), tl.load(tile + 4), tl.load(tile + 5)

        block_row = tl.arange(0, ROWS)
        reader, query_head = block_row // GROUP, head * GROUP + block_row % GROUP
        is_row = reader < num_readers
        entry = readers + (first_reader + reader) * 3
        row = tl.load(entry, is_row, 0)
        seen = tl.load(entry + 1, is_row, 0) - first
        turn = tl.load(entry + 2, is_row, -1)

        size = tl.arange(0, PADDED)
        is_size = size < SIZE
        query_at = q + (row.to(tl.int64) * (KV_HEADS * GROUP) + query_head)[:, None] * SIZE
        query = tl.load(query_at + size, is_row[:, None] & is_size, 0.0)
        if turn_cos is not None:
            turned = (turn >= 0)[:, None] & (size < ROTARY)
            angle_at = turn[:, None] * ROTARY + size
            cos = tl.load(turn_cos + angle_at, turned, 1.0)
            sin = tl.load(turn_sin + angle_at, turned, 0.0)
            swapped = tl.load(query_at + (size + ROTARY // 2) % ROTARY, turned, 0.0)
            query = (query.to(tl.float32) * cos + swapped.to(tl.float32) * sin).to(query.dtype)
        if slopes is not None or window is not None:  # the rows' ids as the run was encoded
            framed = tl.load(positions + row, is_row, 0) - tl.load(offsets + turn, turn >= 0, 0)

        top = tl.full([ROWS], float("-inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        result = tl.zeros([ROWS, PADDED], tl.float32)
        for at in range(0, num_keys, KEYS):
            key = at + tl.arange(0, KEYS)
            is_key = key < num_keys
            slot = (run + first + key).to(tl.int64)
            key_at = (slot * KV_HEADS + head) * SIZE
            k = tl.load(keys + key_at + size[:, None], is_key & is_size[:, None], 0.0)  # [D, keys]
            scores = tl.dot(query, k, input_precision="ieee") * scale
            if softcap is not None:
                scores = softcap * (2 * tl.sigmoid(2 * (scores / softcap)) - 1)  # tanh
            is_seen = is_key & (key < seen[:, None])
            if slopes is not None or window is not None:
                distance = framed[:, None] - tl.load(key_positions + slot, is_key, 0).to(tl.int32)
                if slopes is not None:
                    scores -= tl.load(slopes + head) * distance.to(tl.float32)
                if window is not None:
                    is_seen = is_seen & (distance < window)
            scores = tl.where(is_seen, scores, float("-inf"))
            higher = tl.maximum(top, tl.max(scores, 1))
            base = tl.where(higher == float("-inf"), 0.0, higher)  # no NaN where nothing is seen
            weights = tl.exp(scores - base[:, None])
            fade = tl.exp(top - base)
            v = tl.load(values + key_at[:, None] + size, is_key[:, None] & is_size, 0.0)  # [keys, D]
            result = result * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            total = total * fade + tl.sum(weights, 1)
            top = higher

        sees = total > 0
        divisor = tl.where(sees, total, 1.0)
        part = (partial + reader).to(tl.int64) * (KV_HEADS * GROUP) + query_head
        tl.store(lse + part, tl.where(sees, top + tl.log(divisor), float("-inf")), is_row)
        tl.store(out + part[:, None] * SIZE + size, result / divisor[:, None], is_row[:, None] & is_size)


@triton.jit
def merge_partials(
    out, lse, first_partial, partials, merged, SIZE: tl.constexpr, PADDED: tl.constexpr, PARTS: tl.constexpr
):
    """Merge the partial results of one packed row and query head. out, lse: from `attend_tile`. Others: tables of a
    `TilePlan`. Writes merged `[T, H*G, D]` in its dtype: zeros if a row sees no key.
    """
    row, head, heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    size = tl.arange(0, PADDED)
    is_size = size < SIZE
    behind = tl.load(first_partial + row + 1)
    top, total = float("-inf"), 0.0
    result = tl.zeros([PADDED], tl.float32)
    for at in range(tl.load(first_partial + row), behind, PARTS):
        index = at + tl.arange(0, PARTS)
        is_part = index < behind
        part = tl.load(partials + index, is_part, 0).to(tl.int64) * heads + head
        sums = tl.load(lse + part, is_part, float("-inf"))
        higher = tl.maximum(top, tl.max(sums, 0))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights, fade = tl.exp(sums - base), tl.exp(top - base)
        rows = tl.load(out + part[:, None] * SIZE + size, is_part[:, None] & is_size, 0.0)
        result = result * fade + tl.sum(rows * weights[:, None], 0)
        total = total * fade + tl.sum(weights, 0)
        top = higher
    result /= tl.where(total > 0, total, 1.0)
    merged_at = merged + (row.to(tl.int64) * heads + head) * SIZE
    tl.store(merged_at + size, result.to(merged.dtype.element_ty), is_size)


def key_block(padded: int, dtype: torch.dtype) -> int:
    """Return the number of keys to read at a time, for a head size padded to a power of two. Float32 gets the fewest:
    it has no tensor cores, and more keys would not fit into registers.
    """
    if dtype == torch.float32:
        return LEAST_KEY_BLOCK
    return max(LEAST_KEY_BLOCK, min(MOST_KEY_BLOCK, KEY_BLOCK_BYTES // (padded * dtype.itemsize)))


def num_warps(dtype: torch.dtype) -> int:
    return 8 if dtype == torch.float32 else 4


def attend_tiles(
    plan: TilePlan,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    key_positions: Tensor,
    scale: float,
    *,
    turn: tuple[Tensor, Tensor] | None = None,
    slopes: Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Compute the attention of a pass in one layer, in two launches. q `[T, H*G, D]`, keys and values `[slots, H, D]`,
    all contiguous; key_positions int64 `[slots]`. turn: cos and sin of the plan's turns, float32 `[turns, D_rotary]`.
    slopes: for ALiBi, float32 `[H]`. Returns `[T, H*G, D]` in the dtype of q.
    """
    rows, heads, size = q.shape
    kv_heads = keys.shape[1]
    padded = max(16, triton.next_power_of_2(size))
    out = torch.empty(plan.num_partials, heads, size, dtype=torch.float32, device=q.device)
    lse = torch.empty(plan.num_partials, heads, dtype=torch.float32, device=q.device)
    cos, sin = turn or (None, None)
    merged = torch.empty_like(q)
    with torch.cuda.device_of(q):  # type: ignore[no-untyped-call]  # Triton launches on the current device
        attend_tile[(min(len(plan.tiles), max(1, MOST_PROGRAMS // kv_heads)), kv_heads)](
            q,
            keys,
            values,
            key_positions,
            plan.num_tiles,
            plan.tiles,
            plan.readers,
            plan.offsets,
            plan.positions,
            cos,
            sin,
            slopes,
            scale,
            window,
            softcap,
            out,
            lse,
            KV_HEADS=kv_heads,
            GROUP=heads // kv_heads,
            SIZE=size,
            PADDED=padded,
            ROTARY=0 if cos is None else cos.shape[1],
            ROWS=plan.block,
            KEYS=key_block(padded, keys.dtype),
            num_stages=2,
            num_warps=num_warps(keys.dtype),
        )
        merge_partials[(rows, heads)](
            out, lse, plan.first_partial, plan.partials, merged, SIZE=size, PADDED=padded, PARTS=PART_BLOCK
        )
    return merged
