"""A store that goes back in time further than it may: an old dump, a replica that lagged for long.

Rows that were added since are unknown to it, and so are commits: inputs that it names are
deleted, and outputs that hold their rows are known to nobody. Nothing mends that but a rebuild,
which needs the files. So one thing must hold, whoever dies or starts: **the last copy of an
acknowledged row is never deleted**; neither while the table is read-only nor when an operator
has accepted the older state. And while it is read-only, no job begins.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from common.metadata.changes import AcceptGeneration
from common.parquet.service_files import LocationOwner
from coordinator import context as generation
from tests.support.sim_chaos import Chaos
from tests.support.sim_cluster import Cluster
from tests.support.sim_options import draw_options
from tests.support.sim_run import as_simulated, set_to, told_from

LOOK_AGAIN_S = 1.0
"""How often generations are counted up and looked at."""
LOOK_LASTS_S = 1.0
"""Stores go back within a moment here, so looks last no longer."""
BACK_MAX_S = 30.0
STEP_S = 1.0
BUSY_S = 40.0
READ_ONLY_S, ACCEPTED_S = 30.0, 60.0
"""How long a table is left behind, and watched when it was accepted."""
NOTICED_S = 15.0
"""A coordinator that died is there again, and has looked."""


@dataclass(frozen=True)
class Moment:
    """What a store held once."""

    at_s: float
    values: Mapping[str, Any]
    expires_s: Mapping[str, float]

    @classmethod
    def now(cls, cluster: Cluster) -> Moment:
        """Return what the store of a cluster holds now."""
        values = cluster.truth.memory.values
        return cls(cluster.world.now_s(), deepcopy(values._held), dict(values._expires_s))

    def generation(self, table: str) -> int:
        """Return the generation of a table."""
        return int(self.values.get(f"neve:{{{table}}}:generation", 0))

    def put_back(self, cluster: Cluster) -> None:
        """Have a store know no more than it did then; users are gone from here on."""
        cluster.end_clients()
        world, truth = cluster.world, cluster.truth
        world.tell("server", "goes back", seconds=world.now_s() - self.at_s)
        truth.seen["stores that went back"] += 1
        truth.sleeps = True
        cluster.server.go_back()
        values = truth.memory.values
        for key in {*values._held, *self.values}:
            values.remove(key)
            if key in self.values:
                values.put(key, deepcopy(self.values[key]))
            if key in self.expires_s:
                values._expires_s[key] = self.expires_s[key]


def go_back(seed: int, *, waits_for_names: bool = False) -> Cluster:
    """Return a cluster whose store went back, was found behind, and was accepted.

    Args:
        seed: Of the story.
        waits_for_names: Tell another story by the same seed; see `Options`.

    Raises:
        AssertionError: The last copy of a row was deleted, or a table that is read-only changed.
    """
    drawn = draw_options(seed)
    options = replace(
        drawn,
        goes_back=True,
        **dict.fromkeys(("fail_over", "drops", "operators", "cancels", "deadlines"), False),
        # The whole store goes back here, to one moment.
        spread=False,
        waits_for_names=waits_for_names,
        creators=0,
        gateways=0,
        late_deletes=0.0,
        busy_s=BUSY_S,
        compactor_freezes=True,
    )
    with as_simulated(options), _generations_in_memory() as generations:
        cluster = Cluster(seed, options)
        with told_from(cluster, seed):
            _Site(cluster, generations).live()
    return cluster


@contextlib.contextmanager
def _generations_in_memory() -> Iterator[dict[str, int]]:
    """Keep generations of locations, by their text, in memory."""
    found: dict[str, int] = {}
    wanted: dict[str, object] = {
        "LOOK_AGAIN_S": LOOK_AGAIN_S,
        "LOOK_LASTS_S": LOOK_LASTS_S,
        "open_location": lambda location: location,
        "written_generation": lambda location: found.get(location, 0),
        "write_generation": found.__setitem__,
        "write_description": lambda _location, _table: None,
        "read_owner": lambda _location: LocationOwner(store="", table=""),
    }
    with set_to([(generation, name, value) for name, value in wanted.items()]):
        yield found


class _Site:
    """One run."""

    def __init__(self, cluster: Cluster, generations: Mapping[str, int]) -> None:
        self.cluster = cluster
        self.world, self.truth = cluster.world, cluster.truth
        self.generations = generations
        self.moments: deque[Moment] = deque(maxlen=int(BACK_MAX_S / STEP_S))

    def live(self) -> None:
        chaos = Chaos(self.cluster)
        self.cluster.live()
        chaos.start()
        until_s = self.world.now_s() + BUSY_S
        while self.world.now_s() < until_s:
            self._pass(STEP_S)
            self.moments.append(Moment.now(self.cluster))
        if (old := self._older()) is None:
            return
        self.truth.disk.on_delete = self._deleted
        old.put_back(self.cluster)
        self._watch_those_who_know(old)
        before = self._running()
        self._pass(READ_ONLY_S)
        begun = sorted(self._running() - before)
        assert not begun, f"jobs of tables that are read-only begin: {begun}"
        self._accept()
        self._pass(ACCEPTED_S)
        chaos.stop()

    def _pass(self, for_s: float) -> None:
        self.world.run_until(self.world.now_s() + for_s)

    def _older(self) -> Moment | None:
        """Return a moment at which every table had a lower generation than its location has."""
        dice = self.world.dice
        behind = [moment for moment in self.moments if self._is_behind(moment)]
        return dice.choice(behind) if behind else None

    def _is_behind(self, moment: Moment) -> bool:
        written = {
            table.id: self.generations.get(table.location, 0) for table in self.cluster.tables
        }
        return all(moment.generation(table) < written[table] for table in written)

    def _deleted(self, path: str) -> None:
        disk = self.truth.disk
        for table, rows in self.truth.acknowledged.items():
            mine = [row for row in disk.ever(path) if row in rows]
            lost = [row for row in mine if not any(row in held for held in disk.files.values())]
            assert not lost, f"{table}: {path} was the last copy of rows {lost}"

    def _watch_those_who_know(self, moment: Moment) -> None:
        """Let everybody notice; who has seen a higher generation has nothing to find out."""
        stored = {table.id: moment.generation(table.id) for table in self.cluster.tables}
        knowing = [
            coordinator.name
            for coordinator in self.cluster.coordinators
            if coordinator.knows_more(stored)
        ]
        before, noticed_s = self._running(), self.world.now_s() + NOTICED_S
        while self.world.now_s() < noticed_s:
            self._pass(STEP_S)
            for attempt in sorted(self._running() - before):
                name = attempt.split("-")[1]
                assert name not in knowing, f"{attempt} begins, though {name} knows better"

    def _running(self) -> set[str]:
        values = self.truth.memory.values
        return {
            attempt.decode()
            for key in {*values.keys()}
            if key.endswith(":running")
            for attempt in values.hash(key)
        }

    def _accept(self) -> None:
        async def accept() -> None:
            for table in self.cluster.tables:
                reached = self.generations[table.location]
                accepted = AcceptGeneration(table=table.id, generation=reached, lost=True)
                await self.cluster.owner.repeat(accepted)
                self.truth.seen["tables accepted"] += 1

        self.cluster.switch_faults(on=False)
        self.cluster.operator.start(accept())
