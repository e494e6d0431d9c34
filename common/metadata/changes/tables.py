"""Create, fill, change, trigger and drop a table; restore a lost name.

A table is created in three transactions: the table, its name, its state. Tablets beyond the first
thousand have transactions of their own before the name, so that they hold up neither the event loop
nor the store. A table that a recovery fills becomes live or paused by one more, when all its files
are added. It is dropped in the reverse order: going, then tablet by tablet, its requests, its keys,
and finally its name. Names are in a slot of their own, so no transaction watches or writes both a
table and the names (`docs/design/0013-sentinel-and-cluster.md`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.metadata.changes.protocol import (
    MADE,
    Applied,
    Change,
    Decision,
    Guarded,
    More,
    Needs,
    NoWrite,
    Refused,
    Seen,
    Transaction,
    Write,
    buffer_segments,
    into_garbage,
    make_tablet,
    may_change,
    refused_by_buffer,
    state_seen,
    stream_entry,
    table_changed,
    table_seen,
    table_state,
    transaction_of,
    uncommitted_outputs,
    whole_table,
)
from common.metadata.codec import table as codec_table
from common.metadata.codec.table import (
    DELETES,
    FILLED,
    FILLING,
    INCOMPLETE,
    SETTINGS,
    SETTINGS_VERSION,
    SPEC,
    STATE,
    TRIGGERED,
    request_fields,
    request_of_member,
    unpack_name,
    unpack_request,
)
from common.metadata.codec.tablet import unpack_files, unpack_running
from common.metadata.keys import (
    DROPPED_LIFE_S,
    REQUESTS_OPEN_MAX,
    TABLES,
    TableKeys,
    TabletKeys,
    is_table_id,
)
from common.metadata.keyspace import (
    Command,
    Word,
    delete,
    get,
    hdel,
    hget,
    hgetall,
    hincrby,
    hlen,
    hset,
    members_after,
    set_string,
    zrem,
)
from common.model.location_identity import (
    DELETED_WITH_TABLE,
    LocationIdentity,
    identity_of_uri,
    overlap_test,
)
from common.model.outcome import Refusal, RefusalCode
from common.model.request import Request, RequestState
from common.model.table import DNS_LABEL, Column, Filling, Table, TableSettings, TableState
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId

# ---- Dropping
#
# Each step reads the present state, so that any process may continue from any step. Nothing is
# removed from a table that is not going, for example after a fail-over that lost the state. While
# garbage is left, the table stays, going and empty, until the collectors are done. Marks of
# attempts and calls expire by themselves.
#
# The name is freed in a slot of its own, where the absence of the table cannot be watched. So the
# last transaction in the table's slot leaves a mark, which prevents a creation with the same id.
# Replicas must have the mark before the name is freed.


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable(Change):
    """Mark the table as going, then remove its tablets and keys, one change per tablet."""

    table: str
    delete_files: bool = False
    resumed: bool = False
    """Only continue a drop that has begun."""
    unfinished: bool = False
    """Only drop a table that was never live or paused, or an entry with only a name."""


_UNFINISHED = frozenset({TableState.NEW, TableState.FILLING})
REQUESTS_PER_STEP = 500
"""Requests forgotten in one transaction."""
_NO_NAME = ""
"""A field that no table name can equal."""


@dataclass(frozen=True, slots=True)
class _Drop:
    """A drop: its table, whether files become garbage, and the final answer."""

    table: str
    delete_files: bool
    """The first drop decides."""
    outcome: Applied | Refused
    resumed: bool = False
    """Leave a table alone that is not going."""
    unfinished: bool = False
    """Leave a table alone that was live or paused."""

    @property
    def keys(self) -> TableKeys:
        """Its keys."""
        return TableKeys(self.table)


@transaction_of.register
def drop_table(change: DropTable) -> Transaction:
    """Return the first transaction of a drop."""
    drop = _Drop(change.table, change.delete_files, MADE, change.resumed, change.unfinished)
    return _set_going(drop)


def undo_create(table: str, refused: Refused) -> Transaction:
    """Return the first transaction that removes the remains of a refused creation.

    Args:
        table: Its id.
        refused: The final answer.
    """
    return _set_going(_Drop(table, delete_files=False, outcome=refused))


def _set_going(drop: _Drop) -> Transaction:
    """Return the transaction that marks a table as going. Mark: its state."""
    keys = drop.keys

    def decide(seen: Seen) -> Decision:
        state = state_seen(keys, seen)
        if state is None:
            # Written again if it exists, because replicas need the mark of the dropped table.
            return Write((_dropped_mark(keys),), then=_unname(drop), durable=True)
        if state is TableState.GOING:
            return NoWrite(drop.outcome, then=_cancel_requests(drop))
        if drop.resumed or (drop.unfinished and state not in _UNFINISHED):
            return NoWrite(replace(MADE, complete=False) if drop.unfinished else drop.outcome)
        if drop.delete_files and state is TableState.FILLING:
            # Its files are those of the table that it will become, so other processes may need
            # them.
            return Refusal(
                RefusalCode.STATE,
                f"table {drop.table} is being filled, so its files stay: drop it without them",
            )
        if drop.delete_files and codec_table.is_lake_spec(seen["spec"]):
            reason = f"table {drop.table} is a lake table, its files belong to its log: detach it"
            return Refusal(RefusalCode.STATE, reason)
        what = "a drop that keeps the files"
        if not drop.delete_files and (refusal := refused_by_buffer(keys, seen, what)):
            return refusal
        fields: dict[str, Word] = {STATE: TableState.GOING.value, DELETES: int(drop.delete_files)}
        notes = dict.fromkeys(DELETED_WITH_TABLE) if drop.delete_files else {}
        effects = (
            hset(keys.table, fields),
            *into_garbage(keys, b"", notes),
            table_changed(drop.table, "going"),
        )
        return Write(effects, then=_cancel_requests(drop), durable=True)

    spec = Needs((), {"spec": hget(keys.table, SPEC)})
    return Transaction(table_state(keys) | buffer_segments(keys) | spec, decide)


def _not_going(drop: _Drop, seen: Seen) -> Decision | None:
    """Return the remaining decision if the table does not become going."""
    state = state_seen(drop.keys, seen)
    return None if state is TableState.GOING else NoWrite(drop.outcome, then=_set_going(drop))


def _cancel_requests(drop: _Drop) -> Transaction:
    """Return the transaction that makes open requests CANCELLING; new ones are refused."""
    keys = drop.keys
    reads = {"open": members_after(keys.open_requests, None, 2 * REQUESTS_OPEN_MAX)}

    def decide(seen: Seen) -> Decision:
        if (other := _not_going(drop, seen)) is not None:
            return other
        names = [request_of_member(member) for member in seen["open"]]
        own = {name: hgetall(keys.request(name)) for name in names}
        return More(Needs((), own), lambda further: cancelling(names, further))

    def cancelling(names: list[str], seen: Seen) -> Decision:
        requests = [
            unpack_request(keys.request(name), drop.table, name, seen[name]) for name in names
        ]
        effects = [
            hset(keys.request(request.id), request_fields(request))
            for request in map(_cancelled, requests)
            if request is not None
        ]
        then = _drop_next(drop)
        return Write(tuple(effects), then=then) if effects else NoWrite(drop.outcome, then=then)

    return Transaction(table_state(keys) | Needs((), reads), decide)


def _cancelled(request: Request | None) -> Request | None:
    """Return an active request as CANCELLING; None: nothing to change."""
    if request is None or request.state is not RequestState.ACTIVE:
        return None
    return replace(request, state=RequestState.CANCELLING, cause="its table is dropped")


def _drop_next(drop: _Drop) -> Transaction:
    """Return the transaction that removes the next tablet, requests, or the table."""
    keys = drop.keys
    reads = {
        "first": members_after(keys.index, None, 1),
        "deletes": hget(keys.table, DELETES),
        "garbage": hlen(keys.garbage),
        "requests": members_after(keys.requests, None, REQUESTS_PER_STEP),
    }

    def decide(seen: Seen) -> Decision:
        if (other := _not_going(drop, seen)) is not None:
            return other
        if seen["first"]:
            tablet = TabletId(drop.table, seen["first"][0])
            return More(_tablet_needs(tablet), lambda further: _dropped(drop, tablet, further))
        if seen["garbage"]:
            refused = isinstance(drop.outcome, Refused)
            return NoWrite(drop.outcome if refused else Applied(complete=False))
        if seen["requests"]:
            own = [keys.request(request_of_member(member)) for member in seen["requests"]]
            forgotten = (delete(*own), zrem(keys.requests, *seen["requests"]))
            return Write(forgotten, then=_drop_next(drop))
        segments = codec_table.unpack_segments(keys.rows, seen["segments"])
        buffered = [keys.segment(segment.number) for segment in segments]
        effects = (delete(*keys.every, *buffered), _dropped_mark(keys))
        return Write(effects, then=_unname(drop), durable=True)

    needs = table_state(keys) | Needs((keys.garbage, keys.index), reads)
    return Transaction(needs | buffer_segments(keys, watch=False), decide)


def _tablet_needs(tablet: TabletId) -> Needs:
    keys = TabletKeys.of(tablet)
    reads = {"running": hgetall(keys.running), "files": hgetall(keys.files)}
    return Needs((keys.running,), reads)


def _dropped(drop: _Drop, tablet: TabletId, seen: Seen) -> Decision:
    """Remove a tablet; outputs of its attempts and, if requested, its files become garbage."""
    keys, table = TabletKeys.of(tablet), drop.keys
    running = unpack_running(keys.running, seen["running"])
    waste: dict[str, bytes | None] = {}
    if seen["deletes"] == b"1":
        files = unpack_files(keys.files, seen["files"])
        waste = {path: file.key_min for path, file in files.items()}
    outputs = (uncommitted_outputs(table, tablet.end, entry) for entry in running.values())
    effects: tuple[Command, ...] = (
        *(effect for output in outputs for effect in output),
        *into_garbage(table, tablet.end, waste),
        delete(*keys.every),
        zrem(table.index, tablet.end),
        stream_entry(tablet, "drop"),
    )
    return Write(effects, then=_drop_next(drop))


def _dropped_mark(keys: TableKeys) -> Command:
    """Return the effect that prevents creations of a table with this id."""
    return set_string(keys.dropped, 1, DROPPED_LIFE_S)


def _unname(drop: _Drop) -> Transaction:
    """Return the last transaction, which frees the name. Mark: no entry has this id.

    Follows only on a transaction that left the mark of a dropped table and reached replicas.
    """

    def decide(seen: Seen) -> Decision:
        name = _name_of(drop.table, seen["names"])
        # Without a name nothing is removed, but the write makes replicas confirm earlier removals.
        effects = (hdel(TABLES, _NO_NAME if name is None else name),)
        return Write(effects, then=_answer(drop.outcome), durable=True)

    return Transaction(Needs((TABLES,), {"names": hgetall(TABLES)}), decide)


def _name_of(table: str, names: Mapping[bytes, bytes]) -> bytes | None:
    """Return the name that has an entry with a table's id, or None."""
    matches = (name for name, stored in names.items() if unpack_name(name, stored).id == table)
    return next(matches, None)


