"""Expire snapshots of an Iceberg table, and delete files that no snapshot needs.

    survey     old snapshots by the table's own rules → files that only these reach
    carry out  one commit without the snapshots; after a grace, the files that are still unreached

A broken-off run goes on: the catalog keeps a log of former metadata, which names snapshots that
were expired. Files are deleted before the manifests that name them, and manifests before their
list, so what is left can be found until nothing is. Which files are reached is decided by the
snapshots that the catalog has, never by what it has answered to the commit.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from common.errors import CompactionError, RefusedError, UnavailableError
from common.lake.iceberg.catalogs import (
    GuardedFileIO,
    LakeFiles,
    TableRoot,
    canonical_uri,
    translated,
)
from common.lake.iceberg.commit import commit_once
from common.lake.iceberg.manifests import ListedManifest, ManifestFiles, read_list, read_uris
from common.lake.source import Freed, LakeSurvey, MaintenanceRules, WasteFile
from common.model.table import ICEBERG_OPERATIONS
from common.units import format_count

EXPIRE_SNAPSHOTS, *_ = ICEBERG_OPERATIONS
COLLECT = "gc.enabled"
SNAPSHOT_AGE, SNAPSHOT_AGE_MS = "history.expire.max-snapshot-age-ms", 432_000_000
SNAPSHOTS_LEAST = "history.expire.min-snapshots-to-keep"
REF_AGE = "history.expire.max-ref-age-ms"
FOLDERS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Properties with folders of the table outside of its location."""
SNAPSHOTS_MAX = 1_000
"""Most snapshots that one run expires."""
LOGGED_MAX, LOGGED_BYTES_MAX = 100, 512 * 1024**2
"""Most former metadata that one run reads."""
READERS = 8
TRIES_MAX = 10
NOT_OLD, OUTSIDE, ATTEMPTS = (
    "younger than the retention",
    "outside of the table's locations",
    "needed by an attempt",
)
ON_THEIR_WAY, CAME_BACK, CHANGED = (
    "of an attempt: they wait for the next version of the table",
    "named by a version since the survey",
    "changed since the survey",
)

# --------------------------------------------------------------------------------- What may expire


@dataclass(frozen=True, slots=True)
class Expired:
    """What leaves the metadata of a table. Snapshots: the oldest first."""

    snapshots: tuple[Snapshot, ...] = ()
    refs: tuple[str, ...] = ()


def expired(metadata: TableMetadata, rules: MaintenanceRules) -> Expired:
    """Return which snapshots, branches and tags are older than the table's properties keep them.

    The rules are those of the Iceberg specification (`history.expire.*`, and the retention of each
    branch and tag). In addition, a snapshot stays that was the newest one within `keep_s`, or that
    an attempt looks through.

    Raises:
        RefusedError: A property is malformed.
    """
    now_ms, times = rules.now_s * 1000, _times_ms(metadata)
    by_id = {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
    age_ms = _number(metadata, SNAPSHOT_AGE, SNAPSHOT_AGE_MS)
    refs = _kept_refs(metadata, times, now_ms)
    kept, referred = recent(metadata, rules), set[int]()
    if metadata.current_snapshot_id is not None:
        kept.add(metadata.current_snapshot_id)
    for ref in refs.values():
        line = list(_line(ref, by_id))
        referred.update(line)
        kept |= _kept_of(metadata, ref, line, times, now_ms)
    for snapshot_id, snapshot in by_id.items():
        if snapshot_id not in referred and times[snapshot_id] >= now_ms - age_ms:
            kept.add(snapshot_id)
        if rules.since is not None and (snapshot.sequence_number or 0) >= rules.since:
            kept.add(snapshot_id)
    gone = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id not in kept]
    gone.sort(key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms))
    return Expired(tuple(gone), tuple(sorted(metadata.refs.keys() - refs.keys())))


