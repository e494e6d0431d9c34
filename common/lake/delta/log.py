"""The log of a Delta table: versions and checkpoints, read whole or from a known version on.

A version is `N.json`. A checkpoint has the live files of one version, so that older ones need not
be read; it is one Parquet file, or several, or one in Parquet or JSON that names further files
("sidecars"). Everything is untrusted: names by patterns, sizes by bounds, values by `actions`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet

from common.errors import RefusedError, UnavailableError
from common.lake.delta.actions import (
    ATTEMPT,
    FileKey,
    entries_of,
    entry_number,
    entry_text,
    entry_texts,
    file_of,
    key_of,
    parse_json,
    refuse,
)
from common.lake.delta.features import properties_of, readable_columns, why_refused
from common.lake.source import LakeFile, MaintenanceRules, Snapshot
from common.lake.storage import LakeStorage, ListedFile

LOG, SIDECARS, HINT = "_delta_log", "_delta_log/_sidecars", "_delta_log/_last_checkpoint"
VERSION_BYTES_MAX = 512 * 1024**2
CHECKPOINT_BYTES_MAX = 2 * 1024**3
"""Largest file of a checkpoint, and largest sum of its columns before compression."""
HINT_BYTES_MAX = 1024**2
FILES_MAX = 2_000_000
"""Most live files of a table."""
VERSIONS_MAX = 50_000
"""Most versions that are read one by one."""
READERS = 8
BATCH_ROWS = 10_000

_VERSION = re.compile(r"_delta_log/(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"_delta_log/(\d{20})\.checkpoint"
    r"(?:\.(\d{10})\.(\d{10})|\.([0-9a-fA-F-]{36}))?\.(parquet|json)"
)
_SIDECAR = re.compile(r"[A-Za-z0-9._-]+\.parquet")
_ACTIONS = frozenset(
    ("add", "remove", "protocol", "metaData", "domainMetadata", "commitInfo", "txn", "cdc")
)
_ADD_COLUMNS = (
    "path", "partitionValues", "size", "modificationTime", "stats", "deletionVector",
)  # fmt: skip
_T = TypeVar("_T")

# ----------------------------------------------------------------------------------------- Listing


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint: its version, and its files without sidecars."""

    version: int
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LogListing:
    """What of a log was listed: versions by number, and complete checkpoints in order."""

    versions: Mapping[int, ListedFile]
    checkpoints: tuple[Checkpoint, ...]

    @property
    def whole_from(self) -> int:
        """Return the version from which on none is missing; above the newest one: it is."""
        number = self.newest + 1
        while number - 1 in self.versions:
            number -= 1
        return number

    @property
    def newest(self) -> int:
        """Return the highest version that is named; -1: none is."""
        numbers = [*self.versions, *(checkpoint.version for checkpoint in self.checkpoints)]
        return max(numbers, default=-1)


def version_path(version: int) -> str:
    """Return the path of a version."""
    return f"{LOG}/{version:020}.json"


def number_of(path: str) -> int:
    """Return the version that a file of the log belongs to; -1: to none."""
    match = _VERSION.fullmatch(path) or _CHECKPOINT.fullmatch(path)
    return int(match[1]) if match else -1


def list_log(storage: LakeStorage, first: int = 0) -> LogListing:
    """Return the files of the log from one version on, in a single request."""
    versions: dict[int, ListedFile] = {}
    parts: dict[tuple[int, str], dict[int, str]] = {}
    for file in storage.list_after(LOG, f"{first:020}"):
        if match := _VERSION.fullmatch(file.path):
            versions[int(match[1])] = file
        elif match := _CHECKPOINT.fullmatch(file.path):
            version, part, count, name, kind = match.groups()
            if kind == "parquet" or name:
                identity = (int(version), f"{count or ''}{name or ''}")
                parts.setdefault(identity, {})[int(part or 1)] = file.path
    checkpoints = [
        Checkpoint(version, tuple(paths[number] for number in sorted(paths)))
        for (version, name), paths in parts.items()
        if paths.keys() == set(range(1, (int(name) if name.isdecimal() else 1) + 1))
    ]
    checkpoints.sort(key=lambda checkpoint: (checkpoint.version, checkpoint.paths))
    return LogListing(versions, tuple(checkpoints))


