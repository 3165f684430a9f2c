"""Linear layers with weights prepacked for oneDNN: makes passes of few rows fast in bfloat16 on a CPU."""

import torch
from torch import Tensor, nn


class PackedLinear(nn.Module):
    """A linear layer with a prepacked weight; same results."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), 32)
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        """As nn.Linear."""
        return torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")  # type: ignore[no-any-return]


def prepack(hf: nn.Module) -> None:
    """Replace every linear layer by a packed one, where this build of PyTorch has the operators."""
    mkldnn = torch.ops.mkldnn
    if not (hasattr(mkldnn, "_reorder_linear_weight") and mkldnn._is_mkldnn_bf16_supported()):
        return
    for parent in list(hf.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, name, PackedLinear(child))
