"""A decode step whose shapes, memory and launches do not depend on the position: what a CUDA graph can hold.

The position is a number on the device. Keys and values are written at its slot, and attention goes over a rounded-up
number of slots, of which a mask made on the device hides those that are still empty.
Shapes: see the legend in genx/core/base_model.py.
"""

import torch
from torch import Tensor

from genx.core.positions import Positions

SHORTEST = 256  # slots that attention goes over at least; twice as many each time they are filled


class FixedPositions(Positions):
    """One new token in each row, all at the same position, which only the device knows."""

    def __init__(self, batch: int, position: Tensor) -> None:
        """
        Args:
            batch: B.
            position: int64 [1, 1]; what is in it when a step runs is where the step's token stands.
        """
        super().__init__(batch, 1, position.device)
        self.positions = position

    def slot_mask(self, slots: int) -> Tensor:
        """Which of the first `slots` slots the queries see: bool [1, 1, 1, slots]."""
        return self.shared(("slots", slots), lambda: torch.arange(slots, device=self.device) <= self.positions)[
            None, None
        ]


class FixedEntry:
    """One layer's keys and values for steps at a position that only the device knows."""

    __slots__ = ("_keys", "_slots", "_values", "step")

    def __init__(self, keys: Tensor, values: Tensor, step: FixedPositions, slots: int) -> None:
        """
        Args:
            keys: [B, G, capacity, D], written to in place.
            values: as `keys`.
            step: where the token stands.
            slots: how many slots to attend over, if there are as many; more than the position.
        """
        self._keys, self._values = keys, values
        self._slots = min(slots, keys.size(-2))
        self.step = step

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values."""
        return self._keys.untyped_storage().nbytes() + self._values.untyped_storage().nbytes()

    def attended(self, keys: Tensor, values: Tensor, step: Positions) -> tuple[Tensor, Tensor, Tensor, "FixedEntry"]:
        """As `LayerCache.attended`, for one token [B, G, 1, D]; the next entry is this one."""
        slot = step.positions[0] % self._keys.size(-2)  # [1]
        self._keys.index_copy_(2, slot, keys)
        self._values.index_copy_(2, slot, values)
        seen = slice(self._slots)
        mask = self.step.slot_mask(self._slots)
        return self._keys[:, :, seen], self._values[:, :, seen], mask, self


def slots_for(length: int) -> int:
    """Slots to attend over for a text of `length` tokens: few different numbers, at most twice what is needed."""
    return max(SHORTEST, 1 << (length - 1).bit_length())
