"""What repeats say together: medians, intervals, ratios. No distribution is assumed anywhere. No torch.

The interval of a median is that of two order statistics, the narrowest pair whose coverage is 95 % or more: for any
distribution, the k-th smallest and k-th largest of n samples hold its median between them with probability
1 - 2 P(Binomial(n, 1/2) < k) (David and Nagaraja, Order Statistics, 3rd edition, section 7.1). Fewer than 6 samples
cannot reach 95 %: then it is the smallest and the largest sample, and the coverage says what that is worth: 93.75 %
with 5, 87.5 % with 4, 0 with 1.

The interval of a ratio of two separate sets of samples is the test of Mann and Whitney turned round (Hodges and
Lehmann 1963): the pairwise ratios that the exact two-sided test at 5 % does not reject. The ratio is significant if
that interval leaves out 1, which takes at least 4 samples on both sides.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

LEVEL = 0.95
NOISY_SPREAD = 0.10  # of the median, between the ends of its interval


@dataclass(frozen=True)
class Measure:
    """One quantity, one sample a repeat."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle sample, or the mean of the two in the middle."""
        return float(statistics.median(self.samples))

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the 95 % interval of the median, or the nearest thing that so few samples allow."""
        rank = _rank(len(self.samples))
        ordered = sorted(self.samples)
        return ordered[rank - 1], ordered[-rank]

    @property
    def coverage(self) -> float:
        """The probability that the interval holds the median."""
        return _coverage(len(self.samples), _rank(len(self.samples)))

    @property
    def is_noisy(self) -> bool:
        """Whether the interval is wider than a tenth of the median."""
        low, high = self.interval
        return high - low > NOISY_SPREAD * abs(self.median)


@dataclass(frozen=True)
class Ratio:
    """How many times the base the other is; the interval's ends are None where too few samples allow none."""

    median: float
    low: float | None
    high: float | None

    @property
    def is_significant(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of the values do not exceed (nearest rank, no interpolation)."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


def ratio_between(base: Sequence[float], other: Sequence[float]) -> Ratio:
    """The ratio of two sets of samples from separate runs; all samples are above 0."""
    ratios = sorted(after / before for before in base for after in other)
    cut = _mann_whitney_cut(len(base), len(other))
    if cut is None:
        return Ratio(statistics.median(ratios), None, None)
    return Ratio(statistics.median(ratios), ratios[cut], ratios[-1 - cut])


def ratio_of_pairs(base: Sequence[float], other: Sequence[float]) -> Measure:
    """The ratios of samples that were taken in turns, each to its neighbour; all are above 0."""
    return Measure(tuple(after / before for before, after in zip(base, other, strict=True)))


def _rank(count: int) -> int:
    rank = 1
    while rank + 1 <= (count + 1) // 2 and _coverage(count, rank + 1) >= LEVEL:
        rank += 1
    return rank


def _coverage(count: int, rank: int) -> float:
    outside = sum(math.comb(count, below) for below in range(rank))
    return max(0.0, 1 - math.ldexp(outside, 1 - count))


@lru_cache
def _mann_whitney_cut(first: int, second: int) -> int | None:
    """How many of the ordered pairwise ratios lie below the interval: the most that keep its coverage at 95 %."""
    counts = _orderings(first, second)
    total = math.comb(first + second, first)
    below, cut = 0, None
    for statistic, ways in enumerate(counts):
        below += ways
        if 2 * below > (1 - LEVEL) * total:
            break
        cut = statistic
    return cut


def _orderings(first: int, second: int) -> list[int]:
    """How many of the orders of two sets of samples have each value of the Mann-Whitney statistic, 0 to first x second.

    It is the coefficient list of a Gaussian binomial.
    """
    counts = [1] + [0] * (first * second)
    for size in range(1, first + 1):
        for value in range(first * second, second + size - 1, -1):
            counts[value] -= counts[value - second - size]
        for value in range(size, first * second + 1):
            counts[value] += counts[value - size]
    return counts
