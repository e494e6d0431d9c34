"""Events of plans, tables and tablets: a plan replaces the queued jobs of its tablet."""

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import replace
from itertools import islice
from typing import assert_never

from common.metadata.changes import WriteAnalysis
from common.model.job import Job, Kind, TabletBacklog, analysis_job
from common.model.outcome import AttemptEnd
from common.model.table import TableState
from common.model.tablet import Analysis, ChunkNotes, TabletId
from common.units import format_count
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.cluster_state import ClusterState, LastPlan
from coordinator.core.maintenance import queue_priority
from coordinator.core.retry import wait_queue_of_table
from coordinator.core.scans import (
    QUIET_ANALYSES,
    analysis_at_rest,
    chunk_notes,
    unstable_notes,
    wanted_analysis,
)
from coordinator.core.triggers import ADMIN, TriggerDecision, refusal_reason
from neve import api

WAITS_FOR_WINDOW = "a job waits for the window of its table or group"
STALE_MAX_S = 60.0
"""Age of the last plan from which a plan of an older version counts: the store may have lost
writes."""


def decide(cluster: ClusterState, event: on.PlanEvent, now_s: float) -> list[Action]:
    """Handle an event of a plan, table or tablet; return the resulting actions."""
    match event:
        case on.TableSeen():
            return _table_seen(cluster, event, now_s)
        case on.TableGone(table=table):
            return _table_gone(cluster, table)
        case on.TabletPlanned():
            return _tablet_planned(cluster, event, now_s)
        case on.PlanningFailed():
            return _planning_failed(cluster, event, now_s)
        case on.TabletGone(tablet=tablet):
            return _forget_tablet(cluster, tablet)
        case on.FileFatal(tablet=tablet, path=path, cause=cause):
            cluster.retry.note_fatal_file(tablet, path, cause)
            fields = (("tablet", str(tablet)), ("path", path), ("reason", cause))
            return [do.WriteLog(event="file quarantined", fields=fields), do.Replan(tablet=tablet)]
        case _:
            assert_never(event)


def _backlog_now(cluster: ClusterState, backlog: TabletBacklog | None) -> TabletBacklog | None:
    """Return a backlog without the attempts that have ended since its tablet was read."""
    if backlog is None:
        return None
    ended = cluster.attempts.ended
    falls = {attempt: fall for attempt, fall in backlog.falls.items() if ended(attempt) is None}
    return backlog if falls == backlog.falls else replace(backlog, falls=falls)


def _tablet_planned(cluster: ClusterState, event: on.TabletPlanned, now_s: float) -> list[Action]:
    before = cluster.last_plans.get(event.tablet)
    if before is not None and _is_stale(before, event, now_s):
        return []
    cluster.heat.note_adds(event.tablet, event.adds, now_s)
    cluster.deferrals.discard(event.tablet)
    cluster.replan_timers.discard(event.tablet)
    cluster.backlogs.put(event.tablet, _backlog_now(cluster, event.plan.backlog))
    cluster.pressures.put(event.tablet, event.plan.pressure)
    wanted, held = _queueable_jobs(cluster, event, now_s)
    _note_plan(cluster, event, held, now_s)
    replacement = cluster.queues.replace(event.tablet, wanted, now_s)
    rejected = tuple(job for job, _ in replacement.rejected)
    shed = dict.fromkeys((job.tablet, job.group) for job in (*replacement.evicted, *rejected))
    deferred = any(tablet == event.tablet for tablet, _ in shed)
    analysis = Analysis.DEFERRED if deferred else _analysis_of(cluster, event)
    if event.plan.triggered_at_s:
        decision = _trigger_decision(cluster, event, wanted, held, analysis=analysis, now_s=now_s)
        cluster.triggers.put(event.tablet, decision)
    dropped = (job for job in (*replacement.evicted, *rejected) if job.tablet == event.tablet)
    actions = _with_chunks(event, _note_analysis(event, analysis), dropped)
    for tablet, group in shed:
        if tablet == event.tablet:
            actions += _defer(cluster, tablet, group, now_s)
        else:
            evicted = [job for job in replacement.evicted if job.tablet == tablet]
            actions += _defer_evicted(cluster, tablet, group, evicted, now_s)
    return actions


def _is_stale(before: LastPlan, event: on.TabletPlanned, now_s: float) -> bool:
    """Return whether a plan was made from an older version than the last plan."""
    return event.record.version < before.version and now_s - before.planned_s < STALE_MAX_S


