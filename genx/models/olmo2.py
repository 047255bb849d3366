"""OLMo 2 (OLMo Team 2025, arXiv:2501.00656, section 2)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache, Entry
from genx.core.decoder import DECODER_NAMES, Decoder
from genx.core.division import Channels, Division
from genx.core.feed_forward import GatedMLP
from genx.core.norm import WideRMSNorm
from genx.core.positions import Positions
from genx.core.rope import apply_rotary


class NormedAttention(Attention):
    """Attention whose queries and keys are normalised, all heads together."""

    def __init__(self, config: ModelConfig, bias: bool) -> None:
        super().__init__(config, bias=bias, output_bias=bias)
        self.q_norm = WideRMSNorm(config.num_attention_heads * config.head_dim, config.norm_eps)
        self.k_norm = WideRMSNorm(config.num_key_value_heads * config.head_dim, config.norm_eps)

    @property
    def division(self) -> Division:
        """Head by head."""
        queries, keys = self.heads
        return {**super().division, "q_norm": Channels(queries), "k_norm": Channels(keys)}

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        projected = self.q_norm(self.q_proj(hidden)), self.k_norm(self.k_proj(hidden)), self.v_proj(hidden)
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in projected
        )  # [B, H, T, D], [B, G, T, D] twice
        return self.mix(apply_rotary(query, *rotary), apply_rotary(key, *rotary), value, step, entry)


class Olmo2Layer(nn.Module):
    """Attention, then a feed-forward block, each normalised before it is added to its input."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attn = NormedAttention(config, bias=config.extra.flag("attention_bias", False))
        self.mlp = GatedMLP(config, config.hidden_act)
        self.post_attention_layernorm = WideRMSNorm(config.hidden_size, config.norm_eps)
        self.post_feedforward_layernorm = WideRMSNorm(config.hidden_size, config.norm_eps)

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        mixed, entry = self.self_attn(hidden, step, rotary, entry)
        hidden = hidden + self.post_attention_layernorm(mixed)
        return hidden + self.post_feedforward_layernorm(self.mlp(hidden)), entry


class Olmo2(BaseModel):
    """As LLaMA, with norms after the blocks rather than before, and on queries and keys."""

    model_type = "olmo2"
    architecture = "Olmo2ForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases = DECODER_NAMES

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.model = Decoder(sizes, [Olmo2Layer(sizes) for _ in range(sizes.num_hidden_layers)], WideRMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

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
