"""SmolLM3 (Hugging Face 2025; rotary positions in three of four layers: Yang et al. 2025, arXiv:2501.18795)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache, Entry
from genx.core.decoder import DECODER_NAMES, Decoder, DecoderLayer
from genx.core.feed_forward import GatedMLP
from genx.core.norm import RMSNorm
from genx.core.positions import Positions
from genx.core.windows import windows_by_layer


class UnrotatedAttention(Attention):
    """Attention that knows no positions but through its causal mask."""

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        del rotary
        return self.mix(*self.project(hidden), step, entry)


class SmolLM3(BaseModel):
    """As LLaMA, with every fourth layer left without rotary positions."""

    model_type = "smollm3"
    architecture = "SmolLM3ForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases = DECODER_NAMES
    defaults: ClassVar[Mapping[str, Any]] = {"tie_word_embeddings": True, "rope_theta": 2e6}

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        layers = [self._layer(*kind) for kind in zip(self._rotates(), self.layer_windows, strict=True)]
        self.model = Decoder(sizes, layers, RMSNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        if not self.config.extra.flag("use_sliding_window", False):
            return super().layer_windows
        rotates = self._rotates()
        return windows_by_layer(self.config, lambda layer: not rotates[layer])

    def _rotates(self) -> list[bool]:
        count = self.config.num_hidden_layers
        flags = self.config.extra.whole_numbers(
            "no_rope_layers", count
        )  # 1, despite the name, where positions do rotate
        if flags is None:
            interval = self.config.extra.whole("no_rope_layer_interval", 4, smallest=1)
            return [(layer + 1) % interval != 0 for layer in range(count)]
        return [bool(flag) for flag in flags]

    def _layer(self, rotates: bool, window: int | None) -> DecoderLayer:
        kind = Attention if rotates else UnrotatedAttention
        bias = self.config.extra.flag("attention_bias", False)
        attention = kind(self.config, window=window, bias=bias, output_bias=bias)
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
