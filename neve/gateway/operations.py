"""Splits and merges that users wish for: from keys and ends to one change of the store.

A wish is met at once if nothing is left to do, or if what is under way is just that; so it
may be sent again. The coordinator hears of what has begun, and does the rest.
"""

from collections.abc import Iterator, Sequence

from common.errors import RefusedError, RequestError
from common.metadata.changes import AbandonOperation, BeginOperation
from common.metadata.split_merge_predicates import operation_tablets
from common.model.key_values import KeyType
from common.model.keys import PLUS_INFINITY, parse_key, require_short
from common.model.table import Table
from common.model.tablet import OperationKind, Tablet, TabletId
from coordinator.core.split_merge.operation_steps import has_ranges
from coordinator.split_merge.key_sampling import choose_split_keys
from neve import api_operations as api
from neve.gateway.operation_views import operating, operation_view, tablets_of
from neve.gateway.problems import ChangeRefusedError, applied
from neve.gateway.services import Services, bounded, check_writable
from neve.gateway.views import key_text, key_types

PARTS_MAX = 64
WISHED = "a user wished for it"


async def split(services: Services, table: Table, wish: api.Split) -> api.Begun:
    """Begin a split, or tell that it is there.

    Raises:
        RequestError: The wish is not clear, or a key cannot be read.
        RefusedError: It cannot begin now, or no key splits the tablet.
    """
    await _check(services, table)
    if (wish.at is None) == (wish.tablet is None):
        raise RequestError("give either `at`, a key, or `tablet`, whose key is then chosen")
    bounded(wish.into - 1, PARTS_MAX - 1, "number of parts less one")
    if wish.at is None:
        return await _split_tablet(services, table, wish.tablet or "", wish.into)
    if wish.into != 2:
        raise RequestError("`into` goes with `tablet`: one key makes two parts")
    at = parse_key(wish.at, key_types(table))
    if not at or at == PLUS_INFINITY:
        raise RequestError(f"no tablet can be split at {wish.at!r}, wanted a key")
    require_short(at, f"split {wish.at[:40]!r}")
    found = await services.store.locate(table.id, at)
    tablet = None if found is None else await services.store.tablet(found)
    if tablet is None:
        raise RefusedError(f"table {table.name!r}: its tablets are changing; try again")
    if tablet.id.end == at:
        return api.Begun()
    return await _begun(services, table, tablet, at, (at,))


async def merge(services: Services, table: Table, wish: api.Merge) -> api.Begun:
    """Begin a merge of two neighbours, or tell that it is there.

    Raises:
        RequestError: The wish is not clear, or a key cannot be read.
        RefusedError: It cannot begin now.
    """
    await _check(services, table)
    if wish.tablet is not None and (wish.start is not None or wish.end is not None):
        raise RequestError("give either `tablet`, or `start` and `end`, not both")
    if wish.tablet is not None:
        first = await services.tablet(table, wish.tablet)
        if first.end == PLUS_INFINITY:
            raise RequestError("the last tablet has no next one; name the one before it")
        last = None
    else:
        first, last = await _range(services, table, wish)
    following = await services.store.tablet_ids(table.id, first.end, 1)
    if first == last or not following:
        return api.Begun()
    both = (first, following[0])
    for tablet in await services.store.tablets(both):
        if tablet is not None and _is_merge(tablet, both):
            return api.Begun(operation=await operation_view(services, table, tablet))
    change = BeginOperation(
        kind=OperationKind.MERGE,
        tablets=both,
        operation=services.ids.next("op"),
        reason=WISHED,
    )
    applied(await services.store.apply(change))
    return api.Begun(operation=await _operation(services, table, both[1], change))


async def abandon(services: Services, table: Table, operation: str) -> None:
    """Give an operation up; one that is over, or never was, is so already.

    Raises:
        RefusedError: The table does not take changes.
    """
    async for tablet in operating(services, table, None):
        present = tablet.operation
        if present is not None and present.operation_id == operation:
            tablets = await tablets_of(services, tablet)
            change = AbandonOperation(tablets=tablets, operation=operation)
            applied(await services.store.apply(change))
            return


