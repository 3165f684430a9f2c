"""Weights of 8 bits on a GPU, through torchao: those of linear layers, with a scale for each output.

Activations stay as they are. The layer that gives logits stays as it is, too: it decides between tokens that are close.
Not covered: weights of compiled code on a processor (`cache.native`), and models whose weights were rounded by others.
"""

from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import nn

from cache.errors import ModelError

Weights = Literal["model", "int8", "fp8"]
"""Weights as the model has them, or rounded to 8 bits: whole numbers, or floating point (e4m3)."""
LEAST_FOR_FP8 = (8, 9)
"""Compute capability from which GPUs know such numbers."""


def check_rounding(weights: Weights, device: torch.device) -> None:
    """Raises ModelError if weights of that kind cannot be had on a device, before a model is loaded for it."""
    if weights == "model" or (weights == "int8" and device.type == "cpu"):
        return
    if device.type != "cuda":
        raise ModelError(f'weights = "{weights}" needs a GPU, not {device}: set device = "cuda" or weights = "int8"')
    if find_spec("torchao") is None:
        raise ModelError(f'weights = "{weights}" needs torchao on a GPU: pip install torchao, or set weights = "model"')
    major, minor = torch.cuda.get_device_capability(device)
    if weights == "fp8" and (major, minor) < LEAST_FOR_FP8:
        raise ModelError(
            'weights = "fp8" needs a GPU of compute capability 8.9 or higher, '
            f'{device} has {major}.{minor}: set weights = "int8"'
        )


def round_weights(hf: Any, weights: Weights) -> str:
    """Round the weights of transformers' model where they are, one layer after another; gives what is to be part of its
    fingerprint. Raises ModelError for a model without such layers.
    """
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, PerRow, quantize_

    head = hf.get_output_embeddings()
    if not any(isinstance(module, nn.Linear) and module is not head for module in hf.modules()):
        raise ModelError(f'models of type {hf.config.model_type!r} have no weights to round: set weights = "model"')
    kind = Int8WeightOnlyConfig if weights == "int8" else Float8WeightOnlyConfig
    config = kind(granularity=PerRow(), set_inductor_config=False)  # nothing is compiled by torch here
    quantize_(hf, config, filter_fn=lambda module, name: isinstance(module, nn.Linear) and module is not head)
    torch.cuda.empty_cache()  # of what the weights took before; nothing happens where there is no GPU
    return f"torchao {weights} weights, one scale for each output"
