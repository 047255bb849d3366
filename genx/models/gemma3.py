"""Gemma 3, the text models (Gemma Team 2025, arXiv:2503.19786, section 2)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from genx.config import ModelConfig, RopeConfig
from genx.config_fields import shown
from genx.core.attention import HeadNormAttention, Scoring, capped
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache
from genx.core.decoder import DECODER_NAMES, Decoder, Norm, SandwichLayer
from genx.core.feed_forward import GatedMLP
from genx.core.norm import UnitOffsetRMSNorm
from genx.core.positions import Positions
from genx.core.rope import RotaryEmbedding
from genx.core.windows import windows_by_layer
from genx.errors import ConfigError


class Gemma3Decoder(Decoder):
    """A decoder whose sliding layers turn positions by a frequency of their own."""

    def __init__(
        self, config: ModelConfig, layers: Sequence[nn.Module], norm: Norm, windows: Sequence[int | None]
    ) -> None:
        super().__init__(config, layers, norm)
        self.local_rotary = RotaryEmbedding(dataclasses.replace(config, rope=_local_rope(config)))
        self.windows = tuple(windows)

    def angles(self, step: Positions, dtype: torch.dtype) -> Sequence[tuple[Tensor, Tensor]]:
        everywhere = self.rotary(step.positions, dtype, step.text_lengths)
        nearby = self.local_rotary(step.positions, dtype, step.text_lengths)
        return [everywhere if window is None else nearby for window in self.windows]


def _local_rope(config: ModelConfig) -> RopeConfig:
    """Rotary positions of the sliding layers: under a name of their own in older files."""
    given = config.extra.get("local_rope_parameters", {})
    return RopeConfig.from_dict(given, theta=config.extra.positive("rope_local_base_freq", 1e4))


class Gemma3(BaseModel):
    """As Gemma 2 without caps, with queries and keys normalised head by head, and windows in five of six layers."""

    model_type = "gemma3_text"
    architecture = "Gemma3ForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases: ClassVar[Mapping[str, str]] = {**DECODER_NAMES, "hidden_activation": "hidden_act"}
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        "rope_theta": 1e6,
    }

    refused = ("use_bidirectional_attention",)

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes, windows = self.config, self.layer_windows
        self.logit_cap = sizes.extra.number_or_off("final_logit_softcapping", None)
        self.model = Gemma3Decoder(sizes, [self._layer(window) for window in windows], UnitOffsetRMSNorm, windows)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @classmethod
    def read_config(cls, source: Mapping[str, Any]) -> ModelConfig:
        """Newer files hold one set of rotary parameters for each kind of layer."""
        rope = source.get("rope_parameters")
        if isinstance(rope, Mapping) and "full_attention" in rope:
            local = rope.get("sliding_attention") or {}
            if not isinstance(local, Mapping):
                raise ConfigError(f"rope_parameters.sliding_attention is {shown(local)}; allowed: an object")
            source = {**source, "rope_parameters": rope["full_attention"], "local_rope_parameters": local}
        return super().read_config(source)

    def config_dict(self) -> dict[str, Any]:
        written = super().config_dict()
        written.pop("local_rope_parameters", None)
        written["rope_parameters"] = {
            "full_attention": self.config.rope.to_dict(),
            "sliding_attention": _local_rope(self.config).to_dict(),
        }
        return written

    def head(self, hidden: Tensor, step: Positions, logits_to_keep: int | None) -> Tensor:
        return capped(super().head(hidden, step, logits_to_keep), self.logit_cap)

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        every = self.config.extra.whole("sliding_window_pattern", 6, smallest=1)
        return windows_by_layer(self.config, lambda layer: (layer + 1) % every != 0)

    def _layer(self, window: int | None) -> SandwichLayer:
        attention = HeadNormAttention(
            self.config,
            UnitOffsetRMSNorm,
            window=window,
            bias=self.config.extra.flag("attention_bias", False),
            # No cap on scores: the paper has none, and transformers too leaves attn_logit_softcapping aside here.
            scoring=Scoring(scale=self.config.extra.positive("query_pre_attn_scalar", 256) ** -0.5),
        )
        return SandwichLayer(self.config, attention, GatedMLP(self.config, self.config.hidden_act), UnitOffsetRMSNorm)

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
