"""A transformers model that reads lessons and can learn from them.

The engine answers requests; this reads the same masks and placements in one pass, without arena or cache.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cache.errors import ModelError
from cache.model.families import why_not_placeable
from cache.model.language_model import find_rotation
from cache.training.examples import Lesson, Reading, lesson_attention, pack

ATTENTION = "warmdesk-lesson"


class LessonModel:
    """hf: transformers' own rotary model on its device; its attention is replaced. Raises ModelError for others."""

    def __init__(self, hf: Any) -> None:
        self._rotation = find_rotation(hf)
        if reason := why_not_placeable(hf.config):
            raise ModelError(f"passages are not read one by one by this model, there is nothing to teach: {reason}")
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, lesson_attention)
        hf.set_attn_implementation(ATTENTION)
        self.hf = hf.eval()

    def logits(self, lesson: Lesson, *, modular: bool) -> Tensor:
        """Float32 `[A, vocabulary]` with gradients, on the model's device: rows that predict the tokens of the answers,
        branch after branch.
        """
        packed, device = pack(lesson, modular=modular), self.hf.device
        hidden = self.hf.get_decoder()(
            input_ids=packed.tokens.to(device),
            position_ids=packed.positions.to(device),
            use_cache=False,
            reading=Reading(packed, self._rotation),
        ).last_hidden_state
        logits: Tensor = self.hf.get_output_embeddings()(hidden[0, packed.rows.to(device)])
        return logits.float()
