"""A linear layer with its weight transposed. Shapes: see the legend in genx/core/base_model.py."""

import torch
from torch import Tensor, nn


class Conv1D(nn.Module):
    """A linear layer whose weight is stored input-first, [in, out], as these models' files have it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, in] to [B, T, out]."""
        return torch.addmm(self.bias, hidden.flatten(0, -2), self.weight).view(*hidden.shape[:-1], -1)
