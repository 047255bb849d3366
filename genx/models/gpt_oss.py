"""gpt-oss 20B and 120B (OpenAI 2025, arXiv:2508.10925, section 2)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention, Scoring
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache, Entry
from genx.core.decoder import DECODER_NAMES, Decoder, DecoderLayer
from genx.core.division import Division, Once, Slice, Summed, Units
from genx.core.moe import SparseMoe, mix_experts
from genx.core.norm import WideRMSNorm
from genx.core.positions import Positions
from genx.core.rope import apply_rotary
from genx.core.windows import windows_by_layer


class SinkAttention(Attention):
    """Attention in which each head may attend to nothing: a learned score takes part in its softmax."""

    def __init__(self, config: ModelConfig, window: int | None) -> None:
        bias = config.extra.flag("attention_bias", True)
        super().__init__(config, window=window, bias=bias, output_bias=bias)
        self.sinks = nn.Parameter(torch.zeros(config.num_attention_heads))

    @property
    def division(self) -> Division:
        """Head by head."""
        return {**super().division, "sinks": Slice(Units("num_attention_heads", self.num_heads))}

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        query, key, value = self.project(hidden)
        query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        return self.mix(query, key, value, step, entry, Scoring(sinks=self.sinks))


class GptOssExperts(nn.Module):
    """All experts' weights, input-first, with gate and input in alternate columns, as the files have them."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        experts, hidden, inner = config.num_local_experts, config.hidden_size, config.intermediate_size
        self.gate_up_proj = nn.Parameter(torch.randn(experts, hidden, 2 * inner) * config.initializer_range)
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(experts, 2 * inner))
        self.down_proj = nn.Parameter(torch.randn(experts, inner, hidden) * config.initializer_range)
        self.down_proj_bias = nn.Parameter(torch.zeros(experts, hidden))
        self.alpha = config.extra.number("swiglu_alpha", 1.702)
        self.limit = config.extra.number("swiglu_limit", 7.0)

    @property
    def division(self) -> Division:
        """Between inner channels."""
        inner = self.down_proj.size(1)
        pairs, units = Units("intermediate_size", inner, 2), Units("intermediate_size", inner)
        return {
            "gate_up_proj": Slice(pairs, 2),
            "gate_up_proj_bias": Slice(pairs, 1),
            "down_proj": Slice(units, 1),
            "down_proj_bias": Once(),
        }

    def forward(self, tokens: Tensor, expert: int) -> Tensor:
        """`tokens` [N, C] through one expert: [N, C]."""
        both = tokens @ self.gate_up_proj[expert] + self.gate_up_proj_bias[expert]  # [N, 2I]
        gate, up = both[:, ::2].clamp(max=self.limit), both[:, 1::2].clamp(-self.limit, self.limit)  # [N, I] each
        inner = (up + 1) * gate * torch.sigmoid(self.alpha * gate)
        return inner @ self.down_proj[expert] + self.down_proj_bias[expert]


class GptOssMoe(nn.Module):
    """A sparse mixture whose router has a bias and weighs the chosen experts by a softmax over their scores alone."""

    host_decides = SparseMoe.host_decides

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.experts_per_token = config.num_experts_per_tok
        self.router = nn.Linear(config.hidden_size, config.num_local_experts)
        self.experts = GptOssExperts(config)

    @property
    def division(self) -> Division:
        """Every process has a part of each expert; what they give is summed once."""
        return {"": Summed()}

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, C] to [B, T, C]."""
        tokens = hidden.flatten(0, 1)  # [B * T, C]
        scores, chosen = self.router(tokens).topk(self.experts_per_token, dim=-1)  # [B * T, K] each
        weights = torch.softmax(scores, dim=-1)
        mixed = mix_experts(tokens, chosen, weights, lambda expert, routed: self.experts(routed, expert))
        return mixed.view_as(hidden)


_PUBLISHED_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class GptOss(BaseModel):
    """Attention with sinks and windows in every other layer, and a sparse mixture of experts in each."""

    model_type = "gpt_oss"
    architecture = "GptOssForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    quantizations = ("mxfp4",)
    aliases = DECODER_NAMES
    defaults: ClassVar[Mapping[str, Any]] = {
        "norm_eps": 1e-5,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "rope_theta": 150_000.0,
    }

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.model = Decoder(sizes, [self._layer(window) for window in self.layer_windows], WideRMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @classmethod
    def read_config(cls, source: Mapping[str, Any]) -> ModelConfig:
        """Where a file says nothing of its positions, they are those of the published models."""
        if source.get("rope_parameters") is None and source.get("rope_scaling") is None:
            source = {**source, "rope_scaling": _PUBLISHED_ROPE}
        return super().read_config(source)

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        return windows_by_layer(self.config, lambda layer: layer % 2 == 0)

    def _layer(self, window: int | None) -> DecoderLayer:
        return DecoderLayer(self.config, SinkAttention(self.config, window), GptOssMoe(self.config), WideRMSNorm)

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
