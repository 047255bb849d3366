"""Scaled dot-product attention over a cache, with grouped key/value heads and windows.

Vaswani et al. 2017, arXiv:1706.03762, section 3.2; grouped-query attention: Ainslie et al. 2023, arXiv:2305.13245.
Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genx.config import ModelConfig
from genx.core.cache import Entry, LayerCache, RowEntries
from genx.core.division import Division, Inputs, Outputs, Units
from genx.core.positions import Positions
from genx.core.rope import apply_rotary


@dataclass(frozen=True)
class Scoring:
    """How a query scores a key, where it is not their product over the square root of D."""

    scale: float | None = None
    """Multiplies the product; None is 1 / sqrt(D)."""

    softcap: float | None = None
    """Scores are bent to stay within this: cap * tanh(score / cap) (Gemma Team 2024, arXiv:2408.00118, section 2)."""

    sinks: Tensor | None = None
    """[H], a score of each head that takes part in the softmax and has no value (OpenAI 2025, arXiv:2508.10925)."""


PLAIN_SCORING = Scoring()


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Positions,
    entry: Entry | None,
    window: int | None = None,
    dropout: float = 0.0,
    scoring: Scoring = PLAIN_SCORING,
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
        scoring: how a query scores a key.

    Returns:
        [B, T, H * D], and the next cache entry.
    """
    if isinstance(entry, RowEntries):
        return _attend_rows(query, key, value, step, entry, window, dropout, scoring)
    if entry is None:
        mask = step.new_mask(window)
    else:
        key, value, mask, entry = entry.attended(key, value, step)
    batch, heads, length, head_dim = query.shape
    groups = key.size(1)
    if scoring.softcap is not None or scoring.sinks is not None:
        mixed = _mix_by_hand(query, key, value, mask, dropout, scoring)  # [B, H, T, D]
    elif length == 1 and groups < heads:
        # One query position: the H/G heads of a group are then just rows of queries over the same keys.
        grouped = query.view(batch, groups, heads // groups, head_dim)  # [B, G, H/G, D]
        mixed = F.scaled_dot_product_attention(
            grouped, key, value, attn_mask=mask, dropout_p=dropout, scale=scoring.scale
        )
        return mixed.reshape(batch, 1, heads * head_dim), entry  # [B, 1, H * D]
    else:
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=dropout,
            is_causal=mask is None and length > 1,
            scale=scoring.scale,
            enable_gqa=groups < heads,
        )  # [B, H, T, D]
    return mixed.transpose(1, 2).reshape(batch, length, heads * head_dim), entry  # [B, T, H * D]