def _answer(outcome: Applied | Refused) -> Transaction:
    return Transaction(Needs(), lambda _seen: NoWrite(outcome))


# ---- Creating
#
# Only the last one is acknowledged. A table whose creator died in between stays new; the
# coordinator removes it later (`coordinator/storage/garbage_collector.py`).


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable(Change):
    """Create a table with its tablets. Refused: the name is invalid or taken, locations overlap.

    With `table.state` PAUSED the table becomes paused; with FILLING the run in `table.filling`
    fills it; otherwise it becomes live.
    """

    table: Table
    splits: tuple[bytes, ...] = ()
    """Ends of all tablets but the last, ascending. Ignored for a partitioned table."""
    identity: LocationIdentity | None = None
    """Identity of its location; None: derived from its URI."""
    others: Mapping[str, LocationIdentity] = field(default_factory=dict)
    """Table id → current identity of its location, for tables whose entry may be outdated."""
    generation: int = 0
    """Its first generation: above that of an earlier table in the location."""


_MADE_AS = frozenset({TableState.PAUSED, TableState.FILLING})
TABLETS_AT_ONCE = 1000
"""Maximum number of tablets that one transaction creates."""


@transaction_of.register
def create_table(change: CreateTable) -> Transaction:
    """Return the first transaction: the table itself, in state new. Mark: it is there."""
    table = change.table
    keys = TableKeys(table.id)
    assert is_table_id(table.id), table.id
    # The names are read without a watch, so that a taken name leaves nothing to remove.
    reads = {"names": hgetall(TABLES), "dropped": get(keys.dropped)}
    needs = whole_table(keys) | Needs((keys.dropped,), reads)

    def decide(seen: Seen) -> Decision:
        present = table_seen(keys, seen)
        if present is None and seen["dropped"] is not None:
            # A concurrent drop may be about to free its name, and would free this one.
            return Refusal(RefusalCode.EXISTS, f"table id {table.id} was in use")
        if present is None:
            if refusal := refused_by_names(change, seen["names"]):
                return refusal
            return Write(
                tuple(_first_effects(change)), then=_after_tablets(change, TABLETS_AT_ONCE)
            )
        if not _same(present, table):
            return Refusal(RefusalCode.EXISTS, f"table id {table.id} is in use")
        return NoWrite(then=_after_tablets(change, TABLETS_AT_ONCE))

    return Transaction(needs, decide)


