"""Norms as native operations: by themselves, and as part of the projections that follow them.

Shapes: see the legend in genx/core/base_model.py.
"""

from ctypes import byref

import torch
from torch import Tensor, nn

from genx.core.norm import RMSNorm, UnitOffsetRMSNorm, WideRMSNorm
from genx.kernels.library import NORMS, Library, Norm
from genx.kernels.modules import KernelModule, check_input

KnownNorm = RMSNorm | WideRMSNorm | UnitOffsetRMSNorm | nn.LayerNorm


class KernelNorm(KernelModule):
    """Counterpart of the core's norms and of nn.LayerNorm, with weights in float32."""

    def __init__(self, block: KnownNorm, native: Library) -> None:
        super().__init__()
        self.weight = nn.Parameter(block.weight.detach().float().contiguous(), requires_grad=False)
        self.bias: Tensor | None = None
        kind = "root mean square"
        if isinstance(block, nn.LayerNorm):
            kind = "layer norm"
            if block.bias is not None:
                self.bias = nn.Parameter(block.bias.detach().float().contiguous(), requires_grad=False)
        self._factors = 1.0 + self.weight if isinstance(block, UnitOffsetRMSNorm) else self.weight
        bias = None if self.bias is None else self.bias.data_ptr()
        self.columns = self.weight.numel()
        self.structure = Norm(self._factors.data_ptr(), bias, NORMS[kind], block.eps)
        self._argument = byref(self.structure)
        self._normalize = native.normalize

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., C] normalised."""
        hidden = hidden.contiguous()
        check_input(hidden, (*hidden.shape[:-1], self.columns))
        normalized = torch.empty_like(hidden)
        rows = hidden.numel() // self.columns
        self._normalize(self._argument, hidden.data_ptr(), normalized.data_ptr(), rows, self.columns)
        return normalized


def kernel_norm(block: nn.Module, native: Library) -> KernelNorm | None:
    """The counterpart of a norm over the last dimension; None if the block is something else."""
    if isinstance(block, RMSNorm | WideRMSNorm | UnitOffsetRMSNorm):
        return KernelNorm(block, native)
    if isinstance(block, nn.LayerNorm) and len(block.normalized_shape) == 1 and block.elementwise_affine:
        return KernelNorm(block, native)
    return None
