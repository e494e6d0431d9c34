"""Névé's maintenance of a simulated Iceberg table: the product's own code, over files of values.

`sim_lake_site` has a table as a value. Here are the files that hold such a value: metadata, lists,
manifests and delete files, with the times at which they were written. Expiry of snapshots, deletion
of orphan files and merges of manifests run on them as in production; only reading and writing of
Avro and JSON is left out. Requests to the catalog and their answers get lost, late and false as
those of attempts, and other writers come between any two steps. A file is never deleted that a
snapshot needs, or that was in the newest one within a day.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot as TableSnapshot
from pyiceberg.table.update import RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate

from common.errors import RefusedError, UnavailableError
from common.lake.iceberg import commit as iceberg_commit
from common.lake.iceberg import expiry, orphans
from common.lake.iceberg.catalogs import LakeFiles
from common.lake.iceberg.manifests import ListedManifest
from common.lake.iceberg.source import IcebergSource
from common.lake.source import Answer, Snapshot, TableSource, WasteFile
from common.lake.storage import ListedFile
from common.model.table import ICEBERG_OPERATIONS
from coordinator import maintenance
from tests.support import iceberg_model
from tests.support.iceberg_model import Snap
from tests.support.lake_model import ROWS
from tests.support.sim_lake_site import DAY_S, LakeSite, SimSource
from tests.support.sim_run import Setting, set_to

LOCATION = "s3://sim/lake"
UUID = uuid.UUID(int=17)
MARKED = "neve-:"
"""Paths of files of deleted positions that attempts write begin so."""
LOADS_MAX = 1_000
LONG_LOG = 100
ARRIVES_MAX_S = 3.0
"""How late requests of maintenance arrive at most: later, another one has mostly come before."""
Entry = tuple[str, int]
"""Name and number of a file in a manifest."""


@dataclass(frozen=True, kw_only=True)
class Upkeep:
    """What a seed draws of the maintenance of a table. Times in seconds."""

    operations: tuple[str, ...] = ICEBERG_OPERATIONS
    interval_s: float = 5.0
    day_s: int = 10
    """Time between two days that pass; 0: none does."""
    files_max: int = 5
    listed_max: int = 500_000
    batch: int = 2
    properties: Mapping[str, str] = field(default_factory=dict)
    log_max: int = LONG_LOG
    """Former metadata that the table remembers."""
    is_sql: bool = True
    """Whether the catalog checks all branches and tags."""
    meanwhile: float = 0.1
    """Probability that another writer comes between two steps of an operation."""


def draw_upkeep(seed: int) -> Upkeep | None:
    """Return what a seed draws; None: the table is left to other engines."""
    dice = Random(f"upkeep {seed}")
    operations = tuple(name for name in ICEBERG_OPERATIONS if dice.random() < 0.8)
    if not operations or dice.random() < 0.2:
        return None
    ages_s = (0, int(DAY_S / 2), int(2 * DAY_S))
    properties = {
        expiry.SNAPSHOT_AGE: str(1000 * dice.choice(ages_s)),
        expiry.SNAPSHOTS_LEAST: str(dice.choice((1, 1, 3))),
    }
    if dice.random() < 0.3:
        properties[expiry.REF_AGE] = str(1000 * int(DAY_S))
    return Upkeep(
        operations=operations,
        interval_s=dice.choice((3.0, 8.0)),
        day_s=dice.choice((4, 7)),
        files_max=dice.choice((2, 8, 1000)),
        listed_max=dice.choice((40, 500_000)),
        batch=dice.choice((1, 3, 500)),
        properties=properties,
        log_max=dice.choice((1, 4, LONG_LOG)),
        is_sql=dice.random() < 0.7,
        meanwhile=dice.choice((0.0, 0.05, 0.2)),
    )


# ------------------------------------------------------------------------------------------- Files


class Manifest(NamedTuple):
    """A manifest. `deleted`: entries of files that its snapshot has removed."""

    path: str
    has_deletes: bool
    live: frozenset[Entry]
    deleted: frozenset[Entry] = frozenset()
    sequence: int = 0
    snapshot_id: int = 0


class Kept(NamedTuple):
    """A snapshot in the metadata, and its files."""

    snapshot: TableSnapshot
    manifests: tuple[Manifest, ...]
    own: frozenset[str]
    """Paths of its list, its manifests and the delete files of other writers."""
    whole: frozenset[str]
    """Paths of all of its files."""


def path_of(name: str) -> str:
    """Return the path of a file of the model."""
    return f"{MARKED}{name}" if name.startswith("d") else name


def _entries(snap: Snap) -> tuple[frozenset[Entry], frozenset[Entry]]:
    """Return the data files and the delete files of a snapshot."""
    deletes = [(item.name, item.number) for item in (*snap.positions, *snap.equality)]
    return snap.data, frozenset(deletes)


class TableFiles:
    """The files of a table besides those that the model stores, and the table's metadata."""

    def __init__(self, site: MaintainedSite, upkeep: Upkeep) -> None:
        self.site, self.upkeep = site, upkeep
        self.written_s: dict[str, float] = {}
        """Path of metadata, lists, manifests and others' delete files → when it was written."""
        self.kept: dict[int, Kept] = {}
        """Number of a retained snapshot → its files."""
        self.merged: dict[int, tuple[int, tuple[Manifest, ...], str]] = {}
        """Number of a snapshot that merges manifests → its id, its manifests and its list."""
        self.manifests: dict[str, Manifest] = {}
        self.lists: dict[str, tuple[Manifest, ...]] = {}
        self.left_s: dict[str, float] = {}
        """Path → when the newest snapshot last named it, if it does no more."""
        self._times_s: dict[str, float] = {}
        self._log: list[Any] = []
        self._former: dict[str, TableMetadataV2] = {}
        self._formers: list[str] = []
        self._count = 0
        self.location = ""
        before: Snap | None = None
        for snap in sorted(site.state.retained):
            self._keep(snap, before)
            before = snap
        self._log.append(SimpleNamespace(snapshot_id=self.id_of(site.state.main), timestamp_ms=0))
        self.metadata = self._written_metadata()

    def id_of(self, snap: Snap) -> int:
        return self.kept[snap.number].snapshot.snapshot_id

    @property
    def now_s(self) -> float:
        return self.site.world.now_s()

    # ------------------------------------------------------------------------------------ Changes

    def changed(self, before: Any) -> None:
        """Write what a change of the table writes."""
        after, now_s = self.site.state, self.now_s
        self._times_s |= dict.fromkeys(after.stored - before.stored, now_s)
        for snap in sorted(after.retained - before.retained):
            self._keep(snap, before.main)
        if after.main != before.main:
            self.left_s |= dict.fromkeys(self.kept[before.main.number].whole, now_s)
            entry = SimpleNamespace(snapshot_id=self.id_of(after.main), timestamp_ms=self._ms())
            self._log.append(entry)
        gone = [self.kept.pop(snap.number) for snap in before.retained - after.retained]
        ids = {one.snapshot.snapshot_id for one in gone}
        last = max((at for at, one in enumerate(self._log) if one.snapshot_id in ids), default=-1)
        if not self.site.is_expiring:
            # What another engine removes from the history says no more when it was live.
            cut = {one.snapshot_id for one in self._log[: last + 1]}
            self._forget([one for one in self.kept.values() if one.snapshot.snapshot_id in cut])
            if self.upkeep.log_max < LONG_LOG:
                self._forget(gone)
        del self._log[: last + 1]
        names = ("main", "branch", "retained", "last")
        if any(getattr(after, name) != getattr(before, name) for name in names):
            self.metadata = self._written_metadata()
        self.check()

    def _forget(self, some: Iterable[Kept]) -> None:
        for path in frozenset[str]().union(*(one.whole for one in some)):
            self.left_s.pop(path, None)

    def _ms(self) -> int:
        return int(self.now_s * 1000)

    def _write(self, path: str) -> str:
        self.written_s[path] = self.now_s
        return path

    def _keep(self, snap: Snap, base: Snap | None) -> None:
        """Write the manifests and the list of a snapshot."""
        snapshot_id, manifests, listed = self.merged.pop(snap.number, (snap.number, (), ""))
        parent = None if base is None else self.kept[base.number]
        if not listed:
            old = () if parent is None else parent.manifests
            manifests = tuple(self._manifests(snap, old))
            listed = self.list(f"metadata/snap-{snap.number}.avro", manifests)
        _, deletes = _entries(snap)
        theirs = {path_of(name) for name, _ in deletes if not name.startswith("d")}
        for path in sorted(theirs - self.written_s.keys()):
            self._write(path)
        own = frozenset({listed, *theirs, *(item.path for item in manifests)})
        named = frozenset(path_of(name) for item in manifests for name, _ in item.live)
        snapshot = TableSnapshot.model_construct(
            snapshot_id=snapshot_id,
            parent_snapshot_id=None if parent is None else parent.snapshot.snapshot_id,
            sequence_number=snap.number,
            timestamp_ms=self._ms(),
            manifest_list=f"{LOCATION}/{listed}",
            summary=None,
            schema_id=0,
        )
        self.kept[snap.number] = Kept(snapshot, manifests, own, own | named)

    def _manifests(self, snap: Snap, old: Iterable[Manifest]) -> Iterator[Manifest]:
        """Yield the manifests of a snapshot whose parent has some."""
        wanted = _entries(snap)
        for has_deletes, entries in enumerate(wanted):
            left = entries
            for item in (item for item in old if item.has_deletes == bool(has_deletes)):
                left -= item.live
                if gone := item.live - entries:
                    yield self.manifest(
                        f"m{snap.number}", bool(has_deletes), item.live - gone, gone, snap.number
                    )
                elif item.live:
                    yield item
            if left:
                yield self.manifest(
                    f"m{snap.number}", bool(has_deletes), left, frozenset(), snap.number
                )

    def manifest(
        self,
        name: str,
        has_deletes: bool,
        live: frozenset[Entry],
        deleted: frozenset[Entry] = frozenset(),
        sequence: int = 0,
    ) -> Manifest:
        """Write a manifest."""
        self._count += 1
        path = self._write(f"metadata/{name}-{self._count}.avro")
        made = Manifest(path, has_deletes, live, deleted, sequence, sequence)
        self.manifests[path] = made
        return made

    def list(self, path: str, manifests: tuple[Manifest, ...]) -> str:
        """Write a list of manifests."""
        self.lists[self._write(path)] = manifests
        return path

    def _written_metadata(self) -> TableMetadataV2:
        """Write the metadata of the table."""
        state = self.site.state
        if self.location:
            self._former[self.location] = self.metadata
            self._formers = [*self._formers, self.location][-self.upkeep.log_max :]
        self._count += 1
        self.location = self._write(f"metadata/{self._count:05d}-a.metadata.json")
        refs = {MAIN_BRANCH: state.main} | ({"b": state.branch} if state.branch else {})
        kept = [self.kept[snap.number].snapshot for snap in sorted(state.retained)]
        return TableMetadataV2.model_construct(
            location=LOCATION,
            table_uuid=UUID,
            last_updated_ms=self._ms(),
            properties=dict(self.upkeep.properties),
            current_snapshot_id=self.id_of(state.main),
            snapshots=kept,
            snapshot_log=list(self._log),
            metadata_log=[
                SimpleNamespace(metadata_file=f"{LOCATION}/{path}") for path in self._formers
            ],
            refs={
                name: SnapshotRef.model_construct(
                    snapshot_id=self.id_of(snap),
                    snapshot_ref_type=SnapshotRefType.BRANCH,
                    min_snapshots_to_keep=None,
                    max_snapshot_age_ms=None,
                    max_ref_age_ms=None,
                )
                for name, snap in refs.items()
            },
            statistics=[],
            partition_statistics=[],
            format_version=2,
            last_sequence_number=state.last,
        )

    def former(self, path: str) -> TableMetadataV2 | None:
        """Return former metadata; None: its file is gone."""
        return self._former[path] if path in self.written_s else None

    # ----------------------------------------------------------------------------------- Storage

    def paths(self) -> list[str]:
        """Return the paths of all files, those of a folder together."""
        stored = {*self.written_s, *map(path_of, self.site.state.stored)}
        return sorted(stored, key=lambda path: (path.startswith("metadata/"), path))

    def stat(self, path: str) -> WasteFile | None:
        """Return a file as it is stored; None: it is missing."""
        name = path.removeprefix(MARKED)
        if path in self.written_s:
            at_s = self.written_s[path]
        elif name in self.site.state.stored:
            at_s = self.site.born_s(name, self._times_s.get(name, 0.0))
        else:
            return None
        return WasteFile(path, 1, f"{at_s}", at_s)

    def delete(self, path: str) -> None:
        """Delete a file for Névé.

        Raises:
            AssertionError: A snapshot needs it, or the newest one did within a day.
        """
        state, site = self.site.state, self.site
        used = [number for number, kept in self.kept.items() if path in kept.whole]
        if used or path == self.location or path in self._formers:
            site.world.fail(AssertionError(f"{path} is deleted, which {used or 'metadata'} needs"))
        lately = self.now_s - self.left_s.get(path, 0.0) < DAY_S
        if lately:
            site.world.fail(AssertionError(f"{path} is deleted, which was live within a day"))
        site.seen["files deleted"] += self.stat(path) is not None
        self.written_s.pop(path, None)
        site.state = state._replace(stored=state.stored - {path.removeprefix(MARKED)})

    def check(self) -> None:
        """Require the files of all snapshots.

        Raises:
            AssertionError: One is missing.
        """
        for number, kept in self.kept.items():
            if missing := kept.own - self.written_s.keys():
                failure = AssertionError(f"snapshot {number} names {sorted(missing)}: deleted")
                self.site.world.fail(failure)

    def unneeded(self) -> set[str]:
        """Return files that neither a snapshot nor the metadata needs."""
        needed = {self.location, *self._formers}.union(*(kept.whole for kept in self.kept.values()))
        deleted = {
            path_of(name)
            for kept in self.kept.values()
            for item in kept.manifests
            for name, _ in item.deleted
        }
        return set(self.paths()) - needed - deleted


