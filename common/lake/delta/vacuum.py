"""Vacuum of a Delta table: deletes files that no version within the retention needs.

    survey     listing of the folder, without what any version since the retention names
    carry out  after a grace: the survey, without what versions since then name → deleted

A vacuum is refused unless the listing has every live file, so a name that log and storage write
differently deletes nothing. A file is deleted only if it looks like one of the table, lies in a
folder of it, and is older than the retention by the clock of its storage: a writer that has not
finished keeps its files.
"""

import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from common.errors import RefusedError
from common.lake.delta import log
from common.lake.delta.actions import VectorEntry, entry_text, parse_json, relative_path, vector_of
from common.lake.delta.checkpoints import VACUUM, bounded, removed_ms, replayed
from common.lake.source import Freed, LakeSurvey, MaintenanceRules, Snapshot, WasteFile
from common.lake.storage import LakeStorage, ListedFile
from common.model.location_identity import SERVICE_FOLDER, mark_in_path

CHANGE_FEED = "_change_data"
_VECTOR_FILE = re.compile(r"deletion_vector_[0-9a-fA-F-]{36}\.bin")
NOT_OLD, NESTED, NOT_OURS = (
    "younger than the retention",
    "of another table in this folder",
    "in a folder that the table does not use, or of another kind",
)
ATTEMPTS, ON_THEIR_WAY, CAME_BACK, CHANGED = (
    "needed by an attempt",
    "of an attempt: they wait for the next version of the table",
    "named by a version since the survey",
    "changed since the survey",
)

VectorPath = Callable[[VectorEntry], str | None]
"""Returns the path of a vector's file; None: it lies in the log, or not in the table's folder."""


