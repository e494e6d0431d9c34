"""Requests of users: store one, tell how far it is, cancel it, or show what it would take."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Query, Response

from common.errors import ConflictError, PluginError, RefusedError, RequestError, UnavailableError
from common.metadata.changes import (
    CancelRange,
    MoveRequest,
    Outcome,
    SubmitRequest,
)
from common.metadata.keys import HISTORY_MAX
from common.metadata.ports import HistoryEntry
from common.metadata.store_values import CallKind
from common.model.file import DataFile
from common.model.keys import PLUS_INFINITY
from common.model.outcome import AttemptEnd
from common.model.request import KeyRange, Request, RequestState, covers, key_range_of
from common.model.table import Table
from common.model.tablet import Bounds, Tablet
from common.parquet.file_inspection import open_table_file
from common.parquet.location import open_location
from common.parquet.row_batches import OpenFile, row_batches
from common.readers.pool import in_reader
from common.rows.conform import conform
from common.rows.key_encoding import encode_keys
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from common.spi.selector import SelectorParameters
from common.wire import AttemptProgress
from coordinator.core.requests.next_step import matching_files, meets_tablet, shown_files
from coordinator.core.requests.progress import tablet_progress
from neve.api import requests as api
from neve.gateway.call_ids import (
    checked_call,
    known_call,
    require_same_call,
)
from neve.gateway.ingest.routes import Call
from neve.gateway.problems import UnknownRequestError, require_applied
from neve.gateway.request_validation import checked_request, key_range, load_request_selector
from neve.gateway.request_views import (
    TABLETS_MAX,
    ProgressTotals,
    request_view,
    retention_notes,
    transform_text,
)
from neve.gateway.scan import key_before, pin_listed_files
from neve.gateway.services import LONG_STEP_MAX_S, Services, bounded_count, check_writable
from neve.gateway.views import key_text, key_types

# -------------------------------------------------------------------------- What its jobs have done


async def request_result(services: Services, request: Request) -> api.Result:
    """Return what a request that has ended has done."""
    entries = await services.store.history(request.table, HISTORY_MAX)
    return sum_commits(request, entries)


def sum_commits(request: Request, entries: Sequence[HistoryEntry]) -> api.Result:
    """Return the sums over the commits of a request.

    Args:
        request: Which.
        entries: The history of its table, newest first.
    """
    own = [
        each
        for each in entries
        if each.request == request.id and each.end == AttemptEnd.COMMITTED.value
    ]
    read = {path for each in own for path in each.inputs}
    written = {path for each in own for path in each.outputs}
    between_bytes = between_rows = 0
    for each in own:
        again = sum(path in read for path in each.outputs)
        if again:
            # A job whose outputs were merged in part only counts by its share.
            between_bytes += each.bytes_out * again // len(each.outputs)
            between_rows += each.rows_out * again // len(each.outputs)
    return api.Result(
        jobs=len(own),
        files_before=len(read - written),
        files_after=len(written - read),
        bytes_before=sum(each.bytes_in for each in own) - between_bytes,
        bytes_after=sum(each.bytes_out for each in own) - between_bytes,
        rows_before=sum(each.rows_in for each in own) - between_rows,
        rows_after=sum(each.rows_out for each in own) - between_rows,
        superseded=sum(each.superseded for each in own),
        expired=sum(each.expired_dropped for each in own),
        changed=sum(each.rows_changed for each in own),
        # Earlier releases have counted those of append-only tables alone.
        deleted=sum(max(each.rows_deleted, each.transform_dropped) for each in own),
        tombstones_dropped=sum(each.tombstones_dropped for each in own),
        complete=len(entries) < HISTORY_MAX or entries[-1].ended_s < request.submitted_at_s,
    )


# ---------------------------------------------------------------------------- Store, follow, cancel


BY_USER = "cancelled by a user"


async def submit_request(
    services: Services, table: Table, body: api.NewRequest, call: str | None
) -> Request:
    """Store a request and return it; the same call again returns the same.

    Raises:
        RequestError: Something in it is wrong.
        RefusedError: The table does not take it now, or the call was made with other content.
    """
    now_s = await services.store.now_s()
    call = checked_call(services, call)
    wanted = checked_request(table, body, call, now_s)
    known = await services.store.request(table.id, wanted.id)
    if known is None:
        try:
            require_applied(await _submit_first(services, table, wanted, call))
            return await stored_request(services, table, wanted.id)
        except (RequestError, RefusedError, ConflictError):
            # Perhaps for the sake of the same call, which was quicker.
            known = await services.store.request(table.id, wanted.id)
            if known is None:
                raise
    require_applied(await services.store.apply(_repeated_change(wanted, known, call)))
    return await stored_request(services, table, wanted.id)


async def _submit_first(services: Services, table: Table, wanted: Request, call: str) -> Outcome:
    mark = await known_call(services, table, call)
    if mark is not None:
        require_same_call(call, mark, CallKind.COMPACT, wanted.id)
    generation = await check_writable(services, table)
    change = SubmitRequest(request=wanted, call=call, generation=generation)
    return await services.store.apply(change)


def _repeated_change(wanted: Request, known: Request, call: str) -> SubmitRequest:
    """Return the change of a repeated call: the deadline is the first one's, not a later one."""
    if None not in (known.deadline_s, wanted.deadline_s):
        wanted = replace(wanted, deadline_s=known.deadline_s)
    return SubmitRequest(request=wanted, call=call)


