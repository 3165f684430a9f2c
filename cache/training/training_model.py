"""A transformers model that computes training examples, with gradients.

It attends to the same rows at the same positions as the engine does for requests, but in one pass, without an arena.
"""

from typing import Any

from torch import Tensor
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from cache.errors import ModelError
from cache.model.families import why_not_placeable
from cache.model.language_model import find_rotation
from cache.training.example_attention import ExampleAttention, example_attention
from cache.training.examples import TrainingExample, pack

EXAMPLE_ATTENTION = "warmdesk-example"


class TrainingModel:
    """hf: transformers' own rotary model on its device; its attention is replaced. Raises ModelError for others."""

    def __init__(self, hf: Any) -> None:
        self._rotation = find_rotation(hf)
        if reason := why_not_placeable(hf.config):
            raise ModelError(f"passages are not read one by one by this model, there is nothing to train: {reason}")
        ALL_ATTENTION_FUNCTIONS.register(EXAMPLE_ATTENTION, example_attention)
        hf.set_attn_implementation(EXAMPLE_ATTENTION)
        self.hf = hf.eval()

    def logits(self, example: TrainingExample, *, modular: bool) -> Tensor:
        """Logits that predict the answers' tokens, query after query: float32 `[A, vocabulary]` on the model's device.

        modular: modules do not see each other; else full attention.
        """
        packed, device = pack(example, modular=modular), self.hf.device
        hidden = self.hf.get_decoder()(
            input_ids=packed.tokens.to(device),
            position_ids=packed.positions.to(device),
            use_cache=False,
            example=ExampleAttention(packed, self._rotation),
        ).last_hidden_state
        logits: Tensor = self.hf.get_output_embeddings()(hidden[0, packed.rows.to(device)])
        return logits.float()
