"""Medians, intervals and ratios against their definitions."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genx.bench.estimates import Measure, percentile, ratio_between, ratio_of_pairs

POSITIVE = st.floats(min_value=0.5, max_value=1e6)


@pytest.mark.parametrize(
    ("count", "low", "high", "coverage"),
    # David and Nagaraja, section 7.1: 1 - 2 P(Binomial(n, 1/2) < k)
    [(1, 1, 1, 0.0), (2, 1, 2, 0.5), (5, 1, 5, 0.9375), (6, 1, 6, 0.96875), (9, 2, 8, 0.9609375), (20, 6, 15, 0.95861)],
)
def test_the_interval_is_a_pair_of_samples_of_known_coverage(count: int, low: int, high: int, coverage: float) -> None:
    found = Measure(tuple(float(place) for place in range(count, 0, -1)))
    assert found.interval == (low, high)
    assert found.coverage == pytest.approx(coverage, abs=1e-5)


@given(st.lists(POSITIVE, min_size=1, max_size=30))
def test_the_interval_holds_the_median(samples: list[float]) -> None:
    found = Measure(tuple(samples))
    low, high = found.interval
    assert low <= found.median <= high
    assert {low, high} <= set(samples)
    assert found.coverage >= 0.95 or (low, high) == (min(samples), max(samples))


@pytest.mark.parametrize(("samples", "noisy"), [((100.0, 105.0, 110.0), False), ((100.0, 105.0, 111.0), True)])
def test_noisy_is_wider_than_a_tenth(samples: tuple[float, ...], noisy: bool) -> None:
    assert Measure(samples).is_noisy is noisy


def test_percentiles_are_values_that_were_there() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, percent) for percent in (50, 90, 99, 100)] == [50.0, 90.0, 99.0, 100.0]
    assert percentile([3.0], 50) == percentile([3.0], 99) == 3.0


def test_a_ratio_of_five_and_five_is_significant_at_the_fifth_lowest_order() -> None:
    """Two of 25 pairs may go the other way: the exact two-sided test at 5 % has its critical value at 2."""
    base = [10.0, 11.0, 12.0, 13.0, 14.0]
    faster = [13.5, 15.0, 16.0, 17.0, 18.0]  # one pair against
    assert ratio_between(base, faster).is_significant
    mixed = [12.5, 12.6, 16.0, 17.0, 18.0]  # four pairs against
    assert not ratio_between(base, mixed).is_significant


@given(st.lists(POSITIVE, min_size=1, max_size=6), st.lists(POSITIVE, min_size=1, max_size=6))
def test_significance_is_that_of_the_exact_test_of_mann_and_whitney(base: list[float], other: list[float]) -> None:
    if len({*base, *other}) < len(base) + len(other):
        return  # ties, for which the exact test is not defined
    below = sum(after < before for before in base for after in other)
    extreme = min(below, len(base) * len(other) - below)
    places = range(len(base) + len(other))
    ways = [set(chosen) for chosen in itertools.combinations(places, len(base))]
    as_extreme = [sum(b < a for a in chosen for b in places if b not in chosen) <= extreme for chosen in ways]
    p_value = 2 * sum(as_extreme) / len(ways)
    assert ratio_between(base, other).is_significant == (p_value <= 0.05)


def test_three_and_three_can_tell_nothing() -> None:
    found = ratio_between([1.0, 1.1, 1.2], [9.0, 9.1, 9.2])
    assert (found.low, found.high, found.is_significant) == (None, None, False)
    assert found.median == pytest.approx(9.1 / 1.1)


def test_pairs_are_neighbours() -> None:
    assert ratio_of_pairs([1.0, 2.0, 4.0], [2.0, 6.0, 4.0]).samples == (2.0, 3.0, 1.0)