# ------------------------------------------------------------------------------------------ Access


class SerialThreads:
    """Does at once, and in order, what threads do."""

    def __init__(self, _count: int) -> None:
        """Ignore how many there may be."""

    def __enter__(self) -> SerialThreads:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    map = staticmethod(map)


class SimIO:
    """Access to the files of a table."""

    def __init__(self, files: TableFiles) -> None:
        self.table_files, self.properties = files, dict[str, str]()
        self.admission = SimpleNamespace(admits=lambda _uri: True, require=lambda _uri: None)

    def new_input(self, uri: str) -> tuple[SimIO, str]:
        return self, uri

    def delete(self, uri: str) -> None:
        self.table_files.delete(_path(uri))


def _path(uri: str) -> str:
    return uri.removeprefix(f"{LOCATION}/")


class StoredFiles(LakeFiles):
    """Files as values."""

    def stat(self, path: str) -> WasteFile | None:
        return self.table_files.stat(path)

    def delete(self, path: str) -> None:
        self.table_files.delete(path)

    @property
    def table_files(self) -> TableFiles:
        files: Any = self._files
        own: TableFiles = files.table_files
        return own


class Reach(expiry.SnapshotReach):
    """What a table names, as values."""

    def former(self) -> Iterator[Any]:
        for entry in reversed(self.metadata.metadata_log):
            metadata = self.files.table_files.former(_path(entry.metadata_file))  # type: ignore[attr-defined]
            if metadata is not None:
                yield metadata


