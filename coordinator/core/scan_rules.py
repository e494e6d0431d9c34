"""Which tablets a full scan must read, and what it makes of those that it has read. Pure.

    record ──needs_look──► the tablet is read and planned ──verdict──► ask · wanted · rest

The coordinator looks again at what is asked and at what is wanted and not queued; what
rests is noted in the tablet's record, so that the next scan passes it by.
"""

from dataclasses import dataclass
from enum import StrEnum

from common.digests import digest
from common.model.job import TabletPlan
from common.model.table import Table, TableState
from common.model.tablet import Analysis, Record, Tablet
from coordinator.core.automatic import spec_of, wants_answer

QUIET = frozenset({Analysis.EMPTY, Analysis.STABLE, Analysis.DEFERRED})
"""What lets a scan pass a tablet by."""
NO_JOBS = ""


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
    known = (
        record.analysis_version == record.version
        and record.analysis_settings == table.settings_version
    )
    if not known or record.analysis not in QUIET:
        return True
    return is_due(record, now_s) or (fresh and record.analysis is Analysis.DEFERRED)


def is_due(record: Record, now_s: float) -> bool:
    """Return whether a time has come at which a tablet was to be looked at again."""
    due_s, selector_due_s = record.due_at_s, record.selector_due_s
    return (due_s is not None and due_s <= now_s) or (
        selector_due_s is not None and selector_due_s <= now_s
    )


class Verdict(StrEnum):
    """What a scan makes of a tablet that it has read, planned, and could judge."""

    WANTED = "wanted"
    """Jobs are wanted; if just these are queued, nothing is to be done."""
    RESTS = "rests"
    """Nothing is wanted, and its record may say so."""
    BUSY = "busy"
    """Nothing is wanted now, but somebody else has a say: look again at the next scan."""


def verdict(tablet: Tablet, table: Table, plan: TabletPlan) -> Verdict:
    """Return what a scan makes of a tablet for which it need not ask (`asks`).

    Args:
        tablet: As it was read, at one moment.
        table: Its table.
        plan: What its planners want.
    """
    if plan.jobs:
        return Verdict.WANTED
    rests = tablet.selection is None and table.state is TableState.LIVE
    return Verdict.RESTS if rests else Verdict.BUSY


def asks(tablet: Tablet, table: Table, now_s: float) -> bool:
    """Return whether the coordinator must look, whatever planners want.

    Reservations may have nobody behind them; requests, operations and selectors are
    driven by the coordinator.
    """
    if tablet.running or tablet.waiting or tablet.operation is not None:
        return True
    spec = spec_of(table)
    return spec is not None and wants_answer(tablet, table, spec, now_s)


def said_of(tablet_files: int) -> Analysis:
    """Return what the record of a tablet says that rests."""
    return Analysis.STABLE if tablet_files else Analysis.EMPTY


def digest_of(job_ids: tuple[str, ...]) -> str:
    """Return what tells the jobs of two plans of a tablet apart; of none: `NO_JOBS`."""
    return digest(sorted(job_ids)) if job_ids else NO_JOBS


@dataclass(frozen=True, slots=True)
class Span:
    """Ends of tablets from above `after` to `until`, included; None: without bound."""

    after: bytes | None = None
    until: bytes | None = None

    def holds(self, end: bytes) -> bool:
        """Return whether the tablet of this end belongs to the span."""
        return (self.after is None or end > self.after) and (
            self.until is None or end <= self.until
        )


def spans_of(cuts: list[bytes]) -> list[Span]:
    """Return the spans between ascending cuts: one more than cuts, covering every tablet."""
    starts: list[bytes | None] = [None, *cuts]
    return [Span(after, until) for after, until in zip(starts, [*cuts, None], strict=True)]
