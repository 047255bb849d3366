"""A tensor of a checkpoint whose values are read when their turn comes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from genx.kernels.packed import PackedMatrix


@dataclass(frozen=True)
class Blocks:
    """A matrix stored in blocks that genx has operations for.

    Attributes:
        format: int8 or int4, see genx/kernels/packed.py.
        rows: that are stored.
        read: gives it with every value as it is stored; None where the format cannot hold one.
        arrange: makes the published layout of the stored one, of any matrix.
    """

    format: str
    rows: int
    read: Callable[[], PackedMatrix | None]
    arrange: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Weight:
    """One tensor under its published name and in its published layout.

    Attributes:
        example: its shape and dtype; on the meta device, or mapped from the file.
        read: gives the values, on the CPU.
        blocks: the same in blocks, if it is stored so.
    """

    example: Tensor
    read: Callable[[], Tensor]
    blocks: Blocks | None = None


def mapped(tensor: Tensor) -> Weight:
    """A tensor whose values lie in a file that is mapped into memory."""
    return Weight(tensor, lambda: tensor)


def mapped_blocks(matrix: PackedMatrix, *, input_first: bool) -> Weight:
    """A matrix whose blocks lie in a file that is mapped into memory; `input_first` if it is published as [I, O]."""

    def arrange(rows: Tensor) -> Tensor:
        return rows.t() if input_first else rows

    example = arrange(torch.empty(matrix.rows, matrix.columns, device="meta"))
    blocks = Blocks(matrix.format, matrix.rows, lambda: matrix, arrange)
    return Weight(example, lambda: arrange(matrix.floats()), blocks)
