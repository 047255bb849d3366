"""The pre-norm decoder stack of the LLaMA family (Touvron et al. 2023, arXiv:2302.13971, section 2.2).

Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention
from genx.core.cache import Entry
from genx.core.positions import Positions
from genx.core.rope import RotaryEmbedding

Norm = Callable[[int, float], nn.Module]

# What the family's files call two of the configuration's fields.
DECODER_NAMES = {"rms_norm_eps": "norm_eps", "attention_dropout": "attn_pdrop"}


class DecoderLayer(nn.Module):
    """Attention, then a feed-forward block, each on a normalised input and added to what came in."""

    feed_forward_name = "mlp"
    """What the published files call the feed-forward block."""

    def __init__(self, config: ModelConfig, self_attn: Attention, feed_forward: nn.Module, norm: Norm) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.add_module(self.feed_forward_name, feed_forward)
        self.input_layernorm = norm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = norm(config.hidden_size, config.norm_eps)

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        mixed, entry = self.self_attn(self.input_layernorm(hidden), step, rotary, entry)
        hidden = hidden + mixed
        feed_forward = self.get_submodule(self.feed_forward_name)
        return hidden + feed_forward(self.post_attention_layernorm(hidden)), entry


class SandwichLayer(nn.Module):
    """Attention, then a feed-forward block, each between two norms (Gemma Team 2024, arXiv:2408.00118, section 2)."""

    def __init__(self, config: ModelConfig, self_attn: Attention, mlp: nn.Module, norm: Norm) -> None:
        super().__init__()
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = norm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = norm(config.hidden_size, config.norm_eps)
        self.pre_feedforward_layernorm = norm(config.hidden_size, config.norm_eps)
        self.post_feedforward_layernorm = norm(config.hidden_size, config.norm_eps)

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        mixed, entry = self.self_attn(self.input_layernorm(hidden), step, rotary, entry)
        hidden = hidden + self.post_attention_layernorm(mixed)
        transformed = self.mlp(self.pre_feedforward_layernorm(hidden))
        return hidden + self.post_feedforward_layernorm(transformed), entry


class Decoder(nn.Module):
    """Token embedding, layers, and a last norm."""

    def __init__(self, config: ModelConfig, layers: Sequence[nn.Module], norm: Norm) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(layers)
        self.norm = norm(config.hidden_size, config.norm_eps)
        self.rotary = RotaryEmbedding(config)

    def forward(
        self, hidden: Tensor, step: Positions, cache: Sequence[Entry | None]
    ) -> tuple[Tensor, list[Entry] | None]:
        """Embedded tokens [B, T, C] to the head's input [B, T, C], and the next cache (None unless the step stores)."""
        following: list[Entry] = []
        for layer, rotary, entry in zip(self.layers, self.angles(step, hidden.dtype), cache, strict=True):
            hidden, after = layer(hidden, step, rotary, entry)
            following.append(after)
        return self.norm(hidden), following if step.store else None

    def angles(self, step: Positions, dtype: torch.dtype) -> Sequence[tuple[Tensor, Tensor]]:
        """Each layer's cosines and sines."""
        return [self.rotary(step.positions, dtype, step.text_lengths)] * len(self.layers)
