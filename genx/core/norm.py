"""Root-mean-square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467).

Shapes: see the legend in genx/core/base_model.py.
"""

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """Scale each token's vector to unit root mean square, then by a learned weight. Normalises in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., C] normalised, in its dtype."""
        return self.weight * normalized(hidden, self.eps).to(hidden.dtype)


class WideRMSNorm(nn.Module):
    """As RMSNorm, but the weight is applied in float32 before the cast."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., C] normalised, in its dtype."""
        return (normalized(hidden, self.eps) * self.weight.float()).to(hidden.dtype)


class UnitOffsetRMSNorm(nn.Module):
    """As RMSNorm, but the scale is 1 + weight, summed and applied in float32 before the cast."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., C] normalised, in its dtype."""
        return (normalized(hidden, self.eps) * (1.0 + self.weight.float())).to(hidden.dtype)


def normalized(hidden: Tensor, eps: float) -> Tensor:
    """`hidden` [..., C] over its root mean square, in float32."""
    wide = hidden.float()
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
