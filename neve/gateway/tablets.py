"""Tablets: explanations, stories, live bytes, reads, quarantine and watermarks."""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Query

from common.errors import BrokenValueError, RefusedError, RequestError
from common.metadata.changes import AbandonOperation, BeginOperation, LowerWatermark
from common.metadata.changes.files import recent_adds_bound
from common.metadata.changes.split_merge import operation_tablets
from common.metadata.store_values import HistoryEntry
from common.model.job import analysis_id
from common.model.key_values import KeyType
from common.model.keys import PLUS_INFINITY, format_key, parse_key, require_short
from common.model.outcome import AttemptEnd, TabletStatistics
from common.model.table import Table
from common.model.tablet import OperationKind, Tablet, TabletId
from common.parquet.buffered import FlushRules, buffer_text
from common.rows.rules import RowRules
from coordinator.core.split_merge import WaitForTablets, has_ranges, next_change
from coordinator.split_merge import choose_split_keys
from neve import api
from neve.gateway.access.callers import ADMIN, COMPACT, READ, route
from neve.gateway.key_views import key_text, key_types, story_view
from neve.gateway.problems import ChangeRefusedError, require_applied
from neve.gateway.services import (
    LIST_MAX,
    Services,
    bounded_count,
    buffered_in,
    check_writable,
    parsed_tablet,
    whole_id,
)


async def watermark_sentences(
    services: Services, table: Table, tablets: Sequence[TabletId]
) -> Mapping[str, Sequence[str]]:
    """Return human-readable watermark notes, by the text of the tablet's end."""
    now_s, sentences = await services.store.now_s(), dict[str, Sequence[str]]()
    if table.version_column is None:
        return dict.fromkeys((tablet.text for tablet in tablets), ())
    for tablet in tablets:
        try:
            stored_tablet = await services.store.tablet(tablet)
        except BrokenValueError:
            stored_tablet = None  # The planning of the tablet reports the error.
        sentences[tablet.text] = (
            [] if stored_tablet is None else _sentences(table, stored_tablet, now_s)
        )
    return sentences


def _sentences(table: Table, tablet: Tablet, now_s: float) -> list[str]:
    sentences: list[str] = []
    if tablet.purge is not None:
        takes = "are taken all the same" if table.settings.allow_late_data else "are refused"
        sentences.append(
            f"its watermark is {_text(table, tablet.purge)}: tombstones up to there were dropped,"
            f" and rows of such versions {takes}"
        )
    lowest = recent_adds_bound(tablet.record.recent_adds, now_s)
    highest = max((file.version_max or b"" for file in tablet.files.values()), default=b"")
    if lowest is not None and highest > lowest:
        sentences.append(
            f"its watermark stays at {_text(table, lowest)} or below for now, because a recent add"
            f" has reached only this version; the highest version of a row is"
            f" {_text(table, highest)}"
        )
    return sentences


async def _buffer_sentences(services: Services, table: Table, tablet: str | None) -> list[str]:
    """Return what the buffer of a table holds, and when it is flushed; nothing without rows.

    Args:
        services: Ports and settings.
        table: The table.
        tablet: A tablet whose rows are counted, as text.
    """
    (buffer,) = await services.store.buffers([table.id])
    if not buffer.segments:
        return []
    rules = FlushRules.of(services.settings.ingest)
    text = buffer_text(buffer, await services.store.now_s(), rules)
    if tablet is None:
        return [f"the buffer of the table: {text}"]
    try:
        rows = sum((await buffered_in(services, table, tablet)).values())
    except BrokenValueError as error:
        return [f"the buffer of the table: {text}; {error}"]
    return [f"the buffer of the table: {text}; rows of this tablet among them: {rows:,}"]


