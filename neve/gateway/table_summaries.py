"""Summaries of tables at a cost that does not grow with their tablets, for lists of tables."""

from collections.abc import Sequence
from functools import partial

from common.errors import BrokenValueError
from common.model.file import DataFile, total_bytes
from common.model.outcome import AttemptEnd
from common.model.table import Table
from common.model.tablet import TabletId
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
    )


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


class TableSummaryRoutes:
    """The route of the summary of a table."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._kept: BoundedMap[str, SharedAnswer[api.TableSummary]] = BoundedMap(SUMMARIES_MAX)

    @route("GET /v1/tables/{table}/summary", READ)
    async def summary(self, table: str) -> api.TableSummary:
        """Return figures of a table from at most 20 of its tablets, up to 30 seconds old.

        Unlike `GET /v1/tables/{table}`, it costs the same for every table.
        """
        stored_table = await self._services.table(table, filling=True)
        if (kept := self._kept.get(stored_table.id)) is None:
            ask = partial(table_summary, self._services, stored_table)
            kept = SharedAnswer(ask, SUMMARY_LASTS_S)
            self._kept.put(stored_table.id, kept)
        return await kept.answer()
