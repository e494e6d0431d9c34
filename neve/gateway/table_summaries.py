"""Summaries and maps of tables, at a cost that does not grow with their tablets."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from common.errors import BrokenValueError
from common.model.file import DataFile, total_bytes
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import Record, Tablet, TabletId
from common.primitives import BoundedMap
from neve import api
from neve.gateway.access.callers import READ, route
from neve.gateway.services import Services, SharedAnswer

SAMPLED_TABLETS = 20
"""Tablets whose files are read, spread over the table."""
SMALL_FRACTION = 4
"""A file is small if it is smaller than this fraction of `target_bytes`: 4 is a quarter."""
ATTEMPTS = 20
"""Newest attempts of which the last commit is found."""
SUMMARY_LASTS_S = 30.0
SUMMARIES_MAX = 10_000
"""Summaries that are kept."""


async def table_summary(services: Services, table: Table) -> api.TableSummary:
    """Return the summary of a table, from some of its tablets.

    Raises:
        UnavailableError: The store does not answer.
    """
    store = services.store
    count = await store.tablet_count(table.id)
    ids = await _spread(services, table, count)
    read = await _files_of(services, ids)
    files = [file for tablet_files in read for file in tablet_files]
    rows, small = sum(file.rows for file in files), table.settings.target_bytes / SMALL_FRACTION
    measured = [file for file in files if file.live_bytes is not None]
    live_bytes = sum(min(file.live_bytes or 0, file.size_bytes) for file in measured)
    sums = await store.newest_days(table.id, await store.days(table.id))
    stored_bytes = total_bytes(files) * count / max(len(read), 1)
    commits = (
        entry.ended_s
        for entry in await store.history(table.id, ATTEMPTS)
        if entry.end == AttemptEnd.COMMITTED.value
    )
    return api.TableSummary(
        table=table.name,
        tablets=count,
        sampled_tablets=len(read),
        files=len(files),
        size_bytes=total_bytes(files),
        files_max=max(map(len, read), default=0),
        small_share=_share(sum(file.size_bytes < small for file in files), len(files)),
        tombstone_share=_share(sum(file.tombstones for file in files), rows),
        garbage_share=None if not measured else 1 - live_bytes / max(total_bytes(measured), 1),
        committed_at_s=next(commits, None),
        write_amplification=write_amplification(sums.days, stored_bytes),
    )


def write_amplification(days: Iterable[api.TableDay], stored_bytes: float) -> float | None:
    """Return the bytes that jobs have written per byte that arrived; None: unknown.

    What is stored has arrived, or was written by jobs; so much more has arrived as jobs have read.

    Args:
        days: Daily sums of the table.
        stored_bytes: Size of its files now.
    """
    read = written = 0
    for day in days:
        read, written = read + day.bytes_in, written + day.bytes_out
    arrived = stored_bytes + read - written
    return written / arrived if written and arrived > 0 else None


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


async def _spread(services: Services, table: Table, count: int) -> list[TabletId]:
    """Return up to `SAMPLED_TABLETS` tablets of a table, evenly spread."""
    if count <= SAMPLED_TABLETS:
        return list(await services.store.tablet_ids(table.id, None, SAMPLED_TABLETS))
    ends = await services.store.every(table.id, -(-count // SAMPLED_TABLETS))
    return [TabletId(table.id, end) for end in ends]


async def _files_of(services: Services, ids: Sequence[TabletId]) -> list[list[DataFile]]:
    """Return the files of each tablet that can be decoded."""
    try:
        return [list(files.values()) for files in await services.store.files(ids)]
    except BrokenValueError:
        return []  # The page of the table names what is broken.


# ------------------------------------------------------------------------------- Map of all tablets


T = TypeVar("T", int, float)
Answer = TypeVar("Answer")
CELLS_MAX = 2000
SAMPLED_TABLETS_MAX = 200
MAPS_MAX = 100
"""Tables whose maps are cached."""
MAP_LASTS_S = 4.0
"""How long a map is cached, so that many viewers of a large table cost as much as one."""


async def tablet_map(services: Services, table: Table) -> api.TabletMap:
    """Return the map of a table's tablets, at a cost that does not grow with their number.

    Raises:
        UnavailableError: The coordinator does not answer.
    """
    count = await services.store.tablet_count(table.id)
    width = max(1, -(-count // CELLS_MAX))
    ids = await _ids_of_cells(services, table, width)
    counts = [width] * len(ids)
    if ids:
        counts[-1] = max(1, count - width * (len(ids) - 1))
    files, sizes_bytes, sizes = await _files_of_cells(services, ids)
    loads = await services.coordinator.tablet_loads(table.id, [id_.text for id_ in ids])
    cells = [*range(len(ids)), *_cells_of(ids, loads.tablets[len(ids) :])]

    def highest(column: Sequence[T]) -> tuple[T, ...]:
        """Return the largest value of each cell."""
        values = list(column[: len(ids)])
        for cell, value in zip(cells, column, strict=True):
            if cell < len(values):
                values[cell] = max(values[cell], value)
        return tuple(values)

    return api.TabletMap(
        table=table.name,
        tablets=count,
        ends=tuple(id_.text for id_ in ids),
        counts=tuple(counts),
        files=tuple(number or 0 for number in files),
        size_bytes=sizes_bytes,
        backlog_bytes=highest(loads.backlog_bytes),
        overlapping_files=highest(loads.overlapping_files),
        garbage_shares=highest(loads.garbage_shares),
        scans_s=highest(loads.scans_s),
        unreadable=sum(number is None for number in files),
        sampled_tablets=len(_sampled(ids)),
        sizes=sizes,
    )


def _cells_of(ids: Sequence[TabletId], tablets: Sequence[str]) -> list[int]:
    """Return the index of the cell of each tablet; the number of cells: the tablet is new."""
    ends = [id_.end for id_ in ids]
    return [bisect_left(ends, TabletId.parse("", tablet).end) for tablet in tablets]


async def _ids_of_cells(services: Services, table: Table, width: int) -> list[TabletId]:
    """Return the last tablet of each cell of `width` tablets."""
    if width == 1:
        return list(await services.store.tablet_ids(table.id, None, CELLS_MAX))
    ends = await services.store.every(table.id, width)
    rest = await services.store.tablet_ids(table.id, ends[-1] if ends else None, 2 * width)
    return [*(TabletId(table.id, end) for end in ends), *rest[-1:]]


def _sampled(ids: Sequence[TabletId]) -> Sequence[TabletId]:
    """Return the tablets whose files are counted by their sizes, spread over the table."""
    return ids[:: max(1, -(-len(ids) // SAMPLED_TABLETS_MAX))]


async def _files_of_cells(
    services: Services, ids: Sequence[TabletId]
) -> tuple[Sequence[int | None], tuple[int, ...], dict[int, int]]:
    """Return files and bytes of tablets, and the sizes of some files; None: undecodable."""
    store, sampled = services.store, _sampled(ids)
    try:
        records = [record or Record() for record in await store.records(ids)]
        listed = [list(files.values()) for files in await store.files(sampled)]
        counts: list[int | None] = [record.files for record in records]
        sizes_bytes = [record.size_bytes for record in records]
    except BrokenValueError:
        read = await store.readable(ids)
        files_of = [
            list(tablet.files.values()) if isinstance(tablet, Tablet) else None for tablet in read
        ]
        counts = [None if files is None else len(files) for files in files_of]
        sizes_bytes = [total_bytes(files or ()) for files in files_of]
        chosen = frozenset(sampled)
        listed = [files or [] for id_, files in zip(ids, files_of, strict=True) if id_ in chosen]
    sizes = Counter(max(0, file.size_bytes.bit_length() - 1) for files in listed for file in files)
    return counts, tuple(sizes_bytes), dict(sizes)


class TableSummaryRoutes:
    """The routes of the summaries of a table."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._summaries: BoundedMap[str, SharedAnswer[api.TableSummary]] = BoundedMap(SUMMARIES_MAX)
        self._maps: BoundedMap[str, SharedAnswer[api.TabletMap]] = BoundedMap(MAPS_MAX)

    @route("GET /v1/tables/{table}/summary", READ)
    async def summary(self, table: str) -> api.TableSummary:
        """Return figures of a table from at most 20 of its tablets, up to 30 seconds old.

        Unlike `GET /v1/tables/{table}`, it costs the same for every table.
        """
        stored_table = await self._services.table(table, filling=True)
        ask = partial(table_summary, self._services, stored_table)
        return await _shared(self._summaries, stored_table, ask, SUMMARY_LASTS_S)

    @route("GET /v1/tables/{table}/map", READ)
    async def map(self, table: str) -> api.TabletMap:
        """Return files, backlog, overlap, garbage and reads of tablets in the order of their keys.

        The answer has a cell for each tablet or, in a table of more than 2,000 tablets, for several
        tablets in a row. Its cost does not grow with the table. The map may be seconds old.
        """
        stored_table = await self._services.table(table)
        ask = partial(tablet_map, self._services, stored_table)
        return await _shared(self._maps, stored_table, ask, MAP_LASTS_S)


async def _shared(
    kept: BoundedMap[str, SharedAnswer[Answer]],
    table: Table,
    ask: Callable[[], Awaitable[Answer]],
    lasts_s: float,
) -> Answer:
    """Return the answer for a table that all callers share while it lasts."""
    shared = kept.get(table.id)
    if shared is None:
        shared = SharedAnswer(ask, lasts_s)
        kept.put(table.id, shared)
    return await shared.answer()
