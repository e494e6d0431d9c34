"""The manifest of this moment, for one reader: pinned while it is listed, and streamed."""

import json
from collections.abc import AsyncGenerator

from common.metadata.table_walk import walk_tiles
from common.model.table import Table
from common.parquet.location import open_location
from common.parquet.manifest import (
    ManifestTotals,
    manifest_entries,
    manifest_header,
)
from neve.gateway.scan import pinned
from neve.gateway.services import Services, check_admitted


async def exported(services: Services, table: Table) -> AsyncGenerator[bytes, None]:
    """Yield a table's manifest as one JSON object: what the table is, its files, their totals.

    Raises:
        RefusedError: The location is another store's, or not where tables may be.
        ConflictError: Its tablets keep changing; try again.
    """
    await check_admitted(services, table)
    location, totals = open_location(table.location), ManifestTotals()
    async with pinned(services, table) as pin:
        begun_s = await services.store.now_s()
        head = json.dumps(manifest_header(table, 0, begun_s, None), indent=1)
        yield head.removesuffix("\n}").encode() + b',\n "files": ['
        comma = b"\n"
        async for page in walk_tiles(services.store, table):
            for tablet in page:
                entries = manifest_entries(location, table, tablet)
                totals.add(entries)
                for entry in entries:
                    yield comma + b"  " + json.dumps(entry).encode()
                    comma = b",\n"
            pin.check()
        yield b'\n ],\n "totals": ' + json.dumps(totals.plain()).encode() + b"\n}\n"


async def exported_names(services: Services, table: Table) -> AsyncGenerator[bytes, None]:
    """Yield the absolute names of a table's files, a line each."""
    await check_admitted(services, table)
    location = open_location(table.location)
    async with pinned(services, table) as pin:
        yield b""  # What is refused is refused before the answer begins.
        async for page in walk_tiles(services.store, table):
            for tablet in page:
                names = [entry["file"] for entry in manifest_entries(location, table, tablet)]
                pin.check()
                if names:
                    yield "".join(f"{name}\n" for name in names).encode()
