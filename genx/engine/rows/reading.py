"""What one pass of the model reads of several rows: the next token of some, and of others a part of the prompt.

In blocks, which make a row the same to the last bit whatever runs beside it, passes are of BLOCK rows that generate or
of one prompt. Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from genx.core.cache import LayerCache, join_rows, split_rows
from genx.core.loop import PREFILL_CHUNK
from genx.engine.rows.active_row import ActiveRow
from genx.engine.rows.invariance import BLOCK, FixedBlocks

if TYPE_CHECKING:
    from genx.core.base_model import BaseModel

# Prompt tokens that a pass reads at most beside rows that generate: enough for full-speed matrix products, and no more,
# for the rows wait that long for their tokens.
PROMPT_TOKENS = 128


@dataclass(frozen=True)
class Part:
    """The next `length` tokens of a row."""

    row: ActiveRow
    length: int


def parts_to_read(rows: Sequence[ActiveRow], in_blocks: bool) -> list[Part]:
    """What the next turn reads of rows that go on with their caches: one token of each that generates, and prompts."""
    parts: list[Part] = []
    # In blocks the parts of a prompt must not depend on what else goes on.
    waits = not in_blocks and any(row.generates for row in rows)
    budget = PROMPT_TOKENS if waits else PREFILL_CHUNK
    for row in rows:
        if row.generates:
            parts.append(Part(row, 1))
        elif budget > 0:
            length = min(row.unread, PREFILL_CHUNK if in_blocks else budget)
            parts.append(Part(row, length))
            budget -= length
    return parts


def groups_to_read(parts: Sequence[Part], in_blocks: bool) -> Iterator[Sequence[Part]]:
    """The parts of each pass."""
    if not in_blocks:
        if parts:
            yield parts
        return
    generating = [part for part in parts if part.row.generates]
    for start in range(0, len(generating), BLOCK):
        yield generating[start : start + BLOCK]
    for part in parts:
        if not part.row.generates:
            yield [part]


def read_parts(model: "BaseModel", parts: Sequence[Part], in_blocks: bool) -> Tensor:
    """One pass over a group: the logits [rows, V] after the last token of each part; their caches have read them."""
    lengths = [part.length for part in parts]
    tokens = torch.cat([part.row.next_tokens(part.length) for part in parts], dim=1)  # [1, T]
    caches = [cast("list[LayerCache]", part.row.cache) for part in parts]
    is_block = in_blocks and parts[0].row.generates
    if is_block:
        empty = BLOCK - len(parts)
        tokens, lengths = F.pad(tokens, (0, empty)), [*lengths, *[1] * empty]  # [1, BLOCK]
        caches += [model.new_cache(at_most=1) for _ in range(empty)]
    with FixedBlocks() if is_block else nullcontext():
        logits, joined = model(tokens, join_rows(caches, lengths), use_cache=True, logits_to_keep=1)  # [1, rows, V]
    for part, cache in zip(parts, split_rows(joined), strict=False):
        part.row.cache = cache
    return cast("Tensor", logits)[0, : len(parts)]
