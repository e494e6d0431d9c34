"""Orphan files of an Iceberg table: files in its folder that no snapshot names are deleted.

    survey     listing of the location, without what metadata, manifests and attempts name
    carry out  after a grace: the survey, without what snapshots name since then → deleted

Writers leave such files when they die, and old metadata is left by each commit. A file that is in
use must never look like one. So names are compared without regard to how they are spelled, a file
has to be older than any write takes, and the folders of other tables are not looked into. One
survey lists a bounded number of files; the next one goes on where it ended.
"""

import posixpath
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import unquote

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.io import (
    S3_ACCESS_KEY_ID,
    S3_ENDPOINT,
    S3_REGION,
    S3_SECRET_ACCESS_KEY,
    S3_SESSION_TOKEN,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from common.errors import CompactionError, RefusedError
from common.lake.iceberg.catalogs import OutsideError, canonical_uri, translated
from common.lake.iceberg.expiry import (
    ATTEMPTS,
    CAME_BACK,
    FOLDERS,
    NOT_OLD,
    ON_THEIR_WAY,
    READERS,
    Compared,
    SnapshotReach,
    delete_unchanged,
    recent,
    require_collection,
)
from common.lake.source import Freed, LakeSurvey, MaintenanceRules, WasteFile
from common.lake.storage import LakeStorage, ListedFile
from common.model.location_identity import (
    FORMATS,
    ICEBERG,
    ICEBERG_FILE,
    ICEBERG_FOLDER,
    SERVICE_FOLDER,
    canonical_scheme,
    mark_in_path,
)
from common.model.table import ICEBERG_OPERATIONS
from common.units import format_count

_, ORPHAN_FILES = ICEBERG_OPERATIONS
LISTED_MAX = 500_000
"""Most files that one survey lists."""
NAMED_MAX = 5_000_000
"""Most names that one survey compares."""
TABLES_MAX = 5_000
"""Most tables of the catalog whose locations are compared."""
SAMPLED_MAX = 300
"""Most files of metadata of which a survey reads whose they are, apart from those to delete."""
BATCH = 64
"""Snapshots, or manifests, that are read at a time."""
HEAD_BYTES = 64 * 1024
KINDS = (".parquet", ".orc", ".avro", ".puffin", ".stats")
"""Ends of the names of files that writers of Iceberg tables create, besides metadata."""
MARKS = {**FORMATS, SERVICE_FOLDER: "Névé"}
"""Name of a folder in a table → its format."""
NESTED, NOT_OURS, OUTSIDE = (
    "of another table in this folder",
    "hidden, or of another kind",
    "outside of the table's location: other tables may have them",
)
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([0-9a-fA-F-]{1,64})"')
_S3_OPTIONS = {
    S3_ENDPOINT: "aws_endpoint",
    S3_REGION: "aws_region",
    S3_ACCESS_KEY_ID: "aws_access_key_id",
    S3_SECRET_ACCESS_KEY: "aws_secret_access_key",
    S3_SESSION_TOKEN: "aws_session_token",
}

Identifier = tuple[str, ...]
Neighbours = Callable[[Collection[Identifier]], Mapping[Identifier, TableMetadata]]
"""Returns the other tables of the catalog, without those that are given."""


# ------------------------------------------------------------------------------------------- Names


def alike(key: str) -> str:
    """Return what spellings of one file have in common, of a key of `LakeFiles`.

    Different files may have it in common, too: a file is kept if any of them is named.
    """
    while "%" in key and (plain := unquote(key)) != key:
        key = plain
    scheme, colon, path = ("", "", key) if key.startswith("/") else key.partition("://")
    if "//" in path:
        path = re.sub("/+", "/", path)
    whole = f"{scheme}{colon}{path}"
    return whole if whole.isascii() else unicodedata.normalize("NFC", whole).casefold()


def store_and_path(uri: str) -> tuple[str, str]:
    """Return the storage of a URI, as `scheme://host`, and the path there."""
    if uri.startswith("/"):
        return "file://", uri
    scheme, _, rest = uri.partition(":")
    host, path = "", rest
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
    scheme, host = canonical_scheme(scheme), host.lower()
    if scheme == "file" and host == "localhost":
        host = ""
    return f"{scheme}://{host}", f"/{path.lstrip('/')}"


@dataclass(slots=True)
class _Names:
    """Names that a table has for files, as hashes: two files with one hash are both kept."""

    reach: SnapshotReach
    keys: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    """Paths alone of what is named in another storage than the table's own."""

    def key(self, uri: str) -> int:
        """Return the hash of a name."""
        return hash(alike(self.reach.files.key(uri)))

    def add(self, uris: Iterable[str]) -> None:
        """Add names.

        Raises:
            RefusedError: There are too many, or one is no plain location.
        """
        own, _ = store_and_path(self.reach.root.written)
        for uri in uris:
            store, path = store_and_path(uri)
            if store != own:
                self.elsewhere.add(hash(alike(path.casefold())))
            else:
                self.keys.add(self.key(uri))
                if "%" in path:
                    # A link of a folder is found by its plain name only.
                    with suppress(RefusedError):
                        self.keys.add(self.key(unquote(uri)))
        if len(self.keys) + len(self.elsewhere) > NAMED_MAX:
            message = f"the table's snapshots name more than {NAMED_MAX} files: expire some first"
            raise RefusedError(message)

    def require_one_storage(self, uri: str) -> None:
        """Refuse a file whose path is named in another storage, which may be the same one.

        Raises:
            RefusedError: It is.
        """
        store, path = store_and_path(uri)
        if hash(alike(path.casefold())) in self.elsewhere:
            message = (
                f"the table names the path {path[:200]} in another storage than {store}, where it "
                "is stored: whether this is the same file is unknown, so nothing is deleted"
            )
            raise RefusedError(message)


@dataclass(frozen=True, slots=True)
class _Searched:
    """What a survey has compared."""

    compared: Compared
    tables: frozenset[Identifier]
    """Other tables of the catalog."""


def _named(reach: SnapshotReach, rules: MaintenanceRules) -> tuple[_Names, Compared]:
    """Return all names of files that a table has, or had within `keep_s`."""
    names, manifests = _Names(reach), dict[str, str]()
    names.add(reach.own_uris)
    names.add(map(reach.root.uri_of, rules.kept))
    snapshots, seen = list(reach.metadata.snapshots), set[str]()
    snapshots += _lately_expired(reach, rules)
    for some in _batches(snapshots):
        plain, changed = dict[str, str](), dict[str, str]()
        for snapshot, listed in reach.listed(some):
            names.add((snapshot.manifest_list, *(manifest.path for manifest in listed)))
            for manifest in listed:
                (changed if manifest.has_removed else plain)[manifest.path] = manifest.path
        for wanted, with_deleted in ((plain, False), (changed, True)):
            fresh = [path for path in wanted if path not in seen]
            seen.update(fresh)
            for paths in _batches(fresh):
                for path, uris in reach.named(paths, with_deleted=with_deleted):
                    manifests[reach.files.key(path)] = path
                    names.add(uris)
    ids = frozenset(snapshot.snapshot_id for snapshot in reach.metadata.snapshots)
    return names, Compared(reach.last, ids, frozenset(manifests), {})


def _lately_expired(reach: SnapshotReach, rules: MaintenanceRules) -> Iterator[Snapshot]:
    """Yield expired snapshots whose readers may not have ended, as far as they can be read."""
    seen = {snapshot.snapshot_id for snapshot in reach.metadata.snapshots}
    for metadata in reach.former():
        kept = recent(metadata, rules)
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id in kept and snapshot.snapshot_id not in seen:
                seen.add(snapshot.snapshot_id)
                if _is_whole(reach, snapshot):
                    yield snapshot


def _is_whole(reach: SnapshotReach, snapshot: Snapshot) -> bool:
    """Return whether the list and the manifests of a snapshot are there."""
    if reach.files.stat(reach.root.path_of(snapshot.manifest_list)) is None:
        return False
    ((_, listed),) = reach.listed([snapshot])
    return None not in reach.stats(reach.root.path_of(manifest.path) for manifest in listed)


def _batches(items: Iterable[Any]) -> Iterator[list[Any]]:
    left = iter(items)
    while some := list(islice(left, BATCH)):
        yield some


# ------------------------------------------------------------------------------------ Other tables


def tables_of(
    catalog: Catalog, own: Identifier, known: Collection[Identifier]
) -> dict[Identifier, TableMetadata]:
    """Return the tables of a catalog without a table itself, and without some that are known.

    Tables at locations that are not allowed are left out: files there are never touched.

    Raises:
        RefusedError: There are too many, or one cannot be read.
        UnavailableError: The catalog does not answer.
    """
    tables, looked = dict[Identifier, TableMetadata](), set[Identifier]()
    with translated("list the tables of the catalog"):
        waiting = list(catalog.list_namespaces())
        while waiting:
            namespace = tuple(waiting.pop())
            if namespace in looked:
                continue
            looked.add(namespace)
            with suppress(NoSuchNamespaceError):
                waiting += catalog.list_namespaces(namespace)
                for identifier in map(tuple, catalog.list_tables(namespace)):
                    if identifier != own and identifier not in known:
                        tables[identifier] = _metadata_of(catalog, identifier)
            if len(tables) > TABLES_MAX:
                message = f"the catalog has more than {TABLES_MAX} tables, of which any may lie "
                raise RefusedError(f"{message}in this table's folder: nothing is deleted")
    return {identifier: table for identifier, table in tables.items() if table is not None}


def _metadata_of(catalog: Catalog, identifier: Identifier) -> Any:
    try:
        with translated(f"read the location of the table {'.'.join(identifier)}"):
            try:
                return catalog.load_table(identifier).metadata
            except NoSuchTableError:
                return None  # It was dropped meanwhile.
    except OutsideError:
        return None


def _claims(metadata: TableMetadata) -> Iterator[str]:
    """Yield the folders in which a table has its files."""
    location = metadata.location.rstrip("/")
    yield from (f"{location}/data", f"{location}/{ICEBERG_FOLDER}")
    yield from filter(None, map(metadata.properties.get, FOLDERS))


@dataclass(slots=True)
class _Grounds:
    """Folders in the location that are those of other tables."""

    reach: SnapshotReach
    nested: set[str] = field(default_factory=set)
    """Paths, as `alike` returns them."""

    def _folder(self, uri: str) -> str:
        return alike(self.reach.files.key(f"{uri.rstrip('/')}/x"))[:-1]

    def leave_to(self, table: str, folders: Iterable[str], location: str = "") -> None:
        """Leave the folders of another table alone.

        Args:
            table: Its name.
            folders: Where it may have files, in folders below them, too.
            location: Its location; empty: it is one of the folders.

        Raises:
            RefusedError: This table lies in one of them.
        """
        own = self._folder(self.reach.root.written)
        for uri in filter(None, (location, *folders)):
            other = self._folder(uri)
            if other == own or (uri != location and own.startswith(other)):
                message = (
                    f"the table {table} may have files in {uri[:200]}, where this table lies: "
                    "which files are whose is unknown, so nothing is deleted"
                )
                raise RefusedError(message)
            if other.startswith(own):
                self.nested.add(other[len(own) : -1])

    def leave(self, path: str) -> None:
        """Leave a folder alone that has the mark of a table; empty: there is none."""
        if path:
            self.nested.add(alike(path.casefold()))

    def leave_all(
        self, rules: MaintenanceRules, tables: Mapping[Identifier, TableMetadata]
    ) -> None:
        """Leave the folders of other tables of the service and of the catalog alone."""
        for name, location in rules.others:
            self.leave_to(name, (location,))
        for identifier, metadata in tables.items():
            self.leave_to(".".join(identifier), _claims(metadata), metadata.location)

    def has(self, path: str) -> bool:
        """Return whether a file lies in one of the folders."""
        return any(folder in self.nested for folder in _above(alike(path.casefold())))


def _above(path: str) -> Iterator[str]:
    """Yield the folders of a path, the root aside."""
    while path := posixpath.dirname(path):
        yield path


# ----------------------------------------------------------------------------------------- Listing


def _storage(reach: SnapshotReach, folder: str) -> LakeStorage:
    """Return the storage of a folder, with what the catalog lends.

    Raises:
        RefusedError: It cannot be listed.
    """
    uri = canonical_uri(folder).rstrip("/")
    if not uri.startswith(("/", "s3://")) or "?" in uri or "#" in uri:
        raise RefusedError(f"the files of {uri[:200]} cannot be listed: no folder and not in S3")
    reach.io.admission.require(f"{uri}/x")
    given = reach.io.properties
    options = {own: given[name] for name, own in _S3_OPTIONS.items() if given.get(name)}
    return LakeStorage(uri, options)


@dataclass(slots=True)
class _Stage:
    """What one survey has listed."""

    waste: list[str] = field(default_factory=list)
    """Paths, in the order of the listing."""
    more: int = 0
    after: str = ""
    """Where the next survey goes on; empty: all files were listed."""
    last: str = ""
    """The last file that was listed; empty: all were."""
    count: int = 0
    spared: Counter[str] = field(default_factory=Counter)
    missing: dict[int, str] = field(default_factory=dict)
    """Files of the head that were not listed."""
    folders: set[str] = field(default_factory=set)
    """Folders with files that are named."""

    def add(self, path: str, most: int) -> None:
        """Note a file that may be an orphan; beyond a number it is left to the next survey."""
        if len(self.waste) < most:
            self.waste.append(path)
        else:
            self.more += 1


def _listed(
    storage: LakeStorage, names: _Names, grounds: _Grounds, rules: MaintenanceRules, own: set[str]
) -> _Stage:
    """List files, and return those that may be orphans.

    Args:
        storage: Of the location.
        names: What is named.
        grounds: Gets the folders of other tables that are listed.
        rules: What has to be kept.
        own: Folders of the table's own metadata.
    """
    stage, reach = _Stage(), names.reach
    root, cutoff_s = reach.root, oldest_s(rules)
    stage.missing = {names.key(root.uri_of(path)): path for path in reach.live_paths}
    for file in storage.walk(rules.after):
        if stage.count == LISTED_MAX:
            break
        stage.count, stage.last = stage.count + 1, file.path
        grounds.leave(_table_in(file.path, own))
        key = names.key(root.uri_of(file.path))
        if key in names.keys:
            stage.missing.pop(key, None)
            stage.folders.add(posixpath.dirname(file.path))
        elif why := _why_spared(file, cutoff_s):
            stage.spared[why] += 1
        else:
            stage.add(file.path, rules.files_max)
    else:
        stage.last = ""
    stage.after = stage.waste[-1] if stage.more else stage.last
    return stage


def _why_spared(file: ListedFile, cutoff_s: float) -> str:
    if not _is_of_tables(file.path):
        return NOT_OURS
    return NOT_OLD if file.changed_at_s > cutoff_s else ""


def oldest_s(rules: MaintenanceRules) -> float:
    """Return when a file was written that may be an orphan, at the latest."""
    return rules.now_s - max(rules.orphan_age_s, rules.keep_s)


def _is_of_tables(path: str) -> bool:
    """Return whether writers of Iceberg tables create files of such a name."""
    *folders, name = path.split("/")
    if not path.isprintable():
        return False
    # A folder of a partition may begin so, as its column does.
    if name.startswith(("_", ".")) or any(
        part.startswith(("_", ".")) and "=" not in part for part in folders
    ):
        return False
    return name.endswith(KINDS) or ICEBERG_FILE.fullmatch(name) is not None


def _table_in(path: str, own: Collection[str]) -> str:
    """Return the folder of another table that a path is the mark of; empty: it is none.

    Raises:
        RefusedError: It marks the table's own folder.
    """
    parts = path.split("/")
    mark, owner = mark_in_path(path) or ("", "")
    if SERVICE_FOLDER in parts[:-1]:
        mark = "/".join(parts[: parts.index(SERVICE_FOLDER) + 1])
        owner = MARKS[SERVICE_FOLDER]
    folder = posixpath.dirname(mark)
    if mark == path:  # A file in the folder of Iceberg's metadata.
        if folder in own:
            return ""
        folder = posixpath.dirname(folder)
    if not mark:
        return ""
    if not folder:
        _refuse_mark(mark, owner)
    return folder


def _refuse_mark(mark: str, owner: str) -> None:
    message = (
        f"the table's folder has the mark of a table of {owner} ({mark}), which shares its files: "
        "nothing is deleted"
    )
    raise RefusedError(message)


def _has_mark(storage: LakeStorage, folder: str, own: Collection[str]) -> str:
    """Return the mark of a table in a folder; empty: it has none."""
    for mark in (posixpath.join(folder, name) for name in MARKS):
        if next(storage.list_after(mark, ""), None) is not None:
            return mark
    inner = posixpath.join(folder, ICEBERG_FOLDER)
    names = (file.path for file in storage.list_after(inner, "")) if inner not in own else ()
    return next((name for name in names if ICEBERG_FILE.fullmatch(posixpath.basename(name))), "")


def _require_listed(stage: _Stage, split: Collection[str], *, is_whole: bool) -> None:
    """Refuse a listing that lacks live files: its names may not be those of the table.

    Args:
        stage: The listing.
        split: Folders of which it has a part only.
        is_whole: Whether it has all files.

    Raises:
        RefusedError: It does.
    """
    inside = (path for path in stage.missing.values() if "://" not in path)
    missing = [
        path
        for path in inside
        if is_whole or posixpath.dirname(path) in stage.folders - {*split, ""}
    ]
    if missing:
        message = (
            f"the listing lacks {len(missing)} files that the table names, such as "
            f"{min(missing)[:200]}: they are lost, or their names are written in another way, so "
            "nothing is deleted"
        )
        raise RefusedError(message)


def _sampled(items: Sequence[str]) -> Sequence[str]:
    """Return some of many items, the first and the last ones too."""
    step = max(1, -(-len(items) // SAMPLED_MAX))
    return (*items[::step], *items[-1:])


def _uuid_of(reach: SnapshotReach, path: str) -> str:
    """Return whose metadata a file has; empty: it is not readable."""
    with suppress(CompactionError), translated(f"read {path}"):
        with reach.io.new_input(reach.root.uri_of(path)).open() as stream:
            data = stream.read(HEAD_BYTES)
        if ".gz" in posixpath.basename(path):
            data = zlib.decompressobj(wbits=31).decompress(data, HEAD_BYTES)
        if match := _UUID.search(data):
            return match[1].decode().lower()
    return ""


def _without_foreign(
    storage: LakeStorage, names: _Names, waste: Sequence[str], own: Collection[str]
) -> tuple[list[str], int]:
    """Return orphans without metadata that is not readable, and the number of it.

    Raises:
        RefusedError: A file has the metadata of another table, which shares the folder.
    """
    reach, root = names.reach, names.reach.root
    old = [path for path in waste if ICEBERG_FILE.fullmatch(posixpath.basename(path))]
    unnamed = sorted(
        file.path
        for folder in own
        for file in islice(storage.list_after(folder, ""), LISTED_MAX)
        if ICEBERG_FILE.fullmatch(posixpath.basename(file.path))
        and names.key(root.uri_of(file.path)) not in names.keys
    )
    asked = [*dict.fromkeys((*old, *_sampled(unnamed)))]
    with ThreadPoolExecutor(READERS) as threads:
        uuids = dict(
            zip(asked, threads.map(lambda path: _uuid_of(reach, path), asked), strict=True)
        )
    wanted = str(reach.metadata.table_uuid).lower()
    for path, uuid in uuids.items():
        if uuid not in {wanted, ""}:
            _refuse_mark(path, f"{ICEBERG} with the id {uuid}")
    kept = [path for path in waste if uuids.get(path, wanted) == wanted]
    return kept, len(waste) - len(kept)


def _own_waste(
    storage: LakeStorage,
    names: _Names,
    grounds: _Grounds,
    stage: _Stage,
    own: Collection[str],
) -> list[str]:
    """Return the orphans of a stage that are those of this table.

    Raises:
        RefusedError: Another table shares the folder, or names cannot be compared.
    """
    waste = [path for path in stage.waste if not grounds.has(path)]
    stage.spared[NESTED] = len(stage.waste) - len(waste)
    waste, unreadable = _without_foreign(storage, names, waste, own)
    stage.spared[NOT_OURS] += unreadable
    for path in waste:
        names.require_one_storage(names.reach.root.uri_of(path))
    return waste


def _outside(names: _Names, rules: MaintenanceRules, most: int) -> int:
    """Return how many old files that nothing names lie in folders elsewhere, as far as listed."""
    reach, count = names.reach, 0
    for folder in {*filter(None, map(reach.metadata.properties.get, FOLDERS))}:
        with suppress(CompactionError):
            if "://" not in reach.root.path_of(f"{folder.rstrip('/')}/x"):
                continue
            for file in islice(_storage(reach, folder).walk(), most):
                if file.changed_at_s <= oldest_s(rules) and _is_of_tables(file.path):
                    uri = f"{folder.rstrip('/')}/{file.path}"
                    count += names.key(uri) not in names.keys
    return count


# ------------------------------------------------------------------------------ Survey and deletion


def survey_orphans(
    reach: SnapshotReach, rules: MaintenanceRules, neighbours: Neighbours
) -> LakeSurvey:
    """Return files in the table's location that nothing names, as far as one survey lists.

    Args:
        reach: The table as it was just loaded.
        rules: What has to be kept.
        neighbours: Returns the other tables of the catalog.

    Raises:
        RefusedError: The table forbids it, shares its folder, or its names cannot be compared.
        UnavailableError: The storage or the catalog does not answer.
    """
    require_collection(reach.metadata)
    storage = _storage(reach, reach.root.written)
    folders = {posixpath.dirname(reach.root.path_of(uri)) for uri in reach.own_uris}
    own = {ICEBERG_FOLDER, *(folder for folder in folders if folder and "://" not in folder)}
    if mark := _has_mark(storage, "", own):
        _refuse_mark(mark, MARKS.get(mark, ICEBERG))
    names, compared = _named(reach, rules)
    grounds = _Grounds(reach)
    stage = _listed(storage, names, grounds, rules, own)
    # The listing has a part only of these folders, so that it may lack their marks.
    split = {*_above(rules.after), *_above(stage.last)}
    for folder in split:
        if _has_mark(storage, folder, own):
            grounds.leave(folder)
    _require_listed(stage, split, is_whole=not (rules.after or stage.last))
    waste, tables = stage.waste, dict[Identifier, TableMetadata]()
    if waste:
        tables = dict(neighbours(()))
        grounds.leave_all(rules, tables)
        waste = _own_waste(storage, names, grounds, stage, own)
    if not stage.after:
        stage.spared[OUTSIDE] = _outside(names, rules, max(0, LISTED_MAX - stage.count))
    stored = (file for file in reach.stats(waste) if file is not None)
    files = [file for file in stored if file.changed_at_s <= oldest_s(rules)]
    return LakeSurvey(
        operation=ORPHAN_FILES,
        version=reach.version,
        files=tuple(sorted(files, key=lambda file: (file.changed_at_s, file.path))),
        more=stage.more,
        after=stage.after,
        spared={why: count for why, count in stage.spared.items() if count},
        state=_Searched(compared, frozenset(tables)),
        why=_why(stage, len(files)),
    )


def _why(stage: _Stage, files: int) -> str:
    if stage.after:
        listed = format_count(stage.count, "file")
        return f"{listed} were listed; the next run goes on after {stage.after[:200]}"
    return "" if files else "every old file of the table is named by a snapshot or its metadata"


def delete_orphans(
    reach: SnapshotReach, survey: LakeSurvey, rules: MaintenanceRules, neighbours: Neighbours
) -> Freed:
    """Delete files of a survey that nothing has come to name, and that have not changed.

    Args:
        reach: The table as it was just loaded.
        survey: The survey, or one with some of its files.
        rules: What has to be kept by now.
        neighbours: Returns the other tables of the catalog.

    Raises:
        RefusedError: The table forbids it, shares its folder, or a manifest is malformed.
        UnavailableError: The storage or the catalog does not answer.
    """
    require_collection(reach.metadata)
    state = survey.state
    assert isinstance(state, _Searched), type(state)
    names, grounds, compared = _Names(reach), _Grounds(reach), state.compared
    names.add(reach.own_uris)
    names.add(reach.came_since(compared, with_deleted=True))
    kept = _Names(reach)
    kept.add(map(reach.root.uri_of, rules.kept))
    grounds.leave_all(rules, neighbours(state.tables))
    has_grown, spared, possible = reach.last > compared.last, Counter[str](), list[WasteFile]()
    for file in survey.files:
        uri = reach.root.uri_of(file.path)
        names.require_one_storage(uri)
        if grounds.has(file.path):
            spared[NESTED] += 1
        elif names.key(uri) in names.keys:
            spared[CAME_BACK] += 1
        elif kept.key(uri) in kept.keys:
            spared[ATTEMPTS] += 1
        elif not has_grown and _is_own(file.path, rules.own_name):
            spared[ON_THEIR_WAY] += 1
        else:
            possible.append(file)
    return delete_unchanged(reach, [possible], oldest_s(rules), spared)


def _is_own(path: str, own_name: str) -> bool:
    """Return whether Névé wrote a file: data, manifests and lists have its name."""
    name = posixpath.basename(path)
    return bool(own_name) and (name.startswith(own_name) or f"-{own_name}" in name)
