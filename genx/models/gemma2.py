"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118, section 2)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention, Scoring, capped
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache, Entry
from genx.core.decoder import DECODER_NAMES, Decoder, SandwichLayer
from genx.core.feed_forward import GatedMLP
from genx.core.norm import UnitOffsetRMSNorm
from genx.core.positions import Positions
from genx.core.rope import apply_rotary
from genx.core.windows import windows_by_layer


class Gemma2Attention(Attention):
    """Attention with a scale of its own, and scores that are bent to stay within a cap."""

    def __init__(self, config: ModelConfig, window: int | None) -> None:
        bias = config.extra.flag("attention_bias", False)
        super().__init__(config, window=window, bias=bias, output_bias=bias)
        scale = config.extra.positive("query_pre_attn_scalar", 256) ** -0.5
        self.scoring = Scoring(scale=scale, softcap=config.extra.number_or_off("attn_logit_softcapping", 50.0))

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        query, key, value = self.project(hidden)
        query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        return self.mix(query, key, value, step, entry, self.scoring)


class Gemma2(BaseModel):
    """As Gemma, with norms on both sides of each block, capped scores and logits, and windows in every other layer."""

    model_type = "gemma2"
    architecture = "Gemma2ForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases: ClassVar[Mapping[str, str]] = {**DECODER_NAMES, "hidden_activation": "hidden_act"}
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }

    refused = ("use_bidirectional_attention",)

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.logit_cap = sizes.extra.number_or_off("final_logit_softcapping", 30.0)
        self.model = Decoder(sizes, [self._layer(window) for window in self.layer_windows], UnitOffsetRMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        return windows_by_layer(self.config, lambda layer: layer % 2 == 0)

    def _layer(self, window: int | None) -> SandwichLayer:
        attention = Gemma2Attention(self.config, window)
        return SandwichLayer(self.config, attention, GatedMLP(self.config, self.config.hidden_act), UnitOffsetRMSNorm)

    def head(self, hidden: Tensor, step: Positions, logits_to_keep: int | None) -> Tensor:
        logits = super().head(hidden, step, logits_to_keep)
        return capped(logits, self.logit_cap)

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
        embedded = self.model.embed_tokens(x)  # [B, T, C]
        # The factor is rounded to the model's dtype, as it was in training.
        hidden = embedded * torch.tensor(self.config.hidden_size**0.5, dtype=embedded.dtype, device="cpu")
        hidden, following = self.model(hidden, step, entries)  # [B, T, C]
        return self.head(hidden, step, logits_to_keep), following