def _queueable_jobs(
    cluster: ClusterState, event: on.TabletPlanned, now_s: float
) -> tuple[list[Job], list[str]]:
    """Return the jobs that may be queued, and the reasons why the others may not."""
    busy = cluster.busy_inputs(event.tablet)
    if cluster.retry.has_history(event.tablet):
        spoken_of = {*busy, *event.plan.left}
        spoken_of.update(path for job in event.plan.jobs for path in job.inputs)
        cluster.retry.keep(event.tablet, spoken_of)
    wanted: list[Job] = []
    held: list[str] = []
    stands_for: dict[str, frozenset[str]] = {}
    followers: list[tuple[Job, frozenset[str]]] = []
    for job in (*event.plan.jobs, *_wanted_analysis(cluster, event)):
        waits_for = frozenset[str]().union(
            *(stands_for.get(depend, frozenset({depend})) for depend in job.depends_on)
        )
        # A job that is given up never commits. Its dependents inherit its own dependencies.
        given_up = cluster.retry.why_given_up(job) is not None
        stands_for[job.id] = waits_for if given_up else frozenset({job.id})
        why = why_not_queued(cluster, job, busy, waits_for, now_s)
        if why is None:
            wanted.append(_with_priority(cluster, job, event.plan.correction.gain, now_s))
        else:
            held.append(why)
            _plan_again_later(cluster, job, now_s)
            if waits_for:
                followers.append((job, waits_for))
    if followers:
        cluster.followers.put(event.tablet, tuple(followers))
    else:
        cluster.followers.pop(event.tablet)
    return wanted, held


def _wanted_analysis(cluster: ClusterState, event: on.TabletPlanned) -> tuple[Job, ...]:
    """Return the analysis that a user or a trigger has requested, unless it is running."""
    group = wanted_analysis(event.record) or event.plan.analysis_group
    if not group:
        cluster.wanted_analyses.pop(event.tablet)
        return ()
    cluster.wanted_analyses.put(event.tablet, group)
    job = analysis_job(event.tablet, cluster.table_name(event.tablet.table), group)
    under_way = {attempt.job_id for attempt in cluster.attempts.of_tablet(event.tablet)}
    under_way.update(take.job.id for take in cluster.takes.reserving_on(event.tablet))
    return () if job.id in under_way else (job,)


def _with_priority(cluster: ClusterState, job: Job, gain: float, now_s: float) -> Job:
    """Return a job with its priority adjusted by the table's settings, heat and recent results."""
    table = cluster.tables.get(job.tablet.table)
    if table is None:
        return job
    priority = queue_priority(job, table, cluster.heat.of(job.tablet, now_s), gain)
    return job if priority == job.priority else replace(job, priority=priority)


def why_not_queued(
    cluster: ClusterState, job: Job, busy: frozenset[str], waits_for: Set[str], now_s: float
) -> str | None:
    """Return why a job of a plan is not queued now, or None. Every reason ends with a new plan.

    After a commit, failure or refusal of a job that others wait for, the tablet is replanned. The
    new plan uses the current files, so the inputs of a job that waited are never stale.

    Args:
        cluster: The coordinator's memory; only read.
        job: A job of a plan.
        busy: Paths that attempts of its tablet hold.
        waits_for: Ids of the jobs that must commit first.
        now_s: The current time.
    """
    if not cluster.hands_out(job.tablet.table):
        return f"table {job.table_name} is paused"
    if waits_for:
        return f"a job waits for {format_count(len(waits_for), 'other job')} of its plan"
    if not busy.isdisjoint(job.inputs):
        return "a job waits for a running attempt on the same files"
    pause = cluster.retry.pause_of(job, now_s)
    if pause is not None:
        return pause.reason
    return WAITS_FOR_WINDOW if cluster.windows.wait_queue_of(job, now_s) is not None else None


def _plan_again_later(cluster: ClusterState, job: Job, now_s: float) -> None:
    """Schedule a replan for a job whose wait is not ended by an event of its tablet."""
    if not cluster.hands_out(job.tablet.table):
        cluster.deferrals.defer(job.tablet, wait_queue_of_table(job.tablet.table), now_s)
    elif (pause := cluster.retry.pause_of(job, now_s)) is not None:
        if pause.until_s is not None:
            cluster.replan_timers.set(job.tablet, pause.until_s)
    elif (wait_queue := cluster.windows.wait_queue_of(job, now_s)) is not None:
        await_window(cluster, job, wait_queue, now_s)