class ListedStorage:
    """The location of a table."""

    def __init__(self, files: TableFiles) -> None:
        self._files = files

    def walk(self, after: str = "") -> Iterator[ListedFile]:
        paths = self._files.paths()
        for path in paths[paths.index(after) + 1 if after in paths else 0 :]:
            if (file := self._files.stat(path)) is not None:
                yield ListedFile(path, file.size_bytes, file.tag, file.changed_at_s)

    def list_after(self, folder: str, name: str) -> Iterator[ListedFile]:
        if not folder.startswith("metadata"):
            return iter(())
        return (file for file in self.walk() if file.path.startswith(f"{folder}/"))


def _read_list(io: SimIO, uri: str) -> tuple[ListedManifest, ...]:
    files = io.table_files
    files.site.meanwhile()
    if _path(uri) not in files.written_s:
        raise UnavailableError(f"simulated: {uri} is gone")
    return tuple(
        ListedManifest(
            path=f"{LOCATION}/{item.path}",
            spec_id=0,
            has_deletes=item.has_deletes,
            sequence=item.sequence,
            snapshot_id=item.snapshot_id,
            has_removed=bool(item.deleted),
        )
        for item in files.lists[_path(uri)]
    )


def _read_uris(io: SimIO, uri: str, *, with_deleted: bool = False) -> frozenset[str]:
    files = io.table_files
    if _path(uri) not in files.written_s:
        raise UnavailableError(f"simulated: {uri} is gone")
    item = files.manifests[_path(uri)]
    entries = item.live | item.deleted if with_deleted else item.live
    return frozenset(f"{LOCATION}/{path_of(name)}" for name, _ in entries)


