"""A priority queue with two ends: the best leaves first, the worst makes room.

Two binary heaps over the same entries, one per end. An entry that leaves is only
taken out of the dictionary; its rank stays in the heaps until it comes to the top or
until most of the heaps is such rubbish and they are built anew. So every
operation is O(log n), amortised, with the inner loops in C, and removal from the
middle is O(1). `benchmarks/bench_queue.py` compares this with a min-max heap with a
position index, an interval heap and sorted lists, all of which are slower here.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

SPARE_MAX = 64
"""Rubbish that is never worth a rebuild."""

Value = TypeVar("Value")


class MinMaxHeap(Generic[Value]):
    """Values under unique integer ranks; the highest and the lowest are at hand.

    Always true: a rank lives if it is a key of `_values`; every living rank is in `_low`
    and, negated, in `_high` (twice, if it was removed and came back before the top saw
    it); both heaps together are at most four times as long as there are living ranks,
    `SPARE_MAX` aside.
    """

    __slots__ = ("_high", "_low", "_values")

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}
        self._low: list[int] = []
        self._high: list[int] = []

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, rank: int) -> bool:
        return rank in self._values

    def push(self, rank: int, value: Value) -> None:
        """Put a value in, under a rank that does not live."""
        values = self._values
        assert rank not in values, rank
        values[rank] = value
        heappush(self._low, rank)
        heappush(self._high, -rank)

    def get(self, rank: int) -> Value:
        """Return the value under a rank.

        Raises:
            KeyError: The rank does not live.
        """
        return self._values[rank]

    def highest(self) -> Value | None:
        """Return the value of the highest rank, or None if there is none."""
        high, values = self._high, self._values
        while high:
            value = values.get(-high[0])
            if value is not None:
                return value
            heappop(high)
        return None

    def lowest(self) -> Value | None:
        """Return the value of the lowest rank, or None if there is none."""
        low, values = self._low, self._values
        while low:
            value = values.get(low[0])
            if value is not None:
                return value
            heappop(low)
        return None

    def remove(self, rank: int) -> Value:
        """Take the value under a rank out, wherever it is.

        Raises:
            KeyError: The rank does not live.
        """
        values = self._values
        value = values.pop(rank)
        if len(self._low) + len(self._high) > 4 * len(values) + SPARE_MAX:
            self._rebuild()
        return value

    def lowest_first(self) -> Iterator[Value]:
        """Yield values from the lowest rank up; nothing may change meanwhile."""
        return self._walk(self._low, 1)

    def highest_first(self) -> Iterator[Value]:
        """Yield values from the highest rank down; nothing may change meanwhile."""
        return self._walk(self._high, -1)

    def check(self) -> None:
        """Assert what is always true of the structure; for tests."""
        for heap, sign in ((self._low, 1), (self._high, -1)):
            assert all(heap[(i - 1) // 2] <= heap[i] for i in range(1, len(heap)))
            assert {rank * sign for rank in heap} >= self._values.keys()
        assert len(self._low) + len(self._high) <= 4 * len(self._values) + SPARE_MAX

    def _walk(self, heap: list[int], sign: int) -> Iterator[Value]:
        """Yield in order without changing the heap: O(k log k) for the first k.

        The frontier holds the places whose parent was seen and which were not.
        """
        frontier = [(heap[0], 0)] if heap else []
        before = None
        while frontier:
            rank, place = heappop(frontier)
            for child in (2 * place + 1, 2 * place + 2):
                if child < len(heap):
                    heappush(frontier, (heap[child], child))
            value = self._values.get(rank * sign)
            if value is not None and rank != before:
                yield value
            before = rank

    def _rebuild(self) -> None:
        """Drop the rubbish; paid for by the removals that made it."""
        self._low = list(self._values)
        self._high = [-rank for rank in self._values]
        heapify(self._low)
        heapify(self._high)
