"""What the jobs of a request have done, summed up from the table's history."""

from collections.abc import Sequence

from common.metadata.keys import HISTORY_MAX
from common.metadata.ports import HistoryEntry
from common.model.outcome import AttemptEnd
from common.model.request import Request
from neve import api_requests
from neve.gateway.services import Services


async def result_of(services: Services, request: Request) -> api_requests.Result:
    """Return what a request that has ended has done."""
    entries = await services.store.history(request.table, HISTORY_MAX)
    return summed(request, entries)


def summed(request: Request, entries: Sequence[HistoryEntry]) -> api_requests.Result:
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
    return api_requests.Result(
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