def _first_effects(change: CreateTable) -> list[Command]:
    table = change.table
    fields = codec_table.table_fields(replace(table, state=TableState.NEW))
    keys = TableKeys(table.id)
    effects: list[Command] = [hset(keys.table, fields)]
    if change.generation:
        effects.append(set_string(keys.generation, change.generation))
    if not table.partition_by:
        effects += _tablet_effects(change, 0)
    return effects


def _tablet_effects(change: CreateTable, first: int) -> list[Command]:
    """Return the effects that create the tablets of one transaction.

    Args:
        change: The change.
        first: Number of tablets before them.
    """
    ends = change.splits[first : first + TABLETS_AT_ONCE]
    if len(ends) < TABLETS_AT_ONCE:
        ends = (*ends, PLUS_INFINITY)
    start = change.splits[first - 1] if first else None
    effects: list[Command] = []
    for end in ends:
        assert start is None or start < end, (start, end)
        effects += make_tablet(TabletId(change.table.id, end), Bounds(start, end))
        start = end
    return effects


def _after_tablets(change: CreateTable, count: int) -> Transaction:
    """Return what follows a number of tablets: further tablets, or the name.

    Mark: the table is no longer new. Until then a repetition writes the same empty tablets again.
    """
    if change.table.partition_by or count > len(change.splits):
        return _name(change)
    keys = TableKeys(change.table.id)

    def decide(seen: Seen) -> Decision:
        state = state_seen(keys, seen)
        if state is None or state is TableState.GOING:
            return _undone(change.table)
        if state is not TableState.NEW:
            return NoWrite(then=_name(change))
        following = _after_tablets(change, count + TABLETS_AT_ONCE)
        return Write(tuple(_tablet_effects(change, count)), then=following)

    return Transaction(table_state(keys), decide)


