"""Checkpoints of a Delta table, and the clean-up of its log below them.

    checkpoint   all actions of one version → verified in memory → created if absent → read back
                 → `_last_checkpoint`, the last one, only a hint
    log-cleanup  versions below a checkpoint that is older than the retention, and that is proven to
                 have what the versions below it have → deleted, the oldest first

The time of a version is the later one of its own and its storage's, and never before that of an
older version: one writer or machine with a wrong clock makes Névé keep more.
"""

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from common.errors import RefusedError
from common.lake.delta import log
from common.lake.delta.actions import (
    NUMBER_MAX,
    FileKey,
    entry_text,
    entry_texts,
    key_of,
    parse_json,
    refuse,
    relative_path,
)
from common.lake.source import (
    Answer,
    Freed,
    LakeFile,
    LakeSurvey,
    MaintenanceRules,
    Snapshot,
    WasteFile,
)
from common.lake.storage import LakeStorage, ListedFile
from common.model.table import DELTA_OPERATIONS

CHECKPOINT, LOG_CLEANUP, VACUUM = DELTA_OPERATIONS
CHECKPOINT_VERSIONS = 100
"""Versions between two checkpoints of a table without `delta.checkpointInterval`."""

# -------------------------------------------------------------------------------------- Checkpoint


_TEXTS = pa.map_(pa.string(), pa.string())
_ARROW = {
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "map": _TEXTS,
    "int": pa.int32(),
    "long": pa.int64(),
    "flag": pa.bool_(),
}


def _struct(fields: str, **structs: pa.DataType) -> pa.DataType:
    """Return a struct of fields written as `name:type`."""
    pairs = (text.split(":") for text in fields.split())
    return pa.struct([(name, {**_ARROW, **structs}[kind]) for name, kind in pairs])


_VECTOR = _struct(
    "storageType:text pathOrInlineDv:text offset:int sizeInBytes:int cardinality:long "
    "maxRowIndex:long"
)
TYPES: Mapping[str, pa.DataType] = {
    "protocol": _struct(
        "minReaderVersion:int minWriterVersion:int readerFeatures:texts writerFeatures:texts"
    ),
    "metaData": _struct(
        "id:text name:text description:text format:format schemaString:text "
        "partitionColumns:texts configuration:map createdTime:long",
        format=_struct("provider:text options:map"),
    ),
    "txn": _struct("appId:text version:long lastUpdated:long"),
    "domainMetadata": _struct("domain:text configuration:text removed:flag"),
    "remove": _struct(
        "path:text deletionTimestamp:long dataChange:flag extendedFileMetadata:flag "
        "partitionValues:map size:long tags:map deletionVector:vector baseRowId:long "
        "defaultRowCommitVersion:long stats:text",
        vector=_VECTOR,
    ),
    "add": _struct(
        "path:text partitionValues:map size:long modificationTime:long dataChange:flag tags:map "
        "deletionVector:vector baseRowId:long defaultRowCommitVersion:long "
        "clusteringProvider:text stats:text",
        vector=_VECTOR,
    ),
}
"""Actions of a checkpoint, by their names in the log."""
_OF_V2 = {"checkpointMetadata": _struct("version:long tags:map")}