async def stored_request(services: Services, table: Table, request: str) -> Request:
    """Return a request by its id.

    Raises:
        UnknownRequestError: The table has none of this id (any more).
    """
    found = await services.store.request(table.id, request)
    if found is None:
        raise UnknownRequestError(
            f"table {table.name!r} has no request {request[:64]!r} (any more): "
            "`neve request list` tells which there are"
        )
    return found


async def cancel_request(
    services: Services, table: Table, request: Request, body: api.Cancel
) -> Request:
    """Cancel a request, or its part in a range, and return it.

    Raises:
        RequestError: The range or tablet holds no whole tablet of the request.
        RefusedError: The request has ended.
    """
    if body.start is None and body.end is None and body.tablet is None:
        if request.state is not RequestState.CANCELLING:
            move = MoveRequest(
                table=table.id, request=request.id, state=RequestState.CANCELLING, cause=BY_USER
            )
            require_applied(await services.store.apply(move))
    else:
        part = await _cancelled_range(services, table, request, body)
        change = CancelRange(table=table.id, request=request.id, range=part)
        require_applied(await services.store.apply(change))
    return await stored_request(services, table, request.id)


async def request_progress(
    services: Services, table: Table, request: Request, count: int
) -> api.Request:
    """Return how far a request is.

    Args:
        services: Ports.
        table: Its table.
        request: As it was read.
        count: Of how many tablets to tell.
    """
    if request.state.ended:
        result = await request_result(services, request)
        return replace(request_view(table, request), result=result)
    others = await services.store.open_requests(table.id)
    summed = ProgressTotals(
        table, request, await _attempt_progress(services), await services.store.now_s()
    )
    async for page in request_tablets(services, table, request):
        for tablet in page:
            summed.add(tablet, tablet_progress(request, tablet, others))
    return request_view(table, request, summed.progress, summed.tablets(count))


async def request_tablets(
    services: Services, table: Table, request: Request
) -> AsyncIterator[Sequence[Tablet]]:
    """Yield the tablets that a request concerns, page by page, ascending."""
    start = request.range.start
    async for page in services.pages(table, None if start is None else key_before(start)):
        yield [tablet for tablet in page if meets_tablet(request, tablet.bounds)]
        if page and not request.range.meets(page[-1].id.end, PLUS_INFINITY):
            return


async def _attempt_progress(services: Services) -> Mapping[str, AttemptProgress]:
    """Return what compactors tell of attempts; nothing while the coordinator is away."""
    try:
        running = await services.coordinator.running()
    except UnavailableError:
        return {}
    return {each.attempt: each.progress for each in running if each.progress is not None}