def _same(table: Table, wanted: Table) -> bool:
    """Return whether a table was created by an earlier try of the same change."""
    since = replace(
        wanted,
        state=table.state,
        triggered_at_s=table.triggered_at_s,
        triggered_by=table.triggered_by,
        filling=table.filling,
    )
    return table.state is not TableState.GOING and table == since


def _name(change: CreateTable) -> Transaction:
    """Return the second transaction: the name. Mark: the name's entry has this id."""
    table = change.table

    def decide(seen: Seen) -> Decision:
        is_named = _name_of(table.id, seen["names"]) == table.name.encode()
        if not is_named and (refusal := refused_by_names(change, seen["names"])):
            # Another table was first. The result of the first transaction is removed.
            refused = Refused(code=refusal.code, reason=refusal.reason)
            return NoWrite(then=undo_create(table.id, refused))
        # Written again if it exists, because replicas must have the name of a live table.
        effects = (hset(TABLES, {table.name: codec_table.pack_name(table, change.identity)}),)
        return Write(effects, then=_go_live(table), durable=True)

    return Transaction(Needs((TABLES,), {"names": hgetall(TABLES)}), decide)


def refused_by_names(change: CreateTable, names: Mapping[bytes, bytes]) -> Refusal | None:
    """Return why a table may not have its name or location, or None."""
    table = change.table
    if DNS_LABEL.fullmatch(table.name) is None:
        return Refusal(RefusalCode.NAME, f"table name {table.name[:100]!r} is not a DNS label")
    overlaps = overlap_test(change.identity or identity_of_uri(table.location))
    for name, stored in names.items():
        other = unpack_name(name, stored)
        if other.name == table.name:
            return Refusal(RefusalCode.EXISTS, f"table {table.name} exists already")
        if overlaps(change.others.get(other.id, other.identity)):
            return Refusal(
                RefusalCode.LOCATION, location_overlap(table.location, other.location, other.name)
            )
    return None


