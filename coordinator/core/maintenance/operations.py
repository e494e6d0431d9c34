"""The operations of a tablet: gain, cost and needs of each kind, or the reason it does not run.

    TabletFacts ──► `KINDS`: one function per kind ──► rows ──► `ranked`

Rows report decisions that other code makes: merges, drops and delta compactions are the jobs of the
tablet's plan, splits and merges of tablets come from `split_merge.operation_steps`, garbage from
the collector, analysis from `scan_rules`. Delta compactions are scored by the sizes of base and
deltas (`common.spi.deltas`). The list includes kinds of other systems that have no work here, with
the reason, so that operators who know them find an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter

from common.model.job import Job, JobAction, Kind, TabletPlan
from common.model.table import Table, TableSettings
from common.model.tablet import Tablet
from common.spi.deltas import DELTA_TAG, MAJOR, MINOR, delta_sets
from common.spi.planner import COLD, Heat
from common.units import format_count
from coordinator.core.maintenance.scores import (
    OperationStatistics,
    adjusted_priority,
    adjusted_score,
    major_delta_score,
    minor_delta_score,
    ranked_operations,
    workload_score,
)
from coordinator.core.scan_rules import needs_look
from coordinator.core.split_merge.operation_steps import (
    merge_bytes,
    why_merge,
    why_not_merge,
    why_not_split,
    why_split,
)
from coordinator.core.triggers import refusal_reason
from neve import api

COST_UNIT_BYTES = 64 * 1024**2
"""Scores are the gain per this many bytes read and written; a lower cost counts as this many."""


class OperationName(StrEnum):
    """Kinds of operations."""

    MERGING = "merging"
    DROPS = "drops"
    SPLIT = "split"
    MERGE = "merge"
    GARBAGE = "garbage"
    ANALYSIS = "analysis"
    MINOR_DELTA = "minor-delta"
    MAJOR_DELTA = "major-delta"
    FLUSH = "flush"


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbageCounts:
    """Replaced files of a tablet that wait for deletion."""

    waiting: int = 0
    deletable: int = 0
    """Waiting files that the next round of the collector deletes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeeds:
    """Resources that the jobs of a group need; None if unknown."""

    memory_bytes: int | None = None
    """Memory that all tasks of a job may use together."""
    slot_bytes_s: float | None = None
    """Measured input bytes that a busy slot rewrites per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletFacts:
    """The inputs for the rows of a tablet."""

    tablet: Tablet
    table: Table
    plan: TabletPlan
    """Complete plan, as the scanner would submit it now."""
    failure: str = ""
    """Why planning failed; empty if it did not."""
    right: Tablet | None = None
    """The right neighbour; None for the last tablet."""
    now_s: float = 0.0
    """The store's time."""
    rest_s: float = 0.0
    """Pause after a split or merge of the tablet was abandoned."""
    garbage: GarbageCounts = GarbageCounts()
    heat: Heat = COLD
    why_held: Callable[[Job], str | None] = lambda _job: None
    """Returns why a job may not be queued now, for example after a failure, or None."""
    needs: Callable[[str], JobNeeds] = lambda _group: JobNeeds()
    """Returns the resources that the jobs of a group need."""


def tablet_operations(facts: TabletFacts) -> tuple[api.MaintenanceOperation, ...]:
    """Return a row for each kind of operation, in the order of `OperationName`."""
    settings = facts.table.settings
    heat = workload_score(facts.heat.scans_s, facts.heat.rows_s)
    rows: list[api.MaintenanceOperation] = []
    for name in OperationName:
        row = KINDS[name](facts)
        # Only scans benefit from merging deltas into their base, so writes do not count here.
        workload = heat.flush if name is OperationName.MAJOR_DELTA else heat.compact
        adjusted = adjusted_score(row.score, workload, settings.maintenance_priority)
        rows.append(replace(row, workload=workload, adjusted=adjusted))
    return tuple(rows)


