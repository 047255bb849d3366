"""Linear layers whose weights stay as they are stored, or quantised, and are multiplied in float32.

Counterparts of nn.Linear and Conv1D. Shapes: see the legend in genx/core/base_model.py; O outputs and I inputs.
"""

import threading
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genx.errors import GenxError
from genx.kernels.library import FORMATS, Library, Matrix
from genx.kernels.modules import KernelModule
from genx.kernels.packed import PACKED_WEIGHT, PackedMatrix, packed_layouts
from genx.kernels.projection import Projection
from genx.kernels.quantize import NOT_FINITE, TOO_LARGE, quantize_int4, quantize_int8

# Weights made float32 at once for a product by torch. At 16 MiB they stay in the last-level cache.
_AT_ONCE = 1 << 22


class Scratch(threading.local):
    """Memory in which weights become float32 for a moment: one piece a thread, used again by every layer."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def take(self, rows: int, columns: int) -> Tensor:
        """Float32 [rows, columns] with any content, valid until the next call."""
        if self._memory.numel() < rows * columns:
            self._memory = torch.empty(rows * columns)
        return self._memory[: rows * columns].view(rows, columns)


class KernelLinear(KernelModule):
    """y = x W^T + b, with W [O, I] in one of the formats and b float32."""

    def __init__(
        self, outputs: int, inputs: int, bias: Tensor | None, scratch: Scratch, native: Library | None
    ) -> None:
        super().__init__()
        self.in_features = inputs
        self.out_features = outputs
        self.bias = None if bias is None else nn.Parameter(bias.detach().float().contiguous(), requires_grad=False)
        self._scratch = scratch
        self._native = native

    @property
    def format(self) -> str:
        """One of `genx.kernels.library.FORMATS`."""
        raise NotImplementedError

    @property
    def weight_nbytes(self) -> int:
        """Bytes that W takes, scales included."""
        raise NotImplementedError

    def expanded(self, first: int, last: int) -> Tensor:
        """Rows `first` to `last` of W as float32 [last - first, I], by torch: the reference."""
        raise NotImplementedError

    def matrix(self) -> Matrix:
        """What native operations are told."""
        raise NotImplementedError

    def dense(self, first: int, last: int) -> Tensor:
        """As `expanded`, natively where that is possible; valid until the next call of any layer."""
        if self._native is None:
            return self.expanded(first, last)
        rows = self._scratch.take(last - first, self.in_features)
        self._native.expand(self.matrix(), first, last, rows.data_ptr())
        return rows

    def multiply(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., I] to [..., O] by torch, some rows of W at a time."""
        step = max(1, _AT_ONCE // self.in_features)
        parts: list[Tensor] = []
        for first in range(0, self.out_features, step):
            last = min(first + step, self.out_features)
            bias = None if self.bias is None else self.bias[first:last]
            parts.append(F.linear(hidden, self.dense(first, last), bias))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., I] to [..., O], both float32."""
        return self._projection(hidden)

    def _finish_init(self) -> None:
        self._projection = Projection([self], self._native)


class FloatLinear(KernelLinear):
    """W as it is stored: float32, bfloat16 or float16, in the very memory of the parameter if its layout fits."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, scratch: Scratch, native: Library | None, *, input_first: bool
    ) -> None:
        """
        Args:
            weight: the parameter [O, I], or [I, O] if `input_first`; there is one of that shape afterwards too.
            bias: [O] or None.
            scratch: for products by torch.
            native: the compiled operations, or None.
            input_first: as Conv1D stores it; the memory is then turned round, once.
        """
        rows = (weight.t() if input_first else weight).detach()
        super().__init__(rows.size(0), rows.size(1), bias, scratch, native)
        if rows.is_contiguous() and rows.data_ptr() % rows.element_size() == 0:
            assert isinstance(weight, nn.Parameter)
            self.weight = weight.requires_grad_(False)
        else:
            rows = rows.clone(memory_format=torch.contiguous_format)
            self.weight = nn.Parameter(rows.t() if input_first else rows, requires_grad=False)
        self._rows = rows
        self._finish_init()

    @property
    def format(self) -> str:
        return str(self._rows.dtype).removeprefix("torch.")

    @property
    def weight_nbytes(self) -> int:
        return self._rows.nbytes

    def expanded(self, first: int, last: int) -> Tensor:
        return self._rows[first:last].float()

    def matrix(self) -> Matrix:
        bias = None if self.bias is None else self.bias.data_ptr()
        return Matrix(self._rows.data_ptr(), None, bias, *self._rows.shape, FORMATS[self.format])

    def dense(self, first: int, last: int) -> Tensor:
        return self._rows[first:last] if self._rows.dtype == torch.float32 else super().dense(first, last)


class QuantizedLinear(KernelLinear):
    """W in blocks of 8 or 4 bits: see genx/kernels/quantize.py."""

    def __init__(self, matrix: PackedMatrix, bias: Tensor | None, scratch: Scratch, native: Library | None) -> None:
        """
        Args:
            matrix: [O, I], in the very memory of which it stays if that is aligned.
            bias: [O] or None.
            scratch: for products by torch.
            native: the compiled operations, or None.
        """
        super().__init__(matrix.rows, matrix.columns, bias, scratch, native)
        self.register_buffer("weight_values", _aligned(matrix.values))
        self.register_buffer("weight_scales", _aligned(matrix.scales))
        self.weight_values: Tensor
        self.weight_scales: Tensor
        self._matrix = PackedMatrix(matrix.format, self.weight_values, self.weight_scales, matrix.columns)
        self._finish_init()

    @property
    def weight(self) -> NoReturn:
        """Quantised weights have no parameter to read or save."""
        raise GenxError(PACKED_WEIGHT)

    @property
    def format(self) -> str:
        return self._matrix.format

    @property
    def weight_nbytes(self) -> int:
        return self._matrix.nbytes

    def expanded(self, first: int, last: int) -> Tensor:
        return self._matrix.floats(first, last)

    def matrix(self) -> Matrix:
        bias = None if self.bias is None else self.bias.data_ptr()
        values, scales = self.weight_values.data_ptr(), self.weight_scales.data_ptr()
        return Matrix(values, scales, bias, self.out_features, self.in_features, FORMATS[self.format])


def _aligned(tensor: Tensor) -> Tensor:
    fits = tensor.is_contiguous() and tensor.data_ptr() % tensor.element_size() == 0
    return tensor if fits else tensor.clone(memory_format=torch.contiguous_format)


def quantized(quantization: str, weight: Tensor, native: Library | None) -> tuple[Tensor, Tensor]:
    """Values and scales of a weight matrix [O, I] in float32, bfloat16 or float16; see genx/kernels/quantize.py.

    Raises:
        GenxError: a weight is not finite, or too large.
    """
    if native is None:
        return (quantize_int8 if quantization == "int8" else quantize_int4)(weight)
    weight = weight.contiguous()
    outputs, inputs = weight.shape
    values, scales = (torch.empty(shape, dtype=dtype) for dtype, shape in packed_layouts(quantization, outputs, inputs))
    stored = Matrix(weight.data_ptr(), None, None, outputs, inputs, FORMATS[str(weight.dtype).removeprefix("torch.")])
    faults = native.quantize(stored, FORMATS[quantization], values.data_ptr(), scales.data_ptr())
    if faults:
        raise GenxError(NOT_FINITE if faults & 1 else TOO_LARGE)
    return values, scales


def packed(quantization: str, weight: Tensor, native: Library | None) -> PackedMatrix:
    """As `quantized`, as one matrix."""
    return PackedMatrix(quantization, *quantized(quantization, weight.detach(), native), weight.size(1))
