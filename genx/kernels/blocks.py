"""Counterparts of the shared blocks: the same interface and submodules, fewer and larger operations.

Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import isfunction

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from genx.core.attention import PLAIN_SCORING, Attention, HeadNormAttention, Scoring
from genx.core.cache import Entry
from genx.core.decoder import Decoder, DecoderLayer
from genx.core.feed_forward import Activation, GatedMLP
from genx.core.fused import FusedAttention, FusedMLP
from genx.core.moe import Expert
from genx.core.positions import Positions
from genx.kernels.attention import AttentionTraits, CachedAttention, Rotary, keeps_all
from genx.kernels.layers import NativeLayer, NativeLayers
from genx.kernels.library import SHORT_STEP, Library
from genx.kernels.linear import KernelLinear
from genx.kernels.modules import KernelBlock, KernelModule
from genx.kernels.norm import KernelNorm, kernel_norm
from genx.kernels.projection import Projection


class KernelEmbedding(KernelModule):
    """Counterpart of nn.Embedding: weights as they are stored, vectors in float32."""

    output_dtype = torch.float32
    """See `BaseModel.cache_dtype`."""

    def __init__(self, block: nn.Embedding) -> None:
        super().__init__()
        self.weight = block.weight.requires_grad_(False)

    def forward(self, ids: Tensor) -> Tensor:
        """`ids` [...] to float32 [..., C]."""
        return F.embedding(ids, self.weight).float()


def linear_of(block: nn.Module, name: str) -> KernelLinear:
    """A block's linear layer."""
    child = block.get_submodule(name)
    assert isinstance(child, KernelLinear)
    return child


def norm_of(block: nn.Module, name: str) -> KernelNorm:
    """A block's norm."""
    child = block.get_submodule(name)
    assert isinstance(child, KernelNorm)
    return child


