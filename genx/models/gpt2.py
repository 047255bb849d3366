"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3)."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache, Entry
from genx.core.fused import FusedAttention, FusedMLP
from genx.core.positions import Positions
from genx.errors import ConfigError


class GPT2Layer(nn.Module):
    """Attention, then an MLP, each on a normalised input and added to what came in."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.attn = FusedAttention(config)
        self.ln_2 = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.mlp = FusedMLP(config, config.hidden_act)

    def forward(self, hidden: Tensor, step: Positions, entry: Entry | None) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        mixed, entry = self.attn(self.ln_1(hidden), step, entry)
        hidden = hidden + mixed
        return hidden + self.mlp(self.ln_2(hidden)), entry


class GPT2(BaseModel):
    """Pre-norm decoder with LayerNorm, learned positions and a tied head."""

    model_type = "gpt2"
    architecture = "GPT2LMHeadModel"
    embedding_name = "transformer.wte.weight"
    rotary = False
    aliases: ClassVar[Mapping[str, str]] = {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "n_positions": "max_position_embeddings",
        "activation_function": "hidden_act",
        "layer_norm_epsilon": "norm_eps",
    }
    defaults: ClassVar[Mapping[str, Any]] = {"hidden_act": "gelu_new", "norm_eps": 1e-5, "tie_word_embeddings": True}

    refused = ("add_cross_attention", "scale_attn_by_inverse_layer_idx")

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        if not sizes.extra.flag("scale_attn_weights", True):
            raise ConfigError("scale_attn_weights is false; allowed: true, genx computes no other GPT-2")
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(sizes.vocab_size, sizes.hidden_size),
                "wpe": nn.Embedding(sizes.max_position_embeddings, sizes.hidden_size),
                "drop": nn.Dropout(sizes.embd_pdrop),
                "h": nn.ModuleList(GPT2Layer(sizes) for _ in range(sizes.num_hidden_layers)),
                "ln_f": nn.LayerNorm(sizes.hidden_size, sizes.norm_eps),
            }
        )
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @classmethod
    def adapt_checkpoint(cls, tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Old files lack the transformer. prefix and carry the causal mask as buffers."""
        return {
            name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor
            for name, tensor in super().adapt_checkpoint(tensors, config).items()
            if not re.search(r"\.attn\.(bias|masked_bias)$", name)
        }

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
        part = self.transformer
        hidden = part["drop"](part["wte"](x) + part["wpe"](step.positions))  # [B, T, C]
        following: list[Entry] = []
        for layer, entry in zip(part["h"], entries, strict=True):  # type: ignore[call-overload]
            hidden, after = layer(hidden, step, entry)
            following.append(after)
        return self.head(part["ln_f"](hidden), step, logits_to_keep), following if use_cache else None
