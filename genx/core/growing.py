"""A tensor that grows by columns without being copied at each step."""

import torch
from torch import Tensor

_FIRST_ROOM = 1024  # columns beyond the first ones; the room doubles from there


class GrowingColumns:
    """Rows [B, n] that `append` makes longer; room is made ahead, so that a step costs the same at any length."""

    def __init__(self, first: Tensor, final_length: int) -> None:
        """
        Args:
            first: [B, n], copied.
            final_length: columns that there can be at most.
        """
        self._final_length = final_length
        self.length = first.size(1)
        self._room = first.new_empty((first.size(0), min(final_length, self.length + _FIRST_ROOM)))
        self._room[:, : self.length] = first

    @property
    def columns(self) -> Tensor:
        """The rows so far, [B, length], as a view."""
        return self._room[:, : self.length]

    def append(self, column: Tensor) -> None:
        """Add a column [B, 1]."""
        if self.length == self._room.size(1):
            more = min(self._final_length, 2 * self.length) - self.length
            self._room = torch.cat((self._room, self._room.new_empty((self._room.size(0), more))), dim=1)
        self._room[:, self.length : self.length + 1] = column
        self.length += 1