async def lower_tablet_watermark(
    services: Services, table: Table, tablet: TabletId, to: str | None
) -> api.LoweredWatermark:
    """Lower a tablet's watermark, and return which deleted rows may become visible again.

    Raises:
        RequestError: The table has no versions, or `to` is not a version.
        RefusedError: The watermark is not above `to`.
    """
    if table.version_column is None:
        raise RequestError(
            f"table {table.name!r} has no versions, so its tablets have no watermark"
        )
    version = None if to is None else parse_key([to], (RowRules.of(table).version_type,))
    (stored_tablet,) = await services.store.tablets([tablet])
    before = stored_tablet.purge if stored_tablet is not None else None
    change = LowerWatermark(
        tablet=tablet, to=version, generation=await check_writable(services, table)
    )
    require_applied(await services.store.apply(change))
    was = None if before is None else _text(table, before)
    above = "" if version is None else f" above {_text(table, version)} and"
    rise = (
        "nothing has changed"
        if before == version
        else f"a row that was deleted, and whose tombstone{above} up to {was} was dropped, can be"
        " seen again if a file or an append brings an older version of it"
    )
    return api.LoweredWatermark(
        tablet=tablet.text,
        before=was,
        after=None if version is None else _text(table, version),
        may_rise=rise,
    )


def _text(table: Table, version: bytes) -> str:
    return format_key(version, (RowRules.of(table).version_type,))


def live_bytes_view(tablet: Tablet, last: HistoryEntry | None, *, waiting: bool) -> api.LiveBytes:
    """Return the wire model of a tablet's live bytes.

    Args:
        tablet: The tablet, as stored.
        last: Its last analysis; None: the history has none.
        waiting: Whether another analysis was requested and is not done.
    """
    files = tablet.files.values()
    measured = [file for file in files if file.live_bytes is not None]
    statistics = tablet.record.statistics
    return api.LiveBytes(
        tablet=tablet.id.text,
        files=len(files),
        size_bytes=sum(file.size_bytes for file in files),
        measured_files=len(measured),
        measured_bytes=sum(file.size_bytes for file in measured),
        live_bytes=sum(file.live_bytes or 0 for file in measured),
        since_s=min((file.measured_at_s or 0.0 for file in measured), default=None),
        waiting=waiting,
        read_bytes=None if last is None else last.bytes_in,
        elapsed_s=None if last is None else last.ended_s - last.started_s,
        rows=None if last is None else last.rows_in,
        **({} if statistics is None else _statistics_view(statistics)),
    )


def _statistics_view(statistics: TabletStatistics) -> dict[str, Any]:
    return {
        "updated_share": statistics.updated_share,
        "compared_rows": statistics.compared_rows,
        "changed_shares": dict(statistics.changed_shares),
        "merged_share": statistics.merged_share,
        "merged_shares": dict(statistics.merged_shares),
        "key_quantiles": tuple(key.hex() for key in statistics.key_quantiles),
    }


ANALYZED_TABLETS_MAX = 10_000
"""Limit of tablets in one call that requests or reads live bytes."""


EXPLAINED_MAX = 100


SCANS_MAX = 1_000_000


_OneTablet = Annotated[
    str | None, Query(description="End of a tablet; every tablet of the table by default.")
]


