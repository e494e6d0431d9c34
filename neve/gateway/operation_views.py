"""Splits and merges under way, for users: looked up in the store, told with what they wait for."""

from collections.abc import AsyncIterator

from common.metadata.split_merge_predicates import operation_tablets
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from coordinator.core.split_merge.operation_steps import WaitForTablets, next_change
from neve import api_operations as api
from neve.gateway.services import Services
from neve.gateway.views import key_text, key_types


async def under_way(services: Services, table: Table, tablet: str | None) -> api.Operations:
    """Return the operations of a table, or of one tablet.

    Raises:
        UnknownTabletError: There is no such tablet.
    """
    found = [each async for each in operating(services, table, tablet)]
    views = [await operation_view(services, table, each) for each in found]
    return api.Operations(operations=tuple(dict.fromkeys(views)))


async def operating(services: Services, table: Table, tablet: str | None) -> AsyncIterator[Tablet]:
    """Yield the tablets in which something is under way; all of the table, or one."""
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


async def tablets_of(services: Services, tablet: Tablet) -> tuple[TabletId, ...]:
    """Return all tablets of the operation in a tablet, the left one first."""
    tablets = operation_tablets(tablet)
    if tablets is not None:
        return tablets
    following = await services.store.tablet_ids(tablet.id.table, tablet.id.end, 1)
    return (tablet.id, *following)


async def operation_view(services: Services, table: Table, tablet: Tablet) -> api.Operation:
    """Return the operation in a tablet."""
    operation = tablet.operation
    assert operation is not None, tablet.id
    ids = await tablets_of(services, tablet)
    read = [each for each in await services.store.tablets(ids) if each is not None]
    own = [each for each in read if each.operation == operation]
    now_s = await services.store.now_s()
    following = next_change(own or [tablet], now_s, lasts_max_s=float("inf"))
    return api.Operation(
        id=operation.operation_id,
        kind=operation.kind.value,
        step=operation.step.value,
        tablets=tuple(each.text for each in ids),
        left="" if operation.at is None else TabletId(table.id, operation.at).text,
        at=key_text(operation.at, key_types(table)),
        since_s=operation.since_s,
        reason=operation.reason,
        waits=following.reason if isinstance(following, WaitForTablets) else "",
    )
