"""Close a request: nothing of it is left in any tablet, and nobody has to look at it again.

A closed request is history. Beyond so many, the oldest are listed no more; a closed one
never changes, so that nothing has to be watched for that. The request itself stays as long
as the id of the call that submitted it: the same call again must find it.
"""

from common.metadata.codec_request import place, request_at, submitted_at_s
from common.metadata.commands import Command, delete, members_after, pexpire, smembers, zcard, zrem
from common.metadata.keys import MARK_LIFE_S, REQUESTS_KEPT, REQUESTS_OPEN_MAX, TableKeys
from common.metadata.mutation.everywhere import Everywhere, everywhere
from common.metadata.mutation.transaction import (
    Decision,
    Done,
    More,
    Needs,
    Seen,
    Transaction,
    Write,
)
from common.metadata.request_changes import CloseRequest
from common.model.outcome import Refusal
from common.model.request import Request
from common.model.tablet import TabletId

FORGOTTEN_MAX = 64
"""Old requests that are listed no more when one is closed."""


def close_request(change: CloseRequest) -> Transaction:
    """Return the first transaction that closes a request. Mark: it is not among the open ones."""
    table = TableKeys(change.table)

    def may_begin(present: Request) -> Decision | None:
        if present.state.ended:
            return None
        return Refusal("request", f"request {present.id} is {present.state.value}, not ended")

    def refused(tablet: TabletId, seen: Seen) -> Refusal | None:
        if change.request.encode() not in seen["done"]:
            return None
        return Refusal("open", f"tablet {tablet}: request {change.request} has its done marker")

    def then(present: Request, _seen: Seen) -> Decision:
        return More(Needs((), _orders(table)), lambda seen: _closed(table, present, seen))

    return everywhere(
        Everywhere(
            table=table,
            request=change.request,
            may_begin=may_begin,
            reads=lambda keys: {"done": smembers(keys.done)},
            refused=refused,
            tiles=False,
            then=then,
        )
    )


def _orders(table: TableKeys) -> dict[str, Command]:
    return {
        "count": zcard(table.requests),
        "oldest": members_after(table.requests, None, FORGOTTEN_MAX),
        "open": members_after(table.open_requests, None, 2 * REQUESTS_OPEN_MAX),
    }


def _closed(table: TableKeys, present: Request, seen: Seen) -> Decision:
    """Take the request out of the open ones, and forget the oldest that are too many."""
    own, still_open = place(present), {*seen["open"]}
    if own not in still_open:
        return Done()
    excess = max(0, seen["count"] - REQUESTS_KEPT)
    old = [member for member in seen["oldest"][:excess] if member not in still_open]
    effects: tuple[Command, ...] = (zrem(table.open_requests, own),)
    if old:
        effects += (zrem(table.requests, *old), *(_forgotten(table, each, seen) for each in old))
    return Write(effects)


def _forgotten(table: TableKeys, member: bytes, seen: Seen) -> Command:
    """Let a request go when its call can be repeated no more."""
    key = table.request(request_at(member))
    left_s = submitted_at_s(member) + MARK_LIFE_S - seen.now_s
    return pexpire(key, left_s) if left_s > 0 else delete(key)