async def _cancelled_range(
    services: Services, table: Table, request: Request, body: api.Cancel
) -> KeyRange:
    """Return the part to cancel, from the first key of a tablet to the last of one."""
    if body.tablet is None:
        inside = await _tablets_wholly_within(services, table, request, body)
    elif body.start is None and body.end is None:
        found = await services.store.tablet(await services.tablet(table, body.tablet))
        inside = [] if found is None or not meets_tablet(request, found.bounds) else [found.bounds]
        if not inside:
            raise RequestError(f"tablet {body.tablet!r} has no key of request {request.id}")
    else:
        raise RequestError("tablet is given, and start or end, too: wanted one way to say it")
    return key_range_of(inside[0], inside[-1])


async def _tablets_wholly_within(
    services: Services, table: Table, request: Request, body: api.Cancel
) -> list[Bounds]:
    part = key_range(table, body.start, body.end)
    inside = [
        tablet.bounds
        async for page in request_tablets(services, table, replace(request, range=part))
        for tablet in page
        if covers(part, tablet.bounds)
    ]
    if not inside:
        raise RequestError(
            f"no tablet of {table.name!r} lies wholly from {body.start!r} to {body.end!r}: "
            "only whole tablets are cancelled; `neve table tablets` shows where they end"
        )
    return inside


# ------------------------------------------------------------------------------- What it would take


LISTED_MAX = 1000
KEYS_READ_MAX = 50_000_000
"""So many rows' keys are read at most by one dry run; then rows are not counted."""


async def dry_run(services: Services, table: Table, request: Request) -> api.DryRun:
    """Return what a request would take.

    Args:
        services: Ports.
        table: Its table.
        request: Checked, but not stored.
    """
    now_s = await services.store.now_s()
    counter, long = _SelectionCounter(table, request, now_s), services.rows.within(LONG_STEP_MAX_S)
    taken: list[api.DryTablet] = []
    async with pin_listed_files(services, table) as pin:
        async for page in request_tablets(services, table, request):
            for tablet in page:
                try:
                    found = await long.run(table.location, counter.of, tablet)
                finally:
                    pin.check()
                taken += [found] if found.files else []
    counted = [each.rows_in_range for each in taken if each.rows_in_range is not None]
    return api.DryRun(
        table=table.name,
        tablets=len(taken),
        files=sum(each.files for each in taken),
        size_bytes=sum(each.size_bytes for each in taken),
        rows=sum(each.rows for each in taken),
        rows_in_range=sum(counted) if len(counted) == len(taken) else None,
        transform=transform_text(request.transform),
        notes=retention_notes(table, request, now_s),
        per_tablet=tuple(taken[:LISTED_MAX]),
    )


@dataclass(slots=True)
class _SelectionCounter:
    """Asks the selector, and counts what it takes; used by one thread at a time."""

    table: Table
    request: Request
    now_s: float
    keys_left: int = KEYS_READ_MAX

    def of(self, tablet: Tablet) -> api.DryTablet:
        """Return what the request would take in a tablet."""
        files = self._chosen(tablet)
        bounds = tablet.bounds
        types = key_types(self.table)
        return api.DryTablet(
            tablet=tablet.id.text,
            files=len(files),
            size_bytes=sum(file.size_bytes for file in files),
            rows=sum(file.rows for file in files),
            rows_in_range=self._rows_in_range(files),
            end=None if bounds.partition else key_text(bounds.end, types),
            partition=bounds.partition,
            held=bool(tablet.running) or tablet.selection is not None,
        )

    def _chosen(self, tablet: Tablet) -> list[DataFile]:
        spec = self.request.selector
        shown = matching_files(self.request, self.table, tablet, shown_files(self.request, tablet))
        if not shown:
            return []
        parameters = SelectorParameters(
            tablet=tablet.id,
            table=self.table,
            files=shown,
            options=spec.options,
            now_s=self.now_s,
        )
        try:
            chosen = frozenset(load_request_selector(spec).select(parameters).files)
        except Exception as error:
            message = f"selector {spec.name!r} failed: {type(error).__name__}: {error}"
            raise PluginError(message) from error
        return [file for file in shown if file.path in chosen]

    def _rows_in_range(self, files: Sequence[DataFile]) -> int | None:
        rows = 0
        for file in files:
            # A partition is in the range as a whole, or not at all.
            if self.table.partition_by or _lies_within(file, self.request.range):
                rows += file.rows
                continue
            self.keys_left -= file.rows
            if self.keys_left < 0:
                return None
            rows += _count_rows_of_file(self.table, file, self.request.range)
        return rows


