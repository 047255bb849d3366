"""Phi-3, Phi-3.5 and Phi-4 (Abdin et al. 2024, arXiv:2404.14219, section 2, and arXiv:2412.08905)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.config_fields import ExtraFields
from genx.core.attention import PLAIN_SCORING, attend
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache, Entry
from genx.core.decoder import DECODER_NAMES, Decoder
from genx.core.division import Division, Inputs, Outputs, Units
from genx.core.feed_forward import activation
from genx.core.norm import RMSNorm
from genx.core.positions import Positions
from genx.core.rope import apply_rotary


class Phi3Attention(nn.Module):
    """Grouped-query attention whose queries, keys and values come out of one projection."""

    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        self.window = window
        self.dropout = config.attn_pdrop
        self.qkv_proj = nn.Linear(config.hidden_size, sum(self.heads) * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * config.head_dim, config.hidden_size, bias=False)

    @property
    def division(self) -> Division:
        """Head by head. Key/value heads are not repeated: how many there are is told by their share of all heads."""
        queries, keys = (
            Units(name, count, self.head_dim)
            for name, count in zip(("num_attention_heads", "num_key_value_heads"), self.heads, strict=False)
        )
        return {"qkv_proj": Outputs((queries, keys, keys)), "o_proj": Inputs(queries)}

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        projected = self.qkv_proj(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, H + 2G, T, D]
        heads = [count * projected.size(1) // sum(self.heads) for count in self.heads]  # of this process
        query, key, value = projected.split(heads, dim=1)  # [B, H, T, D], [B, G, T, D] twice
        query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        dropout = self.dropout if self.training else 0.0
        mixed, entry = attend(query, key, value, step, entry, self.window, dropout, PLAIN_SCORING)  # [B, T, H * D]
        return self.o_proj(mixed), entry


class Phi3MLP(nn.Module):
    """A gated feed-forward block whose gate and input come out of one projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation = activation(config.hidden_act)

    @property
    def division(self) -> Division:
        """Between inner channels."""
        units = Units("intermediate_size", self.down_proj.in_features)
        return {"gate_up_proj": Outputs((units, units)), "down_proj": Inputs(units)}

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, C] to [B, T, C]."""
        gate, up = self.gate_up_proj(hidden).chunk(2, dim=-1)  # [B, T, I] each
        out: Tensor = self.down_proj(self.activation(gate) * up)
        return out


class Phi3Layer(nn.Module):
    """Attention, then a feed-forward block, each on a normalised input and added to what came in."""

    def __init__(self, config: ModelConfig, window: int | None) -> None:
        super().__init__()
        self.self_attn = Phi3Attention(config, window)
        self.mlp = Phi3MLP(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        mixed, entry = self.self_attn(self.input_layernorm(hidden), step, rotary, entry)
        hidden = hidden + self.resid_dropout(mixed)
        return hidden + self.resid_dropout(self.mlp(self.post_attention_layernorm(hidden))), entry


class Phi3(BaseModel):
    """As LLaMA, with fused projections, a window in some sizes, and rotary positions in part of a head in others."""

    model_type = "phi3"
    architecture = "Phi3ForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases = DECODER_NAMES
    defaults: ClassVar[Mapping[str, Any]] = {"norm_eps": 1e-5}

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.model = Decoder(sizes, [Phi3Layer(sizes, window) for window in self.layer_windows], RMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @classmethod
    def read_config(cls, source: Mapping[str, Any]) -> ModelConfig:
        """Older files call LongRoPE su or yarn; the length before it stands outside rope_scaling."""
        config = super().read_config(source)
        if config.rope.kind not in ("longrope", "su", "yarn"):
            return config
        name = "original_max_position_embeddings"
        original = config.extra.get(name) or config.rope.scaling.get(name) or 4096
        rope = dataclasses.replace(config.rope, kind="longrope", scaling={**config.rope.scaling, name: original})
        return dataclasses.replace(config, rope=rope, extra=ExtraFields({**config.extra, name: original}))

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        return (self.config.sliding_window,) * self.config.num_hidden_layers

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
