"""Everything that the coordinator knows, by the class that owns it. No decisions here."""

from collections.abc import Collection

from common.bounded_map import BoundedMap
from common.model.group import (
    DEFAULT_VOLUME,
    LimitScope,
    limit_scopes,
)
from common.model.job import Job
from common.model.table import Table, TableState
from common.model.tablet import TabletId
from coordinator.core.capacity import Capacity
from coordinator.core.deaths import Deaths
from coordinator.core.deferral import Alarms, Deferrals
from coordinator.core.events import AttemptReported
from coordinator.core.fair_share import FairShare
from coordinator.core.grants import Grants
from coordinator.core.job_queue import JobQueue
from coordinator.core.job_queues import JobQueues
from coordinator.core.lifecycle import Attempt, Attempts, AttemptState
from coordinator.core.limits import Limits
from coordinator.core.liveness import Compactors
from coordinator.core.notes import Note
from coordinator.core.overtaking import Overtaking
from coordinator.core.retry import Retry
from coordinator.core.takes import Takes


class Counters:
    """How often something happened since the coordinator was started."""

    __slots__ = (
        "cancelled",
        "committed",
        "failed",
        "orphaned",
        "refused",
        "released",
        "stalled",
        "turns",
    )

    def __init__(self) -> None:
        self.turns = 0
        self.committed = 0
        self.failed = 0
        self.stalled = 0
        """Of those that failed, given up by their compactor for want of progress."""
        self.cancelled = 0
        self.released = 0
        """Attempts that ended in any other way than by a commit."""
        self.refused = 0
        self.orphaned = 0
        """Reservations that nobody alive stood behind."""


class Books:
    """The coordinator's whole memory; changed only in a turn, by the deciders of the core."""

    def __init__(self, limits: Limits, groups: Collection[str] = ()) -> None:
        self.limits = limits
        self.configured_groups = tuple(sorted(groups))
        """Groups that the settings name; others may be known by their compactors or jobs."""
        self.started_s: float | None = None
        """When the first turn was."""
        self.turned_s = 0.0
        """When the last turn was."""
        self.counters = Counters()
        self.tables: dict[str, Table] = {}
        self.paused_groups: dict[str, None] = {}
        self.notes: BoundedMap[TabletId, Note] = BoundedMap(limits.notes_max)
        self.queues = JobQueues(self._make_queue)
        self.takes = Takes(limits.takes_max, limits.settled_max)
        self.attempts = Attempts(limits.settled_max)
        self.reports: BoundedMap[str, AttemptReported] = BoundedMap(limits.settled_max)
        """Reports of attempts that we have not heard of: a restart forgot them."""
        self.compactors = Compactors(limits.compactors_max)
        self.capacity = Capacity(limits)
        self.overtaking = Overtaking(self.queues, self.capacity)
        self.grants = Grants(limits)
        self.retry = Retry(limits)
        self.deaths = Deaths(limits.failures_max)
        self.deferrals = Deferrals(limits.deferrals_max)
        self.alarms = Alarms()
        self._shares: dict[str, FairShare] = {}

    def see_table(self, table: Table) -> None:
        """Remember a table and its weight."""
        self.tables[table.id] = table
        for share in self._shares.values():
            share.set_weight(table.id, table.settings.weight)

    def forget_table(self, table: str) -> None:
        """Drop what is known of a table itself."""
        self.tables.pop(table, None)
        for share in self._shares.values():
            share.forget(table)

    def table_name(self, table: str) -> str:
        """Return a table's name, or its id if the table has not been seen."""
        known = self.tables.get(table)
        return table if known is None else known.name

    def hands_out(self, table: str) -> bool:
        """Return whether jobs of a table may be handed out."""
        known = self.tables.get(table)
        return known is None or known.state is TableState.LIVE

    def busy_inputs(self, tablet: TabletId) -> frozenset[str]:
        """Return the files of a tablet that attempts hold or are about to; not for iterating."""
        held = {path for attempt in self.attempts.of_tablet(tablet) for path in attempt.inputs}
        for each in self.takes.reserving_on(tablet):
            held.update(each.job.inputs)
        return frozenset(held)

    def is_running(self, attempt: str) -> bool:
        """Return whether an attempt was handed out, and nobody has given it up."""
        known = self.attempts.get(attempt)
        return known is not None and known.state is AttemptState.RUNNING

    def scopes_of(self, attempt: Attempt) -> tuple[LimitScope, LimitScope]:
        """Return which limits an attempt is under."""
        return limit_scopes(attempt.group, self.volume_of(attempt.tablet.table))

    def volume_of(self, table: str) -> str:
        """Return the volume of a table; of one that is not known: the default."""
        known = self.tables.get(table)
        return DEFAULT_VOLUME if known is None else known.settings.volume

    def unserved(self, group: str) -> str | None:
        """Return a sentence on a group that has no compactor, or None if it has one."""
        if self.compactors.of_group(group):
            return None
        jobs = len(self.queues.queue(group))
        waiting = "no job waits for it now"
        if jobs:
            waiting = f"its {jobs} jobs wait" if jobs > 1 else "its job waits"
        return (
            f"group {group} has no compactor: {waiting}; start one with"
            f" groups.{group}.compactors in the settings and a restart of the service"
        )

    def queued_jobs(self) -> list[Job]:
        """Return all queued jobs, by group and rank."""
        return [job for _, queue in self.queues for job in queue]

    def check(self) -> None:
        """Assert what is always true of every book; for tests."""
        self.queues.check()
        self.takes.check()
        self.attempts.check()
        self.capacity.check()
        self.grants.check()

    def _make_queue(self, group: str) -> JobQueue:
        weights = {table.id: table.settings.weight for table in self.tables.values()}
        self._shares[group] = FairShare(weights)
        limits = self.limits
        ageing_s = 1.0 / limits.ageing_per_s if limits.ageing_per_s > 0 else float("inf")
        return JobQueue(
            limits.queue_bytes_max,
            limits.queue_jobs_max,
            ageing_s=ageing_s,
            shares=self._shares[group],
        )