def _kept_refs(
    metadata: TableMetadata, times: Mapping[int, int], now_ms: float
) -> dict[str, SnapshotRef]:
    """Return the branches and tags that are not older than they are kept; `main` always is."""
    least = _number(metadata, REF_AGE, -1)
    kept = dict[str, SnapshotRef]()
    for name, ref in metadata.refs.items():
        limit_ms = least if ref.max_ref_age_ms is None else ref.max_ref_age_ms
        time_ms = times.get(ref.snapshot_id)
        is_old = limit_ms >= 0 and time_ms is not None and now_ms - time_ms > limit_ms
        if name == MAIN_BRANCH or not is_old:
            kept[name] = ref
    return kept


def _kept_of(
    metadata: TableMetadata,
    ref: SnapshotRef,
    line: list[int],
    times: Mapping[int, int],
    now_ms: float,
) -> set[int]:
    """Return the snapshots that a branch or tag keeps; `line` has its own, the newest first."""
    if ref.snapshot_ref_type == SnapshotRefType.TAG:
        return set(line)
    age_ms, least = ref.max_snapshot_age_ms, ref.min_snapshots_to_keep
    if age_ms is None:
        age_ms = _number(metadata, SNAPSHOT_AGE, SNAPSHOT_AGE_MS)
    if least is None:
        least = _number(metadata, SNAPSHOTS_LEAST, 1)
    kept = set[int]()
    for snapshot_id in line:
        if len(kept) >= max(1, least) and times[snapshot_id] < now_ms - age_ms:
            break
        kept.add(snapshot_id)
    return kept


def _line(ref: SnapshotRef, by_id: Mapping[int, Snapshot]) -> Iterator[int]:
    """Yield the snapshot of a ref, and its ancestors if it is a branch, as far as they exist."""
    snapshot, seen = by_id.get(ref.snapshot_id), set[int]()
    while snapshot is not None and snapshot.snapshot_id not in seen:
        yield snapshot.snapshot_id
        seen.add(snapshot.snapshot_id)
        parent = snapshot.parent_snapshot_id
        if ref.snapshot_ref_type == SnapshotRefType.TAG or parent is None:
            return
        snapshot = by_id.get(parent)


def recent(metadata: TableMetadata, rules: MaintenanceRules) -> set[int]:
    """Return the snapshots that were the newest of a branch within `keep_s`.

    A snapshot of a quiet table may be old though readers and attempts have only just begun with it.
    """
    cutoff_ms, times = (rules.now_s - rules.keep_s) * 1000, _times_ms(metadata)
    ids = {snapshot_id for snapshot_id, time_ms in times.items() if time_ms > cutoff_ms}
    ids |= {
        snapshot.parent_snapshot_id
        for snapshot in metadata.snapshots
        if snapshot.snapshot_id in ids and snapshot.parent_snapshot_id is not None
    }
    ids |= {
        before.snapshot_id
        for before, after in pairwise(metadata.snapshot_log)
        if after.timestamp_ms > cutoff_ms
    }
    return ids & times.keys()


def _times_ms(metadata: TableMetadata) -> dict[int, int]:
    """Return when each snapshot was committed: never before one with a smaller number."""
    times, latest_ms = dict[int, int](), 0
    for snapshot in sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0):
        latest_ms = max(latest_ms, snapshot.timestamp_ms)
        times[snapshot.snapshot_id] = latest_ms
    return times


def _number(metadata: TableMetadata, name: str, default: int) -> int:
    text = str(metadata.properties.get(name, default))
    if text != str(default) and not text.isdecimal():
        message = f"the property {name} is {text[:40]!r}, expected a whole number"
        raise RefusedError(message)
    return int(text)


def require_collection(metadata: TableMetadata) -> None:
    """Refuse a table whose files may be those of other tables, too.

    Raises:
        RefusedError: Its property says so.
    """
    if str(metadata.properties.get(COLLECT, "true")).lower() != "true":
        message = f"the property {COLLECT} forbids to delete files: other tables may have them, too"
        raise RefusedError(message)