def _read_manifest_list(file: tuple[SimIO, str]) -> list[Any]:
    io, uri = file
    if _path(uri) not in io.table_files.written_s:
        raise UnavailableError(f"simulated: {uri} is gone")
    return [_in_list(item) for item in io.table_files.lists[_path(uri)]]


def _in_list(item: Manifest) -> Any:
    """Return a manifest as a list of PyIceberg has it."""
    return SimpleNamespace(
        manifest=item,
        manifest_path=f"{LOCATION}/{item.path}",
        manifest_length=100 * (1 + len(item.live) + len(item.deleted)),
        partition_spec_id=0,
        content=item.has_deletes,
        has_added_files=lambda: bool(item.live),
        has_existing_files=lambda: False,
    )


class Merge(iceberg_commit._Merge):
    """A snapshot with fewer manifests, written as values."""

    def __init__(self, table: Any, commit: Any, groups: Any) -> None:
        super().__init__(table, commit, groups)
        self._site: MaintainedSite = table.io.table_files.site
        self.id = self._site.new_id()

    def _listed(self) -> dict[str, Any]:
        assert self._parent is not None
        listed = _read_manifest_list((self._io, self._parent.manifest_list))  # type: ignore[arg-type]
        return {item.manifest_path: item for item in listed}

    def _merged_group(self, group: Any) -> Any:
        files, live = self._site.files, [item.manifest.live for item in group]
        name, has_deletes = f"neve-manifests-{self.id}", group[0].content
        # Entries keep the number of their snapshot.
        sequence = max(item.manifest.sequence for item in group)
        made = files.manifest(name, has_deletes, frozenset().union(*live), sequence=sequence)
        self.written.append(f"{LOCATION}/{made.path}")
        return [_in_list(made)]

    def send(self) -> Answer:
        self.listed = self._listed()
        manifests = tuple(item.manifest for item in self._manifests())
        path = f"metadata/snap-{self.id}-{self._number}-neve-manifests.avro"
        self.written.append(f"{LOCATION}/{self._site.files.list(path, manifests)}")
        self.may_arrive = True
        assert self._parent is not None
        return self._site.send_merge(self._parent.snapshot_id, self.last, self.id, manifests, path)


