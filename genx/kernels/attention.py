"""Attention over the cache in one native call: rotate, write keys and values into their slots, attend.

Shapes: see the legend in genx/core/base_model.py.
"""

from array import array
from collections.abc import Callable, Iterator, Sequence
from ctypes import addressof, byref
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor

from genx.core.attention import PLAIN_SCORING, Scoring, attend
from genx.core.cache import Entry, LayerCache, RowEntries
from genx.core.positions import Positions
from genx.core.rope import apply_rotary
from genx.kernels.library import AttentionStructure, Library, Norm, StepStructure
from genx.kernels.modules import check_input
from genx.kernels.norm import KernelNorm
from genx.kernels.projection import Projection

Rotary = tuple[Tensor, Tensor]

SPAN = 8
"""That of native/attend.h."""


@dataclass(frozen=True)
class AttentionTraits:
    """What an attention block computes."""

    heads: int
    groups: int
    """Key/value heads; divides `heads`."""

    head_size: int
    window: int | None = None
    """Last positions that a query sees; None for all."""

    query_norm: KernelNorm | None = None
    """Of each query head, before it rotates."""

    key_norm: KernelNorm | None = None
    scoring: Scoring = PLAIN_SCORING


class CachedAttention:
    """From a layer's input to its heads' mixed values: projections, positions, cache, attention.

    Steps without a cache, those that a window's ring needs special care for, and long ones where torch is faster go
    through `genx.core.attention.attend`, which is also what the native operation must equal.
    """

    def __init__(self, traits: AttentionTraits, projection: Projection, native: Library) -> None:
        """
        Args:
            traits: what is computed.
            projection: to each token's queries, keys and values.
            native: the compiled operations.
        """
        self._traits = traits
        self.projection = projection
        self.native = NativeAttention(traits, native)
        self._rows_max = native.rows_max

    def __call__(
        self, hidden: Tensor, step: Positions, rotary: Rotary | None, entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, H * D], and the next cache entry."""
        if step.batch * step.length > self._rows_max:
            return self._attend(self.projection.separate(hidden), step, rotary, entry)
        projected = self.projection(hidden)  # [B, T, (H + 2 G) * D]
        mixed = None if entry is None else self.native(projected, step, rotary, entry)
        return mixed or self._attend([projected], step, rotary, entry)

    def _attend(
        self, projected: Sequence[Tensor], step: Positions, rotary: Rotary | None, entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        traits, size = self._traits, self._traits.head_size
        if len(projected) == 1:
            heads, groups = traits.heads, traits.groups
            projected = torch.split(projected[0], [heads * size, groups * size, groups * size], dim=-1)
        query, key, value = (
            part.view(step.batch, step.length, -1, size).transpose(1, 2) for part in projected
        )  # [B, H, T, D], [B, G, T, D] twice
        if traits.query_norm is not None:
            query = traits.query_norm(query)
        if traits.key_norm is not None:
            key = traits.key_norm(key)
        if rotary is not None:
            query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        return attend(query, key, value, step, entry, traits.window, scoring=traits.scoring)


class NativeAttention:
    """Attention of a few new tokens over what the cache holds."""

    def __init__(self, traits: AttentionTraits, native: Library) -> None:
        """
        Args:
            traits: what is computed; the window is the cache's affair.
            native: the compiled operations.
        """
        heads, groups, size, scoring = traits.heads, traits.groups, traits.head_size, traits.scoring
        assert heads % groups == 0
        self._groups, self.head_size = groups, size
        self._outputs = heads * size
        self._inputs = (heads + 2 * groups) * size
        self._attend = native.attend
        self._norms = traits.query_norm, traits.key_norm
        assert all(norm is None or norm.columns == size for norm in self._norms)
        self._sinks = None if scoring.sinks is None else scoring.sinks.detach().float().contiguous()
        assert self._sinks is None or self._sinks.shape == (heads,)
        self.structure = AttentionStructure(
            heads,
            groups,
            size,
            size**-0.5 if scoring.scale is None else scoring.scale,
            scoring.softcap or 0.0,
            None if self._sinks is None else self._sinks.data_ptr(),
            *(Norm() if norm is None else norm.structure for norm in self._norms),
        )
        self._argument = byref(self.structure)
        self._last: tuple[Callable[[], Tensor | None], array[int]] = (lambda: None), array("q")

    def __call__(
        self, projected: Tensor, step: Positions, rotary: Rotary | None, entry: Entry
    ) -> tuple[Tensor, Entry] | None:
        """What each query mixes, after its keys and values were stored.

        Args:
            projected: [B, T, (H + 2 G) * D], each token's queries, keys and values; rotated in place.
            step: where the T tokens stand.
            rotary: cosines and sines [B or 1, 1, T, D]; None where positions do not rotate.
            entry: the layer's cache.

        Returns:
            [B, T, H * D], and the next cache entry. None, and nothing has happened, where `genx.core.attention.attend`
            must serve: see `LayerCache.reserve`.
        """
        check_input(projected, (step.batch, step.length, self._inputs))
        reserved = self.reserve(projected, step, entry) if keeps_all(entry, step) else None
        if reserved is None:
            return None
        memory, following = reserved
        mixed = projected.new_empty((step.batch, step.length, self._outputs))
        address, places = memory.buffer_info()[0], self.places(step, rotary)
        if self._attend(self._argument, places, address, projected.data_ptr(), mixed.data_ptr()):
            raise MemoryError
        return mixed, following

    def places(self, step: Positions, rotary: Rotary | None) -> int:
        """Address of `struct step`, made once for all layers of a step that turn by the same angles."""
        tables = step.shared(("native", None if rotary is None else id(rotary[0])), lambda: StepTables(step, rotary))
        tables.check(self.head_size)
        return tables.address

    def reserve(self, like: Tensor, step: Positions, entry: Entry) -> tuple["array[int]", Entry] | None:
        """`struct row_cache` of each row as three numbers a row, and the next entry; None as above.

        Args:
            like: a tensor of the dtype of the keys.
            step: where the T tokens stand.
            entry: the layer's cache, of which the step `keeps_all`.
        """
        if isinstance(entry, LayerCache):
            reserved = entry.reserve(like, self._groups, self.head_size, step)
            return None if reserved is None else (self._memory_of(reserved[0], reserved[1]), reserved[2])
        if not isinstance(entry, RowEntries):
            return None
        memory = array("q")
        following: list[LayerCache] = []
        for row_step, row in zip(step.row_steps, entry.rows, strict=True):
            reserved = row.reserve(like, self._groups, self.head_size, row_step)
            if reserved is None:
                return None
            memory += _row_memory(reserved[0], reserved[1])
            following.append(reserved[2])
        return memory, RowEntries(following)

    def _memory_of(self, keys: Tensor, values: Tensor) -> "array[int]":
        """`_row_memory`, which stays the same from step to step."""
        known, memory = self._last
        if known() is not keys:
            memory = _row_memory(keys, values)
            self._last = ref(keys), memory
        return memory


def keeps_all(entry: Entry, step: Positions) -> bool:
    """Whether a step overwrites no key that one of its own queries still sees; see `LayerCache.reserve`."""
    if isinstance(entry, RowEntries):
        return all(keeps_all(row, row_step) for row, row_step in zip(entry.rows, step.row_steps, strict=True))
    if not step.store:
        return False
    if step.length == 1:
        return True
    return isinstance(entry, LayerCache) and (entry.window is None or step.end <= entry.window)


class StepTables:
    """Rows, positions and angles of a step's tokens as native operations want them, made once for all layers."""

    def __init__(self, step: Positions, rotary: Rotary | None) -> None:
        lengths = step.row_lengths or [step.length] * step.batch
        tokens = step.batch * step.length
        assert sum(lengths) == tokens
        self._rows = array("q", (row for row, length in enumerate(lengths) for _ in range(length)))
        self._starts = array("q", _span_starts(lengths))
        self._positions = step.positions.expand(step.batch, step.length).contiguous()  # [B, T]
        self._visible = None if step.visible is None else step.visible.contiguous()
        assert self._positions.dtype == torch.int64
        assert self._visible is None or self._visible.shape == self._positions.shape
        self._rotary: Rotary | None = None
        self._angles = 0
        if rotary is not None:
            cosine, sine = (
                angles.float().squeeze(1).expand(step.batch, step.length, -1).contiguous() for angles in rotary
            )  # [B, T, R]
            self._rotary, self._angles = (cosine, sine), cosine.size(-1)
        self._structure = StepStructure(
            tokens,
            self._rows.buffer_info()[0],
            self._positions.data_ptr(),
            None if self._visible is None else self._visible.data_ptr(),
            *((None, None) if self._rotary is None else (angles.data_ptr() for angles in self._rotary)),
            self._angles,
            len(self._starts) - 1,
            self._starts.buffer_info()[0],
        )
        self.address = addressof(self._structure)

    def check(self, head_size: int) -> None:
        """Refuse angles that are not for pairs of channels of a head."""
        if self._angles % 2 or self._angles > head_size:
            raise ValueError(f"{self._angles} channels rotate; allowed: an even number up to {head_size}")


def _span_starts(lengths: Sequence[int]) -> Iterator[int]:
    """The first token of each span of `struct step`, and the number of tokens."""
    first = 0
    for length in lengths:
        yield from range(first, first + length, SPAN)
        first += length
    yield first


def _row_memory(keys: Tensor, values: Tensor) -> "array[int]":
    """Addresses and capacity of each row of keys and values [B, G, capacity, D]."""
    assert keys.is_contiguous()
    assert values.is_contiguous()
    key, value, capacity = keys.data_ptr(), values.data_ptr(), keys.size(2)
    if keys.size(0) == 1:
        return array("q", (key, value, capacity))
    pitch = keys.stride(0) * 4
    return array(
        "q", (number for row in range(keys.size(0)) for number in (key + row * pitch, value + row * pitch, capacity))
    )
