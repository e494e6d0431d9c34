"""The coordinator's state. `handle` is its only mutator; all other methods read.

No clock, no randomness, no I/O, no logging: the caller passes the time and performs the actions. In
each turn, the module of the event's family decides, and then jobs are assigned to waiting
compactors.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Concatenate, ParamSpec, TypeVar, assert_never

from common.model.job import AttemptWork, Job, TabletBacklog
from common.model.table import Table
from common.model.tablet import TabletId
from common.settings import CoordinatorSettings
from common.spi.planner import Heat
from common.wire import CoordinatorStatus, QueuedJob, RunningAttempt, TabletStory
from coordinator.core import actions as do
from coordinator.core import assignment, attempt_events, events, plan_events, views
from coordinator.core.actions import Action
from coordinator.core.assignment import answer_nothing, steer
from coordinator.core.attempt_events import expire_attempts, lose_silent_compactors
from coordinator.core.attempts import attempt_work, work_done
from coordinator.core.cluster_state import ClusterState
from coordinator.core.control import ControlLoop
from coordinator.core.limits import Limits
from coordinator.core.retry import table_of_wait_queue, window_of_wait_queue
from coordinator.core.series import SeriesStore
from coordinator.core.story import Story
from coordinator.core.triggers import TriggerDecision
from coordinator.core.windows import unpacked_usages
from neve import api

P = ParamSpec("P")
T = TypeVar("T")

# ------------------------------------------------------------------------------------------- Timers


def tick(
    cluster: ClusterState, scaling: Mapping[str, tuple[int, int]], now_s: float
) -> list[Action]:
    """Handle the passing of time; return the resulting actions.

    Args:
        cluster: The coordinator's memory.
        scaling: Group → its desired and its starting compactors, for groups that are scaled.
        now_s: The current time.
    """
    steer(cluster, now_s)
    plan_events.withdraw_closed(cluster, now_s)
    cluster.grants.divide(now_s)
    _note_room(cluster)
    if cluster.series.is_due(now_s):
        cluster.series.note(views.series_sample(cluster, scaling, now_s), now_s)
    return [
        *lose_silent_compactors(cluster, now_s),
        *expire_attempts(cluster, now_s),
        *_expire_takes(cluster, now_s),
        *_replan_due_tablets(cluster, now_s),
    ]


def excuse_own_pause(cluster: ClusterState, now_s: float) -> None:
    """Record the time of this turn, and do not count a stall of the coordinator as silence.

    Heartbeats that arrived during the stall are still in the inbox, after this event.
    """
    if cluster.started_s is None:
        cluster.started_s = cluster.last_turn_s = now_s
    gap_s = now_s - cluster.last_turn_s
    cluster.last_turn_s = now_s
    if gap_s > cluster.limits.stall_max_s:
        cluster.compactors.add_silence(gap_s)


def _expire_takes(cluster: ClusterState, now_s: float) -> list[Action]:
    actions: list[Action] = []
    for take in cluster.takes.all_waiting():
        if now_s - take.since_s >= cluster.limits.take_wait_max_s:
            cluster.takes.leave(take.take)
            actions += answer_nothing(cluster, take.take)
    return actions


def _note_room(cluster: ClusterState) -> None:
    """Mark queues that have drained as no longer full."""
    full = cluster.deferrals.full_since_s
    for group in [group for group in full if _replannable(cluster, group, cluster.last_turn_s)]:
        del full[group]


def _replan_due_tablets(cluster: ClusterState, now_s: float) -> list[Action]:
    """Replan tablets whose pause is over, whose queue has room, or that have waited long."""
    left = cluster.limits.replans_per_turn_max
    tablets = cluster.replan_timers.due(now_s, left)
    for wait_queue in cluster.deferrals.wait_queues():
        count = min(_replannable(cluster, wait_queue, now_s), left - len(tablets))
        tablets += cluster.deferrals.pop(wait_queue, max(0, count))
        if window_of_wait_queue(wait_queue) is not None:
            continue  # No wait is too long before the window opens.
        before_s = now_s - cluster.limits.deferral_max_s
        tablets += cluster.deferrals.pop(wait_queue, max(0, left - len(tablets)), before_s)
    return [do.Replan(tablet=tablet) for tablet in dict.fromkeys(tablets)]


def _replannable(cluster: ClusterState, wait_queue: str, now_s: float) -> int:
    """Return how many tablets of a wait queue can be replanned now."""
    window = window_of_wait_queue(wait_queue)
    if window is not None:
        is_open = cluster.windows.is_open(*window, now_s)
        return cluster.limits.replans_per_turn_max if is_open else 0
    table = table_of_wait_queue(wait_queue)
    if table is not None:
        return cluster.limits.replans_per_turn_max if cluster.hands_out(table) else 0
    queue, fraction = cluster.queues.queue(wait_queue), cluster.limits.drained_fraction
    if queue.size_bytes > fraction * queue.bytes_max or len(queue) > fraction * queue.count_max:
        return 0
    return max(1, int(queue.count_max * fraction) - len(queue))


# ----------------------------------------------------------------------------------------- The turn


class CoordinatorState:
    """The state and decisions of the coordinator. Not thread-safe."""

    def __init__(
        self,
        settings: CoordinatorSettings,
        coordinator: str = "",
        *,
        limits: Limits | None = None,
        groups: Collection[str] = (),
        scaled: Collection[str] = (),
        control: ControlLoop | None = None,
    ) -> None:
        """Create an empty state.

        Args:
            settings: Settings of the operator.
            coordinator: Id of this coordinator, for its status.
            limits: Overrides the limits from the settings.
            groups: Compaction groups in the settings, with or without compactors.
            scaled: Groups whose compactors the service starts on demand.
            control: Control loop; None means default shares without a controller.
        """
        self._coordinator = coordinator
        self._cluster = ClusterState(limits or Limits.of(settings), groups, scaled, control)
        self._story = Story(self._cluster)

    def handle(self, event: events.Event, now_s: float) -> list[Action]:
        """Handle an event; return the actions to perform, in order.

        Args:
            event: The event; it may arrive late, twice or never.
            now_s: The current time; it never decreases.
        """
        if isinstance(event, events.StepAnswered):  # It affects no decision.
            self._story.add_step(event, now_s)
            return []
        cluster = self._cluster
        excuse_own_pause(cluster, now_s)
        cluster.counters.turns += 1
        before = self._story.before(event)
        actions = _decide(cluster, event, now_s)
        actions += assignment.hand_out(cluster, now_s)
        self._story.add(event, before, actions, now_s)
        return list(dict.fromkeys(actions)) if len(actions) > 1 else actions

    def status(self, now_s: float, turns: int = 0, conflicts: int = 0) -> CoordinatorStatus:
        """Return the status with all counters.

        Args:
            now_s: The current time.
            turns: Number of turns counted by the shell; 0 means the count of this state.
            conflicts: Number of conflicts counted by the shell.
        """
        return views.coordinator_status(self._cluster, self._coordinator, now_s, turns, conflicts)

    def look(
        self, view: Callable[Concatenate[ClusterState, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Return what a function of `views` reads from the state."""
        return view(self._cluster, *args, **kwargs)

    def queued(self, group: str | None, count: int, now_s: float) -> list[QueuedJob]:
        """Return the queued jobs of a group, or of every group, in their order of starts."""
        return views.queued_jobs(self._cluster, group, count, now_s)

    def running(self, now_s: float) -> list[RunningAttempt]:
        """Return the attempts in progress."""
        return views.running_attempts(self._cluster, now_s)

    def tablet_of(self, attempt: str) -> TabletId | None:
        """Return the tablet of an attempt in progress, or None."""
        running = self._cluster.attempts.get(attempt)
        return None if running is None else running.tablet

    @property
    def series(self) -> SeriesStore:
        """The recorded values of the last hour and day."""
        return self._cluster.series

    def backlog_sizes(self, tablets: Iterable[TabletId]) -> Mapping[TabletId, int]:
        """Return the bytes left of each given tablet; 0 if it has no backlog."""
        return self._cluster.backlogs.sizes(tablets, work_done(self._cluster.attempts))

    def owed_tablets(
        self, table: str
    ) -> tuple[Mapping[TabletId, TabletBacklog], Mapping[TabletId, float]]:
        """Return the tablets of a table with a backlog, and the bytes done so far of each."""
        return self._cluster.backlogs.of_table(table, work_done(self._cluster.attempts))

    def foreground_rates(self, gateway: str) -> Mapping[str, float | None]:
        """Return the rate of a gateway's reads and appends on each volume that it uses."""
        return self._cluster.grants.foreground_rates(gateway)

    def was_planned(self, tablet: TabletId) -> bool:
        """Return whether the last plan of a tablet is known."""
        return self._cluster.last_plans.get(tablet) is not None

    def explain(self, tablet: TabletId, now_s: float) -> api.Explanation:
        """Explain the state of a tablet, the most important reason first."""
        return views.explain_tablet(self._cluster, tablet, now_s)

    def story(self, tablet: TabletId, now_s: float) -> TabletStory:
        """Return the remembered events of a tablet."""
        return self._story.of(tablet, self._coordinator, now_s)

    def trigger_decision(self, tablet: TabletId) -> TriggerDecision | None:
        """Return the planner's decision on the last trigger for a tablet, or None."""
        return self._cluster.triggers.of(tablet)

    def trigger_refused(self, table: Table, trigger: str, reason: str, now_s: float) -> None:
        """Record a trigger that was refused before planning, for `status`."""
        self._cluster.triggers.refused(table, trigger, reason, now_s)

    @property
    def trigger_counts(self) -> Mapping[tuple[str, str], int]:
        """Number of decisions by trigger and verdict since the coordinator started."""
        return self._cluster.triggers.counts

    def heat(self, tablet: TabletId, now_s: float) -> Heat:
        """Return the read and write rates of a tablet."""
        return self._cluster.heat.of(tablet, now_s)

    def progress(self, tablet: TabletId) -> dict[str, AttemptWork]:
        """Return the work of a tablet's attempts that their compactors have reported."""
        return {
            attempt.id: attempt_work(attempt)
            for attempt in self._cluster.attempts.of_tablet(tablet)
            if attempt.progress is not None
        }

    def why_held(self, job: Job, now_s: float) -> str | None:
        """Return why a wanted job cannot start now, or None."""
        return views.why_held(self._cluster, job, now_s)

    def why_given_up(self, job: Job) -> str | None:
        """Return why a job is no longer retried, or None; see `Retry.why_given_up`."""
        return self._cluster.retry.why_given_up(job)

    def fatal_file(self, tablet: TabletId) -> str | None:
        """Return why the files of a tablet must not be read, or None."""
        return self._cluster.retry.fatal_file(tablet)

    def queued_ends(self, table: str) -> list[bytes]:
        """Return the ends of a table's tablets that have queued jobs."""
        return self._cluster.queues.ends_of(table)

    def wants_analysis(self, tablet: TabletId) -> bool:
        """Return whether an analysis of a tablet is pending."""
        return tablet in self._cluster.wanted_analyses

    def queued_ids(self, tablet: TabletId) -> tuple[str, ...]:
        """Return the ids of a tablet's queued jobs."""
        return tuple(job.id for job in self._cluster.queues.jobs_of(tablet))

    def is_deferred(self, tablet: TabletId) -> bool:
        """Return whether a tablet waits for room in a queue, or for the end of a pause."""
        return self._cluster.deferrals.wait_queue_of(tablet) is not None

    def slots_wanted(self, group: str) -> int | None:
        """Return how many slots of a group the controller allows; None means no limit."""
        return self._cluster.control.slots_of(group)

    def control(self, now_s: float) -> api.Control:
        """Return the readings and the decision of the controller."""
        return views.control_status(self._cluster, now_s)

    @property
    def rows_transformed(self) -> int:
        """Number of rows that attempts with a transform have read, from reports of compactors."""
        return self._cluster.counters.rows_transformed

    def check(self) -> None:
        """Assert the invariants; for tests."""
        self._cluster.check()


