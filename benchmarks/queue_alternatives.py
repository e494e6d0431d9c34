"""Other structures with two ends, under one small interface, for `bench_queue`.

Each keeps values under unique integer ranks and can `push`, `pop_highest`,
`pop_lowest` and `remove` a rank from the middle.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

from sortedcontainers import SortedKeyList, SortedList

from coordinator.core.queue_index import RankedMap


class TwoEnded(Protocol):
    def push(self, rank: int, value: object) -> None: ...

    def pop_highest(self) -> object: ...

    def pop_lowest(self) -> object: ...

    def remove(self, rank: int) -> object: ...


class Ours:
    """`coordinator.core.queue_index` as the queue uses it: its values know their rank."""

    def __init__(self) -> None:
        self.ranked: RankedMap[Any] = RankedMap()

    def push(self, rank: int, value: object) -> None:
        self.ranked.push(rank, value)

    def pop_highest(self) -> object:
        return self.ranked.remove(self.ranked.highest())

    def pop_lowest(self) -> object:
        return self.ranked.remove(self.ranked.lowest())

    def remove(self, rank: int) -> object:
        return self.ranked.remove(rank)


class TwoLazyHeapsOfRanks:
    """Two heaps of ranks; those that left are skipped, and cleared away when most are such."""

    def __init__(self) -> None:
        self.values: dict[int, object] = {}
        self.low: list[int] = []
        self.high: list[int] = []

    def push(self, rank: int, value: object) -> None:
        self.values[rank] = value
        heappush(self.low, rank)
        heappush(self.high, -rank)

    def pop_highest(self) -> object:
        high, values = self.high, self.values
        while -high[0] not in values:
            heappop(high)
        return self.remove(-high[0])

    def pop_lowest(self) -> object:
        low, values = self.low, self.values
        while low[0] not in values:
            heappop(low)
        return self.remove(low[0])

    def remove(self, rank: int) -> object:
        value = self.values.pop(rank)
        if len(self.low) + len(self.high) > 4 * len(self.values) + 64:
            self.low = list(self.values)
            self.high = [-rank for rank in self.values]
            heapify(self.low)
            heapify(self.high)
        return value


class Sorted:
    """sortedcontainers.SortedList of ranks, values in a dictionary."""

    def __init__(self) -> None:
        self.ranks = SortedList()
        self.values: dict[int, object] = {}

    def push(self, rank: int, value: object) -> None:
        self.ranks.add(rank)
        self.values[rank] = value

    def pop_highest(self) -> object:
        return self.values.pop(self.ranks.pop())

    def pop_lowest(self) -> object:
        return self.values.pop(self.ranks.pop(0))

    def remove(self, rank: int) -> object:
        self.ranks.remove(rank)
        return self.values.pop(rank)


class SortedByKey:
    """sortedcontainers.SortedKeyList of pairs."""

    def __init__(self) -> None:
        self.pairs = SortedKeyList(key=lambda pair: pair[0])
        self.values: dict[int, tuple[int, object]] = {}

    def push(self, rank: int, value: object) -> None:
        pair = self.values[rank] = (rank, value)
        self.pairs.add(pair)

    def pop_highest(self) -> object:
        return self.values.pop(self.pairs.pop()[0])[1]

    def pop_lowest(self) -> object:
        return self.values.pop(self.pairs.pop(0)[0])[1]

    def remove(self, rank: int) -> object:
        pair = self.values.pop(rank)
        self.pairs.remove(pair)
        return pair[1]


class TwoLazyHeapsOfEntries:
    """The usual two heaps of entries with a flag for those that left; never cleaned."""

    def __init__(self) -> None:
        self.low: list[tuple[int, list[object]]] = []
        self.high: list[tuple[int, list[object]]] = []
        self.entries: dict[int, list[object]] = {}

    def push(self, rank: int, value: object) -> None:
        entry = self.entries[rank] = [True, value, rank]
        heappush(self.low, (rank, entry))
        heappush(self.high, (-rank, entry))

    def pop_highest(self) -> object:
        return self._pop(self.high)

    def pop_lowest(self) -> object:
        return self._pop(self.low)

    def remove(self, rank: int) -> object:
        entry = self.entries.pop(rank)
        entry[0] = False
        return entry[1]

    def _pop(self, heap: list[tuple[int, list[object]]]) -> object:
        while True:
            _, entry = heappop(heap)
            if entry[0]:
                return self.remove(entry[2])  # type: ignore[arg-type]  # a rank


class IndexedMinMaxHeap:
    """The textbook min-max heap (Atkinson et al. 1986) with a position index."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.places: dict[int, int] = {}
        self.values: dict[int, object] = {}

    def push(self, rank: int, value: object) -> None:
        self.values[rank] = value
        self.ranks.append(rank)
        self.places[rank] = len(self.ranks) - 1
        self._up(len(self.ranks) - 1)

    def pop_highest(self) -> object:
        return self.remove(max(self.ranks[:3][1:] or self.ranks))

    def pop_lowest(self) -> object:
        return self.remove(self.ranks[0])

    def remove(self, rank: int) -> object:
        place = self.places.pop(rank)
        last = self.ranks.pop()
        if last != rank:
            self.ranks[place] = last
            self.places[last] = place
            self._down(place)
            self._up(self.places[last])
        return self.values.pop(rank)

    def _swap(self, a: int, b: int) -> None:
        ranks = self.ranks
        ranks[a], ranks[b] = ranks[b], ranks[a]
        self.places[ranks[a]], self.places[ranks[b]] = a, b

    def _up(self, place: int) -> None:
        """Bring a place in order with what is above it."""
        ranks = self.ranks
        if not place:
            return
        low = (place + 1).bit_length() % 2 == 1
        parent = (place - 1) // 2
        if (ranks[place] > ranks[parent]) is low:
            self._swap(place, parent)
            place, low = parent, not low
        while place > 2:
            above = ((place - 1) // 2 - 1) // 2
            if (ranks[place] < ranks[above]) is not low:
                return
            self._swap(place, above)
            place = above

    def _down(self, place: int) -> None:
        """Bring a place in order with what is below it."""
        ranks = self.ranks
        low = (place + 1).bit_length() % 2 == 1
        best: Callable[..., int] = min if low else max
        while 2 * place + 1 < len(ranks):
            near = range(2 * place + 1, min(2 * place + 3, len(ranks)))
            far = range(4 * place + 3, min(4 * place + 7, len(ranks)))
            next_place = best([*near, *far], key=ranks.__getitem__)
            if (ranks[next_place] < ranks[place]) is not low:
                return
            self._swap(place, next_place)
            if next_place <= 2 * place + 2:
                return
            parent = (next_place - 1) // 2
            if (ranks[next_place] > ranks[parent]) is low:
                self._swap(next_place, parent)
            place = next_place


class IndexedIntervalHeap:
    """An interval heap (van Leeuwen and Wood 1993) with a position index."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self.places: dict[int, int] = {}
        self.values: dict[int, object] = {}

    def push(self, rank: int, value: object) -> None:
        self.values[rank] = value
        self.ranks.append(rank)
        self.places[rank] = len(self.ranks) - 1
        self._settle(len(self.ranks) - 1)

    def pop_highest(self) -> object:
        return self.remove(self.ranks[min(1, len(self.ranks) - 1)])

    def pop_lowest(self) -> object:
        return self.remove(self.ranks[0])

    def remove(self, rank: int) -> object:
        place = self.places.pop(rank)
        last = self.ranks.pop()
        if last != rank:
            self.ranks[place] = last
            self.places[last] = place
            self._settle(self._sink(place))
        return self.values.pop(rank)

    def _swap(self, a: int, b: int) -> None:
        ranks = self.ranks
        ranks[a], ranks[b] = ranks[b], ranks[a]
        self.places[ranks[a]], self.places[ranks[b]] = a, b

    def _sink(self, place: int) -> int:
        """Move a rank to the leaves along its own side; return where it is then."""
        ranks, side = self.ranks, place % 2
        while True:
            node = place // 2
            children = [2 * (2 * node + 1) + side, 2 * (2 * node + 2) + side]
            there = [child for child in children if child < len(ranks)]
            if not there:
                return place
            child = (max if side else min)(there, key=ranks.__getitem__)
            self._swap(place, child)
            place = child

    def _settle(self, place: int) -> None:
        """Swap with the other end of the interval if need be, then rise."""
        ranks = self.ranks
        other = place ^ 1
        if other < len(ranks) and (ranks[place] > ranks[other]) is (place < other):
            self._swap(place, other)
            place = other
        node = place // 2
        while node:
            above = 2 * ((node - 1) // 2)
            if ranks[place] < ranks[above]:
                target = above
            elif ranks[place] > ranks[above + 1]:
                target = above + 1
            else:
                return
            self._swap(place, target)
            place, node = target, target // 2


WELL_KEPT = ("SortedList", "SortedKeyList")
"""What one would install instead of writing it."""
STRUCTURES: dict[str, Callable[[], TwoEnded]] = {
    "ours": Ours,
    "SortedList": Sorted,
    "SortedKeyList": SortedByKey,
    "two lazy heaps of ranks": TwoLazyHeapsOfRanks,
    "two lazy heaps of entries": TwoLazyHeapsOfEntries,
    "min-max heap, indexed": IndexedMinMaxHeap,
    "interval heap, indexed": IndexedIntervalHeap,
}
