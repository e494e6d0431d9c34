"""Drop a table: going, then tablet by tablet, its requests, its keys, at last its name.

Each step looks at what is there, so that anybody may go on from anywhere; nothing is
taken of a table that is not going (any more: a fail-over may have forgotten it). While
garbage is left the table stays, going and empty, until the collectors are through.
Marks of attempts and calls are left to expire.
"""

from dataclasses import dataclass, replace

from common.metadata.changes import Applied, DropTable, Refused
from common.metadata.codec_file import unpack_files
from common.metadata.codec_request import request_at, request_fields, unpack_request
from common.metadata.codec_table import DELETES, STATE, unpack_name
from common.metadata.codec_tablet import unpack_running
from common.metadata.commands import (
    Command,
    Word,
    delete,
    hdel,
    hget,
    hgetall,
    hlen,
    hset,
    members_after,
    publish,
    zrem,
)
from common.metadata.keys import REQUESTS_OPEN_MAX, TABLES, TableKeys, TabletKeys
from common.metadata.mutation.effects import into_garbage, table_changed, told, uncommitted
from common.metadata.mutation.requirements import state_seen, table_state
from common.metadata.mutation.transaction import (
    MADE,
    Decision,
    Done,
    More,
    Needs,
    Seen,
    Transaction,
    Write,
)
from common.model.own_paths import GONE_WITH_THE_TABLE
from common.model.request import Request, RequestState
from common.model.table import TableState
from common.model.tablet import TabletId

REQUESTS_PER_STEP = 500
"""Requests forgotten in one transaction."""


@dataclass(frozen=True, slots=True)
class _Drop:
    """A drop: of which table, whether its files go to garbage, what is answered at the end."""

    table: str
    delete_files: bool
    """What the first drop said, counts."""
    outcome: Applied | Refused
    resumed: bool = False
    """A table that is not going is left alone."""
    unfinished: bool = False
    """So is one that was live."""

    @property
    def keys(self) -> TableKeys:
        """Its keys."""
        return TableKeys(self.table)


def drop_table(change: DropTable) -> Transaction:
    """Return the first transaction of a drop."""
    it = _Drop(change.table, change.delete_files, MADE, change.resumed, change.unfinished)
    return _set_going(it)


def undo_create(table: str, refused: Refused) -> Transaction:
    """Return the first transaction that takes back what a refused creation has made.

    Args:
        table: Its id.
        refused: What to answer at the end.
    """
    return _set_going(_Drop(table, delete_files=False, outcome=refused))


def _set_going(it: _Drop) -> Transaction:
    """Return the transaction that sets a table going. Mark: it is."""
    keys = it.keys

    def decide(seen: Seen) -> Decision:
        state = state_seen(keys, seen)
        if state is None:
            return Done(it.outcome, then=_unname(it))
        if state is TableState.GOING:
            return Done(it.outcome, then=_cancel_requests(it))
        if it.resumed or (it.unfinished and state is not TableState.NEW):
            return Done(replace(MADE, complete=False) if it.unfinished else it.outcome)
        fields: dict[str, Word] = {STATE: TableState.GOING.value, DELETES: int(it.delete_files)}
        notes = dict.fromkeys(GONE_WITH_THE_TABLE) if it.delete_files else {}
        effects = (
            hset(keys.table, fields),
            *into_garbage(keys, b"", notes),
            *table_changed(it.table, "going"),
        )
        return Write(effects, then=_cancel_requests(it), durable=True)

    return Transaction(table_state(keys), decide)


def _not_going(it: _Drop, seen: Seen) -> Decision | None:
    """Return what else there is to do if the table does not go."""
    state = state_seen(it.keys, seen)
    if state is None:
        return Done(it.outcome, then=_unname(it))
    return None if state is TableState.GOING else Done(it.outcome, then=_set_going(it))


