"""Counterparts of the shared blocks: the same interface and submodules, fewer and larger operations.

Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from genx.core.attention import Attention
from genx.core.cache import Entry
from genx.core.decoder import DecoderLayer
from genx.core.feed_forward import Activation, GatedMLP
from genx.core.fused import FusedAttention, FusedMLP
from genx.core.moe import Expert
from genx.core.positions import Positions
from genx.kernels.attention import CachedAttention, Rotary
from genx.kernels.layer import NativeLayer
from genx.kernels.library import Library
from genx.kernels.linear import KernelLinear, KernelModule
from genx.kernels.projection import ROWS_MAX, Projection, is_known_norm


class KernelEmbedding(KernelModule):
    """Counterpart of nn.Embedding: weights as they are stored, vectors in float32."""

    def __init__(self, block: nn.Embedding) -> None:
        super().__init__()
        self.weight = block.weight.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        """`ids` [...] to float32 [..., C]."""
        return F.embedding(ids, self.weight).float()


class KernelBlock(KernelModule):
    """A block with the submodules of the one it stands for, under the same names."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, child in block.named_children():
            self.add_module(name, child)

    def linear(self, name: str) -> KernelLinear:
        """The linear layer of that name."""
        child = self.get_submodule(name)
        assert isinstance(child, KernelLinear)
        return child


class KernelAttention(KernelBlock):
    """Counterpart of Attention."""

    def __init__(self, block: Attention, native: Library) -> None:
        super().__init__(block)
        self._sizes = (block.num_heads, block.num_key_value_heads, block.head_dim)
        self._window = block.window
        self._mix = self.cached_attention(native, None)
        self.output = Projection([self.linear("o_proj")], native)

    def cached_attention(self, native: Library, norm: nn.Module | None) -> CachedAttention:
        """What comes before the output projection, with a norm in front of it."""
        linears = [self.linear(name) for name in ("q_proj", "k_proj", "v_proj")]
        return CachedAttention(self._sizes, Projection(linears, native, norm=norm), native, self._window)

    def forward(
        self, hidden: Tensor, step: Positions, rotary: Rotary, entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        mixed, entry = self._mix(hidden, step, rotary, entry)
        return self.output(mixed), entry


class KernelGatedMLP(KernelBlock):
    """Counterpart of GatedMLP and of a mixture's expert."""

    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")

    def __init__(self, block: GatedMLP | Expert, native: Library) -> None:
        super().__init__(block)
        self._activation: Activation = block.activation
        self._inner = self.inner(native, None)
        self.down = Projection([self.linear(self.names[2])], native)

    def inner(self, native: Library, norm: nn.Module | None) -> Projection:
        """The gated part, with a norm in front of it."""
        gate_and_up = [self.linear(name) for name in self.names[:2]]
        return Projection(gate_and_up, native, norm=norm, activate=self._activation, gated=True)

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., C] to [..., C]."""
        return self.down(self._inner(hidden))


class KernelExpert(KernelGatedMLP):
    """Counterpart of Expert."""

    names = ("w1", "w3", "w2")


class KernelDecoderLayer(KernelBlock):
    """Counterpart of DecoderLayer whose norms and additions are part of the projections beside them."""

    def __init__(self, block: DecoderLayer, native: Library) -> None:
        super().__init__(block)
        attention, self._feed_forward = block.self_attn, block.get_submodule(block.feed_forward_name)
        assert isinstance(attention, KernelAttention)
        self._mix = attention.cached_attention(native, block.input_layernorm)
        self._output = attention.output
        self._norm = block.post_attention_layernorm
        self._whole: NativeLayer | None = None
        self._inner: Projection | None = None
        if isinstance(self._feed_forward, KernelGatedMLP):
            self._inner = self._feed_forward.inner(native, self._norm)
            self._down = self._feed_forward.down
            if self._inner.is_native:
                self._whole = NativeLayer(self._mix, self._output, self._inner, self._down, native)

    def forward(
        self, hidden: Tensor, step: Positions, rotary: Rotary, entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        if self._whole is not None and entry is not None and step.batch * step.length <= ROWS_MAX:
            found = self._whole(hidden, step, rotary, entry)
            if found is not None:
                return found
        mixed, entry = self._mix(hidden, step, rotary, entry)
        hidden = self._output(mixed, hidden)
        if self._inner is None:
            return hidden + self._feed_forward(self._norm(hidden)), entry
        return self._down(self._inner(hidden), hidden), entry


class KernelFusedAttention(KernelBlock):
    """Counterpart of FusedAttention."""

    def __init__(self, block: FusedAttention, native: Library) -> None:
        super().__init__(block)
        sizes = (block.num_heads, block.num_heads, block.head_dim)
        self._mix = CachedAttention(sizes, Projection([self.linear("c_attn")], native), native)
        self._output = Projection([self.linear("c_proj")], native)

    def forward(self, hidden: Tensor, step: Positions, entry: Entry | None) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        mixed, entry = self._mix(hidden, step, None, entry)
        return self._output(mixed), entry


class KernelFusedMLP(KernelBlock):
    """Counterpart of FusedMLP."""

    def __init__(self, block: FusedMLP, native: Library) -> None:
        super().__init__(block)
        self._inner = Projection([self.linear("c_fc")], native, activate=block.activation)
        self._out = Projection([self.linear("c_proj")], native)

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, C] to [B, T, C]."""
        return self._out(self._inner(hidden))


def counterpart(block: nn.Module, native: Library) -> nn.Module | None:
    """What takes the place of a block whose own blocks have been replaced already; None if nothing does.

    A subclass with a `forward` of its own computes something else and keeps it.
    """
    for kind, make in _COUNTERPARTS.items():
        if isinstance(block, kind) and type(block).forward is kind.forward:
            return make(block, native)
    if isinstance(block, DecoderLayer) and type(block).forward is DecoderLayer.forward:
        fits = isinstance(block.self_attn, KernelAttention)
        if fits and is_known_norm(block.input_layernorm) and is_known_norm(block.post_attention_layernorm):
            return KernelDecoderLayer(block, native)
    return None


_COUNTERPARTS: Mapping[type[nn.Module], Callable[..., nn.Module]] = {
    Attention: KernelAttention,
    GatedMLP: KernelGatedMLP,
    Expert: KernelExpert,
    FusedAttention: KernelFusedAttention,
    FusedMLP: KernelFusedMLP,
}
