"""Qwen3, the dense models (Qwen Team 2025, arXiv:2505.09388, section 2)."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import HeadNormAttention
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache
from genx.core.decoder import DECODER_NAMES, Decoder, DecoderLayer
from genx.core.feed_forward import GatedMLP
from genx.core.norm import RMSNorm
from genx.core.windows import windows_from_a_layer_on


class Qwen3(BaseModel):
    """As Qwen2 without biases, with queries and keys normalised head by head."""

    model_type = "qwen3"
    architecture = "Qwen3ForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases = DECODER_NAMES

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.model = Decoder(sizes, [self._layer(window) for window in self.layer_windows], RMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        return windows_from_a_layer_on(self.config)

    def _layer(self, window: int | None) -> DecoderLayer:
        bias = self.config.extra.flag("attention_bias", False)
        attention = HeadNormAttention(self.config, RMSNorm, window=window, bias=bias)
        return DecoderLayer(self.config, attention, GatedMLP(self.config, self.config.hidden_act), RMSNorm)

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
