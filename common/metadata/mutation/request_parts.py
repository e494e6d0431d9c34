"""What changes of requests share: the request itself, watched, and rule 5 for a tablet of it."""

from common.metadata.codec_request import STATE, request_fields, unpack_request
from common.metadata.commands import Command, hget, hgetall, hset
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation.effects import request_changed
from common.metadata.mutation.requirements import gone, refused_by_table, tablet_seen
from common.metadata.mutation.transaction import Needs, Seen
from common.model.outcome import Refusal
from common.model.request import Request, RequestState
from common.model.tablet import Tablet, TabletId


def own_request(table: TableKeys, request: str, *, watch: bool = True) -> Needs:
    """Need a request."""
    key = table.request(request)
    return Needs((key,) if watch else (), {"request": hgetall(key)})


def request_seen(table: TableKeys, request: str, seen: Seen) -> Request | None:
    """Return the request, or None if there is none."""
    return unpack_request(table.request(request), table.id, request, seen["request"])


def request_state(table: TableKeys, request: str) -> Needs:
    """Need only the state of a request, not watched: for what can no longer change."""
    return Needs((), {"request-state": hget(table.request(request), STATE)})


def has_ended(state: bytes | None) -> bool:
    """Return whether a request has ended, or there is none."""
    return state is None or state.decode() in {each for each in RequestState if each.ended}


def missing(request: str) -> Refusal:
    """Return the refusal of whatever wants a request that is not there."""
    return Refusal("request", f"request {request} does not exist")


def request_here(tablet: TabletId, request: str, seen: Seen) -> tuple[Tablet, Request] | Refusal:
    """Return the tablet and the request, or why nothing of them may be changed (rule 5)."""
    keys, table = TabletKeys.of(tablet), TableKeys(tablet.table)
    if refusal := refused_by_table(table, seen):
        return refusal
    found = tablet_seen(tablet, keys, seen)
    if found is None:
        return gone(tablet)
    wanted = request_seen(table, request, seen)
    return missing(request) if wanted is None else (found, wanted)


def request_written(table: TableKeys, request: Request) -> tuple[Command, ...]:
    """Write a request, and tell."""
    return (
        hset(table.request(request.id), request_fields(request)),
        *request_changed(table.id, request.id),
    )
