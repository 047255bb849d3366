"""GGUF's blocks of 32 in the layout that genx computes with: another order of the same bits, for the same values.

Layouts of GGUF: llama.cpp, ggml/src/ggml-common.h. Each block begins with its scale d, a float16.

    Q8_0   32 int8 q                                                 d * q
    Q5_0   32 fifth bits, then 16 bytes of nibbles q                 d * (q - 16)
    Q4_0   16 bytes of nibbles q                                     d * (q - 8)
    Q4_1   a float16 m, then 16 bytes of nibbles q                   d * q + m

Byte j of the nibbles has value j in its low half and value 16 + j in its high half. As floats the products are exact,
and so is the sum for Q4_0, whose offset -8 d is a float16 unless it overflows.
"""

import ctypes
from typing import BinaryIO

import torch
from torch import Tensor

from genx.errors import CheckpointError
from genx.gguf.element_types import BLOCK_FORMATS
from genx.gguf.parts import PackedTensor
from genx.kernels.packed import PackedMatrix, packed_layouts
from genx.kernels.quantize import BLOCK
from genx.messages import printable

_BYTES_AT_ONCE = 4 << 20


def relaid_format(tensor: PackedTensor) -> str | None:
    """int8 or int4, whichever holds its blocks; None if neither does, or it is no matrix of whole blocks a row."""
    if len(tensor.shape) != 2 or tensor.shape[1] % BLOCK:
        return None
    return BLOCK_FORMATS.get(tensor.element.name)


def read_relaid(tensor: PackedTensor) -> PackedMatrix | None:
    """The matrix of a tensor that has a `relaid_format`; None if a block's offset overflows.

    The file is read a few rows at a time, rather than mapped, so that its pages do not count beside the matrix.

    Raises:
        CheckpointError: the file cannot be read.
    """
    packed_format = BLOCK_FORMATS[tensor.element.name]
    rows, columns = tensor.shape
    values, scales = (torch.zeros(shape, dtype=dtype) for dtype, shape in packed_layouts(packed_format, rows, columns))
    row_bytes = columns // BLOCK * tensor.element.size
    step = max(1, _BYTES_AT_ONCE // row_bytes)
    try:
        with tensor.path.open("rb") as file:
            file.seek(tensor.start)
            for first in range(0, rows, step):
                last = min(first + step, rows)
                data = _read(file, (last - first) * row_bytes, tensor).view(last - first, -1, tensor.element.size)
                if not _RELAY[tensor.element.name](data, values[first:last], scales[first:last]):
                    return None
    except OSError as error:
        raise CheckpointError(f"{printable(tensor.path)} cannot be read: {error.strerror or error}") from error
    return PackedMatrix(packed_format, values, scales, columns)


def _read(file: BinaryIO, count: int, tensor: PackedTensor) -> Tensor:
    data = torch.empty(count, dtype=torch.uint8)
    # No other way into a tensor's memory without numpy.
    if file.readinto((ctypes.c_ubyte * count).from_address(data.data_ptr())) != count:  # type: ignore[attr-defined]
        raise CheckpointError(f"{printable(tensor.path)} is truncated; download the file again")
    return data


# Each takes blocks [rows, I / 32, bytes of a block] and rows of values and scales, and says whether they hold them.


def _q8_0(data: Tensor, values: Tensor, scales: Tensor) -> bool:
    blocks = data.size(1)
    scales[:, :blocks] = _float16(data, 0)
    values.view(len(values), -1, BLOCK)[:, :blocks] = data[..., 2:].view(torch.int8)
    return True


def _q5_0(data: Tensor, values: Tensor, scales: Tensor) -> bool:
    blocks = data.size(1)
    scales[:, :blocks] = _float16(data, 0)
    fifth = data[..., 2:6].unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8) & 1  # [rows, I / 32, 4, 8]
    five = _nibbles(data[..., 6:]) | fifth.flatten(2) << 4
    values.view(len(values), -1, BLOCK)[:, :blocks] = five.view(torch.int8) - 16
    return True


def _q4_0(data: Tensor, words: Tensor, scales: Tensor) -> bool:
    scale = _float16(data, 0)
    offset = scale * -8
    _int4(data[..., 2:], scale, offset, words, scales)
    return bool(offset.isfinite().all())


def _q4_1(data: Tensor, words: Tensor, scales: Tensor) -> bool:
    _int4(data[..., 4:], _float16(data, 0), _float16(data, 2), words, scales)
    return True


_RELAY = {"Q8_0": _q8_0, "Q5_0": _q5_0, "Q4_0": _q4_0, "Q4_1": _q4_1}
assert _RELAY.keys() == BLOCK_FORMATS.keys()


def _float16(data: Tensor, at: int) -> Tensor:
    return data[..., at : at + 2].contiguous().view(torch.float16).squeeze(-1)


def _nibbles(data: Tensor) -> Tensor:
    """Bytes [..., 16] as values 0 to 15 [..., 32]."""
    return torch.cat((data & 15, data >> 4), dim=-1)


def _int4(nibbles: Tensor, scale: Tensor, offset: Tensor, words: Tensor, scales: Tensor) -> None:
    blocks = nibbles.size(1)
    scales[:, :blocks] = torch.stack((scale, offset), dim=-1)
    first, second = nibbles[..., :8], nibbles[..., 8:]  # values i and 16 + i; 8 + i and 24 + i
    # In words a block is two neighbouring bytes of each of eight: see `dequantize_int4`.
    halves = words.new_zeros(words.size(0), scales.size(1), 8, 2)  # [rows, P / 32, 8, 2]
    halves[:, :blocks, :, 0] = first & 15 | second << 4
    halves[:, :blocks, :, 1] = first >> 4 | second & 0xF0
    words[:] = halves.view(len(words), -1, 2, 8, 2).transpose(2, 3).flatten(1)