def ranked(
    rows: Sequence[api.MaintenanceOperation], table_priority: int = 0
) -> tuple[api.MaintenanceOperation, ...]:
    """Return rows with the ranks that Kudu's rule gives to the runnable ones.

    Args:
        rows: Rows of any number of tablets.
        table_priority: Priority of their table.
    """
    places: dict[str, int] = {}
    statistics = [
        OperationStatistics(
            name=f"{row.tablet} {row.kind}",
            runnable=row.state == api.MaintenanceState.RUNNABLE,
            data_retained_bytes=row.freed_bytes,
            perf=row.score,
            workload=row.workload,
            priority=table_priority,
        )
        for row in rows
    ]
    for place, (each, _) in enumerate(ranked_operations(statistics), start=1):
        places[each.name] = place
    return tuple(replace(row, rank=places.get(f"{row.tablet} {row.kind}")) for row in rows)


def has_own_priorities(settings: TableSettings) -> bool:
    """Return whether a table's settings modify the priorities that its planner assigns."""
    return bool(settings.maintenance_priority or settings.workload_points)


def queue_priority(job: Job, table: Table, heat: Heat) -> int:
    """Return the priority under which a job is queued.

    System jobs of a table with `maintenance_priority` or `workload_points` get a different priority
    within their class; all others keep the priority that their planner assigned.
    """
    settings = table.settings
    if job.kind is not Kind.SYSTEM or not has_own_priorities(settings):
        return job.priority
    added = workload_score(heat.scans_s, heat.rows_s, settings.workload_points).compact
    return adjusted_priority(job.priority, added, settings.maintenance_priority)


# ---------------------------------------------------------------------------- One function per kind


def _merging(facts: TabletFacts) -> api.MaintenanceOperation:
    return _of_jobs(facts, OperationName.MERGING)


def _drops(facts: TabletFacts) -> api.MaintenanceOperation:
    return _of_jobs(facts, OperationName.DROPS)


def _minor_delta(facts: TabletFacts) -> api.MaintenanceOperation:
    """Return the row of minor delta compactions, with Kudu's score of the best delta set."""
    if not facts.table.key:
        return _not_applicable(OperationName.MINOR_DELTA, _NO_KEY)(facts)
    row = _of_jobs(facts, OperationName.MINOR_DELTA)
    sets = delta_sets(facts.tablet.files.values())
    score = max((minor_delta_score(len(set_.deltas)) for set_ in sets), default=0.0)
    return replace(row, score=score, why=row.why or _why_no_delta_jobs(facts))


def _major_delta(facts: TabletFacts) -> api.MaintenanceOperation:
    """Return the row of major delta compactions, with Kudu's score of the best delta set."""
    if not facts.table.key:
        return _not_applicable(OperationName.MAJOR_DELTA, _NO_KEY)(facts)
    row = _of_jobs(facts, OperationName.MAJOR_DELTA)
    sets = delta_sets(facts.tablet.files.values())
    scores = (major_delta_score(set_.delta_bytes, set_.base_bytes) for set_ in sets)
    return replace(row, score=max(scores, default=0.0), why=row.why or _why_no_delta_jobs(facts))


def _why_no_delta_jobs(facts: TabletFacts) -> str:
    deltas = {
        file.path
        for delta_set in delta_sets(facts.tablet.files.values())
        for file in delta_set.deltas
    }
    if not deltas:
        return "no deltas: no file overlaps a larger one"
    left = {path: why for path, why in facts.plan.left.items() if path in deltas}
    if facts.table.settings.planner != "delta":
        return "its planner has no separate delta jobs: it merges base and deltas together"
    return refusal_reason(left) if left else "its deltas are in other jobs of the plan"


def _kind_of(job: Job) -> OperationName:
    """Return the operation kind of a system job."""
    if job.action == JobAction.DROP:
        return OperationName.DROPS
    made = dict(job.output_tags).get(DELTA_TAG)
    kinds = {MINOR: OperationName.MINOR_DELTA, MAJOR: OperationName.MAJOR_DELTA}
    return kinds.get(made or "", OperationName.MERGING)


