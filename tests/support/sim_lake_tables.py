"""Lake tables from one seed: the production's coordinator, compactors and store, and other writers.

The table is one of values (`sim_lake_site`), a Delta log or an Iceberg catalog. Other writers
append, delete, copy, compact, go back and clean up. Compactors and coordinators die, stand still
and are replaced; the store loses answers, fails over and is lost; commits are late; a day passes.
Whatever happens, each version has the rows that its writers left, and names only files that exist.

python -m tests.support.sim_lake_tables 17 0-9999
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from random import Random
from typing import Any

import numpy as np

from common.control_settings import CatalogSettings
from common.errors import ConflictError, InputError, MetadataError, UnavailableError
from common.lake.delta import source as delta_source
from common.lake.source import LakeOutput, Planned, Snapshot
from common.metadata.changes import CreateTable, ReserveFiles
from common.metadata.keyspace import Command
from common.model.file import DataFile
from common.model.outcome import RowCounts
from common.model.table import LakeTable, Table, TableSettings
from common.model.tablet import PLUS_INFINITY, TabletId
from common.wire import Assignment, AttemptReport
from compactor.core import RewriteResult
from compactor.lake_commit import LakeResult, packed_result
from coordinator.core import actions as do
from coordinator.service import StoreActions
from tests.support.lake_model import ROWS, TABLE, _runs
from tests.support.sim_chaos import Chaos
from tests.support.sim_cluster import Cluster
from tests.support.sim_compactor import SimEngine
from tests.support.sim_coordinator import SimCoordinator
from tests.support.sim_iceberg_upkeep import MaintainedSite, Upkeep, as_values, draw_upkeep
from tests.support.sim_lake_site import (
    COLUMNS,
    DAY_S,
    ICEBERG_KINDS,
    OWN,
    ROW_BYTES,
    LakeSite,
    SiteFaults,
)
from tests.support.sim_options import Options
from tests.support.sim_run import as_simulated, main, set_to, told_from
from tests.support.sim_store import sim_store
from tests.support.sim_truth import Truth

URI = "file:///sim/lake"
POLL_S = 2.0
OUTPUTS_MAX = 3
REST_STEP_S = 15.0
REST_MAX_S = 900.0


@dataclass(frozen=True, kw_only=True)
class LakeOptions:
    """What a seed draws of a lake table, besides `Options`. Times in seconds."""

    format_name: str = "delta"
    files: int = 4
    """Files at the beginning."""
    target_rows: int = 12
    kinds: tuple[str, ...] = ()
    """What other writers do; empty: nothing."""
    interval_s: float = 1.0
    """Average time between two changes of other writers."""
    division: str = "one"
    """How attempts divide rows among outputs, `one`, `inputs`, `split` or `sorted`."""
    care: bool = True
    """Other engines clean up."""
    days: bool = False
    redis_lost: bool = False
    faults: SiteFaults = field(default_factory=SiteFaults)
    upkeep: Upkeep | None = None
    """How Névé maintains an Iceberg table; None: it does not."""


class LakeTablesTruth(Truth):
    """Holds what the store says of a lake table against the rules of reservations and garbage."""

    def written(self, effects: Sequence[Command]) -> None:
        touched = self._reads.touched(effects)
        for table in touched.tables:
            self._table_changed(table)
        _, after = self._read(touched)
        for view in after.values():
            held = [path for entry in view.running.values() for path in entry.inputs]
            assert len(held) == len(set(held)), f"a file is in two reservations: {held}"
        for effect in effects:
            if effect[0] == "HSET" and str(effect[1]).endswith(":garbage"):
                foreign = [path for path in map(_text, effect[2::2]) if OWN not in path]
                assert not foreign, f"inputs became garbage: {foreign}"
        for end in touched.ends:
            self.seen[f"attempts {end}"] += 1

    def went_back(self) -> None:
        self.views = {}
        everything = self._reads.all_keys()
        for table in everything.tables:
            self._table_changed(table)
        self._read(everything)


def _text(word: object) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


class LakeTablesCoordinator(SimCoordinator):
    """A coordinator of which only the follower deletes files."""

    def _writable(self) -> list[Table]:
        return []

    def _log(self, event: str, **fields: Any) -> None:
        if event == "work on a table failed":  # It is done again, unless it is a fault of its own.
            assert fields["cause"].startswith("UnavailableError"), fields
            self.world.tell(self.name, event, **fields)
        else:
            super()._log(event, **fields)

    async def report(self, report: AttemptReport) -> None:
        self._truth.seen[f"reports: {report.end.value} {report.error_class or ''}".rstrip()] += 1
        (await self._service()).report(report)


_reserve = StoreActions._reserve_change


class LakeTablesEngine(SimEngine):
    """Rewrites rows of values, and hands over what the commit of a lake table needs."""

    def __init__(self, *values: Any, site: LakeSite, division: str) -> None:
        super().__init__(*values)
        self._site, self._division = site, division
        self._source = site.opened()

    async def missing(self, table: Table, paths: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(path for path in paths if path not in self._site.state.stored)

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        self._site.delete(paths)

    async def run(self, assignment: Assignment, on_progress: Callable[..., None]) -> RewriteResult:
        # The version is read before the work, so that others write meanwhile.
        loop = asyncio.get_running_loop()
        head = await loop.run_in_executor(None, self._source.load, None)
        self._head = {**getattr(self, "_head", {}), assignment.reservation.attempt: head}
        return await super().run(assignment, on_progress)

    async def _rewritten(self, assignment: Assignment) -> RewriteResult:
        attempt = assignment.reservation.attempt
        planned, outputs = self._outputs(assignment, self._head.pop(attempt))
        for number, output in enumerate(outputs):
            self._site.store(attempt, outputs[: number + 1])
            assert output.path, attempt
            await asyncio.sleep(self._world.random() * 0.1)
        files = tuple(
            DataFile(path=output.path, size_bytes=output.size_bytes, rows=output.rows)
            for output in outputs
        )
        read, kept = sum(file.rows for file in assignment.inputs), sum(one.rows for one in outputs)
        counts = RowCounts(rows_in=read, rows_out=kept, tombstones_dropped=read - kept)
        packed = packed_result(LakeResult(planned, outputs))
        return RewriteResult(outputs=files, counts=counts, lake=packed)

    def _outputs(
        self, assignment: Assignment, head: Snapshot
    ) -> tuple[Planned, tuple[LakeOutput, ...]]:
        site, paths = self._site, [file.path for file in assignment.inputs]
        if gone := [path for path in paths if path not in head.files]:
            raise ConflictError(f"{gone} left the table")
        files = [head.files[path] for path in paths]
        positions = {file.path: site.positions(file) for file in files}
        matched = {file.path: site.matched(file) for file in files}
        if gone := [path for path in paths if path not in site.state.stored]:
            raise InputError(f"{gone} are gone")
        planned = Planned(
            TABLE,
            head.version,
            {file.path: file.deletes for file in files},
            positions,
            {file.path: file.sequence for file in files},
            {file.path: file.equality for file in files if file.equality},
            {path: rows for path, rows in matched.items() if rows.size},
        )
        left_out = {
            path: tuple(map(int, np.union1d(positions[path], matched[path]))) for path in paths
        }
        live = [
            (path, position, row)
            for path in paths
            for position, row in enumerate(ROWS[path])
            if position not in left_out[path]
        ]
        outputs = []
        for part in self._parts(live, assignment.reservation.outputs_max):
            path = assignment.reservation.output_path(len(outputs))
            ROWS[path] = tuple(row for _, _, row in part)
            is_sorted = self._division == "sorted"
            outputs.append(
                LakeOutput(
                    path,
                    ROW_BYTES * len(part),
                    len(part),
                    (),
                    tuple(sorted({item[0] for item in part})),
                    offsets=() if is_sorted else tuple(_runs(part, left_out)),
                )
            )
        return planned, tuple(outputs)

    def _parts(self, live: list[Any], most: int) -> list[list[Any]]:
        """Return the rows of each output."""
        if not live:
            return []
        if self._division == "sorted":
            return [live[::-1]]
        if self._division == "inputs":
            parts = [list(part) for _, part in groupby(live, key=lambda item: item[0])]
            head, rest = parts[: most - 1], parts[most - 1 :]
            return [*head, [item for part in rest for item in part]]
        if self._division == "split" and most > 1 and len(live) > 1:
            cut = self._world.dice.randrange(1, len(live))
            return [live[:cut], live[cut:]]
        return [live]


class LakeTables(Cluster):
    """One run."""

    coordinator_class = LakeTablesCoordinator
    truth: LakeTablesTruth

    def __init__(self, seed: int, options: Options, lake: LakeOptions) -> None:
        self.lake = lake
        self.is_busy = True
        super().__init__(seed, options)
        self.settings = replace(self.settings, catalog=CatalogSettings(poll_s=POLL_S))
        values = (self.world, lake.format_name, SiteFaults(), lake.files)
        self.site = (
            LakeSite(*values)
            if lake.upkeep is None
            else MaintainedSite(*values, upkeep=lake.upkeep, kinds=lake.kinds)
        )

    def _new_truth(self) -> LakeTablesTruth:
        return LakeTablesTruth(super()._new_truth().memory)

    def _new_tables(self) -> list[Table]:
        settings = TableSettings(
            planner="bin-pack",
            planner_options={"min_input_files": "2", "max_wait_s": "0"},
            target_bytes=self.lake.target_rows * ROW_BYTES,
            manifest_interval_s=None,
            directory_guard=False,
        )
        if (upkeep := self.lake.upkeep) is not None:
            settings = replace(
                settings,
                lake_maintenance=upkeep.operations,
                lake_maintenance_interval_s=upkeep.interval_s,
                lake_maintenance_files=upkeep.files_max,
                lake_orphan_age_s=DAY_S,
                lake_manifests_min=1,
            )
        table = Table(
            id="t0",
            name="lake",
            location=URI,
            schema=COLUMNS,
            settings=settings,
            lake=LakeTable(format="delta", uri=URI, table_id=TABLE),
        )
        return [table]

    def _new_engine(self, name: str) -> SimEngine:
        return LakeTablesEngine(
            *(name, self.world, self.truth, self.traits),
            site=self.site,
            division=self.lake.division,
        )

    @property
    def drawn(self) -> str:
        return f"{self.options}, {self.lake}"

    # Life.

    def live(self) -> None:
        self._create_tables()
        self.start_coordinator()
        for number in range(max(2, self.options.compactors)):
            self.start_compactor(f"comp{number}")
        self.world.run_until(self.world.now_s() + 3 * POLL_S)
        writers = self.world.process("writers")
        if self.lake.kinds:
            writers.start(self._write())
        if self.lake.care:
            writers.start(self._tidy())
        self.switch_faults(on=True)

    def be_busy(self) -> None:
        """Let time pass, second by second: a day that passes is no more than one of them."""
        site, day_s = self.site, self.lake.upkeep.day_s if self.lake.upkeep else 0
        for second in range(int(self.options.busy_s)):
            self.world.run_until(self.world.now_s() + 1.0)
            if isinstance(site, MaintainedSite):
                site.write_slowly()
            if day_s and second % day_s == day_s - 1:
                self.pass_day()
        self.is_busy = False

    async def _write(self) -> None:
        interval_s = 2 * self.lake.interval_s
        await self._do_forever(lambda: self.world.dice.choice(self.lake.kinds), interval_s)

    async def _tidy(self) -> None:
        await self._do_forever(lambda: self.world.dice.choice(self.site.care), 8.0)

    async def _do_forever(self, choose: Callable[[], str], interval_max_s: float) -> None:
        await asyncio.sleep(self.world.random() * interval_max_s)
        while self.is_busy:
            self.site.write(choose())
            await asyncio.sleep(self.world.random() * interval_max_s)

    def switch_faults(self, *, on: bool) -> None:
        super().switch_faults(on=on)
        self.site.faults = self.lake.faults if on else SiteFaults()
        if isinstance(self.site, MaintainedSite):
            self.site.is_busy = on

    def pass_day(self) -> None:
        """Let a day pass at once, unless a request may be sent: then it would be a day late."""
        now_s = self.world.now_s()
        processes = [one.process for one in (*self.compactors.values(), *self.coordinators)]
        if any(process.alive and process.frozen_until_s > now_s for process in processes):
            return
        self.site.drop_requests()
        self.site.seen["a day passes"] += 1
        self.world.tell("clock", "a day passes")
        self.world._now_s += DAY_S + 600.0

    def lose_store(self) -> None:
        """Let the store forget everything, once: the table is attached again, compactors live."""
        if self.site.seen["the store is lost"]:
            return
        self.site.seen["the store is lost"] += 1
        self.world.tell("server", "is lost")
        self.coordinator.die()
        self.server.go_back()
        values = self.truth.memory.values
        for key in [*values.keys()]:
            values.remove(key)
        self.truth.views = {}
        store = sim_store(self.server, 16)

        async def attach() -> None:
            while True:
                with suppress(MetadataError, UnavailableError):
                    await store.apply(CreateTable(table=self.tables[0]))
                    return
                await asyncio.sleep(1.0)

        self.world.process("operator of the lost store").start(attach())
        self.operator.call_later(3.0, self.start_coordinator)

    @property
    def reserve_change(self) -> Callable[[StoreActions, do.Reserve], ReserveFiles]:
        """How jobs are reserved: with more outputs while others are busy, as large jobs have."""

        def reserve(actions: StoreActions, action: do.Reserve) -> ReserveFiles:
            change = _reserve(actions, action)
            return replace(change, outputs_max=OUTPUTS_MAX) if self.is_busy else change

        return reserve

    # Rest.

    def come_to_rest(self) -> None:
        """Stop all faults: every job ends, and what attempts have left is deleted."""
        self.switch_faults(on=False)
        until_s = self.world.now_s() + REST_MAX_S
        while restless := self._unfinished():
            assert self.world.now_s() < until_s, f"no rest: {restless}"
            # What attempts sent is out of the way only after the table has got a newer version.
            self.site.write("append")
            self.world.run_until(self.world.now_s() + REST_STEP_S)
        self._check_mirror()
        # Where history is missing, or the store has forgotten, outputs are left to a vacuum.
        forgets = self.options.fail_over or self.lake.redis_lost or self.options.store_late
        upkeep = self.lake.upkeep
        others_clean = self.lake.care or (upkeep is not None and upkeep.meanwhile > 0)
        if not (forgets or others_clean):
            assert not (left := self._leaked()), f"outputs are left: {sorted(left)}"

    def _unfinished(self) -> str:
        """Return what is still going on, or nothing."""
        leader = self.coordinator
        if not leader.at_rest():
            return f"{leader.name} is not at rest"
        values, own = self.truth.memory.values, "neve:{t0}:"
        for tablet, view in self.truth.tablets("t0").items():
            if view.running:
                return f"{tablet}: {view.running}"
        if garbage := values.hash(own + "garbage"):
            return f"garbage is left: {sorted(garbage)}"
        if marks := values.hash(own + "publishing"):
            return f"marks are left: {sorted(marks)}"
        return ""

    def _check_mirror(self) -> None:
        until_s = self.world.now_s() + REST_MAX_S
        while True:
            self.world.run_until(self.world.now_s() + 3 * POLL_S)
            mirrored = self.truth.views[TabletId("t0", PLUS_INFINITY)].files.keys()
            files = self.site.load(None).files.keys()
            if mirrored == files:
                return
            assert self.world.now_s() < until_s, (sorted(mirrored), sorted(files))

    def _leaked(self) -> set[str]:
        """Return outputs that were never committed, and are still stored."""
        own = {path for path in self.site.state.stored if path.startswith(OWN)}
        return own - self.site.adopted

    def seen(self) -> Counter[str]:
        """Return what has happened, counted."""
        site = self.site
        seen = super().seen() + site.seen
        seen["outputs made"] += sum(site.made.values())
        seen["outputs committed"] += sum(site.committed.values())
        seen["outputs in part"] += sum(
            0 < count < site.made.get(name, 0) for name, count in site.committed.items()
        )
        return seen


class LakeChaos(Chaos):
    """Does harm to a lake table's cluster, too."""

    def __init__(self, cluster: LakeTables) -> None:
        super().__init__(cluster)
        self._kinds += [cluster.pass_day] * cluster.lake.days
        self._kinds += [cluster.lose_store] * cluster.lake.redis_lost