def _cancel_requests(it: _Drop) -> Transaction:
    """Return the transaction that makes open requests CANCELLING; no new ones come."""
    keys = it.keys
    reads = {"open": members_after(keys.open_requests, None, 2 * REQUESTS_OPEN_MAX)}

    def decide(seen: Seen) -> Decision:
        if (other := _not_going(it, seen)) is not None:
            return other
        names = [request_at(member) for member in seen["open"]]
        own = {name: hgetall(keys.request(name)) for name in names}
        return More(Needs((), own), lambda further: cancelling(names, further))

    def cancelling(names: list[str], seen: Seen) -> Decision:
        found = [unpack_request(keys.request(name), it.table, name, seen[name]) for name in names]
        effects = [
            hset(keys.request(each.id), request_fields(each))
            for each in map(_cancelled, found)
            if each is not None
        ]
        then = _drop_next(it)
        return Write(tuple(effects), then=then) if effects else Done(it.outcome, then=then)

    return Transaction(table_state(keys) | Needs((), reads), decide)


def _cancelled(request: Request | None) -> Request | None:
    """Return an active request as it is when its table goes; None: nothing to change."""
    if request is None or request.state is not RequestState.ACTIVE:
        return None
    return replace(request, state=RequestState.CANCELLING, cause="its table is dropped")


def _drop_next(it: _Drop) -> Transaction:
    """Return the transaction that removes the first tablet left, or requests, or the table."""
    keys = it.keys
    reads = {
        "first": members_after(keys.index, None, 1),
        "deletes": hget(keys.table, DELETES),
        "garbage": hlen(keys.garbage),
        "requests": members_after(keys.requests, None, REQUESTS_PER_STEP),
    }

    def decide(seen: Seen) -> Decision:
        if (other := _not_going(it, seen)) is not None:
            return other
        if seen["first"]:
            tablet = TabletId(it.table, seen["first"][0])
            return More(_tablet_needs(tablet), lambda further: _dropped(it, tablet, further))
        if seen["garbage"]:
            refused = isinstance(it.outcome, Refused)
            return Done(it.outcome if refused else Applied(complete=False))
        if seen["requests"]:
            own = [keys.request(request_at(member)) for member in seen["requests"]]
            forgotten = (delete(*own), zrem(keys.requests, *seen["requests"]))
            return Write(forgotten, then=_drop_next(it))
        effects = (delete(*keys.every), publish(keys.doorbell, ""))
        return Write(effects, then=_unname(it), durable=True)

    needs = table_state(keys) | Needs((keys.garbage, keys.index), reads)
    return Transaction(needs, decide)


def _tablet_needs(tablet: TabletId) -> Needs:
    keys = TabletKeys.of(tablet)
    reads = {"running": hgetall(keys.running), "files": hgetall(keys.files)}
    return Needs((keys.running,), reads)


def _dropped(it: _Drop, tablet: TabletId, seen: Seen) -> Decision:
    """Remove a tablet; what runs there and, if asked, its files go to garbage."""
    keys, table = TabletKeys.of(tablet), it.keys
    running = unpack_running(keys.running, seen["running"])
    waste: dict[str, bytes | None] = {}
    if seen["deletes"] == b"1":
        files = unpack_files(keys.files, seen["files"])
        waste = {path: file.key_min for path, file in files.items()}
    outputs = (uncommitted(table, tablet.end, entry) for entry in running.values())
    effects: tuple[Command, ...] = (
        *(effect for each in outputs for effect in each),
        *into_garbage(table, tablet.end, waste),
        delete(*keys.every),
        zrem(table.index, tablet.end),
        *told(tablet, "drop"),
    )
    return Write(effects, then=_drop_next(it))


def _unname(it: _Drop) -> Transaction:
    """Return the last transaction: the name is free again. Mark: no entry has this id."""

    def decide(seen: Seen) -> Decision:
        if state_seen(it.keys, seen) is not None:
            return Done(it.outcome, then=_set_going(it))  # Without a name nobody would find it.
        for name, stored in seen["names"].items():
            if unpack_name(name, stored).id == it.table:
                return Write((hdel(TABLES, name),), then=_answer(it.outcome), durable=True)
        return Done(it.outcome)

    needs = table_state(it.keys) | Needs((TABLES,), {"names": hgetall(TABLES)})
    return Transaction(needs, decide)


def _answer(outcome: Applied | Refused) -> Transaction:
    return Transaction(Needs(), lambda _seen: Done(outcome))