def location_overlap(location: str, other: str, name: str) -> str:
    """Return the message about a location that shares files with another table's."""
    return f"location {location} overlaps {other} of table {name!r}; two tables may not share files"


def _go_live(table: Table) -> Transaction:
    """Return the last transaction: new → live, paused or filling. Mark: it is no longer new."""
    keys = TableKeys(table.id)
    wanted = table.state if table.state in _MADE_AS else TableState.LIVE

    def decide(seen: Seen) -> Decision:
        present = table_seen(keys, seen)
        if present is None or present.state is TableState.GOING:
            return _undone(table)
        if present.state is not TableState.NEW:
            return NoWrite()
        effects = (hset(keys.table, {STATE: wanted.value}), table_changed(table.id, "create"))
        return Write(effects, durable=True)

    return Transaction(whole_table(keys), decide)


def _undone(table: Table) -> NoWrite:
    """Return the removal of what is left of a table that was dropped during its creation.

    A name without a table would block the name forever.
    """
    reason = f"table {table.name} was dropped while it was created"
    return NoWrite(then=undo_create(table.id, Refused(code=RefusalCode.TABLE, reason=reason)))


# ---- Filling
#
# A recovery creates the table first and adds its files step by step (`restore_files`, `add_files`).
# If it is interrupted, the table stays invisible to readers and changes.


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFilling(Change):
    """Take over a table that is being filled: the previous run may not add files any more."""

    table: str
    run: str
    verb: str
    files: int
    """Number of files that the table has when this run ends."""


def may_fill(table: str, current: Table | None, run: str) -> Refusal | None:
    """Return why a run may not put files into a table, or None.

    Args:
        table: Its id.
        current: The current table.
        run: Fencing token of the run; empty: no run, so no run may be filling the table.
    """
    if not run:
        return may_change(table, current.state if current else None)
    if current is None:
        return may_change(table, None)
    filling = current.filling
    if filling is None:
        return Refusal(
            RefusalCode.STATE, f"table {table} is {current.state.value}: its filling has ended"
        )
    if filling.run != run:
        return Refusal(
            RefusalCode.STATE,
            f"table {table} is being filled by run {filling.run}, which has replaced run {run}",
        )
    return None


def filled(keys: TableKeys, run: str, count: int) -> tuple[Command, ...]:
    """Return the effect that counts files that a run has added to a table."""
    return (hincrby(keys.table, FILLED, count),) if run and count else ()