def _lies_within(file: DataFile, keys: KeyRange) -> bool:
    if keys == KeyRange():
        return True
    if file.key_min is None or file.key_max is None:
        return file.rows == 0
    return keys.holds(file.key_min) and keys.holds(file.key_max)


@in_reader("file {file.path}")
def _count_rows_of_file(table: Table, file: DataFile, keys: KeyRange) -> int:
    """Return how many rows of a file have a key in a range, by reading its keys."""
    rules = RowRules.of(table)
    full = arrow_schema(rules.schema)
    schema = pa.schema([full.field(name) for name in rules.key])
    rows = 0
    location = open_location(table.location)
    with open_table_file(location, file.path) as source:
        known = [name for name in schema.names if name in source.schema_arrow.names]
        for batch in row_batches(OpenFile(location, file.path, source), known):
            part = conform(batch, schema, f"file {file.path}")
            rows += _count_keys(encode_keys(part, rules.key, rules.key_types), keys)
    return rows


def _count_keys(encoded: pa.LargeBinaryArray, keys: KeyRange) -> int:
    inside = pc.is_valid(encoded)
    if keys.start is not None:
        start = pa.scalar(keys.start, pa.large_binary())
        inside = pc.and_(inside, pc.greater_equal(encoded, start))
    if keys.until is not None:
        until = pa.scalar(keys.until, pa.large_binary())
        inside = pc.and_(inside, pc.less(encoded, until))
    return int(pc.sum(inside).as_py() or 0)


# ------------------------------------------------------------------------------------------- Routes


LIST_MAX = 1000


class RequestRoutes:
    """The routes under `/v1/tables/{table}/compactions`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1/tables/{table}/compactions", tags=["requests"])
        router.post("", status_code=202)(self.submit)
        router.get("")(self.requests)
        router.get("/{request}")(self.follow)
        router.post("/{request}/cancel", status_code=202)(self.cancel)
        return router

    async def submit(
        self, table: str, body: api.NewRequest, response: Response, call: Call = None
    ) -> api.Request | api.DryRun:
        """Ask for a compaction of a range of keys; with `dry_run` only tell what it would take.

        A dry run tells files, bytes and rows in the range, not how many rows a transform
        would touch.
        """
        services = self._services
        found = await services.table(table)
        if body.dry_run:
            now_s = await services.store.now_s()
            response.status_code = 200
            return await dry_run(services, found, checked_request(found, body, "", now_s))
        return request_view(found, await submit_request(services, found, body, call))

    async def requests(
        self,
        table: str,
        count: Annotated[int, Query(description="At most so many.")] = 100,
    ) -> dict[str, list[api.Request]]:
        """Return the compactions that were asked for, newest first."""
        services = self._services
        found = await services.table(table)
        listed = await services.store.requests(found.id, bounded_count(count, LIST_MAX, "count"))
        return {"requests": [request_view(found, each) for each in listed]}

    async def follow(
        self,
        table: str,
        request: str,
        tablets: Annotated[
            int, Query(description="Tell of so many tablets, those first that have not ended.")
        ] = 100,
    ) -> api.Request:
        """Return how far a request is, over all and per tablet."""
        services = self._services
        found = await services.table(table)
        count = bounded_count(tablets + 1, TABLETS_MAX + 1, "tablets") - 1
        return await request_progress(
            services, found, await stored_request(services, found, request), count
        )

    async def cancel(self, table: str, request: str, body: api.Cancel) -> api.Request:
        """Cancel a request, or its part in some tablets; what is committed stays."""
        services = self._services
        found = await services.table(table)
        known = await stored_request(services, found, request)
        return request_view(found, await cancel_request(services, found, known, body))
