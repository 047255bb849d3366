"""The KV cache: what attention keeps of the tokens it has seen, one entry a layer, passed in and out of `forward`.

Three rules make it exact for windows, chunks of any size and rows of different lengths:

1. Positions are counted, never read off a tensor's length.
2. A token with position p of its row lies in slot p mod capacity. A full layer has a slot for every position; a layer
   with a window of W has at most W slots, and the token that a new one overwrites has just left the window.
3. Hidden tokens (padding, holes in the attention mask) have no position and take no slot.

Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from genx.cache_rules import allocated_positions
from genx.core.fixed_shapes import FixedEntry
from genx.core.positions import Positions, longer_of, newest_position_in_slot
from genx.errors import GenxError

PlainEntry = tuple[Tensor, Tensor] | tuple[Tensor, Tensor, int]


class LayerCache:
    """Keys and values of one layer as of `seen` columns of input.

    An entry is a value: `attended` gives the entry that follows and leaves this one as it was, though both share
    memory. Going on from an old entry (two continuations of one prompt) copies what they share; where a window layer
    has dropped keys since, it is refused: `fork` first.
    """

    __slots__ = ("_at_most", "_storage", "announced", "rows", "seen", "window")

    def __init__(self, at_most: int, window: int | None = None, announced: int | Tensor = 0) -> None:
        """An empty entry.

        Args:
            at_most: positions that the text can come to; decides how much is allocated at once.
            window: the layer attends to this many last positions only; None for all.
            announced: tokens that will be read before any is chosen, of each row [B] or of every row: a text that is
                read in chunks is read as what it becomes. 0 where chunks are texts of their own.
        """
        self._at_most = at_most
        self._storage: _Storage | None = None
        self.announced = announced
        self.window = window
        self.seen = 0  # columns of input so far, hidden ones included
        self.rows: Tensor | None = None  # [B] visible tokens of each row so far; None: `seen` in every row

    @classmethod
    def from_plain(cls, entry: PlainEntry, at_most: int, window: int | None, past_mask: Tensor | None) -> "LayerCache":
        """Take over `(keys, values)` or `(keys, values, next_pos)`, tensors [B, G, S, D] in order of their columns.

        Args:
            entry: the pair, or the triple whose keys are the last S of `next_pos` columns.
            at_most: as in the constructor.
            window: as in the constructor.
            past_mask: bool [B, next_pos], False where a column is hidden; None if none is.

        Raises:
            ValueError: the keys lack columns that the layer attends to.
        """
        keys, values = entry[0], entry[1]
        stored = keys.size(-2)
        seen = entry[2] if len(entry) == 3 else stored
        if stored < min(seen, window or seen):
            raise ValueError(
                f"the cache holds {stored} of {seen} columns; allowed: all of them"
                + (f", or at least the window's last {window}" if window else "")
            )
        cache = cls(at_most, window)
        cache.seen = seen - stored
        mask = None if past_mask is None else past_mask[:, -stored:]
        if past_mask is not None:
            cache.rows = past_mask[:, :-stored].sum(-1)
        step = Positions(keys.size(0), stored, keys.device, cache.seen, cache.rows, mask)
        cache._storage = cache._with_room(keys, keys.size(1), keys.size(3), step)
        cache._storage.write(keys, values, step)
        return cache._advanced(step)

    def fork(self, at_most: int) -> "LayerCache":
        """An entry that holds the same and shares no memory: another text that begins alike goes on from it.

        Args:
            at_most: positions that the other text can come to.
        """
        other = LayerCache(at_most, self.window, self.announced)
        other.seen, other.rows = self.seen, self.rows
        if self._storage is not None:
            self._check_current(self._storage)
            capacity = allocated_positions(self.seen, max(at_most, self.seen), self.window)
            other._storage = self._storage.copy(capacity, self.seen)
        return other

    @property
    def text_lengths(self) -> int | Tensor:
        """Tokens of each row's text [B], or of every row's, as which the keys so far were read."""
        return longer_of(self.announced, self.seen if self.rows is None else self.rows)

    @property
    def nbytes(self) -> int:
        """Bytes that this layer's keys and values have allocated."""
        return 0 if self._storage is None else self._storage.nbytes

    def attended(
        self, keys: Tensor, values: Tensor, step: Positions
    ) -> tuple[Tensor, Tensor, Tensor | None, "LayerCache"]:
        """The keys and values that a step's queries attend to, and the entry after the step.

        Args:
            keys: [B, G, T, D], the step's own.
            values: [B, G, T, D].
            step: where the T tokens stand.

        Returns:
            keys [B, G, S, D], values [B, G, S, D], the bool mask [B or 1, 1, T, S] of what each query may see (None:
            everything that precedes it, and itself), and the next entry (this one if the step does not store).
        """
        if not step.store:
            return *self._kept_and_new(keys, values, step), self
        storage = self._with_room(keys, keys.size(1), keys.size(3), step)
        if step.length > 1 and step.end > storage.capacity:
            # The chunk would overwrite keys that its own first queries still see: look first, then write.
            seen_keys, seen_values, mask = self._kept_and_new(keys, values, step)
            storage.write(keys, values, step)
        else:
            storage.write(keys, values, step)
            seen_keys, seen_values = storage.first(min(step.end, storage.capacity))
            mask = step.slot_mask(seen_keys.size(-2))
        following = self._advanced(step)
        following._storage = storage
        return seen_keys, seen_values, mask, following

    def reserve(
        self, like: Tensor, groups: int, head_dim: int, step: Positions
    ) -> tuple[Tensor, Tensor, "LayerCache"] | None:
        """Memory for a caller that itself writes the step's keys and values, and then attends to what is there.

        The caller writes each visible token with position p into slot p mod capacity; a query with position p then sees
        the first min(p + 1, capacity) slots.

        Args:
            like: a tensor of the dtype and device of the keys.
            groups: G.
            head_dim: D.
            step: where the T tokens stand.

        Returns:
            keys and values [B, G, capacity, D], and the entry after the step. None where this is not enough: the step
            does not store, or would overwrite keys that its own first queries still see, or the keys so far have
            another dtype; `attended` serves then.
        """
        if not step.store or (self._storage is not None and self._storage.keys.dtype != like.dtype):
            return None
        storage = self._with_room(like, groups, head_dim, step)
        if step.length > 1 and step.end > storage.capacity:
            return None
        storage.end = step.end
        following = self._advanced(step)
        following._storage = storage
        return storage.keys, storage.values, following

    def reserve_more(self, step: Positions) -> tuple[Tensor, Tensor, "LayerCache"] | None:
        """As `reserve`, for keys like those that are there; None also where there are none."""
        if self._storage is None:
            return None
        keys = self._storage.keys
        return self.reserve(keys, keys.size(1), keys.size(3), step)

    def _advanced(self, step: Positions) -> "LayerCache":
        following = LayerCache(self._at_most, self.window, self.announced)
        following._storage = self._storage
        following.seen = step.end
        following.rows = step.rows_after
        return following

    def _kept_and_new(self, keys: Tensor, values: Tensor, step: Positions) -> tuple[Tensor, Tensor, Tensor | None]:
        if self._storage is None or self.seen == 0:
            return keys, values, step.new_mask(self.window)
        self._check_current(self._storage)
        kept = min(self.seen, self._storage.capacity)
        kept_keys, kept_values = self._storage.first(kept)
        positions = newest_position_in_slot(kept, self._storage.capacity, step.rows_before, self.seen, keys.device)
        mask = step.kept_and_new_mask(positions, self.window)
        return torch.cat((kept_keys, keys), dim=-2), torch.cat((kept_values, values), dim=-2), mask

    def _with_room(self, like: Tensor, groups: int, head_dim: int, step: Positions) -> "_Storage":
        capacity = allocated_positions(step.end, max(self._at_most, step.end), self.window)
        if self._storage is None:
            return _Storage.allocate(like, (step.batch, groups, capacity, head_dim))
        if self._storage.end != self.seen:
            self._check_current(self._storage)
            return self._storage.copy(max(capacity, self._storage.capacity), self.seen)
        if capacity > self._storage.capacity or self._storage.keys.requires_grad:
            # What autograd has recorded must not be written over.
            return self._storage.copy(max(capacity, self._storage.capacity), self.seen)
        return self._storage

    def _check_current(self, storage: "_Storage") -> None:
        if storage.end != self.seen and storage.end > storage.capacity:
            raise GenxError(
                f"this cache stands at column {self.seen}, but a window layer has been read on to {storage.end} and "
                "has dropped keys since; copy it with copy.deepcopy before reading on twice"
            )


