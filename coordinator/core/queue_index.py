"""The indexes of a queue: by rank, by id, by tablet and by turn.

`RankedMap` keeps values in the order of their ranks, with fast access to both ends and to any rank.
Ranks are stored in sorted buckets of bounded length, so a lookup is two binary searches, and an
insertion or removal moves at most a bucket's length of pointers. Nothing is deleted lazily, which
bounds the longest step. `benchmarks/bench_queue.py` compares it with heaps and sortedcontainers.

`JobIndex` owns all four indexes, so that they cannot disagree. `coordinator.core.queue` decides on
admission.
"""

from bisect import bisect_left, insort
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, nlargest
from math import inf
from operator import itemgetter
from typing import Generic, TypeVar

from common.model.job import FAIR_BAND, Job, LaneClass
from common.model.tablet import TabletId
from common.spi.controller import ShareClass

# --------------------------------------------------------------------------------------------- Rank
# The rank is one integer per job, fixed when the job is offered. Effective priority = planner's
# priority - age points, where the time of the offer counts one point per `ageing_s`. A job that is
# offered later starts lower. This has the same effect as raising all queued jobs, but no key has to
# change. The points are integers, so jobs offered within one step tie; ties are broken by the
# number of files and then by age.


_FILES_BITS = 24
_ARRIVAL_BITS = 48  # enough for a hundred thousand offers a second, for 89 years
_FILES_MAX = (1 << _FILES_BITS) - 1


def rank_of(effective: int, files: int, arrival: int) -> int:
    """Return one integer that orders by priority, then by more files, then by earlier arrival.

    Args:
        effective: Planner's priority - age points; may be negative.
        files: Number of inputs.
        arrival: Arrival number, unique in the queue.
    """
    assert files <= _FILES_MAX, files
    upper = (effective << _FILES_BITS) + files
    return (upper << _ARRIVAL_BITS) - arrival


def points_of(rank: int) -> int:
    """Return the effective priority in a rank."""
    return -(-rank >> _ARRIVAL_BITS) >> _FILES_BITS


# --------------------------------------------------------------------------------------- Ranked map


BUCKET_MAX = 1000
"""Maximum number of ranks in a bucket; a larger bucket is split in half."""

Value = TypeVar("Value")