def list_whole(storage: LakeStorage) -> LogListing:
    """Return the log from its newest checkpoint on, by the hint of `_last_checkpoint`."""
    try:
        hint = storage.read(HINT, HINT_BYTES_MAX)
        first = 0 if hint is None else entry_number(parse_json(hint, "hint"), "version")
    except (RefusedError, AttributeError):
        first = 0  # only a hint: any writer may have left it unfinished
    if first:
        listing = list_log(storage, first)
        if any(checkpoint.version >= first for checkpoint in listing.checkpoints):
            return listing
    return list_log(storage)


# ----------------------------------------------------------------------------------------- Versions


@dataclass(frozen=True, slots=True)
class VersionEntries:
    """Actions of one version, by kind."""

    version: int
    adds: tuple[dict[str, Any], ...] = ()
    removes: tuple[dict[str, Any], ...] = ()
    protocol: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    domains: tuple[dict[str, Any], ...] = ()
    info: dict[str, Any] = field(default_factory=dict)
    transactions: tuple[dict[str, Any], ...] = ()
    changes: tuple[dict[str, Any], ...] = ()
    """Files of the change feed."""
    others: frozenset[str] = frozenset()
    """Names of actions that this module does not know."""

    @property
    def attempt(self) -> str:
        """Return the id of the attempt that committed it, or an empty text."""
        value = self.info.get(ATTEMPT)
        return value if isinstance(value, str) else ""

    @property
    def time_ms(self) -> int:
        """Return when it was committed, by the clock of its writer; 0: it does not say."""
        values = (self.info.get("inCommitTimestamp"), self.info.get("timestamp"))
        return next((value for value in values if isinstance(value, int) and value > 0), 0)


def collect_entries(version: int, entries: Iterable[Mapping[str, Any]]) -> VersionEntries:
    """Return the actions of one version by kind."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        for name, value in entry.items():
            if value is not None:
                kinds.setdefault(name, []).append(value)
    return VersionEntries(
        version,
        tuple(kinds.get("add", ())),
        tuple(kinds.get("remove", ())),
        next(iter(kinds.get("protocol", ())), None),
        next(iter(kinds.get("metaData", ())), None),
        tuple(kinds.get("domainMetadata", ())),
        next(iter(kinds.get("commitInfo", ())), {}),
        tuple(kinds.get("txn", ())),
        tuple(kinds.get("cdc", ())),
        frozenset(kinds) - _ACTIONS,
    )


def read_version(storage: LakeStorage, version: int) -> VersionEntries | None:
    """Return the actions of a version, or None if it is missing."""
    data = storage.read(version_path(version), VERSION_BYTES_MAX)
    if data is None:
        return None
    return collect_entries(version, entries_of(data, f"version {version}"))


def read_versions(
    storage: LakeStorage, first: int, end: int, keep: Callable[[VersionEntries], _T]
) -> Iterator[_T | None]:
    """Yield what is kept of each version before `end`; None for a missing one. Some at a time."""
    if end - first > VERSIONS_MAX:
        message = f"{end - first} versions are to be read one by one, at most {VERSIONS_MAX}"
        raise RefusedError(message)

    def read(version: int) -> _T | None:
        entries = read_version(storage, version)
        return None if entries is None else keep(entries)

    with ThreadPoolExecutor(READERS) as readers:
        for begin in range(first, end, READERS):
            yield from readers.map(read, range(begin, min(begin + READERS, end)))


# -------------------------------------------------------------------------------------- Checkpoints


SNAPSHOT_ACTIONS = ("protocol", "metaData", "domainMetadata", "add")
"""Actions that a snapshot consists of."""


def read_checkpoint(
    storage: LakeStorage,
    checkpoint: Checkpoint,
    with_removes: bool = False,
    *,
    names: Sequence[str] = SNAPSHOT_ACTIONS,
    is_whole: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the actions of a checkpoint.

    Args:
        storage: The table's root.
        checkpoint: A complete one.
        with_removes: Also files that were removed and may still be stored.
        names: The actions that are wanted.
        is_whole: Return added files with all fields, not only with those of a snapshot.
    """
    names = [*names, *["remove"] * with_removes]
    for path in checkpoint.paths:
        sidecars: list[str] = []
        for entry in entries_of_file(storage, path, [*names, "sidecar"], is_whole):
            if sidecar := entry.get("sidecar"):
                sidecars.append(sidecar_path(sidecar))
            else:
                yield entry
        for sidecar in sidecars:
            yield from entries_of_file(storage, sidecar, names, is_whole)


