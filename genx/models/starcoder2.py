"""StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173, section 5)."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import Attention
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache
from genx.core.decoder import Decoder, DecoderLayer
from genx.core.feed_forward import MLP


class StarCoder2(BaseModel):
    """Pre-norm decoder with LayerNorm, biases, rotary positions, a window, and a plain feed-forward block."""

    model_type = "starcoder2"
    architecture = "Starcoder2ForCausalLM"
    embedding_name = "model.embed_tokens.weight"
    aliases: ClassVar[Mapping[str, str]] = {"norm_epsilon": "norm_eps", "attention_dropout": "attn_pdrop"}
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_act": "gelu_pytorch_tanh",
        "norm_eps": 1e-5,
        "tie_word_embeddings": True,
    }

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.model = Decoder(sizes, [self._layer(window) for window in self.layer_windows], nn.LayerNorm)
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @property
    def layer_windows(self) -> tuple[int | None, ...]:
        return (self.config.sliding_window,) * self.config.num_hidden_layers

    def _layer(self, window: int | None) -> DecoderLayer:
        bias = self.config.extra.flag("use_bias", True)
        attention = Attention(self.config, window=window, bias=bias, output_bias=bias)
        return DecoderLayer(self.config, attention, MLP(self.config, ("c_fc", "c_proj"), bias=bias), nn.LayerNorm)

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
