"""Reading a range: piece by piece, then by the tile rule; a hole means to read again."""

from collections.abc import Sequence

from common.errors import ConflictError
from common.metadata import reading
from common.metadata.commands import members_after
from common.metadata.keys import TableKeys
from common.metadata.tiles import tile
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, Tablet, TabletId

RANGE_TRIES_MAX = 8
"""Readings of one range before giving up on ever-changing bounds."""
PAGE = 1000
"""Tablet ends read per round trip."""


class RangeReader:
    """Reads what covers a range of keys."""

    def __init__(self, fetch: reading.Fetch) -> None:
        """Read with `fetch`."""
        self._fetch = fetch

    async def read(self, table: Table, start: bytes | None, end: bytes | None) -> Sequence[Tablet]:
        """Return the tablets that show every file of a range exactly once.

        Tablets of a partitioned table do not tile: each counts by itself, and all are
        returned.

        Raises:
            ConflictError: Splits and merges kept changing the range.
        """
        for _ in range(RANGE_TRIES_MAX):
            partitioned = bool(table.partition_by)
            ids = await self._ids(table.id, None if partitioned else start, end)
            found = await reading.read_tablets(self._fetch, ids)
            tablets = [tablet for tablet in found if tablet is not None]
            if partitioned:
                return tablets
            tiles = tile(tablets, start, end)
            if tiles is not None:
                return tiles
            if not ids:
                return ()  # The table is gone.
        raise ConflictError(f"table {table.name}: its tablets keep changing, try again")

    async def _ids(self, table: str, start: bytes | None, end: bytes | None) -> list[TabletId]:
        """Return the tablets that may cover the range: up to the first that ends behind it."""
        key = TableKeys(table).index
        last = PLUS_INFINITY if end is None else end
        ends: list[bytes] = []
        inclusive = True
        after = start
        while True:
            page: list[bytes] = (
                await self._fetch([[members_after(key, after, PAGE, inclusive=inclusive)]])
            )[0][0]
            for each in page:
                ends.append(each)
                if each >= last:
                    return [TabletId(table, item) for item in ends]
            if len(page) < PAGE:
                return [TabletId(table, item) for item in ends]
            after, inclusive = page[-1], False
