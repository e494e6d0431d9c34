"""Create a table, in three transactions: the table, its name, live. And change its settings.

Only the last one is acknowledged. A table that lost its creator between them stays new;
the coordinator removes it after a while (`coordinator/unfinished.py`).
"""

from collections.abc import Mapping
from dataclasses import replace

from common.metadata import codec_table
from common.metadata.changes import ChangeTable, CreateTable, Refused
from common.metadata.codec_table import SETTINGS, SETTINGS_VERSION, SPEC, STATE, unpack_name
from common.metadata.commands import Command, Word, hgetall, hset, set_string
from common.metadata.keys import TABLES, TableKeys, is_table_id
from common.metadata.mutation.adds import created
from common.metadata.mutation.drops import undo_create
from common.metadata.mutation.effects import table_changed
from common.metadata.mutation.requirements import table_seen, whole_table
from common.metadata.mutation.transaction import (
    Decision,
    Done,
    Needs,
    Seen,
    Transaction,
    Write,
)
from common.metadata.predicates import may_change
from common.model.location_identity import identity_of_uri, overlap_test
from common.model.outcome import Refusal
from common.model.table import DNS_LABEL, Table, TableState
from common.model.tablet import PLUS_INFINITY, Bounds, TabletId


def create_table(change: CreateTable) -> Transaction:
    """Return the first transaction: the table itself, in state new. Mark: it is there."""
    table = change.table
    keys = TableKeys(table.id)
    assert is_table_id(table.id), table.id
    # The names are only glanced at here, so that a taken one leaves nothing behind.
    needs = whole_table(keys) | Needs((), {"names": hgetall(TABLES)})

    def decide(seen: Seen) -> Decision:
        present = table_seen(keys, seen)
        if present is None:
            if refusal := refused_by_names(change, seen["names"]):
                return refusal
            return Write(tuple(_first_effects(change)), then=_name(change))
        if not _same(present, table):
            return Refusal("exists", f"table id {table.id} is in use")
        return Done(then=_name(change))

    return Transaction(needs, decide)


def _first_effects(change: CreateTable) -> list[Command]:
    table = change.table
    fields = codec_table.table_fields(replace(table, state=TableState.NEW))
    keys = TableKeys(table.id)
    effects: list[Command] = [hset(keys.table, fields)]
    if change.generation:
        effects.append(set_string(keys.generation, change.generation))
    if not table.partition_by:
        start: bytes | None = None
        for end in (*change.splits, PLUS_INFINITY):
            assert start is None or start < end, (start, end)
            effects += created(TabletId(table.id, end), Bounds(start, end))
            start = end
    return effects


def _same(present: Table, wanted: Table) -> bool:
    """Return whether a table is the one wanted, by an earlier try of the same change."""
    return present.state is not TableState.GOING and present == replace(wanted, state=present.state)


def _name(change: CreateTable) -> Transaction:
    """Return the second transaction: the name. Mark: the name's entry has this id."""
    table = change.table

    def decide(seen: Seen) -> Decision:
        stored = seen["names"].get(table.name.encode())
        if stored is not None and unpack_name(table.name.encode(), stored).id == table.id:
            return Done(then=_go_live(table))
        if refusal := refused_by_names(change, seen["names"]):
            # Another table came first. What the first transaction made goes again.
            refused = Refused(code=refusal.code, reason=refusal.reason)
            return Done(then=undo_create(table.id, refused))
        effects = (hset(TABLES, {table.name: codec_table.pack_name(table, change.identity)}),)
        return Write(effects, then=_go_live(table))

    return Transaction(Needs((TABLES,), {"names": hgetall(TABLES)}), decide)


def refused_by_names(change: CreateTable, names: Mapping[bytes, bytes]) -> Refusal | None:
    """Return why a table may not have its name or location, or None."""
    table = change.table
    if DNS_LABEL.fullmatch(table.name) is None:
        return Refusal("name", f"table name {table.name[:100]!r} is no DNS label")
    overlaps = overlap_test(change.identity or identity_of_uri(table.location))
    for name, stored in names.items():
        other = unpack_name(name, stored)
        if other.name == table.name:
            return Refusal("exists", f"table {table.name} exists already")
        if overlaps(change.others.get(other.id, other.identity)):
            return Refusal("location", overlapping(table.location, other.location, other.name))
    return None


def overlapping(location: str, other: str, name: str) -> str:
    """Return the sentence about a location that shares files with another table's."""
    return f"location {location} overlaps {other} of table {name!r}; two tables may not share files"


def _go_live(table: Table) -> Transaction:
    """Return the last transaction: new → live (or paused). Mark: it is no longer new."""
    keys = TableKeys(table.id)
    wanted = TableState.PAUSED if table.state is TableState.PAUSED else TableState.LIVE

    def decide(seen: Seen) -> Decision:
        present = table_seen(keys, seen)
        if present is None or present.state is TableState.GOING:
            # What it has by now goes again: a name that leads nowhere could never be used.
            reason = f"table {table.name} was dropped while it was made"
            return Done(then=undo_create(table.id, Refused(code="table", reason=reason)))
        if present.state is not TableState.NEW:
            return Done()
        effects = (hset(keys.table, {STATE: wanted.value}), *table_changed(table.id, "create"))
        return Write(effects, durable=True)

    return Transaction(whole_table(keys), decide)


def change_table(change: ChangeTable) -> Transaction:
    """Return the transaction that writes settings or state. Mark: they are there.

    New settings count their version up, which makes every analysis stale; a pause does not.
    Whoever was told that a table is no longer paused relies on it, so replicas must know.
    """
    keys = TableKeys(change.table)
    assert change.state in {None, TableState.LIVE, TableState.PAUSED}, change.state

    def decide(seen: Seen) -> Decision:
        present = table_seen(keys, seen)
        if refusal := may_change(change.table, present.state if present else None):
            return refusal
        assert present is not None, change.table
        fields = _new_fields(change, present)
        if not fields:
            # Written once more, so that replicas have it before it is acknowledged again.
            return Write((hset(keys.table, {STATE: present.state.value}),), durable=True)
        if present.settings_version != change.settings_version:
            return Refusal(
                "version",
                f"table {present.name} has settings version {present.settings_version}, "
                f"the change was made for {change.settings_version}",
            )
        effects = (hset(keys.table, fields), *table_changed(change.table, "table"))
        return Write(effects, durable=True)

    return Transaction(whole_table(keys), decide)


def _new_fields(change: ChangeTable, present: Table) -> dict[str, Word]:
    fields: dict[str, Word] = {}
    if change.settings is not None and change.settings != present.settings:
        # Whoever asks for them may have made them from nothing.
        newer = replace(change.settings, unknown_fields=present.settings.unknown_fields)
        fields[SETTINGS] = codec_table.pack_settings(newer)
    if change.schema is not None and change.schema != present.schema:
        grown = replace(present, schema=change.schema, schema_id=present.schema_id + 1)
        fields[SPEC] = codec_table.table_fields(grown)[SPEC]
    if fields:
        fields[SETTINGS_VERSION] = present.settings_version + 1
    if change.state is not None and change.state is not present.state:
        fields[STATE] = change.state.value
    return fields
