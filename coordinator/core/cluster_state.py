"""The coordinator's memory, composed of the classes that own its parts.

Only a turn changes `ClusterState`, through the `decide` functions of the core. `ClusterState`
itself makes no decisions.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from common.model.group import DEFAULT_VOLUME, LimitScope, limit_scopes
from common.model.job import FAIR_BAND, Job, is_urgent
from common.model.outcome import TabletStatistics
from common.model.table import Table, TableState
from common.model.tablet import ChunkNotes, TabletId
from common.primitives import BoundedMap
from common.units import format_count, format_duration
from common.windows import WindowRule
from common.wire import AttemptReport
from coordinator.core.attempts import Attempt, Attempts, AttemptState, LivingCompactors, Takes
from coordinator.core.backlog import Backlogs
from coordinator.core.control import ControlLoop, ControlRules, Pressures
from coordinator.core.limits import Limits
from coordinator.core.queue import Backfill, Capacity, JobQueue, JobQueues
from coordinator.core.queue_index import FairShare
from coordinator.core.retry import CrashHistory, Deferrals, ReplanTimers, Retry
from coordinator.core.scans import TabletHeat
from coordinator.core.series import SeriesStore
from coordinator.core.throttle import Grants
from coordinator.core.triggers import TriggerDecisions
from coordinator.core.windows import JobWindows

FOLLOWED_TABLETS_MAX = 10_000
"""Tablets whose jobs that wait for other jobs are kept, for views."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastPlan:
    """The last plan of a tablet. It may be evicted at any time: nothing depends on it alone."""

    table_name: str
    version: int
    """Version of the tablet's record that was planned."""
    settings_version: int
    planned_s: float
    left: Mapping[str, str] = field(default_factory=dict)
    """Path → why no job takes the file."""
    wanted: int = 0
    """Number of jobs in the plan."""
    holds: tuple[str, ...] = ()
    """One sentence per request that holds files or waits for them."""
    held: tuple[str, ...] = ()
    """One sentence per job of the plan that was not queued."""
    failure: str = ""
    """Why planning failed; empty if it did not."""
    failures: int = 0
    """Number of consecutive failures."""
    triggered_at_s: float = 0.0
    """Time of the trigger that the plan answers; 0 if none was open."""
    statistics: TabletStatistics | None = None
    """Result of the last analysis."""
    unstable: ChunkNotes | None = None
    """Stored states of the chunks with jobs; None: the tablet has no chunks."""
    numbers: Mapping[str, Collection[int]] = field(default_factory=dict)
    """Input of a job → the chunks in which the file is."""


class Counters:
    """Event counts since the start of the coordinator."""

    __slots__ = (
        "cancelled",
        "committed",
        "committed_bytes",
        "failed",
        "orphaned",
        "refused",
        "released",
        "rows_transformed",
        "stalled",
        "turns",
    )

    def __init__(self) -> None:
        self.turns = 0
        self.committed = 0
        self.committed_bytes: Counter[str] = Counter()
        """Bytes that committed attempts have read, by group."""
        self.failed = 0
        self.stalled = 0
        """Failed attempts that a compactor abandoned because they made no progress."""
        self.cancelled = 0
        self.released = 0
        """Attempts that ended without a commit."""
        self.refused = 0
        self.rows_transformed = 0
        """Rows that attempts with a transform have read."""
        self.orphaned = 0
        """Reservations of attempts that no living compactor listed."""