# ----------------------------------------------------------------------------- What snapshots reach


@dataclass(frozen=True, slots=True)
class Compared:
    """What a survey has compared, so that only what came since has to be read again."""

    last: int
    """Last sequence number that was given."""
    snapshots: frozenset[int]
    manifests: frozenset[str]
    """Keys of their manifests."""
    stages: Mapping[str, int]
    """Path of a surveyed file → when it is deleted: after those with smaller numbers."""


class SnapshotReach:
    """Files that a table names at one state of its metadata. Keys are those of `LakeFiles`."""

    def __init__(
        self,
        table: Table,
        files: GuardedFileIO,
        parsed: Mapping[str, ManifestFiles] | None = None,
    ) -> None:
        """Take a table as it was just loaded.

        Args:
            table: The table.
            files: Access to its files.
            parsed: Manifests that were read already, by path.
        """
        self.table, self.metadata, self.io = table, table.metadata, files
        self.root = TableRoot(table.metadata.location)
        self.files = LakeFiles(files, self.root)
        self._parsed = parsed or {}

    @property
    def version(self) -> int:
        """Sequence number of the head."""
        head = self.metadata.current_snapshot()
        return (head.sequence_number or 0) if head is not None else 0

    @property
    def last(self) -> int:
        """Last sequence number that was given."""
        return getattr(self.metadata, "last_sequence_number", 0)

    @property
    def own_uris(self) -> list[str]:
        """URIs of its metadata, former metadata and statistics."""
        metadata = self.metadata
        statistics = [*metadata.statistics, *metadata.partition_statistics]
        uris = [
            self.table.metadata_location or "",
            *(entry.metadata_file for entry in metadata.metadata_log),
            *(entry.statistics_path for entry in statistics),
        ]
        return [uri for uri in uris if uri]

    @cached_property
    def own_keys(self) -> set[str]:
        """Keys of its metadata, former metadata and statistics."""
        return set(map(self.files.key, self.own_uris))

    @property
    def live_paths(self) -> Iterator[str]:
        """Paths of the data files of the head."""
        return (file.path for parsed in self._parsed.values() for file in parsed.files)

    def listed(
        self, snapshots: Collection[Snapshot]
    ) -> Iterator[tuple[Snapshot, tuple[ListedManifest, ...]]]:
        """Yield snapshots with their manifests."""

        def read(snapshot: Snapshot) -> tuple[ListedManifest, ...]:
            return read_list(self.io, snapshot.manifest_list)

        with ThreadPoolExecutor(READERS) as threads:
            yield from zip(snapshots, threads.map(read, snapshots), strict=True)

    def lists(self, snapshots: Collection[Snapshot]) -> Iterator[tuple[Snapshot, list[str]]]:
        """Yield snapshots with the URIs of their manifests."""
        for snapshot, listed in self.listed(snapshots):
            yield snapshot, [manifest.path for manifest in listed]

    def named(
        self, manifests: Collection[str], *, with_deleted: bool = False
    ) -> Iterator[tuple[str, frozenset[str]]]:
        """Yield manifests with the URIs of the files that they name."""

        def read(path: str) -> frozenset[str]:
            parsed = None if with_deleted else self._parsed.get(path)
            if parsed is None or parsed.left_out:
                return read_uris(self.io, path, with_deleted=with_deleted)
            spelled = parsed.spelled
            data = {spelled.get(one.path) or self.root.uri_of(one.path) for one in parsed.files}
            return frozenset(data | {delete.path for delete in parsed.deletes})

        with ThreadPoolExecutor(READERS) as threads:
            yield from zip(manifests, threads.map(read, manifests), strict=True)

    def came_since(self, compared: Compared, *, with_deleted: bool = False) -> set[str]:
        """Return the keys of files that snapshots name which a survey has not compared."""
        keys, fresh = set(self.own_keys), dict[str, str]()
        others = [
            snapshot
            for snapshot in self.metadata.snapshots
            if snapshot.snapshot_id not in compared.snapshots
        ]
        for snapshot, manifests in self.lists(others):
            keys.add(self.files.key(snapshot.manifest_list))
            fresh |= {self.files.key(path): path for path in manifests}
        keys |= fresh.keys()
        unread = [path for key, path in fresh.items() if key not in compared.manifests]
        for _, uris in self.named(unread, with_deleted=with_deleted):
            keys.update(map(self.files.key, uris))
        return keys

    def is_own_location(self, path: str) -> bool:
        """Return whether a path lies below the table's location or its other folders."""
        whole = self.files.whole(path)
        if not self.io.admission.admits(whole):
            return False
        folders = (self.metadata.properties.get(name) for name in FOLDERS)
        return "://" not in path or any(_is_below(whole, folder) for folder in folders if folder)

    def stats(self, paths: Iterable[str]) -> Iterator[WasteFile | None]:
        """Yield files as `LakeFiles.stat` does, in the order of their paths."""
        with ThreadPoolExecutor(READERS) as threads:
            yield from threads.map(self.files.stat, paths)

    def former(self) -> Iterator[TableMetadata]:
        """Yield former metadata of the table that is still readable, the newest first."""
        left = LOGGED_BYTES_MAX
        for entry in reversed(self.metadata.metadata_log[-LOGGED_MAX:]):
            with suppress(CompactionError):
                with translated(f"read {entry.metadata_file}"):
                    file = self.io.new_input(entry.metadata_file)
                    left -= len(file)
                    if left < 0:
                        return
                    metadata = FromInputFile.table_metadata(file)
                if metadata.table_uuid == self.metadata.table_uuid:
                    yield metadata