async def _check(services: Services, table: Table) -> None:
    await check_writable(services, table)
    if not has_ranges(table):
        why = "is partitioned by " + ", ".join(table.partition_by) if table.key else "has no key"
        raise ChangeRefusedError(
            f"table {table.name!r} {why}: its tablets are no ranges of keys", "bounds"
        )


async def _split_tablet(services: Services, table: Table, text: str, parts: int) -> api.Begun:
    tablet = await services.store.tablet(await services.tablet(table, text))
    if tablet is None:
        raise RefusedError(f"table {table.name!r}: its tablets are changing; try again")
    present = tablet.operation
    if present is not None and present.kind is OperationKind.SPLIT and present.at is not None:
        return await _begun(services, table, tablet, present.at, (present.at,))
    keys = await choose_split_keys(tablet, table, services.log, parts=parts)
    if not keys:
        raise RefusedError(
            f"tablet {text!r} of table {table.name!r}: no key that is known from its files "
            "divides its bytes; name one with `at`"
        )
    ordered = tuple(middle_first(keys))
    return await _begun(services, table, tablet, ordered[0], ordered)


def middle_first(keys: Sequence[bytes]) -> Iterator[bytes]:
    """Yield keys so that every split halves what is left: bytes are cut only so often."""
    if keys:
        middle = len(keys) // 2
        yield keys[middle]
        yield from middle_first(keys[:middle])
        yield from middle_first(keys[middle + 1 :])


async def _begun(
    services: Services, table: Table, tablet: Tablet, at: bytes, keys: Sequence[bytes]
) -> api.Begun:
    types = key_types(table)
    texts = tuple(key_text(key, types) or "" for key in keys)
    present = tablet.operation
    if present is not None and present.kind is OperationKind.SPLIT and present.at == at:
        return api.Begun(operation=await operation_view(services, table, tablet), keys=texts)
    change = BeginOperation(
        kind=OperationKind.SPLIT,
        tablets=(tablet.id,),
        operation=services.ids.next("op"),
        at=at,
        reason=WISHED,
    )
    applied(await services.store.apply(change))
    return api.Begun(operation=await _operation(services, table, tablet.id, change), keys=texts)


async def _operation(
    services: Services, table: Table, tablet: TabletId, change: BeginOperation
) -> api.Operation:
    """Return what has just begun, though it may be over by now."""
    found = await services.store.tablet(tablet)
    if found is not None and found.operation is not None:
        return await operation_view(services, table, found)
    at = change.tablets[0].end if change.at is None else change.at
    return api.Operation(
        id=change.operation,
        kind=change.kind.value,
        step="close",
        tablets=tuple(each.text for each in change.tablets),
        left=TabletId(table.id, at).text,
        at=key_text(at, key_types(table)),
        reason=change.reason,
    )


async def _range(
    services: Services, table: Table, wish: api.Merge
) -> tuple[TabletId, TabletId | None]:
    """Return the first and the last tablet of a range of keys."""
    types = key_types(table)
    start = _key(wish.start, types)
    end = PLUS_INFINITY if wish.end is None else _key(wish.end, types)
    if start > end:
        raise RequestError(f"no key lies from {wish.start!r} to {wish.end!r}")
    first = await services.store.locate(table.id, start)
    last = await services.store.locate(table.id, end)
    if first is None:
        raise RefusedError(f"table {table.name!r}: its tablets are changing; try again")
    return first, last


def _key(written: str | None, types: Sequence[KeyType]) -> bytes:
    return b"" if written is None else parse_key(written, types)


def _is_merge(tablet: Tablet, tablets: tuple[TabletId, TabletId]) -> bool:
    """Return whether just these two are being merged, seen from the right one."""
    present = tablet.operation
    return (
        present is not None
        and present.kind is OperationKind.MERGE
        and operation_tablets(tablet) == tablets
    )