class TabletRoutes:
    """Routes of tablets."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/tables/{table}/explain", READ)
    async def explain(
        self,
        table: str,
        tablet: Annotated[
            str | None, Query(description="End of a tablet; the first 100 tablets by default.")
        ] = None,
    ) -> dict[str, list[api.Explanation]]:
        """Explain the state of tablets: what runs, what waits, and why."""
        services = self._services
        stored_table = await services.table(table)
        if tablet is None:
            ids = await services.store.tablet_ids(stored_table.id, None, EXPLAINED_MAX)
        else:
            ids = [await services.tablet(stored_table, tablet)]
        explained = [await services.coordinator.explain(stored_table.id, id_.text) for id_ in ids]
        marks = await watermark_sentences(services, stored_table, ids)
        buffered = await _buffer_sentences(services, stored_table, tablet)
        explanations = [
            # The coordinator may know only the id of the table.
            replace(
                explanation,
                table=table,
                sentences=(*explanation.sentences, *buffered, *marks[explanation.tablet]),
            )
            for explanation in explained
        ]
        return {"tablets": explanations}

    @route("GET /v1/tables/{table}/story", READ)
    async def story(
        self, table: str, tablet: Annotated[str, Query(description="The end of the tablet.")]
    ) -> api.Story:
        """Return the events of a tablet since the coordinator started, oldest first.

        The story of a removed tablet is available as long as the coordinator keeps it.
        """
        services = self._services
        stored_table = await services.table(table)
        end = parsed_tablet(stored_table, tablet).text
        whole_story = await services.coordinator.story(stored_table.id, end)
        if (
            not whole_story.entries
            and (whole := await services.tablet(stored_table, tablet)).text != end
        ):
            whole_story = await services.coordinator.story(stored_table.id, whole.text)
        return story_view(whole_story, stored_table)

    @route("POST /v1/tables/{table}/analyze", COMPACT, status_code=202)
    async def analyze(
        self,
        table: str,
        tablet: _OneTablet = None,
    ) -> dict[str, list[str]]:
        """Start an analysis of the live bytes of files, and return its tablets at once.

        A compactor reads the necessary columns when no other job of its group waits. Nothing is
        reserved or rewritten. `live-bytes` returns the results, and the tablets that still wait.
        """
        services = self._services
        stored_table = await services.table(table)
        await check_writable(services, stored_table)
        tablets = await self._tablets(stored_table, tablet)
        await services.coordinator.analyze(
            stored_table.id, [tablet.id.text for tablet in tablets if tablet.files]
        )
        return {"tablets": [tablet.id.text for tablet in tablets]}

    @route("GET /v1/tables/{table}/live-bytes", READ)
    async def live_bytes(
        self,
        table: str,
        tablet: _OneTablet = None,
    ) -> dict[str, list[api.LiveBytes]]:
        """Return the live bytes of tablets counted so far, and the cost of the analysis."""
        services = self._services
        stored_table = await services.table(table)
        tablets = await self._tablets(stored_table, tablet)
        texts = [tablet.id.text for tablet in tablets]
        waiting = set(await services.coordinator.unanalyzed(stored_table.id, texts))
        waiting |= {
            tablet.id.text for tablet in tablets if tablet.files and tablet.record.analysis_group
        }
        history = await services.store.history(stored_table.id, LIST_MAX)
        # The history is newest first; reversed, the newest analysis of each tablet wins.
        last = {
            entry.job: entry for entry in reversed(history) if entry.end == AttemptEnd.COMMITTED
        }
        return {
            "tablets": [
                live_bytes_view(
                    tablet, last.get(analysis_id(tablet.id)), waiting=tablet.id.text in waiting
                )
                for tablet in tablets
            ]
        }

    async def _tablets(self, table: Table, text: str | None) -> list[Tablet]:
        """Return one tablet, or all tablets of a table up to the limit of one call."""
        services, tablets = self._services, list[Tablet]()
        if text is not None:
            stored_tablet = await services.store.tablet(await services.tablet(table, text))
            return [] if stored_tablet is None else [stored_tablet]
        async for page in services.pages(table):
            tablets += page
            if len(tablets) > ANALYZED_TABLETS_MAX:
                raise RequestError(
                    f"table {table.name!r} has more than {ANALYZED_TABLETS_MAX} tablets, which is "
                    "the most for one call: name one tablet at a time"
                )
        return tablets

    @route(
        "POST /v1/tables/{table}/reads",
        READ.noted("readers report what they have scanned"),
        status_code=202,
    )
    async def reads(self, table: str, body: api.Reads) -> None:
        """Count scans of tablets by readers that do not scan through the service.

        The rates order system jobs of tables with the setting `workload_points`, and
        `GET /v1/tables/{table}/maintenance` shows them.
        """
        stored_table = await self._services.table(table)
        bounded_count(len(body.tablets), LIST_MAX, "number of tablets")
        for tablet, scans in body.tablets.items():
            parsed_tablet(stored_table, tablet)
            bounded_count(scans, SCANS_MAX, f"scans of tablet {tablet}")
        await self._services.coordinator.note_scans(stored_table.id, body.tablets)

    @route("POST /v1/tables/{table}/lower-watermark", ADMIN)
    async def lower_watermark(
        self,
        table: str,
        tablet: Annotated[str, Query(description="End of the tablet.")],
        to: Annotated[
            str | None, Query(description="New watermark, as text; none removes the watermark.")
        ] = None,
    ) -> api.LoweredWatermark:
        """Lower the watermark of a tablet, so that it takes rows of older versions again.

        The answer says which deleted rows may come back.
        """
        services = self._services
        stored_table = await services.table(table)
        return await lower_tablet_watermark(
            services, stored_table, await services.tablet(stored_table, tablet, whole=True), to
        )

    @route("POST /v1/tables/{table}/lift-quarantine", COMPACT, status_code=202)
    async def lift_quarantine(
        self,
        table: str,
        tablet: _OneTablet = None,
    ) -> None:
        """Plan tablets again that are in quarantine after repeated failures."""
        services = self._services
        stored_table = await services.table(table)
        chosen = None if tablet is None else (await services.tablet(stored_table, tablet)).text
        await services.coordinator.lift_quarantine(stored_table.id, chosen)


# --------------------------------------------------------------------------- Operations in progress


async def operations_under_way(
    services: Services, table: Table, tablet: str | None
) -> api.Operations:
    """Return the operations in progress of a table, or of one tablet.

    Raises:
        UnknownTabletError: The tablet does not exist.
    """
    tablets = [busy_tablet async for busy_tablet in busy_tablets(services, table, tablet)]
    views = [await operation_view(services, table, busy) for busy in tablets]
    return api.Operations(operations=tuple(dict.fromkeys(views)))


async def busy_tablets(
    services: Services, table: Table, tablet: str | None
) -> AsyncIterator[Tablet]:
    """Yield the tablets with an operation in progress, of the whole table or only one tablet."""
    if tablet is not None:
        read = await services.store.tablet(await services.tablet(table, tablet))
        if read is not None and read.operation is not None:
            yield read
        return
    after: bytes | None = None
    while ids := await services.store.tablet_ids(table.id, after):
        records = await services.store.records(ids)
        busy = [
            tablet_id
            for tablet_id, record in zip(ids, records, strict=True)
            if record is not None and record.operation
        ]
        for busy_tablet in await services.store.tablets(busy) if busy else ():
            if busy_tablet is not None and busy_tablet.operation is not None:
                yield busy_tablet
        after = ids[-1].end


async def shown_tablets(services: Services, tablet: Tablet) -> tuple[TabletId, ...]:
    """Return all tablets of a tablet's operation, the left one first."""
    tablets = operation_tablets(tablet)
    if tablets is not None:
        return tablets
    following = await services.store.tablet_ids(tablet.id.table, tablet.id.end, 1)
    return (tablet.id, *following)


