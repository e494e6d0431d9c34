"""What a location tells of the table that it held: descriptions, footers, facts of files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.errors import RequestError
from common.model.file import DataFile
from common.model.service_paths import DESCRIPTION_PATH
from common.model.table import Table
from common.parquet.file_inspection import inspect_file, open_table_file
from common.parquet.location import Location
from common.parquet.service_files import read_description
from common.readers.pool import in_reader
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema, columns_of, unite_schemas
from common.storage_threads import StorageThreads
from neve.recovery.footers import OutputFooter, read_output_footer
from neve.recovery.published import Published, read_published
from neve.recovery.scope import Tell, in_turn
from neve.recovery.stored import StoredFile, Whose, list_location, look_up


@dataclass(slots=True, kw_only=True)
class Evidence:
    """What was found in a location."""

    stored: dict[str, StoredFile]
    described: Table | None
    footers: dict[str, OutputFooter] = field(default_factory=dict)
    added: list[str] = field(default_factory=list)
    """Files that users or the gateway brought in."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Files that cannot be read → why."""
    misfits: dict[str, str] = field(default_factory=dict)
    """Files of users that can be read, but are none of this table → why."""
    published: Published | None = None
    """The newest manifest of the table."""
    unusable: str = ""
    """Why there is none, though something lies where it should."""

    @property
    def tables(self) -> list[str]:
        """Ids of the tables that outputs were made for."""
        return sorted({each.table for each in self.footers.values()})


async def gather_evidence(
    location: Location, threads: StorageThreads, tell: Tell, *, user_files: bool
) -> Evidence:
    """Return what a location tells.

    Args:
        location: Of the lost table.
        threads: Where files are read.
        tell: Hears how far it is.
        user_files: Whether Parquet files of users count as added.

    Raises:
        RequestError: The description is of another release.
        UnavailableError: The storage does not answer.
    """
    tell("listing the location")
    stored = await threads.run(location.uri, list_location, location)
    described = await threads.run(location.uri, read_description, location)
    evidence = Evidence(stored=stored, described=described)
    outputs = sorted(path for path, file in stored.items() if file.whose is Whose.OUTPUT)
    await _read_manifest(evidence, location, threads)
    while True:
        tell(f"reading {len(outputs)} footers")
        await _read_footers(evidence, location, threads, outputs)
        outputs = await _look_up_named(evidence, location, threads)
        if not outputs:
            break
    wanted = {Whose.APPENDED, Whose.USER} if user_files else {Whose.APPENDED}
    evidence.added = sorted(
        path
        for path, file in stored.items()
        if file.whose in wanted and path.endswith((".parquet", ".parq"))
    )
    return evidence


async def _read_footers(
    evidence: Evidence, location: Location, threads: StorageThreads, outputs: Sequence[str]
) -> None:
    looks = await in_turn(threads.run(location.uri, _footer, location, path) for path in outputs)
    for path, found in zip(outputs, looks, strict=True):
        if isinstance(found, OutputFooter):
            evidence.footers[path] = found
        else:
            evidence.unreadable[path] = found


async def _look_up_named(
    evidence: Evidence, location: Location, threads: StorageThreads
) -> list[str]:
    """Take in what the listing misses of what manifest and footers name; return new outputs."""
    published = evidence.published
    named = {*(published.files if published is not None else ())}
    named.update(path for each in evidence.footers.values() for path in each.outputs or ())
    unlisted = sorted(named - evidence.stored.keys())
    found = await threads.run(location.uri, look_up, location, unlisted) if unlisted else {}
    evidence.stored.update(found)
    return sorted(path for path, file in found.items() if file.whose is Whose.OUTPUT)


async def _read_manifest(evidence: Evidence, location: Location, threads: StorageThreads) -> None:
    try:
        found = await threads.run(location.uri, read_published, location)
    except RequestError as error:
        evidence.unusable = str(error)
        return
    if found is None or evidence.described is None or evidence.described.id == found.table:
        evidence.published = found
    else:
        evidence.unusable = f"{found.name} is of another table, {found.table}"


def _footer(location: Location, path: str) -> OutputFooter | str:
    try:
        return read_output_footer(location, path) or "it says nothing of the job that made it"
    except RequestError as error:
        return str(error)


def described_table(evidence: Evidence, location: Location, given: Mapping[str, object]) -> Table:
    """Return the table that was lost, as far as it can be told.

    Args:
        evidence: With its description, or without.
        location: Where it lies.
        given: `key`, `version_column`, … where nothing describes them.

    Raises:
        RequestError: Nothing describes the table, and no key was given.
    """
    if evidence.described is not None:
        return replace(evidence.described, location=location.uri)
    if not given:
        raise RequestError(
            f"{DESCRIPTION_PATH} of {location.uri} is missing, so nothing tells the table's key: "
            "give key and version column, or say that it is append-only"
        )
    paths = [*evidence.footers, *evidence.added]
    schemas = [(path, schema) for path in paths if (schema := _schema(location, path)) is not None]
    if not schemas:
        raise RequestError(f"{location.uri} holds no Parquet file that can be read")
    columns = columns_of(unite_schemas(schemas))
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


def _opens(location: Location, path: str) -> bool:
    return _schema(location, path) is not None


async def facts_of(
    location: Location,
    threads: StorageThreads,
    table: Table,
    paths: Sequence[str],
    evidence: Evidence,
) -> list[DataFile]:
    """Return the entries of files that count; what cannot be read is noted as such."""
    looks = await in_turn(
        threads.run(location.uri, _facts, location, table, evidence.stored[path]) for path in paths
    )
    files = []
    for path, found in zip(paths, looks, strict=True):
        if isinstance(found, str):
            strange = not path.startswith("_neve/") and await threads.run(
                location.uri, _opens, location, path
            )
            (evidence.misfits if strange else evidence.unreadable)[path] = found
            continue
        footer = evidence.footers.get(path)
        job, request = (footer.job, footer.request) if footer else (None, None)
        files.append(replace(found, job=job, request=request))
    return files


def _facts(location: Location, table: Table, stored: StoredFile) -> DataFile | str:
    try:
        facts = inspect_file(location, stored.path, RowRules.of(table))
    except RequestError as error:
        return str(error)
    return facts.data_file(added_at_s=stored.changed_s or 0.0)
