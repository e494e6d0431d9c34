"""Where a queue's jobs are kept: by rank, by id, by tablet and by table's turn.

One class owns all four, so that they cannot disagree. No policy in here: what may
come in, and at which rank, is the affair of `coordinator.core.job_queue`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from common.model.job import Job
from common.model.priority import class_of
from common.model.tablet import TabletId
from coordinator.core.fair_share import FairShare
from coordinator.core.minmax_heap import MinMaxHeap


@dataclass(slots=True, eq=False)
class Entry:
    """A queued job with all that its queue has worked out about it, once."""

    job: Job
    rank: int
    weight_bytes: int
    arrival: int
    offered_s: float
    priority: int
    """The planner's and the boost; tells the class."""


class JobIndex:
    """Queued jobs under all the names by which they are looked for.

    Always true: heap, indexes, lanes and `size_bytes` speak of the same entries.
    Everything comes by `put` or `swap` and leaves by `drop`.
    """

    def __init__(self, shares: FairShare | None) -> None:
        """Begin empty.

        Args:
            shares: Told of all that comes and leaves, and asked by `next`.
        """
        self.size_bytes = 0
        self._shares = shares
        self._heap: MinMaxHeap[Entry] = MinMaxHeap()
        self.by_id: dict[str, Entry] = {}
        """Job id → entry; for others to read."""
        self._tables: dict[str, dict[bytes, tuple[Entry, ...]]] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Entry]:
        """Yield entries in no order that means anything."""
        return iter(self.by_id.values())

    def put(self, entry: Entry) -> None:
        """Take a new entry in."""
        job = entry.job
        self._heap.push(entry.rank, entry)
        self.by_id[job.id] = entry
        tablet, alone = job.tablet, (entry,)
        ends = self._tables.get(tablet.table)
        if ends is None:
            ends = self._tables[tablet.table] = {}
        siblings = ends.setdefault(tablet.end, alone)
        if siblings is not alone:
            ends[tablet.end] = (*siblings, entry)
        self.size_bytes += entry.weight_bytes
        if self._shares is not None:
            self._shares.join(class_of(entry.priority), tablet.table, entry.rank)

    def swap(self, present: Entry, entry: Entry) -> None:
        """Put another entry of the same job and rank in the place of one."""
        job = entry.job
        assert (job.id, job.tablet, entry.rank, entry.priority) == (
            present.job.id,
            present.job.tablet,
            present.rank,
            present.priority,
        )
        self._heap.swap(entry.rank, entry)
        self.by_id[job.id] = entry
        ends = self._tables[job.tablet.table]
        siblings = ends[job.tablet.end]
        ends[job.tablet.end] = tuple(entry if it is present else it for it in siblings)
        self.size_bytes += entry.weight_bytes - present.weight_bytes

    def drop(self, entry: Entry) -> Job:
        """Let an entry go; return its job."""
        job = entry.job
        self._heap.remove(entry.rank)
        del self.by_id[job.id]
        tablet = job.tablet
        ends = self._tables[tablet.table]
        siblings = ends.pop(tablet.end)
        if len(siblings) > 1:
            ends[tablet.end] = tuple(it for it in siblings if it is not entry)
        elif not ends:
            del self._tables[tablet.table]
        self.size_bytes -= entry.weight_bytes
        if self._shares is not None:
            self._shares.leave(class_of(entry.priority), tablet.table, entry.rank)
        return job

    def entries_of(self, tablet: TabletId) -> tuple[Entry, ...]:
        """Return the entries of a tablet, in order of arrival."""
        return self._tables.get(tablet.table, {}).get(tablet.end, ())

    def highest(self) -> Entry | None:
        """Return the entry of the highest rank, or None."""
        return self._heap.highest()

    def lowest(self) -> Entry | None:
        """Return the entry of the lowest rank, or None."""
        return self._heap.lowest()

    def next(self) -> Entry | None:
        """Return the entry whose turn it is: the highest, unless tables share."""
        best = self._heap.highest()
        if best is None or self._shares is None:
            return best
        return self._heap.get(self._shares.choose(class_of(best.priority), best.rank))

    def best_first(self) -> Iterator[Entry]:
        """Yield entries from the highest rank down."""
        return self._heap.highest_first()

    def worst_first(self) -> Iterator[Entry]:
        """Yield entries from the lowest rank up."""
        return self._heap.lowest_first()

    def check(self) -> None:
        """Assert what is always true of the indexes; for tests."""
        self._heap.check()
        assert len(self._heap) == len(self.by_id)
        assert self.size_bytes == sum(entry.weight_bytes for entry in self)
        assert all(self._heap.get(entry.rank) is entry for entry in self)
        assert all(self._tables.values())
        indexed = [
            entry
            for ends in self._tables.values()
            for entries in ends.values()
            for entry in entries
        ]
        assert len(indexed) == len(self.by_id)
        assert all(self.by_id[entry.job.id] is entry for entry in indexed)
        if self._shares is not None:
            self._shares.check()
