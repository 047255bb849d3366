"""Gemma 1: 2B and 7B (Gemma Team 2024, arXiv:2403.08295, section 2)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache
from genx.core.decoder import DECODER_NAMES, Decoder, DecoderLayer
from genx.core.feed_forward import GatedMLP
from genx.core.norm import UnitOffsetRMSNorm


class Gemma(BaseModel):
    """As LLaMA, with a head size of its own, scaled embeddings, norms around 1 + weight, and a tanh-GELU gate."""

    model_type = "gemma"
    architecture = "GemmaForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases = DECODER_NAMES
    defaults: ClassVar[Mapping[str, Any]] = {"hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True}

    refused = ("use_bidirectional_attention",)

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.model = Decoder(sizes, [self._layer() for _ in range(sizes.num_hidden_layers)], UnitOffsetRMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    def _layer(self) -> DecoderLayer:
        bias = self.config.extra.flag("attention_bias", False)
        attention = Attention(self.config, bias=bias, output_bias=bias)
        return DecoderLayer(self.config, attention, GatedMLP(self.config, self._gate_activation()), UnitOffsetRMSNorm)

    def _gate_activation(self) -> str:
        # The first official configs say "gelu" where the weights were trained with the tanh form;
        # hidden_activation was added later to say what is meant.
        explicit = self.config.extra.get("hidden_activation")
        if explicit is not None:
            return str(explicit)
        return "gelu_pytorch_tanh" if self.config.hidden_act == "gelu" else self.config.hidden_act

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
        # The factor is rounded to the model's dtype, as it was in training: 55.5 for 3072 in bfloat16.
        hidden = embedded * torch.tensor(self.config.hidden_size**0.5, dtype=embedded.dtype, device="cpu")
        hidden, following = self.model(hidden, step, entries)  # [B, T, C]
        return self.head(hidden, step, logits_to_keep), following
