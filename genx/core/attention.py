"""Scaled dot-product attention over a cache, with grouped key/value heads and windows.

Vaswani et al. 2017, arXiv:1706.03762, section 3.2; grouped-query attention: Ainslie et al. 2023, arXiv:2305.13245.
Shapes: see the legend in genx/core/base_model.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.cache import Entry, LayerCache, RowEntries
from genx.core.positions import Positions
from genx.core.rope import apply_rotary


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Positions,
    entry: Entry | None,
    window: int | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Entry | None]:
    """Each query's mix of the values whose keys it may see, the cached ones included.

    Args:
        query: [B, H, T, D].
        key: [B, G, T, D], G divides H; heads h * H/G ... of the queries share one.
        value: [B, G, T, D].
        step: where the T tokens stand.
        entry: the layer's cache, or None.
        window: each query sees itself and this many positions less one before it; None for all.
        dropout: probability with which a weight is dropped.

    Returns:
        [B, T, H * D], and the next cache entry.
    """
    if isinstance(entry, RowEntries):
        return _attend_rows(query, key, value, step, entry, window, dropout)
    if entry is None:
        mask = step.new_mask(window)
    else:
        key, value, mask, entry = entry.attended(key, value, step)
    batch, heads, length, head_dim = query.shape
    groups = key.size(1)
    if length == 1 and groups < heads and mask is None:
        # One query position: the H/G heads of a group are then just rows of queries over the same keys.
        grouped = query.view(batch, groups, heads // groups, head_dim)  # [B, G, H/G, D]
        mixed = F.scaled_dot_product_attention(grouped, key, value, dropout_p=dropout)
        return mixed.reshape(batch, 1, heads * head_dim), entry  # [B, 1, H * D]
    mixed = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=mask is None and length > 1,
        enable_gqa=groups < heads,
    )  # [B, H, T, D]
    return mixed.transpose(1, 2).reshape(batch, length, heads * head_dim), entry  # [B, T, H * D]


def _attend_rows(
    query: Tensor, key: Tensor, value: Tensor, step: Positions, entries: RowEntries, window: int | None, dropout: float
) -> tuple[Tensor, RowEntries]:
    mixed: list[Tensor] = []
    following: list[LayerCache] = []
    for row, (row_step, entry) in enumerate(zip(step.row_steps, entries.rows, strict=True)):
        own = slice(row, row + 1)
        out, after = attend(query[own], key[own], value[own], row_step, entry, window, dropout)  # [1, 1, H * D]
        mixed.append(out)
        assert isinstance(after, LayerCache)
        following.append(after)
    return torch.cat(mixed), RowEntries(following)  # [B, 1, H * D]


class Attention(nn.Module):
    """Grouped-query attention with rotary positions, as the LLaMA family has it."""

    def __init__(
        self, config: ModelConfig, *, window: int | None = None, bias: bool = False, output_bias: bool = False
    ) -> None:
        """
        Args:
            config: sizes.
            window: last positions that a query sees, itself included; None for all.
            bias: whether the query, key and value projections have biases.
            output_bias: whether the output projection has one.
        """
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_key_value_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.window = window
        self.dropout = config.attn_pdrop
        query_size = config.num_attention_heads * config.head_dim
        key_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=output_bias)

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        batch, length, _ = hidden.shape
        query = self.q_proj(hidden).view(batch, length, self.num_heads, self.head_dim).transpose(1, 2)  # [B, H, T, D]
        key, value = (
            projection(hidden).view(batch, length, self.num_key_value_heads, self.head_dim).transpose(1, 2)
            for projection in (self.k_proj, self.v_proj)
        )  # [B, G, T, D] each
        query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        dropout = self.dropout if self.training else 0.0
        mixed, entry = attend(query, key, value, step, entry, self.window, dropout)  # [B, T, H * D]
        return self.o_proj(mixed), entry
