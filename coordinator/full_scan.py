"""The full scan: one cheap look at every tablet's record, for what the change feed missed.

A tablet whose record says that nothing changed since its planner last spoke costs
one read of its record. The scan is also how reservations without anybody behind
them, and queued jobs that nobody wants any more, are found.
"""

import asyncio
from collections.abc import Sequence

from common.errors import MetadataError, UnavailableError
from common.metadata.ports import TabletStore
from common.model.table import Table
from common.model.tablet import Analysis, Record, TabletId
from coordinator.ports import Log
from coordinator.scanner import Scanner

PAGE_TABLETS = 1000
TABLES_AT_ONCE = 4
_QUIET = frozenset({Analysis.EMPTY, Analysis.STABLE, Analysis.DEFERRED})


def needs_look(record: Record | None, table: Table) -> bool:
    """Return whether a scan must read more of a tablet than its record.

    Args:
        record: The tablet's record; None: it has none (yet), so look.
        table: For the version of its settings.
    """
    if record is None or record.running or record.waiting or record.operation:
        return True
    known = (
        record.analysis_version == record.version
        and record.analysis_settings == table.settings_version
    )
    return not (known and record.analysis in _QUIET)


async def scan_table(store: TabletStore, table: Table, scanner: Scanner) -> int:
    """Ask the scanner for every tablet of a table that needs a look; return how many.

    Raises:
        MetadataError: The store did not answer as it should.
    """
    asked, after = 0, None
    while ids := await store.tablet_ids(table.id, after=after, count=PAGE_TABLETS):
        asked += _ask(ids, await store.records(ids), table, scanner)
        after = ids[-1].end
    return asked


def _ask(
    ids: Sequence[TabletId], records: Sequence[Record | None], table: Table, scanner: Scanner
) -> int:
    asked = 0
    for tablet, record in zip(ids, records, strict=True):
        if needs_look(record, table):
            scanner.ask(tablet)
            asked += 1
    return asked


async def scan_forever(store: TabletStore, scanner: Scanner, log: Log, interval_s: float) -> None:
    """Scan all tables, several at a time, every `interval_s` seconds."""
    gate = asyncio.Semaphore(TABLES_AT_ONCE)

    async def scan(table: Table) -> None:
        async with gate:
            try:
                await scan_table(store, table, scanner)
            except (MetadataError, UnavailableError) as error:
                log("full scan of a table failed", table=table.name, cause=str(error))

    while True:
        await asyncio.sleep(interval_s)
        scanner.remind()
        await asyncio.gather(*(scan(table) for table in list(scanner.tables.values())))
