"""LLaMA 1 to 3, and SmolLM2 (Touvron et al. 2023, arXiv:2302.13971; Llama 3: arXiv:2407.21783)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache
from genx.core.decoder import DECODER_NAMES, Decoder, DecoderLayer
from genx.core.feed_forward import GatedMLP
from genx.core.norm import RMSNorm


class Llama(BaseModel):
    """Pre-norm decoder with RMSNorm, rotary positions, grouped-query attention and a gated feed-forward block."""

    model_type = "llama"
    architecture = "LlamaForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases = DECODER_NAMES

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.model = Decoder(sizes, [self._layer() for _ in range(sizes.num_hidden_layers)], RMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    def _layer(self) -> DecoderLayer:
        bias = self.config.extra.flag("attention_bias", False)
        attention = Attention(self.config, bias=bias, output_bias=bias)
        mlp = GatedMLP(self.config, self.config.hidden_act, bias=self.config.extra.flag("mlp_bias", False))
        return DecoderLayer(self.config, attention, mlp, RMSNorm)

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
