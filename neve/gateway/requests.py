"""Compaction requests: submit, list, follow, cancel, dry run.

(1) `request_checks` checks the user's input. (2) The request is stored once per call id. (3) The
coordinator executes it. (4) Its progress and its result are summed up in each answer.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated

from fastapi import Query, Response

from common.errors import ConflictError, PluginError, RefusedError, RequestError, UnavailableError
from common.metadata.changes import CancelRange, MoveRequest, Outcome, SubmitRequest
from common.metadata.keys import HISTORY_MAX
from common.metadata.store_values import CallKind, HistoryEntry
from common.model.fields import as_plain
from common.model.file import DataFile
from common.model.key_values import KeyType
from common.model.keys import PLUS_INFINITY, format_key, key_before
from common.model.outcome import AttemptEnd
from common.model.request import (
    KeyRange,
    OutputSpec,
    Request,
    RequestProgressInTablet,
    RequestState,
    TabletProgress,
    TransformKind,
    TransformSpec,
    covers,
    key_range_of,
)
from common.model.table import Table
from common.model.tablet import Bounds, Tablet
from common.parquet.file_inspection import count_rows_of_file, read_summaries
from common.parquet.location import open_location
from common.plugins import summary_names
from common.spi.planner import SelectorParameters
from common.wire import AttemptProgress
from coordinator.core.requests import matching_files, meets_tablet, shown_files, tablet_progress
from coordinator.core.scans import WATERMARKS_PER_RETENTION
from neve import api
from neve.gateway.access.callers import COMPACT, READ, Role, current_call, route
from neve.gateway.key_views import key_range, key_text, key_types, range_types
from neve.gateway.problems import UnknownRequestError, require_applied
from neve.gateway.request_checks import checked_request, load_request_selector, request_bytes
from neve.gateway.rows.calls import Call, checked_call, known_call, require_same_call
from neve.gateway.rows.scan import pin_listed_files
from neve.gateway.services import (
    LONG_STEP_MAX_S,
    Services,
    bounded_count,
    check_writable,
    flush_rows,
    whole_id,
)

# -------------------------------------------------------------------------------------------- Views
# Wire models of requests, and the sums over their tablets.


TABLETS_MAX = 10_000
DROPPING = frozenset({"expired", "deletes"})
"""Selectors that users choose in order to drop dead rows."""
_ENDED = frozenset({TabletProgress.DONE, TabletProgress.CANCELLED})


class ProgressTotals:
    """Sums up the progress of a request tablet by tablet; keeps a bounded number of tablets."""

    def __init__(
        self,
        table: Table,
        request: Request,
        attempts: Mapping[str, AttemptProgress],
        now_s: float,
    ) -> None:
        self._types = key_types(table)
        self._request = request
        self._attempts = attempts
        self._now_s = now_s
        self._states: Counter[TabletProgress] = Counter()
        self._open: list[api.RequestTablet] = []
        self._ended: list[api.RequestTablet] = []
        self._files_left = self._running = self._bytes_left = self._bytes_done = 0
        self._bytes_per_s = 0.0

    def add(self, tablet: Tablet, progress: RequestProgressInTablet) -> None:
        """Count a tablet.

        Args:
            tablet: The tablet as it was read.
            progress: Progress of the request in the tablet.
        """
        self._states[progress.state] += 1
        self._running += len(progress.running)
        self._files_left += progress.files - progress.results
        self._bytes_left += progress.bytes_left
        outputs = (file for file in tablet.files.values() if file.request == self._request.id)
        self._bytes_done += sum(file.size_bytes for file in outputs)
        for attempt in filter(None, map(self._attempts.get, progress.running)):
            read = min(attempt.bytes_done, progress.bytes_left)
            self._bytes_left -= read
            self._bytes_done += read
            self._bytes_per_s += attempt.bytes_done / max(self._now_s - attempt.since_s, 1.0)
        listed = self._ended if progress.state in _ENDED else self._open
        if len(listed) < TABLETS_MAX:
            listed.append(self._view(tablet, progress))

    def tablets(self, count: int) -> tuple[api.RequestTablet, ...]:
        """Return at most `count` tablets; those in which the request has not ended come first."""
        return tuple([*self._open, *self._ended][:count])

    @property
    def progress(self) -> api.Progress:
        """The sums over all tablets."""
        whole = self._bytes_done + self._bytes_left
        tablets = self._states.total()
        ended = sum(self._states[state] for state in _ENDED)
        by_tablet = ended / tablets if tablets else 0.0
        return api.Progress(
            tablets=tablets,
            **{state.value: self._states[state] for state in TabletProgress},
            files_left=self._files_left,
            running=self._running,
            bytes_done=self._bytes_done,
            bytes_left=max(self._bytes_left, 0),
            fraction=self._bytes_done / whole if whole and self._bytes_left > 0 else by_tablet,
            eta_s=self._eta_s(),
        )

    def _eta_s(self) -> float | None:
        """Return the estimated seconds left, from the rate of running attempts or the average."""
        if self._bytes_per_s:
            return max(self._bytes_left, 0) / self._bytes_per_s
        elapsed_s = self._now_s - self._request.submitted_at_s
        if self._bytes_done and elapsed_s > 0:
            return max(self._bytes_left, 0) * elapsed_s / self._bytes_done
        return None

    def _view(self, tablet: Tablet, progress: RequestProgressInTablet) -> api.RequestTablet:
        bounds = tablet.bounds
        return api.RequestTablet(
            tablet=tablet.id.text,
            state=progress.state.value,
            reason=progress.reason,
            end=None if bounds.partition else key_text(bounds.end, self._types),
            partition=bounds.partition,
            files_left=progress.files - progress.results,
            bytes_left=progress.bytes_left,
            running=len(progress.running),
        )


def request_view(
    table: Table,
    request: Request,
    progress: api.Progress | None = None,
    tablets: tuple[api.RequestTablet, ...] = (),
) -> api.Request:
    """Return the wire model of a request.

    Args:
        table: Table of the request.
        request: The request, as stored.
        progress: Progress to include, if any.
        tablets: Tablets to include.
    """
    types = range_types(table)
    selector = request.selector
    return api.Request(
        id=request.id,
        table=table.name,
        state=request.state.value,
        submitted_at_s=request.submitted_at_s,
        cause=request.cause,
        keys=keys_view(request.range, types),
        selector=api.Plugin(name=selector.name, options=dict(selector.options)),
        transform=transform_text(request.transform),
        output=None if request.output == OutputSpec() else api.Output(**as_plain(request.output)),
        hints=dict(request.hints),
        boost=request.boost,
        deadline_at_s=request.deadline_s,
        automatic=request.automatic,
        ended_at_s=request.ended_at_s,
        cancelled=tuple(
            keys_view(cancelled_range, types) or api.Keys()
            for cancelled_range in request.cancelled_ranges
        ),
        progress=progress or _progress_of_ended(request),
        tablets=tablets,
        notes=retention_notes(table, request, request.ended_at_s or request.submitted_at_s),
    )


def retention_notes(table: Table, request: Request, now_s: float) -> tuple[str, ...]:
    """Return notes on dead rows that the table's tombstone retention keeps after a request.

    Args:
        table: The table, as it is now.
        request: A request of the table.
        now_s: End of the request, or the current time.
    """
    settings, retention_s = table.settings, table.settings.tombstone_retention_s
    deletes = request.transform.kind is TransformKind.DELETE_WHERE
    drops = deletes or request.selector.name in DROPPING or settings.ttl_s is not None
    if not table.key or not drops or not retention_s:
        return ()
    until = datetime.fromtimestamp(now_s + retention_s * (1 + 1 / WATERMARKS_PER_RETENTION), UTC)
    return (
        f"deleted and expired rows stay in the files, hidden from readers, while the table has "
        f"known their version for less than tombstone_retention_s = {retention_s:g} s; of rows "
        f"written by now the last can be dropped by a compaction after {until:%Y-%m-%d %H:%M} UTC",
    )


def transform_text(transform: TransformSpec) -> str:
    """Return a transform in user notation."""
    match transform.kind:
        case TransformKind.NONE:
            return ""
        case TransformKind.DELETE_WHERE:
            return f"delete where {transform.text}"
        case TransformKind.SET:
            return f"set {transform.text}"
        case TransformKind.PLUGIN:
            options = ", ".join(f"{name}={value}" for name, value in transform.options.items())
            return transform.name + (f" ({options})" if options else "")


def keys_view(keys: KeyRange, types: Sequence[KeyType]) -> api.Keys | None:
    """Return a range as texts; None: all keys.

    The bytes of a bound may be a key (or prefix) followed by one more byte: `00` stands for "just
    after this key", `ff` for "after all keys that begin with it".
    """
    if keys == KeyRange():
        return None
    start, behind_start = _bound(keys.start, types)
    end, behind_end = _bound(keys.until, types)
    return api.Keys(
        start=start,
        end=end,
        start_included=not behind_start,
        end_included=end is None or behind_end,
    )


def _bound(key: bytes | None, types: Sequence[KeyType]) -> tuple[str | None, bool]:
    """Return the text of a bound, and whether the bound lies after the key of the text."""
    if key is None:
        return None, False
    try:
        return format_key(key, types), False
    except ValueError:
        return key_text(key[:-1], types), True


def _progress_of_ended(request: Request) -> api.Progress | None:
    if request.state not in (RequestState.DONE, RequestState.DONE_IN_PART):
        return None
    return api.Progress(fraction=1.0)


# ---------------------------------------------------------------------------------------- Lifecycle


async def request_result(services: Services, request: Request) -> api.Result:
    """Return the result of a request that has ended."""
    entries = await services.store.history(request.table, HISTORY_MAX)
    return sum_commits(request, entries)


def sum_commits(request: Request, entries: Sequence[HistoryEntry]) -> api.Result:
    """Return the sums over the commits of a request.

    Args:
        request: The request.
        entries: History of its table, newest first.
    """
    own = [
        entry
        for entry in entries
        if entry.request == request.id and entry.end == AttemptEnd.COMMITTED.value
    ]
    read = {path for entry in own for path in entry.inputs}
    outputs = {path for entry in own for path in entry.outputs}
    between_bytes = between_rows = 0
    for entry in own:
        again = sum(path in read for path in entry.outputs)
        if again:
            # If only some outputs of a job were merged again, its bytes count proportionally.
            between_bytes += entry.bytes_out * again // len(entry.outputs)
            between_rows += entry.rows_out * again // len(entry.outputs)
    return api.Result(
        jobs=len(own),
        files_before=len(read - outputs),
        files_after=len(outputs - read),
        bytes_before=sum(entry.bytes_in for entry in own) - between_bytes,
        bytes_after=sum(entry.bytes_out for entry in own) - between_bytes,
        rows_before=sum(entry.rows_in for entry in own) - between_rows,
        rows_after=sum(entry.rows_out for entry in own) - between_rows,
        superseded=sum(entry.superseded for entry in own),
        expired=sum(entry.expired_dropped for entry in own),
        changed=sum(entry.rows_changed for entry in own),
        # Earlier releases counted deleted rows only for append-only tables.
        deleted=sum(max(entry.rows_deleted, entry.transform_dropped) for entry in own),
        tombstones_dropped=sum(entry.tombstones_dropped for entry in own),
        complete=len(entries) < HISTORY_MAX or entries[-1].ended_s < request.submitted_at_s,
    )


BY_USER = "cancelled by a user"
LISTED_MAX = 1000
"""Newest requests whose ids may be shortened."""


async def submit_request(
    services: Services, table: Table, body: api.NewRequest, call: str | None
) -> Request:
    """Store a request and return it; a repeated call returns the same request.

    Raises:
        RequestError: The request is invalid.
        RefusedError: The table does not accept it now, or the call was made with other content.
    """
    now_s = await services.store.now_s()
    call = checked_call(services, call)
    request = checked_request(table, body, call, now_s)
    stored = await services.store.request(table.id, request.id)
    if stored is None:
        if table.lake is not None:
            await _require_mirror(services, table)
        # A request counts every row that was acknowledged before it.
        await flush_rows(services, table)
        try:
            require_applied(await _submit_within_share(services, table, request, call, now_s))
            return await stored_request(services, table, request.id)
        except (RequestError, RefusedError, ConflictError):
            # A concurrent repetition of the same call may have stored the request first.
            stored = await services.store.request(table.id, request.id)
            if stored is None:
                raise
    require_applied(await services.store.apply(_repeated_change(request, stored, call)))
    return await stored_request(services, table, request.id)


MIRROR_WAIT_MAX_S, MIRROR_LOOK_S = 20.0, 0.25


async def _require_mirror(services: Services, table: Table) -> None:
    """Wait until the files of a lake table are known: a request without files would be done.

    Raises:
        UnavailableError: The log of the table was not read within `MIRROR_WAIT_MAX_S`.
    """
    until_s = services.clock.now_s() + MIRROR_WAIT_MAX_S
    while (await services.store.mirrors([table.id]))[0].head is None:
        if services.clock.now_s() >= until_s:
            raise UnavailableError(
                f"the log of table {table.name!r} has not been read since it was attached; "
                f"`neve table describe {table.name}` says why, or try again"
            )
        await asyncio.sleep(MIRROR_LOOK_S)


async def _submit_within_share(
    services: Services, table: Table, request: Request, call: str, flushed_s: float
) -> Outcome:
    """Submit a request, which counts against the quota of its caller until it is finished.

    Raises:
        QuotaError: The caller has reached its limit of compactions.
    """
    quotas, caller = services.quotas, current_call().caller.name
    size_bytes = request_bytes(request)
    if not quotas.has_room(caller, size_bytes):
        compactions = quotas.use_of(caller).compactions
        for request_key in sorted(compactions):
            stored = await services.store.request(*request_key)
            if stored is None or stored.state.ended:
                compactions.pop(request_key, None)
    with quotas.compaction(caller, size_bytes) as use:
        outcome = await _submit_first(services, table, request, call, flushed_s)
        use.compactions[table.id, request.id] = size_bytes
    return outcome


async def _submit_first(
    services: Services, table: Table, request: Request, call: str, flushed_s: float
) -> Outcome:
    mark, _ = await known_call(services, table, call)
    if mark is not None:
        require_same_call(call, mark, CallKind.COMPACT, request.id)
    generation = await check_writable(services, table)
    change = SubmitRequest(request=request, call=call, generation=generation, flushed_s=flushed_s)
    return await services.store.apply(change)


def _repeated_change(request: Request, stored: Request, call: str) -> SubmitRequest:
    """Return the change of a repeated call, with the deadline of the first call."""
    if None not in (stored.deadline_s, request.deadline_s):
        request = replace(request, deadline_s=stored.deadline_s)
    return SubmitRequest(request=request, call=call)


async def stored_request(services: Services, table: Table, request: str) -> Request:
    """Return a request by its id, or by a unique prefix of one of the newest or open requests.

    Raises:
        RequestError: The ids of several requests begin with the text.
        UnknownRequestError: The table has no, or no longer a, request with this id.
    """
    store = services.store
    stored = await store.request(table.id, request)
    if stored is None:
        listed = (*await store.requests(table.id, LISTED_MAX), *await store.open_requests(table.id))
        by_id = {entry.id: entry for entry in listed}
        stored = by_id.get(whole_id(request, by_id, "request") or "")
    if stored is None:
        raise UnknownRequestError(
            f"table {table.name!r} has no request {request[:64]!r} (any more): "
            "`neve request list` lists them"
        )
    return stored


async def cancel_request(
    services: Services, table: Table, request: Request, body: api.Cancel
) -> Request:
    """Cancel a request, or its part in a range, and return it.

    Raises:
        RequestError: The range contains no whole tablet of the request.
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
    """Return a request with its progress or, once it has ended, its result.

    Args:
        services: Ports and settings.
        table: Table of the request.
        request: The request as it was read.
        count: Maximum number of tablets to list.
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
    """Yield the tablets in the range of a request, page by page, ascending."""
    start = request.range.start
    async for page in services.pages(table, None if start is None else key_before(start)):
        yield [tablet for tablet in page if meets_tablet(request, tablet.bounds)]
        if page and not request.range.meets(page[-1].id.end, PLUS_INFINITY):
            return


async def _attempt_progress(services: Services) -> Mapping[str, AttemptProgress]:
    """Return the reported progress of running attempts; empty if the coordinator is down."""
    try:
        running = await services.coordinator.running()
    except UnavailableError:
        return {}
    return {
        attempt.attempt: attempt.progress for attempt in running if attempt.progress is not None
    }


async def _cancelled_range(
    services: Services, table: Table, request: Request, body: api.Cancel
) -> KeyRange:
    """Return the range to cancel, extended to whole tablets."""
    if body.tablet is None:
        inside = await _tablets_wholly_within(services, table, request, body)
    elif body.start is None and body.end is None:
        stored_tablet = await services.store.tablet(
            await services.tablet(table, body.tablet, whole=True)
        )
        inside = (
            []
            if stored_tablet is None or not meets_tablet(request, stored_tablet.bounds)
            else [stored_tablet.bounds]
        )
        if not inside:
            raise RequestError(f"tablet {body.tablet!r} has no key of request {request.id}")
    else:
        raise RequestError("give either tablet, or start and end, not both")
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


# ------------------------------------------------------------------------------------------ Dry run
# Dry run of a request: the files that it would select.


TABLETS_LISTED_MAX = 1000


KEYS_READ_MAX = 50_000_000
"""Limit of keys that one dry run reads; beyond it, rows in the range are not counted."""


async def dry_run(services: Services, table: Table, request: Request) -> api.DryRun:
    """Return the files and rows that a request would select.

    Args:
        services: Ports and settings.
        table: Table of the request.
        request: A valid request that is not stored.
    """
    now_s = await services.store.now_s()
    counter, long = _SelectionCounter(table, request, now_s), services.rows.within(LONG_STEP_MAX_S)
    per_tablet: list[api.DryTablet] = []
    async with pin_listed_files(services, table) as pin:
        async for page in request_tablets(services, table, request):
            for tablet in page:
                try:
                    counted_tablet = await long.run(table.location, counter.of, tablet)
                finally:
                    pin.check()
                per_tablet += [counted_tablet] if counted_tablet.files else []
    counted = [tablet.rows_in_range for tablet in per_tablet if tablet.rows_in_range is not None]
    return api.DryRun(
        table=table.name,
        tablets=len(per_tablet),
        files=sum(tablet.files for tablet in per_tablet),
        size_bytes=sum(tablet.size_bytes for tablet in per_tablet),
        rows=sum(tablet.rows for tablet in per_tablet),
        rows_in_range=sum(counted) if len(counted) == len(per_tablet) else None,
        transform=transform_text(request.transform),
        notes=retention_notes(table, request, now_s),
        per_tablet=tuple(per_tablet[:TABLETS_LISTED_MAX]),
    )


@dataclass(slots=True)
class _SelectionCounter:
    """Runs the selector, and counts the selected files; used by one thread at a time."""

    table: Table
    request: Request
    now_s: float
    keys_left: int = KEYS_READ_MAX

    def of(self, tablet: Tablet) -> api.DryTablet:
        """Return what the request would select in a tablet."""
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
        files = matching_files(self.request, self.table, tablet, shown_files(self.request, tablet))
        if not files:
            return []
        parameters = SelectorParameters(
            tablet=tablet.id,
            table=self.table,
            files=files,
            options=spec.options,
            now_s=self.now_s,
        )
        try:
            selector = load_request_selector(spec)
            if names := summary_names(selector, spec.options):
                location, paths = open_location(self.table.location), [f.path for f in files]
                parameters = replace(parameters, summaries=read_summaries(location, paths, names))
            chosen = frozenset(selector.select(parameters).files)
        except Exception as error:
            message = f"selector {spec.name!r} failed: {type(error).__name__}: {error}"
            raise PluginError(message) from error
        return [file for file in files if file.path in chosen]

    def _rows_in_range(self, files: Sequence[DataFile]) -> int | None:
        rows = 0
        for file in files:
            # A partition is in the range entirely, or not at all.
            if self.table.partition_by or _lies_within(file, self.request.range):
                rows += file.rows
                continue
            self.keys_left -= file.rows
            if self.keys_left < 0:
                return None
            rows += count_rows_of_file(self.table, file, self.request.range)
        return rows


def _lies_within(file: DataFile, keys: KeyRange) -> bool:
    if keys == KeyRange():
        return True
    if file.key_min is None or file.key_max is None:
        return file.rows == 0
    return keys.holds(file.key_min) and keys.holds(file.key_max)


# ------------------------------------------------------------------------------------------- Routes


LIST_MAX = 1000


class RequestRoutes:
    """The routes under `/v1/tables/{table}/compactions`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route(
        "POST /v1/tables/{table}/compactions",
        COMPACT.noted("`write` as well if it changes or deletes rows", late=True),
        status_code=202,
    )
    async def submit(
        self, table: str, body: api.NewRequest, response: Response, call: Call = None
    ) -> api.Request | api.DryRun:
        """Request a compaction of a range of keys.

        With `dry_run` the answer is only what the request would take: files, bytes and rows in
        the range. It does not say how many rows a transform would change.
        """
        services = self._services
        if any(change is not None for change in (body.delete_where, body.set, body.transform)):
            current_call().further_role = Role.WRITE
        stored_table = await services.table(table)
        if stored_table.lake is not None and current_call().further_role is not None:
            raise RefusedError(
                f"table {table!r} is a lake table: rows are changed and deleted by its own engine, "
                "such as deltalake or Spark; a compaction of it rewrites files only",
                "lake",
            )
        if body.dry_run:
            now_s = await services.store.now_s()
            response.status_code = 200
            return await dry_run(
                services, stored_table, checked_request(stored_table, body, "", now_s)
            )
        return request_view(stored_table, await submit_request(services, stored_table, body, call))

    @route("GET /v1/tables/{table}/compactions", READ)
    async def requests(
        self,
        table: str,
        count: Annotated[int, Query(description="Number of requests at most.")] = 100,
    ) -> dict[str, list[api.Request]]:
        """Return the requests of a table, newest first."""
        services = self._services
        stored_table = await services.table(table)
        listed = await services.store.requests(
            stored_table.id, bounded_count(count, LIST_MAX, "count")
        )
        return {"requests": [request_view(stored_table, request) for request in listed]}

    @route("GET /v1/tables/{table}/compactions/{request}", READ)
    async def follow(
        self,
        table: str,
        request: str,
        tablets: Annotated[
            int,
            Query(description="Number of tablets at most. Tablets that are not done come first."),
        ] = 100,
    ) -> api.Request:
        """Return the progress of a request, in total and per tablet."""
        services = self._services
        stored_table = await services.table(table)
        count = bounded_count(tablets + 1, TABLETS_MAX + 1, "tablets") - 1
        return await request_progress(
            services, stored_table, await stored_request(services, stored_table, request), count
        )

    @route("POST /v1/tables/{table}/compactions/{request}/cancel", COMPACT, status_code=202)
    async def cancel(self, table: str, request: str, body: api.Cancel) -> api.Request:
        """Cancel a request, or its part in some tablets. Committed work stays."""
        services = self._services
        stored_table = await services.table(table)
        stored = await stored_request(services, stored_table, request)
        return request_view(
            stored_table, await cancel_request(services, stored_table, stored, body)
        )
