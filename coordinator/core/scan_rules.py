"""Which tablets a full scan must read, what it makes of them, and when a quiet one is read again.

    record ──needs_look──► the tablet is read and planned ──scan_verdict──► ask · wanted · rest

The coordinator looks again at what is asked and at what is wanted and not queued. What rests
is noted in the tablet's record with its recheck time, so that scans pass it by until then. Pure.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter

from common.digests import digest
from common.model.job import TabletPlan
from common.model.table import Table, TableState
from common.model.tablet import Analysis, Record, Tablet
from coordinator.core.requests.automatic import must_ask_selector, table_selector
from coordinator.core.triggers import open_trigger_s
from coordinator.core.version_watermark import (
    WATERMARKS_PER_RETENTION,
    Watermarks,
    next_watermarks,
)

# ------------------------------------------------------- What a scan reads, and what it makes of it


QUIET_ANALYSES = frozenset({Analysis.EMPTY, Analysis.STABLE, Analysis.DEFERRED})
"""What lets a scan pass a tablet by."""
NO_JOBS = ""
ANALYSES_AT_ONCE = 64
"""Analyses of tablets that are written in one change."""


def needs_look(
    record: Record | None, table: Table, now_s: float = 0.0, *, fresh: bool = False
) -> bool:
    """Return whether a scan must read more of a tablet than its record.

    Args:
        record: The tablet's record; None: it has none (yet), so look.
        table: For the version of its settings.
        now_s: The store's time: some tablets are looked at when a time has come.
        fresh: This coordinator has not looked before: who was to plan deferred tablets
            again is gone, so they count as any others.
    """
    if record is None or record.running or record.waiting or record.operation:
        return True
    if wanted_analysis(record):
        return True
    known = (
        record.analysis_version == record.version
        and record.analysis_settings == table.settings_version
    )
    if not known or record.analysis not in QUIET_ANALYSES:
        return True
    if open_trigger_s(table, record):
        return True
    return is_recheck_due(record, now_s) or (fresh and record.analysis is Analysis.DEFERRED)


def wanted_analysis(record: Record) -> str:
    """Return the group that is to count a tablet's live bytes, as somebody asked; or nothing.

    A tablet that has lost its files meanwhile has nothing to count.
    """
    return record.analysis_group if record.files else ""


def is_recheck_due(record: Record, now_s: float) -> bool:
    """Return whether a time has come at which a tablet was to be looked at again."""
    due_s, selector_due_s = record.due_at_s, record.selector_due_s
    return (due_s is not None and due_s <= now_s) or (
        selector_due_s is not None and selector_due_s <= now_s
    )


class ScanVerdict(StrEnum):
    """What a scan makes of a tablet that it has read, planned, and could judge."""

    WANTED = "wanted"
    """Jobs are wanted; if just these are queued, nothing is to be done."""
    RESTS = "rests"
    """Nothing is wanted, and its record may say so."""
    BUSY = "busy"
    """Nothing is wanted now, but a request or pause may change that: look again next scan."""


def scan_verdict(tablet: Tablet, table: Table, plan: TabletPlan) -> ScanVerdict:
    """Return what a scan makes of a tablet for which it need not ask (`must_ask`).

    Args:
        tablet: As it was read, at one moment.
        table: Its table.
        plan: What its planners want.
    """
    if plan.jobs or plan.analysis_group:
        return ScanVerdict.WANTED
    rests = tablet.selection is None and table.state is TableState.LIVE
    return ScanVerdict.RESTS if rests else ScanVerdict.BUSY


def must_ask(tablet: Tablet, table: Table, now_s: float) -> bool:
    """Return whether the coordinator must look, whatever planners want.

    Reservations may have nobody behind them; requests, operations, selectors and analyses are
    driven by the coordinator.
    """
    if tablet.running or tablet.waiting or tablet.operation is not None:
        return True
    if wanted_analysis(tablet.record):
        return True
    spec = table_selector(table)
    return spec is not None and must_ask_selector(tablet, table, spec, now_s)


def analysis_at_rest(tablet_files: int) -> Analysis:
    """Return the analysis of a tablet at rest."""
    return Analysis.STABLE if tablet_files else Analysis.EMPTY


def jobs_digest(job_ids: Collection[str]) -> str:
    """Return a digest by which two plans of a tablet are compared; `NO_JOBS` for no jobs."""
    return digest(sorted(job_ids)) if job_ids else NO_JOBS


@dataclass(frozen=True, slots=True)
class TabletSpan:
    """Ends of tablets from above `after` to `until`, included; None: without bound."""

    after: bytes | None = None
    until: bytes | None = None

    def holds(self, end: bytes) -> bool:
        """Return whether the tablet of this end belongs to the span."""
        return (self.after is None or end > self.after) and (
            self.until is None or end <= self.until
        )


def spans_between(cuts: list[bytes]) -> list[TabletSpan]:
    """Return the spans between ascending cuts: one more than cuts, covering every tablet."""
    starts: list[bytes | None] = [None, *cuts]
    return [TabletSpan(after, until) for after, until in zip(starts, [*cuts, None], strict=True)]


# ------------------------------------------------------------------ How much is written to a tablet


RECENT_S = 300.0
ADDS_MAX = 1000


def recent_user_adds(tablet: Tablet, now_s: float) -> tuple[tuple[float, int], ...]:
    """Return when users added rows to a tablet in the last minutes, and how many.

    At most `ADDS_MAX` files are named, the newest ones.

    Args:
        tablet: As it was read.
        now_s: The store's time.
    """
    since_s = now_s - RECENT_S
    adds = [
        (file.added_at_s, file.rows)
        for file in tablet.files.values()
        if file.added_at_s > since_s and file.job is None
    ]
    return tuple(adds) if len(adds) <= ADDS_MAX else tuple(sorted(adds)[-ADDS_MAX:])


# -------------------------------------- Recheck time: when to look again though nothing has changed


_TOMBSTONES = attrgetter("tombstones")


def earliest_s(*times_s: float | None) -> float | None:
    """Return the first of some times; None among them means never."""
    known = [time_s for time_s in times_s if time_s is not None]
    return min(known, default=None)


def recheck_at_s(tablet: Tablet, table: Table, plan: TabletPlan) -> float | None:
    """Return when a tablet is to be looked at again if nothing changes, or None.

    Args:
        tablet: As it was read.
        table: Its table.
        plan: What its planners have said of it.
    """
    return earliest_s(plan.due_at_s, _watermark_due_s(tablet, table))


def wanted_watermarks(tablet: Tablet, table: Table, now_s: float) -> Watermarks | None:
    """Return the watermarks of settled versions that a tablet should have, None if it has them.

    Args:
        tablet: As it was read.
        table: Its table.
        now_s: The store's time.
    """
    if not _needs_watermarks(tablet, table):
        return None
    before, retention_s = tablet.record.settled, table.settings.tombstone_retention_s
    watermarks = next_watermarks(before, now_s, _highest_version(tablet), retention_s)
    return None if watermarks == before else watermarks


def _watermark_due_s(tablet: Tablet, table: Table) -> float | None:
    """Return when the highest version may become a watermark; None: it is one, or nobody needs it.

    A tablet that goes quiet soon after a watermark would otherwise never get another one, and
    keep its dead rows for ever.
    """
    if not _needs_watermarks(tablet, table):
        return None
    watermarks = tablet.record.settled
    if not watermarks:
        return None  # The look that says so makes the first one.
    last_s, version = watermarks[-1]
    if _highest_version(tablet) <= version:
        return None
    return last_s + table.settings.tombstone_retention_s / WATERMARKS_PER_RETENTION


def _needs_watermarks(tablet: Tablet, table: Table) -> bool:
    """Return whether a tablet may hold dead rows; others need no watermark.

    The first watermark after the first tombstone covers it, so nothing is lost by waiting for it.
    """
    if table.version_column is None or not tablet.files:
        return False
    expires = table.settings.ttl_s is not None and table.time_column is not None
    return expires or any(map(_TOMBSTONES, tablet.files.values()))


def _highest_version(tablet: Tablet) -> bytes:
    return max((file.version_max or b"" for file in tablet.files.values()), default=b"")
