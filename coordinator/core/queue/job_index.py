"""The indexes of a queue: by rank, by id, by tablet and by turn.

`RankedMap` keeps values in the order of their ranks, with fast access to both ends and to any rank.
Ranks are stored in sorted buckets of bounded length, so a lookup is two binary searches, and an
insertion or removal moves at most a bucket's length of pointers. Nothing is deleted lazily, which
bounds the longest step. `benchmarks/bench_queue.py` compares it with heaps and sortedcontainers.

`JobIndex` owns all four indexes, so that they cannot disagree. It has no policy:
`coordinator.core.queue.job_queue` decides on admission and rank.
"""

from bisect import bisect_left, insort
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from common.model.job import Job, LaneClass
from common.model.tablet import TabletId
from coordinator.core.queue.fair_share import FairShare

BUCKET_MAX = 1000
"""Maximum number of ranks in a bucket; a larger bucket is split in half."""

Value = TypeVar("Value")


class RankedMap(Generic[Value]):
    """Values by unique integer ranks.

    Invariant: buckets are sorted, ascending, not empty, at most `BUCKET_MAX` long, and hold the
    keys of `_values`; `_tops` has the last rank of each bucket.
    """

    __slots__ = ("_buckets", "_tops", "_values")

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}
        self._buckets: list[list[int]] = []
        self._tops: list[int] = []

    def __len__(self) -> int:
        return len(self._values)

    def push(self, rank: int, value: Value) -> None:
        """Add a value under a rank that is not in use."""
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
        """Remove and return the value of a rank.

        Raises:
            KeyError: The rank is not in use.
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
        """Return the value of a rank.

        Raises:
            KeyError: The rank is not in use.
        """
        return self._values[rank]

    def highest(self) -> Value | None:
        """Return the value of the highest rank, or None if the map is empty."""
        return self._values[self._tops[-1]] if self._tops else None

    def lowest(self) -> Value | None:
        """Return the value of the lowest rank, or None if the map is empty."""
        return self._values[self._buckets[0][0]] if self._buckets else None

    def highest_first(self) -> Iterator[Value]:
        """Yield values in descending order of rank; the map must not change meanwhile."""
        for bucket in reversed(self._buckets):
            for rank in reversed(bucket):
                yield self._values[rank]

    def lowest_first(self) -> Iterator[Value]:
        """Yield values in ascending order of rank; the map must not change meanwhile."""
        for bucket in self._buckets:
            for rank in bucket:
                yield self._values[rank]

    def check(self) -> None:
        """Assert the invariants of the structure; for tests."""
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


@dataclass(slots=True, eq=False)
class QueueEntry:
    """A queued job with the values that its queue has computed for it."""

    job: Job
    rank: int
    weight_bytes: int
    arrival: int
    offered_s: float
    priority: int
    """Priority from the planner."""
    lane: LaneClass
    older: "QueueEntry | None" = None
    younger: "QueueEntry | None" = None
    """`older` and `younger` link the queued jobs of the tablet."""


class JobIndex:
    """Queued jobs with all their indexes.

    Invariant: ranks, indexes, lanes and `size_bytes` cover the same entries. Entries are added by
    `put`, changed by `swap` and removed by `drop`.
    """

    def __init__(self, shares: FairShare | None) -> None:
        """Create an empty index.

        Args:
            shares: Notified of every added and removed entry, and called by `next`.
        """
        self.size_bytes = 0
        self._shares = shares
        self._ranked: RankedMap[QueueEntry] = RankedMap()
        self.by_id: dict[str, QueueEntry] = {}
        """Job id → entry; callers may only read it."""
        self._tables: dict[str, dict[bytes, QueueEntry]] = {}
        """Table → end of tablet → its youngest entry, which links to the older ones."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[QueueEntry]:
        """Yield entries in an arbitrary order."""
        return iter(self.by_id.values())

    def put(self, entry: QueueEntry) -> None:
        """Add a new entry."""
        job = entry.job
        self._ranked.push(entry.rank, entry)
        self.by_id[job.id] = entry
        tablet = job.tablet
        ends = self._tables.get(tablet.table)
        if ends is None:
            ends = self._tables[tablet.table] = {}
        older = ends.get(tablet.end)
        if older is not None:
            entry.older, older.younger = older, entry
        ends[tablet.end] = entry
        self.size_bytes += entry.weight_bytes
        if self._shares is not None:
            self._shares.join(entry.lane, tablet.table, entry.rank)

    def swap(self, entry: QueueEntry, job: Job, weight_bytes: int) -> None:
        """Replace the job of an entry by another version of the same rank."""
        assert (job.id, job.tablet) == (entry.job.id, entry.job.tablet)
        self.size_bytes += weight_bytes - entry.weight_bytes
        entry.job, entry.weight_bytes = job, weight_bytes

    def drop(self, entry: QueueEntry) -> Job:
        """Remove an entry; return its job."""
        job = entry.job
        self._ranked.remove(entry.rank)
        del self.by_id[job.id]
        self._unlink(entry, job.tablet)
        self.size_bytes -= entry.weight_bytes
        if self._shares is not None:
            self._shares.leave(entry.lane, job.tablet.table, entry.rank)
        return job

    def entries_of(self, tablet: TabletId) -> tuple[QueueEntry, ...]:
        """Return the entries of a tablet in the order of arrival."""
        found: list[QueueEntry] = []
        entry = self._tables.get(tablet.table, {}).get(tablet.end)
        while entry is not None:
            found.append(entry)
            entry = entry.older
        return tuple(reversed(found))

    def ends_of(self, table: str) -> list[bytes]:
        """Return the ends of a table's tablets that have entries."""
        return list(self._tables.get(table, ()))

    def lowest(self) -> QueueEntry | None:
        """Return the entry with the lowest rank, or None."""
        return self._ranked.lowest()

    def next(
        self, saturated: Container[str] = (), barred: Container[LaneClass] = ()
    ) -> QueueEntry | None:
        """Return the entry that has the turn: the highest rank, unless fair shares decide.

        Args:
            saturated: Tables that are skipped.
            barred: Classes that are skipped if fair shares decide.
        """
        if saturated:
            return self._next_unsaturated(saturated, barred)
        best = self._ranked.highest()
        if best is None or self._shares is None:
            return best
        rank = self._shares.choose(best.lane, best.rank, barred)
        return None if rank is None else self._ranked.get(rank)

    def _next_unsaturated(
        self, saturated: Container[str], barred: Container[LaneClass]
    ) -> QueueEntry | None:
        if self._shares is not None:
            rank = self._shares.choose_unsaturated(saturated, barred)
            return None if rank is None else self._ranked.get(rank)
        opened = (entry for entry in self.best_first() if entry.job.tablet.table not in saturated)
        return next(opened, None)

    def best_first(self) -> Iterator[QueueEntry]:
        """Yield entries in descending order of rank."""
        return self._ranked.highest_first()

    def lowest_below(self, rank: int, size_bytes: int, count: int) -> list[QueueEntry] | None:
        """Return the lowest entries whose removal makes enough room, or None.

        None means that not all of these entries rank below `rank`.

        Args:
            rank: Rank of the job that needs the room.
            size_bytes: Missing bytes.
            count: Minimum number of entries to remove.
        """
        found: list[QueueEntry] = []
        for entry in self._ranked.lowest_first():
            if entry.rank > rank:
                break
            found.append(entry)
            size_bytes -= entry.weight_bytes
            if size_bytes <= 0 and len(found) >= count:
                return found
        return None

    def check(self) -> None:
        """Assert the invariants of the indexes; for tests."""
        self._ranked.check()
        assert len(self._ranked) == len(self.by_id)
        assert self.size_bytes == sum(entry.weight_bytes for entry in self)
        assert all(self._ranked.get(entry.rank) is entry for entry in self)
        tablets = [TabletId(table, end) for table, ends in self._tables.items() for end in ends]
        indexed = [entry for tablet in tablets for entry in self.entries_of(tablet)]
        assert len(indexed) == len(self.by_id)
        assert all(self.by_id[entry.job.id] is entry for entry in indexed)
        assert all(self._tables.values())
        for tablet in tablets:
            line = self.entries_of(tablet)
            assert all(entry.job.tablet == tablet for entry in line)
            assert [entry.older for entry in line] == [None, *line[:-1]]
            assert [entry.younger for entry in line] == [*line[1:], None]
        if self._shares is not None:
            self._shares.check()

    def _unlink(self, entry: QueueEntry, tablet: TabletId) -> None:
        older, younger = entry.older, entry.younger
        if younger is not None:
            younger.older, entry.younger = older, None
        else:
            ends = self._tables[tablet.table]
            if older is not None:
                ends[tablet.end] = older
            elif len(ends) > 1:
                del ends[tablet.end]
            else:
                del self._tables[tablet.table]
        if older is not None:
            older.younger, entry.older = younger, None
