"""Counts durations in fixed buckets, so that counts of several times add up to one."""

from collections.abc import Iterable, Sequence

#: Upper bounds of the buckets in seconds, from 1 ms to 26 hours, each √2 times the last; above
#: them is one more. Rows have the numbers of buckets, so these must never change.
BOUNDS = tuple(0.001 * 2 ** (step / 2) for step in range(54))


class Histogram:
    """Numbers of durations by bucket."""

    __slots__ = ("_counts",)

    def __init__(self, pairs: Iterable[Sequence[int]] = ()) -> None:
        """Takes pairs of a bucket and a count, as stored."""
        self._counts: dict[int, int] = {}
        self.merge(pairs)

    def add(self, bucket: int, count: int) -> None:
        """Counts that many durations of a bucket."""
        self._counts[bucket] = self._counts.get(bucket, 0) + count

    def merge(self, pairs: Iterable[Sequence[int]]) -> None:
        """Adds the counts of another histogram, as stored."""
        for bucket, count in pairs:
            self.add(bucket, count)

    @property
    def pairs(self) -> list[list[int]]:
        """Returns the pairs to store, by bucket."""
        return [[bucket, count] for bucket, count in sorted(self._counts.items())]

    def percentile(self, fraction: float) -> float | None:
        """Returns the seconds within which that fraction of the durations lies; `None` without any.

        At most 41% above or below the true one: the bounds of a bucket are that far apart. Between
        them it is interpolated.
        """
        rank = fraction * sum(self._counts.values())
        if not self._counts:
            return None
        for bucket, count in sorted(self._counts.items()):
            if rank <= count:
                return _within(bucket, rank / count)
            rank -= count
        return BOUNDS[-1]


def _within(bucket: int, fraction: float) -> float:
    """Returns the seconds that far from a bucket's lower bound to its upper."""
    if bucket == 0:
        return BOUNDS[0] * fraction
    if bucket >= len(BOUNDS):
        return BOUNDS[-1]
    lower, upper = BOUNDS[bucket - 1], BOUNDS[bucket]
    return float(lower * (upper / lower) ** fraction)
