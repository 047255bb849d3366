"""The first GPT, openai-gpt (Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training")."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.base_model import AnyCache, BaseModel
from genx.core.cache import Cache, Entry
from genx.core.fused import FusedAttention, FusedMLP
from genx.core.positions import Positions


class GPTLayer(nn.Module):
    """Attention, then an MLP, each added to its input and normalised after."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attn = FusedAttention(config)
        self.ln_1 = nn.LayerNorm(config.hidden_size, config.norm_eps)
        # In this model's files "gelu" has always named the tanh form.
        self.mlp = FusedMLP(config, "gelu_new" if config.hidden_act == "gelu" else config.hidden_act)
        self.ln_2 = nn.LayerNorm(config.hidden_size, config.norm_eps)

    def forward(self, hidden: Tensor, step: Positions, entry: Entry | None) -> tuple[Tensor, Entry | None]:
        """`hidden` [B, T, C] to [B, T, C], and the next cache entry."""
        mixed, entry = self.attn(hidden, step, entry)
        hidden = self.ln_1(hidden + mixed)
        return self.ln_2(hidden + self.mlp(hidden)), entry


class GPT(BaseModel):
    """Post-norm decoder with LayerNorm, learned positions, a tied head and no last norm."""

    model_type = "openai-gpt"
    architecture = "OpenAIGPTLMHeadModel"
    embedding_name = "transformer.tokens_embed.weight"
    rotary = False
    aliases: ClassVar[Mapping[str, str]] = {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings",
        "afn": "hidden_act",
        "layer_norm_epsilon": "norm_eps",
    }
    defaults: ClassVar[Mapping[str, Any]] = {"hidden_act": "gelu", "norm_eps": 1e-5, "tie_word_embeddings": True}

    def __init__(self, config: ModelConfig | Mapping[str, Any]) -> None:
        super().__init__(config)
        sizes = self.config
        self.transformer = nn.ModuleDict(
            {
                "tokens_embed": nn.Embedding(sizes.vocab_size, sizes.hidden_size),
                "positions_embed": nn.Embedding(sizes.max_position_embeddings, sizes.hidden_size),
                "drop": nn.Dropout(sizes.embd_pdrop),
                "h": nn.ModuleList(GPTLayer(sizes) for _ in range(sizes.num_hidden_layers)),
            }
        )
        self.lm_head = nn.Linear(sizes.hidden_size, sizes.vocab_size, bias=False)
        self.finish_init()

    @classmethod
    def adapt_checkpoint(cls, tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Old files lack the transformer. prefix and carry the causal mask and the position numbers as buffers."""
        return {
            name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor
            for name, tensor in super().adapt_checkpoint(tensors, config).items()
            if not re.search(r"(\.attn\.bias|position_ids)$", name)
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
        hidden = part["drop"](part["tokens_embed"](x) + part["positions_embed"](step.positions))  # [B, T, C]
        following: list[Entry] = []
        for layer, entry in zip(part["h"], entries, strict=True):  # type: ignore[call-overload]
            hidden, after = layer(hidden, step, entry)
            following.append(after)
        return self.head(hidden, step, logits_to_keep), following if use_cache else None
