"""The values of MXFP4 weights: 4-bit floats (E2M1) times a power of two (E8M0) that 32 of them share.

Open Compute Project, Microscaling Formats (MX) Specification, version 1.0: sections 5.3.3 (FP4), 5.4.1 (E8M0) and 6.3.
"""

import math
from functools import partial

import torch
from torch import Tensor

from genx.checkpoint.mxfp4 import PackedWeight
from genx.checkpoint.weights import Weight

_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_NIBBLES = (*_MAGNITUDES, *(-magnitude for magnitude in _MAGNITUDES))
# bfloat16 holds every one of them exactly, and their products, but for those beyond the largest float32.
_PAIRS = torch.tensor([(_NIBBLES[byte & 15], _NIBBLES[byte >> 4]) for byte in range(256)], dtype=torch.bfloat16)
# Two halves as one number: picking wholes out of a table is several times faster than picking rows.
_WHOLE_PAIRS = _PAIRS.view(torch.int32).flatten()
_SCALES = torch.tensor([*(2.0 ** (byte - 127) for byte in range(255)), math.nan], dtype=torch.bfloat16)


def unpacked(weight: PackedWeight, blocks: Tensor, scales: Tensor) -> Weight:
    """A weight that is dequantised when it is read, one expert at a time.

    Args:
        weight: its shape.
        blocks: uint8 [E, out, in / 32, 16], the lower nibble of a byte before the higher one.
        scales: uint8 [E, out, in / 32].
    """
    example = torch.empty(weight.shape, dtype=torch.bfloat16, device="meta")
    return Weight(example, partial(dequantised, blocks, scales))


def dequantised(blocks: Tensor, scales: Tensor) -> Tensor:
    """bfloat16 [E, in, out], which holds every value exactly; a scale of 255 makes its values NaN."""
    experts, outputs, groups, size = blocks.shape
    values = torch.empty(experts, groups * size * 2, outputs, dtype=torch.bfloat16)
    for value, block, scale in zip(values, blocks, scales, strict=True):
        pairs = _WHOLE_PAIRS.index_select(0, block.flatten().int())
        scaled = pairs.view(torch.bfloat16).view(outputs, groups, 2 * size)  # [out, in / 32, 32]
        scaled *= _SCALES.index_select(0, scale.flatten().int()).view(outputs, groups, 1)
        value.copy_(scaled.flatten(1).t())  # [in, out]
    return values
