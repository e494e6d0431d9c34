"""Reads the tablets of requests, page by page: a range may be longer than memory."""

from collections.abc import AsyncIterator, Mapping, Sequence

from common.metadata.ports import TabletStore
from common.model.request import Request, RequestProgress
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.wire import AttemptProgress
from coordinator.core.request_progress import request_progress

PAGE_TABLETS = 500


async def pages(
    store: TabletStore, table: Table, requests: Sequence[Request]
) -> AsyncIterator[list[Tablet]]:
    """Yield the tablets that may hold rows of any of these requests, in order.

    A tablet that is split meanwhile may be missed: requests look again until the store
    agrees that they are over.

    Raises:
        MetadataError: The store did not answer as it should.
    """
    start, until = (None, None) if table.partition_by else _span(requests)
    first = None if start is None else await store.locate(table.id, start)
    ids: list[TabletId] = [] if first is None else [first]
    after = None if first is None else first.end
    while True:
        ids += await store.tablet_ids(table.id, after=after, count=PAGE_TABLETS)
        if not ids:
            return
        yield [tablet for tablet in await store.tablets(ids) if tablet is not None]
        after = ids[-1].end
        if until is not None and after >= until:
            return
        ids = []


async def progress_of(
    store: TabletStore, table: str, request: str, attempts: Mapping[str, AttemptProgress]
) -> RequestProgress | None:
    """Return how far a request has come, or None if there is none.

    Args:
        store: Where it is.
        table: Id of its table.
        request: Its id.
        attempts: What compactors tell of attempts.

    Raises:
        MetadataError: The store did not answer as it should.
    """
    found, of = await store.request(table, request), await store.table(table)
    if found is None or of is None:
        return None
    others, now_s = await store.open_requests(table), await store.now_s()
    read = [tablet async for page in pages(store, of, [found]) for tablet in page]
    return request_progress(found, read, others=others, attempts=attempts, now_s=now_s)


def _span(requests: Sequence[Request]) -> tuple[bytes | None, bytes | None]:
    """Return the bounds of all ranges together."""
    starts = [request.range.start for request in requests]
    ends = [request.range.until for request in requests]
    start = None if None in starts else min(each for each in starts if each is not None)
    until = None if None in ends else max(each for each in ends if each is not None)
    return start, until
