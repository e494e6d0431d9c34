"""Whose turn is it, among classes of work, and among tables that have jobs of the same class?

Two levels: classes of work share by shares, and inside a class tables share by weights.

Without this, one table with a hundred thousand small jobs keeps every other table of
its class waiting. With it, each (class, table) is a **lane**, best job first, and
lanes of a class take turns by start-time fair queueing: a lane's clock advances by
cost / weight with every job it gives, and the lane with the lowest clock gives next.
Over time tables of a class get bytes in proportion to their weights.

Classes take turns in the same way (`ClassTurns`), if they have shares: `system`, `user`, `urgent`
and `statistics`. While two of them have jobs, they get bytes in proportion to their shares; what
one does not ask for the others get. Start-time fair queueing is of Goyal, Vin and Cheng (1996): a
class that comes back starts at the clock of the class that is served, and over any time two
classes that both have jobs differ from their shares by at most one job each. Here a class lags by
`HEAD_START_BYTES` of its own, so that a few jobs go in the order of their priorities.

Rules, in this order:

1. The class of work whose turn it is, if classes have shares. Urgent and over the limit are one
   class of work. Without shares classes are strict: urgent before over the limit before USER
   before SYSTEM before statistics (`common.model.job`).
2. Inside a class of work, or among all without shares, age may win: if the best job of the whole
   queue is of a lower class, it has waited so long that it outranks every job of the higher ones,
   and it goes, itself.
3. Inside the class, the lane with the lowest clock gives its best job; equal clocks:
   the better job.
4. A lane that comes back from being empty starts at the class's clock, never behind:
   what was not asked for is not saved up. Nor is what it has had too much of forgiven.

Every step is O(log n), amortised. Deterministic: no clock, no chance, no order of sets.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nlargest
from operator import itemgetter

from common.model.job import LaneClass
from common.spi.controller import ShareClass

HEAD_START_BYTES = 16 * 1024**2
"""By so much, divided by its shares, each class lags: of classes with jobs of equal cost the one
with more shares begins, and a lower one waits until the higher ones have had their part."""
JOB_COST_BYTES = 4 * 1024**2
"""What a job costs beside its bytes, so that a flood of tiny jobs is not free."""
WEIGHT_MIN = 0.001
DEBTS_MAX = 4096
"""Tables without jobs whose clocks are remembered per class; the largest debts stay."""


@dataclass(slots=True, eq=False)
class _Lane:
    """The jobs of one table in one class; `ranks[0]` is never one of the gone."""

    table: str
    clock: float
    ranks: list[int] = field(default_factory=list)
    """A heap of negated ranks."""
    gone: set[int] = field(default_factory=set)
    """Negated ranks that left from the middle."""
    moved: bool = False
    """Whether the clock has moved since the lane's turn was announced."""

    def enter(self, rank: int) -> None:
        """Put a rank in; one that left lately may still be in the heap."""
        if -rank in self.gone:
            self.gone.remove(-rank)
        else:
            heappush(self.ranks, -rank)

    def leave(self, rank: int) -> bool:
        """Take a rank out; return whether the head has changed."""
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
    """The lanes of one class. Every lane that is not empty has its present turn in `turns`."""

    clock: float = 0.0
    """The clock of the lane that gave last."""
    lanes: dict[str, _Lane] = field(default_factory=dict)
    turns: list[tuple[float, int, str]] = field(default_factory=list)
    """A heap of (clock, negated head, table); what a lane has moved on from is skipped."""
    debts: dict[str, float] = field(default_factory=dict)
    """Clocks of lanes that are empty but ahead of the class."""

    def announce(self, lane: _Lane) -> None:
        """Note the present turn of a lane, and forget old ones now and then."""
        lane.moved = False
        heappush(self.turns, (lane.clock, lane.ranks[0], lane.table))
        if len(self.turns) > 4 * len(self.lanes) + 64:
            self.turns = [(each.clock, each.ranks[0], each.table) for each in self.lanes.values()]
            heapify(self.turns)

    def next_lane(self) -> _Lane:
        """Return the lane whose turn it is; there must be one."""
        while True:
            clock, head, table = self.turns[0]
            lane = self.lanes.get(table)
            if lane is not None and lane.clock == clock and lane.ranks[0] == head:
                return lane
            heappop(self.turns)

    def close(self, lane: _Lane) -> None:
        """Forget an empty lane, but not what it has had too much of."""
        del self.lanes[lane.table]
        self.debts[lane.table] = lane.clock
        if not self.lanes:
            # Nobody was kept waiting, so nobody is owed anything.
            self.debts.clear()
        elif len(self.debts) > DEBTS_MAX:
            largest = nlargest(DEBTS_MAX // 2, self.debts.items(), key=itemgetter(1, 0))
            self.debts = dict(largest)


# ----------------------------------------------------------------------------- Turns of the classes


SHARE_CLASSES: Mapping[LaneClass, ShareClass] = {
    LaneClass.URGENT: ShareClass.URGENT,
    LaneClass.OVER_LIMIT: ShareClass.URGENT,
    LaneClass.USER: ShareClass.USER,
    LaneClass.SYSTEM: ShareClass.SYSTEM,
    LaneClass.STATISTICS: ShareClass.STATISTICS,
}
"""Class of a lane → class of work whose shares it is under; the highest first."""


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
        """The clock of the class that gave last, when it did."""
        self._turns = {class_: _ClassTurn(shares[class_]) for class_ in ShareClass}
        self._of = {lane: self._turns[share] for lane, share in SHARE_CLASSES.items()}

    def set_shares(self, shares: Mapping[ShareClass, float]) -> None:
        """Give classes other shares, from their next jobs on."""
        for each, turn in self._turns.items():
            turn.shares = shares[each]

    def join(self, lane_class: LaneClass) -> None:
        """A job of a class has been queued; what was not asked for is not saved up."""
        turn = self._of[lane_class]
        if not turn.jobs:
            turn.clock = max(turn.clock, self._clock)
        turn.jobs += 1

    def leave(self, lane_class: LaneClass) -> None:
        """A job of a class has left the queue."""
        self._of[lane_class].jobs -= 1

    def charge(self, lane_class: LaneClass, cost_bytes: int) -> None:
        """A job of a class is handed out."""
        turn = self._of[lane_class]
        self._clock = max(self._clock, turn.clock)
        turn.clock += cost_bytes / turn.shares

    def next_of(self, classes: Sequence[LaneClass]) -> LaneClass:
        """Return the class whose turn it is; of two that stand alike, the first.

        Args:
            classes: That have jobs which may be handed out, highest first; at least one.
        """
        return min(classes, key=self._lag_of)

    def _lag_of(self, lane_class: LaneClass) -> float:
        turn = self._of[lane_class]
        return turn.clock + HEAD_START_BYTES / turn.shares

    def are_one(self, first: LaneClass, second: LaneClass) -> bool:
        """Return whether two classes of lanes are one class of work."""
        return self._of[first] is self._of[second]


# ------------------------------------------------------------------------------ Turns of the tables


class FairShare:
    """Turns of classes and tables. A queue reports each job that joins or leaves."""

    def __init__(
        self,
        weights: Mapping[str, float] | None = None,
        shares: Mapping[ShareClass, float] | None = None,
    ) -> None:
        """Begin with no lanes.

        Args:
            weights: Table id → weight; tables that are not named weigh 1.
            shares: Of each class of work; None: classes are strict.
        """
        self._weights = dict(weights or {})
        self._classes = {rank: _ClassLanes() for rank in sorted(LaneClass, reverse=True)}
        self._turns = None if shares is None else ClassTurns(shares)

    def set_shares(self, shares: Mapping[ShareClass, float]) -> None:
        """Give the classes of work other shares; of strict classes, nothing changes."""
        if self._turns is not None:
            self._turns.set_shares(shares)

    def set_weight(self, table: str, weight: float) -> None:
        """Give a table another weight, from its next job on."""
        self._weights[table] = weight

    def forget(self, table: str) -> None:
        """Drop the weight of a table that is gone."""
        self._weights.pop(table, None)

    def join(self, rank_class: LaneClass, table: str, rank: int) -> None:
        """A job has been queued."""
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
        """A job has left, for whatever reason."""
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
        """A job of this table is about to leave because it is handed out."""
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
        """Return the rank of the job that goes next; None: only barred classes have jobs.

        Args:
            best_class: The class of the job that is best by rank alone.
            best_rank: Its rank.
            barred: Classes that hand nothing out now.
        """
        waiting = [
            each for each, lanes in self._classes.items() if lanes.lanes and each not in barred
        ]
        if not waiting:
            return None
        chosen = self._next_class(waiting, waiting[0] if best_class in barred else best_class)
        return best_rank if chosen is None else -self._classes[chosen].next_lane().ranks[0]

    def _next_class(self, waiting: list[LaneClass], best_class: LaneClass) -> LaneClass | None:
        """Return the class whose turn it is; None: the best job of all has aged, and goes itself.

        Args:
            waiting: Classes that have jobs, highest first.
            best_class: Of the job that is best by rank alone.
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
        """Return the rank of the job that goes next though some tables hand nothing out.

        By the same rules; None if no other table has jobs. Looks at every lane.
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
        """Assert what is always true of the lanes; for tests."""
        for lanes in self._classes.values():
            for lane in lanes.lanes.values():
                assert lane.ranks
                assert lane.ranks[0] not in lane.gone
                assert lane.gone <= set(lane.ranks)
                assert not lane.moved
                assert (lane.clock, lane.ranks[0], lane.table) in lanes.turns