def await_window(cluster: ClusterState, job: Job, wait_queue: str, now_s: float) -> None:
    """Let the tablet of a job wait for a window.

    A tablet is in one wait queue. If its jobs wait for different windows, a timer is set, too.
    """
    before = cluster.deferrals.wait_queue_of(job.tablet)
    if before not in (None, wait_queue):
        opens_s = cluster.windows.opens_s(job.tablet.table, job.group, now_s)
        if opens_s is not None:
            cluster.replan_timers.set(job.tablet, opens_s)
        return
    cluster.deferrals.defer(job.tablet, wait_queue, now_s)


def withdraw_closed(cluster: ClusterState, now_s: float) -> None:
    """Remove queued jobs whose window has closed; their tablets wait until it opens.

    Jobs that never start would otherwise fill the queue, and ask for compactors.
    """
    cluster.windows.look(now_s)
    if not cluster.windows.withdraws:
        return
    left = cluster.limits.withdrawals_max
    for _, queue in cluster.queues:
        waiting = ((job, cluster.windows.wait_queue_of(job, now_s)) for job in queue.unordered())
        closed = list(islice(((job, name) for job, name in waiting if name is not None), left))
        for job, wait_queue in closed:
            queue.remove(job.id)
            await_window(cluster, job, wait_queue, now_s)
        left -= len(closed)
    cluster.windows.withdraws = not left


def _reasons(cluster: ClusterState, event: on.TabletPlanned) -> Mapping[str, str]:
    """Return why no job takes files, with the earlier reasons of chunks that were not planned."""
    before = cluster.last_plans.get(event.tablet)
    if event.plan.asked is None or before is None:
        return event.plan.left
    left = before.left if isinstance(before.left, dict) else dict(before.left)
    left.update(event.plan.left)  # In place: the last plan is replaced, and may name many files.
    inputs = {path for job in event.plan.jobs for path in job.inputs}
    for path in inputs:
        left.pop(path, None)
    if len(left) + len(inputs) <= len(event.files):
        return left
    return {path: why for path, why in left.items() if path in event.files}


def _note_plan(
    cluster: ClusterState, event: on.TabletPlanned, held: list[str], now_s: float
) -> None:
    last_plan = LastPlan(
        table_name=cluster.table_name(event.tablet.table),
        version=event.record.version,
        settings_version=event.settings_version,
        planned_s=now_s,
        left=_reasons(cluster, event),
        wanted=len(event.plan.jobs),
        holds=event.plan.holds,
        held=tuple(dict.fromkeys(held)),
        triggered_at_s=event.plan.triggered_at_s,
        statistics=event.record.statistics,
        unstable=unstable_notes(event.plan, event.record, event.chunks),
        numbers=event.numbers,
    )
    cluster.last_plans.put(event.tablet, last_plan)


def _trigger_decision(
    cluster: ClusterState,
    event: on.TabletPlanned,
    wanted: list[Job],
    held: list[str],
    *,
    analysis: Analysis,
    now_s: float,
) -> TriggerDecision:
    """Return the decision of a plan on the trigger that it answers."""
    plan, table = event.plan, cluster.tables.get(event.tablet.table)
    system = {job.id: job for job in plan.jobs if job.kind is Kind.SYSTEM}
    # `wanted` may include a requested analysis in addition to the planner's jobs.
    queued = [job for job in wanted if job.id in system]
    verdict, reason = api.TriggerVerdict.REFUSED, refusal_reason(plan.left)
    if queued and analysis is not Analysis.DEFERRED:
        verdict, reason = api.TriggerVerdict.ACCEPTED, queued[0].reason
    elif system:
        verdict = api.TriggerVerdict.HELD
        reason = "; ".join(dict.fromkeys(held)) or "the queue of its group is full"
    elif analysis not in QUIET_ANALYSES:
        busy = "a job or a request is active in the tablet"
        verdict, reason = api.TriggerVerdict.HELD, "; ".join(plan.holds) or busy
    own = event.record.triggered_s == plan.triggered_at_s
    trigger = ADMIN if own else "" if table is None else table.triggered_by
    return TriggerDecision(
        table_name=cluster.table_name(event.tablet.table),
        trigger=trigger,
        triggered_at_s=plan.triggered_at_s,
        decided_s=now_s,
        verdict=verdict,
        jobs=len(system),
        files=sum(len(job.inputs) for job in system.values()),
        reason=reason,
    )