def sidecar_path(entry: Mapping[str, Any]) -> str:
    """Return the path of a sidecar: it lies in its folder whatever the entry states."""
    name = unquote(entry_text(entry, "path")).rpartition("/")[2]
    if not _SIDECAR.fullmatch(name):
        refuse("sidecar", f"has the name {name!r:.100}")
    return f"{SIDECARS}/{name}"


def entries_of_file(
    storage: LakeStorage, path: str, names: Sequence[str], is_whole: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the actions of one file of a checkpoint; arguments as for `read_checkpoint`."""
    data = storage.read(path, CHECKPOINT_BYTES_MAX)
    if data is None:
        message = f"{storage.uri}/{path} is missing; the table's log is being cleaned up"
        raise UnavailableError(message)
    if path.endswith(".json"):
        yield from entries_of(data, path)
        return
    try:
        yield from parquet_entries(data, path, names, is_whole)
    except (pa.ArrowException, OSError) as error:
        refuse(path, f"is unreadable: {error!s:.200}")


def parquet_entries(
    data: bytes, path: str, names: Sequence[str] = SNAPSHOT_ACTIONS, is_whole: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the actions of a checkpoint's Parquet file; arguments as for `read_checkpoint`."""
    file = parquet.ParquetFile(pa.BufferReader(data))
    metadata = file.metadata
    sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    if sum(sizes) > CHECKPOINT_BYTES_MAX or metadata.num_rows > 4 * FILES_MAX:
        refuse(path, f"has {metadata.num_rows} rows in {sum(sizes)} bytes")
    schema = file.schema_arrow
    columns = [column for name in names for column in _wanted(schema, name, is_whole)]
    for batch in file.iter_batches(BATCH_ROWS, columns=columns):
        for name in filter(batch.schema.names.__contains__, names):
            column = batch.column(name)
            if column.null_count < len(column):
                for value in column.filter(column.is_valid()).to_pylist(maps_as_pydicts="lossy"):
                    yield {name: value}


_PARSED = frozenset(("stats_parsed", "partitionValues_parsed"))
"""Fields of a file that its checkpoint has twice, the other time as texts."""


def _wanted(schema: pa.Schema, name: str, is_whole: bool) -> list[str]:
    """Return the columns of an action that are needed, as dotted names."""
    if name not in schema.names or not pa.types.is_struct(schema.field(name).type):
        return []
    if name != "add":
        return [name]
    action = schema.field(name).type
    present = {action.field(index).name for index in range(action.num_fields)}
    if is_whole:
        return [f"{name}.{column}" for column in sorted(present - _PARSED)]
    columns = [f"{name}.{column}" for column in _ADD_COLUMNS if column in present]
    return columns if "stats" in present else [*columns, f"{name}.stats_parsed.numRecords"]


# ----------------------------------------------------------------------------------------- Snapshot


@dataclass(frozen=True, slots=True)
class LogState:
    """What the log needs to be read on from a snapshot."""

    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    domains: Mapping[str, str]
    tag: str
    """Tag of the snapshot's version as listed; empty: only its checkpoint was there."""


class Replay:
    """The state of a table while versions are applied to it in order."""

    def __init__(self, known: Snapshot | None = None) -> None:
        state = known.state if known else None
        self._files: dict[str, LakeFile] = dict(known.files) if known else {}
        self._doubles: set[str] = set()
        self._protocol: Mapping[str, Any] = {}
        self._metadata: Mapping[str, Any] = {}
        self._domains: dict[str, str] = {}
        self.version = known.version if known else -1
        self._steady_since = known.steady_since if known else 0
        self._time_ms = round(known.changed_at_s * 1000) if known else 0
        if isinstance(state, LogState):
            self._protocol, self._metadata = state.protocol, state.metadata
            self._domains = dict(state.domains)

    def apply(self, entries: VersionEntries) -> None:
        """Apply the actions of the next version."""
        if self._has_changed(entries):
            self._steady_since = entries.version
        self.version = entries.version
        self._time_ms = entries.time_ms or self._time_ms
        for key in map(key_of, entries.removes):
            self._remove(key)
        self._add_all(entries.adds)

    def apply_checkpoint(self, version: int, entries: Iterable[Mapping[str, Any]]) -> None:
        """Begin with a checkpoint. Files that come before the schema wait for it."""
        waiting: list[dict[str, Any]] = []
        for entry in entries:
            if add := entry.get("add"):
                waiting.append(add)
            else:
                self._has_changed(collect_entries(version, [entry]))
            if self._metadata and len(waiting) >= BATCH_ROWS:
                self._add_all(waiting)
                waiting.clear()
        self._add_all(waiting)
        self.version = self._steady_since = version

    def _add_all(self, entries: Iterable[Mapping[str, Any]]) -> None:
        columns = entry_texts(self._metadata, "partitionColumns")
        for entry in entries:
            self._add(file_of(entry, columns))
        if len(self._files) > FILES_MAX:
            message = f"the table has more than {FILES_MAX} files"
            raise RefusedError(message)

    def _has_changed(self, entries: VersionEntries) -> bool:
        """Take over schema, properties and features, and return whether one of them changed."""
        before = (_comparable(self._protocol), self._metadata, dict(self._domains))
        self._protocol = entries.protocol or self._protocol
        self._metadata = entries.metadata or self._metadata
        for entry in entries.domains:
            domain = entry_text(entry, "domain")
            self._domains.pop(domain, None)
            if not entry.get("removed"):
                self._domains[domain] = entry_text(entry, "configuration")
        return before != (_comparable(self._protocol), self._metadata, self._domains)

    def _remove(self, key: FileKey) -> None:
        """Remove a file with the deletes that are named; with others it stays, as for readers."""
        file = self._files.get(key.path)
        if file is not None and file.deletes == key.deletes:
            del self._files[key.path]

    def _add(self, file: LakeFile) -> None:
        before = self._files.get(file.path)
        if before is not None and before.deletes != file.deletes:
            self._doubles.add(file.path)
        self._files[file.path] = file

    def to_files(self) -> Collection[LakeFile]:
        """Return the live files."""
        return self._files.values()

    def to_snapshot(self, tag: str) -> Snapshot:
        """Return the state as a value.

        Raises:
            RefusedError: A file is listed twice, or the log has no schema.
        """
        if not self._protocol or not self._metadata:
            refuse(f"version {self.version}", "has no protocol or no metaData")
        if self._doubles:
            refuse(f"file {min(self._doubles)}", "is listed twice with other deletion vectors")
        return Snapshot(
            version=self.version,
            table_id=entry_text(self._metadata, "id"),
            columns=readable_columns(self._metadata),
            partition_columns=entry_texts(self._metadata, "partitionColumns"),
            properties=properties_of(self._metadata),
            files=self._files,
            refusal=why_refused(self._protocol, self._metadata),
            steady_since=self._steady_since,
            changed_at_s=self._time_ms / 1000,
            state=LogState(self._protocol, self._metadata, dict(self._domains), tag),
        )


def _comparable(protocol: Mapping[str, Any]) -> dict[str, Any]:
    """Return a protocol whose features have an order: writers write the same ones in any order."""
    return {
        name: sorted(map(str, value)) if isinstance(value, list) else value
        for name, value in protocol.items()
    }


def load_whole(storage: LakeStorage) -> Snapshot:
    """Return the head of a log.

    Raises:
        RefusedError: There is no log, a version is missing, or something is malformed.
        UnavailableError: The storage did not answer, or the log is being cleaned up.
    """
    listing = list_whole(storage)
    if listing.newest < 0:
        message = f"{storage.uri} has no Delta log"
        raise RefusedError(message)
    replay = Replay()
    if listing.checkpoints:
        newest = listing.checkpoints[-1]
        replay.apply_checkpoint(newest.version, read_checkpoint(storage, newest))
    return _read_on(storage, replay, listing)


def load_newer(storage: LakeStorage, known: Snapshot) -> Snapshot:
    """Return the head of a log; the known snapshot itself if there is nothing newer."""
    listing = list_log(storage, known.version)
    state = known.state
    file = listing.versions.get(known.version)
    is_same = isinstance(state, LogState) and state.tag == (file.tag if file else "")
    if not is_same or (not file and listing.newest < known.version):
        return load_whole(storage)
    if listing.newest == known.version:
        return known
    wanted = range(known.version + 1, listing.newest + 1)
    if len(wanted) > VERSIONS_MAX or any(version not in listing.versions for version in wanted):
        return load_whole(storage)
    return _read_on(storage, Replay(known), listing)


def _read_on(storage: LakeStorage, replay: Replay, listing: LogListing) -> Snapshot:
    newest = max(listing.versions, default=-1)
    for version, entries in enumerate(
        read_versions(storage, replay.version + 1, newest + 1, lambda entries: entries),
        replay.version + 1,
    ):
        if entries is None:
            message = f"version {version} of {storage.uri} is missing, but version {newest} exists"
            raise UnavailableError(message)
        replay.apply(entries)
    file = listing.versions.get(replay.version)
    return replay.to_snapshot(file.tag if file else "")


# --------------------------------------------------------------------------------------- Retention


LOG_RETENTION_S, FILE_RETENTION_S = 30 * 86_400.0, 7 * 86_400.0
"""Retention of versions and of replaced files without a property, as the protocol has them."""
VERSIONS_READ_MAX = 500_000
"""Most versions that one operation of maintenance reads."""
_UNITS_S = {
    "week": 604_800.0,
    "day": 86_400.0,
    "hour": 3600.0,
    "minute": 60.0,
    "second": 1.0,
    "millisecond": 1e-3,
    "microsecond": 1e-6,
}


def retention_s(properties: Mapping[str, str], name: str, default_s: float) -> float:
    """Return a duration such as `interval 7 days`.

    Raises:
        RefusedError: It has another form: nothing is deleted by a guess.
    """
    text = properties.get(name)
    if text is None:
        return default_s
    words = text.lower().replace("'", "").removeprefix("interval").split()
    total_s = 0.0
    for number, unit in zip(words[::2], words[1::2], strict=False):
        unit_s = _UNITS_S.get(unit.removesuffix("s"))
        if unit_s is None or not number.isdecimal():
            break
        total_s += int(number) * unit_s
    else:
        if words and len(words) % 2 == 0:
            return total_s
    message = f"property {name} is {text[:100]!r}, expected a duration such as 'interval 7 days'"
    raise RefusedError(message)


def log_retention_s(snapshot: Snapshot, rules: MaintenanceRules) -> float:
    """Return how long versions are kept; at least as long as their files."""
    own_s = retention_s(snapshot.properties, "delta.logRetentionDuration", LOG_RETENTION_S)
    return max(own_s, file_retention_s(snapshot, rules))


def file_retention_s(snapshot: Snapshot, rules: MaintenanceRules) -> float:
    """Return how long files are kept after they were removed."""
    name = "delta.deletedFileRetentionDuration"
    return max(rules.keep_s, retention_s(snapshot.properties, name, FILE_RETENTION_S))


def version_before(listing: LogListing, cutoff_s: float) -> int:
    """Return the last version that was the head at a time, by the storage's clock; -1: none was.

    No version is older than one below it: a clock that went back makes it as young as that one.
    Versions below a missing one do not count.
    """
    last = -1
    for version in range(listing.whole_from, listing.newest + 1):
        if listing.versions[version].changed_at_s > cutoff_s:
            break
        last = version
    return last


def read_on(
    storage: LakeStorage, first: int, end: int, use: Callable[[VersionEntries], object]
) -> None:
    """Read many versions in order.

    Raises:
        RefusedError: One is missing, or there are too many.
    """
    if end - first > VERSIONS_READ_MAX:
        message = f"{end - first} versions are to be read, at most {VERSIONS_READ_MAX}"
        raise RefusedError(message)
    for begin in range(first, end, VERSIONS_MAX):
        stop = min(begin + VERSIONS_MAX, end)
        read = read_versions(storage, begin, stop, lambda entries: entries)
        for version, entries in enumerate(read, begin):
            if entries is None:
                message = f"version {version} of {storage.uri} is missing"
                raise RefusedError(message)
            use(entries)