def _of_jobs(facts: TabletFacts, name: OperationName) -> api.MaintenanceOperation:
    """Return the row of the plan's jobs of one kind, with the figures of the best job.

    Without jobs, the row of a delta compaction has no reason; the caller adds it.
    """
    jobs = [job for job in facts.plan.jobs if job.kind is Kind.SYSTEM and _kind_of(job) is name]
    # A running entry does not record its operation kind, so it is counted as a merge.
    merges = name is OperationName.MERGING
    running = (
        sum(entry.kind is Kind.SYSTEM for entry in facts.tablet.running.values()) if merges else 0
    )
    row = api.MaintenanceOperation(
        tablet=facts.tablet.id.text, kind=name.value, running=running, jobs=len(jobs)
    )
    if not jobs:
        return _without_jobs(facts, row, name)
    able = [job for job in jobs if facts.why_held(job) is None]
    best = max(able or jobs, key=attrgetter("priority"))
    held, needs = facts.why_held(best), facts.needs(best.group)
    gain = max(1, len(best.inputs) - best.outputs_expected)
    rate = needs.slot_bytes_s
    return replace(
        row,
        state=(
            api.MaintenanceState.RUNNABLE if held is None else api.MaintenanceState.WAITING
        ).value,
        why=best.reason if held is None else held,
        files=len(best.inputs),
        gain=float(gain),
        gain_unit="files fewer",
        cost_bytes=best.cost_bytes,
        cpu_s=best.input_bytes / rate if rate and best.cost_bytes else None,
        memory_bytes=needs.memory_bytes if best.cost_bytes else 0,
        freed_bytes=best.input_bytes if name is OperationName.DROPS else 0,
        score=_per_cost(gain, best.cost_bytes),
        priority=queue_priority(best, facts.table, facts.heat),
        group=best.group,
    )


def _without_jobs(
    facts: TabletFacts, row: api.MaintenanceOperation, name: OperationName
) -> api.MaintenanceOperation:
    if facts.failure:
        return replace(row, state=api.MaintenanceState.WAITING.value, why=facts.failure)
    if row.running:
        jobs = format_count(row.running, "job")
        why = f"{jobs} running on its files; a file is in at most one job"
        return replace(row, state=api.MaintenanceState.RUNNING.value, why=why)
    if facts.plan.holds:
        why = "; ".join(facts.plan.holds)
        return replace(row, state=api.MaintenanceState.WAITING.value, why=why)
    if name is OperationName.MERGING:
        why = refusal_reason(facts.plan.left)
    elif name is OperationName.DROPS:
        why = (
            "no job of the plan drops files: no file has expired completely, or the planner merges"
        )
    else:
        why = ""
    return replace(row, state=api.MaintenanceState.IDLE.value, why=why)


def _split(facts: TabletFacts) -> api.MaintenanceOperation:
    tablet, table = facts.tablet, facts.table
    row = api.MaintenanceOperation(tablet=tablet.id.text, kind=OperationName.SPLIT.value)
    why_not = why_not_split(tablet, table, facts.now_s, facts.rest_s)
    if why_not is not None:
        return replace(row, state=api.MaintenanceState.IDLE.value, why=why_not)
    size = sum(file.size_bytes for file in tablet.files.values())
    gain = size / table.settings.split_bytes - 1
    return replace(
        row,
        state=api.MaintenanceState.RUNNABLE.value,
        why=why_split(tablet, table, facts.now_s, facts.rest_s) or "",
        files=len(tablet.files),
        gain=gain,
        gain_unit="times split_bytes above the limit",
        cost_bytes=2 * size,
        score=_per_cost(gain, 2 * size),
    )