def draw_lake(seed: int) -> tuple[Options, LakeOptions]:
    """Return the options of a seed; every sixth run is calm."""
    dice = Random(f"lake tables {seed}")
    faults = seed % 6 != 0

    def maybe(value: float, chance: float = 0.4) -> float:
        return value if faults and dice.random() < chance else 0.0

    format_name = dice.choice(("delta", "iceberg"))
    kinds = DELTA_WEIGHTS if format_name == "delta" else ICEBERG_WEIGHTS
    drawn = tuple(
        kind for kind, weight in kinds.items() for _ in range(weight) if dice.random() < 0.7
    )
    options = Options(
        compactors=2,
        slots=dice.choice((1, 2)),
        busy_s=dice.choice((30.0, 45.0)),
        rewrite_max_s=dice.choice((0.5, 2.0, 6.0)),
        feed_s=dice.choice((0.0, 0.0, 3.0)),
        lead_s=dice.choice((2.0, 10.0)),
        latency_max_s=dice.choice((0.02, 0.3)) if faults else 0.01,
        lose=maybe(0.05),
        double=maybe(0.1),
        store_lost=maybe(0.05),
        store_late=maybe(0.05),
        store_tries=dice.choice((2, 6)) if faults else 6,
        fails=maybe(0.1),
        compactor_dies=bool(maybe(1.0)),
        compactor_freezes=bool(maybe(1.0)),
        coordinator_dies=bool(maybe(1.0)),
        ghost=bool(maybe(1.0)),
        fail_over=bool(maybe(1.0)),
        store_refuses=bool(maybe(1.0, 0.2)),
    )
    lake = LakeOptions(
        format_name=format_name,
        files=dice.randint(2, 6),
        target_rows=dice.choice((8, 20)),
        kinds=drawn or ("append",),
        interval_s=dice.choice((0.3, 1.0, 3.0)),
        division=dice.choice(("one", "inputs", "split", "sorted")),
        care=dice.random() < 0.7,
        days=bool(maybe(1.0, 0.3)),
        redis_lost=bool(maybe(1.0, 0.15)),
        faults=SiteFaults(maybe(0.05), maybe(0.6), maybe(0.4), maybe(0.4)),
    )
    if format_name == "iceberg" and (upkeep := draw_upkeep(seed)) is not None:
        # Old snapshots are read again and again: a few of them do.
        options = replace(options, busy_s=20.0)
        lake = replace(lake, upkeep=upkeep, interval_s=max(1.0, lake.interval_s))
    return options, lake