@dataclass(slots=True)
class _Later:
    """What the versions above a checkpoint say, in place of what it has."""

    protocol: Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    transactions: dict[str, dict[str, Any]] = field(default_factory=dict)
    domains: dict[str, dict[str, Any]] = field(default_factory=dict)
    added: dict[FileKey, dict[str, Any]] = field(default_factory=dict)
    removed: dict[FileKey, dict[str, Any]] = field(default_factory=dict)

    def apply(self, entries: log.VersionEntries) -> None:
        """Apply the next version.

        Raises:
            RefusedError: It has an action that a checkpoint would lose.
        """
        if strange := min(entries.others, default=""):
            message = (
                f"version {entries.version} has the action {strange[:100]}, which a checkpoint of "
                "Névé would lose: let the table's own engine write checkpoints"
            )
            raise RefusedError(message)
        self.protocol = entries.protocol or self.protocol
        self.metadata = entries.metadata or self.metadata
        self.transactions |= {entry_text(one, "appId"): one for one in entries.transactions}
        self.domains |= {entry_text(one, "domain"): one for one in entries.domains}
        for remove in entries.removes:
            key = key_of(remove)
            self.added.pop(key, None)
            self.removed[key] = remove
        for add in entries.adds:
            key = key_of(add)
            self.removed.pop(key, None)
            self.added[key] = add

    def actions(
        self, below: Callable[..., Iterable[dict[str, Any]]], tombstones_from_ms: float
    ) -> Iterator[dict[str, Any]]:
        """Yield all actions of the version, small ones first.

        Args:
            below: Returns the actions of some names of the checkpoint below, if there is one.
            tombstones_from_ms: Files that were removed before are not named any more.
        """
        transactions, domains = dict(self.transactions), dict(self.domains)
        for entry in below("protocol", "metaData", "txn", "domainMetadata"):
            self.protocol = self.protocol or entry.get("protocol")
            self.metadata = self.metadata or entry.get("metaData")
            if transaction := entry.get("txn"):
                transactions.setdefault(entry_text(transaction, "appId"), transaction)
            if domain := entry.get("domainMetadata"):
                domains.setdefault(entry_text(domain, "domain"), domain)
        yield {"protocol": self.protocol}
        yield {"metaData": self.metadata}
        yield from ({"txn": one} for one in transactions.values())
        yield from ({"domainMetadata": one} for one in domains.values() if not one.get("removed"))
        files = chain(
            ({"remove": one} for one in self.removed.values()),
            ({"add": one} for one in self.added.values()),
            (entry for entry in below("remove", "add") if not self._has(entry)),
        )
        for entry in files:
            remove = entry.get("remove")
            if remove is None or removed_ms(remove) >= tombstones_from_ms:
                yield entry

    def _has(self, entry: Mapping[str, Any]) -> bool:
        key = key_of(entry.get("add") or entry["remove"])
        return key in self.added or key in self.removed


def removed_ms(remove: Mapping[str, Any]) -> float:
    """Return when a file was removed; one without a time stays."""
    value = remove.get("deletionTimestamp")
    return value if isinstance(value, int) else NUMBER_MAX


def survey_checkpoint(
    storage: LakeStorage, snapshot: Snapshot, rules: MaintenanceRules
) -> LakeSurvey:
    """Return whether a checkpoint of the head is due."""
    checkpoints = log.list_whole(storage).checkpoints
    newest = checkpoints[-1].version if checkpoints else -1
    interval = _checkpoint_interval(snapshot)
    count = snapshot.version - newest
    survey = LakeSurvey(operation=CHECKPOINT, version=snapshot.version)
    if count == 0 and _is_single(checkpoints[-1]) and _hinted_version(storage) < newest:
        return replace(survey, creates=f"pointer to the checkpoint of version {newest}")
    if count <= 0:
        return replace(survey, why=f"the newest version, {snapshot.version}, has a checkpoint")
    if count < interval and not rules.is_asked:
        why = f"{count} of {interval} versions have come since the last checkpoint"
        return replace(survey, why=why)
    return replace(survey, creates=f"checkpoint of version {snapshot.version}")


def _is_single(checkpoint: log.Checkpoint) -> bool:
    return len(checkpoint.paths) == 1 and checkpoint.paths[0].endswith(".parquet")


def _checkpoint_interval(snapshot: Snapshot) -> int:
    text = snapshot.properties.get("delta.checkpointInterval", "")
    return max(1, int(text)) if text.isdecimal() and len(text) < 10 else CHECKPOINT_VERSIONS


def _is_v2(snapshot: Snapshot) -> bool:
    """Return whether the table asks for checkpoints of the second kind."""
    state = snapshot.state
    assert isinstance(state, log.LogState), state
    features = entry_texts(state.protocol, "writerFeatures")
    return "v2Checkpoint" in features and snapshot.properties.get("delta.checkpointPolicy") == "v2"


def write_checkpoint(storage: LakeStorage, snapshot: Snapshot, rules: MaintenanceRules) -> Freed:
    """Write the checkpoint of a version, unless another writer has done it.

    Raises:
        RefusedError: Something would be lost, or the checkpoint that is there is another one.
    """
    version, is_v2 = snapshot.version, _is_v2(snapshot)
    listing = log.list_whole(storage)
    present = listing.checkpoints[-1:]
    if present and present[0].version >= version:
        if present[0].version > version or not _is_single(present[0]):
            return Freed()
        is_new = _verify(storage, present[0].paths[0], snapshot)
        return Freed(created=f"pointer to the checkpoint of version {version}" if is_new else "")
    data = _composed(storage, snapshot, rules, listing, is_v2)
    _require_same(data, snapshot)
    name = uuid.UUID(bytes=hashlib.sha256(data).digest()[:16], version=4)
    kind = f"checkpoint.{name}.parquet" if is_v2 else "checkpoint.parquet"
    path = f"{log.LOG}/{version:020}.{kind}"
    answer = storage.create(path, data)
    _verify(storage, path, snapshot)
    return Freed(
        created=f"checkpoint of version {version}" if answer is not Answer.CONFLICT else ""
    )


