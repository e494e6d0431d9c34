"""Routing of files to tablets. Each file belongs to exactly one tablet, or is rejected."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from common.errors import RequestError, UnknownTableError
from common.model.file import DataFile
from common.model.location_identity import SERVICE_FOLDER, is_service_path
from common.model.table import Table
from common.model.tablet import TabletId
from common.rows.partitions import Partition
from neve import api
from neve.gateway.key_views import file_view, key_text, key_types
from neve.gateway.services import Services

TABLETS_NAMED_MAX = 5


@dataclass(slots=True)
class RoutedFiles:
    """Files by the end of their tablet, and the partitions among them."""

    files: dict[bytes, list[DataFile]] = field(default_factory=dict)
    partitions: dict[bytes, str] = field(default_factory=dict)
    content: str = ""
    """Digest of what the caller sent; empty: the files are the content."""

    def put(self, end: bytes, file: DataFile, partition: Partition | None = None) -> None:
        """Add a file to a tablet."""
        self.files.setdefault(end, []).append(file)
        if partition is not None:
            self.partitions[end] = partition.text

    def view(self, table: Table, call: str) -> api.Added:
        """Return the wire model of the added files."""
        types = key_types(table)
        files = [
            file_view(file, TabletId(table.id, end).text, types)
            for end, files in self.files.items()
            for file in files
        ]
        return api.Added(
            call=call,
            files=tuple(files),
            rows=sum(file.rows for file in files),
            size_bytes=sum(file.size_bytes for file in files),
            file_count=len(files),
            tablets=tuple(sorted({file.tablet for file in files})),
        )

    def sizes(self) -> dict[str, int]:
        """Return the size of each file by its path."""
        return {file.path: file.size_bytes for files in self.files.values() for file in files}


async def tablet_of(services: Services, table: Table, file: DataFile) -> bytes:
    """Return the end of the tablet of a range-partitioned table that holds a whole file.

    Raises:
        RequestError: The file crosses tablets; the message names them and what to do.
    """
    if file.key_min is None or file.key_max is None:
        # No key, or no row: such files belong to the first tablet.
        first = await services.store.tablet_ids(table.id, None, 1)
        if not first:
            raise no_tablets_error(table)
        return first[0].end
    found = await services.store.locate(table.id, file.key_min)
    if found is None:
        raise RequestError(f"table {table.name!r} has no tablet for the keys of {file.path}")
    if file.key_max > found.end:
        raise await _crossing_error(services, table, file, found)
    return found.end


def no_tablets_error(table: Table) -> UnknownTableError:
    """Return the error for a table that lost its tablets since it was looked up."""
    return UnknownTableError(f"table {table.name!r} was dropped a moment ago: it has no tablets")


async def _crossing_error(
    services: Services, table: Table, file: DataFile, first: TabletId
) -> RequestError:
    types = key_types(table)
    last = await services.store.locate(table.id, file.key_max or b"")
    more = await services.store.tablet_ids(table.id, first.end, TABLETS_NAMED_MAX)
    crossed = [
        first,
        *(tablet_id for tablet_id in more if last is not None and tablet_id.end <= last.end),
    ]
    named = ", ".join(
        f"{tablet_id.text} (up to {key_text(tablet_id.end, types)})" for tablet_id in crossed
    )
    rest = " and more" if last is not None and last not in crossed else ""
    return RequestError(
        f"file {file.path} has keys from {key_text(file.key_min, types)} to "
        f"{key_text(file.key_max, types)}, so it crosses the tablets {named}{rest}; "
        f"a file belongs to one tablet: cut it there, or bring its rows in with `append`, "
        "which cuts them"
    )


def checked_paths(paths: Iterable[str], most: int, *, own: bool = False) -> Sequence[str]:
    """Check the number of paths, that each occurs once, and that users may add them.

    Args:
        paths: Paths in the table's location.
        most: Maximum number of paths.
        own: Whether paths of the service itself are allowed.

    Raises:
        RequestError: A check failed.
    """
    listed = list(paths)
    if not 1 <= len(listed) <= most:
        raise RequestError(f"{len(listed)} files are given, expected 1 to {most} in one call")
    if len(set(listed)) < len(listed):
        (twice, _) = Counter(listed).most_common(1)[0]
        raise RequestError(f"file {twice} is given twice, expected each once")
    for path in listed:
        if is_service_path(path) and not own:
            raise RequestError(
                f"file {path} lies in {SERVICE_FOLDER}/, which the service keeps for itself; "
                "expected a file elsewhere below the table's location"
            )
    return listed
