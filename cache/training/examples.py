"""Lessons for modular attention: passages read one by one, and several questions behind them, in one forward pass.

A lesson is what a request is at run time: a conditioning prefix, modules that see the prefix, a left context of their
own and themselves, placed one after another (with gaps, if wanted), and branches, each a question with its answer, that
see the prefix and the modules and neither left contexts nor each other. So passages are paid once for many questions.
The same lesson can be read with full attention, where modules see those before them.

Rotary models only: keys of modules are turned from where they were computed to where they stand (see `attention`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cache.attention.forward_pass import Rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Token ids of a question up to where the answer begins, and of the answer with the token that ends it, or of its
    beginning. refused: whether that is a refusal.
    """

    question: tuple[int, ...]
    answer: tuple[int, ...]
    refused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """modules: token ids in the order in which they stand. left_contexts: what each is read behind, which no branch
    sees. gaps: position ids left out before each module.
    """

    prefix: tuple[int, ...]
    modules: tuple[tuple[int, ...], ...]
    left_contexts: tuple[tuple[int, ...], ...]
    gaps: tuple[int, ...]
    branches: tuple[Branch, ...]


@dataclass(frozen=True, slots=True)
class PackedRun:
    """Rows of a module or a left context, read behind the prefix and the rows `left_context`. It stands `offset` ids
    behind where its keys were computed (negative: before); None for a left context, which no branch sees.
    """

    left_context: slice
    rows: slice
    offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A lesson as one row of tokens.

    tokens, positions: int64 `[1, T]`. prefix: rows of the prefix.
    stretches: in the order of their rows; none when the lesson is read with full attention. A left context that several
    modules share is one. context: rows before the branches.
    branches: first row of each branch, and the row behind the last. rows: those whose logits predict an answer token,
    int64 `[A]`.
    """

    tokens: Tensor
    positions: Tensor
    prefix: int
    runs: tuple[PackedRun, ...]
    context: int
    branches: tuple[int, ...]
    rows: Tensor


def pack(lesson: Lesson, *, modular: bool) -> Packed:
    """Lay a lesson out. modular: modules do not see each other; else full attention at the same position ids."""
    tokens, positions = list(lesson.prefix), list(range(len(lesson.prefix)))
    runs: list[PackedRun] = []
    at = base = len(lesson.prefix)
    nothing = slice(base, base)
    left_contexts: dict[tuple[int, ...], slice] = {(): nothing}
    for module, left_context, gap in zip(lesson.modules, lesson.left_contexts, lesson.gaps, strict=True):
        at += gap
        if modular and left_context not in left_contexts:
            left_contexts[left_context] = slice(len(tokens), len(tokens) + len(left_context))
            runs.append(PackedRun(nothing, left_contexts[left_context], None))
            tokens += left_context
            positions += range(base, base + len(left_context))
        behind = len(left_context) if modular else at - base
        if modular:
            runs.append(
                PackedRun(
                    left_contexts[left_context], slice(len(tokens), len(tokens) + len(module)), at - base - behind
                )
            )
        tokens += module
        positions += range(base + behind, base + behind + len(module))
        at += len(module)
    context = len(tokens)
    branches = [context]
    rows: list[int] = []
    for branch in lesson.branches:
        read = (*branch.question, *branch.answer[:-1])
        first_answer = len(tokens) + len(branch.question) - 1
        rows += range(first_answer, first_answer + len(branch.answer))
        tokens += read
        positions += range(at, at + len(read))
        branches.append(len(tokens))
    return Packed(
        tokens=torch.tensor([tokens]),
        positions=torch.tensor([positions]),
        prefix=base,
        runs=tuple(runs),
        context=context,
        branches=tuple(branches),
        rows=torch.tensor(rows),
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """What every layer of a forward pass over a lesson needs. Masks and angles are made in the first one."""

    packed: Packed
    rotation: Rotation
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False)
    _angles: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q `[1, H*G, T, D]`, k and v `[1, H, T, D]`, after rotation; returns `[1, T, H*G, D]`. Differentiable."""
        packed = self.packed
        prefix = packed.prefix if packed.runs else packed.context
        outs = [self._attend_causal(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix], scale)]
        placed_keys, placed_values = [k[:, :, :prefix]], [v[:, :, :prefix]]
        for run in packed.runs:
            keys = torch.cat((k[:, :, :prefix], k[:, :, run.left_context], k[:, :, run.rows]), 2)
            values = torch.cat((v[:, :, :prefix], v[:, :, run.left_context], v[:, :, run.rows]), 2)
            outs.append(self._attend_causal(q[:, :, run.rows], keys, values, scale))
            if run.offset is not None:
                placed_keys.append(self._moved(k[:, :, run.rows], run.offset))
                placed_values.append(v[:, :, run.rows])
        seen, said = torch.cat(placed_keys, 2), torch.cat(placed_values, 2)
        for first, last in pairwise(packed.branches):
            rows = slice(first, last)
            keys = torch.cat((seen, k[:, :, rows]), 2)
            values = torch.cat((said, v[:, :, rows]), 2)
            outs.append(self._attend_causal(q[:, :, rows], keys, values, scale))
        return torch.cat(outs, 2).transpose(1, 2)

    def _moved(self, k: Tensor, offset: int) -> Tensor:
        """Keys `[1, H, L, D]` turned forward by `offset` position ids."""
        length = k.shape[2]
        if (length, offset) not in self._angles:
            cos, sin = self.rotation.angles(torch.full((length,), -offset))
            self._angles[length, offset] = cos.to(k.device), sin.to(k.device)
        return self.rotation.back(k.unsqueeze(3), *self._angles[length, offset]).squeeze(3)

    def _attend_causal(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """The last n of L tokens: q `[1, H*G, n, D]` over k, v `[1, H, L, D]`, each up to its own.

        Plain products: with masks, PyTorch's fused kernels are slower on a CPU, above all backwards.
        """
        heads, rows, length = k.shape[1], q.shape[2], k.shape[2]
        if (rows, length) not in self._masks:
            future = torch.full((rows, length), -torch.inf, dtype=q.dtype, device=q.device)
            self._masks[rows, length] = future.triu(length - rows + 1)
        scores = torch.bmm((q * scale).reshape(heads, -1, q.shape[3]), k[0].transpose(1, 2))
        weights = (scores.view(heads, -1, rows, length) + self._masks[rows, length]).softmax(-1).view(heads, -1, length)
        return torch.bmm(weights, v[0]).view_as(q)


def lesson_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention; `reading` is given to the model's forward."""
    reading: Reading = kwargs["reading"]
    scale = kwargs.get("scaling")
    return reading.attend(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale), None