DELTA_WEIGHTS = {"append": 5, "vector": 8, "copy": 2, "compact": 1, "restore": 1, "schema": 1}
ICEBERG_WEIGHTS = dict.fromkeys(ICEBERG_KINDS, 1) | {
    "append": 5,
    "position": 8,
    "equality": 2,
    "upsert": 2,
    "copy": 2,
}
"""What other writers do, and how often."""


def beside_deletes(format_name: str) -> tuple[Options, LakeOptions]:
    """Return the options of a bin-packed table with one delete by position in each second.

    A rewrite takes up to six seconds, nothing fails, and no other writer replaces files.
    """
    kind = "vector" if format_name == "delta" else "position"
    lake = LakeOptions(
        format_name=format_name,
        files=60,
        kinds=(kind, kind, kind, "append"),
        interval_s=0.75,
        division="inputs",
        care=False,
    )
    return Options(busy_s=60.0, rewrite_max_s=6.0), lake


def live_lake(seed: int, drawn: tuple[Options, LakeOptions] | None = None) -> LakeTables:
    """Return a cluster with a lake table that has lived, suffered and come to rest.

    Raises:
        AssertionError: Rows were lost or doubled, files are missing, or it did not come to rest.
    """
    options, lake = drawn or draw_lake(seed)
    with as_simulated(options):
        cluster = LakeTables(seed, options, lake)
        with (
            set_to(
                [
                    (delta_source, "open_delta", cluster.site.opened),
                    (StoreActions, "_reserve_change", cluster.reserve_change),
                ]
            ),
            as_values(lake.upkeep),
            told_from(cluster, seed),
        ):
            chaos = LakeChaos(cluster)
            cluster.live()
            chaos.start()
            cluster.be_busy()
            chaos.stop()
            cluster.come_to_rest()
    return cluster


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], live_lake))
