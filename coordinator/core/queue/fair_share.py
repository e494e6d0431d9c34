"""Fair sharing: the next turn among classes of work, and among tables with jobs of one class.

Two levels: classes of work are served by shares, and tables within a class by weights.

Without fair sharing, a table with a hundred thousand small jobs would block every other table of
its class. Here each (class, table) pair is a **lane**, best job first. The lanes of a class take
turns by start-time fair queueing: the clock of a lane advances by cost / weight with every job, and
the lane with the lowest clock is served next. Over time, the tables of a class get bytes in
proportion to their weights.

The classes `system`, `user`, `urgent` and `statistics` take turns in the same way (`ClassTurns`) if
they have shares. While two classes have jobs, they get bytes in proportion to their shares; the
others use the share of an idle class. Start-time fair queueing was published by Goyal, Vin and
Cheng (1996): a class that becomes active starts at the clock of the class in service, and over any
interval two active classes deviate from their shares by at most one job each. In addition, each
class lags by `HEAD_START_BYTES`, so that a few jobs are served in the order of their priorities.

Rules, in this order:

1. If classes have shares, choose the class of work that has the turn. Urgent and over the limit
   are one class of work. Without shares, classes are strict: urgent before over the limit before
   USER before SYSTEM before statistics (`common.model.job`).
2. Within a class of work, or among all classes without shares, age may win: if the best job of the
   whole queue is of a lower class, it has waited so long that it outranks every job of the higher
   classes, and it is served.
3. Within the class, the lane with the lowest clock gives its best job; if clocks are equal, the
   better job wins.
4. A lane that was empty restarts at the clock of its class, or at its own clock if that is later:
   unused turns are not saved up, and excess service is not forgiven.

Every step is O(log n), amortised. Deterministic: no clock, no randomness, no dependence on the
order of sets.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nlargest
from operator import itemgetter

from common.model.job import LaneClass
from common.spi.controller import ShareClass

HEAD_START_BYTES = 16 * 1024**2
"""Initial lag of each class, divided by its shares: among jobs of equal cost the class with more
shares starts, and a class with fewer shares waits until the others have had their part."""
JOB_COST_BYTES = 4 * 1024**2
"""Fixed cost of a job in addition to its bytes, so that a flood of tiny jobs is not free."""
WEIGHT_MIN = 0.001
DEBTS_MAX = 4096
"""Tables without jobs whose clocks are remembered per class; the largest debts are kept."""


@dataclass(slots=True, eq=False)
class _Lane:
    """The jobs of one table in one class. Invariant: `ranks[0]` is not in `gone`."""

    table: str
    clock: float
    ranks: list[int] = field(default_factory=list)
    """A heap of negated ranks."""
    gone: set[int] = field(default_factory=set)
    """Negated ranks that were removed but are still in the heap."""
    moved: bool = False
    """Whether the clock has changed since the lane's turn was announced."""

    def enter(self, rank: int) -> None:
        """Add a rank; a recently removed one may still be in the heap."""
        if -rank in self.gone:
            self.gone.remove(-rank)
        else:
            heappush(self.ranks, -rank)

    def leave(self, rank: int) -> bool:
        """Remove a rank; return whether the head has changed."""
        ranks, gone = self.ranks, self.gone
        if ranks[0] == -rank:
            heappop(ranks)
            while gone and ranks and ranks[0] in gone:
                gone.remove(heappop(ranks))
            return True
        gone.add(-rank)
        if 2 * len(gone) > len(ranks):
            self.ranks = [each for each in ranks if each not in gone]
            heapify(self.ranks)
            gone.clear()
        return False


@dataclass(slots=True, eq=False)
class _ClassLanes:
    """The lanes of one class. Invariant: `turns` has the current turn of every lane with jobs."""

    clock: float = 0.0
    """Clock of the lane that was served last."""
    lanes: dict[str, _Lane] = field(default_factory=dict)
    turns: list[tuple[float, int, str]] = field(default_factory=list)
    """A heap of (clock, negated head, table); outdated entries are skipped."""
    debts: dict[str, float] = field(default_factory=dict)
    """Clocks of empty lanes that are ahead of the class."""

    def announce(self, lane: _Lane) -> None:
        """Add the current turn of a lane; remove outdated turns from time to time."""
        lane.moved = False
        heappush(self.turns, (lane.clock, lane.ranks[0], lane.table))
        if len(self.turns) > 4 * len(self.lanes) + 64:
            self.turns = [(each.clock, each.ranks[0], each.table) for each in self.lanes.values()]
            heapify(self.turns)

    def next_lane(self) -> _Lane:
        """Return the lane that has the turn; at least one lane must have jobs."""
        while True:
            clock, head, table = self.turns[0]
            lane = self.lanes.get(table)
            if lane is not None and lane.clock == clock and lane.ranks[0] == head:
                return lane
            heappop(self.turns)

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
        for each, turn in self._turns.items():
            turn.shares = shares[each]

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
    ) -> None:
        """Create an instance without lanes.

        Args:
            weights: Table id → weight; missing tables have weight 1.
            shares: Shares of each class of work; None means that classes are strict.
        """
        self._weights = dict(weights or {})
        self._classes = {rank: _ClassLanes() for rank in sorted(LaneClass, reverse=True)}
        self._turns = None if shares is None else ClassTurns(shares)

    def set_shares(self, shares: Mapping[ShareClass, float]) -> None:
        """Change the shares of the classes of work; ignored if classes are strict."""
        if self._turns is not None:
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
        head_changed = lane.leave(rank)
        if not lane.ranks:
            lanes.close(lane)
        elif head_changed or lane.moved:
            lanes.announce(lane)
        if self._turns is not None:
            self._turns.leave(rank_class)

    def charge(self, rank_class: LaneClass, table: str, cost_bytes: int) -> None:
        """Charge a table for a job that is assigned; must be called before the job leaves."""
        lanes = self._classes[rank_class]
        lane = lanes.lanes[table]
        lanes.clock = max(lanes.clock, lane.clock)
        weight = max(self._weights.get(table, 1.0), WEIGHT_MIN)
        lane.clock += (cost_bytes + JOB_COST_BYTES) / weight
        lane.moved = True
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
            each for each, lanes in self._classes.items() if lanes.lanes and each not in barred
        ]
        if not waiting:
            return None
        chosen = self._next_class(waiting, waiting[0] if best_class in barred else best_class)
        return best_rank if chosen is None else -self._classes[chosen].next_lane().ranks[0]

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
        turns = [(clock, -rank) for rank, rank_class, clock in heads if rank_class is chosen]
        return -min(turns)[1]

    def check(self) -> None:
        """Assert the invariants of the lanes; for tests."""
        for lanes in self._classes.values():
            for lane in lanes.lanes.values():
                assert lane.ranks
                assert lane.ranks[0] not in lane.gone
                assert lane.gone <= set(lane.ranks)
                assert not lane.moved
                assert (lane.clock, lane.ranks[0], lane.table) in lanes.turns
