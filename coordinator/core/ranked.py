"""Values in order of rank, with both ends and any place in between at hand.

Ranks are kept in sorted buckets of bounded length, so that finding one is two binary
searches and putting it in or taking it out moves at most a bucket's length of
pointers: all of it in C, in less time than a heap written in Python takes for a few
levels. Nothing is deleted lazily, so nothing has to be rebuilt and the longest step is
short. `benchmarks/bench_queue.py` compares this with a min-max heap, an interval heap,
pairs of heaps and sortedcontainers.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

BUCKET_MAX = 1000
"""Ranks in a bucket before it is split into halves."""

Value = TypeVar("Value")


class Ranked(Generic[Value]):
    """Values under unique integer ranks.

    Always true: buckets are sorted, not empty, ascending, at most `BUCKET_MAX` long, and
    hold the keys of `_values`; `_tops` has the last rank of each.
    """

    __slots__ = ("_buckets", "_tops", "_values")

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}
        self._buckets: list[list[int]] = []
        self._tops: list[int] = []

    def __len__(self) -> int:
        return len(self._values)

    def push(self, rank: int, value: Value) -> None:
        """Put a value in, under a rank that is not there."""
        values, tops = self._values, self._tops
        assert rank not in values, rank
        values[rank] = value
        place = bisect_left(tops, rank)
        if place < len(tops):
            bucket = self._buckets[place]
            insort(bucket, rank)
        elif tops:
            place -= 1
            bucket = self._buckets[place]
            bucket.append(rank)
            tops[place] = rank
        else:
            self._buckets.append([rank])
            tops.append(rank)
            return
        if len(bucket) > BUCKET_MAX:
            self._split(place)

    def remove(self, rank: int) -> Value:
        """Take the value under a rank out, wherever it is.

        Raises:
            KeyError: There is none.
        """
        value = self._values.pop(rank)
        tops = self._tops
        place = bisect_left(tops, rank)
        bucket = self._buckets[place]
        if tops[place] != rank:
            del bucket[bisect_left(bucket, rank)]
            return value
        bucket.pop()
        if bucket:
            tops[place] = bucket[-1]
        else:
            del tops[place], self._buckets[place]
        return value

    def get(self, rank: int) -> Value:
        """Return the value under a rank.

        Raises:
            KeyError: There is none.
        """
        return self._values[rank]

    def highest(self) -> Value | None:
        """Return the value of the highest rank, or None if there is none."""
        return self._values[self._tops[-1]] if self._tops else None

    def lowest(self) -> Value | None:
        """Return the value of the lowest rank, or None if there is none."""
        return self._values[self._buckets[0][0]] if self._buckets else None

    def highest_first(self) -> Iterator[Value]:
        """Yield values from the highest rank down; nothing may change meanwhile."""
        for bucket in reversed(self._buckets):
            for rank in reversed(bucket):
                yield self._values[rank]

    def lowest_first(self) -> Iterator[Value]:
        """Yield values from the lowest rank up; nothing may change meanwhile."""
        for bucket in self._buckets:
            for rank in bucket:
                yield self._values[rank]

    def check(self) -> None:
        """Assert what is always true of the structure; for tests."""
        ranks = [rank for bucket in self._buckets for rank in bucket]
        assert ranks == sorted(self._values)
        assert all(0 < len(bucket) <= BUCKET_MAX for bucket in self._buckets)
        assert self._tops == [bucket[-1] for bucket in self._buckets]

    def _split(self, place: int) -> None:
        bucket = self._buckets[place]
        upper = bucket[BUCKET_MAX // 2 :]
        del bucket[BUCKET_MAX // 2 :]
        self._buckets.insert(place + 1, upper)
        self._tops.insert(place, bucket[-1])