async def operation_view(services: Services, table: Table, tablet: Tablet) -> api.Operation:
    """Return the wire model of a tablet's operation."""
    operation = tablet.operation
    assert operation is not None, tablet.id
    ids = await shown_tablets(services, tablet)
    read = [tablet for tablet in await services.store.tablets(ids) if tablet is not None]
    own = [tablet for tablet in read if tablet.operation == operation]
    now_s = await services.store.now_s()
    following = next_change(own or [tablet], now_s, lasts_max_s=float("inf"))
    return api.Operation(
        id=operation.operation_id,
        kind=operation.kind.value,
        step=operation.step.value,
        tablets=tuple(id_.text for id_ in ids),
        left="" if operation.at is None else TabletId(table.id, operation.at).text,
        at=key_text(operation.at, key_types(table)),
        since_s=operation.since_s,
        reason=operation.reason,
        waits=following.reason if isinstance(following, WaitForTablets) else "",
    )


# ---------------------------------------------------------------------------- Split, merge, abandon


PARTS_MAX = 64
STARTED_BY_USER = "a user wished for it"


async def start_split(services: Services, table: Table, wish: api.Split) -> api.StartedOperation:
    """Start a split, or return the split that is in progress.

    Raises:
        RequestError: The request is ambiguous, or a key cannot be parsed.
        RefusedError: The split cannot begin now, or no key splits the tablet.
    """
    await _require_ranges(services, table)
    if (wish.at is None) == (wish.tablet is None):
        raise RequestError("give either `at`, a key, or `tablet`, whose key is then chosen")
    bounded_count(wish.into - 1, PARTS_MAX - 1, "number of parts less one")
    if wish.at is None:
        return await _split_tablet(services, table, wish.tablet or "", wish.into)
    if wish.into != 2:
        raise RequestError("`into` goes with `tablet`: one key makes two parts")
    at = parse_key(wish.at, key_types(table))
    if not at or at == PLUS_INFINITY:
        raise RequestError(f"no tablet can be split at {wish.at!r}, expected a key")
    require_short(at, f"split {wish.at[:40]!r}")
    located = await services.store.locate(table.id, at)
    tablet = None if located is None else await services.store.tablet(located)
    if tablet is None:
        raise RefusedError(f"table {table.name!r}: its tablets are changing; try again")
    if tablet.id.end == at:
        return api.StartedOperation()
    return await _started_view(services, table, tablet, at, (at,))