def _analysis_of(cluster: ClusterState, event: on.TabletPlanned) -> Analysis:
    """Return the analysis that results from a plan.

    A tablet with work is UNSTABLE, so that scans read it again.
    """
    record = event.record
    busy = record.running or record.waiting or record.selected or record.operation
    wanted = event.plan.jobs or event.plan.analysis_group
    if wanted or busy or not cluster.hands_out(event.tablet.table):
        return Analysis.UNSTABLE
    return analysis_at_rest(record.files)


def _note_analysis(event: on.TabletPlanned, analysis: Analysis) -> list[Action]:
    """Write the analysis of a tablet if it changes the behaviour of the next scan."""
    record = event.record
    rests = analysis in {Analysis.EMPTY, Analysis.STABLE}
    answered_s = event.plan.triggered_at_s if rests and event.plan.triggered_at_s else None
    fresh = (record.analysis_version, record.analysis_settings) == (
        record.version,
        event.settings_version,
    )
    same = analysis is record.analysis and (
        analysis not in QUIET_ANALYSES or event.due_at_s == record.due_at_s
    )
    if same and fresh and answered_s is None:
        return []
    if analysis not in QUIET_ANALYSES and not (fresh and record.analysis in QUIET_ANALYSES):
        return []
    change = _write_analysis(event.tablet, analysis, record.version, event.settings_version)
    return [replace(change, due_at_s=event.due_at_s, answered_s=answered_s)]


def _with_chunks(
    event: on.TabletPlanned, actions: list[Action], dropped: Iterable[Job]
) -> list[Action]:
    """Add the states of chunks to the actions that note the analysis of a tablet.

    Args:
        event: The plan.
        actions: The note of the tablet's analysis, if there is one.
        dropped: Jobs of the plan that a full queue dropped.
    """
    deferred = _numbers_of(dropped, event.numbers)
    notes = chunk_notes(event.plan, event.record, event.chunks, deferred)
    if notes is None:
        return actions
    change = actions[0] if actions else _write_analysis(event.tablet, Analysis.UNKNOWN, -1, -1)
    assert isinstance(change, WriteAnalysis), change
    return [replace(change, chunks=notes)]


def _write_analysis(
    tablet: TabletId, analysis: Analysis, version: int, settings_version: int
) -> WriteAnalysis:
    return WriteAnalysis(
        tablet=tablet, analysis=analysis, version=version, settings_version=settings_version
    )


def _defer(cluster: ClusterState, tablet: TabletId, group: str, now_s: float) -> list[Action]:
    """Defer a tablet until the queue has room; a tablet dropped for it is marked for scans."""
    cluster.deferrals.full_since_s.setdefault(group, now_s)
    forgotten = cluster.deferrals.defer(tablet, group, now_s)
    last_plan = None if forgotten is None else cluster.last_plans.get(forgotten)
    if forgotten is None or last_plan is None:
        return []
    return [
        _write_analysis(forgotten, Analysis.UNSTABLE, last_plan.version, last_plan.settings_version)
    ]


def _defer_evicted(
    cluster: ClusterState, tablet: TabletId, group: str, evicted: Iterable[Job], now_s: float
) -> list[Action]:
    actions = _defer(cluster, tablet, group, now_s)
    last_plan = cluster.last_plans.get(tablet)
    if last_plan is None:
        return actions
    note = _write_analysis(tablet, Analysis.DEFERRED, last_plan.version, last_plan.settings_version)
    return [*actions, replace(note, chunks=_deferred_chunks(last_plan, evicted))]


def _deferred_chunks(last_plan: LastPlan, evicted: Iterable[Job]) -> ChunkNotes | None:
    """Return the states of the chunks whose jobs a full queue dropped for other tablets."""
    unstable = last_plan.unstable
    numbers = _numbers_of(evicted, last_plan.numbers)
    if unstable is None or not numbers:
        return None
    notes = {
        number: replace(unstable.notes[number], analysis=Analysis.DEFERRED)
        for number in numbers
        if number in unstable.notes
    }
    return replace(unstable, notes=notes)


def _numbers_of(jobs: Iterable[Job], numbers: Mapping[str, Collection[int]]) -> set[int]:
    """Return the chunks of the inputs of jobs."""
    return {number for job in jobs for path in job.inputs for number in numbers.get(path, ())}


