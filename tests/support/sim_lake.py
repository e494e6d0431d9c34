"""A lake from one seed: one table after the other over files that are really there.

What `sim_cluster` models of storage, engine and rows is real here: Parquet files in a folder,
rewritten by the product's kernels, read by its scans and by its manifests, swept, checked and
rebuilt by its tools. Users append, delete and let rows expire; everybody dies and stands still
as there. However a life ends, every acknowledged row must be there.

python -m tests.support.sim_lake 17 0-999
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq

from common.control_settings import IngestSettings
from common.errors import RefusedError
from common.metadata.codec.table import unpack_segments
from common.metadata.keys import TableKeys
from common.model.location_identity import append_try_of
from common.model.outcome import RefusalCode
from common.model.table import Table
from common.parquet import location as at_once
from common.parquet import location as locations
from common.parquet.buffered import rows_of_calls
from common.parquet.location import open_location
from common.parquet.service_files import written_generation
from common.settings import GatewaySettings, Settings
from coordinator import context
from neve import api
from neve.gateway.rows import add
from neve.recovery.rebuild import live_files
from neve.recovery.rebuild.table_rebuild import RebuildOptions, read_published_manifest
from neve.recovery.repair import RepairOptions as Repairs
from neve.recovery.scope import NOTES
from neve.recovery.stored_files import FileOrigin, file_origin, read_output_footer
from tests.support.memory_store import MemoryKeyspace
from tests.support.sim_chaos import Chaos
from tests.support.sim_cluster import Cluster
from tests.support.sim_lake_parts import (
    Clockwork,
    LakeCoordinator,
    LakeEngine,
    LakeGateway,
    LakeTruth,
    rows_of,
)
from tests.support.sim_lake_rows import KEYS, KINDS, SCHEMA, STEP, Kind, Ledger, Row, Sowing
from tests.support.sim_lake_users import LakeDeleter, LakeKeeper, LakeReader, LakeUser, LakeWriter
from tests.support.sim_loop import SimLoop
from tests.support.sim_options import Options, draw_options
from tests.support.sim_rollback import Moment
from tests.support.sim_run import Setting, as_simulated, main, set_to, told_from
from tests.support.sim_storage import NO_FAULTS, SimStorage, StorageFaults, draw_storage_faults
from tests.support.sim_store import sim_store
from tests.support.sim_users import SimDivider

NAME = "events"
MANIFEST_S, RETENTION_S = 4.0, 5.0
INGEST = IngestSettings(flush_age_max_s=8.0)
LOOK_AGAIN_S = 1.0
ON_ITS_WAY_S = 60.0
"""A file is so much older than the change that brings it in, at most; a fifteenth of the real."""
WORK_MAX_S = 600.0
PATIENT_TRIES = 16
"""Of a change of an operator's gateway, as in production."""
BACK_MAX_S = 30
"""How far a store goes back at most."""
READ_ONLY_S, ACCEPTED_S = 20.0, 60.0
"""How long a table is left behind, and used when that was accepted."""


class End(Enum):
    """What happens to a lake at last."""

    REST = "it comes to rest"
    LOST = "the store is lost"
    DROPPED = "the table is dropped, and rebuilt"
    BACK = "the store goes back in time, and the table is rebuilt"
    ACCEPTED = "the store goes back in time, that is accepted, and the table is rebuilt later"
    AGAIN = "the table is dropped, and another one made at its place"