async def start_merge(services: Services, table: Table, wish: api.Merge) -> api.StartedOperation:
    """Start a merge of two neighbouring tablets, or return the merge that is in progress.

    Raises:
        RequestError: The request is ambiguous, or a key cannot be parsed.
        RefusedError: The merge cannot begin now.
    """
    await _require_ranges(services, table)
    if wish.tablet is not None and (wish.start is not None or wish.end is not None):
        raise RequestError("give either `tablet`, or `start` and `end`, not both")
    if wish.tablet is not None:
        first = await services.tablet(table, wish.tablet, whole=True)
        if first.end == PLUS_INFINITY:
            raise RequestError("the last tablet has no next one; name the one before it")
        last = None
    else:
        first, last = await _tablets_of_range(services, table, wish)
    following = await services.store.tablet_ids(table.id, first.end, 1)
    if first == last or not following:
        return api.StartedOperation()
    both = (first, following[0])
    for tablet in await services.store.tablets(both):
        if tablet is not None and _is_merge(tablet, both):
            return api.StartedOperation(operation=await operation_view(services, table, tablet))
    change = BeginOperation(
        kind=OperationKind.MERGE,
        tablets=both,
        operation=services.ids.next("op"),
        reason=STARTED_BY_USER,
    )
    require_applied(await services.store.apply(change))
    return api.StartedOperation(
        operation=await _started_operation(services, table, both[1], change)
    )


async def abandon_operation(services: Services, table: Table, operation: str) -> None:
    """Abandon an operation, by its id or a unique prefix; do nothing if it has ended.

    Raises:
        RequestError: The ids of several operations begin with the text.
        RefusedError: The table does not accept changes.
    """
    busy = [tablet async for tablet in busy_tablets(services, table, None)]
    operations = {tablet.operation.operation_id: tablet for tablet in busy if tablet.operation}
    whole = whole_id(operation, operations, "operation")
    if whole is not None:
        tablet = operations[whole]
        tablets = await shown_tablets(services, tablet)
        change = AbandonOperation(tablets=tablets, operation=whole)
        require_applied(await services.store.apply(change))


async def _require_ranges(services: Services, table: Table) -> None:
    await check_writable(services, table)
    if not has_ranges(table):
        why = "is partitioned by " + ", ".join(table.partition_by) if table.key else "has no key"
        raise ChangeRefusedError(
            f"table {table.name!r} {why}: its tablets are not key ranges", "bounds"
        )


async def _split_tablet(
    services: Services, table: Table, text: str, parts: int
) -> api.StartedOperation:
    tablet = await services.store.tablet(await services.tablet(table, text, whole=True))
    if tablet is None:
        raise RefusedError(f"table {table.name!r}: its tablets are changing; try again")
    present = tablet.operation
    if present is not None and present.kind is OperationKind.SPLIT and present.at is not None:
        return await _started_view(services, table, tablet, present.at, (present.at,))
    keys = await choose_split_keys(tablet, table, services.log, parts=parts)
    if not keys:
        raise RefusedError(
            f"tablet {text!r} of table {table.name!r}: no key known from its files "
            "divides its bytes; name one with `at`"
        )
    ordered = tuple(middle_first(keys))
    return await _started_view(services, table, tablet, ordered[0], ordered)


def middle_first(keys: Sequence[bytes]) -> Iterator[bytes]:
    """Yield keys in an order in which every split halves a part, to minimize rewritten bytes."""
    if keys:
        middle = len(keys) // 2
        yield keys[middle]
        yield from middle_first(keys[:middle])
        yield from middle_first(keys[middle + 1 :])


