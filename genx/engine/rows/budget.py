"""How much memory the caches of rows may take, and how much one row's takes. No torch."""

from collections.abc import Sequence

from genx.cache_rules import GROWTH, WHOLE_UP_TO, allocated_positions
from genx.config import ModelConfig

# Of the memory that is free once the weights are loaded; the rest is for activations, logits and other programs.
_SHARE_OF_FREE = 0.5


class CacheCost:
    """Bytes of a row's cache by the positions that its text can come to."""

    def __init__(self, config: ModelConfig, windows: Sequence[int | None], bytes_per_number: int) -> None:
        """
        Args:
            config: sizes.
            windows: for each layer the last positions that it attends to, None for all.
            bytes_per_number: of the dtype that keys and values are kept in.
        """
        self._bytes_per_position = 2 * config.num_key_value_heads * config.head_dim * bytes_per_number
        self._windows = tuple(windows)

    def of(self, positions: int) -> int:
        """The most that the cache of a text of up to `positions` positions takes at any moment."""
        return sum(_peak_positions(positions, window) for window in self._windows) * self._bytes_per_position


def _peak_positions(positions: int, window: int | None) -> int:
    last = positions if window is None else min(positions, window)
    if last <= WHOLE_UP_TO:
        return allocated_positions(positions, positions, window)
    # A layer that grows for the last time holds the memory before it until that is copied.
    return last + (last - 1) // GROWTH * GROWTH


def worked_out_budget(free: int) -> int:
    """Bytes that caches may take where nothing is said, of the `free` ones."""
    return int(free * _SHARE_OF_FREE)
