"""Backwards: what fits into a memory. Answers are exact, found by search on the very function that counts the bytes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from genx.errors import UsageError
from genx.kv_size.allocation import Request
from genx.kv_size.engines import size
from genx.kv_size.layers import Model
from genx.kv_size.quantities import LARGEST_BATCH, LARGEST_TOKENS


@dataclass(frozen=True)
class Budget:
    """Bytes of one device: what there is, and what is spoken for before the cache.

    Attributes:
        memory: of the device.
        weights: on this device.
        reserve: kept free.
    """

    memory: int
    weights: int
    reserve: int

    @property
    def for_cache(self) -> int:
        """What is left for the cache; negative where nothing is."""
        return self.memory - self.weights - self.reserve


def required_bytes(model: Model, request: Request) -> int:
    """Keys, values and recurrent states together.

    Raises:
        UsageError: the states are unknown, so that nothing can be said about what fits.
    """
    total = size(model, request).total_bytes
    if total is None:
        raise UsageError(
            "whether it fits depends on the recurrent state, whose fields the configuration lacks; give its bytes a "
            "sequence with --state-bytes, or its fields with --set"
        )
    return total


def largest_context(model: Model, request: Request, budget: Budget) -> int:
    """The most tokens a sequence that fit at this batch, 0 if not one does.

    Learned positions and `LARGEST_TOKENS` end the search; a trained rotary context doesn't.
    """
    limit = model.positions if model.learned_positions and model.positions else LARGEST_TOKENS

    def fits(tokens: int) -> bool:
        sequences = ((request.batch, tokens),)
        return required_bytes(model, replace(request, sequences=sequences)) <= budget.for_cache

    return _largest(fits, limit)


def largest_batch(model: Model, request: Request, budget: Budget) -> int:
    """The most sequences of this length that fit, 0 if not one does."""

    def fits(batch: int) -> bool:
        sequences = ((batch, request.longest),)
        return required_bytes(model, replace(request, sequences=sequences)) <= budget.for_cache

    return _largest(fits, LARGEST_BATCH)


def most_copies(model: Model, request: Request, budget: Budget) -> int:
    """How many times all sequences of the request fit, for a mix of lengths."""

    def fits(copies: int) -> bool:
        sequences = tuple((copies * count, tokens) for count, tokens in request.sequences)
        return required_bytes(model, replace(request, sequences=sequences)) <= budget.for_cache

    return _largest(fits, LARGEST_BATCH)


def _largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` that fits; whatever is below one that fits, fits too."""
    below, above = 0, 1
    while above <= limit and fits(above):
        below, above = above, 2 * above
    above = min(above, limit + 1)
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if fits(middle) else (below, middle)
    return below