async def _started_view(
    services: Services, table: Table, tablet: Tablet, at: bytes, keys: Sequence[bytes]
) -> api.StartedOperation:
    types = key_types(table)
    texts = tuple(key_text(key, types) or "" for key in keys)
    present = tablet.operation
    if present is not None and present.kind is OperationKind.SPLIT and present.at == at:
        return api.StartedOperation(
            operation=await operation_view(services, table, tablet), keys=texts
        )
    change = BeginOperation(
        kind=OperationKind.SPLIT,
        tablets=(tablet.id,),
        operation=services.ids.next("op"),
        at=at,
        reason=STARTED_BY_USER,
    )
    require_applied(await services.store.apply(change))
    return api.StartedOperation(
        operation=await _started_operation(services, table, tablet.id, change), keys=texts
    )


async def _started_operation(
    services: Services, table: Table, tablet: TabletId, change: BeginOperation
) -> api.Operation:
    """Return the operation that was just started, even if it has already ended."""
    stored_tablet = await services.store.tablet(tablet)
    if stored_tablet is not None and stored_tablet.operation is not None:
        return await operation_view(services, table, stored_tablet)
    at = change.tablets[0].end if change.at is None else change.at
    return api.Operation(
        id=change.operation,
        kind=change.kind.value,
        step="close",
        tablets=tuple(tablet_id.text for tablet_id in change.tablets),
        left=TabletId(table.id, at).text,
        at=key_text(at, key_types(table)),
        reason=change.reason,
    )


async def _tablets_of_range(
    services: Services, table: Table, wish: api.Merge
) -> tuple[TabletId, TabletId | None]:
    """Return the first and the last tablet of a range of keys."""
    types = key_types(table)
    start = _parse_bound(wish.start, types)
    end = PLUS_INFINITY if wish.end is None else _parse_bound(wish.end, types)
    if start > end:
        raise RequestError(f"no key lies from {wish.start!r} to {wish.end!r}")
    first = await services.store.locate(table.id, start)
    last = await services.store.locate(table.id, end)
    if first is None:
        raise RefusedError(f"table {table.name!r}: its tablets are changing; try again")
    return first, last


def _parse_bound(text: str | None, types: Sequence[KeyType]) -> bytes:
    return b"" if text is None else parse_key(text, types)


def _is_merge(tablet: Tablet, tablets: tuple[TabletId, TabletId]) -> bool:
    """Return whether a merge of exactly these two tablets is in progress in `tablet`."""
    present = tablet.operation
    return (
        present is not None
        and present.kind is OperationKind.MERGE
        and operation_tablets(tablet) == tablets
    )


# ------------------------------------------------------------------------------------------- Routes


class OperationRoutes:
    """Routes under `/v1/tables/{table}` that change the bounds of tablets."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("POST /v1/tables/{table}/split", COMPACT, status_code=202)
    async def split(self, table: str, body: api.Split) -> api.StartedOperation:
        """Split a tablet at a key, or into parts of about equal size.

        The call starts one split and returns. Repeat the call to see how far the split is. For
        more than two parts, call again with each further key of `keys` when the split before is
        done.
        """
        return await start_split(self._services, await self._services.table(table), body)

    @route("POST /v1/tables/{table}/merge", COMPACT, status_code=202)
    async def merge(self, table: str, body: api.Merge) -> api.StartedOperation:
        """Merge a tablet with the next one, or all tablets of a range of keys.

        The call starts one merge and returns. For more than two tablets, call again when the
        merge is done, until nothing is left to do.
        """
        return await start_merge(self._services, await self._services.table(table), body)

    @route("GET /v1/tables/{table}/operations", READ)
    async def operations(
        self,
        table: str,
        tablet: Annotated[
            str | None, Query(description="Only operations in this tablet, named by its end.")
        ] = None,
    ) -> api.Operations:
        """Return the splits and merges under way, and what each waits for."""
        return await operations_under_way(self._services, await self._services.table(table), tablet)

    @route("POST /v1/tables/{table}/operations/{operation}/abandon", COMPACT, status_code=202)
    async def abandon(self, table: str, operation: str) -> None:
        """Abandon a split or merge. Tablets and files stay as they are."""
        await abandon_operation(self._services, await self._services.table(table), operation)