@transaction_of.register
def resume_filling(change: ResumeFilling) -> Transaction:
    """Return the transaction that takes over a filling table. Mark: this run fills it."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        table = table_seen(keys, seen)
        present = table.filling if table else None
        if refusal := may_fill(change.table, table, present.run if present else change.run):
            return refusal
        filling = Filling(run=change.run, verb=change.verb, files=change.files)
        fields = {FILLING: codec_table.pack_filling(filling)}
        return Write((hset(keys.table, fields),), durable=True)

    return Transaction(whole_table(keys), decide)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishFilling(Change):
    """Make a filled table live or paused. Refused: another run fills it, or files are missing."""

    table: str
    run: str
    files: int
    """Number of files that the run has added; the table must have counted the same number."""
    state: TableState
    """LIVE or PAUSED."""
    incomplete: bool = False
    """Whether the recovery missed files; only for a paused table."""


@transaction_of.register
def finish_filling(change: FinishFilling) -> Transaction:
    """Return the transaction that makes a filled table live or paused.

    Mark: the state has changed, and this run has filled it. All files were added: each
    transaction that added some has counted them in the table's own hash.
    """
    keys = TableKeys(change.table)
    assert change.state in {TableState.LIVE, TableState.PAUSED}, change.state
    assert change.state is TableState.PAUSED or not change.incomplete, change

    def decide(seen: Seen) -> Decision:
        table = table_seen(keys, seen)
        filling = codec_table.unpack_filling(keys.table, seen["table"]) if table else None
        if table is not None and table.state in {TableState.LIVE, TableState.PAUSED}:
            has_filled = filling is not None and filling.run == change.run
            return NoWrite() if has_filled else _filling_ended(change.table, table.state)
        if refusal := may_fill(change.table, table, change.run):
            return refusal
        assert filling is not None, change.table
        if filling.done != change.files:
            return Refusal(
                RefusalCode.STATE,
                f"table {change.table} has {filling.done} of the {change.files} files that were "
                "added: repeat the command that filled it",
            )
        fields: dict[str, Word] = {STATE: change.state.value}
        if change.incomplete:
            fields[INCOMPLETE] = 1
        effects = (hset(keys.table, fields), table_changed(change.table, "create"))
        return Write(effects, durable=True)

    return Transaction(whole_table(keys), decide)


def _filling_ended(table: str, state: TableState) -> Refusal:
    return Refusal(RefusalCode.STATE, f"table {table} is {state.value}: its filling has ended")


# ---- A lost name
#
# Tables and names may go back to different moments, each with its node. Only the coordinator finds
# a table without a name, and restores the name.


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreName(Change):
    """Restore the lost name of a live or paused table, if name and location are free."""

    table: str
    identity: LocationIdentity | None = None
    """Identity of its location, as in `CreateTable`."""
    others: Mapping[str, LocationIdentity] = field(default_factory=dict)
    """Table id → current identity of its location, where it is known."""


@transaction_of.register
def restore_name(change: RestoreName) -> Transaction:
    """Return the first transaction: read the table. Mark: the name's entry has this id."""
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        table = table_seen(keys, seen)
        if refusal := may_change(change.table, table.state if table else None):
            return refusal
        assert table is not None, change.table
        return NoWrite(then=_name_again(change, table))

    return Transaction(whole_table(keys, watch=False), decide)


def _name_again(change: RestoreName, table: Table) -> Transaction:
    """Return the transaction that writes the name, if it and the location are free."""
    wanted = CreateTable(table=table, identity=change.identity, others=change.others)

    def decide(seen: Seen) -> Decision:
        if _name_of(table.id, seen["names"]) is None and (
            refusal := refused_by_names(wanted, seen["names"])
        ):
            return refusal
        effects = (hset(TABLES, {table.name: codec_table.pack_name(table, change.identity)}),)
        return Write(effects, then=_still_there(table), durable=True)

    return Transaction(Needs((TABLES,), {"names": hgetall(TABLES)}), decide)


