"""A whole layer of a pre-norm decoder in one native call, for steps so short that the calls of its parts would count.

Shapes: see the legend in genx/core/base_model.py.
"""

from ctypes import byref, pointer

from torch import Tensor

from genx.core.cache import Entry
from genx.core.positions import Positions
from genx.kernels.attention import CachedAttention, Rotary
from genx.kernels.library import LayerStructure, Library
from genx.kernels.modules import check_input
from genx.kernels.projection import Projection


class NativeLayer:
    """norm -> attention -> add -> norm -> gated feed-forward -> add, over the cache."""

    def __init__(
        self, mix: CachedAttention, output: Projection, inner: Projection, down: Projection, native: Library
    ) -> None:
        """
        Args:
            mix: from the layer's input, its norm included, to the heads' mixed values.
            output: of the heads; the layer's input is added.
            inner: the gated inner values, the second norm included.
            down: back to the layer's size; what attention gave is added.
            native: the compiled operations.
        """
        self._columns = mix.projection.columns
        assert output.outputs == inner.columns == down.outputs == self._columns
        assert inner.outputs == down.columns
        self._attention = mix.native
        self._native = native.layer
        parts = (mix.projection, output, inner, down)
        into_heads, out_of_heads, inner_part, down_part = (pointer(part.structure) for part in parts)
        self._parts = (*parts, mix)  # keeps what the structure points to
        self._structure = LayerStructure(into_heads, pointer(mix.native.structure), out_of_heads, inner_part, down_part)
        self._argument = byref(self._structure)

    def __call__(
        self, hidden: Tensor, step: Positions, rotary: Rotary | None, entry: Entry
    ) -> tuple[Tensor, Entry] | None:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry. None, and nothing has happened, as in
        `NativeAttention`."""
        hidden = hidden.contiguous()
        check_input(hidden, (step.batch, step.length, self._columns))
        reserved = self._attention.reserve(hidden, step, entry)
        if reserved is None:
            return None
        memory, following = reserved
        output = hidden.new_empty((step.batch, step.length, self._columns))
        address, places = memory.buffer_info()[0], self._attention.places(step, rotary)
        if self._native(self._argument, places, address, hidden.data_ptr(), output.data_ptr()):
            raise MemoryError
        return output, following