@dataclass(slots=True)
class _Needed:
    """Files that versions need, and the folders in which the table has files."""

    vector_path: VectorPath
    paths: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Need the file of an entry, and that of its deletes."""
        path = relative_path(entry_text(entry, "path"))
        self.paths.add(path)
        self.folders.add(posixpath.dirname(path))
        vector = vector_of(entry)
        if vector is not None and (file := self.vector_path(vector)) is not None:
            self.paths.add(file)
            self.folders.add(posixpath.dirname(file))

    def add_version(self, entries: log.VersionEntries) -> None:
        """Need what a version adds."""
        for entry in (*entries.adds, *entries.changes):
            self.add(entry)


def survey_files(
    storage: LakeStorage, snapshot: Snapshot, rules: MaintenanceRules, vector_path: VectorPath
) -> LakeSurvey:
    """Return the files that no version within the retention needs.

    Raises:
        RefusedError: A live file is not in the listing, a version is missing, or another table
            shares the folder.
    """
    cutoff_s = rules.now_s - log.file_retention_s(snapshot, rules)
    needed = _needed_since(storage, snapshot, cutoff_s, vector_path)
    live = _Needed(vector_path)
    for file in snapshot.files.values():
        live.add(parse_json(file.entry, "entry"))
    missing, spared, nested = set(live.paths), Counter[str](), set[str]()
    waste: list[ListedFile] = []
    for listed in storage.walk():
        missing.discard(listed.path)
        nested.update(_table_in(listed.path, storage.uri))
        if listed.path.startswith(f"{log.LOG}/") or listed.path in needed.paths:
            continue
        why = _why_spared(listed, snapshot, needed, rules, cutoff_s)
        spared[why] += 1
        if not why:
            waste.append(listed)
    if missing:
        message = (
            f"the listing lacks {len(missing)} files that version {snapshot.version} names, such as"
            f" {min(missing)[:200]}: they are lost, or their names are written in another way, so "
            "nothing is deleted"
        )
        raise RefusedError(message)
    own = [file for file in waste if not _is_below(file.path, nested)]
    spared[NESTED] = len(waste) - len(own)
    own.sort(key=lambda file: (file.changed_at_s, file.path))
    survey = LakeSurvey(operation=VACUUM, version=snapshot.version)
    kept = {why: count for why, count in spared.items() if why and count}
    return replace(bounded(survey, own, rules), spared=kept)


def _why_spared(
    file: ListedFile,
    snapshot: Snapshot,
    needed: _Needed,
    rules: MaintenanceRules,
    cutoff_s: float,
) -> str:
    """Return why a file that no version needs is not deleted; empty: it may be."""
    if not _is_of_table(file.path, snapshot.partition_columns, needed.folders):
        return NOT_OURS
    if file.changed_at_s > cutoff_s:
        return NOT_OLD
    return ATTEMPTS if file.path in rules.kept else ""


def _table_in(path: str, uri: str) -> tuple[str, ...]:
    """Return the folder of another table that a path is the mark of, if it is one.

    Raises:
        RefusedError: It marks the table's own folder: two tables share their files.
    """
    parts = path.split("/")
    mark, owner = mark_in_path(path) or ("", "")
    if SERVICE_FOLDER in parts[:-1]:
        mark, owner = "/".join(parts[: parts.index(SERVICE_FOLDER) + 1]), "Névé"
    if mark in {"", log.LOG}:
        return ()
    folder = posixpath.dirname(mark)
    if mark == path:  # A file in the folder of Iceberg's metadata.
        folder = posixpath.dirname(folder)
    if not folder:
        message = (
            f"{uri} has the mark of a table of {owner} ({mark}), which shares its files: "
            "nothing is deleted"
        )
        raise RefusedError(message)
    return (folder,)


def _is_below(path: str, folders: Collection[str]) -> bool:
    folder = posixpath.dirname(path)
    while folder:
        if folder in folders:
            return True
        folder = posixpath.dirname(folder)
    return False


def _is_of_table(path: str, partition_columns: Sequence[str], folders: Collection[str]) -> bool:
    """Return whether a file looks like one of the table, and lies where the table has its files.

    That is the root, a folder of a partition, or a folder that some version names.
    """
    folder, _, name = path.rpartition("/")
    parts = folder.split("/") if folder else []
    is_change = parts[:1] == [CHANGE_FEED]
    if is_change:
        parts, folder = parts[1:], "/".join(parts[1:])
    is_vector = _VECTOR_FILE.fullmatch(name) is not None
    if not is_vector and (not name.endswith(".parquet") or name.startswith(("_", "."))):
        return False
    if not folder or folder in folders:
        return True
    names = [part.partition("=")[0] for part in parts]
    return bool(partition_columns) and names == list(partition_columns)


def _needed_since(
    storage: LakeStorage, snapshot: Snapshot, cutoff_s: float, vector_path: VectorPath
) -> _Needed:
    """Return what any version needs that was the head at a time or later.

    These are the files of the version that was the head then, and those that later ones add. Files
    that the oldest checkpoint used here names as removed since then are needed, too: older versions
    are gone, but readers may still have them.

    Raises:
        RefusedError: A version is missing.
    """
    listing = log.list_log(storage)
    before, first = log.version_before(listing, cutoff_s), listing.whole_from
    usable = [one for one in listing.checkpoints if one.version >= first - 1]
    bases = [one for one in usable if one.version <= before]
    replay, needed = log.Replay(), _Needed(vector_path)
    if bases or (usable and first > 0):
        base = bases[-1] if bases else usable[0]
        replay = replayed(storage, base)
        for entry in log.read_checkpoint(storage, base, names=("remove",)):
            if removed_ms(entry["remove"]) >= cutoff_s * 1000:
                needed.add(entry["remove"])
    is_before = True

    def use(entries: log.VersionEntries) -> None:
        nonlocal is_before
        is_before &= entries.version <= before and entries.time_ms <= cutoff_s * 1000
        if is_before:
            replay.apply(entries)
        else:
            needed.add_version(entries)

    log.read_on(storage, replay.version + 1, snapshot.version + 1, use)
    for file in chain(replay.to_files(), snapshot.files.values()):
        needed.add(parse_json(file.entry, "entry"))
    return needed


def delete_files(
    storage: LakeStorage,
    survey: LakeSurvey,
    snapshot: Snapshot,
    rules: MaintenanceRules,
    vector_path: VectorPath,
) -> Freed:
    """Delete files of a survey that are still waste.

    Raises:
        RefusedError: A version since the survey is missing.
    """
    if snapshot.version < survey.version:
        message = f"the table went back from version {survey.version} to {snapshot.version}"
        raise RefusedError(message)
    came = _Needed(vector_path)
    log.read_on(storage, survey.version + 1, snapshot.version + 1, came.add_version)
    cutoff_s = rules.now_s - log.file_retention_s(snapshot, rules)
    grown = snapshot.version > survey.version
    reasons = [_why_needed(file, came, rules, grown) for file in survey.files]
    spared = Counter(filter(None, reasons))
    possible = [file for file, why in zip(survey.files, reasons, strict=True) if not why]

    def delete(file: WasteFile) -> bool:
        listed = storage.stat(file.path)
        if listed is None or listed.tag != file.tag or listed.changed_at_s > cutoff_s:
            return False
        storage.delete(file.path)
        return True

    with ThreadPoolExecutor(log.READERS) as threads:
        done = list(threads.map(delete, possible))
    deleted = [file for file, is_deleted in zip(possible, done, strict=True) if is_deleted]
    if changed := len(possible) - len(deleted):
        spared[CHANGED] = changed
    size_bytes = sum(file.size_bytes for file in deleted)
    return Freed(files=len(deleted), size_bytes=size_bytes, spared=dict(spared))


def _why_needed(file: WasteFile, came: _Needed, rules: MaintenanceRules, has_grown: bool) -> str:
    """Return why a surveyed file is not deleted after all; empty: it is."""
    if file.path in came.paths:
        return CAME_BACK
    if file.path in rules.kept:
        return ATTEMPTS
    is_own = bool(rules.own_name) and posixpath.basename(file.path).startswith(rules.own_name)
    return ON_THEIR_WAY if is_own and not has_grown else ""