class RankedMap(Generic[Value]):
    """Values by unique ranks.

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
        index = bisect_left(tops, rank)
        if index < len(tops):
            bucket = self._buckets[index]
            insort(bucket, rank)
        elif tops:
            index -= 1
            bucket = self._buckets[index]
            bucket.append(rank)
            tops[index] = rank
        else:
            self._buckets.append([rank])
            tops.append(rank)
            return
        if len(bucket) > BUCKET_MAX:
            self._split(index)

    def remove(self, rank: int) -> Value:
        """Remove and return the value of a rank.

        Raises:
            KeyError: The rank is not in use.
        """
        value = self._values.pop(rank)
        tops = self._tops
        index = bisect_left(tops, rank)
        bucket = self._buckets[index]
        if tops[index] != rank:
            del bucket[bisect_left(bucket, rank)]
            return value
        bucket.pop()
        if bucket:
            tops[index] = bucket[-1]
        else:
            del tops[index], self._buckets[index]
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

    def _split(self, index: int) -> None:
        bucket = self._buckets[index]
        upper = bucket[BUCKET_MAX // 2 :]
        del bucket[BUCKET_MAX // 2 :]
        self._buckets.insert(index + 1, upper)
        self._tops.insert(index, bucket[-1])


# --------------------------------------------------------------------------------------- Fair share
# Fair sharing: the next turn among classes of work, and among tables with jobs of one class.
#
# Two levels: classes of work are served by shares. Within a class, rank decides first, and tables
# whose best jobs are nearly equal take turns by weight.
#
# Each (class, table) pair is a **lane**, best job first. The lanes of a class whose best jobs lie
# within the band (`groups.<name>.fair_band` points) of the best job of the class take turns by
# start-time fair queueing: the clock of a lane advances by cost / weight with every job, and the
# lane with the lowest clock is served next. While their jobs stay in the band, the tables get bytes
# in proportion to their weights. With strict shares, all lanes of a class take turns, whatever
# their ranks.
#
# A job of low rank does not wait forever: it gains points over jobs offered later
# (`coordinator.ageing_per_s`), until it is above the band of all newer jobs.
#
# The classes `system`, `user`, `urgent` and `statistics` take turns in the same way (`ClassTurns`)
# if they have shares. While two classes have jobs, they get bytes in proportion to their shares;
# the others use the share of an idle class. Start-time fair queueing was published by Goyal, Vin
# and Cheng (1996): a class that becomes active starts at the clock of the class in service, and
# over any interval two active classes deviate from their shares by at most one job each. In
# addition, each class lags by `HEAD_START_BYTES`, so that a few jobs are served in the order of
# their priorities.
#
# Rules, in this order:
#
# 1. If classes have shares, choose the class of work that has the turn. Urgent and over the limit
#    are one class of work. Without shares, classes are strict: urgent before over the limit before
#    USER before SYSTEM before statistics (`common.model.job`).
# 2. Within a class of work, or among all classes without shares, age may win: if the best job of
#    the whole queue is of a lower class, it has waited so long that it outranks every job of the
#    higher classes, and it is served.
# 3. Within the class, of the lanes in the band the one with the lowest clock gives its best job; if
#    clocks are equal, the better job wins.
# 4. A lane that was empty or below the band restarts at the clock of its class, or at its own clock
#    if that is later: unused turns are not saved up, and excess service is not forgiven.
#
# Every step is O(log n), amortised, times the number of different points in the band.
# Deterministic: no clock, no randomness, no dependence on the order of sets.


HEAD_START_BYTES = 16 * 1024**2
"""Initial lag of each class, divided by its shares: among jobs of equal cost the class with more
shares starts, and a class with fewer shares waits until the others have had their part."""
JOB_COST_BYTES = 4 * 1024**2
"""Fixed cost of a job in addition to its bytes, so that a flood of tiny jobs is not free."""
WEIGHT_MIN = 0.001
DEBTS_MAX = 4096
"""Tables without jobs whose clocks are remembered per class; the largest debts are kept."""


Turn = tuple[float, int, str]
"""Clock of a table, negated rank of its best job, table."""


@dataclass(slots=True, eq=False)
class _Lane:
    """The jobs of one table in one class. Invariant: `ranks[0]` is not in `gone`."""

    table: str
    clock: float
    ranks: list[int] = field(default_factory=list)
    """A heap of negated ranks."""
    gone: set[int] = field(default_factory=set)
    """Negated ranks that were removed but are still in the heap."""
    turn: Turn | None = None
    """The turn that was announced last, by identity: earlier ones are outdated."""

    def enter(self, rank: int) -> None:
        """Add a rank; a recently removed one may still be in the heap."""
        if -rank in self.gone:
            self.gone.remove(-rank)
        else:
            heappush(self.ranks, -rank)

    def leave(self, rank: int) -> None:
        """Remove a rank."""
        ranks, gone = self.ranks, self.gone
        if ranks[0] == -rank:
            heappop(ranks)
            while gone and ranks and ranks[0] in gone:
                gone.remove(heappop(ranks))
            return
        gone.add(-rank)
        if 2 * len(gone) > len(ranks):
            self.ranks = [rank for rank in ranks if rank not in gone]
            heapify(self.ranks)
            gone.clear()


@dataclass(slots=True, eq=False)
class _ClassLanes:
    """The lanes of one class. Invariant: `turns` has the turn of every lane."""

    band: int | None
    """Points below the best job within which lanes take turns; None: all lanes take turns."""
    clock: float = 0.0
    """Clock of the lane that was served last."""
    lanes: dict[str, _Lane] = field(default_factory=dict)
    turns: dict[int, list[Turn]] = field(default_factory=dict)
    """Points of best jobs → a heap of turns, of which outdated ones are skipped."""
    points: list[int] = field(default_factory=list)
    """The keys of `turns`, ascending."""
    announced: int = 0
    """Number of turns in `turns`, with the outdated ones."""
    debts: dict[str, float] = field(default_factory=dict)
    """Clocks of empty lanes that are ahead of the class."""

    def points_of(self, lane: _Lane) -> int:
        """Return the points of a lane's best job; all the same without a band."""
        return 0 if self.band is None else points_of(-lane.ranks[0])

    def announce(self, lane: _Lane) -> None:
        """Add the turn of a lane whose best job or clock has changed."""
        lane.turn = turn = (lane.clock, lane.ranks[0], lane.table)
        points = self.points_of(lane)
        tied = self.turns.get(points)
        if tied is None:
            tied = self.turns[points] = []
            insort(self.points, points)
        heappush(tied, turn)
        self.announced += 1
        if self.announced > 4 * len(self.lanes) + 64:
            self._forget_outdated()

    def next_turn(self) -> Turn:
        """Return the turn that is next; at least one lane must have jobs."""
        chosen: Turn | None = None
        lowest, at = -inf, len(self.points)
        while at and (points := self.points[at - 1]) >= lowest:
            at -= 1
            turn = self._first(self.turns[points])
            if turn is None:
                del self.turns[points], self.points[at]
            elif chosen is None:
                chosen, lowest = turn, points - (self.band or 0)
            elif turn < chosen:
                chosen = turn
        assert chosen is not None
        return chosen

    def _first(self, turns: list[Turn]) -> Turn | None:
        """Return the first turn of a heap that is not outdated, or None; remove those before it."""
        while turns:
            turn = turns[0]
            lane = self.lanes.get(turn[2])
            if lane is not None and lane.turn is turn:
                return turn
            heappop(turns)
            self.announced -= 1
        return None

    def _forget_outdated(self) -> None:
        self.turns.clear()
        for lane in self.lanes.values():
            assert lane.turn is not None
            self.turns.setdefault(self.points_of(lane), []).append(lane.turn)
        for turns in self.turns.values():
            heapify(turns)
        self.points = sorted(self.turns)
        self.announced = len(self.lanes)

    def charge(self, lane: _Lane, cost: float) -> None:
        """Advance the clock of a lane that is served; its turn changes when the job leaves."""
        start = lane.clock if self.band is None else max(lane.clock, self.clock)
        self.clock = max(self.clock, start)
        lane.clock = start + cost

    def close(self, lane: _Lane) -> None:
        """Remove an empty lane, but remember its clock."""
        del self.lanes[lane.table]
        self.debts[lane.table] = lane.clock
        if not self.lanes:
            # No lane of the class has waiting jobs, so no debt remains.
            self.debts.clear()
        elif len(self.debts) > DEBTS_MAX:
            largest = nlargest(DEBTS_MAX // 2, self.debts.items(), key=itemgetter(1, 0))
            self.debts = dict(largest)

    def copied(self) -> "_ClassLanes":
        """Return a copy that can be changed without a change of this one."""
        lanes = {
            table: replace(lane, ranks=list(lane.ranks), gone=set(lane.gone))
            for table, lane in self.lanes.items()
        }
        turns = {points: list(tied) for points, tied in self.turns.items()}
        debts, points = dict(self.debts), list(self.points)
        return replace(self, lanes=lanes, turns=turns, points=points, debts=debts)


# --------------------------------------------------------------------------------- Turns of classes


SHARE_CLASSES: Mapping[LaneClass, ShareClass] = {
    LaneClass.URGENT: ShareClass.URGENT,
    LaneClass.OVER_LIMIT: ShareClass.URGENT,
    LaneClass.USER: ShareClass.USER,
    LaneClass.SYSTEM: ShareClass.SYSTEM,
    LaneClass.STATISTICS: ShareClass.STATISTICS,
}
"""Class of a lane → class of work whose shares apply; the highest first."""


@dataclass(slots=True, eq=False)
class _ClassTurn:
    """The clock of a class of work."""

    shares: float
    clock: float = 0.0
    jobs: int = 0


class ClassTurns:
    """Turns of classes of work by shares."""

    def __init__(self, shares: Mapping[ShareClass, float]) -> None:
        self._clock = 0.0
        """Clock of the class that was served last, at that time."""
        self._turns = {class_: _ClassTurn(shares[class_]) for class_ in ShareClass}
        self._of = {lane: self._turns[share] for lane, share in SHARE_CLASSES.items()}

    def set_shares(self, shares: Mapping[ShareClass, float]) -> None:
        """Change the shares of the classes; the change applies from their next jobs on."""
        for share_class, turn in self._turns.items():
            turn.shares = shares[share_class]

    def join(self, lane_class: LaneClass) -> None:
        """Count a queued job; a class that was idle does not catch up on missed turns."""
        turn = self._of[lane_class]
        if not turn.jobs:
            turn.clock = max(turn.clock, self._clock)
        turn.jobs += 1

    def leave(self, lane_class: LaneClass) -> None:
        """Count down after a job of a class has left the queue."""
        self._of[lane_class].jobs -= 1

    def charge(self, lane_class: LaneClass, cost_bytes: int) -> None:
        """Charge a class for a job that is assigned."""
        turn = self._of[lane_class]
        self._clock = max(self._clock, turn.clock)
        turn.clock += cost_bytes / turn.shares

    def next_of(self, classes: Sequence[LaneClass]) -> LaneClass:
        """Return the class that has the turn; the first one of a tie.

        Args:
            classes: Classes with jobs that may be assigned, highest first; at least one.
        """
        return min(classes, key=self._lag_of)

    def _lag_of(self, lane_class: LaneClass) -> float:
        turn = self._of[lane_class]
        return turn.clock + HEAD_START_BYTES / turn.shares

    def copied(self) -> "ClassTurns":
        """Return a copy that can be changed without a change of this one."""
        copy = ClassTurns({class_: turn.shares for class_, turn in self._turns.items()})
        copy._clock = self._clock
        for class_, turn in copy._turns.items():
            turn.clock, turn.jobs = self._turns[class_].clock, self._turns[class_].jobs
        return copy

    def are_one(self, first: LaneClass, second: LaneClass) -> bool:
        """Return whether two lane classes belong to the same class of work."""
        return self._of[first] is self._of[second]


# ---------------------------------------------------------------------------------- Turns of tables


class FairShare:
    """Turns of classes and tables. The queue reports each job that joins or leaves."""

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        shares: Mapping[ShareClass, float] | None = None,
        *,
        band: int | None = FAIR_BAND,
    ) -> None:
        """Create an instance without lanes.

        Args:
            weights: Table id → weight; missing tables have weight 1.
            shares: Shares of each class of work; None means that classes are strict.
            band: Points below the best job of a class within which tables take turns; None means
                that all tables take turns (strict shares).
        """
        self._weights = dict(weights or {})
        self._classes = {rank: _ClassLanes(band) for rank in sorted(LaneClass, reverse=True)}
        self._turns = None if shares is None else ClassTurns(shares)

    def set_shares(self, shares: Mapping[ShareClass, float]) -> None:
        """Change the shares of the classes of work, which are not strict."""
        assert self._turns is not None
        self._turns.set_shares(shares)

    def set_weight(self, table: str, weight: float) -> None:
        """Change the weight of a table; the change applies from its next job on."""
        self._weights[table] = weight

    def forget(self, table: str) -> None:
        """Remove the weight of a dropped table."""
        self._weights.pop(table, None)

    def join(self, rank_class: LaneClass, table: str, rank: int) -> None:
        """Add a queued job."""
        lanes = self._classes[rank_class]
        lane = lanes.lanes.get(table)
        if lane is None:
            clock = max(lanes.clock, lanes.debts.pop(table, 0.0))
            lane = lanes.lanes[table] = _Lane(table, clock)
        lane.enter(rank)
        if lane.ranks[0] == -rank:
            lanes.announce(lane)
        if self._turns is not None:
            self._turns.join(rank_class)

    def leave(self, rank_class: LaneClass, table: str, rank: int) -> None:
        """Remove a job that has left the queue for any reason."""
        lanes = self._classes[rank_class]
        lane = lanes.lanes[table]
        lane.leave(rank)
        if not lane.ranks:
            lanes.close(lane)
        elif lane.turn != (lane.clock, lane.ranks[0], table):
            lanes.announce(lane)
        if self._turns is not None:
            self._turns.leave(rank_class)

    def charge(self, rank_class: LaneClass, table: str, cost_bytes: int) -> None:
        """Charge a table for a job that is assigned; must be called before the job leaves."""
        lanes = self._classes[rank_class]
        weight = max(self._weights.get(table, 1.0), WEIGHT_MIN)
        lanes.charge(lanes.lanes[table], (cost_bytes + JOB_COST_BYTES) / weight)
        if self._turns is not None:
            self._turns.charge(rank_class, cost_bytes + JOB_COST_BYTES)

    def choose(
        self, best_class: LaneClass, best_rank: int, barred: Container[LaneClass] = ()
    ) -> int | None:
        """Return the rank of the next job, or None if only barred classes have jobs.

        Args:
            best_class: Class of the job with the highest rank.
            best_rank: The rank of that job.
            barred: Classes whose jobs may not be taken now.
        """
        waiting = [
            share_class
            for share_class, lanes in self._classes.items()
            if lanes.lanes and share_class not in barred
        ]
        if not waiting:
            return None
        chosen = self._next_class(waiting, waiting[0] if best_class in barred else best_class)
        return best_rank if chosen is None else -self._classes[chosen].next_turn()[1]

    def _next_class(self, waiting: list[LaneClass], best_class: LaneClass) -> LaneClass | None:
        """Return the class that has the turn, or None if the best job of all goes because of age.

        Args:
            waiting: Classes that have jobs, highest first.
            best_class: Class of the job with the highest rank.
        """
        highest = waiting[0]
        if len(waiting) == 1:
            return highest
        if self._turns is not None:
            highest = self._turns.next_of(waiting)
            if not self._turns.are_one(highest, best_class):
                return highest
        return None if highest is not best_class else highest

    def choose_unsaturated(
        self, saturated: Container[str], barred: Container[LaneClass] = ()
    ) -> int | None:
        """Return the rank of the next job, excluding some tables; None if no other table has jobs.

        The rules are those of `choose`. The cost is proportional to the number of lanes.
        """
        heads = [
            (-lane.ranks[0], rank_class, lane.clock)
            for rank_class, lanes in self._classes.items()
            for lane in lanes.lanes.values()
            if lane.table not in saturated and rank_class not in barred
        ]
        if not heads:
            return None
        best_rank, best_class, _ = max(heads)
        waiting = list(dict.fromkeys(rank_class for _, rank_class, _ in heads))
        chosen = self._next_class(waiting, best_class)
        if chosen is None:
            return best_rank
        class_heads = [(rank, clock) for rank, rank_class, clock in heads if rank_class is chosen]
        band = self._classes[chosen].band
        lowest = -inf if band is None else points_of(max(class_heads)[0]) - band
        return -min((clock, -rank) for rank, clock in class_heads if points_of(rank) >= lowest)[1]

    def copied(self) -> "FairShare":
        """Return a copy that can be changed without a change of this one. O(n)."""
        copy = FairShare(self._weights)
        copy._classes = {rank: lanes.copied() for rank, lanes in self._classes.items()}
        copy._turns = None if self._turns is None else self._turns.copied()
        return copy

    def check(self) -> None:
        """Assert the invariants of the lanes; for tests."""
        for lanes in self._classes.values():
            for lane in lanes.lanes.values():
                assert lane.ranks
                assert lane.ranks[0] not in lane.gone
                assert lane.gone <= set(lane.ranks)
                assert lane.turn == (lane.clock, lane.ranks[0], lane.table)
                assert any(turn is lane.turn for turn in lanes.turns[lanes.points_of(lane)])
            assert lanes.points == sorted(lanes.turns)
            assert lanes.announced == sum(map(len, lanes.turns.values()))


