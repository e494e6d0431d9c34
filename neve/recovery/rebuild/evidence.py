"""Evidence of a lost table in its location: newest manifest, description, footers."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import RequestError, UnavailableError
from common.metadata.store_values import AcceptedLoss
from common.model.file import DataFile
from common.model.location_identity import DESCRIPTION_PATH, is_service_path
from common.model.table import Table
from common.model.tablet import TabletId
from common.parquet.file_inspection import inspect_file, open_table_file
from common.parquet.location import Location, fault, is_silence
from common.parquet.manifest import FORMAT, FORMAT_VERSION, POINTER_PATH
from common.parquet.service_files import read_copied, read_description, read_small
from common.readers.pool import in_reader
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema, columns_of, unite_schemas
from common.storage_threads import StorageThreads
from common.units import format_count
from neve.recovery.scope import (
    ReportProgress,
    Steps,
    gather_bounded,
    in_thread,
)
from neve.recovery.stored_files import (
    FileOrigin,
    OutputFooter,
    StoredFile,
    list_location,
    look_up,
    read_output_footer,
)

# ------------------------------------------------------------------------------ The newest manifest


POINTER_BYTES_MAX = 64 * 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedManifest:
    """The content of a manifest: the state of the table at the time when its writing began."""

    number: int
    begun_s: float
    """When its writing began, by the store's clock, in epoch seconds."""
    table: str
    """Id of the table."""
    files: Mapping[str, str]
    """Path → the tablet that held the file, in the manifest's notation."""
    loss: AcceptedLoss | None = None
    """Period whose files the manifest may lack, because the store has lost changes."""
    complete: bool = True
    """Whether the manifest states that it is complete. Earlier releases did not state it, and
    published manifests of tables whose recovery had been interrupted."""

    @property
    def name(self) -> str:
        """Name of the manifest for messages."""
        return f"manifest {self.number}"


