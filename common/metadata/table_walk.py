"""Iteration over all tablets of a table, page by page, so that every file is seen once."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from common.errors import ConflictError
from common.metadata.bulk_reads import tile_after
from common.metadata.store import TabletStore
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, Tablet, TabletId

PAGE_TABLETS = 200
TRIES_MAX = 8
PAUSE_S = 0.05


async def walk_ids(store: TabletStore, table: str) -> AsyncIterator[Sequence[TabletId]]:
    """Yield the ids of all tablets, ascending, page by page."""
    after: bytes | None = None
    while ids := await store.tablet_ids(table, after, PAGE_TABLETS):
        yield ids
        after = ids[-1].end


async def walk_tiles(store: TabletStore, table: Table) -> AsyncIterator[Sequence[Tablet]]:
    """Yield the tablets of a table by the tile rule, page by page, ascending.

    Each tablet begins where the previous one ends, and each is read at one moment. So every file
    is seen exactly once, despite concurrent splits and merges. Tablets of a partitioned table do
    not tile; each is independent.

    Raises:
        ConflictError: A merge or split crossed the page that was just read, or there is a
            hole: begin again, or run `fsck`.
    """
    if table.partition_by:
        async for ids in walk_ids(store, table.id):
            yield [tablet for tablet in await store.tablets(ids) if tablet is not None]
        return
    reached: bytes | None = None
    while reached != PLUS_INFINITY:
        page = await _next_tiles(store, table, reached)
        yield page
        reached = page[-1].bounds.end


async def _next_tiles(store: TabletStore, table: Table, reached: bytes | None) -> list[Tablet]:
    for number in range(TRIES_MAX):
        if number:
            await asyncio.sleep(PAUSE_S)
        ids = await store.tablet_ids(table.id, reached, PAGE_TABLETS)
        read = [tablet for tablet in await store.tablets(ids) if tablet is not None]
        if tiles := tile_after(read, reached):
            return tiles
    raise ConflictError(
        f"table {table.name}: its tablets keep changing, or there is a hole between them; "
        "try again, or check the table with `neve fsck`"
    )
