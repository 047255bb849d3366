"""Mixtral 8x7B and 8x22B (Jiang et al. 2024, arXiv:2401.04088)."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache
from genx.core.decoder import DECODER_NAMES, Decoder, DecoderLayer
from genx.core.moe import Expert, SparseMoe, split_experts
from genx.core.norm import RMSNorm


class MixtralLayer(DecoderLayer):
    """A decoder layer whose feed-forward block is a mixture of experts, under its published name."""

    feed_forward_name = "block_sparse_moe"


class Mixtral(BaseModel):
    """As Mistral, with a sparse mixture of experts in place of each feed-forward block."""

    model_type = "mixtral"
    architecture = "MixtralForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases = DECODER_NAMES
    defaults: ClassVar[Mapping[str, Any]] = {
        "norm_eps": 1e-5,
        "rope_theta": 1e6,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    }

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.model = Decoder(sizes, [self._layer(window) for window in self.layer_windows], RMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        return (self.config.sliding_window,) * self.config.num_hidden_layers

    def _layer(self, window: int | None) -> DecoderLayer:
        experts = [Expert(self.config) for _ in range(self.config.num_local_experts)]
        mixture = SparseMoe(self.config, experts)
        return MixtralLayer(self.config, Attention(self.config, window=window), mixture, RMSNorm)

    @classmethod
    def adapt_checkpoint(cls, tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Newer files call the block mlp, and stack its experts: gate_up_proj [E, 2I, C], down_proj [E, C, I]."""
        renamed = {
            re.sub(r"^(model\.layers\.\d+)\.mlp\.", r"\1.block_sparse_moe.", name): tensor
            for name, tensor in super().adapt_checkpoint(tensors, config).items()
        }
        return split_experts(renamed, ("w1.weight", "w3.weight"), "w2.weight")

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
