"""Histograms: pure arithmetic."""

import random
from bisect import bisect_right

import pytest

from pgbeat.monitoring.rollups.histograms import BOUNDS, Histogram


def of(seconds: list[float]) -> Histogram:
    found = Histogram()
    for each in seconds:
        found.add(bisect_right(BOUNDS, each), 1)
    return found


def test_an_empty_one_has_no_percentiles() -> None:
    assert Histogram().percentile(0.5) is None
    assert Histogram().pairs == []


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.95, 1.0])
def test_a_percentile_is_off_by_a_bucket_at_most(fraction: float) -> None:
    rng = random.Random(1)  # noqa: S311
    seconds = sorted(rng.lognormvariate(0, 2) for _ in range(1000))
    found = of(seconds).percentile(fraction)
    assert found is not None
    true = seconds[max(0, round(fraction * 1000) - 1)]
    assert true / 1.42 <= found <= true * 1.42


def test_counts_add_up_to_the_same_histogram() -> None:
    one, other = of([0.002, 0.5, 8]), of([0.5, 0.51, 100_000, -3])
    both = of([0.002, 0.5, 8, 0.5, 0.51, 100_000, -3])
    one.merge(other.pairs)
    assert one.pairs == both.pairs
    assert Histogram(both.pairs).percentile(0.5) == both.percentile(0.5)


def test_what_is_out_of_range_is_in_the_outer_buckets() -> None:
    assert of([10**7]).percentile(0.5) == BOUNDS[-1]
    assert 0 < (of([0]).percentile(0.5) or 0) <= BOUNDS[0]
