"""Routes about tables: create, list, describe, change, pause, drop, tablets."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from common.errors import BrokenValueError, RefusedError
from common.metadata.changes import ChangeTable, Refused
from common.metadata.store_values import UnreadableTablet
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import Tablet, TabletId
from common.rows.schema import changed_schema
from neve import api
from neve.gateway.create import check_settings, create_table
from neve.gateway.dropping import drop_table
from neve.gateway.problems import applied
from neve.gateway.services import PAGE_TABLETS, Services, bounded, parsed_tablet
from neve.gateway.table_settings import changed_settings
from neve.gateway.views import Totals, key_types, table_view, tablet_view

TRIES_MAX = 5
ROWS_COUNTED_TABLETS_MAX = 2000
"""Rows are not in a tablet's record; above so many tablets they are not counted."""


class TableRoutes:
    """The routes under `/v1/tables` that concern a table as a whole."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1/tables", tags=["tables"])
        router.get("")(self.list_tables)
        router.post("", status_code=201)(self.create)
        router.get("/{table}")(self.describe)
        router.patch("/{table}")(self.change)
        router.delete("/{table}", status_code=202)(self.drop)
        router.post("/{table}/pause")(self.pause)
        router.post("/{table}/resume")(self.resume)
        router.get("/{table}/tablets")(self.tablets)
        return router

    async def list_tables(self) -> dict[str, list[api.Table]]:
        """Return every table, by name."""
        listed = await self._services.store.listed_tables()
        return {"tables": [table_view(table) for table in listed.tables]}

    async def create(self, body: api.NewTable) -> api.Table:
        """Create a table: its location is claimed for this service, and holds all its files."""
        made = await create_table(self._services, body)
        return table_view(made, without_effect=self._services.unread_settings)

    async def describe(self, table: str) -> api.Table:
        """Return a table with its totals."""
        found = await self._services.table(table)
        return table_view(found, await self._totals(found), self._services.unread_settings)

    async def change(self, table: str, body: api.TableChange) -> api.Table:
        """Change settings and schema. Refused as a whole if anything is not allowed."""
        services = self._services
        found = await services.table(table)

        def wanted(present: TableSettings) -> TableSettings:
            return changed_settings(present, body.settings, services=services.settings.services)

        added = [Column(each.name, each.type, each.nullable) for each in body.add_columns]
        wider = [Column(each.name, each.type) for each in body.widen_columns]
        for _ in range(TRIES_MAX):
            version = body.settings_version or found.settings_version
            settings = wanted(found.settings)
            newer = changed_schema(found, added, wider)
            check_settings(replace(newer, settings=settings))
            change = ChangeTable(
                table=found.id, settings_version=version, settings=settings, schema=newer.schema
            )
            outcome = await services.store.apply(change)
            again = await services.table(table)
            moved = again.settings_version != found.settings_version
            if isinstance(outcome, Refused) and moved and body.settings_version is None:
                found = again
                continue
            applied(outcome)
            return table_view(again, without_effect=services.unread_settings)
        raise RefusedError(f"table {table!r}: its settings keep changing; try again")

    async def drop(
        self,
        table: str,
        *,
        delete_files: Annotated[bool, Query(description="Also delete its files.")] = False,
    ) -> api.Dropped:
        """Drop a table. Files of users stay unless `delete_files` is set.

        Its name is free at once, or when the collector has deleted what has to go: the answer
        says when. A table that waits for that is not dropped a second time.
        """
        found = await self._services.table(table)
        return await drop_table(self._services, found, delete_files=delete_files)

    async def pause(self, table: str) -> api.Table:
        """Start no new job on a table; running ones go on."""
        return await self._with_state(table, TableState.PAUSED)

    async def resume(self, table: str) -> api.Table:
        """End a pause."""
        return await self._with_state(table, TableState.LIVE)

    async def tablets(
        self,
        table: str,
        after: Annotated[str | None, Query(description="Only tablets behind this one.")] = None,
        count: Annotated[int, Query(description="At most so many.")] = PAGE_TABLETS,
    ) -> api.TabletPage:
        """Return tablets, ascending by end; `next` is the `after` of the following page."""
        services = self._services
        found = await services.table(table)
        begin = None if after is None else parsed_tablet(found, after).end
        count = bounded(count, PAGE_TABLETS, "count")
        ids = await services.store.tablet_ids(found.id, begin, count)
        types = key_types(found)
        read = await services.store.readable(ids)
        return api.TabletPage(
            tablets=tuple(tablet_view(each, types) for each in read if isinstance(each, Tablet)),
            unreadable={
                each.id.text: each.cause for each in read if isinstance(each, UnreadableTablet)
            },
            next=ids[-1].text if len(ids) == count else None,
        )

    async def _with_state(self, table: str, state: TableState) -> api.Table:
        found = await self._services.table(table)
        if found.state is not state:
            change = ChangeTable(
                table=found.id, settings_version=found.settings_version, state=state
            )
            applied(await self._services.store.apply(change))
        return table_view(await self._services.table(table))

    async def _totals(self, table: Table) -> Totals:
        """Sum up a table: by its records, and by its files while they are few."""
        store, totals, after = self._services.store, Totals(rows=0), None
        while ids := await store.tablet_ids(table.id, after):
            after = ids[-1].end
            try:
                totals = await self._with_page(totals, ids)
            except BrokenValueError:
                readable, unreadable = await self._sorted_out(ids)
                totals = await self._with_page(totals.without(unreadable), readable)
        return totals

    async def _with_page(self, totals: Totals, ids: Sequence[TabletId]) -> Totals:
        """Return totals with more tablets.

        Raises:
            BrokenValueError: One of them cannot be decoded.
        """
        store = self._services.store
        totals = totals.plus([each for each in await store.records(ids) if each is not None])
        if totals.tablets > ROWS_COUNTED_TABLETS_MAX:
            return totals.without_rows()
        files = [file for each in await store.files(ids) for file in each.values()]
        return totals.plus_rows(sum(file.rows for file in files))

    async def _sorted_out(self, ids: Sequence[TabletId]) -> tuple[list[TabletId], dict[str, str]]:
        """Return the tablets that can be read, and what keeps the others from that."""
        read = await self._services.store.readable(ids)
        unreadable = {
            each.id.text: each.cause for each in read if isinstance(each, UnreadableTablet)
        }
        return [each for each in ids if each.text not in unreadable], unreadable