class RowEntries:
    """One layer's entries of rows that were read apart and go on together: a row comes and goes freely.

    Each row keeps its own memory and its own count, so that it attends exactly as it does alone.
    """

    __slots__ = ("lengths", "rows")

    def __init__(self, rows: Sequence[LayerCache], lengths: Sequence[int] | None = None) -> None:
        """
        Args:
            rows: an entry of one row each.
            lengths: how many tokens of each row the next pass reads; None for one each.
        """
        self.rows = tuple(rows)
        self.lengths = (1,) * len(self.rows) if lengths is None else tuple(lengths)

    @property
    def seen(self) -> list[int]:
        """Columns that each row has seen."""
        return [row.seen for row in self.rows]

    @property
    def text_lengths(self) -> list[int]:
        """Tokens of each row's text, as which its keys so far were read."""
        return [int(row.text_lengths) for row in self.rows]

    @property
    def nbytes(self) -> int:
        """Bytes that the rows' keys and values have allocated."""
        return sum(row.nbytes for row in self.rows)


Entry = LayerCache | RowEntries | FixedEntry
Cache = Sequence[Entry]


def join_rows(caches: Sequence[Sequence[LayerCache]], lengths: Sequence[int] | None = None) -> list[RowEntries]:
    """The cache with which rows that were read apart, one cache each, go on together.

    Args:
        caches: of one row each; a new one for a row that begins.
        lengths: how many tokens of each row the next pass reads, side by side in one x [1, N]; None for one each.
    """
    return [RowEntries(layer, lengths) for layer in zip(*caches, strict=True)]


