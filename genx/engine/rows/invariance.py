"""Matrix products whose result for a row does not depend on how many other rows there are, to the last bit.

A product, and any other sum, picks its order of summation by the number of rows: one row alone is summed otherwise
than one of several. In blocks of always as many rows every row is summed in the same way. The batch fills its steps up
to such a block; here the products within are cut too whose number of rows is the model's own choice, as that of the
tokens that go through one expert.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

BLOCK = 16
"""Rows of a block; short ones are filled up with zeros."""

_PRODUCTS = (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)


# Of a vector that the processor's lanes do not divide, the last elements are computed by another formula.
_ELEMENTWISE = (F.silu, F.gelu, torch.sigmoid, Tensor.sigmoid, torch.tanh, Tensor.tanh)
_LANES = 64


class FixedBlocks(TorchFunctionMode):
    """Within its `with` block products with weights go block by block, and activations by whole lanes."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear:
            return _by_blocks(args[0], lambda block: func(block, *args[1:], **kwargs))
        if func is torch.addmm:
            bias, left, *rest = args
            return _by_blocks(left, lambda block: func(bias, block, *rest, **kwargs))
        if func in _PRODUCTS and args[1].dim() == 2:
            return _by_blocks(args[0], lambda block: func(block, *args[1:], **kwargs))
        if func in _ELEMENTWISE:
            return _by_lanes(args[0], lambda values: func(values, *args[1:], **kwargs))
        return func(*args, **kwargs)


def _by_blocks(left: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
    rows = left.reshape(-1, left.size(-1))  # [N, C]
    filled = F.pad(rows, (0, 0, 0, -rows.size(0) % BLOCK))
    out = torch.cat([product(block) for block in torch.split(filled, BLOCK)])
    return out[: rows.size(0)].view(*left.shape[:-1], -1)


def _by_lanes(values: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    flat = values.flatten()
    return function(F.pad(flat, (0, -flat.numel() % _LANES)))[: flat.numel()].view_as(values)