class Lake(Cluster):
    """One run."""

    truth: LakeTruth
    coordinator_class = LakeCoordinator

    def __init__(
        self, seed: int, options: Options, kind: Kind, folder: Path, storage_faults: StorageFaults
    ) -> None:
        self.kind = kind
        self.folder = folder
        super().__init__(seed, options)
        self.storage = SimStorage(self.world, seed, storage_faults)
        self.truth.storage_fails = bool(storage_faults.fails or storage_faults.outages)
        self.sowing = Sowing(self.world, kind)
        self.ledger = Ledger(kind)
        self.settings = replace(self.settings, ingest=INGEST)
        self.clockwork = Clockwork(self.world, folder)
        self.world.after_work = self.clockwork.look
        self.moments: deque[Moment] = deque(maxlen=BACK_MAX_S)
        self._users = 0

    # Parts.

    def _new_truth(self) -> LakeTruth:
        truth = LakeTruth(MemoryKeyspace(self.world))
        truth.ranged = self.kind.ranged
        return truth

    def _new_tables(self) -> list[Table]:
        return []

    def _new_engine(self, name: str) -> LakeEngine:
        return LakeEngine(name, self.world, self.truth, self.traits, self.store())

    def _new_gateway(self, name: str) -> LakeGateway:
        store_of = partial(sim_store, self.server, self.options.gateway_tries)
        settings = Settings(
            coordinator=self.settings.coordinator,
            gateway=GatewaySettings(
                locations=(str(self.folder),), listing_delay_s=self.storage.faults.lists_late_s
            ),
        )
        return LakeGateway(name, self.world, store_of, settings, self.truth)

    def gateway_of(self, caller: str) -> LakeGateway:
        """Return a gateway."""
        gateway = self.gateways.followed(caller)
        assert isinstance(gateway, LakeGateway)
        return gateway

    @property
    def drawn(self) -> str:
        return ", ".join(filter(None, (str(self.options), str(self.storage.faults))))

    @property
    def table(self) -> Table:
        """The one that there is."""
        (table,) = self.tables
        return table

    @contextlib.contextmanager
    def stored(self) -> Iterator[None]:
        """Let the storage have its way with all who open locations."""
        if self.storage.faults == NO_FAULTS:
            yield
            return
        wanted: Sequence[Setting] = (
            (locations, "_filesystem", self.storage.filesystem),
            (at_once, "REMOTE_FILES_AT_ONCE", 1),
        )
        with set_to(wanted):
            yield

    # Life.

    def switch_faults(self, *, on: bool) -> None:
        super().switch_faults(on=on)
        self.storage.on = on

    def live(self) -> None:
        self.gateways.start(self.options.gateways)
        self.start_coordinator()
        self.create()
        for number in range(max(2, self.options.compactors)):
            self.start_compactor(f"comp{number}")
        self.use()

    def use(self) -> None:
        """Let users come, and things go wrong."""
        self._come(LakeWriter, LakeWriter, LakeReader, LakeReader, LakeKeeper, LakeDeleter)
        if self.options.bounds:
            self._client(SimDivider, f"divider{self._users}")
        self.switch_faults(on=True)

    def _come(self, *users: type[LakeUser]) -> None:
        for make in users:
            self._users += 1
            name = f"{make.__name__.lower()}{self._users}"
            process = self.world.process(name)
            user = make(name, process, self.store(), self.truth, lake=self)
            self.clients.append(user)
            process.start(user.run(self.options.busy_s))

    def age(self, for_s: float) -> None:
        """Let time pass, and remember each second what the store knew."""
        until_s = self.world.now_s() + for_s
        while self.world.now_s() < until_s:
            self.world.run_until(self.world.now_s() + 1.0)
            self.moments.append(Moment.now(self))

    def ask(self, method: str, *values: object) -> Any:
        """Return what a gateway answers to an operator, or its refusal."""
        self._users += 1
        process: SimLoop = self.world.process(f"operator{self._users}")
        user = LakeUser(f"operator{self._users}", process, self.store(), self.truth, lake=self)
        task = process.start(user.answer(method, *values))
        until_s = self.world.now_s() + WORK_MAX_S
        while not task.done():
            assert self.world.now_s() < until_s, "an operator waits for ever"
            self.world.run_until(self.world.now_s() + 1.0)
        return task.result()

    def _told(self, method: str, *values: object) -> Any:
        """Return what a gateway answers to an operator, who takes no refusal."""
        answered = self.ask(method, *values)
        if isinstance(answered, Exception):
            raise answered
        return answered

    def create(self) -> None:
        """Create the table."""
        kind, settings = self.kind, {"tombstone_retention_s": RETENTION_S}
        key = () if not kind.keyed else (("part", "id") if kind.parted else ("id",))
        splits = [STEP * KEYS * n // self.options.tablets for n in range(1, self.options.tablets)]
        body = api.NewTable(
            name=NAME,
            location=str(self.folder / NAME),
            schema=tuple(api.Column(name=each.name, type=str(each.type)) for each in SCHEMA),
            key=key,
            version_column="v" if kind.keyed else None,
            tombstone_column="dead" if kind.deletes else None,
            time_column="at",
            partition_by=("part",) if kind.parted else (),
            splits=tuple(map(str, splits)) if kind.ranged else (),
            settings=settings | {"manifest_interval_s": MANIFEST_S, "ttl_s": kind.ttl_s},
        )
        self.tables.append(self._told("create", body))

    # Ends.

    def read(self, who: str, *, exactly: bool = True) -> None:
        """Assert that a reader sees every row, now that nothing goes wrong.

        Args:
            who: Reads.
            exactly: Whether it may see nothing else.
        """
        self.switch_faults(on=False)
        since_s = self.world.now_s()
        found = self._told("scan", NAME)
        assert isinstance(found, list), found
        known, now_s = self.ledger.known(since_s), self.world.now_s()
        if exactly:
            self.ledger.check(who, found, known, since_s, now_s)
        else:
            self.ledger.check_kept(who, found, known, now_s)

    def rest(self) -> None:
        """Come to rest: nothing is wrong any more, and nothing is left over."""
        self.come_to_rest()
        self.read("a scan at rest")
        report = self._told("fsck", NAME, Repairs(deep=True))
        damage = [finding for finding in report.checked.findings if finding.code not in NOTES]
        assert not damage, f"a check at rest finds {report.checked.findings}"

    def check_quarantines(self) -> None:
        """Assert that nobody has to lift anything for a storage that did not answer."""
        retry = self.coordinator.cluster_state.retry
        paused = [pause for _, pause in retry._inputs if pause.until_s is None]
        silent = [each.reason for each in paused if "simulated storage" in each.reason]
        assert not silent, f"files are quarantined for their storage: {silent}"

    def _sweep(self) -> list[str]:
        """Sweep as operators do; return what was given to the collector."""
        self.world.run_until(self.world.now_s() + 10.0)  # Nothing is too young any more.
        done = self._told("gc", NAME)
        return [each.path for each in done.found]

    def stop_all(self) -> None:
        """Let everybody die."""
        for process in self.world._processes:
            process.alive = process in (self.server.network, self.storage.process)

    def lose_store(self) -> None:
        """Lose the store, and make the table anew out of what lies there."""
        self.stop_all()
        self.truth.sleeps = True
        self.ledger.forget(self._buffered())
        self.server.go_back()
        values = self.truth.memory.values
        for key in [*values.keys()]:
            values.remove(key)
        self.switch_faults(on=False)
        self.clients.clear()
        self.compactors.clear()
        self.gateways.start(1)
        self.start_coordinator()
        self.world.tell("server", "is lost")
        self.rebuild()

    def make_again(self) -> None:
        """Drop the table, and make another one at its place; the old one's files stay."""
        self._leave()
        delete = self.world.chance(0.5)
        known = {path for view in self.truth.views.values() for path in view.files}
        self._drop(delete_files=delete)
        left = self._stored()
        held = {path for path in left if path.removeprefix(f"{self.folder}/{NAME}/") in known}
        assert not (delete and held), f"a drop has left {held}"
        self.clients.clear()
        self.ledger, self.sowing = Ledger(self.kind), Sowing(self.world, self.kind)
        self.create()
        self.use()
        self.world.run_until(self.world.now_s() + self.options.busy_s)
        self.rest()
        gone = left - self._stored()
        assert not gone, f"files of an earlier table are gone: {gone}"

    def bring_back(self) -> None:
        """Drop the table without its files, and bring it back."""
        self._leave()
        self._drop(delete_files=False)
        self.rebuild()

    def _leave(self) -> None:
        """Let users go, and what gateways still do for them come to its end."""
        self.switch_faults(on=False)
        self.end_clients()
        while self.gateways.busy:
            self.world.run_until(self.world.now_s() + 1.0)

    def _drop(self, *, delete_files: bool) -> None:
        """Drop the table, and wait until its name is free."""
        self.tables.clear()
        # Refused: a call of before that was not answered has done it, or has buffered rows.
        answered = self.ask("drop", NAME, delete_files)
        while isinstance(answered, RefusedError) and answered.code == RefusalCode.BUFFERED:
            answered = self.ask("drop", NAME, delete_files)
        until_s = self.world.now_s() + WORK_MAX_S
        names = self.truth.memory.values
        while names.hash("neve:tables"):
            assert self.world.now_s() < until_s, "a drop has no end"
            self.world.run_until(self.world.now_s() + 1.0)
        self._let_storage_delete()

    def _let_storage_delete(self) -> None:
        """Wait as long as the storage may take for what it was told to delete."""
        if late_s := self.storage.faults.deletes_late_s:
            self.world.run_until(self.world.now_s() + late_s)

    def _stored(self) -> set[str]:
        """Return the paths of all files that may hold rows."""
        found = (self.folder / NAME).rglob("*.parquet")
        return {str(path) for path in found if "manifest" not in path.parts}

    def go_back(self, *, accepts: bool) -> None:
        """Let the store go back; whatever operators do, a rebuild brings every row back."""
        with self.storage.still():
            written = written_generation(open_location(self.table.location))
        behind = [moment for moment in self.moments if moment.generation(self.table.id) < written]
        if not behind:
            self.truth.seen["stores that were never behind"] += 1
            return
        moment = self.world.dice.choice(behind)
        moment.put_back(self)
        for deletion in self.ledger.deletions:
            deletion.done_s = None
        self.ledger.forget_since(moment.at_s)
        if self._buffered():  # Only a table that may be written can flush them, and be dropped.
            accepts = True
            self.truth.seen["stores that went back to buffered rows"] += 1
        self.world.run_until(self.world.now_s() + READ_ONLY_S)
        self.switch_faults(on=False)
        if accepts:
            mended = Repairs(accept=True, repair=True, forget_missing=True)
            self._told("fsck", NAME, mended)
            self._told("gc", NAME)
            self._come(LakeWriter, LakeKeeper)
            self.world.run_until(self.world.now_s() + ACCEPTED_S)
            self.end_clients()
        self._drop(delete_files=False)
        # What was lost and what was done since are two stories: of both every row is kept.
        self.rebuild(exactly=not accepts)

    def _buffered(self) -> list[Row]:
        """Return the rows that are buffered."""
        values, keys = self.truth.memory.values, TableKeys(self.table.id)
        segments = unpack_segments(keys.rows, values.hash(keys.rows))
        calls = [(segment, values.hash(keys.segment(segment.number))) for segment in segments]
        return [
            row
            for segment, stored in calls
            for row in rows_of(rows_of_calls(self.table, segment, stored))
        ]

    def rebuild(self, *, exactly: bool = True) -> None:
        """Make the table anew out of its files.

        Args:
            exactly: Whether these tell one story.
        """
        self.options = replace(self.options, gateway_tries=PATIENT_TRIES)
        self._let_storage_delete()
        self.gateways.start(self.options.gateways)
        untold = untold_rows(self.folder / NAME)
        self.truth.seen["rebuilds with rows that nothing tells of"] += bool(untold)
        self.ledger.excused = frozenset(map(self.ledger.key, untold))
        for deletion in self.ledger.deletions:  # What a lost store was about to do is undone.
            deletion.done_s = None
        options = RebuildOptions(name=NAME, adopt=True)
        done = self._told("rebuild", str(self.folder / NAME), options)
        if any("drop it and try again" in reason for reason in done.report.lost.values()):
            # A compactor of the dropped table deleted its output meanwhile, and the report says so.
            self.truth.seen["rebuilds that were begun again"] += 1
            self._drop(delete_files=False)
            done = self._told("rebuild", str(self.folder / NAME), options)
        self.tables[:] = [done.table]
        self.truth.seen["rebuilds"] += 1
        self.read("a scan after a rebuild", exactly=exactly)
        lost = done.report.lost
        assert not (exactly and lost), f"a rebuild misses {lost}"


def untold_rows(place: Path) -> list[Row]:
    """Return the rows of tries of appends of which nothing tells whether they were added.

    Of no try of the call is a file in the manifest, or among the inputs of an output. One that
    was given up shortly before the manifest may count.
    """
    location = open_location(place.as_uri())
    published = read_published_manifest(location)
    told = {*(published.files if published else ())}
    paths = [str(path.relative_to(place)) for path in place.rglob("*.parquet")]
    for path in paths:
        if file_origin(path) is FileOrigin.OUTPUT and (
            footer := read_output_footer(location, path)
        ):
            told.update(footer.inputs)
    calls = {found.call for path in told if (found := append_try_of(path)) is not None}
    untold = [
        path
        for path in paths
        if (found := append_try_of(path)) is not None and found.call not in calls
    ]
    return [row for path in untold for row in rows_of(pq.read_table(place / path))]


def draw_lake(seed: int) -> tuple[Options, Kind, End]:
    """Return what a seed draws."""
    dice = Random(f"lake {seed}")
    kind = KINDS[seed % len(KINDS)]
    options = replace(
        draw_options(seed),
        **dict.fromkeys(("drops", "operators", "cancels", "deadlines", "dead_rows"), False),
        users=0,
        tables=1,
        # The whole store goes back here, to one moment.
        spread=False,
        creators=0,
        selector="",
        goes_back=True,
        gateways=dice.choice((1, 2)),
        late_deletes=0.0,
        busy_s=dice.choice((30.0, 60.0, 120.0)),
        rewrite_max_s=dice.choice((0.5, 2.0)),
    )
    # With one try of a change, and so many writers, somebody loses eight races in a row.
    tries = max(2, options.store_tries)
    options = replace(options, bounds=options.bounds and kind.ranged, store_tries=tries)
    return options, kind, dice.choice([*End])


def live_by(seed: int, storage_faults: StorageFaults | None = None) -> Lake:
    """Return a lake that has lived, and has ended as its seed wants it.

    Args:
        seed: Draws everything.
        storage_faults: What is wrong with its storage; None: the seed draws that, too.

    Raises:
        AssertionError: Somebody has not seen what was acknowledged, or has seen anything else.
    """
    options, kind, end = draw_lake(seed)
    with (
        as_simulated(options) as drawn,
        set_to(SOONER),
        tempfile.TemporaryDirectory(prefix="neve-lake-") as folder,
    ):
        storage_faults = draw_storage_faults(seed) if storage_faults is None else storage_faults
        lake = Lake(seed, drawn, kind, Path(folder), storage_faults)
        with told_from(lake, seed), lake.stored():
            chaos = Chaos(lake)
            lake.live()
            chaos.start()
            lake.age(options.busy_s)
            chaos.stop()
            if lake.coordinator.led:
                lake.check_quarantines()
            ENDS[end](lake)
            lake.truth.seen[end.value] += 1
            lake.truth.seen["readings checked"] += lake.ledger.checks
            lake.truth.seen.update(lake.storage.counts)
    return lake


SOONER: Sequence[Setting] = (
    (context, "LOOK_AGAIN_S", LOOK_AGAIN_S),
    (live_files, "COMMIT_DELAY_MAX_S", ON_ITS_WAY_S),
    (add, "WRITTEN_MAX_S", ON_ITS_WAY_S / 2),
)
"""What takes minutes takes seconds."""
ENDS: dict[End, Callable[[Lake], None]] = {
    End.REST: Lake.rest,
    End.LOST: Lake.lose_store,
    End.DROPPED: Lake.bring_back,
    End.BACK: partial(Lake.go_back, accepts=False),
    End.ACCEPTED: partial(Lake.go_back, accepts=True),
    End.AGAIN: Lake.make_again,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], live_by))