def split_rows(cache: Sequence[RowEntries]) -> list[list[LayerCache]]:
    """One cache for each row of a joined one."""
    return [list(row) for row in zip(*(layer.rows for layer in cache), strict=True)]


class _Storage:
    """The memory of one layer: keys and values [B, G, capacity, D], shared by the entries of one text."""

    __slots__ = ("end", "keys", "nbytes", "values")

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys = keys
        self.values = values
        self.nbytes = keys.untyped_storage().nbytes() + values.untyped_storage().nbytes()  # asked for at every step
        self.end = 0  # columns written

    @classmethod
    def allocate(cls, like: Tensor, shape: tuple[int, int, int, int]) -> "_Storage":
        # Zeros, not empty memory: a masked slot is still multiplied, and NaN times zero is NaN.
        return cls(like.new_zeros(shape), like.new_zeros(shape))

    @property
    def capacity(self) -> int:
        return self.keys.size(-2)

    def first(self, count: int) -> tuple[Tensor, Tensor]:
        return self.keys[:, :, :count], self.values[:, :, :count]

    def copy(self, capacity: int, seen: int) -> "_Storage":
        batch, groups, _, head_dim = self.keys.shape
        larger = _Storage.allocate(self.keys, (batch, groups, capacity, head_dim))
        kept = min(seen, self.capacity)
        larger.keys[:, :, :kept] = self.keys[:, :, :kept]
        larger.values[:, :, :kept] = self.values[:, :, :kept]
        larger.end = seen
        return larger

    def write(self, keys: Tensor, values: Tensor, step: Positions) -> None:
        self.end = step.end
        if step.ragged:
            row, column, slot = step.scatter(self.capacity)
            self.keys[row, :, slot] = keys[row, :, column]
            self.values[row, :, slot] = values[row, :, column]
            return
        count = min(step.length, self.capacity)
        first = (step.end - count) % self.capacity
        before_wrap = min(count, self.capacity - first)
        newest = step.length - count
        for stored, new in ((self.keys, keys), (self.values, values)):
            stored[:, :, first : first + before_wrap] = new[:, :, newest : newest + before_wrap]
            if before_wrap < count:
                stored[:, :, : count - before_wrap] = new[:, :, newest + before_wrap :]


def cache_start_pos(cache: Sequence[Entry | PlainEntry] | None) -> int:
    """How many columns of input a cache has seen: the position of the next token where nothing is hidden.

    Of joined rows, the most that any has seen.

    Plain `(K, V)` entries have seen as many as K [B, G, S, D] is long; `(K, V, next_pos)` entries say so themselves.
    """
    if not cache:
        return 0
    entry = cache[0]
    if isinstance(entry, LayerCache):
        return entry.seen
    if isinstance(entry, RowEntries):
        return max(entry.seen)
    assert not isinstance(entry, FixedEntry)  # only the device knows
    return int(entry[2]) if len(entry) == 3 else entry[0].size(-2)


def cache_text_lengths(cache: Sequence[Entry | PlainEntry]) -> int | Tensor:
    """Tokens of each row's text [B], or of every row's, as which a cache was read so far; see `LayerCache`."""
    entry = cache[0]
    if isinstance(entry, RowEntries):
        return torch.tensor(entry.text_lengths)
    return entry.text_lengths if isinstance(entry, LayerCache) else cache_start_pos(cache)


def cache_nbytes(cache: Cache | None) -> int:
    """Bytes allocated by all layers of a cache."""
    return sum(entry.nbytes for entry in cache or ())
