"""The largest passes that an engine may run, on made-up tokens: to see what memory they need, before it serves.

Each row reads several modules and its own past, whose partial results are all there until they are merged. One pass
ends with the choice of tokens for all answers, another one is scored, which runs the plain kernels. Not covered:
answers that are given and read (`Request.teacher_forced`), which want logits for each row.
"""

import torch

from cache.attention.items import Chunk, KVView
from cache.attention.scoring import ScoredChunk
from cache.decoding.choosing import choose_tokens
from cache.decoding.sampling import Sampler, Sampling
from cache.memory.allocator import Extent
from cache.memory.arena import Arena
from cache.model.language_model import Model, ModelInfo

MODULES, MODULE_ROWS = 8, 256
"""Modules that each row reads, and their tokens: system text, passages, and parts of a conversation."""
SCORED_ROWS = 256
"""Rows of a long question."""


def trial_arena(model: Model, rows: int) -> Arena:
    """An arena for passes of so many rows."""
    return Arena(model.info.kv, MODULES * MODULE_ROWS + rows, model.device)


def run_largest_passes(model: Model, arena: Arena, rows: int, answers: int) -> None:
    """Run passes of so many rows, in an arena that `trial_arena` gave. answers: whose tokens are chosen."""
    chunks = trial_chunks(model.info, rows)
    wanted = min(rows, answers)
    logits = model.forward(chunks, arena, range(rows - wanted, rows))
    samplers = [Sampler(Sampling(temperature=1.0, seed=0)) for _ in range(wanted)]  # needs more than the likeliest
    choose_tokens(logits, samplers, [()] * wanted)
    if model.info.places_modules:
        squares = {
            (view.extent, view.offset): torch.zeros(len(model.info.scored_layers), MODULE_ROWS, device=model.device)
            for view in chunks[0].views
        }
        scored = ScoredChunk(0, min(SCORED_ROWS, len(chunks[0].tokens)), squares)
        model.forward(chunks, arena, [], scored=[scored])


def trial_chunks(info: ModelInfo, rows: int) -> list[Chunk]:
    """So many rows behind the same modules, as few sequences as the model has positions for."""
    offset = 1 if info.is_position_independent else 0
    views = [KVView(Extent(number * MODULE_ROWS, MODULE_ROWS), offset) for number in range(MODULES)]
    chunks = []
    for first in range(0, rows, info.max_positions):
        length = min(info.max_positions, rows - first)
        own = Extent(MODULES * MODULE_ROWS + first, length)
        chunks.append(Chunk([0] * length, range(length), 0, [own], views))
    return chunks
