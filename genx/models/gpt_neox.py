"""GPT-NeoX and Pythia (Black et al. 2022, arXiv:2204.06745, section 2; Biderman et al. 2023, arXiv:2304.01373)."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import attend
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache, Entry
from genx.core.division import Division, Inputs, Outputs, Units
from genx.core.feed_forward import MLP
from genx.core.positions import Positions
from genx.core.rope import RotaryEmbedding, apply_rotary
from genx.errors import ConfigError


class NeoXAttention(nn.Module):
    """Multi-head attention whose projection holds query, key and value of a head side by side."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.num_key_value_heads != config.num_attention_heads:
            raise ConfigError("num_key_value_heads differs from num_attention_heads; allowed in gpt_neox: the same")
        self.head_dim = config.head_dim
        self.dropout = config.attn_pdrop
        bias = config.extra.flag("attention_bias", True)
        size = config.num_attention_heads * config.head_dim
        self.query_key_value = nn.Linear(config.hidden_size, 3 * size, bias=bias)
        self.dense = nn.Linear(size, config.hidden_size, bias=bias)

    @property
    def division(self) -> Division:
        """Head by head."""
        heads = self.dense.in_features // self.head_dim
        fused, mixed = (Units("num_attention_heads", heads, size) for size in (3 * self.head_dim, self.head_dim))
        return {"query_key_value": Outputs((fused,)), "dense": Inputs(mixed)}

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        projected = self.query_key_value(hidden).unflatten(-1, (-1, 3 * self.head_dim)).transpose(1, 2)
        query, key, value = projected.chunk(3, dim=-1)  # [B, H, T, D] each
        query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        dropout = self.dropout if self.training else 0.0
        mixed, entry = attend(query, key, value, step, entry, dropout=dropout)  # [B, T, H * D]
        return self.dense(mixed), entry


class NeoXLayer(nn.Module):
    """Attention and an MLP, each on an input normalised for it, side by side (or, in some files, in turn)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.is_parallel = config.extra.flag("use_parallel_residual", True)
        self.input_layernorm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.attention = NeoXAttention(config)
        self.mlp = MLP(config, ("dense_h_to_4h", "dense_4h_to_h"))
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        mixed, entry = self.attention(self.input_layernorm(hidden), step, rotary, entry)
        attended = hidden + self.dropout(mixed)
        transformed = self.mlp(self.post_attention_layernorm(hidden if self.is_parallel else attended))
        return attended + self.dropout(transformed), entry


class GPTNeoX(BaseModel):
    """Parallel blocks with LayerNorm and biases, and rotary positions in part of each head."""

    model_type = "gpt_neox"
    architecture = "GPTNeoXForCausalLM"
    embedding_name = "gpt_neox.embed_in.weight"
    aliases: ClassVar[Mapping[str, str]] = {
        "layer_norm_eps": "norm_eps",
        "attention_dropout": "attn_pdrop",
        "hidden_dropout": "resid_pdrop",
        "rotary_pct": "partial_rotary_factor",
        "rotary_emb_base": "rope_theta",
    }
    defaults: ClassVar[Mapping[str, Any]] = {"hidden_act": "gelu", "norm_eps": 1e-5, "partial_rotary_factor": 0.25}

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.gpt_neox = nn.ModuleDict(
            {
                "embed_in": nn.Embedding(sizes.vocab_size, sizes.hidden_size),
                "layers": nn.ModuleList(NeoXLayer(sizes) for _ in range(sizes.num_hidden_layers)),
                "final_layer_norm": nn.LayerNorm(sizes.hidden_size, sizes.norm_eps),
            }
        )
        self.rotary_embedding = RotaryEmbedding(sizes)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @classmethod
    def adapt_checkpoint(cls, tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Published files call the head embed_out, and carry causal masks and frequencies as buffers."""
        return {
            re.sub(r"^embed_out\.", "lm_head.", name): tensor
            for name, tensor in super().adapt_checkpoint(tensors, config).items()
            if not re.search(r"\.attention\.(bias|masked_bias)$", name)
        }

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
        part = self.gpt_neox
        hidden = part["embed_in"](x)  # [B, T, C]
        rotary = self.rotary_embedding(step.positions, hidden.dtype, step.text_lengths)
        following: list[Entry] = []
        for layer, entry in zip(part["layers"], entries, strict=True):  # type: ignore[call-overload]
            hidden, after = layer(hidden, step, rotary, entry)
            following.append(after)
        return self.head(part["final_layer_norm"](hidden), step, logits_to_keep), following if use_cache else None
