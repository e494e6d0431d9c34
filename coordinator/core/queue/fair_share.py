"""Whose turn is it, among tables that have jobs of the same class?

Without this, one table with a hundred thousand small jobs keeps every other table of
its class waiting. With it, each (class, table) is a **lane**, best job first, and
lanes of a class take turns by start-time fair queueing: a lane's clock advances by
cost / weight with every job it gives, and the lane with the lowest clock gives next.
Over time tables of a class get bytes in proportion to their weights.

Rules, in this order:

1. Classes are strict: urgent before over the limit before USER before SYSTEM
   (`common.model.job`).
2. Except for age: if the best job of the whole queue is of a lower class, it has waited
   so long that it outranks every job of the higher ones, and it goes, itself.
3. Inside the class, the lane with the lowest clock gives its best job; equal clocks:
   the better job.
4. A lane that comes back from being empty starts at the class's clock, never behind:
   what was not asked for is not saved up. Nor is what it has had too much of forgiven.

Every step is O(log n), amortised. Deterministic: no clock, no chance, no order of sets.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nlargest
from operator import itemgetter

from common.model.job import PriorityClass

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


class FairShare:
    """Turns of tables by weight. A queue reports each job that joins or leaves."""

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        """Begin with no lanes.

        Args:
            weights: Table id → weight; tables that are not named weigh 1.
        """
        self._weights = dict(weights or {})
        self._classes = {rank: _ClassLanes() for rank in sorted(PriorityClass, reverse=True)}

    def set_weight(self, table: str, weight: float) -> None:
        """Give a table another weight, from its next job on."""
        self._weights[table] = weight

    def forget(self, table: str) -> None:
        """Drop the weight of a table that is gone."""
        self._weights.pop(table, None)

    def join(self, rank_class: PriorityClass, table: str, rank: int) -> None:
        """A job has been queued."""
        lanes = self._classes[rank_class]
        lane = lanes.lanes.get(table)
        if lane is None:
            clock = max(lanes.clock, lanes.debts.pop(table, 0.0))
            lane = lanes.lanes[table] = _Lane(table, clock)
        lane.enter(rank)
        if lane.ranks[0] == -rank:
            lanes.announce(lane)

    def leave(self, rank_class: PriorityClass, table: str, rank: int) -> None:
        """A job has left, for whatever reason."""
        lanes = self._classes[rank_class]
        lane = lanes.lanes[table]
        head_changed = lane.leave(rank)
        if not lane.ranks:
            lanes.close(lane)
        elif head_changed or lane.moved:
            lanes.announce(lane)

    def charge(self, rank_class: PriorityClass, table: str, cost_bytes: int) -> None:
        """A job of this table is about to leave because it is handed out."""
        lanes = self._classes[rank_class]
        lane = lanes.lanes[table]
        lanes.clock = max(lanes.clock, lane.clock)
        weight = max(self._weights.get(table, 1.0), WEIGHT_MIN)
        lane.clock += (cost_bytes + JOB_COST_BYTES) / weight
        lane.moved = True

    def choose(self, best_class: PriorityClass, best_rank: int) -> int:
        """Return the rank of the job that goes next.

        Args:
            best_class: The class of the job that is best by rank alone.
            best_rank: Its rank.
        """
        for rank_class, lanes in self._classes.items():
            if lanes.lanes:
                aged = rank_class is not best_class
                return best_rank if aged else -lanes.next_lane().ranks[0]
        raise AssertionError("asked for a turn while no job is queued")

    def choose_unsaturated(self, saturated: Container[str]) -> int | None:
        """Return the rank of the job that goes next though some tables hand nothing out.

        By the same rules; None if no other table has jobs. Looks at every lane.
        """
        heads = [
            (-lane.ranks[0], rank_class, lane.clock)
            for rank_class, lanes in self._classes.items()
            for lane in lanes.lanes.values()
            if lane.table not in saturated
        ]
        if not heads:
            return None
        first_class = heads[0][1]
        best_rank, best_class, _ = max(heads)
        if best_class is not first_class:
            return best_rank
        turns = [(clock, -rank) for rank, rank_class, clock in heads if rank_class is first_class]
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
