"""How many positions a layer of genx's own cache allocates.

One place for the cache that allocates them and for the calculator that predicts them; it needs no torch.
"""

WHOLE_UP_TO = 4096  # positions; a cache this small is allocated once and never grows
GROWTH = 1024  # positions; a larger one grows in steps, so that an early end has not paid for the longest text


def allocated_positions(needed: int, at_most: int, window: int | None = None) -> int:
    """Positions that one layer holds room for.

    Args:
        needed: positions that must be stored now.
        at_most: positions that the whole generation can come to, min(prompt + new tokens, context).
        window: the layer attends to this many last positions only, and stores no more; None for all.
    """
    limit = at_most if window is None else min(at_most, window)
    if limit <= WHOLE_UP_TO:
        return limit
    return min(limit, -(-max(needed, 1) // GROWTH) * GROWTH)