def _verify(storage: LakeStorage, path: str, snapshot: Snapshot) -> bool:
    """Read a checkpoint of any writer back, and point readers to it if it is right.

    Returns:
        Whether they were not pointed to it before.

    Raises:
        RefusedError: It is missing, unreadable or wrong.
    """
    data = storage.read(path, log.CHECKPOINT_BYTES_MAX)
    if data is None:
        message = f"{storage.uri}/{path} was not written"
        raise RefusedError(message)
    adds = _require_same(data, snapshot)
    if _hinted_version(storage) >= snapshot.version:
        return False
    hint = {
        "version": snapshot.version,
        "size": parquet.read_metadata(pa.BufferReader(data)).num_rows,
        "sizeInBytes": len(data),
        "numOfAddFiles": adds,
    }
    storage.replace(log.HINT, json.dumps(hint).encode())
    return True


def _hinted_version(storage: LakeStorage) -> int:
    """Return the version of `_last_checkpoint`; -1: there is none that can be read."""
    data = storage.read(log.HINT, log.HINT_BYTES_MAX)
    try:
        hint = parse_json(data, "hint") if data else {}
    except RefusedError:
        return -1
    version = hint.get("version") if isinstance(hint, dict) else None
    return version if isinstance(version, int) and not isinstance(version, bool) else -1


def _composed(
    storage: LakeStorage,
    snapshot: Snapshot,
    rules: MaintenanceRules,
    listing: log.LogListing,
    is_v2: bool,
) -> bytes:
    """Return the checkpoint of a version: the one below, and the versions above that."""
    below = [one for one in listing.checkpoints if one.version < snapshot.version][-1:]
    later = _Later()
    first = below[-1].version + 1 if below else 0
    log.read_on(storage, first, snapshot.version + 1, later.apply)

    def of_below(*names: str) -> Iterable[dict[str, Any]]:
        if not below:
            return ()
        entries = log.read_checkpoint(storage, below[0], names=names, is_whole=True)
        return _with_texts(entries, snapshot)

    from_ms = (rules.now_s - log.file_retention_s(snapshot, rules)) * 1000
    types = dict(TYPES)
    actions: Iterable[dict[str, Any]] = later.actions(of_below, from_ms)
    if is_v2:
        types |= _OF_V2
        actions = chain([{"checkpointMetadata": {"version": snapshot.version}}], actions)
    return as_parquet(actions, types)


def _with_texts(entries: Iterable[dict[str, Any]], snapshot: Snapshot) -> Iterator[dict[str, Any]]:
    """Refuse files whose statistics lie in columns only: the checkpoint has them as texts."""
    for entry in entries:
        add = entry.get("add")
        if add is not None and not add.get("stats"):
            file = snapshot.files.get(relative_path(entry_text(add, "path")))
            if file is not None and file.rows >= 0:
                message = (
                    "the newest checkpoint has statistics as columns only "
                    "(delta.checkpoint.writeStatsAsJson): let the table's own engine write "
                    "checkpoints"
                )
                raise RefusedError(message)
        yield entry


def as_parquet(
    actions: Iterable[Mapping[str, Any]], types: Mapping[str, pa.DataType] = TYPES
) -> bytes:
    """Return actions as the Parquet file of a checkpoint.

    Args:
        actions: One in each mapping, by its name.
        types: Names and types of the actions that the file may have.

    Raises:
        RefusedError: An action has a field or value that the file would lose.
    """
    schema = pa.schema(list(types.items()))
    sink, source = pa.BufferOutputStream(), iter(actions)
    with parquet.ParquetWriter(sink, schema, compression="snappy") as writer:
        while batch := list(islice(source, log.BATCH_ROWS)):
            rows = [
                {name: _shaped(value, types[name], name) for name, value in action.items()}
                for action in batch
            ]
            try:
                writer.write_table(pa.Table.from_pylist(rows, schema))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                refuse("an action", f"has values of other types: {error!s:.200}")
    return bytes(sink.getvalue().to_pybytes())


def _shaped(value: Any, type_: pa.DataType, subject: str) -> Any:
    """Return a value in the form that Arrow takes.

    Raises:
        RefusedError: It has a field that the checkpoint would lose.
    """
    if value is None:
        return None
    if pa.types.is_struct(type_):
        names = {type_.field(index).name for index in range(type_.num_fields)}
        if not isinstance(value, dict):
            refuse(subject, f"is {value!r:.80}, expected an object")
        strange = sorted(
            name for name, one in value.items() if one is not None and name not in names
        )
        if strange:
            message = (
                f"{subject} has the field {strange[0][:100]}, which a checkpoint of Névé would "
                "lose: let the table's own engine write checkpoints"
            )
            raise RefusedError(message)
        return {
            name: _shaped(value.get(name), type_.field(name).type, f"{subject}.{name}")
            for name in names
        }
    if pa.types.is_map(type_):
        return list(value.items()) if isinstance(value, dict) else value
    return value


