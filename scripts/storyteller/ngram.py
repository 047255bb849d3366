"""An n-gram model of token ids, to compare a trained model with.

Interpolated Kneser-Ney with one discount an order (Kneser and Ney 1995; Chen and Goodman 1999, section 3 and 4.1).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

Gram = tuple[int, ...]


class NGram:
    """Probabilities of the next token after up to `order - 1` tokens."""

    def __init__(self, texts: Iterable[Sequence[int]], vocabulary: int, order: int = 5) -> None:
        """Count.

        Args:
            texts: token ids; the first of each is given, not predicted.
            vocabulary: ids are below this.
            order: tokens of the longest gram.
        """
        self._order = order
        self._vocabulary = vocabulary
        # Of the longest grams how often each occurs, of shorter ones after how many tokens each occurs.
        levels: list[dict[Gram, int]] = [defaultdict(int) for _ in range(order)]
        for ids in texts:
            for end in range(1, len(ids)):
                start = max(0, end - order + 1)
                gram = tuple(ids[start : end + 1])
                levels[len(gram) - 1][gram] += 1
                while len(gram) > 1 and levels[len(gram) - 1][gram] == 1:
                    gram = gram[1:]
                    levels[len(gram) - 1][gram] += 1
        self._counts = levels
        self._totals: list[dict[Gram, int]] = [defaultdict(int) for _ in range(order)]
        self._followers: list[dict[Gram, int]] = [defaultdict(int) for _ in range(order)]
        self._discounts = []
        for level, counts in enumerate(levels):
            for gram, count in counts.items():
                self._totals[level][gram[:-1]] += count
                self._followers[level][gram[:-1]] += 1
            once = sum(count == 1 for count in counts.values())
            twice = sum(count == 2 for count in counts.values())
            self._discounts.append(once / (once + 2 * twice) if once and twice else 0.5)

    def probability(self, before: Sequence[int], token: int) -> float:
        """Of `token` after the tokens `before`."""
        chance = 1 / self._vocabulary
        for level in range(min(self._order, len(before) + 1)):
            context = tuple(before[len(before) - level :])
            total = self._totals[level].get(context)
            if total is None:
                break
            discount = self._discounts[level]
            count = self._counts[level].get((*context, token), 0)
            rest = discount * self._followers[level][context] / total
            chance = max(count - discount, 0) / total + rest * chance
        return chance

    def nats(self, ids: Sequence[int]) -> float:
        """What all tokens of a text but the first cost together."""
        return -sum(
            math.log(self.probability(ids[max(0, end - self._order + 1) : end], ids[end])) for end in range(1, len(ids))
        )