def _is_below(whole: str, folder: str) -> bool:
    with suppress(RefusedError):
        return whole.startswith(f"{canonical_uri(folder).rstrip('/')}/")
    return False


# ------------------------------------------------------------------------------------------- Expiry


DATA, STATISTICS, MANIFESTS, LISTS = range(4)
"""Order in which files of expired snapshots are deleted."""


@dataclass(slots=True)
class _Candidate:
    """A file of expired snapshots."""

    path: str
    stage: int
    last: int
    """Number of the last snapshot to expire that reaches it; -1: all have expired already."""
    is_held: bool = False
    """Whether an attempt needs it, or a file that is found by it."""


def survey_expiry(reach: SnapshotReach, rules: MaintenanceRules) -> LakeSurvey:
    """Return which snapshots expire, and the files that only expired ones reach.

    Raises:
        RefusedError: The table forbids it, or a property or file is malformed.
        UnavailableError: The storage does not answer.
    """
    require_collection(reach.metadata)
    chosen = expired(reach.metadata, rules).snapshots
    gone = chosen[:SNAPSHOTS_MAX]
    out = {snapshot.snapshot_id for snapshot in gone}
    live = [one for one in reach.metadata.snapshots if one.snapshot_id not in out]
    manifests = dict[str, str]()
    for _, paths in reach.lists(live):
        manifests |= {reach.files.key(path): path for path in paths}
    lists = {reach.files.key(snapshot.manifest_list) for snapshot in live}
    candidates = _Candidates(reach, manifests.keys() | lists, rules.kept)
    for number, snapshot, statistics in _expired_snapshots(reach, gone, rules):
        candidates.add_snapshot(snapshot, statistics, number)
    candidates.add_data()
    candidates.drop_live(list(manifests.values()))
    spared = Counter[str]()
    files = list(_deletable(reach, candidates.files.values(), spared))
    counts = Counter(one.last for one in files)
    end = end_of_run(counts, len(gone), rules.files_max)
    ready = [one for one in files if one.last < end]
    ready.sort(key=lambda one: (one.stage, one.path))
    state = Compared(
        last=reach.last,
        snapshots=frozenset(one.snapshot_id for one in (*live, *gone[end:])),
        manifests=frozenset(manifests),
        stages={one.path: one.stage for one in ready},
    )
    waste = _stored(reach, ready[: rules.files_max], spared, rules)
    count = format_count(len(live), "snapshot")
    kept = (
        f"{count} of the table stay: they are not old enough by its properties (history.expire.*), "
        "or a branch, a tag or an attempt needs them"
    )
    return LakeSurvey(
        operation=EXPIRE_SNAPSHOTS,
        version=reach.version,
        files=waste,
        more=max(0, len(ready) - rules.files_max) + len(chosen) - end,
        creates=_without(end) if end else "",
        spared={why: number for why, number in spared.items() if number},
        versions=tuple(snapshot.snapshot_id for snapshot in gone[:end]),
        state=state,
        why="" if end or waste else kept,
    )


