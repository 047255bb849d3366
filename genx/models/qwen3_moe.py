"""Qwen3, the mixtures of experts (Qwen Team 2025, arXiv:2505.09388, section 2)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import HeadNormAttention
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache
from genx.core.decoder import DECODER_NAMES, Decoder, DecoderLayer
from genx.core.feed_forward import GatedMLP
from genx.core.moe import SparseMoe, split_experts
from genx.core.norm import RMSNorm


class Qwen3Moe(BaseModel):
    """As Qwen3, with a sparse mixture of experts in place of most feed-forward blocks."""

    model_type = "qwen3_moe"
    architecture = "Qwen3MoeForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases: ClassVar[Mapping[str, str]] = {**DECODER_NAMES, "num_experts": "num_local_experts"}
    defaults: ClassVar[Mapping[str, Any]] = {
        "num_local_experts": 128,
        "num_experts_per_tok": 8,
    }

    refused = ("use_sliding_window",)

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.model = Decoder(sizes, [self._layer(number) for number in range(sizes.num_hidden_layers)], RMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    def _layer(self, number: int) -> DecoderLayer:
        bias = self.config.extra.flag("attention_bias", False)
        attention = HeadNormAttention(self.config, RMSNorm, bias=bias)
        return DecoderLayer(self.config, attention, self._feed_forward(number), RMSNorm)

    def _feed_forward(self, number: int) -> nn.Module:
        extra = self.config.extra
        step = extra.whole("decoder_sparse_step", 1)
        if number in (extra.whole_numbers("mlp_only_layers") or ()) or step == 0 or (number + 1) % step:
            return GatedMLP(self.config, self.config.hidden_act)
        sizes = dataclasses.replace(
            self.config, intermediate_size=extra.whole("moe_intermediate_size", 768, smallest=1)
        )
        experts = [GatedMLP(sizes, sizes.hidden_act) for _ in range(sizes.num_local_experts)]
        return SparseMoe(sizes, experts, normalize=extra.flag("norm_topk_prob", False))

    @classmethod
    def adapt_checkpoint(cls, tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Files of some tools stack the experts: gate_up_proj [E, 2I, C], down_proj [E, C, I]."""
        adapted = super().adapt_checkpoint(tensors, config)
        return split_experts(adapted, ("gate_proj.weight", "up_proj.weight"), "down_proj.weight")

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
