"""Lessons for modular attention: passages read one by one, and several questions behind them, in one forward pass.

A lesson is what a request is at run time: a conditioning prefix, modules that see the prefix and themselves, placed one
after another (with gaps, if wanted), and branches, each a question with its answer, that see prefix and modules and not
each other. So passages are paid once for many questions. The same lesson can be read with full attention, where modules
see those before them.

Rotary models only: keys of modules are turned from where they were computed to where they stand (see `attention`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cache.attention import Rotation


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Token ids of a question up to where the answer begins, and of the answer with the token that ends it."""

    question: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """modules: token ids in the order in which they stand. gaps: position ids left out before each of them.

    is_conditioned: whether modules see the prefix, if they are read one by one; else they are read alone.
    """

    prefix: tuple[int, ...]
    modules: tuple[tuple[int, ...], ...]
    gaps: tuple[int, ...]
    branches: tuple[Branch, ...]
    is_conditioned: bool = True


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows `first` .. `last`-1 of a module; it stands `offset` ids behind where its keys were computed."""

    first: int
    last: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A lesson as one row of tokens.

    tokens, positions: int64 `[1, T]`. prefix: rows of the prefix; conditioning: those of them that modules see.
    stretches: of the modules; none when the lesson is read with full attention. context: rows of prefix and modules.
    branch_mask: bool `[T - context, T]`, what each branch row sees. rows: those whose logits predict an answer token,
    int64 `[A]`; labels: these tokens, `[A]`.
    """

    tokens: Tensor
    positions: Tensor
    prefix: int
    conditioning: int
    stretches: tuple[Stretch, ...]
    context: int
    branch_mask: Tensor
    rows: Tensor
    labels: Tensor


def pack(lesson: Lesson, *, modular: bool) -> Packed:
    """Lay a lesson out. modular: modules do not see each other; else full attention at the same position ids."""
    tokens, positions = list(lesson.prefix), list(range(len(lesson.prefix)))
    stretches: list[Stretch] = []
    at = base = len(lesson.prefix)
    for module, gap in zip(lesson.modules, lesson.gaps, strict=True):
        at += gap
        stretches.append(Stretch(len(tokens), len(tokens) + len(module), at - base))
        start = base if modular else at
        tokens += module
        positions += range(start, start + len(module))
        at += len(module)
    context = len(tokens)
    branch_of_row: list[int] = []
    rows: list[int] = []
    labels: list[int] = []
    for number, branch in enumerate(lesson.branches):
        read = (*branch.question, *branch.answer[:-1])
        first_answer = len(tokens) + len(branch.question) - 1
        rows += range(first_answer, first_answer + len(branch.answer))
        labels += branch.answer
        tokens += read
        positions += range(at, at + len(read))
        branch_of_row += [number] * len(read)
    owner, row = torch.tensor(branch_of_row), torch.arange(len(branch_of_row))
    own = (owner[:, None] == owner) & (row[:, None] >= row)
    return Packed(
        tokens=torch.tensor([tokens]),
        positions=torch.tensor([positions]),
        prefix=base,
        conditioning=base if lesson.is_conditioned else 0,
        stretches=tuple(stretches) if modular else (),
        context=context,
        branch_mask=torch.cat((torch.ones(len(row), context, dtype=torch.bool), own), 1),
        rows=torch.tensor(rows),
        labels=torch.tensor(labels),
    )


@dataclass(frozen=True, slots=True)
class Reading:
    """What every layer of a forward pass over a lesson needs."""

    packed: Packed
    rotation: Rotation

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """q `[1, H*G, T, D]`, k and v `[1, H, T, D]`, after rotation; returns `[1, T, H*G, D]`. Differentiable."""
        packed = self.packed
        if not packed.stretches:
            seen = packed.context
            outs = [attend_causal(q[:, :, :seen], k[:, :, :seen], v[:, :, :seen], 0, scale)]
            return self._with_branches(outs, q, k, v, scale)
        prefix = packed.prefix
        outs = [attend_causal(q[:, :, :prefix], k[:, :, :prefix], v[:, :, :prefix], 0, scale)]
        placed = [k[:, :, :prefix]]
        for stretch in packed.stretches:
            rows = slice(stretch.first, stretch.last)
            keys = torch.cat((k[:, :, : packed.conditioning], k[:, :, rows]), 2)
            values = torch.cat((v[:, :, : packed.conditioning], v[:, :, rows]), 2)
            outs.append(attend_causal(q[:, :, rows], keys, values, packed.conditioning, scale))
            placed.append(self._moved(k[:, :, rows], stretch.offset))
        placed.append(k[:, :, packed.context :])
        return self._with_branches(outs, q, torch.cat(placed, 2), v, scale)

    def _with_branches(self, outs: list[Tensor], q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        outs.append(attend(q[:, :, self.packed.context :], k, v, self.packed.branch_mask, scale))
        return torch.cat(outs, 2).transpose(1, 2)

    def _moved(self, k: Tensor, offset: int) -> Tensor:
        """Keys `[1, H, L, D]` turned forward by `offset` position ids."""
        cos, sin = self.rotation.angles(torch.full((k.shape[2],), -offset))
        return self.rotation.back(k.unsqueeze(3), cos.to(k.device), sin.to(k.device)).squeeze(3)


def attend_causal(q: Tensor, k: Tensor, v: Tensor, before: int, scale: float) -> Tensor:
    """Query row i sees keys 0 .. before+i."""
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(before)
    return attend(q, k, v, mask, scale)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Attention of q `[1, H*G, n, D]` over k, v `[1, H, L, D]` under a mask `[n, L]`."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.device), scale=scale)


def lesson_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """What transformers calls in place of its own attention; `reading` is given to the model's forward."""
    reading: Reading = kwargs["reading"]
    scale = kwargs.get("scaling")
    return reading.attend(q, k, v, q.shape[-1] ** -0.5 if scale is None else scale), None
