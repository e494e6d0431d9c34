"""Splits and merges: start, list and abandon them."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated

from fastapi import Query

from common.errors import RefusedError, RequestError
from common.metadata.changes import AbandonOperation, BeginOperation
from common.metadata.split_merge_predicates import operation_tablets
from common.model.key_values import KeyType
from common.model.keys import PLUS_INFINITY, parse_key, require_short
from common.model.table import Table
from common.model.tablet import OperationKind, Tablet, TabletId
from coordinator.core.split_merge import WaitForTablets, has_ranges, next_change
from coordinator.split_merge.key_sampling import choose_split_keys
from neve import api
from neve.gateway.access.route_rights import COMPACT, READ, route
from neve.gateway.key_views import key_text, key_types
from neve.gateway.problems import ChangeRefusedError, require_applied
from neve.gateway.services import (
    Services,
    bounded_count,
    check_writable,
    whole_id,
)

# --------------------------------------------------------------------------- Operations in progress


async def operations_under_way(
    services: Services, table: Table, tablet: str | None
) -> api.Operations:
    """Return the operations in progress of a table, or of one tablet.

    Raises:
        UnknownTabletError: The tablet does not exist.
    """
    found = [busy_tablet async for busy_tablet in busy_tablets(services, table, tablet)]
    views = [await operation_view(services, table, each) for each in found]
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
            each
            for each, record in zip(ids, records, strict=True)
            if record is not None and record.operation
        ]
        for found in await services.store.tablets(busy) if busy else ():
            if found is not None and found.operation is not None:
                yield found
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
    read = [each for each in await services.store.tablets(ids) if each is not None]
    own = [each for each in read if each.operation == operation]
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
    found = await services.store.locate(table.id, at)
    tablet = None if found is None else await services.store.tablet(found)
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
    found = whole_id(operation, operations, "operation")
    if found is not None:
        tablet = operations[found]
        tablets = await shown_tablets(services, tablet)
        change = AbandonOperation(tablets=tablets, operation=found)
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
    found = await services.store.tablet(tablet)
    if found is not None and found.operation is not None:
        return await operation_view(services, table, found)
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


def _parse_bound(written: str | None, types: Sequence[KeyType]) -> bytes:
    return b"" if written is None else parse_key(written, types)


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
