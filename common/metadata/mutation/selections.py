"""Mark waiting, select, complete here: how a request gets hold of files and is done with them.

The counts of a record follow from what was read; so whoever counts a marker watches it,
also where the decision alone would not need that.
"""

from collections.abc import Collection

from common.metadata.codec import VALUE_BYTES_MAX
from common.metadata.codec_tablet import DONE, SELECTED, SELECTION, WAITING
from common.metadata.commands import Command, Word, delete, hdel, hset, sadd, set_string
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation.effects import changed
from common.metadata.mutation.request_parts import own_request, request_here
from common.metadata.mutation.requirements import (
    gone,
    refused_by_table,
    table_state,
    tablet_seen,
    tablet_without_files,
    whole_tablet,
)
from common.metadata.mutation.transaction import Decision, Done, Seen, Transaction, Write
from common.metadata.request_changes import CompleteHere, MarkWaiting, Select
from common.metadata.request_predicates import may_complete, may_select, may_wait
from common.model.outcome import Refusal
from common.model.tablet import Selection, Tablet

TOO_LARGE = "too-large"
"""The code of a refusal that no other try gets past."""
SELECTION_BYTES_MAX = VALUE_BYTES_MAX // 2
"""Of the names of the files in a new one. Results are named twice, and their jobs merge files."""
TEXT_HEAD_BYTES = 5
"""What stands before a text in a value, at most."""


def mark_waiting(change: MarkWaiting) -> Transaction:
    """Return the transaction of a marker. Mark: `waiting[r]`."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.operation, keys.selection, keys.done, keys.waiting)

    def decide(seen: Seen) -> Decision:
        here = request_here(change.tablet, change.request, seen)
        if isinstance(here, Refusal):
            return here
        tablet, request = here
        if change.request in tablet.waiting:
            return Done()
        if refusal := may_wait(tablet, request):
            return refusal
        effects = (
            hset(keys.waiting, {change.request: seen.now_s}),
            *changed(change.tablet, "wait", request=change.request, counts={WAITING: 1}),
        )
        return Write(effects)

    needs = table_state(table) | own_request(table, change.request)
    return Transaction(needs | tablet_without_files(keys, watch), decide)


def select(change: Select) -> Transaction:
    """Return the transaction of a selection. Mark: the selection is r's, or r is done here.

    `files` is not watched: while nothing runs and no operation is under way, no file
    leaves, and one that comes was not shown, so it is not chosen.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.operation, keys.running, keys.selection, keys.done, keys.waiting)

    def decide(seen: Seen) -> Decision:
        here = request_here(change.tablet, change.request, seen)
        if isinstance(here, Refusal):
            return here
        tablet, request = here
        if seen.sent and _selected(tablet, change.request):
            return Done()
        if refusal := may_select(tablet, request, shown=change.shown, chosen=change.chosen):
            return refusal
        files = tuple(path for path in change.chosen if not tablet.files[path].open)
        if refusal := too_large(tablet, change.request, files):
            return refusal
        if files:
            selection = Selection(request=change.request, files=files, since_s=seen.now_s)
            return Write(_held(tablet, selection))
        return Write(_nothing_chosen(tablet, change.request))

    needs = table_state(table) | own_request(table, change.request)
    return Transaction(needs | whole_tablet(keys, watch), decide)


def too_large(tablet: Tablet, request: str, files: Collection[str]) -> Refusal | None:
    """Return why so many files cannot be held, or None if they can.

    A selection is one value, and its jobs must be able to name all of their results in it.
    """
    size_bytes = sum(len(path.encode()) + TEXT_HEAD_BYTES for path in files)
    if size_bytes <= SELECTION_BYTES_MAX:
        return None
    return Refusal(
        TOO_LARGE,
        f"tablet {tablet.id}: the names of the {len(files):,} files that request {request} "
        f"selects have {size_bytes:,} bytes, at most {SELECTION_BYTES_MAX:,} can be held: "
        "select a part of them (`--start`, `--end`, a selector), or have the tablet split",
    )


def _selected(tablet: Tablet, request: str) -> bool:
    """Return whether an earlier try has selected, or found nothing to select."""
    selection = tablet.selection
    return request in tablet.done or (selection is not None and selection.request == request)


def _held(tablet: Tablet, selection: Selection) -> tuple[Command, ...]:
    """Hold the files. Every request's marker goes: they take turns by age, and mark again."""
    keys = TabletKeys.of(tablet.id)
    flags: dict[str, Word] = {SELECTED: 1, WAITING: 0}
    return (
        set_string(keys.selection, SELECTION.pack(selection)),
        delete(keys.waiting),
        *changed(tablet.id, "select", request=selection.request, flags=flags),
    )


def _nothing_chosen(tablet: Tablet, request: str) -> tuple[Command, ...]:
    keys = TabletKeys.of(tablet.id)
    counts = {DONE: 1, WAITING: -int(request in tablet.waiting)}
    return (
        sadd(keys.done, request),
        hdel(keys.waiting, request),
        *changed(tablet.id, "select", request=request, counts=counts),
    )


def complete_here(change: CompleteHere) -> Transaction:
    """Return the transaction that ends a selection. Mark: r is in done."""
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    watch = (keys.running, keys.selection)

    def decide(seen: Seen) -> Decision:
        if refusal := refused_by_table(table, seen):
            return refusal
        tablet = tablet_seen(change.tablet, keys, seen)
        if tablet is None:
            return gone(change.tablet)
        refusal = may_complete(tablet, change.request, change.files)
        if refusal is not None:
            return Done() if change.request in tablet.done else refusal
        flags: dict[str, Word] = {SELECTED: 0}
        counts = {DONE: 1}
        told = changed(
            change.tablet, "complete", request=change.request, counts=counts, flags=flags
        )
        return Write((delete(keys.selection), sadd(keys.done, change.request), *told))

    needs = table_state(table, watch=False) | tablet_without_files(keys, watch)
    return Transaction(needs, decide)