def _commit_once(table: Any, requirements: Any, updates: Any, _action: str) -> Answer:
    return table.io.table_files.site.send_expiry(requirements, updates)


# ------------------------------------------------------------------------------------------- Table


class MaintainedSite(LakeSite):
    """A table that Névé maintains."""

    files: TableFiles
    _is_made = is_expiring = False

    def __init__(self, *values: Any, upkeep: Upkeep, kinds: Sequence[str]) -> None:
        super().__init__(*values)
        self.upkeep, self._kinds = upkeep, kinds
        self._started: list[str] = []
        """Files of other writers that are not committed so far."""
        self._ids = 1_000_000
        self.loads: dict[int, tuple[Snapshot, Any]] = {}
        """What sources have loaded: a source may get a snapshot of another one."""
        self.is_busy, self.steps_left = False, 0
        """How often another writer may come between the steps of this operation."""
        self.files, self._is_made = TableFiles(self, upkeep), True

    def opened(self, *_: object) -> TableSource:
        self._sources += 1
        return MaintainedSource(self, self._sources, ICEBERG_OPERATIONS)

    def new_id(self) -> int:
        """Return the id of a snapshot of Névé."""
        self._ids += 1
        return self._ids

    def born_s(self, name: str, else_s: float) -> float:
        """Return when a data file was written."""
        return self._born_s.get(name, else_s)

    def _become(self, after: Any, what: str) -> None:
        before = self.state
        super()._become(after, what)
        if self._is_made:
            self.files.changed(before)

    def meanwhile(self) -> None:
        """Let another writer come between two steps, if it likes to."""
        if (
            self.steps_left
            and self.is_busy
            and self._kinds
            and self.world.chance(self.upkeep.meanwhile)
        ):
            self.steps_left -= 1
            self.write(self.world.dice.choice((*self._kinds, "rollback", "branch", "expire")))

    # A writer that dies leaves files.

    def write_slowly(self) -> None:
        """Let another writer write a file, or commit one that was written before, now and then."""
        chance = self.world.random()
        if chance < 0.5:
            self._start_write()
        elif chance < 0.7:
            self._end_write()

    def _start_write(self) -> None:
        """Let another writer write a file, which it may commit later."""
        row = 1_000_000 + self.new_id()
        path = f"w{row}"
        ROWS[path] = (row,)
        self._born([path])
        self._started.append(path)

    def _end_write(self) -> None:
        """Let another writer commit such a file."""
        if self._started:
            path = self._started.pop(self.world.dice.randrange(len(self._started)))
            number = self.state.last + 1
            main = self.state.main
            data = main.data | {(path, number)}
            snap = main._replace(number=number, kind="append", attempt="", data=data)
            truth = self.state.truth | {*ROWS[path]}
            self._become(iceberg_model._written(self.state, snap, truth), "other: slow append")

    def drop_requests(self) -> None:
        super().drop_requests()
        self.seen["writers that died"] += len(self._started)
        self._started.clear()

    # -------------------------------------------------------------------------------------- Catalog

    def table(self) -> Any:
        """Return the table as its catalog has it now."""
        self.require_answer()
        self.meanwhile()
        catalog = object.__new__(_SqlCatalog) if self.upkeep.is_sql else None
        return SimpleNamespace(
            metadata=self.files.metadata,
            metadata_location=f"{LOCATION}/{self.files.location}",
            io=SimIO(self.files),
            catalog=catalog,
        )

    def send_merge(
        self, base: int, last: int, own_id: int, manifests: tuple[Manifest, ...], path: str
    ) -> Answer:
        """Send a snapshot with other manifests."""

        def arrive() -> bool:
            main = self.state.main
            if self.files.id_of(main) != base or self.state.last != last:
                self.seen["send: conflict"] += 1
                return False
            snap = main._replace(number=last + 1, kind="manifests", attempt="")
            self.files.merged[snap.number] = (own_id, manifests, path)
            retained = self.state.retained | {snap}
            after = self.state._replace(main=snap, retained=retained, last=snap.number)
            self._become(after, "manifests merged")
            return True

        self.meanwhile()
        return self.sent(arrive, ARRIVES_MAX_S)

    def send_expiry(self, requirements: Iterable[Any], updates: Iterable[Any]) -> Answer:
        """Send the removal of snapshots."""
        ids = [one.snapshot_ids for one in updates if isinstance(one, RemoveSnapshotsUpdate)]
        gone = frozenset[int]().union(*ids)
        refs = {one.ref_name for one in updates if isinstance(one, RemoveSnapshotRefUpdate)}

        def arrive() -> bool:
            try:
                for requirement in requirements:
                    requirement.validate(self.files.metadata)
            except CommitFailedException:
                self.seen["send: conflict"] += 1
                return False
            state, by_id = self.state, self.files.id_of
            out = frozenset(snap for snap in state.retained if by_id(snap) in gone)
            if len(out) < len(gone):
                raise RefusedError("simulated: a snapshot does not exist")
            branch = None if "b" in refs else state.branch
            after = state._replace(retained=state.retained - out, branch=branch)
            self.seen["snapshots expired"] += len(out)
            self.is_expiring = True
            self._become(after, "expiries")
            self.is_expiring = False
            return True

        self.meanwhile()
        return self.sent(arrive, ARRIVES_MAX_S)