def _deletable(
    reach: SnapshotReach, candidates: Iterable[_Candidate], spared: Counter[str]
) -> Iterator[_Candidate]:
    """Yield the candidates that may be deleted, and count the others."""
    for one in candidates:
        if not reach.is_own_location(one.path):
            spared[OUTSIDE] += 1
        elif one.is_held:
            spared[ATTEMPTS] += 1
        else:
            yield one


def end_of_run(counts: Mapping[int, int], snapshots: int, files_max: int) -> int:
    """Return how many snapshots expire in one run: those with as many files as it deletes.

    Args:
        counts: Number of a snapshot → files that are free once it has expired; -1: free already.
        snapshots: Snapshots that may expire.
        files_max: Files that the run deletes. A snapshot with more of them expires alone.
    """
    total = counts.get(-1, 0)
    for number in range(snapshots):
        own = counts.get(number, 0)
        if total and total + own > files_max:
            return number
        total += own
    return snapshots


def _stored(
    reach: SnapshotReach, ready: Iterable[_Candidate], spared: Counter[str], rules: MaintenanceRules
) -> tuple[WasteFile, ...]:
    listed = [file for file in reach.stats(one.path for one in ready) if file is not None]
    files = [file for file in listed if file.changed_at_s <= rules.now_s - rules.keep_s]
    spared[NOT_OLD] = len(listed) - len(files)
    return tuple(files)


def _without(count: int) -> str:
    return f"metadata without {format_count(count, 'snapshot')}"


class _Candidates:
    """Files of expired snapshots by key, except those with a key of `live`."""

    def __init__(self, reach: SnapshotReach, live: Collection[str], kept: Collection[str]) -> None:
        self._reach, self._live, self._kept = reach, live, kept
        self.files: dict[str, _Candidate] = {}
        self._manifests: dict[str, str] = {}
        """URIs of manifests by key."""
        self._lists: dict[str, list[str]] = {}
        """Keys of manifests by the key of their list."""

    def _add(self, uri: str, stage: int, last: int) -> _Candidate | None:
        """Return the candidate of a file; None: it is not one of expired snapshots only."""
        key = self._reach.files.key(uri)
        if key in self._live or key in self._reach.own_keys:
            return None
        one = self.files.get(key)
        if one is None:
            one = self.files[key] = _Candidate(self._reach.root.path_of(uri), stage, last)
        one.last = max(one.last, last)
        one.is_held |= one.path in self._kept
        return one

    def add_snapshot(self, snapshot: Snapshot, statistics: Iterable[str], number: int) -> None:
        """Add a snapshot's statistics, manifests and list, unless its list is deleted already."""
        reach = self._reach
        if reach.files.stat(reach.root.path_of(snapshot.manifest_list)) is None:
            return  # All of its files were deleted before it.
        for uri in statistics:
            self._add(uri, STATISTICS, number)
        self._add(snapshot.manifest_list, LISTS, number)
        own = self._lists.setdefault(reach.files.key(snapshot.manifest_list), [])
        ((_, paths),) = reach.lists([snapshot])
        for path in paths:
            if self._add(path, MANIFESTS, number) is not None:
                key = reach.files.key(path)
                self._manifests[key] = path
                own.append(key)

    def add_data(self) -> None:
        """Add the files of all manifests. What leads to a file that an attempt needs is held."""
        reach, manifests = self._reach, self._manifests
        stats = reach.stats(map(reach.root.path_of, manifests.values()))
        # A manifest that is missing was deleted after its files.
        there = [key for key, file in zip(manifests, stats, strict=True) if file is not None]
        named = reach.named([manifests[key] for key in there])
        for key, (_, uris) in zip(there, named, strict=True):
            manifest = self.files[key]
            added = [self._add(uri, DATA, manifest.last) for uri in uris]
            manifest.is_held |= any(one is not None and one.is_held for one in added)
        for key, own in self._lists.items():
            if key in self.files:
                self.files[key].is_held |= any(self.files[name].is_held for name in own)

    def drop_live(self, manifests: Collection[str]) -> None:
        """Drop files that live manifests name."""
        data = {key for key, one in self.files.items() if one.stage == DATA}
        for _, uris in self._reach.named(manifests) if data else ():
            for key in data.intersection(map(self._reach.files.key, uris)):
                del self.files[key]
                data.remove(key)