# ---------------------------------------------------------------------------------------- Job index


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
        entries: list[QueueEntry] = []
        entry = self._tables.get(tablet.table, {}).get(tablet.end)
        while entry is not None:
            entries.append(entry)
            entry = entry.older
        return tuple(reversed(entries))

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

    def in_order_of_start(self) -> Iterator[QueueEntry]:
        """Yield entries in the order of `next` and `drop` if nothing else changes."""
        if self._shares is None:
            yield from self.best_first()
            return
        shares, started = self._shares.copied(), set[int]()
        for best in self.best_first():
            while best.rank not in started:
                rank = shares.choose(best.lane, best.rank)
                assert rank is not None
                entry = self._ranked.get(rank)
                table = entry.job.tablet.table
                shares.charge(entry.lane, table, entry.job.cost_bytes)
                shares.leave(entry.lane, table, rank)
                started.add(rank)
                yield entry

    def lowest_below(self, rank: int, size_bytes: int, count: int) -> list[QueueEntry] | None:
        """Return the lowest entries whose removal makes enough room, or None.

        None means that not all of these entries rank below `rank`.

        Args:
            rank: Rank of the job that needs the room, and that fits into an empty queue.
            size_bytes: Missing bytes.
            count: Minimum number of entries to remove.
        """
        entries: list[QueueEntry] = []
        for entry in self._ranked.lowest_first():
            if entry.rank > rank:
                return None
            entries.append(entry)
            size_bytes -= entry.weight_bytes
            if size_bytes <= 0 and len(entries) >= count:
                return entries
        raise AssertionError(f"{len(entries)} entries are all, and {size_bytes} bytes are missing")

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