def _require_same(data: bytes, snapshot: Snapshot) -> int:
    """Read a checkpoint as any reader does, and compare it with the version.

    Returns:
        Number of live files.

    Raises:
        RefusedError: It is unreadable, or has something else.
    """
    replay = log.Replay()
    replay.apply_checkpoint(snapshot.version, log.parquet_entries(data, "the checkpoint"))
    read = replay.to_snapshot("")
    _require_equal(read, snapshot)
    return len(read.files)


def _require_equal(read: Snapshot, snapshot: Snapshot) -> None:
    """Refuse a state of a version that is not the one that was read from its log.

    Raises:
        RefusedError: It is another one.
    """
    first, second = read.state, snapshot.state
    assert isinstance(first, log.LogState), first
    assert isinstance(second, log.LogState), second
    differs = ""
    if _plain(first.protocol) != _plain(second.protocol) or _plain(first.metadata) != _plain(
        second.metadata
    ):
        differs = "another schema or protocol"
    elif dict(first.domains) != dict(second.domains):
        differs = "other domain metadata"
    elif read.files.keys() != snapshot.files.keys():
        differs = f"{len(read.files)} files, expected {len(snapshot.files)}"
    else:
        other = [
            path for path, file in read.files.items() if not _is_same(file, snapshot.files[path])
        ]
        differs = f"other facts about file {other[0]}" if other else ""
    if differs:
        message = (
            f"the checkpoint of version {snapshot.version} has {differs}; nothing is deleted, and "
            "readers should not use it"
        )
        raise RefusedError(message)


def _is_same(first: LakeFile, second: LakeFile) -> bool:
    """Compare files; the order of fields in their entries does not count."""
    if first == second:
        return True
    entries = [parse_json(file.entry, "entry") for file in (first, second)]
    return entries[0] == entries[1] and replace(first, entry="") == replace(second, entry="")


def _plain(entry: Any) -> Any:
    """Return an entry without what is missing in one form and empty in another."""
    if isinstance(entry, Mapping):
        plain = {name: _plain(value) for name, value in entry.items()}
        return {name: value for name, value in plain.items() if value not in (None, {}, [])}
    if isinstance(entry, list):
        return sorted(map(str, entry))
    return entry


# ------------------------------------------------------------------------------- Clean-up of logs


_OF_VERSION = re.compile(
    r"_delta_log/(?:\d{20}\.)?(\d{20})\."
    r"(?:json|crc|compacted\.json|checkpoint(?:\.[\w-]+)*\.(?:parquet|json))"
)
"""Files of one version, or of several ones of which the last is matched."""


def survey_log(storage: LakeStorage, snapshot: Snapshot, rules: MaintenanceRules) -> LakeSurvey:
    """Return the files of versions that nothing needs any more.

    Raises:
        RefusedError: The checkpoint in whose favour they would go is not what they say.
    """
    survey = LakeSurvey(operation=LOG_CLEANUP, version=snapshot.version)
    state = snapshot.state
    assert isinstance(state, log.LogState), state
    if snapshot.properties.get("delta.enableExpiredLogCleanup", "true").lower() != "true":
        return replace(survey, why="the property delta.enableExpiredLogCleanup forbids it")
    if "checkpointProtection" in entry_texts(state.protocol, "writerFeatures"):
        return replace(survey, why="the feature checkpointProtection of the table forbids it")
    cutoff_s = rules.now_s - log.log_retention_s(snapshot, rules)
    listing = log.list_log(storage)
    limits = [log.version_before(listing, cutoff_s), snapshot.version]
    if rules.since is not None:
        limits.append(rules.since)
    if (hinted := _hinted_version(storage)) >= 0:
        limits.append(hinted)
    possible = [
        one for one in listing.checkpoints if listing.whole_from - 1 <= one.version <= min(limits)
    ]
    if not possible:
        return replace(survey, why="no checkpoint is older than the retention of versions")
    floor = possible[-1].version
    present = list(storage.list_after(log.LOG, ""))
    files = [file for file in present if _version_of(file.path) < floor]
    files += _unused_sidecars(storage, present, listing, floor, cutoff_s)
    if not files:
        return replace(survey, why=f"nothing lies below the checkpoint of version {floor}")
    _prove(storage, listing, possible, snapshot, cutoff_s)
    files.sort(key=lambda file: (_version_of(file.path), file.path))
    return bounded(replace(survey, floor=floor), files, rules)