def _mix_by_hand(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, scoring: Scoring
) -> Tensor:
    """What no fused operation computes: bent scores, or sinks. Softmax in float32."""
    batch, heads, length, head_dim = query.shape
    groups, seen = key.size(1), key.size(2)
    grouped = query.view(batch, groups, heads // groups, length, head_dim)  # [B, G, H/G, T, D]
    scores = grouped @ key.unsqueeze(2).transpose(-1, -2)  # [B, G, H/G, T, S]
    scores = scores * (head_dim**-0.5 if scoring.scale is None else scoring.scale)
    scores = capped(scores, scoring.softcap)
    scores = scores.view(batch, heads, length, seen).float()  # [B, H, T, S]
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif length > 1:
        scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(), float("-inf"))
    if scoring.sinks is not None:
        sinks = scoring.sinks.float().view(1, heads, 1, 1).expand(batch, heads, length, 1)
        weights = torch.softmax(torch.cat((scores, sinks), dim=-1), dim=-1)[..., :-1]  # [B, H, T, S]
    else:
        weights = torch.softmax(scores, dim=-1)
    weights = F.dropout(weights.to(value.dtype), dropout)
    grouped = weights.view(batch, groups, heads // groups, length, seen)  # [B, G, H/G, T, S]
    return (grouped @ value.unsqueeze(2)).view(batch, heads, length, head_dim)  # [B, H, T, D]


def capped(scores: Tensor, cap: float | None) -> Tensor:
    """Scores bent to stay within `cap`; as they are without one."""
    return scores if cap is None else torch.tanh(scores / cap) * cap


def _attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    step: Positions,
    entries: RowEntries,
    window: int | None,
    dropout: float,
    scoring: Scoring,
) -> tuple[Tensor, RowEntries]:
    mixed: list[Tensor] = []
    following: list[LayerCache] = []
    queries, keys, values = (torch.split(heads, list(entries.lengths), dim=2) for heads in (query, key, value))
    for row, (row_step, entry) in enumerate(zip(step.row_steps, entries.rows, strict=True)):
        # Memory of its own: a product's last bits may depend on the strides and the alignment of what it reads.
        own = queries[row].clone(memory_format=torch.contiguous_format)  # [1, H, the row's tokens, D]
        out, after = attend(own, keys[row], values[row], row_step, entry, window, dropout, scoring)
        mixed.append(out)  # [1, the row's tokens, H * D]
        assert isinstance(after, LayerCache)
        following.append(after)
    return torch.cat(mixed, dim=1), RowEntries(following)  # [1, T, H * D]


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

    @property
    def heads(self) -> tuple[Units, Units]:
        """Query heads and key/value heads, as `division` cuts between them."""
        return (
            Units("num_attention_heads", self.num_heads, self.head_dim),
            Units("num_key_value_heads", self.num_key_value_heads, self.head_dim, repeats=True),
        )

    @property
    def division(self) -> Division:
        """Head by head."""
        queries, keys = self.heads
        return {
            "q_proj": Outputs((queries,)),
            "k_proj": Outputs((keys,)),
            "v_proj": Outputs((keys,)),
            "o_proj": Inputs(queries),
        }

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        query, key, value = self.project(hidden)
        query, key = apply_rotary(query, *rotary), apply_rotary(key, *rotary)
        return self.mix(query, key, value, step, entry)

    def project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [B, H, T, D], keys and values [B, G, T, D] of `hidden` [B, T, C]."""
        query, key, value = (
            projection(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        return query, key, value

    def mix(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        step: Positions,
        entry: Entry | None,
        scoring: Scoring = PLAIN_SCORING,
    ) -> tuple[Tensor, Entry | None]:
        """What `project` gives, rotated, to the block's output [B, T, C], and the next cache entry."""
        dropout = self.dropout if self.training else 0.0
        mixed, entry = attend(query, key, value, step, entry, self.window, dropout, scoring)  # [B, T, H * D]
        return self.o_proj(mixed), entry


class HeadNormAttention(Attention):
    """Attention whose queries and keys are normalised head by head (Henry et al. 2020, arXiv:2010.04245)."""

    def __init__(
        self,
        config: ModelConfig,
        norm: Callable[[int, float], nn.Module],
        *,
        window: int | None = None,
        bias: bool = False,
        scoring: Scoring = PLAIN_SCORING,
    ) -> None:
        """
        Args:
            config: sizes.
            norm: makes a norm of a size and an epsilon.
            window: as in Attention.
            bias: whether all four projections have biases.
            scoring: how a query scores a key.
        """
        super().__init__(config, window=window, bias=bias, output_bias=bias)
        self.q_norm = norm(config.head_dim, config.norm_eps)
        self.k_norm = norm(config.head_dim, config.norm_eps)
        self.scoring = scoring

    def forward(
        self, hidden: Tensor, step: Positions, rotary: tuple[Tensor, Tensor], entry: Entry | None
    ) -> tuple[Tensor, Entry | None]:
        """Attention of `hidden` [B, T, C] over itself and the cache: [B, T, C], and the next cache entry."""
        query, key, value = self.project(hidden)
        query, key = apply_rotary(self.q_norm(query), *rotary), apply_rotary(self.k_norm(key), *rotary)
        return self.mix(query, key, value, step, entry, self.scoring)
