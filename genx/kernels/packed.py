"""Weight matrices in blocks of 8 or 4 bits, as quantize.py describes them, and modules that hold some.

The modules are for the reader of a file to put in the place of nn.Linear, Conv1D and nn.Embedding. They compute as they
are, slowly; `genx.kernels.attach` gives linear layers operations. Shapes: see quantize.py.
"""

from dataclasses import dataclass
from typing import NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genx.core.conv1d import Conv1D
from genx.errors import GenxError
from genx.kernels.quantize import BLOCK, dequantize_int4, dequantize_int8, padded_columns

PACKED_FORMATS = ("int8", "int4")

Layout = tuple[torch.dtype, tuple[int, ...]]


def packed_layouts(packed_format: str, rows: int, columns: int) -> tuple[Layout, Layout]:
    """Dtypes and shapes of the values and of the scales of a matrix [O, I]."""
    padded = padded_columns(columns)
    if packed_format == "int8":
        return (torch.int8, (rows, padded)), (torch.float16, (rows, padded // BLOCK))
    return (torch.uint8, (rows, padded // 2)), (torch.float16, (rows, padded // BLOCK, 2))


def linear_format(quantization: str, module: str) -> str:
    """What the weights of a linear layer become in a model that is quantised to int8 or int4.

    Args:
        quantization: int8 or int4.
        module: the layer's name in the model.
    """
    # The head's errors reach the logits undiluted, so it keeps 8 bits.
    return "int8" if module == "lm_head" else quantization


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix [O, I].

    Attributes:
        format: int8 or int4.
        values: [O, P] int8, or [O, P / 2] uint8.
        scales: float16 [O, P / 32], or [O, P / 32, 2].
        columns: I.

    Raises:
        ValueError: they do not belong together.
    """

    format: str
    values: Tensor
    scales: Tensor
    columns: int

    def __post_init__(self) -> None:
        if self.format not in PACKED_FORMATS:
            raise ValueError(f"the format is {self.format}; allowed: {', '.join(PACKED_FORMATS)}")
        layouts = packed_layouts(self.format, self.values.size(0), self.columns)
        for tensor, (dtype, shape) in zip((self.values, self.scales), layouts, strict=True):
            if tensor.dtype != dtype or tensor.shape != shape:
                raise ValueError(
                    f"{self.format} blocks of {self.columns} columns have a part {tensor.dtype} {list(tensor.shape)}; "
                    f"allowed: {dtype} {list(shape)}"
                )

    @property
    def rows(self) -> int:
        """O."""
        return self.values.size(0)

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self.values.nbytes + self.scales.nbytes

    def take(self, rows: Tensor) -> "PackedMatrix":
        """Those rows, in that order; the very tensors where they are all rows as they stand."""
        if torch.equal(rows, torch.arange(self.rows)):
            return self
        return PackedMatrix(self.format, self.values[rows], self.scales[rows], self.columns)

    def floats(self, first: int = 0, last: int | None = None) -> Tensor:
        """Rows `first` to `last` as float32 [last - first, I]."""
        expand = dequantize_int8 if self.format == "int8" else dequantize_int4
        return expand(self.values[first:last], self.scales[first:last], self.columns)


class PackedModule(nn.Module):
    """Holds a matrix in two buffers."""

    def __init__(self, packed_format: str, rows: int, columns: int) -> None:
        """
        Args:
            packed_format: int8 or int4.
            rows: O.
            columns: I.
        """
        super().__init__()
        self.format = packed_format
        self.columns = columns
        (values, values_shape), (scales, scales_shape) = packed_layouts(packed_format, rows, columns)
        self.register_buffer("weight_values", torch.empty(values_shape, dtype=values))
        self.register_buffer("weight_scales", torch.empty(scales_shape, dtype=scales))
        self.weight_values: Tensor
        self.weight_scales: Tensor

    @property
    def matrix(self) -> PackedMatrix:
        """What it holds."""
        return PackedMatrix(self.format, self.weight_values, self.weight_scales, self.columns)

    @property
    def weight(self) -> NoReturn:
        """There is no parameter to read or save."""
        raise GenxError(PACKED_WEIGHT)


PACKED_WEIGHT = (
    "the weights are quantised in memory and cannot be saved as such; genx convert --quantize writes them, or load "
    "them unquantised first"
)


class PackedLinear(PackedModule):
    """y = x W^T + b; W is made float32 for each product."""

    def __init__(self, packed_format: str, rows: int, columns: int, bias: nn.Parameter | None) -> None:
        super().__init__(packed_format, rows, columns)
        self.bias = bias

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., I] to [..., O]."""
        return F.linear(hidden, self.matrix.floats(), self.bias)


class PackedEmbedding(PackedModule):
    """A table of which the rows that are looked up become float32."""

    output_dtype = torch.float32
    """See `BaseModel.cache_dtype`."""

    def forward(self, ids: Tensor) -> Tensor:
        """`ids` [...] to float32 [..., C]."""
        rows = PackedMatrix(
            self.format, self.weight_values[ids.flatten()], self.weight_scales[ids.flatten()], self.columns
        )
        return rows.floats().contiguous().view(*ids.shape, self.columns)


def packed_counterpart(module: nn.Module, packed_format: str) -> PackedModule | None:
    """A module without values that takes a matrix in blocks where `module` has floats; None if there is none.

    Both are made on the device of `torch.device` as a context.
    """
    if isinstance(module, nn.Linear | Conv1D):
        rows, columns = module.weight.shape if isinstance(module, nn.Linear) else reversed(module.weight.shape)
        return PackedLinear(packed_format, rows, columns, module.bias)
    if isinstance(module, nn.Embedding):
        return PackedEmbedding(packed_format, *module.weight.shape)
    return None
