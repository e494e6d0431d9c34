"""Where a queue's jobs are kept: by rank, by id, by tablet and by table's turn.

One class owns all four, so that they cannot disagree. No policy in here: what may
come in, and at which rank, is the affair of `coordinator.core.job_queue`.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass

from common.model.job import Job, class_of
from common.model.tablet import TabletId
from coordinator.core.fair_share import FairShare
from coordinator.core.ranked import Ranked


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
    older: "Entry | None" = None
    younger: "Entry | None" = None
    """Neighbours among the queued jobs of the tablet."""


class JobIndex:
    """Queued jobs under all the names by which they are looked for.

    Always true: ranks, indexes, lanes and `size_bytes` speak of the same entries.
    Everything comes by `put` or `swap` and leaves by `drop`.
    """

    def __init__(self, shares: FairShare | None) -> None:
        """Begin empty.

        Args:
            shares: Told of all that comes and leaves, and asked by `next`.
        """
        self.size_bytes = 0
        self._shares = shares
        self._ranked: Ranked[Entry] = Ranked()
        self.by_id: dict[str, Entry] = {}
        """Job id → entry; for others to read."""
        self._tables: dict[str, dict[bytes, Entry]] = {}
        """Table → end of tablet → its youngest entry, which leads to the older ones."""

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[Entry]:
        """Yield entries in no order that means anything."""
        return iter(self.by_id.values())

    def put(self, entry: Entry) -> None:
        """Take a new entry in."""
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
            self._shares.join(class_of(entry.priority), tablet.table, entry.rank)

    def swap(self, entry: Entry, job: Job, weight_bytes: int) -> None:
        """Give an entry another form of its job, of the same rank."""
        assert (job.id, job.tablet) == (entry.job.id, entry.job.tablet)
        self.size_bytes += weight_bytes - entry.weight_bytes
        entry.job, entry.weight_bytes = job, weight_bytes

    def drop(self, entry: Entry) -> Job:
        """Let an entry go; return its job."""
        job = entry.job
        self._ranked.remove(entry.rank)
        del self.by_id[job.id]
        self._unlink(entry, job.tablet)
        self.size_bytes -= entry.weight_bytes
        if self._shares is not None:
            self._shares.leave(class_of(entry.priority), job.tablet.table, entry.rank)
        return job

    def entries_of(self, tablet: TabletId) -> tuple[Entry, ...]:
        """Return the entries of a tablet, as they came in."""
        found: list[Entry] = []
        entry = self._tables.get(tablet.table, {}).get(tablet.end)
        while entry is not None:
            found.append(entry)
            entry = entry.older
        return tuple(reversed(found))

    def ends_of(self, table: str) -> list[bytes]:
        """Return the ends of a table's tablets that have entries."""
        return list(self._tables.get(table, ()))

    def highest(self) -> Entry | None:
        """Return the entry of the highest rank, or None."""
        return self._ranked.highest()

    def lowest(self) -> Entry | None:
        """Return the entry of the lowest rank, or None."""
        return self._ranked.lowest()

    def next(self, shut: Container[str] = ()) -> Entry | None:
        """Return the entry whose turn it is: the highest, unless tables share.

        Args:
            shut: Tables whose turn it is not.
        """
        if shut:
            return self._next_open(shut)
        best = self._ranked.highest()
        if best is None or self._shares is None:
            return best
        return self._ranked.get(self._shares.choose(class_of(best.priority), best.rank))

    def _next_open(self, shut: Container[str]) -> Entry | None:
        if self._shares is not None:
            rank = self._shares.choose_open(shut)
            return None if rank is None else self._ranked.get(rank)
        opened = (each for each in self.best_first() if each.job.tablet.table not in shut)
        return next(opened, None)

    def best_first(self) -> Iterator[Entry]:
        """Yield entries from the highest rank down."""
        return self._ranked.highest_first()

    def lowest_below(self, rank: int, size_bytes: int, count: int) -> list[Entry] | None:
        """Return the lowest entries that make so much room, or None if not all are below `rank`.

        Args:
            rank: Of the job that wants the room.
            size_bytes: Bytes that are missing.
            count: Entries that must go at least.
        """
        found: list[Entry] = []
        for entry in self._ranked.lowest_first():
            if entry.rank > rank:
                break
            found.append(entry)
            size_bytes -= entry.weight_bytes
            if size_bytes <= 0 and len(found) >= count:
                return found
        return None

    def check(self) -> None:
        """Assert what is always true of the indexes; for tests."""
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

    def _unlink(self, entry: Entry, tablet: TabletId) -> None:
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
