"""The blocks of the first two GPTs: input-first projections, fused query/key/value, and a two-layer MLP.

Radford et al. 2018 and 2019. Shapes: see the legend in genx/core/base_model.py.
"""

from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.attention import attend
from genx.core.cache import Entry
from genx.core.conv1d import Conv1D
from genx.core.division import Division, Inputs, Outputs, Units, two_layers
from genx.core.feed_forward import activation
from genx.core.positions import Positions
from genx.errors import ConfigError


class FusedAttention(nn.Module):
    """Multi-head attention whose query, key and value come out of one projection."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        heads = config.num_attention_heads
        if config.num_key_value_heads != heads or config.head_dim * heads != config.hidden_size:
            raise ConfigError(
                f"{config.model_type} has one fused projection; allowed: as many key/value heads as attention heads, "
                f"and head_dim x heads = hidden_size, not {config.head_dim} x {heads} against {config.hidden_size}"
            )
        self.num_heads = heads
        self.head_dim = config.head_dim
        self.c_attn = Conv1D(config.hidden_size, 3 * config.hidden_size)
        self.c_proj = Conv1D(config.hidden_size, config.hidden_size)
        self.attn_pdrop = config.attn_pdrop
        self.resid_dropout = nn.Dropout(config.resid_pdrop)

    @property
    def division(self) -> Division:
        """Head by head."""
        heads = Units("num_attention_heads", self.num_heads, self.head_dim)
        return {"c_attn": Outputs((heads, heads, heads)), "c_proj": Inputs(heads)}

    def forward(self, hidden: Tensor, step: Positions, entry: Entry | None) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in self.c_attn(hidden).chunk(3, dim=-1)
        )  # [B, H, T, D] each
        mixed, entry = attend(query, key, value, step, entry, dropout=self.attn_pdrop if self.training else 0.0)
        return self.resid_dropout(self.c_proj(mixed)), entry


class FusedMLP(nn.Module):
    """Two projections with an activation between."""

    def __init__(self, config: ModelConfig, hidden_act: str) -> None:
        super().__init__()
        self.c_fc = Conv1D(config.hidden_size, config.intermediate_size)
        self.c_proj = Conv1D(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.resid_pdrop)
        self.activation = activation(hidden_act)
        self.inner = config.intermediate_size

    @property
    def division(self) -> Division:
        """Between inner channels."""
        return two_layers(("c_fc",), "c_proj", self.inner)

    def forward(self, hidden: Tensor) -> Tensor:
        """`hidden` [B, T, C] to [B, T, C]."""
        out: Tensor = self.dropout(self.c_proj(self.activation(self.c_fc(hidden))))  # inner: [B, T, I]
        return out