def _version_of(path: str) -> int:
    """Return the version that a file of the log belongs to; one of no version belongs to all."""
    match = _OF_VERSION.fullmatch(path)
    return int(match[1]) if match else NUMBER_MAX


def bounded(survey: LakeSurvey, files: Sequence[ListedFile], rules: MaintenanceRules) -> LakeSurvey:
    """Return a survey with the first files, as many as one run may delete."""
    waste = tuple(
        WasteFile(file.path, file.size_bytes, file.tag, file.changed_at_s)
        for file in files[: rules.files_max]
    )
    return replace(survey, files=waste, more=max(0, len(files) - len(waste)))


def _prove(
    storage: LakeStorage,
    listing: log.LogListing,
    possible: Sequence[log.Checkpoint],
    snapshot: Snapshot,
    cutoff_s: float,
) -> None:
    """Prove that the last one of some checkpoints can stand for all versions up to its own.

    It has what the versions below make of an older checkpoint or of nothing, and the head follows
    from it.

    Raises:
        RefusedError: It has something else, it is unreadable, or a version states a later time.
    """
    chosen = possible[-1]
    known = replayed(storage, chosen).to_snapshot("")
    first, bases = listing.whole_from, possible[:-1]

    def require_old(entries: log.VersionEntries) -> None:
        if entries.time_ms > cutoff_s * 1000:
            message = (
                f"version {entries.version} states a time within the retention, later than that of "
                "its file: the clock of its writer was wrong, or the file is a copy"
            )
            raise RefusedError(message)

    if first == 0 or bases:
        proof = log.Replay() if first == 0 else replayed(storage, bases[0])

        def apply(entries: log.VersionEntries) -> None:
            require_old(entries)
            proof.apply(entries)

        log.read_on(storage, proof.version + 1, chosen.version + 1, apply)
        _require_equal(known, proof.to_snapshot(""))
    elif chosen.version in listing.versions:
        log.read_on(storage, chosen.version, chosen.version + 1, require_old)
    replay = log.Replay(known)
    log.read_on(storage, chosen.version + 1, snapshot.version + 1, replay.apply)
    _require_equal(replay.to_snapshot(""), snapshot)


def replayed(storage: LakeStorage, checkpoint: log.Checkpoint) -> log.Replay:
    """Return the state of a checkpoint."""
    replay = log.Replay()
    replay.apply_checkpoint(checkpoint.version, log.read_checkpoint(storage, checkpoint))
    return replay


def _unused_sidecars(
    storage: LakeStorage,
    present: Sequence[ListedFile],
    listing: log.LogListing,
    floor: int,
    cutoff_s: float,
) -> list[ListedFile]:
    """Return old sidecars that no checkpoint from a version on names."""
    sidecars = [
        file
        for file in present
        if file.path.startswith(f"{log.SIDECARS}/") and file.changed_at_s <= cutoff_s
    ]
    if not sidecars:
        return []
    used = {
        log.sidecar_path(entry["sidecar"])
        for checkpoint in listing.checkpoints
        if checkpoint.version >= floor
        for path in checkpoint.paths
        for entry in log.entries_of_file(storage, path, ["sidecar"])
        if entry.get("sidecar")
    }
    return [file for file in sidecars if file.path not in used]


def clean_log(
    storage: LakeStorage, survey: LakeSurvey, snapshot: Snapshot, rules: MaintenanceRules
) -> Freed:
    """Delete what is below the floor of a survey, the oldest first.

    Raises:
        RefusedError: The checkpoint at the floor is gone, or an attempt or hint needs older ones.
    """
    listing = log.list_log(storage, survey.floor)
    if not any(one.version == survey.floor for one in listing.checkpoints):
        message = f"the checkpoint of version {survey.floor} is gone since the survey"
        raise RefusedError(message)
    if rules.since is not None and rules.since < survey.floor:
        message = f"an attempt has planned on version {rules.since} since the survey"
        raise RefusedError(message)
    if 0 <= (hinted := _hinted_version(storage)) < survey.floor:
        message = f"_last_checkpoint names the older version {hinted} since the survey"
        raise RefusedError(message)
    assert snapshot.version >= survey.floor, survey
    for file in survey.files:
        storage.delete(file.path)
    return Freed(files=len(survey.files), size_bytes=survey.size_bytes)