def _expired_snapshots(
    reach: SnapshotReach, gone: Collection[Snapshot], rules: MaintenanceRules
) -> Iterator[tuple[int, Snapshot, list[str]]]:
    """Yield snapshots to expire by number, and expired ones as -1, with their statistics."""
    seen = {snapshot.snapshot_id for snapshot in reach.metadata.snapshots}
    for number, snapshot in enumerate(gone):
        yield number, snapshot, _statistics(reach.metadata, snapshot.snapshot_id)
    for metadata in reach.former():
        kept = recent(metadata, rules)
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id not in seen:
                seen.add(snapshot.snapshot_id)
                if snapshot.snapshot_id not in kept:
                    yield -1, snapshot, _statistics(metadata, snapshot.snapshot_id)


def _statistics(metadata: TableMetadata, snapshot_id: int) -> list[str]:
    every = [*metadata.statistics, *metadata.partition_statistics]
    return [entry.statistics_path for entry in every if entry.snapshot_id == snapshot_id]


# --------------------------------------------------------------------------------------- The commit


class _AssertRefs(ValidatableTableRequirement):
    """No branch or tag came, went or moved. PyIceberg checks it, if it is what updates tables."""

    type: str = "neve-assert-refs"
    snapshots: dict[str, int]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        refs = base_metadata.refs if base_metadata is not None else {}
        if {name: ref.snapshot_id for name, ref in refs.items()} != self.snapshots:
            message = "Requirement failed: branches or tags have changed"
            raise CommitFailedException(message)


def expire(load: Callable[[], Table], survey: LakeSurvey, rules: MaintenanceRules) -> Freed:
    """Remove the snapshots of a survey from the metadata, as far as they may still expire.

    Args:
        load: Returns the table as its catalog has it now.
        survey: The survey.
        rules: What has to be kept by now.

    Raises:
        UnavailableError: Whether it is committed is unknown, or other writers were faster.
        RefusedError: The catalog refuses.
    """
    table, wanted = load(), frozenset(survey.versions)
    for _ in range(TRIES_MAX):
        require_collection(table.metadata)
        chosen = expired(table.metadata, rules)
        ids = [one.snapshot_id for one in chosen.snapshots if one.snapshot_id in wanted]
        if not ids:
            return Freed()
        updates = _updates(table.metadata, ids, chosen.refs)
        failure: CompactionError | None = None
        try:
            commit_once(table, _requirements(table), updates, "expire snapshots")
        except CompactionError as error:
            failure = error
        # Any answer may be wrong or late: what the catalog has is what counts.
        table = load()
        if {snapshot.snapshot_id for snapshot in table.metadata.snapshots}.isdisjoint(ids):
            return Freed(created=_without(len(ids)))
        if failure is not None:
            raise failure
    message = f"other writers committed first at each of {TRIES_MAX} tries to expire snapshots"
    raise UnavailableError(message)