class ClusterState:
    """The complete memory of the coordinator."""

    def __init__(  # noqa: PLR0915 - every part of the memory, one after the other
        self,
        limits: Limits,
        groups: Collection[str] = (),
        scaled: Collection[str] = (),
        control: ControlLoop | None = None,
    ) -> None:
        self.limits = limits
        self.control = control or ControlLoop(None, ControlRules())
        self.configured_groups = tuple(sorted(groups))
        """Groups in the settings; further groups may be known from their compactors or jobs."""
        self.scaled_groups = frozenset(scaled)
        """Groups whose compactors the service starts."""
        self.started_s: float | None = None
        """Time of the first turn."""
        self.last_turn_s = 0.0
        """Time of the last turn."""
        self.counters = Counters()
        self.tables: dict[str, Table] = {}
        self.paused_groups: dict[str, None] = {}
        self.last_plans: BoundedMap[TabletId, LastPlan] = BoundedMap(limits.last_plans_max)
        self.queues = JobQueues(self._make_queue)
        self.takes = Takes(limits.takes_max, limits.settled_max)
        self.attempts = Attempts(limits.settled_max)
        self.transforming: BoundedMap[str, None] = BoundedMap(limits.settled_max)
        """Attempts that transform rows and have not reported; used for a metric only."""
        self.reports: BoundedMap[str, AttemptReport] = BoundedMap(limits.settled_max)
        """Reports of attempts that are unknown so far, for example after a restart."""
        self.compactors = LivingCompactors(limits.compactors_max)
        self.capacity = Capacity(limits)
        self.backfill = Backfill(self.queues, self.capacity)
        self.grants = Grants(limits)
        part = self.control.rules.foreground_part(self.control.decision)
        self.grants.foreground_part = part
        self.backlogs, self.series = Backlogs(), SeriesStore()
        self.pressures = Pressures(limits.last_plans_max)
        self.wanted_analyses: BoundedMap[TabletId, str] = BoundedMap(limits.deferrals_max)
        """Tablet → group that shall count its live bytes, from the record of its last plan."""
        self.followers: BoundedMap[TabletId, tuple[tuple[Job, frozenset[str]], ...]] = BoundedMap(
            FOLLOWED_TABLETS_MAX
        )
        """Tablet → jobs of its last plan that wait for others, and the ids of those; for views."""
        self.retry = Retry(limits)
        self.crashes = CrashHistory(limits.failures_max)
        self.deferrals, self.replan_timers = Deferrals(limits.deferrals_max), ReplanTimers()
        tablets_max = limits.last_plans_max
        self.triggers, self.heat = TriggerDecisions(tablets_max), TabletHeat(tablets_max)
        self.shares: dict[str, FairShare] = {}
        """Group → fair share between classes and tables."""
        self.windows = JobWindows(limits.windows)

    def note_table(self, table: Table) -> None:
        """Store a table, its weight and its windows."""
        self.tables[table.id] = table
        self.windows.set_table(table.id, WindowRule.of(table.settings))
        for share in self.shares.values():
            share.set_weight(table.id, table.settings.weight)

    def forget_table(self, table: str) -> None:
        """Remove a table, its backlog, pressures, latencies, weight and windows."""
        self.tables.pop(table, None)
        self.series.forget_table(table)
        self.windows.set_table(table, None)
        self.backlogs.forget_table(table)
        self.pressures.forget_table(table)
        self.control.latencies.forget(table)
        for share in self.shares.values():
            share.forget(table)

    def table_name(self, table: str) -> str:
        """Return the name of a table, or its id if the table is unknown."""
        table_record = self.tables.get(table)
        return table if table_record is None else table_record.name

    def is_recent_trigger(self, table: Table) -> bool:
        """Return whether the last trigger of a table came after the coordinator started."""
        asked_s = table.triggered_at_s
        return bool(asked_s) and self.started_s is not None and asked_s >= self.started_s

    def keeps_slots(self, group: str) -> bool:
        """Return whether the free slots of a group are reserved for urgent jobs.

        One slot always remains for other jobs, even if fewer compactors run than configured.
        """
        kept = self.limits.urgent_slots.get(group, 0)
        if not kept:
            return False
        slots = sum(
            compactor.slots
            for compactor in self.compactors.of_group(group)
            if not compactor.draining
        )
        jobs = [
            attempt.assignment.job for attempt in self.attempts if attempt.assignment is not None
        ]
        jobs += [take.job for take in self.takes.reserving()]
        urgent = sum(job.group == group and is_urgent(job) for job in jobs)
        return self.capacity.jobs(group) - urgent >= max(1, slots - kept)

    def hands_out(self, table: str) -> bool:
        """Return whether jobs of a table may be assigned."""
        table_record = self.tables.get(table)
        return table_record is None or table_record.state is TableState.LIVE

    def busy_inputs(self, tablet: TabletId) -> frozenset[str]:
        """Return the files of a tablet that attempts hold or are reserving.

        The set is for membership tests; its order is not deterministic.
        """
        held = {path for attempt in self.attempts.of_tablet(tablet) for path in attempt.inputs}
        for take in self.takes.reserving_on(tablet):
            held.update(take.job.inputs)
        return frozenset(held)

    def is_running(self, attempt: str) -> bool:
        """Return whether an attempt is assigned and its release was not requested."""
        assigned = self.attempts.get(attempt)
        return assigned is not None and assigned.state is AttemptState.RUNNING

    def scopes_of(self, attempt: Attempt) -> tuple[LimitScope, ...]:
        """Return the scopes whose limits apply to an attempt."""
        return limit_scopes(attempt.group, self.volume_of(attempt.tablet.table))

    def volume_of(self, table: str) -> str:
        """Return the volume of a table, or the default volume if the table is unknown."""
        table_record = self.tables.get(table)
        return DEFAULT_VOLUME if table_record is None else table_record.settings.volume

    def unserved(self, group: str) -> str | None:
        """Return a warning if a group has no compactor but needs one, or None."""
        if self.compactors.of_group(group):
            return None
        jobs = len(self.queues.queue(group))
        waiting = "no job is waiting for it now"
        if jobs:
            waiting = f"its {jobs} jobs wait" if jobs > 1 else "its job waits"
        if group in self.scaled_groups:
            hint = f"`neve group show {group}` shows the current scaling"
            return f"group {group} has no compactor yet: {waiting}; {hint}" if jobs else None
        return (
            f"group {group} has no compactor: {waiting}; start one with"
            f" groups.{group}.compactors in the settings and a restart of the service"
        )

    def full_s(self, group: str, now_s: float) -> float:
        """Return how long the queue of a group has been full, in seconds; 0 if it has room.

        A queue counts as full from its first shed job until it is half empty.
        """
        return max(0.0, now_s - self.deferrals.full_since_s.get(group, now_s))

    def overload(self, group: str, now_s: float) -> str | None:
        """Return a warning if a group gets more work than its compactors can do, or None.

        Source: the first-principles notes on Druid's compaction. Work that arrives faster than it
        is done fills any queue. After a peak the queue drains; a queue that stays full indicates
        overload.
        """
        full_s = self.full_s(group, now_s)
        if full_s < self.limits.overload_after_s:
            return None
        jobs, waiting = len(self.queues.queue(group)), self.deferrals.count(group)
        return (
            f"group {group} is overloaded: its queue ({format_count(jobs, 'job')}) has "
            "been full for"
            f" {format_duration(full_s)}, and more tablets wait for room ({waiting}); give it more"
            f" compactors (groups.{group}.compactors), or write fewer and larger files"
        )

    def job_enters(self, key: str, job: Job, now_s: float) -> None:
        """Count a job that is being reserved or starts; a repeated key is ignored.

        Args:
            key: The take, then the attempt.
            job: The job.
            now_s: The current time.
        """
        self.capacity.enter(key, job.group, job.input_bytes)
        self.windows.enter(key, job, now_s)

    def job_ends(self, attempt: str) -> None:
        """Stop counting an attempt; an unknown one is ignored."""
        self.capacity.leave(attempt)
        self.windows.leave(attempt, self.last_turn_s)

    def queued_jobs(self) -> list[Job]:
        """Return all queued jobs, ordered by group and rank."""
        return [job for _, queue in self.queues for job in queue]

    def check(self) -> None:
        """Assert the invariants of every part; for tests."""
        self.queues.check()
        self.takes.check()
        self.attempts.check()
        self.capacity.check()
        self.windows.check()
        self.grants.check()
        self.backlogs.check()
        self.pressures.check()

    def _make_queue(self, group: str) -> JobQueue:
        weights = {table.id: table.settings.weight for table in self.tables.values()}
        limits = self.limits
        self.shares[group] = FairShare(
            weights, self.control.decision.shares, band=limits.fair_bands.get(group, FAIR_BAND)
        )
        ageing_s = 1.0 / limits.ageing_per_s if limits.ageing_per_s > 0 else float("inf")
        return JobQueue(
            limits.queue_bytes_max,
            limits.queue_count_max,
            ageing_s=ageing_s,
            shares=self.shares[group],
        )