def _still_there(table: Table) -> Transaction:
    """Return the last transaction: a table that was dropped in between needs no name."""
    keys = TableKeys(table.id)

    def decide(seen: Seen) -> Decision:
        state = state_seen(keys, seen)
        refusal = may_change(table.id, state)
        if refusal is None:
            return NoWrite()
        refused = Refused(code=refusal.code, reason=refusal.reason)
        return NoWrite(then=undo_create(table.id, refused))

    return Transaction(table_state(keys), decide)


# -------------------------------------------------------------------------- Changing and triggering


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTable(Change):
    """Write new settings or another state. Refused if `settings_version` is outdated."""

    table: str
    settings_version: int
    settings: TableSettings | None = None
    state: TableState | None = None
    """LIVE or PAUSED."""
    schema: tuple[Column, ...] | None = None
    """All columns; the schema's id is incremented."""


@transaction_of.register
def change_table(change: ChangeTable) -> Transaction:
    """Return the transaction that writes settings or state. Mark: they are there.

    New settings increment their version, which makes every analysis stale; a pause does not.
    Callers rely on the acknowledged state, so replicas must have it.
    """
    keys = TableKeys(change.table)
    assert change.state in {None, TableState.LIVE, TableState.PAUSED}, change.state

    def decide(seen: Seen) -> Decision:
        table = table_seen(keys, seen)
        if refusal := may_change(change.table, table.state if table else None):
            return refusal
        assert table is not None, change.table
        fields = _new_fields(change, table)
        if not fields:
            # Written again, so that replicas have it before it is acknowledged again.
            return Write((hset(keys.table, {STATE: table.state.value}),), durable=True)
        if table.settings_version != change.settings_version:
            return Refusal(
                RefusalCode.VERSION,
                f"table {table.name} has settings version {table.settings_version}, "
                f"the change was made for {change.settings_version}",
            )
        effects = (hset(keys.table, fields), table_changed(change.table, "table"))
        return Write(effects, durable=True)

    return Transaction(whole_table(keys), decide)


def _new_fields(change: ChangeTable, table: Table) -> dict[str, Word]:
    fields: dict[str, Word] = {}
    if change.settings is not None and change.settings != table.settings:
        # The caller may have created the settings without the unknown fields.
        newer = replace(change.settings, unknown_fields=table.settings.unknown_fields)
        fields[SETTINGS] = codec_table.pack_settings(newer)
    if change.schema is not None and change.schema != table.schema:
        grown = replace(table, schema=change.schema, schema_id=table.schema_id + 1)
        fields[SPEC] = codec_table.table_fields(grown)[SPEC]
    if fields:
        fields[SETTINGS_VERSION] = table.settings_version + 1
    if change.state is not None and change.state is not table.state:
        fields[STATE] = change.state.value
        if change.state is TableState.LIVE and table.incomplete:
            fields[INCOMPLETE] = b""  # The operator who resumes it accepts missing files.
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerTable(Guarded):
    """Make the planner plan every tablet of a table. Refused if the table is not live."""

    table: str
    trigger: str
    """One of `common.model.table.TRIGGERS`."""


TRIGGER_STEP_S = 0.001


@transaction_of.register
def trigger_table(change: TriggerTable) -> Transaction:
    """Return the transaction that records a trigger.

    A repetition triggers again, which is harmless, because the planner decides.
    """
    keys = TableKeys(change.table)

    def decide(seen: Seen) -> Decision:
        table = table_seen(keys, seen)
        if refusal := may_change(change.table, table.state if table else None):
            return refusal
        assert table is not None, change.table
        if table.state is not TableState.LIVE:
            return Refusal(
                RefusalCode.PAUSED,
                f"table {table.name} is {table.state.value}: its planner runs only while it is"
                f" live (`neve resume {table.name}`)",
            )
        # Later than the last trigger, whatever the clock reads: a tablet answers triggers in order.
        at_s = max(seen.now_s, table.triggered_at_s + TRIGGER_STEP_S)
        fields: dict[str, Word] = {TRIGGERED: codec_table.pack_triggered(at_s, change.trigger)}
        return Write((hset(keys.table, fields), table_changed(change.table, "trigger")))

    return Transaction(whole_table(keys), decide)