class _SqlCatalog(MetastoreCatalog):
    """A catalog that PyIceberg updates itself."""


_SqlCatalog.__abstractmethods__ = frozenset()


class MaintainedSource(SimSource):
    """Access to a table that Névé maintains, with the product's own operations."""

    site: MaintainedSite
    survey = IcebergSource.survey  # type: ignore[assignment]
    carry_out = IcebergSource.carry_out  # type: ignore[assignment]

    def load(self, known: Snapshot | None = None) -> Snapshot:
        self.site.require_answer()
        table, head = self.site.table(), self.site.load(known)
        before = self.site.loads.get(id(known))
        if known == head and before and before[1].metadata_location == table.metadata_location:
            assert known is not None
            return known
        self.site.loads[id(head)] = (head, table)
        for key in [*self.site.loads][:-LOADS_MAX]:
            del self.site.loads[key]
        return head

    def _loaded(self) -> Any:
        return self.site.table()

    def _reach(self, snapshot: Snapshot) -> Reach:
        self.site.require_answer()
        self.site.steps_left = 1
        _, table = self.site.loads[id(snapshot)]
        reach = Reach(table, table.io, _parsed(self.site.files, table.metadata))
        reach.files = StoredFiles(table.io, reach.root)
        return reach

    def _neighbours(self, _known: Collection[Any]) -> Mapping[Any, Any]:
        return {}


