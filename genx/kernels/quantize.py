"""Weights in blocks of 32 columns with 8 or 4 bits each, and back. The reference of what native/matrix.h stores.

Shapes: see the legend in genx/core/base_model.py; O outputs and I inputs of a matrix, P inputs filled up with zeros to
a multiple of 64.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from genx.errors import GenxError

NOT_FINITE = "a weight is infinite or not a number; allowed in quantised blocks: finite weights; load it unquantised"
TOO_LARGE = "a weight is too large; allowed in quantised blocks: scales up to 65504; load it unquantised"

BLOCK = 32
ROW_MULTIPLE = 64

TRIAL_STEPS = range(15, 7, -1)
"""Steps that a block's range is cut into on trial. Fewer than 15 find weights that lie on a coarser grid. Clipping the
ends of the range, by more than 15, lowers the squared error but was measured to be further from the float model."""

# Rows quantised at once, in weights: the temporary tensors of a huge matrix stay small.
_AT_ONCE = 1 << 22


def padded_columns(columns: int) -> int:
    """P: columns filled up to whole pairs of blocks."""
    return -(-columns // ROW_MULTIPLE) * ROW_MULTIPLE


def quantize_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each weight to a multiple of its block's scale, the largest magnitude over 127.

    Args:
        weight: [O, I], any float dtype.

    Returns:
        values int8 [O, P] and scales float16 [O, P / 32]; weight = scale * value.

    Raises:
        GenxError: a weight is not finite, or too large for a float16 scale.
    """
    parts = [_int8_rows(_blocks(rows)) for rows in _row_slices(weight)]
    return torch.cat([values for values, _ in parts]), torch.cat([scales for _, scales in parts])


def quantize_int4(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round each weight to one of 16 evenly spaced values of its block.

    Of several trial grids a block takes the one with the least squared error, after scale and offset were fitted to
    the rounded weights by least squares.

    Args:
        weight: [O, I], any float dtype.

    Returns:
        words uint8 [O, P / 2] and scales float16 [O, P / 32, 2]; see `dequantize_int4`.

    Raises:
        GenxError: a weight is not finite, or too large for a float16 scale.
    """
    parts = [_int4_rows(_blocks(rows)) for rows in _row_slices(weight)]
    return torch.cat([words for words, _ in parts]), torch.cat([scales for _, scales in parts])


def dequantize_int8(values: Tensor, scales: Tensor, columns: int) -> Tensor:
    """The weights float32 [O, `columns`] of `quantize_int8`'s result."""
    blocks = values.view(values.size(0), -1, BLOCK).float() * scales.float().unsqueeze(-1)
    return blocks.flatten(1)[:, :columns]


def dequantize_int4(words: Tensor, scales: Tensor, columns: int) -> Tensor:
    """The weights float32 [O, `columns`] of words uint8 [O, P / 2] and scales float16 [O, P / 32, 2].

    weight = scale * value + offset. Byte j of word i of 64 columns holds columns 16 j + i (low half) and 16 j + 8 + i.
    """
    rows = words.size(0)
    packed = words.view(rows, -1, 8, 4).transpose(2, 3)  # [O, P / 64, byte of the word, word]
    values = torch.stack((packed & 15, packed >> 4), dim=3)  # [O, P / 64, 4, 2, 8]
    blocks = values.reshape(rows, -1, BLOCK).float()
    scale, offset = scales.float().unsqueeze(-1).unbind(2)  # [O, P / 32, 1] each
    return (blocks * scale + offset).flatten(1)[:, :columns]


def pack_int4(values: Tensor) -> Tensor:
    """Values 0 to 15, uint8 [O, P], as words uint8 [O, P / 2]; see `dequantize_int4`."""
    rows = values.size(0)
    low, high = values.view(rows, -1, 4, 2, 8).unbind(3)  # [O, P / 64, 4, 8] each
    return (low | high << 4).transpose(2, 3).reshape(rows, -1)


def _row_slices(weight: Tensor) -> list[Tensor]:
    return list(torch.split(weight, max(1, _AT_ONCE // weight.size(1))))


def _blocks(rows: Tensor) -> Tensor:
    """Float32 blocks [O, P / 32, 32] of weight rows [O, I]."""
    wide = rows.float()
    if not bool(torch.isfinite(wide).all()):
        raise GenxError(
            "a weight is infinite or not a number, so its block cannot be quantised; use unquantised weights"
        )
    return F.pad(wide, (0, padded_columns(wide.size(1)) - wide.size(1))).view(wide.size(0), -1, BLOCK)


def _int8_rows(blocks: Tensor) -> tuple[Tensor, Tensor]:
    scales = _as_float16(blocks.abs().amax(-1) / 127)  # [O, P / 32]
    scale = scales.float().unsqueeze(-1)
    # A block of zeros, or of weights so small that float16 rounds their scale to zero, has values of zero.
    values = (blocks / torch.where(scale == 0, 1.0, scale)).round().clamp(-127, 127) * (scale != 0)
    return values.to(torch.int8).flatten(1), scales


def _int4_rows(blocks: Tensor) -> tuple[Tensor, Tensor]:
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)  # [O, P / 32, 1] each
    _as_float16(high - low)
    # A block of one value: its offset says it all, as well as float16 can.
    best_offset = _as_float16((low + high) / 2).float()
    best_scale = torch.zeros_like(best_offset)
    best_values = torch.zeros_like(blocks)
    best_error = torch.where(low == high, 0.0, torch.inf)
    for steps in TRIAL_STEPS:
        scale = (high - low) / steps
        scale, offset = _fitted(blocks, _rounded(blocks, scale, low), scale, low)
        values = _rounded(blocks, scale, offset)
        error = (blocks - (values * scale + offset)).square().sum(-1, keepdim=True)
        better = (scale > 0) & (error < best_error)
        best_error = torch.where(better, error, best_error)
        best_scale, best_offset = torch.where(better, scale, best_scale), torch.where(better, offset, best_offset)
        best_values = torch.where(better, values, best_values)
    words = pack_int4(best_values.to(torch.uint8).flatten(1))
    return words, torch.cat((best_scale, best_offset), dim=-1).to(torch.float16)


def _rounded(blocks: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    return ((blocks - offset) * (1 / scale)).clamp(0, 15).round()


def _fitted(blocks: Tensor, values: Tensor, scale: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
    """The least-squares scale and offset of rounded values, as float16 has them."""
    total = values.sum(-1, keepdim=True)
    spread = BLOCK * values.square().sum(-1, keepdim=True) - total.square()
    weights = blocks.sum(-1, keepdim=True)
    fitted = (BLOCK * (values * blocks).sum(-1, keepdim=True) - total * weights) / spread
    scale = torch.where(spread > 0, fitted, scale)
    offset = torch.where(spread > 0, (weights - fitted * total) / BLOCK, offset)
    return scale.to(torch.float16).float(), offset.to(torch.float16).float()


def _as_float16(scales: Tensor) -> Tensor:
    if bool((scales.abs() > torch.finfo(torch.float16).max).any()):
        raise GenxError(
            "a weight is too large for a quantised block; allowed: scales up to 65504; use unquantised weights"
        )
    return scales.to(torch.float16)