class KernelAttention(KernelBlock):
    """Counterpart of Attention."""

    def __init__(self, block: Attention, native: Library) -> None:
        super().__init__(block)
        norms: tuple[KernelNorm | None, KernelNorm | None] = (None, None)
        scoring: Scoring = PLAIN_SCORING
        if isinstance(block, HeadNormAttention):
            norms, scoring = (norm_of(block, "q_norm"), norm_of(block, "k_norm")), block.scoring
        self._traits = AttentionTraits(
            block.num_heads, block.num_key_value_heads, block.head_dim, block.window, *norms, scoring
        )
        self._mix = self.cached_attention(native, None)
        self.output = Projection([linear_of(self, "o_proj")], native)

    def cached_attention(self, native: Library, norm: KernelNorm | None) -> CachedAttention:
        """What comes before the output projection, with a norm in front of it."""
        linears = [linear_of(self, name) for name in ("q_proj", "k_proj", "v_proj")]
        return CachedAttention(self._traits, Projection(linears, native, norm=norm), native)

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
        self.down = Projection([linear_of(self, self.names[2])], native)

    def inner(self, native: Library, norm: KernelNorm | None) -> Projection:
        """The gated part, with a norm in front of it."""
        gate_and_up = [linear_of(self, name) for name in self.names[:2]]
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
        self._mix = attention.cached_attention(native, norm_of(block, "input_layernorm"))
        self._output = attention.output
        self._norm = norm_of(block, "post_attention_layernorm")
        self.whole: NativeLayer | None = None
        self._inner: Projection | None = None
        if isinstance(self._feed_forward, KernelGatedMLP):
            self._inner = self._feed_forward.inner(native, self._norm)
            self._down = self._feed_forward.down
            if self._inner.is_native:
                self.whole = NativeLayer(self._mix, self._output, self._inner, self._down)
        self._layers = None if self.whole is None else NativeLayers([self.whole], native)
        self._rows_max = native.rows_max

    def forward(
        self, hidden: Tensor, step: Positions, rotary: Rotary, entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        if self._layers is not None and entry is not None and step.batch * step.length <= self._rows_max:
            found = self._layers(hidden, step, [rotary], [entry])
            if found is not None:
                return found[0], found[1][0]
        mixed, entry = self._mix(hidden, step, rotary, entry)
        hidden = self._output(mixed, hidden)
        if self._inner is None:
            return hidden + self._feed_forward(self._norm(hidden)), entry
        return self._down(self._inner(hidden), hidden), entry


class KernelDecoder(KernelBlock):
    """Counterpart of Decoder that takes short steps through all layers at once."""

    def __init__(self, block: Decoder, native: Library) -> None:
        super().__init__(block)
        self._angles = block.angles
        self._norm = norm_of(self, "norm")
        self._layers: list[nn.Module] = list(block.layers)
        wholes = [layer.whole for layer in self._layers if isinstance(layer, KernelDecoderLayer) and layer.whole]
        self._native = NativeLayers(wholes, native) if len(wholes) == len(self._layers) else None

    def forward(
        self, hidden: Tensor, step: Positions, cache: Sequence[Entry | None]
    ) -> tuple[Tensor, list[Entry] | None]:
        """Embedded tokens [B, T, C] to the head's input [B, T, C], and the next cache (None unless the step stores)."""
        rotaries = self._angles(step, hidden.dtype)
        if self._native is not None and step.batch * step.length <= SHORT_STEP:
            entries = [entry for entry in cache if entry is not None and keeps_all(entry, step)]
            found = self._native(hidden, step, rotaries, entries) if len(entries) == len(self._layers) else None
            if found is not None:
                return self._norm(found[0]), found[1]
        following: list[Entry] = []
        for layer, rotary, entry in zip(self._layers, rotaries, cache, strict=True):
            hidden, after = layer(hidden, step, rotary, entry)
            following.append(after)
        return self._norm(hidden), following if step.store else None


class KernelFusedAttention(KernelBlock):
    """Counterpart of FusedAttention."""

    def __init__(self, block: FusedAttention, native: Library) -> None:
        super().__init__(block)
        traits = AttentionTraits(block.num_heads, block.num_heads, block.head_dim)
        self._mix = CachedAttention(traits, Projection([linear_of(self, "c_attn")], native), native)
        self._output = Projection([linear_of(self, "c_proj")], native)

    def forward(self, hidden: Tensor, step: Positions, entry: Entry | None) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        mixed, entry = self._mix(hidden, step, None, entry)
        return self._output(mixed), entry


class KernelFusedMLP(KernelBlock):
    """Counterpart of FusedMLP."""

    def __init__(self, block: FusedMLP, native: Library) -> None:
        super().__init__(block)
        self._inner = Projection([linear_of(self, "c_fc")], native, activate=block.activation)
        self._out = Projection([linear_of(self, "c_proj")], native)

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, C] to [B, T, C]."""
        return self._out(self._inner(hidden))


def counterpart(block: nn.Module, native: Library) -> nn.Module | None:
    """What takes the place of a block whose own blocks have been replaced already; None if nothing does."""
    for kind, (make, parts) in _COUNTERPARTS.items():
        if _computes_as(block, kind) and all(isinstance(getattr(block, name), part) for name, part in parts.items()):
            return make(block, native)
    return kernel_norm(block, native)


def _computes_as(block: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a block is of that kind and has none of its methods changed."""
    if not isinstance(block, kind):
        return False
    for name in dir(kind):
        method = getattr(kind, name)
        own = isfunction(method) and name != "__init__" and method is not getattr(nn.Module, name, None)
        if own and getattr(type(block), name) is not method:
            return False
    return True


_Parts = Mapping[str, type[nn.Module]]

# Counterparts, and what must have become of a block's own blocks for its counterpart to make sense.
_COUNTERPARTS: Mapping[type[nn.Module], tuple[Callable[..., nn.Module], _Parts]] = {
    Attention: (KernelAttention, {}),
    HeadNormAttention: (KernelAttention, {"q_norm": KernelNorm, "k_norm": KernelNorm}),
    GatedMLP: (KernelGatedMLP, {}),
    Expert: (KernelExpert, {}),
    FusedAttention: (KernelFusedAttention, {}),
    FusedMLP: (KernelFusedMLP, {}),
    Decoder: (KernelDecoder, {"norm": KernelNorm}),
    DecoderLayer: (
        KernelDecoderLayer,
        {"self_attn": KernelAttention, "input_layernorm": KernelNorm, "post_attention_layernorm": KernelNorm},
    ),
}