@in_reader("the manifest of {location.uri}")
def read_published_manifest(location: Location) -> PublishedManifest | None:
    """Return the newest manifest of a location, or None if no manifest was published.

    Raises:
        RequestError: The manifest cannot be read, is from another release, or is incomplete.
        UnavailableError: The storage does not answer.
    """
    content = read_small(location, POINTER_PATH, POINTER_BYTES_MAX)
    if content is None:
        return None
    try:
        body = json.loads(content)
        if (body["format"], body["version"]) != (FORMAT, FORMAT_VERSION):
            raise RequestError(
                f"{POINTER_PATH} is {body['format']} version {body['version']}, "
                f"this release reads {FORMAT} version {FORMAT_VERSION}"
            )
        files: dict[str, str] = {}
        for part in body["parts"]:
            files |= _read_manifest_part(location, part)
        for tablet in set(files.values()):
            TabletId.parse("", tablet)
        if len(files) != body["totals"]["files"]:
            raise RequestError(
                f"the parts of {POINTER_PATH} name {format_count(len(files), 'file')}, "
                f"expected {body['totals']['files']}"
            )
        if body.get("complete") is False:
            raise RequestError(
                f"{POINTER_PATH} is of a table whose recovery did not find all files"
            )
        return PublishedManifest(
            number=int(body["number"]),
            begun_s=float(body["begun_s"]),
            table=str(body["table_id"]),
            files=files,
            loss=AcceptedLoss(**body["loss"]) if "loss" in body else None,
            complete="complete" in body,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{POINTER_PATH} makes no sense: {error!r}") from error


def _read_manifest_part(location: Location, part: Mapping[str, Any]) -> dict[str, str]:
    path = str(part["path"])
    try:
        with location.open_file(path) as source:
            rows = pq.read_table(source, columns=["path", "tablet"])
    except (OSError, pa.ArrowException) as error:
        if isinstance(error, OSError) and is_silence(error):
            raise UnavailableError(fault(location, path, error)) from error
        raise RequestError(f"{path}, a part of the manifest, cannot be read: {error}") from error
    return dict(zip(rows["path"].to_pylist(), rows["tablet"].to_pylist(), strict=True))


# ------------------------------------------------------------------------------------- All evidence


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Files and documents found in a location."""

    stored: dict[str, StoredFile]
    described: Table | None
    footers: dict[str, OutputFooter] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    """Files that users or the gateway wrote."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Path of each unreadable file → reason."""
    misfits: dict[str, str] = field(default_factory=dict)
    """Path of each readable user file that does not fit this table → reason."""
    published: PublishedManifest | None = None
    """The newest manifest of the table."""
    unusable: str = ""
    """Why an existing manifest cannot be used."""

    @property
    def tables(self) -> list[str]:
        """Ids of the tables that outputs were made for."""
        return sorted({footer.table for footer in self.footers.values()})


async def gather_evidence(
    location: Location, threads: StorageThreads, on_progress: ReportProgress, *, user_files: bool
) -> Evidence:
    """Read the evidence in a location.

    Args:
        location: Location of the lost table.
        threads: Threads that read files.
        on_progress: Called with each progress message.
        user_files: Whether Parquet files of users count as added.

    Raises:
        RequestError: The description is from another release.
        UnavailableError: The storage does not answer.
    """
    on_progress("listing the location")
    stored = await threads.run(location.uri, list_location, location)
    described = await threads.run(location.uri, read_description, location)
    evidence = Evidence(stored=stored, described=described)
    outputs = await in_thread(partial(_of_origin, stored, {FileOrigin.OUTPUT}))
    await _read_manifest(evidence, location, threads)
    while True:
        await _read_footers(evidence, location, threads, outputs, on_progress)
        outputs = await _look_up_named(evidence, location, threads)
        if not outputs:
            break
    origins = {FileOrigin.APPENDED, FileOrigin.USER} if user_files else {FileOrigin.APPENDED}
    evidence.added = await in_thread(partial(_of_origin, stored, origins))
    if described is not None:
        copied = await threads.run(location.uri, read_copied, location, described.own_ids)
        evidence.added = [
            path for path in evidence.added if copied.get(path) != stored[path].size_bytes
        ]
    return evidence


def _of_origin(
    stored: Mapping[str, StoredFile], origins: Collection[FileOrigin], steps: Steps
) -> list[str]:
    return steps.in_order(
        path
        for path, file in stored.items()
        if path.endswith((".parquet", ".parq")) and file.whose in origins
    )


def counted(on_progress: ReportProgress, what: str, total: int) -> Callable[[int], None]:
    """Report the start of work on many files, and return a callback for its progress."""
    on_progress(f"reading {what} of {format_count(total, 'file')}")
    return lambda done: on_progress(f"reading {what}: {done} of {format_count(total, 'file')}")


async def _read_footers(
    evidence: Evidence,
    location: Location,
    threads: StorageThreads,
    outputs: Sequence[str],
    on_progress: ReportProgress,
) -> None:
    looks = await gather_bounded(
        (threads.run(location.uri, _footer, location, path) for path in outputs),
        counted(on_progress, "footers", len(outputs)),
    )
    for path, footer in zip(outputs, looks, strict=True):
        if isinstance(footer, OutputFooter):
            evidence.footers[path] = footer
        else:
            evidence.unreadable[path] = footer


async def _look_up_named(
    evidence: Evidence, location: Location, threads: StorageThreads
) -> list[str]:
    """Look up files that manifest and footers name but the listing lacks; return new outputs."""
    unlisted = await in_thread(partial(_unlisted, evidence))
    looked_up = await threads.run(location.uri, look_up, location, unlisted) if unlisted else {}
    evidence.stored.update(looked_up)
    return sorted(path for path, file in looked_up.items() if file.whose is FileOrigin.OUTPUT)


def _unlisted(evidence: Evidence, steps: Steps) -> Sequence[str]:
    """Return the files that manifest and footers name but the listing lacks, sorted."""
    stored, published = evidence.stored, evidence.published
    named = {*steps.over(published.files if published is not None else ())}
    for footer in steps.over(evidence.footers.values()):
        named.update(footer.outputs or ())
    return steps.in_order(path for path in steps.over(named) if path not in stored)


async def _read_manifest(evidence: Evidence, location: Location, threads: StorageThreads) -> None:
    try:
        manifest = await threads.run(location.uri, read_published_manifest, location)
    except RequestError as error:
        evidence.unusable = str(error)
        return
    described = evidence.described
    if manifest is None or described is None or manifest.table in described.own_ids:
        evidence.published = manifest
    else:
        evidence.unusable = f"{manifest.name} is of another table, {manifest.table}"


def _footer(location: Location, path: str) -> OutputFooter | str:
    try:
        return read_output_footer(location, path) or "it says nothing of the job that made it"
    except RequestError as error:
        return str(error)


async def described_table(
    evidence: Evidence, location: Location, threads: StorageThreads, given: Mapping[str, object]
) -> Table:
    """Return the lost table, from its description or from the given values and file schemas.

    Args:
        evidence: Evidence, with or without a description.
        location: Location of the table.
        threads: Threads that read files.
        given: `key`, `version_column`, …, if there is no description.

    Raises:
        RequestError: Nothing describes the table, and no key was given.
    """
    if evidence.described is not None:
        return replace(evidence.described, location=location.uri)
    if not given:
        raise RequestError(
            f"{DESCRIPTION_PATH} of {location.uri} is missing, so the table's key is unknown: "
            "give key and version column, or say that it is append-only"
        )
    paths = [*evidence.footers, *evidence.added]
    schemas = await gather_bounded(
        threads.run(location.uri, _schema, location, path) for path in paths
    )
    firsts: dict[pa.Schema, str] = {}
    for path, schema in zip(paths, schemas, strict=True):
        if schema is not None:
            firsts.setdefault(schema, path)
    if not firsts:
        raise RequestError(f"{location.uri} holds no Parquet file that can be read")
    columns = columns_of(unite_schemas([(path, schema) for schema, path in firsts.items()]))
    arrow_schema(columns)
    plain: dict[str, object] = {"id": "", "name": "", "location": location.uri, "schema": columns}
    return Table(**{**plain, **given})  # type: ignore[arg-type]  # checked where it came in


@in_reader("file {path}")
def _footer_schema(location: Location, path: str) -> object:
    with open_table_file(location, path) as file:
        return file.schema_arrow.remove_metadata()


def _schema(location: Location, path: str) -> object:
    try:
        return _footer_schema(location, path)
    except RequestError:
        return None


def _is_parquet(location: Location, path: str) -> bool:
    return _schema(location, path) is not None


async def facts_of(
    location: Location,
    threads: StorageThreads,
    table: Table,
    paths: Sequence[str],
    evidence: Evidence,
    *,
    on_progress: ReportProgress,
) -> list[DataFile]:
    """Return the entries of live files; record unreadable files and misfits in the evidence."""
    stored, footers = evidence.stored, evidence.footers
    looks = await gather_bounded(
        (
            threads.run(location.uri, _facts, location, table, stored[path], footers.get(path))
            for path in paths
        ),
        counted(on_progress, "facts", len(paths)),
    )
    files = []
    for path, facts in zip(paths, looks, strict=True):
        if isinstance(facts, str):
            strange = not is_service_path(path) and await threads.run(
                location.uri, _is_parquet, location, path
            )
            (evidence.misfits if strange else evidence.unreadable)[path] = facts
            continue
        files.append(facts)
    return files


def _facts(
    location: Location, table: Table, stored: StoredFile, footer: OutputFooter | None
) -> DataFile | str:
    try:
        facts = inspect_file(location, stored.path, RowRules.of(table))
    except RequestError as error:
        return str(error)
    file = facts.data_file(added_at_s=stored.changed_s or 0.0)
    return file if footer is None else replace(file, job=footer.job, request=footer.request)