def _requirements(table: Table) -> tuple[TableRequirement, ...]:
    """Return that no branch or tag has changed: one may need a snapshot that expires."""
    refs = {name: ref.snapshot_id for name, ref in table.metadata.refs.items()}
    asserted: dict[str, int | None] = {MAIN_BRANCH: None, **refs}
    requirements: list[TableRequirement] = [
        AssertTableUUID(uuid=table.metadata.table_uuid),
        *(
            AssertRefSnapshotId.model_validate({"ref": name, "snapshot-id": snapshot_id})
            for name, snapshot_id in asserted.items()
        ),
    ]
    if isinstance(table.catalog, MetastoreCatalog):
        requirements.append(_AssertRefs(snapshots=refs))  # type: ignore[arg-type]  # not on the wire
    return tuple(requirements)


def _updates(
    metadata: TableMetadata, ids: Collection[int], refs: Collection[str]
) -> tuple[TableUpdate, ...]:
    out = frozenset(ids)
    statistics = [
        RemovePartitionStatisticsUpdate.model_validate({"snapshot-id": entry.snapshot_id})
        for entry in metadata.partition_statistics
        if entry.snapshot_id in out
    ]
    names = [RemoveSnapshotRefUpdate.model_validate({"ref-name": name}) for name in refs]
    removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(out)})
    return (*names, *statistics, removal)


# ----------------------------------------------------------------------------------------- Deletion


def delete_files(reach: SnapshotReach, survey: LakeSurvey, rules: MaintenanceRules) -> Freed:
    """Delete files of a survey that no snapshot has come to need.

    Args:
        reach: The table as it was just loaded.
        survey: The survey, or one with some of its files.
        rules: What has to be kept by now.

    Raises:
        RefusedError: The table forbids it, or a manifest is malformed.
        UnavailableError: The storage does not answer.
    """
    require_collection(reach.metadata)
    state = survey.state
    assert isinstance(state, Compared), type(state)
    came = reach.came_since(state)
    spared, possible = Counter[str](), list[WasteFile]()
    for file in survey.files:
        is_named = reach.files.key(reach.root.uri_of(file.path)) in came
        if is_named or file.path in rules.kept:
            spared[CAME_BACK if is_named else ATTEMPTS] += 1
        else:
            possible.append(file)

    stages = groupby(possible, key=lambda file: state.stages.get(file.path, 0))
    return delete_unchanged(
        reach, [list(some) for _, some in stages], rules.now_s - rules.keep_s, spared
    )


def delete_unchanged(
    reach: SnapshotReach,
    stages: Iterable[Sequence[WasteFile]],
    cutoff_s: float,
    spared: Counter[str],
) -> Freed:
    """Delete files that are as they were surveyed, those of one stage after those of another.

    Args:
        reach: Access to the files.
        stages: The files.
        cutoff_s: Files that were written later stay.
        spared: Why other files stay → their number.
    """

    def delete(file: WasteFile) -> bool:
        return _delete_unchanged(reach, file, cutoff_s)

    done, changed = list[WasteFile](), 0
    with ThreadPoolExecutor(READERS) as threads:
        for stage in stages:
            gone = threads.map(delete, stage)
            deleted = [file for file, is_gone in zip(stage, gone, strict=True) if is_gone]
            changed += len(stage) - len(deleted)
            done += deleted
    if changed:
        spared[CHANGED] = changed
    size_bytes = sum(file.size_bytes for file in done)
    return Freed(files=len(done), size_bytes=size_bytes, spared=dict(spared))


def _delete_unchanged(reach: SnapshotReach, file: WasteFile, cutoff_s: float) -> bool:
    """Delete a file unless it was written since; return whether it is deleted."""
    stored = reach.files.stat(file.path)
    if stored is None or stored.tag != file.tag or stored.changed_at_s > cutoff_s:
        return False
    reach.files.delete(file.path)
    return True