def decide_on_queued_job(
    cluster: ClusterState, event: on.QueuedJobEvent, now_s: float
) -> list[Action]:
    """Return the actions that follow from an operator's command for a queued job.

    A job that has left its queue meanwhile is not affected.
    """
    match event:
        case on.QueuedJobCancelled(job=job_id, cause=cause):
            job = cluster.queues.remove(job_id) or cluster.retry.resume_job(job_id)
            if job is not None:
                cluster.retry.note_cancelled(job.tablet, job.inputs, cause, now_s)
        case on.QueuedJobPaused(job=job_id):
            job = cluster.queues.remove(job_id)
            if job is not None:
                cluster.retry.pause_job(job)
        case on.QueuedJobResumed(job=job_id):
            job = cluster.retry.resume_job(job_id)
        case _:
            assert_never(event)
    return [] if job is None else [do.Replan(tablet=job.tablet)]


def _planning_failed(cluster: ClusterState, event: on.PlanningFailed, now_s: float) -> list[Action]:
    """Record the failure of a plug-in: queued jobs stay, and planning is retried after a pause."""
    before = cluster.last_plans.get(event.tablet)
    failures = 1 if before is None else before.failures + 1
    last_plan = LastPlan(
        table_name=cluster.table_name(event.tablet.table),
        version=-1 if before is None else before.version,
        settings_version=-1 if before is None else before.settings_version,
        planned_s=now_s,
        failure=event.cause,
        failures=failures,
    )
    cluster.last_plans.put(event.tablet, last_plan)
    _note_failed_trigger(cluster, event, now_s)
    cluster.replan_timers.set(event.tablet, now_s + cluster.retry.length_s(failures))
    fields = (("tablet", str(event.tablet)), ("cause", event.cause))
    return [do.WriteLog(event="planning failed", fields=fields)]


def _note_failed_trigger(cluster: ClusterState, event: on.PlanningFailed, now_s: float) -> None:
    """Record that planning failed for a recent trigger, unless its decision is final."""
    table = cluster.tables.get(event.tablet.table)
    if table is None or not cluster.is_recent_trigger(table):
        return
    decision = TriggerDecision(
        table_name=table.name,
        trigger=table.triggered_by,
        triggered_at_s=table.triggered_at_s,
        decided_s=now_s,
        verdict=api.TriggerVerdict.FAILED,
        reason=event.cause,
    )
    cluster.triggers.put(event.tablet, decision)


def _table_seen(cluster: ClusterState, event: on.TableSeen, now_s: float) -> list[Action]:
    table = event.table
    before = cluster.tables.get(table.id)
    cluster.note_table(table)
    if before is not None and before.settings_version != table.settings_version:
        cluster.retry.lift_table(table.id)
    if table.state is not TableState.LIVE:
        for tablet in _unqueue(cluster, table.id):
            cluster.deferrals.defer(tablet, wait_queue_of_table(table.id), now_s)
    return []


def _unqueue(cluster: ClusterState, table: str) -> list[TabletId]:
    """Remove all jobs of a table from the queues; return their tablets."""
    jobs = [job for job in cluster.queued_jobs() if job.tablet.table == table]
    tablets = list(dict.fromkeys(job.tablet for job in jobs))
    for tablet in tablets:
        cluster.queues.remove_tablet(tablet)
    return tablets


def _table_gone(cluster: ClusterState, table: str) -> list[Action]:
    """Remove a dropped table; the store has dropped every reservation of its tablets, too."""
    tablets = dict.fromkeys(_unqueue(cluster, table))
    tablets.update(dict.fromkeys(cluster.deferrals.of_table(table)))
    paused = cluster.retry.paused_jobs()
    tablets.update(dict.fromkeys(job.tablet for job in paused if job.tablet.table == table))
    tablets.update(
        dict.fromkeys(
            attempt.tablet for attempt in cluster.attempts if attempt.tablet.table == table
        )
    )
    for tablet in tablets:
        _forget_tablet(cluster, tablet)
    cluster.retry.lift_table(table)
    cluster.triggers.forget(tuple(tablets), table)
    cluster.forget_table(table)
    return []


def _forget_tablet(cluster: ClusterState, tablet: TabletId) -> list[Action]:
    """Remove all state of a tablet that was dropped or merged."""
    cluster.queues.remove_tablet(tablet)
    cluster.deferrals.discard(tablet)
    cluster.replan_timers.discard(tablet)
    cluster.backlogs.discard(tablet)
    cluster.pressures.discard(tablet)
    cluster.last_plans.pop(tablet)
    cluster.followers.pop(tablet)
    cluster.wanted_analyses.pop(tablet)
    cluster.heat.forget(tablet)
    cluster.retry.lift(tablet)
    cluster.retry.forget_paused(tablet)
    for attempt in cluster.attempts.of_tablet(tablet):
        cluster.attempts.end(attempt.id, AttemptEnd.LOST)
        cluster.job_ends(attempt.id)
    return []
