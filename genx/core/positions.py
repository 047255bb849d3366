"""Where the tokens of one forward pass stand: their positions, and what each may attend to.

Made once a pass and read by every layer, so that masks and indices are not made again per layer.
Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

SharedT = TypeVar("SharedT")


class Positions:
    """T new columns of input that follow `seen` earlier ones, in B rows.

    A row is ragged if its positions are not simply the columns' numbers, because the mask hides some.
    """

    def __init__(
        self,
        batch: int,
        length: int,
        device: torch.device,
        seen: int = 0,
        rows_before: Tensor | None = None,
        visible: Tensor | None = None,
        store: bool = True,
        announced: int | Tensor = 0,
    ) -> None:
        """
        Args:
            batch: B.
            length: T.
            device: where masks and indices are made.
            seen: columns before these.
            rows_before: [B] visible tokens of each row before these; None: `seen` in every row.
            visible: bool [B, T], False where a new token is hidden; None if none is.
            store: whether the pass leaves its keys and values in the cache.
            announced: tokens that the text has of which these are a part, of each row [B] or of every row; at least
                those so far.
        """
        self.batch = batch
        self.length = length
        self.device = device
        self.seen = seen
        self.end = seen + length
        self.store = store
        self._announced = announced
        self.ragged = rows_before is not None or visible is not None
        self.visible = visible
        self.rows_before: Tensor | None = None
        self.rows_after: Tensor | None = None
        self.row_steps: list[Positions] = []
        self.row_lengths: tuple[int, ...] | None = None
        self.row_ends: Tensor | None = None  # where each row's last token is among the T
        self._masks: dict[tuple[object, ...], Tensor | None] = {}
        self._scatter: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._shared: dict[object, object] = {}
        if not self.ragged:
            self.positions = torch.arange(seen, self.end, device=device).unsqueeze(0)  # [1, T]
            return
        if rows_before is None:
            rows_before = torch.full((batch,), seen, device=device)
        if self.visible is None:
            self.visible = torch.ones(batch, length, dtype=torch.bool, device=device)
        self.rows_before = rows_before
        counted = rows_before.unsqueeze(-1) + self.visible.cumsum(-1)  # [B, T]
        self.rows_after = counted[:, -1]
        # A hidden token before the first visible one would stand at -1; its output is never used.
        self.positions = (counted - 1).clamp_min(0)

    @classmethod
    def of_rows(
        cls,
        seen: Sequence[int],
        lengths: Sequence[int],
        device: torch.device,
        store: bool = True,
        announced: Sequence[int] | None = None,
    ) -> "Positions":
        """New tokens of several rows that were read apart, side by side as if of one row: B is 1, T their number.

        `row_steps` has each row's own positions, `row_lengths` how many tokens each has.

        Args:
            seen: columns that each row has seen.
            lengths: new tokens of each row, at least one.
            device: where masks and indices are made.
            store: whether the pass leaves its keys and values in the cache.
            announced: tokens that each row's text has; None where they do not matter.
        """
        step = cls(1, sum(lengths), device, max(seen), store=store)
        step.row_steps = [
            cls(1, length, device, before, store=store) for before, length in zip(seen, lengths, strict=True)
        ]
        step.row_lengths = tuple(lengths)
        step.positions = torch.cat([row.positions for row in step.row_steps], dim=1)  # [1, T]
        step.row_ends = torch.tensor(lengths, device=device).cumsum(0) - 1  # [rows]
        ends = [max(row.end, most) for row, most in zip(step.row_steps, announced or [0] * len(seen), strict=True)]
        step._announced = step.of_each_token(torch.tensor(ends, device=device))
        return step

    def of_each_token(self, values: Tensor) -> Tensor:
        """What joined rows have, [rows], for each of their tokens: [1, T]."""
        assert self.row_lengths is not None
        lengths = torch.tensor(self.row_lengths, device=values.device)
        return values.repeat_interleave(lengths, output_size=self.length).unsqueeze(0)

    @property
    def text_lengths(self) -> int | Tensor:
        """Tokens of each row's text [B], or of every row's, as far as it is known: these, or what was announced.

        Of joined rows [1, T], for each token those of its row.
        """
        if self.row_lengths is not None:
            return self._announced
        return longer_of(self._announced, self.end if self.rows_after is None else self.rows_after)

    def new_mask(self, window: int | None) -> Tensor | None:
        """What the T queries may see of the T new keys alone: bool [B or 1, 1, T, T], or None for plain causal."""
        if not self.ragged and (window is None or self.length <= window):
            return None
        key = ("new", window)
        if key not in self._masks:
            self._masks[key] = self._allowed_new(window).unsqueeze(1)
        return self._masks[key]

    def slot_mask(self, slots: int) -> Tensor | None:
        """What the T queries may see of the first `slots` slots after the new keys are written: [B or 1, 1, T, slots].

        Slot s holds position s, or, once a window has wrapped round, a position that is in the window of the only
        query. None where every query sees all of them, and for the plain causal square of a first chunk.
        """
        if not self.ragged and (self.length == 1 or self.seen == 0):
            return None
        key = ("slots", slots)
        if key not in self._masks:
            slot = torch.arange(slots, device=self.device)
            self._masks[key] = (slot <= self.positions.unsqueeze(-1)).unsqueeze(1)
        return self._masks[key]

    def kept_and_new_mask(self, kept_positions: Tensor, window: int | None) -> Tensor | None:
        """What the T queries may see of kept keys followed by the new ones: bool [B or 1, 1, T, kept + T].

        Args:
            kept_positions: [B or 1, kept], negative where a slot is empty.
            window: the layer's.
        """
        if not self.ragged and self.length == 1 and (window is None or self.seen < window):
            return None
        key = ("kept", kept_positions.size(-1), window)
        if key not in self._masks:
            query = self.positions.unsqueeze(-1)  # [B or 1, T, 1]
            kept = kept_positions.unsqueeze(-2)  # [B or 1, 1, kept]
            allowed = (kept >= 0).expand(-1, self.length, -1)
            if window is not None:
                allowed = allowed & (query - kept < window)
            new = self._allowed_new(window)
            self._masks[key] = torch.cat((allowed, new), dim=-1).unsqueeze(1)
        return self._masks[key]

    def scatter(self, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
        """Row, column and slot of each new token that is visible and stays: three index vectors of one length."""
        if capacity not in self._scatter:
            assert self.visible is not None
            assert self.rows_after is not None
            staying = self.visible & (self.positions >= self.rows_after.unsqueeze(-1) - capacity)
            row, column = staying.nonzero(as_tuple=True)
            self._scatter[capacity] = row, column, self.positions[row, column] % capacity
        return self._scatter[capacity]

    def shared(self, key: object, make: Callable[[], SharedT]) -> SharedT:
        """What `make` returns for the first layer that asks under `key`, for all layers."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]  # type: ignore[return-value]

    def _allowed_new(self, window: int | None) -> Tensor:
        column = torch.arange(self.length, device=self.device)
        allowed = (column <= column.unsqueeze(-1)).unsqueeze(0)  # [1, T, T]
        if window is not None:
            allowed = allowed & (self.positions.unsqueeze(-1) - self.positions.unsqueeze(-2) < window)
        if self.visible is not None:
            allowed = allowed & self.visible.unsqueeze(-2)
            # A hidden query sees itself: a softmax over nothing would be NaN.
            allowed = allowed | torch.eye(self.length, dtype=torch.bool, device=self.device)
        return allowed


def longer_of(some: int | Tensor, others: int | Tensor) -> int | Tensor:
    """The larger of two lengths, of each row [B] where one of them is."""
    if isinstance(some, Tensor) and isinstance(others, Tensor):
        return torch.maximum(some, others)
    if isinstance(some, Tensor):
        return some.clamp_min(others)
    return others.clamp_min(some) if isinstance(others, Tensor) else max(some, others)


def newest_position_in_slot(slots: int, capacity: int, rows: Tensor | None, seen: int, device: torch.device) -> Tensor:
    """The position that each of the first `slots` slots holds, [B or 1, slots]; negative where it is empty.

    Args:
        slots: how many slots to name.
        capacity: slots that the layer has; position p lies in slot p mod capacity.
        rows: [B] tokens of each row, or None for `seen` in every row.
        seen: columns seen.
        device: where the result is made.
    """
    last = (torch.tensor([seen], device=device) if rows is None else rows).unsqueeze(-1) - 1  # [B or 1, 1]
    slot = torch.arange(slots, device=device)
    return last - (last - slot) % capacity
