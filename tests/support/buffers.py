"""Buffered rows for tests without a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from common.metadata.changes import AppendRows, Outcome, RowSpan
from common.metadata.store import TabletStore
from common.model.table import Table
from common.model.tablet import TabletId
from common.parquet.append import content_digest, cut_by_tablet, targets_of
from common.parquet.buffered import message_of, schema_bytes
from common.rows.conform import conform
from common.rows.row_facts import RowTally
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from common.runtime import Clock, call_id


async def buffer_rows(
    store: TabletStore,
    clock: Clock,
    table: Table,
    rows: Sequence[dict[str, Any]],
    *,
    call: str | None = None,
    generation: int = 0,
    segment_bytes_max: int = 1 << 20,
) -> Outcome:
    """Buffer rows as the gateway does."""
    schema = arrow_schema(table.schema)
    arrow = conform(pa.Table.from_pylist(list(rows)), schema)
    spans: dict[bytes, RowSpan] = {}
    if table.key:
        targets = [] if table.partition_by else (await targets_of(store, table, ()))[0]
        for part in cut_by_tablet(arrow, table, targets):
            tally = RowTally(RowRules.of(table))
            tally.see(part.rows, "rows")
            facts = tally.facts()
            assert facts.key_min is not None
            assert facts.key_max is not None
            spans[part.end] = RowSpan(
                key_min=facts.key_min, key_max=facts.key_max, version_min=facts.version_min
            )
    change = AppendRows(
        table=table.id,
        call=call or call_id(clock),
        content=content_digest(arrow),
        message=message_of(arrow.combine_chunks().to_batches()[0]),
        rows=arrow.num_rows,
        size_bytes=arrow.nbytes,
        schema_id=table.schema_id,
        schema=schema_bytes(arrow.schema),
        floor=min((span.version_min or b"" for span in spans.values()), default=b""),
        spans=spans,
        flush=call_id(clock),
        segment_bytes_max=segment_bytes_max,
        table_bytes_max=1 << 30,
        generation=generation,
    )
    return await store.apply(change)


async def stored_paths(store: TabletStore, table: Table) -> dict[str, int]:
    """Return path → rows of the files of a table."""
    ids: Sequence[TabletId] = await store.tablet_ids(table.id)
    return {
        path: file.rows
        for tablet in await store.tablets(ids)
        if tablet is not None
        for path, file in tablet.files.items()
    }
