"""A tensor of a checkpoint whose values are read when their turn comes."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Weight:
    """One tensor under its published name and in its published layout.

    Attributes:
        example: its shape and dtype; on the meta device, or mapped from the file.
        read: gives the values, on the CPU.
    """

    example: Tensor
    read: Callable[[], Tensor]


def mapped(tensor: Tensor) -> Weight:
    """A tensor whose values lie in a file that is mapped into memory."""
    return Weight(tensor, lambda: tensor)
