"""The tokens that a run reads, made anew from a seed for each repeat, so that no prefix can be reused. No torch.

Peers are given the very same ids.
"""

import random
from collections.abc import Sequence

from genx.errors import UsageError

Rows = list[list[int]]


def random_rows(seed: int, rows: int, length: int, vocab_size: int) -> Rows:
    """Ids that are equally likely: `rows` times `length` of them."""
    drawn = random.Random(seed).choices(range(vocab_size), k=rows * length)
    return [drawn[row * length : (row + 1) * length] for row in range(rows)]


def text_rows(seed: int, rows: int, length: int, text: Sequence[int]) -> Rows:
    """Pieces of `length` ids from places of a text, drawn anew for each row.

    Raises:
        UsageError: the text is shorter than that.
    """
    if len(text) < length:
        raise UsageError(f"the prompt file has {len(text):,} tokens; {length:,} are needed; give a longer text")
    draw = random.Random(seed)
    starts = [draw.randint(0, len(text) - length) for _ in range(rows)]
    return [list(text[start : start + length]) for start in starts]
