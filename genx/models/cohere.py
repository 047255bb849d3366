"""Command R and Aya 23 (Cohere 2024; parallel blocks: Wang and Komatsuzaki 2021, GPT-J)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache, Entry
from genx.core.decoder import Decoder
from genx.core.division import Division, Slice, Units
from genx.core.feed_forward import GatedMLP
from genx.core.positions import Positions


class ScaledLayerNorm(nn.Module):
    """LayerNorm without a bias, computed and scaled in float32; `shape` is (C,), or (heads, D) for head by head."""

    def __init__(self, shape: tuple[int, ...], eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [..., *shape] normalised over its last dimension, in its dtype."""
        normalized = nn.functional.layer_norm(hidden.float(), hidden.shape[-1:], eps=self.eps)
        return (normalized * self.weight.float()).to(hidden.dtype)


class CohereAttention(Attention):
    """Attention whose rotary positions pair neighbouring channels, with norms on queries and keys in one size."""

    def __init__(self, config: ModelConfig) -> None:
        bias = config.extra.flag("attention_bias", False)
        super().__init__(config, bias=bias, output_bias=bias)
        self.has_norms = config.extra.flag("use_qk_norm", False)
        if self.has_norms:
            self.q_norm = ScaledLayerNorm((config.num_attention_heads, config.head_dim), config.norm_eps)
            self.k_norm = ScaledLayerNorm((config.num_key_value_heads, config.head_dim), config.norm_eps)

    @property
    def division(self) -> Division:
        """Head by head."""
        queries, keys = (Units(heads.field, heads.count, repeats=heads.repeats) for heads in self.heads)
        norms = {"q_norm.weight": Slice(queries), "k_norm.weight": Slice(keys)} if self.has_norms else {}
        return {**super().division, **norms}

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        query, key, value = self.project(hidden)
        if self.has_norms:
            query = self.q_norm(query.transpose(1, 2)).transpose(1, 2)  # [B, H, T, D]
            key = self.k_norm(key.transpose(1, 2)).transpose(1, 2)  # [B, G, T, D]
        return self.mix(_rotate_pairs(query, *rotary), _rotate_pairs(key, *rotary), value, step, entry)


def _rotate_pairs(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate channels 2i and 2i + 1 of `heads` [B, H, T, D] by the i-th angle; angles come as two equal halves."""
    cosine, sine = (part.chunk(2, dim=-1)[0].float() for part in (cosine, sine))  # [B or 1, 1, T, D/2] each
    even, odd = heads[..., ::2].float(), heads[..., 1::2].float()  # [B, H, T, D/2] each
    rotated = torch.stack((even * cosine - odd * sine, odd * cosine + even * sine), dim=-1)  # [B, H, T, D/2, 2]
    return rotated.flatten(-2).to(heads.dtype)  # [B, H, T, D]


class CohereLayer(nn.Module):
    """Attention and a feed-forward block side by side, on one normalised input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = CohereAttention(config)
        self.mlp = GatedMLP(config, config.hidden_act)
        self.input_layernorm = ScaledLayerNorm((config.hidden_size,), config.norm_eps)

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        normalized = self.input_layernorm(hidden)
        mixed, entry = self.self_attn(normalized, step, rotary, entry)
        return hidden + mixed + self.mlp(normalized), entry


class Cohere(BaseModel):
    """Parallel blocks, LayerNorm without biases, rotary positions in neighbouring channels, and scaled logits."""

    model_type = "cohere"
    architecture = "CohereForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases: ClassVar[Mapping[str, str]] = {"layer_norm_eps": "norm_eps", "attention_dropout": "attn_pdrop"}
    defaults: ClassVar[Mapping[str, Any]] = {"norm_eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 5e5}

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.logit_scale = sizes.extra.number("logit_scale", 0.0625)
        layers = [CohereLayer(sizes) for _ in range(sizes.num_hidden_layers)]
        self.model = Decoder(sizes, layers, lambda size, eps: ScaledLayerNorm((size,), eps))
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    def head(self, hidden: Tensor, step: Positions, logits_to_keep: int | None) -> Tensor:
        return super().head(hidden, step, logits_to_keep) * self.logit_scale

    def forward(
        self,
        x: Tensor,
        cache: AnyCache | None = None,
        use_cache: bool = False,
        attention_mask: Tensor | None = None,
        *,
        logits_to_keep: int | None = None,
    ) -> tuple[Tensor, Cache | None]:
        step, entries = self.begin(x, cache, use_cache, attention_mask)
        hidden = self.model.embed_tokens(x)  # [B, T, C]
        hidden, following = self.model(hidden, step, entries)  # [B, T, C]
        return self.head(hidden, step, logits_to_keep), following