def _decide(cluster: ClusterState, event: events.DecidingEvent, now_s: float) -> list[Action]:
    if isinstance(event, events.PlanEvent):
        return plan_events.decide(cluster, event, now_s)
    if isinstance(event, events.TakeEvent):
        return assignment.decide(cluster, event, now_s)
    if isinstance(event, events.CompactorEvent):
        return attempt_events.decide_on_compactor(cluster, event, now_s)
    if isinstance(event, events.AttemptEvent):
        return attempt_events.decide(cluster, event, now_s)
    if isinstance(event, events.QueuedJobEvent):
        return plan_events.decide_on_queued_job(cluster, event, now_s)
    if isinstance(event, events.OperatorEvent):
        return _decide_for_operator(cluster, event, now_s)
    if isinstance(event, events.Ticked):
        return tick(cluster, event.scaling, now_s)
    assert_never(event)


def _take_stored(cluster: ClusterState, event: events.LimitsSeen | events.WindowUsesSeen) -> None:
    """Take over what the store has."""
    if isinstance(event, events.LimitsSeen):
        cluster.grants.scopes.set_explicit(event.limits)
    else:
        cluster.windows.restore(unpacked_usages(event.packed))


def _decide_for_operator(
    cluster: ClusterState, event: events.OperatorEvent, now_s: float
) -> list[Action]:
    """Handle a command of an operator or a report of readers; return the resulting actions."""
    match event:
        case events.GroupPaused(group=group):
            cluster.paused_groups[group] = None
        case events.GroupResumed(group=group):
            cluster.paused_groups.pop(group, None)
        case events.LimitsSeen() | events.WindowUsesSeen():
            _take_stored(cluster, event)
        case events.ReadsReported(scans=scans):
            _note_scans(cluster, scans, now_s)
        case events.LatencyReported(table=table, latency_s=latency_s, reads=reads):
            cluster.control.latencies.note(table, latency_s, reads, now_s)
        case events.ForegroundReported(gateway=gateway, uses=uses):
            cluster.grants.note_foreground(gateway, uses, now_s)
        case events.QuarantineLifted(table=table, tablet=tablet):
            return _retry_at_once(cluster, table, tablet)
        case _:
            assert_never(event)
    return []


def _note_scans(cluster: ClusterState, scans: Mapping[TabletId, int], now_s: float) -> None:
    for tablet, count in scans.items():
        cluster.heat.note_scans(tablet, count, now_s)


def _retry_at_once(cluster: ClusterState, table: str, tablet: TabletId | None) -> list[Action]:
    lifted = cluster.retry.tablets_of(table) if tablet is None else [tablet]
    for tablet_id in lifted:
        cluster.retry.lift(tablet_id)
    return [do.Replan(tablet=tablet_id) for tablet_id in lifted]
