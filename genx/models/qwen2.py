"""Qwen2 and Qwen2.5 (Yang et al. 2024, arXiv:2407.10671, section 2.2; Qwen Team 2024, arXiv:2412.15115)."""

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
from genx.core.windows import windows_from_a_layer_on


class Qwen2(BaseModel):
    """As LLaMA, with biases on queries, keys and values, and windows from a layer on if the files say so."""

    model_type = "qwen2"
    architecture = "Qwen2ForCausalLM"
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
        attention = Attention(self.config, window=window, bias=True)
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
