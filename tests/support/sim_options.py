"""What one seed draws: sizes, what is used, and *which* faults (a swarm: each leaves some out)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

from common.model.group import Group, Service
from common.settings import CoordinatorSettings, Settings
from tests.support.sim_disk import ROW_BYTES

LATE_DELETE_MAX_S = 12.0
"""How much later a deletion happens that the storage did not answer."""
TROUBLES: Mapping[str, Mapping[str, Any]] = {
    "freezes": {"gateway_freezes": True, "gateway_dies": False, "latency_max_s": 0.1},
    "names": {"late_deletes": 0.5, "gateway_freezes": False, "latency_max_s": 0.02},
    "links": {
        "store_lost": 0.05,
        "gateway_tries": 1,
        "gateway_freezes": False,
        "gateway_dies": False,
    },
}
"""One kind of trouble after the other finds what all kinds together hide from each other."""
GATEWAYS_SHARE = 0.5
"""Of seeds that have gateways."""
DEAD_ROWS_SHARE = 0.4
"""Of seeds."""
SPREAD_SHARE = 0.5
"""Of seeds with fail-overs: their stores are Redis Clusters."""
REFUSALS_SHARE = 0.3
"""Of seeds with faults: their stores take nothing now and then."""
SERVICE = Service(groups=(Group(name="small", max_bytes=60 * ROW_BYTES), Group(name="large")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes, uses and faults of one run. Times in seconds of simulated time."""

    tables: int = 1
    tablets: int = 2
    """Per table, at first."""
    compactors: int = 2
    slots: int = 1
    appenders: int = 1
    readers: int = 1
    users: int = 0
    """Each submits requests, one after the other."""
    cancels: bool = False
    """Users change their minds: about a request, a range, a job."""
    deadlines: bool = False
    selector: str = ""
    """The tables' own: what it chooses becomes a request."""
    hold_expiry_s: float = 120.0
    bounds: bool = False
    """Tablets are split and merged."""
    levels: bool = False
    """The planner is `leveled`, which moves files. No seed draws it: their stories stay alike."""
    dead_rows: bool = False
    """Rewrites drop dead rows, and say where."""
    drops: bool = False
    """The last table is dropped."""
    busy_s: float = 60.0
    queue_count_max: int = 100
    rewrite_max_s: float = 2.0
    feed_s: float = 0.0
    """Longest delay of the change feed; slow: coordinators plan from old readings."""
    lose: float = 0.0
    """Probability that a message, or its answer, is lost."""
    double: float = 0.0
    lead_s: float = 2.0
    """How often coordinators look whether they still lead; slow: ghosts live longer."""
    latency_max_s: float = 0.02
    store_lost: float = 0.0
    store_late: float = 0.0
    store_tries: int = 6
    """Tries of one change: with few, outcomes stay unknown."""
    store_refuses: bool = False
    """The store is full, has no replicas, or starts, for some seconds at a time."""
    fails: float = 0.0
    compactor_dies: bool = False
    compactor_freezes: bool = False
    coordinator_dies: bool = False
    ghost: bool = False
    fail_over: bool = False
    """A replica takes over that has missed the last one or two changes."""
    spread: bool = False
    """The store is a Redis Cluster: each table, and the names, fail over by themselves."""
    waits_for_names: bool = False
    """A creation waits for replicas of its name also where a later wait covers it."""
    creators: int = 0
    """Each creates and drops tables, and dies now and then."""
    goes_back: bool = False
    """The store goes back in time, further than it may, and tables have generations."""
    operators: bool = False
    """Groups and tables are paused, compactors drained, attempts cancelled."""
    gateways: int = 0
    callers: int = 2
    """Of gateways, if there are any; the first one scans."""
    gateway_tries: int = 6
    """Tries of one change of a gateway."""
    gateway_dies: bool = False
    gateway_freezes: bool = False
    late_deletes: float = 0.0

    @property
    def look_lasts_s(self) -> float:
        """How long after its look a collector deletes: some dozens of round trips."""
        return max(3.0, 40 * self.latency_max_s)

    @property
    def calm(self) -> bool:
        """Whether nothing ever goes wrong."""
        unsafe = (self.lose, self.double, self.store_lost, self.store_late, self.fails)
        unsafe += (self.store_refuses,)
        untouched = not (self.compactor_freezes or self.operators or self.cancels)
        return not any(unsafe) and self.crash_free and untouched

    @property
    def crash_free(self) -> bool:
        """Whether nobody dies and no write arrives after it was given up."""
        dies = self.compactor_dies or self.coordinator_dies or self.ghost or self.fail_over
        return not (dies or self.store_late)

    @property
    def leak_free(self) -> bool:
        """Whether no file can be left that no key knows.

        A compactor that is taken for dead, sleeps longer than garbage is kept, and then hears
        no answer to its commit may not delete what it has written: the listing sweep does.
        """
        return self.crash_free and not (self.compactor_freezes and self.store_lost)

    def __str__(self) -> str:
        """Name what differs from the defaults."""
        default = Options()
        return ", ".join(
            f"{field.name}={getattr(self, field.name)}"
            for field in fields(self)
            if getattr(self, field.name) != getattr(default, field.name)
        )


