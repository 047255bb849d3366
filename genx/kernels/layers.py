"""Whole layers of a pre-norm decoder in one native call, for steps so short that the calls of their parts would count.

Shapes: see the legend in genx/core/base_model.py.
"""

from array import array
from collections.abc import Sequence
from ctypes import addressof, pointer

from torch import Tensor

from genx.core.cache import Entry
from genx.core.positions import Positions
from genx.kernels.attention import CachedAttention, Rotary
from genx.kernels.library import LayerStructure, Library
from genx.kernels.modules import check_input
from genx.kernels.projection import Projection


class NativeLayer:
    """norm -> attention -> add -> norm -> gated feed-forward -> add, over the cache."""

    def __init__(self, mix: CachedAttention, output: Projection, inner: Projection, down: Projection) -> None:
        """
        Args:
            mix: from the layer's input, its norm included, to the heads' mixed values.
            output: of the heads; the layer's input is added.
            inner: the gated inner values, the second norm included.
            down: back to the layer's size; what attention gave is added.
        """
        self.columns = mix.projection.columns
        assert output.outputs == inner.columns == down.outputs == self.columns
        assert inner.outputs == down.columns
        self.attention = mix.native
        parts = (mix.projection, output, inner, down)
        into_heads, out_of_heads, inner_part, down_part = (pointer(part.structure) for part in parts)
        self._parts = (*parts, mix)  # keeps what the structure points to
        self._structure = LayerStructure(into_heads, pointer(mix.native.structure), out_of_heads, inner_part, down_part)
        self.address = addressof(self._structure)


class NativeLayers:
    """Layers of one size one after the other."""

    def __init__(self, layers: Sequence[NativeLayer], native: Library) -> None:
        """
        Args:
            layers: in their order; at least one.
            native: the compiled operations.
        """
        self._layers = tuple(layers)
        self._columns = layers[0].columns
        assert all(layer.columns == self._columns for layer in layers)
        assert len({layer.attention.head_size for layer in layers}) == 1
        self._native = native.layers

    def __call__(
        self, hidden: Tensor, step: Positions, rotaries: Sequence[Rotary | None], entries: Sequence[Entry]
    ) -> tuple[Tensor, list[Entry]] | None:
        """`hidden` [B, T, C] to [B, T, C], and each layer's next cache entry.

        Args:
            hidden: the first layer's input.
            step: where the T tokens stand.
            rotaries: each layer's cosines and sines; see `NativeAttention`.
            entries: each layer's cache.

        Returns:
            None where a layer's cache needs `genx.core.attention.attend`: see `LayerCache.reserve`.
        """
        hidden = hidden.contiguous()
        check_input(hidden, (step.batch, step.length, self._columns))
        memory = array("q")
        following: list[Entry] = []
        steps: list[int] = []
        turned: Rotary | None = None
        place = 0
        for layer, rotary, entry in zip(self._layers, rotaries, entries, strict=True):
            reserved = layer.attention.reserve(hidden, step, entry)
            if reserved is None:
                return None
            memory += reserved[0]
            following.append(reserved[1])
            if not steps or rotary is not turned:
                place, turned = layer.attention.places(step, rotary), rotary
            steps.append(place)
        output = hidden.new_empty(hidden.shape)
        address, places = memory.buffer_info()[0], array("q")
        pitch = 8 * len(memory) // len(self._layers)
        for number, (layer, place) in enumerate(zip(self._layers, steps, strict=True)):
            places.extend((layer.address, place, address + number * pitch))
        if self._native(places.buffer_info()[0], len(steps), hidden.data_ptr(), output.data_ptr()):
            raise MemoryError
        return output, following
