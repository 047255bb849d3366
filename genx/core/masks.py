"""Attention masks as callers give them: checked, turned into bool, and split at the cache's end.

Shapes: see the legend in genx/core/base_model.py.
"""

import torch
from torch import Tensor

from genx.errors import ArgumentError


def check_generation_mask(attention_mask: Tensor, x: Tensor) -> Tensor | None:
    """Check a prompt's mask, and return it as bool [B, P]; None if it hides nothing.

    Args:
        attention_mask: [B, P] of 0 and 1 in any dtype; 0 hides a token.
        x: [B, P], the prompt.

    Raises:
        ArgumentError: (a ValueError) another shape or value, or a row whose last token is hidden: text would go on
            from padding.
    """
    if attention_mask.shape != x.shape:
        raise ArgumentError(
            "{attention_mask} has the shape {given}; allowed: the prompt's, {allowed}",
            given=list(attention_mask.shape),
            allowed=list(x.shape),
        )
    mask = mask_as_bool(attention_mask)
    if not bool(mask[:, -1:].all()):
        rows = (~mask[:, -1]).nonzero().flatten().tolist()
        raise ArgumentError(
            "{attention_mask} hides the last token of row {rows}; allowed: padding on the left only",
            rows=", ".join(map(str, rows)),
        )
    return None if bool(mask.all()) else mask


def mask_as_bool(attention_mask: Tensor) -> Tensor:
    """A mask of 0 and 1 as bool.

    Raises:
        ArgumentError: (a ValueError) it holds anything else.
    """
    if attention_mask.dtype == torch.bool:
        return attention_mask
    mask = attention_mask == 1
    if not bool((mask | (attention_mask == 0)).all()):
        raise ArgumentError("{attention_mask} holds values other than 0 and 1; allowed: 1 for a token, 0 for padding")
    return mask


def split_mask(
    attention_mask: Tensor | None, batch: int, seen: int, length: int
) -> tuple[Tensor | None, Tensor | None]:
    """A mask's new columns, bool [B, T], and its past ones, bool [B, seen]; None for a part that hides nothing."""
    if attention_mask is None:
        return None, None
    if attention_mask.shape != (batch, seen + length):
        raise ArgumentError(
            "{attention_mask} has the shape {given}; allowed: {allowed}, a column per token seen, cached ones included",
            given=list(attention_mask.shape),
            allowed=[batch, seen + length],
        )
    mask = mask_as_bool(attention_mask)
    if bool(mask.all()):
        return None, None
    past, new = mask[:, :seen], mask[:, seen:]
    return (None if bool(new.all()) else new), past


def check_past(past_mask: Tensor | None, rows: Tensor | None, seen: int) -> None:
    """A mask cannot hide now what the cache holds, or show what it left out."""
    if past_mask is None:
        return
    given = past_mask.sum(-1)  # [B]
    held = torch.full_like(given, seen) if rows is None else rows
    if not torch.equal(given, held):
        raise ArgumentError(
            "{attention_mask} shows {given} cached tokens a row; allowed: {held}, as when the cache was filled",
            given=given.tolist(),
            held=held.tolist(),
        )
