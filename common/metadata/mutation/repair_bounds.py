"""Repairs of tablets that overlap: one begins where the other ends, or two become one.

No split or merge leaves tablets so: a store that was damaged or mixed does. By the tile
rule readers see one of the two only, or are refused, until it is mended.
"""

from dataclasses import replace

from common.metadata.bounds_predicates import why_busy
from common.metadata.codec_tablet import BOUNDS
from common.metadata.commands import get, set_string
from common.metadata.keys import TableKeys, TabletKeys
from common.metadata.mutation import requirements as need
from common.metadata.mutation.bounds import merged
from common.metadata.mutation.effects import changed
from common.metadata.mutation.operations import of_tablet, tablet_there, tablets_seen
from common.metadata.mutation.transaction import Decision, Done, Needs, Seen, Transaction, Write
from common.metadata.repair_changes import JoinTablets, TrimTablet
from common.model.file import DataFile
from common.model.outcome import Refusal
from common.model.tablet import Tablet, TabletId


def trim_tablet(change: TrimTablet) -> Transaction:
    """Return the transaction that lets a tablet begin later. Mark: its bounds.

    All its files lie behind the new start, so what runs on them may go on.
    """
    keys, table = TabletKeys.of(change.tablet), TableKeys(change.tablet.table)
    before = TabletKeys.of(TabletId(change.tablet.table, change.start))
    needs = need.table_state(table)
    needs |= need.whole_tablet(keys, (keys.bounds, keys.files, keys.operation))
    needs |= Needs((before.bounds,), {"before": get(before.bounds)})

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        tablet = need.tablet_seen(change.tablet, keys, seen)
        if tablet is None:
            return need.gone(change.tablet)
        if tablet.bounds.start == change.start:
            return Done()
        if refusal := _refused_trim(change, tablet, seen):
            return refusal
        bounds = replace(tablet.bounds, start=change.start)
        effects = changed(change.tablet, "trim")
        return Write((set_string(keys.bounds, BOUNDS.pack(bounds)), *effects))

    return Transaction(needs, decide)


def _refused_trim(change: TrimTablet, tablet: Tablet, seen: Seen) -> Refusal | None:
    subject = f"tablet {change.tablet}"
    if tablet.bounds.start != change.before:
        return Refusal("bounds", f"{subject} starts elsewhere by now")
    if seen["before"] is None or change.start >= change.tablet.end:
        return Refusal("bounds", f"{subject}: no tablet before it ends at {change.start.hex()}")
    if tablet.operation is not None:
        return Refusal("operation", f"{subject}: a {tablet.operation.kind.value} is under way")
    for path, file in sorted(tablet.files.items()):
        if _reaches(file, change.start):
            return Refusal("bounds", f"{subject}: file {path} has keys before the new start")
    return None


def _reaches(file: DataFile, key: bytes) -> bool:
    """Return whether a file may hold rows up to a key."""
    return file.key_min <= key if file.key_min is not None else file.rows > 0


def join_tablets(change: JoinTablets) -> Transaction:
    """Return the transaction that makes one of two tablets. Mark: the left one is gone."""
    table, both = TableKeys(change.left.table), (change.left, change.right)
    needs = need.table_state(table)
    for tablet in both:
        keys = TabletKeys.of(tablet)
        watch = [key for key in keys.every if key != keys.record]
        needs |= of_tablet(tablet, need.whole_tablet(keys, watch))

    def decide(seen: Seen) -> Decision:
        if refusal := need.refused_by_table(table, seen):
            return refusal
        if _is_joined(change, seen):
            return Done()
        found = tablets_seen(both, seen)
        if isinstance(found, Refusal):
            return found
        left, right = found
        if refusal := why_not_joined(left, right):
            return refusal
        starts = (left.bounds.start, right.bounds.start)
        return Write(merged(left, right, min(each or b"" for each in starts) or None))

    return Transaction(needs, decide)


def _is_joined(change: JoinTablets, seen: Seen) -> bool:
    """Return whether the left tablet is gone, and the right one holds its last key."""
    right = tablet_there(change.right, seen)
    if right is None or tablet_there(change.left, seen) is not None:
        return False
    return right.bounds.start is None or right.bounds.start < change.left.end


def why_not_joined(left: Tablet, right: Tablet) -> Refusal | None:
    """Return why two tablets that overlap may not become one, or None if they may.

    A job that drops a dead row has made sure that no other file of *its* tablet holds an
    older one. What the other tablet holds it has not seen: that row would rise.
    """
    start = right.bounds.start
    if left.bounds.end >= right.bounds.end or (start is not None and start >= left.bounds.end):
        return Refusal("bounds", f"tablets {left.id} and {right.id} do not overlap")
    for tablet in (left, right):
        if refusal := why_busy(tablet):
            return refusal
    if left.running:
        attempts = ", ".join(sorted(left.running))
        return Refusal("running", f"tablet {left.id}: attempts are running: {attempts}")
    for one, other in ((left, right), (right, left)):
        if one.purge is not None and other.files:
            return Refusal(
                "purged",
                f"tablet {one.id}: dead rows were dropped of which tablet {other.id} may hold "
                "older ones, that would rise",
            )
    return None
