"""Repairs of entries: what is said of a file corrected, moved to its tablet, put back."""

from dataclasses import replace

from common.metadata.commands import Command, get
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation import requirements as need
from common.metadata.mutation.adds import created
from common.metadata.mutation.effects import changed, file_counts, files_written
from common.metadata.mutation.repair_parts import (
    held,
    refused_held,
    stored_file,
    taken_out,
    touched,
)
from common.metadata.mutation.results import purge_raised
from common.metadata.mutation.transaction import Decision, Done, Needs, Seen, Transaction, Write
from common.metadata.predicates import may_add, may_change
from common.metadata.repair_changes import MoveFile, PutFiles, RestateFile
from common.model.file import DataFile
from common.model.outcome import Refusal
from common.model.table import Table, TableState
from common.model.tablet import Bounds, TabletId


def restate_file(change: RestateFile) -> Transaction:
    """Return the transaction that corrects a file's entry. Mark: the new entry."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    path = change.before.path
    assert path == change.after.path, change
    needs = need.whole_table(table) | held(keys) | _place(keys, "")
    needs |= need.some_files(keys, (path,))

    def decide(seen: Seen) -> Decision:
        found = need.table_seen(table, seen)
        stored = seen["some"][0]
        present = None if stored is None else stored_file(keys, path, stored)
        if present == change.after:
            return Done()
        if present is None or present != change.before:
            return Refusal("version", f"tablet {change.tablet}: file {path} is another by now")
        refusal = _refused_place(found, change.tablet, change.after, seen, "")
        if refusal := refusal or refused_held(change.tablet, keys, [path], seen):
            return refusal
        counts = file_counts([change.after], [change.before])
        after = replace(change.after, unknown_fields=present.unknown_fields)
        return Write(
            (
                *touched(keys),
                *files_written(keys, [after]),
                *changed(change.tablet, "restate", counts=counts),
            )
        )

    return Transaction(needs, decide)


def move_file(change: MoveFile) -> Transaction:
    """Return the transaction that moves an entry. Mark: the file is in the target."""
    keys, target = TabletKeys.of(change.tablet), TabletKeys.of(change.target)
    table = TableKeys(change.tablet.table)
    needs = need.whole_table(table) | held(keys) | _place(target, "target/")
    needs |= need.some_files(keys, (change.path,)) | Needs((keys.operation,))

    def decide(seen: Seen) -> Decision:
        found = need.table_seen(table, seen)
        stored = seen["some"][0]
        if stored is None:
            return Done()
        file = stored_file(keys, change.path, stored)
        refusal = _refused_place(found, change.target, file, seen, "target/")
        if refusal := refusal or refused_held(change.tablet, keys, [change.path], seen):
            return refusal
        return Write(
            (
                *taken_out(keys, [change.path]),
                *changed(change.tablet, "move", counts=file_counts((), [file])),
                *files_written(target, [file]),
                *changed(change.target, "move", counts=file_counts([file])),
            )
        )

    return Transaction(needs, decide)


def put_files(change: PutFiles) -> Transaction:
    """Return the transaction that puts files back. Mark: they are there."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    paths = [file.path for file in change.files]
    needs = need.whole_table(table) | _place(keys, "") | Needs((keys.files,))
    if paths:
        needs |= need.some_files(keys, tuple(paths))

    def decide(seen: Seen) -> Decision:
        found = need.table_seen(table, seen)
        if found is None or found.state is not TableState.PAUSED:
            return Refusal("state", f"table {change.tablet.table} must be paused to take files")
        stored = need.bounds_seen(keys, seen["bounds"])
        if stored is None and change.partition is None:
            return need.gone(change.tablet)
        fresh = _fresh(change, keys, seen)
        bounds = stored or Bounds(None, change.tablet.end, change.partition)
        if isinstance(fresh, Refusal):
            return fresh
        if refusal := _refused_files(change.tablet, fresh, bounds):
            return refusal
        effects = [] if stored else created(change.tablet, bounds)
        effects += _put(change, fresh, seen)
        return Write(tuple(effects), durable=True) if effects else Done()

    return Transaction(needs, decide)


def _put(change: PutFiles, fresh: list[DataFile], seen: Seen) -> list[Command]:
    effects: list[Command] = []
    if change.purge is not None:
        effects += purge_raised(change.tablet, seen["purge"], change.purge)
    effects += files_written(TabletKeys.of(change.tablet), fresh)
    if effects:
        effects += changed(change.tablet, "put", counts=file_counts(fresh))
    return effects


def _fresh(change: PutFiles, keys: TabletKeys, seen: Seen) -> list[DataFile] | Refusal:
    """Return the files that are not there yet."""
    fresh: list[DataFile] = []
    for file, stored in zip(change.files, seen["some"] if change.files else (), strict=True):
        if stored is None:
            fresh.append(file)
        elif stored_file(keys, file.path, stored) != file:
            return Refusal("exists", f"tablet {change.tablet}: another {file.path} is there")
    return fresh


def _place(keys: TabletKeys, prefix: str) -> Needs:
    """Need what decides whether a file may be in a tablet."""
    reads = {
        f"{prefix}bounds": get(keys.bounds),
        f"{prefix}operation": get(keys.operation),
        f"{prefix}purge": get(keys.purge),
    }
    return Needs((keys.bounds, keys.operation, keys.files, keys.purge), reads)


def _refused_place(
    table: Table | None, tablet: TabletId, file: DataFile, seen: Seen, prefix: str
) -> Refusal | None:
    keys = TabletKeys.of(tablet)
    if refusal := may_change(tablet.table, table.state if table else None):
        return refusal
    bounds = need.bounds_seen(keys, seen[f"{prefix}bounds"])
    if bounds is None:
        return need.gone(tablet)
    operation = need.operation_seen(keys, seen[f"{prefix}operation"])
    # The rows were in the table before: the watermark keeps out those that come anew.
    return may_add(tablet, file, bounds=bounds, operation=operation, purge=None, late_data=True)


def _refused_files(tablet: TabletId, files: list[DataFile], bounds: Bounds) -> Refusal | None:
    for file in files:
        refusal = may_add(tablet, file, bounds=bounds, operation=None, purge=None, late_data=True)
        if refusal is not None:
            return refusal
    return None
