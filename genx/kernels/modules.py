"""What all counterparts share: they do not move, and they look at what they are given."""

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor, nn

from genx.errors import GenxError


class KernelModule(nn.Module):
    """A module whose tensors' addresses have been handed on: they cannot move or change dtype any more."""

    def _apply(self, fn: object, recurse: bool = True) -> NoReturn:
        del fn, recurse
        raise GenxError(
            "this model has kernels attached, so its dtype and device are settled; load it again with others"
        )


class KernelBlock(KernelModule):
    """A block with the submodules of the one it stands for, under the same names."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, child in block.named_children():
            self.add_module(name, child)


def check_input(tensor: Tensor, shape: Sequence[int]) -> None:
    """Refuse what a native operation would misread.

    Raises:
        ValueError: another shape, dtype, device or layout.
    """
    if tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous() or not tensor.is_cpu:
        raise ValueError(
            f"the input is {tensor.dtype} {list(tensor.shape)} on {tensor.device}; "
            f"allowed: torch.float32 {list(shape)} on the CPU, contiguous"
        )