def _merge(facts: TabletFacts) -> api.MaintenanceOperation:
    tablet, table, right = facts.tablet, facts.table, facts.right
    row = api.MaintenanceOperation(tablet=tablet.id.text, kind=OperationName.MERGE.value)
    why_not: str | None = "it is the last tablet: the previous tablet would be merged into it"
    if right is not None:
        why_not = why_not_merge(tablet, right, table, facts.now_s, facts.rest_s)
    if right is None or why_not is not None:
        return replace(row, state=api.MaintenanceState.IDLE.value, why=why_not or "")
    size = sum(file.size_bytes for each in (tablet, right) for file in each.files.values())
    return replace(
        row,
        state=api.MaintenanceState.RUNNABLE.value,
        why=why_merge(tablet, right, table, facts.now_s, facts.rest_s) or "",
        files=len(tablet.files) + len(right.files),
        gain=1.0,
        gain_unit="tablets fewer",
        score=1 - size / merge_bytes(table),
    )


def _garbage(facts: TabletFacts) -> api.MaintenanceOperation:
    counts = facts.garbage
    row = api.MaintenanceOperation(tablet=facts.tablet.id.text, kind=OperationName.GARBAGE.value)
    row = replace(row, files=counts.waiting, gain=float(counts.deletable), gain_unit="files fewer")
    if counts.deletable:
        files = format_count(counts.deletable, "replaced file")
        why = f"{files} can be deleted: the next round of the collector deletes them"
        return replace(row, state=api.MaintenanceState.RUNNABLE.value, why=why)
    if counts.waiting:
        files = format_count(counts.waiting, "replaced file")
        why = (
            f"{files} cannot be deleted now: a grace period, a reader or the next manifest keeps"
            " them"
        )
        return replace(row, state=api.MaintenanceState.WAITING.value, why=why)
    return replace(
        row, state=api.MaintenanceState.IDLE.value, why="no replaced file waits for deletion"
    )


def _analysis(facts: TabletFacts) -> api.MaintenanceOperation:
    """Return the row of the analysis: the next visit by planners, selectors and split rules."""
    record = facts.tablet.record
    row = api.MaintenanceOperation(tablet=facts.tablet.id.text, kind=OperationName.ANALYSIS.value)
    if needs_look(record, facts.table, facts.now_s):
        why = (
            "the tablet has changed, or has work that runs, waits or is due, since its record"
            " was written"
        )
        return replace(row, state=api.MaintenanceState.RUNNABLE.value, why=why)
    why = f"its record states {record.analysis.value} for these files and settings"
    return replace(row, state=api.MaintenanceState.IDLE.value, why=why)


def _not_applicable(
    name: OperationName, why: str
) -> Callable[[TabletFacts], api.MaintenanceOperation]:
    def row(facts: TabletFacts) -> api.MaintenanceOperation:
        return api.MaintenanceOperation(
            tablet=facts.tablet.id.text,
            kind=name.value,
            state=api.MaintenanceState.NOT_APPLICABLE.value,
            why=why,
        )

    return row


_NO_KEY = "the table has no key: a row never updates a row of another file"

KINDS: Mapping[OperationName, Callable[[TabletFacts], api.MaintenanceOperation]] = {
    OperationName.MERGING: _merging,
    OperationName.DROPS: _drops,
    OperationName.SPLIT: _split,
    OperationName.MERGE: _merge,
    OperationName.GARBAGE: _garbage,
    OperationName.ANALYSIS: _analysis,
    OperationName.MINOR_DELTA: _minor_delta,
    OperationName.MAJOR_DELTA: _major_delta,
    OperationName.FLUSH: _not_applicable(
        OperationName.FLUSH,
        "nothing is buffered: an append is written to a file before it is acknowledged",
    ),
}
"""Kind → function that returns its row. A test checks that the registry is complete."""


def _per_cost(gain: float, cost_bytes: int) -> float:
    return gain / max(1.0, cost_bytes / COST_UNIT_BYTES)