def draw_options(seed: int) -> Options:
    """Return the options of a seed; every fifth run is calm."""
    dice = Random(f"options {seed}")
    faults = seed % 5 != 0

    def maybe(value: float, chance: float = 0.35) -> float:
        return value if faults and dice.random() < chance else 0.0

    users = dice.choice((0, 1, 1, 2, 3))
    options = Options(
        tables=dice.choice((1, 1, 2)),
        tablets=dice.choice((1, 1, 2, 3)),
        compactors=dice.randint(1, 3),
        slots=dice.choice((1, 1, 2)),
        appenders=dice.randint(1, 2),
        readers=dice.choice((0, 1)),
        users=users,
        cancels=bool(users and maybe(1.0)),
        deadlines=bool(users and maybe(1.0)),
        selector=dice.choice(("", "", "", "all", "size")),
        hold_expiry_s=dice.choice((4.0, 120.0)),
        bounds=dice.random() < 0.5,
        drops=dice.random() < 0.15,
        busy_s=dice.choice((15.0, 30.0)),
        queue_count_max=dice.choice((1, 2, 100)),
        rewrite_max_s=dice.choice((0.5, 2.0, 12.0)),
        feed_s=dice.choice((0.0, 0.0, 3.0)),
        lead_s=dice.choice((2.0, 10.0)),
        latency_max_s=dice.choice((0.02, 0.5)) if faults else dice.choice((0.005, 0.05)),
        lose=maybe(0.05),
        double=maybe(0.1),
        store_lost=maybe(0.03),
        store_late=maybe(0.03),
        store_tries=dice.choice((1, 2, 6)) if faults else 6,
        fails=maybe(0.2),
        compactor_dies=bool(maybe(1.0)),
        compactor_freezes=bool(maybe(1.0)),
        coordinator_dies=bool(maybe(1.0)),
        ghost=bool(maybe(1.0)),
        fail_over=bool(maybe(1.0)),
        operators=dice.random() < 0.2,
    )
    refuses = faults and Random(f"refusals {seed}").random() < REFUSALS_SHARE
    dead_rows = Random(f"dead rows {seed}").random() < DEAD_ROWS_SHARE
    spread = options.fail_over and Random(f"spread {seed}").random() < SPREAD_SHARE
    options = replace(
        options,
        store_refuses=refuses,
        dead_rows=dead_rows,
        spread=spread,
        creators=2 if spread else 0,
    )
    return replace(options, **_draw_gateways(seed, options, faults=faults))


def _draw_gateways(seed: int, options: Options, *, faults: bool) -> dict[str, Any]:
    """Return what a seed draws of gateways: half have none, others all kinds of trouble or one."""
    dice = Random(f"gateways {seed}")
    if dice.random() >= GATEWAYS_SHARE:
        return {}
    drawn = {
        "gateways": dice.choice((1, 2)),
        "callers": dice.choice((2, 3)),
        "gateway_tries": dice.choice((1, 1, 2, 6)),
        "busy_s": options.busy_s + dice.choice((0.0, 15.0, 30.0)),
        "gateway_dies": faults and dice.random() < 0.4,
        "gateway_freezes": faults and dice.random() < 0.6,
        "late_deletes": 0.5 if faults and dice.random() < 0.4 else 0.0,
    }
    trouble = dice.choice(("any", *TROUBLES)) if faults else "any"
    if trouble != "any":
        drawn |= {"callers": 3, "busy_s": 45.0, **TROUBLES[trouble]}
    return drawn


def sim_settings(options: Options) -> Settings:
    """Return settings in which everything happens within seconds."""
    own = CoordinatorSettings(
        full_scan_interval_s=15.0,
        queue_count_max=options.queue_count_max,
        silence_max_s=8.0,
        adopt_grace_s=6.0,
        backoff_base_s=0.5,
        backoff_max_s=8.0,
        deferral_max_s=20.0,
        garbage_grace_s=6.0,
        generation_interval_s=5.0,
        collect_interval_s=5.0,
        clock_skew_max_s=0.5,
        retired_names_s=options.look_lasts_s + LATE_DELETE_MAX_S + 1.0,
        unfinished_interval_s=5.0 if options.creators else 3600.0,
    )
    return Settings(coordinator=own, services={"default": SERVICE})
