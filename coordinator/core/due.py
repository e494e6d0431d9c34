"""When is a quiet tablet to be looked at again, though nothing has changed? Pure.

Three things depend on time alone: marks of settled versions, which let tombstones be
dropped; what a planner says of itself; and the answers of selectors (`core.automatic`).
What comes out is written beside the analysis in the tablet's record: the full scan reads
it there, so that a tablet whose time has not come still costs one read.
"""

from operator import attrgetter

from common.model.job import TabletPlan
from common.model.table import Table
from common.model.tablet import Tablet
from coordinator.core.settle import MARKS_PER_RETENTION, Marks, next_marks

_TOMBSTONES = attrgetter("tombstones")


def earliest(*times_s: float | None) -> float | None:
    """Return the first of some times; None among them means never."""
    known = [time_s for time_s in times_s if time_s is not None]
    return min(known, default=None)


def next_look_s(tablet: Tablet, table: Table, plan: TabletPlan) -> float | None:
    """Return when a tablet is to be looked at again if nothing changes, or None.

    Args:
        tablet: As it was read.
        table: Its table.
        plan: What its planners have said of it.
    """
    return earliest(plan.due_at_s, _marks_due_s(tablet, table))


def marks_wanted(tablet: Tablet, table: Table, now_s: float) -> Marks | None:
    """Return the marks of settled versions that a tablet should have, None if it has them.

    Args:
        tablet: As it was read.
        table: Its table.
        now_s: The store's time.
    """
    if not _needs_marks(tablet, table):
        return None
    before, retention_s = tablet.record.settled, table.settings.tombstone_retention_s
    marks = next_marks(before, now_s, _highest(tablet), retention_s)
    return None if marks == before else marks


def _marks_due_s(tablet: Tablet, table: Table) -> float | None:
    """Return when the highest version can be marked; None: it is, or nobody needs it.

    A tablet that goes quiet soon after a mark would otherwise never be marked again, and
    keep its dead rows for ever.
    """
    if not _needs_marks(tablet, table):
        return None
    marks = tablet.record.settled
    if not marks:
        return None  # The look that says so makes the first one.
    last_s, version = marks[-1]
    if _highest(tablet) <= version:
        return None
    return last_s + table.settings.tombstone_retention_s / MARKS_PER_RETENTION


def _needs_marks(tablet: Tablet, table: Table) -> bool:
    """Return whether a tablet may hold dead rows, which are dropped by marks: else none is made.

    The first mark after the first tombstone covers it, so nothing is lost by waiting for it.
    """
    if table.version_column is None or not tablet.files:
        return False
    expires = table.settings.ttl_s is not None and table.time_column is not None
    return expires or any(map(_TOMBSTONES, tablet.files.values()))


def _highest(tablet: Tablet) -> bytes:
    return max((file.version_max or b"" for file in tablet.files.values()), default=b"")