def _parsed(files: TableFiles, metadata: TableMetadataV2) -> Any:
    """Return the manifests of the head as they were read."""
    head = metadata.current_snapshot()
    assert head is not None
    return {
        f"{LOCATION}/{item.path}": SimpleNamespace(
            files=[
                SimpleNamespace(path=path_of(name)) for name, _ in item.live if not item.has_deletes
            ],
            deletes=[
                SimpleNamespace(path=f"{LOCATION}/{path_of(name)}")
                for name, _ in item.live
                if item.has_deletes
            ],
            spelled={},
            left_out=0,
        )
        for item in files.lists[_path(head.manifest_list)]
    }


def as_values(upkeep: Upkeep | None) -> AbstractContextManager[None]:
    """Let the product's operations read and write values, in a simulation's hurry."""
    if upkeep is None:
        return nullcontext()
    storage: Callable[..., ListedStorage] = lambda reach, _: ListedStorage(  # noqa: E731
        reach.io.table_files
    )
    wanted: Sequence[Setting] = [
        *((module, "ThreadPoolExecutor", SerialThreads) for module in (expiry, orphans)),
        *((module, "read_list", _read_list) for module in (expiry, iceberg_commit)),
        (expiry, "read_uris", _read_uris),
        (expiry, "commit_once", _commit_once),
        (orphans, "_storage", storage),
        (orphans, "_uuid_of", lambda _reach, _path: str(UUID)),
        (orphans, "KINDS", ("",)),
        (orphans, "LISTED_MAX", upkeep.listed_max),
        (iceberg_commit, "read_manifest_list", _read_manifest_list),
        (iceberg_commit, "_Merge", Merge),
        (iceberg_commit, "MANIFEST_BYTES", 2_000),
        (maintenance, "LAKE_LOOK_S", 1.0),
        (maintenance, "LAKE_RETRY_S", 3.0),
        (maintenance, "LAKE_BATCH", upkeep.batch),
    ]
    return set_to(wanted)
