"""Beginnings that prompts share, read once and gone on from by each.

Rows with one system text or the same few-shot examples, and several samples of one prompt, begin alike; what counts is
the token ids. Shapes: see the legend in genx/core/base_model.py.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from genx.core.cache import LayerCache

# Fewer tokens are read again in less time than the copies take.
_SHORTEST = 16
_MOST_KEPT = 4


@dataclass
class SharedPrefix:
    """Token ids that several prompts begin with, and the cache that has read them; it is only ever forked."""

    ids: tuple[int, ...]
    cache: list[LayerCache]
    nbytes: int

    def fork(self, at_most: int) -> list[LayerCache]:
        """A cache of its own for a text that can come to `at_most` positions."""
        return [layer.fork(at_most) for layer in self.cache]


def shared_length(ids: Sequence[int], others: Iterable[Sequence[int]]) -> int:
    """How many first ids are worth reading apart from the rest: those that another prompt has too.

    At least one id is left for the prompt itself, whose logits choose its first token.
    """
    longest = max((common_length(ids, other) for other in others), default=0)
    longest = min(longest, len(ids) - 1)
    return longest if longest >= _SHORTEST else 0


class Prefixes:
    """The shared prefixes that are kept, a few at a time; the one that was not used for longest goes first."""

    def __init__(self) -> None:
        self._kept: list[SharedPrefix] = []

    @property
    def nbytes(self) -> int:
        """The most bytes that all of them take."""
        return sum(prefix.nbytes for prefix in self._kept)

    @property
    def allocated(self) -> int:
        """Bytes that their caches have allocated now."""
        return sum(layer.nbytes for prefix in self._kept for layer in prefix.cache)

    def find(self, ids: Sequence[int]) -> SharedPrefix | None:
        """The longest kept prefix of these ids that leaves one of them."""
        fitting = [p for p in self._kept if len(p.ids) < len(ids) and tuple(ids[: len(p.ids)]) == p.ids]
        if not fitting:
            return None
        best = max(fitting, key=lambda prefix: len(prefix.ids))
        self._kept.remove(best)
        self._kept.append(best)
        return best

    def keep(self, prefix: SharedPrefix) -> None:
        """Keep one more, and let the oldest go if there are many."""
        self._kept.append(prefix)
        del self._kept[:-_MOST_KEPT]

    def release(self, fits: Callable[[], bool]) -> None:
        """Let the oldest go until `fits`, or none is left."""
        while self._kept and not fits():
            del self._kept[0]


def common_length(ids: Sequence[int], other: Sequence[int]) -> int:
    """How many first ids two sequences have in common."""
    pairs = enumerate(zip(ids, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(ids), len(other)))
