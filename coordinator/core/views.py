"""Views for users and metrics: status, queue, running attempts, explanations of tablets.

The functions only read `ClusterState` and return wire values.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import nlargest
from itertools import chain, islice
from typing import assert_never

from common.model.job import KNOWS_BUFFERS, Job, analysis_id, is_urgent
from common.model.table import TableState
from common.model.tablet import TabletId
from common.spi.controller import ShareClass
from common.units import format_bytes, format_count
from common.wire import (
    CoordinatorStatus,
    MetricValue,
    QueuedJob,
    RecordedSeries,
    RunningAttempt,
    SeriesQuery,
)
from coordinator.core.assignment import saturated_tables, under_way, why_barred, why_no_buffers
from coordinator.core.attempts import Attempt, AttemptState, Compactor, attempt_work, work_done
from coordinator.core.cluster_state import ClusterState, LastPlan
from coordinator.core.control import ControlLoop, control_values, fractions
from coordinator.core.plan_events import WAITS_FOR_WINDOW, why_not_queued
from coordinator.core.queue import JobQueue
from coordinator.core.queue_index import QueueEntry
from coordinator.core.retry import is_group_queue, window_of_wait_queue
from coordinator.core.series import SeriesSample
from coordinator.core.throttle import UNLIMITED
from coordinator.core.triggers import is_gated, triggers_text
from coordinator.core.windows import Scope, WindowUsage
from neve import api

BACKLOGS_MAX = 100
"""Maximum number of backlog entries; the last one sums up all further tables."""

# --------------------------------------------------------------- Status, queue and running attempts

TRIGGERS_SHOWN_MAX = 100
"""Tables whose last trigger is part of a status."""
QUARANTINES_SHOWN_MAX = 100
WAITING_SHOWN_MAX = 5
"""Tables that get their own warning while they wait for their storage."""


def coordinator_status(
    cluster: ClusterState, coordinator: str, now_s: float, turns: int, conflicts: int
) -> CoordinatorStatus:
    """Return the status with all counters."""
    counters, quarantined = cluster.counters, cluster.retry.quarantined()
    groups = tuple(_group_status(cluster, group, now_s) for group in _group_names(cluster))
    compactors = tuple(
        _compactor_status(cluster, compactor, now_s) for compactor in cluster.compactors.every()
    )
    return CoordinatorStatus(
        coordinator=coordinator,
        started_s=now_s if cluster.started_s is None else cluster.started_s,
        now_s=now_s,
        groups=groups,
        compactors=compactors,
        tables=len(cluster.tables),
        tablets_known=len(cluster.last_plans),
        committed=counters.committed,
        failed=counters.failed,
        released=counters.released,
        stalled=counters.stalled,
        conflicts=conflicts,
        quarantined=len(quarantined),
        queued_tables=len(
            {job.tablet.table for _, queue in cluster.queues for job in queue.unordered()}
        ),
        turns=turns or counters.turns,
        scopes=cluster.grants.statuses(),
        backlogs=table_backlogs(cluster),
        buffers_refused=tuple(why_no_buffers(cluster).items()),
        overlapping=tuple(cluster.pressures.deepest_tables(BACKLOGS_MAX).items()),
        triggers=cluster.triggers.of_tables(TRIGGERS_SHOWN_MAX),
        windows=cluster.windows.lines(cluster.table_name, now_s),
        warnings=tuple(_warnings(cluster, groups, compactors)),
        quarantines=tuple(
            api.Quarantine(
                table=cluster.table_name(tablet.table), tablet=tablet.text, reason=reason
            )
            for tablet, reason in islice(quarantined.items(), QUARANTINES_SHOWN_MAX)
        ),
    )


def _warnings(
    cluster: ClusterState, groups: Sequence[api.Group], compactors: Sequence[api.Compactor]
) -> Iterator[str]:
    """Yield one warning for each problem that keeps jobs from running."""
    for group in groups:
        yield from group.problems
    for compactor in compactors:
        yield from compactor.problems
    waiting = cluster.retry.waiting_for_storage()
    for table, cause in waiting[:WAITING_SHOWN_MAX]:
        name = cluster.table_name(table)
        yield f"jobs of table {name} wait for its storage and are retried: {cause}"
    if len(waiting) > WAITING_SHOWN_MAX:
        yield f"jobs of {len(waiting) - WAITING_SHOWN_MAX} more tables wait for their storage"


def _compactor_problems(compactor: Compactor) -> Iterator[str]:
    where = f"compactor {compactor.name} of group {compactor.group}"
    if compactor.start_problem:
        yield f"{where} cannot start: {compactor.start_problem}"
    if KNOWS_BUFFERS not in compactor.actions:
        yield f"{where} is of an older release: no jobs of tables with deletes or expiry for it"


def window_usages(
    cluster: ClusterState, changes: int, now_s: float
) -> tuple[int, Mapping[Scope, WindowUsage] | None]:
    """Return the count of changes of budgets, and their use; None: it is as at `changes`."""
    windows = cluster.windows
    return windows.changes, None if windows.changes == changes else windows.usages(now_s)


def table_backlogs(cluster: ClusterState) -> tuple[api.Backlog, ...]:
    """Return the backlog of each table, less the work that running attempts have done.

    A table without a backlog has an entry, too, while jobs of its requests are queued.
    """
    requested = Counter[str]()
    for _, queue in cluster.queues:
        for job in queue.unordered():
            if job.request is not None:
                requested[job.table_name] += job.input_bytes
    wanted = cluster.backlogs.top(cluster.table_name, work_done(cluster.attempts), BACKLOGS_MAX)
    lines = [replace(line, requested_bytes=requested.pop(line.table, 0)) for line in wanted]
    lines += [
        api.Backlog(table=name, strategy="", size_bytes=0, tablets=0, requested_bytes=size_bytes)
        for name, size_bytes in requested.most_common(BACKLOGS_MAX)
    ]
    return tuple(lines)


def control_status(cluster: ClusterState, now_s: float) -> api.Control:
    """Return the readings and the decision of the controller."""
    loop, readings = cluster.control, cluster.control.readings
    decision, backlog_bytes = loop.decision, 0.0 if readings is None else readings.backlog_bytes
    latencies = loop.latencies.by_table(now_s)
    return api.Control(
        controller=loop.name,
        now_s=now_s,
        decided_at_s=None if readings is None else readings.time_s,
        period_s=loop.rules.period_s,
        classes=_class_lines(loop, now_s),
        bytes_s=decision.bytes_s,
        slots=decision.slots,
        reasons=decision.reasons,
        table_weights={
            name: weight for name, weight in decision.table_weights.items() if weight != 1.0
        },
        backlog_bytes=backlog_bytes,
        memory_bytes=loop.rules.memory_bytes,
        arrival_bytes_s=None if readings is None else readings.arrival_bytes_s,
        rewrite_bytes_s=None if readings is None else readings.rewrite_bytes_s,
        slot_bytes_s=None if readings is None else readings.slot_bytes_s,
        living_slots=0 if readings is None else readings.slots,
        busy_slots=0 if readings is None else readings.busy_slots,
        slots_max=0 if readings is None else readings.slots_max,
        latencies_s={cluster.table_name(table): latency for table, latency in latencies.items()},
        latency_limit_s=loop.rules.foreground_limit_s,
        failure=loop.failure,
        failures=loop.failures,
        deepest_files=0 if readings is None else readings.deepest_files,
        garbage_fraction=0.0 if readings is None else readings.garbage_fraction,
    )


def _class_lines(loop: ControlLoop, now_s: float) -> tuple[api.ClassControl, ...]:
    used_bytes = loop.usage.last_minute(now_s)
    granted, used = fractions(loop.decision.shares), fractions(used_bytes)
    return tuple(
        api.ClassControl(
            name=class_.value,
            shares=loop.decision.shares[class_],
            granted=granted[class_],
            used=used[class_],
            used_bytes=used_bytes[class_],
            total_bytes=loop.usage.total_bytes[class_],
        )
        for class_ in ShareClass
    )


def queued_jobs(
    cluster: ClusterState, group: str | None, count: int, now_s: float
) -> list[QueuedJob]:
    """Return the queued jobs that start next, by group, in the order in which they start.

    The order holds if nothing changes: no new job, and no limit, pause or reserved slot that lets a
    later job start first. Paused jobs follow; they have no place.
    """
    lines: list[QueuedJob] = []
    for name, queue in cluster.queues:
        if group is None or name == group:
            for position, entry in enumerate(islice(queue.in_order_of_start(), count), start=1):
                age_s = now_s - entry.offered_s
                aged = entry.priority + age_s * cluster.limits.ageing_per_s
                lines.append(
                    QueuedJob(job=entry.job, place=position, age_s=age_s, effective_priority=aged)
                )
    paused = [job for job in cluster.retry.paused_jobs() if group is None or job.group == group]
    return lines + [_paused_job(job) for job in paused[:count]]


def following_jobs(cluster: ClusterState, group: str | None, count: int) -> list[QueuedJob]:
    """Return jobs that are queued when other jobs of their plans have been committed."""
    followers = (
        QueuedJob(
            job=job, place=0, age_s=0.0, effective_priority=job.priority, after=tuple(sorted(ids))
        )
        for _, jobs in cluster.followers
        for job, ids in jobs
        if group in (None, job.group)
    )
    return list(islice(followers, count))


def _paused_job(job: Job) -> QueuedJob:
    return QueuedJob(job=job, place=0, age_s=0.0, effective_priority=job.priority, paused=True)


WAITING_MAX = 1000
"""Maximum number of jobs that `waiting_jobs` returns."""


def waiting_jobs(cluster: ClusterState, text: str) -> list[Job]:
    """Return the queued and paused jobs whose id begins with a text. O(n)."""
    queued = (job for _, queue in cluster.queues for job in queue.unordered())
    waiting = chain(queued, cluster.retry.paused_jobs())
    return list(islice((job for job in waiting if job.id.startswith(text)), WAITING_MAX))


def running_attempts(cluster: ClusterState, now_s: float) -> list[RunningAttempt]:
    """Return the attempts in progress, oldest first, without the DOUBTFUL ones."""
    attempts = sorted(cluster.attempts, key=lambda attempt: attempt.since_s)
    certain = [attempt for attempt in attempts if attempt.state is not AttemptState.DOUBTFUL]
    return [_running_attempt(cluster, attempt, now_s) for attempt in certain]


def table_activity(cluster: ClusterState, now_s: float) -> list[api.TableActivity]:
    """Return the tables with queued or running jobs, most bytes first."""
    queued = defaultdict[str, list[QueueEntry]](list)
    running = defaultdict[str, list[Attempt]](list)
    for _, queue in cluster.queues:
        for entry in queue.entries():
            queued[entry.job.tablet.table].append(entry)
    for attempt in cluster.attempts:
        running[attempt.tablet.table].append(attempt)
    tables = [
        api.TableActivity(
            table=cluster.table_name(table),
            queued=len(queued[table]),
            queued_bytes=sum(entry.job.input_bytes for entry in queued[table]),
            oldest_s=max((now_s - entry.offered_s for entry in queued[table]), default=0.0),
            running=len(running[table]),
            running_bytes=sum(attempt.input_bytes for attempt in running[table]),
            compactors=len({attempt.compactor for attempt in running[table]}),
        )
        for table in {**queued, **running}
    ]
    return sorted(
        tables, key=lambda table: (-table.queued_bytes - table.running_bytes, table.table)
    )


LOADED_TABLETS_MAX = 500
"""Tablets with a large backlog that `tablet_loads` adds."""
COMPARED_TABLETS_MAX = 5000
"""Tablets with a backlog among which those are sought."""
EXPLAINED_FILES_MAX = 10_000
"""Files of a tablet of which an explanation says why no job takes them."""


def tablet_loads(
    cluster: ClusterState, table: str, tablets: Sequence[str], now_s: float
) -> api.TabletLoads:
    """Return what is remembered of tablets, and of the tablets with the largest backlogs.

    The cost is bounded by the number of given tablets, whatever the size of the table.

    Args:
        cluster: The coordinator's memory.
        table: Id of the table.
        tablets: Ends of tablets. The answer begins with them, in this order.
        now_s: The current time.
    """
    ids = [TabletId.parse(table, tablet) for tablet in tablets]
    ids += cluster.backlogs.largest(table, COMPARED_TABLETS_MAX, LOADED_TABLETS_MAX)
    sizes = cluster.backlogs.sizes(ids, work_done(cluster.attempts))
    pressures = [cluster.pressures.of(tablet) for tablet in ids]
    return api.TabletLoads(
        tablets=tuple(tablet.text for tablet in ids),
        backlog_bytes=tuple(sizes[tablet] for tablet in ids),
        overlapping_files=tuple(load.overlapping_files for load in pressures),
        garbage_shares=tuple(load.garbage_bytes / (load.stored_bytes or 1) for load in pressures),
        scans_s=tuple(cluster.heat.of(tablet, now_s).scans_s for tablet in ids),
    )


def _group_names(cluster: ClusterState) -> list[str]:
    names = [*cluster.configured_groups, *(group for group, _ in cluster.queues)]
    names += [*cluster.takes.groups(), *cluster.paused_groups]
    names += [compactor.group for compactor in cluster.compactors.every()]
    return sorted(dict.fromkeys(names))


def _group_status(cluster: ClusterState, group: str, now_s: float) -> api.Group:
    queue = cluster.queues.queue(group)
    input_bytes, cost_bytes = _queued_bytes(queue)
    overload = cluster.overload(group, now_s)
    return api.Group(
        group=group,
        queued=len(queue),
        queued_bytes=queue.size_bytes,
        queued_cost_bytes=cost_bytes,
        running=cluster.capacity.jobs(group),
        compactors=len(cluster.compactors.of_group(group)),
        waiting_takes=len(cluster.takes.waiting(group)),
        accepted=queue.counts.accepted,
        rejected=queue.counts.rejected,
        evicted=queue.counts.evicted,
        oldest_age_s=queue.oldest_age_s(now_s),
        paused=group in cluster.paused_groups,
        longest_s=_longest_s(cluster, group, now_s),
        quiet_s=_quietest_s(cluster, group, now_s),
        queued_input_bytes=input_bytes,
        running_left_bytes=_left_bytes(cluster, group),
        committed_bytes=cluster.counters.committed_bytes[group],
        deferred=cluster.deferrals.count(group),
        full_s=cluster.full_s(group, now_s),
        overloaded=overload is not None,
        problems=tuple(why for why in (cluster.unserved(group), overload) if why is not None),
    )


def _queued_bytes(queue: JobQueue) -> tuple[int, int]:
    """Return the bytes that the queued jobs would read, and would read and write. O(n).

    Maintaining the sums would make each offer and each take about 5 % slower.
    """
    input_bytes = cost_bytes = 0
    for job in queue.unordered():
        input_bytes += job.input_bytes
        cost_bytes += job.cost_bytes
    return input_bytes, cost_bytes


def _left_bytes(cluster: ClusterState, group: str) -> int:
    """Return the input bytes that running attempts of a group still have to rewrite."""
    return sum(
        int(attempt.input_bytes * (1 - (attempt.progress.fraction if attempt.progress else 0.0)))
        for attempt in cluster.attempts
        if attempt.group == group and attempt.state is AttemptState.RUNNING
    )


def _longest_s(cluster: ClusterState, group: str, now_s: float) -> float:
    begun = [
        attempt.since_s
        for attempt in cluster.attempts
        if attempt.group == group and attempt.state is AttemptState.RUNNING
    ]
    return max(0.0, now_s - min(begun, default=now_s))


def _quietest_s(cluster: ClusterState, group: str, now_s: float) -> float:
    quiet = [
        _quiet_s(attempt, now_s)
        for attempt in cluster.attempts
        if attempt.group == group and attempt.state is AttemptState.RUNNING
    ]
    return max(quiet, default=0.0)


def _quiet_s(attempt: Attempt, now_s: float) -> float:
    """Return the time since the last progress of an attempt, including its compactor's silence."""
    listed = 0.0 if attempt.progress is None else attempt.progress.quiet_s
    return listed + max(0.0, now_s - attempt.listed_s)


def _compactor_status(cluster: ClusterState, compactor: Compactor, now_s: float) -> api.Compactor:
    held = cluster.attempts.of_compactor(compactor.name)
    pause = cluster.retry.compactor(compactor.name, now_s)
    until_s = None if pause is None else pause.until_s
    return api.Compactor(
        compactor=compactor.name,
        group=compactor.group,
        node=compactor.node,
        slots=compactor.slots,
        busy=sum(1 for attempt in held if attempt.state is AttemptState.RUNNING),
        heard_ago_s=now_s - compactor.heard_s,
        draining=compactor.draining,
        failures=cluster.retry.compactor_failures(compactor.name),
        backing_off_s=0.0 if until_s is None else until_s - now_s,
        ready=compactor.ready,
        start_problem=compactor.start_problem,
        edition=compactor.edition,
        task_memory=compactor.task_memory,
        problems=tuple(_compactor_problems(compactor)),
    )


def _running_attempt(cluster: ClusterState, attempt: Attempt, now_s: float) -> RunningAttempt:
    holder = cluster.grants.holder(attempt.id)
    return RunningAttempt(
        job_id=attempt.job_id,
        attempt=attempt.id,
        tablet=attempt.tablet.text,
        table_name=attempt.table_name,
        kind=attempt.kind.value,
        group=attempt.group,
        compactor=attempt.compactor,
        inputs=len(attempt.inputs),
        input_bytes=attempt.input_bytes,
        since_s=attempt.since_s,
        progress=attempt.progress,
        reason=attempt.reason,
        throttled=holder is not None and holder.throttled,
        quiet_s=_quiet_s(attempt, now_s),
        files=attempt.inputs,
    )


# --------------------- Explanations of tablets: one sentence per rule, the most important one first


_STATES_TEXT = {
    AttemptState.RUNNING: "runs on",
    AttemptState.FOUND: "is reserved in the store and not reported so far by",
    AttemptState.DOUBTFUL: "may be reserved, for",
    AttemptState.RELEASING: "is being released; it ran on",
}


def explain_tablet(cluster: ClusterState, tablet: TabletId, now_s: float) -> api.Explanation:
    """Explain the state of a tablet.

    Args:
        cluster: The coordinator's memory; only read.
        tablet: The tablet; the explanation of an unknown tablet states that it is unknown.
        now_s: The current time.
    """
    last_plan = cluster.last_plans.get(tablet)
    queued = cluster.queues.jobs_of(tablet)
    pauses = cluster.retry.of_tablet(tablet, now_s)
    sentences = [
        *_of_table(cluster, tablet),
        *(f"{pause.reason} ({_until(pause.until_s, now_s)})" for pause in pauses),
        *_of_attempts(cluster, tablet, now_s),
        *_of_throttle(cluster, tablet),
        *_of_analysis(cluster, tablet),
        *(() if last_plan is None else last_plan.holds),
        *_of_queue(cluster, queued),
        *_of_window(cluster, tablet, now_s),
        *_of_deferral(cluster, tablet, now_s),
        *_of_trigger(cluster, tablet, now_s),
        *_of_gate(cluster, tablet, last_plan),
        *_of_plan(last_plan, now_s, busy=bool(queued)),
        *_of_statistics(last_plan),
    ]
    given = {pause.reason for pause in pauses}
    return api.Explanation(
        tablet=tablet.text,
        table=cluster.table_name(tablet.table),
        sentences=tuple(dict.fromkeys(sentence for sentence in sentences if sentence not in given)),
        left={} if last_plan is None else dict(islice(last_plan.left.items(), EXPLAINED_FILES_MAX)),
        queued=tuple(job.id for job in queued),
        running=tuple(attempt.id for attempt in cluster.attempts.of_tablet(tablet)),
        inputs=tuple(attempt.inputs for attempt in cluster.attempts.of_tablet(tablet)),
    )


def _of_table(cluster: ClusterState, tablet: TabletId) -> list[str]:
    table = cluster.tables.get(tablet.table)
    if table is None:
        return [f"table {tablet.table} is unknown, or not read so far"]
    if table.state is not TableState.LIVE:
        return [f"table {table.name} is {table.state.value}: none of its jobs is assigned"]
    return []


def _of_analysis(cluster: ClusterState, tablet: TabletId) -> list[str]:
    group = cluster.wanted_analyses.get(tablet)
    if group is None:
        return []
    return [f"its live bytes will be counted by group {group}, after all other jobs of the group"]


def _what_runs(attempt: Attempt) -> str:
    if attempt.job_id == analysis_id(attempt.tablet):
        return "a count of live bytes"
    return f"a job on {format_count(len(attempt.inputs), 'file')}"


def _of_attempts(cluster: ClusterState, tablet: TabletId, now_s: float) -> list[str]:
    return [
        f"{_what_runs(attempt)} {_STATES_TEXT[attempt.state]} {attempt.compactor}"
        f", for {_ago(now_s - attempt.since_s)}"
        for attempt in cluster.attempts.of_tablet(tablet)
    ]


def _of_throttle(cluster: ClusterState, tablet: TabletId) -> list[str]:
    sentences = []
    for attempt in cluster.attempts.of_tablet(tablet):
        holder = cluster.grants.holder(attempt.id)
        if holder is not None and holder.throttled and holder.applied_bytes_s < UNLIMITED:
            limits = [
                f"{scope.kind} {scope.name} may move {format_bytes(rate)}/s"
                for scope in holder.scopes
                if (rate := cluster.grants.scopes.rate(scope)) is not None
            ]
            granted = f"{format_bytes(holder.applied_bytes_s)}/s"
            sentences.append(f"the job is throttled to {granted}: {', '.join(limits)}")
    return sentences


def _of_queue(cluster: ClusterState, queued: tuple[Job, ...]) -> list[str]:
    sentences: list[str] = []
    for job in queued:
        why = _why_waiting(cluster, job)
        files = f"a job on {format_count(len(job.inputs), 'file')} is queued in group {job.group}"
        sentences.append(f"{files}: {why} ({job.reason})")
    return sentences


def why_held(cluster: ClusterState, job: Job, now_s: float) -> str | None:
    """Return why a wanted job could not start now even with a free slot, or None."""
    busy = cluster.busy_inputs(job.tablet)
    why = why_not_queued(cluster, job, busy, frozenset(job.depends_on), now_s)
    pause = cluster.retry.pause_of(job, now_s)
    if pause is not None and why == pause.reason:
        return f"{why} ({_until(pause.until_s, now_s)})"
    if why == WAITS_FOR_WINDOW:
        return next(iter(closed_windows(cluster, job.tablet.table, [job.group], now_s)), why)
    if why is None and job.group in cluster.paused_groups:
        return f"group {job.group} is paused"
    return why


def _why_waiting(cluster: ClusterState, job: Job) -> str:
    group = job.group
    if group in cluster.paused_groups:
        return "the group is paused"
    if (unserved := cluster.unserved(group)) is not None:
        return unserved
    if cluster.keeps_slots(group) and not is_urgent(job):
        return "the free slots of the group are reserved for urgent jobs"
    full = cluster.capacity.full(group) or why_barred(cluster, job)
    if full is not None:
        return full
    if job.tablet.table in saturated_tables(cluster):
        volume, most = cluster.volume_of(job.tablet.table), cluster.limits.volume_running_max
        return f"volume {volume} runs {format_count(most, 'job')}, its limit"
    if not cluster.capacity.fits(group, job.input_bytes):
        under_way = format_bytes(cluster.capacity.input_bytes(group))
        size = format_bytes(job.input_bytes)
        return (
            f"its {size} exceed the limit together with the {under_way} that the group is rewriting"
        )
    first = cluster.backfill.waits_for(group)
    if first is not None and first.id != job.id and job.priority <= first.priority:
        return "a larger job that others have overtaken goes first"
    return (
        f"{format_count(len(cluster.queues.queue(group)), 'job waits', 'jobs wait')} "
        "for a free slot"
    )


def _of_window(cluster: ClusterState, tablet: TabletId, now_s: float) -> list[str]:
    """State which window a tablet waits for, and when it opens."""
    wait_queue = cluster.deferrals.wait_queue_of(tablet)
    window = None if wait_queue is None else window_of_wait_queue(wait_queue)
    return [] if window is None else closed_windows(cluster, tablet.table, [window[1]], now_s)


def closed_windows(
    cluster: ClusterState, table: str, groups: Iterable[str], now_s: float
) -> list[str]:
    """Return why system jobs of a table do not start now because of windows.

    Args:
        cluster: The coordinator's memory; only read.
        table: Id of the table.
        groups: Groups of the jobs.
        now_s: The current time.

    Returns:
        One sentence for each group whose window, or that of the table, is closed.
    """
    name = cluster.table_name(table)
    sentences = (cluster.windows.sentence(table, name, group, now_s) for group in groups)
    return [sentence for sentence in sentences if sentence is not None]


def _of_deferral(cluster: ClusterState, tablet: TabletId, now_s: float) -> list[str]:
    wait_queue, since_s = cluster.deferrals.wait_queue_of(tablet), cluster.deferrals.since_s(tablet)
    if wait_queue is None or since_s is None or not is_group_queue(wait_queue):
        return []
    return [
        f"the full queue of group {wait_queue} dropped jobs {_ago(now_s - since_s)} ago; they are"
        " planned again when it has room"
    ]


def _of_trigger(cluster: ClusterState, tablet: TabletId, now_s: float) -> list[str]:
    """Describe the decision on the last trigger; it stays until the next trigger."""
    decision = cluster.triggers.of(tablet)
    if decision is None:
        return []
    asked = f"trigger {decision.trigger} asked {_ago(now_s - decision.decided_s)} ago: its planner"
    match decision.verdict:
        case api.TriggerVerdict.ACCEPTED:
            jobs = format_count(decision.jobs, "job")
            return [f"{asked} wanted {jobs} on {format_count(decision.files, 'file')}"]
        case api.TriggerVerdict.HELD:
            return [f"{asked} has to wait: {decision.reason}"]
        case api.TriggerVerdict.FAILED:
            return [f"{asked} failed: {decision.reason}"]
        case api.TriggerVerdict.REFUSED:
            return [f"{asked} found nothing to do: {decision.reason}"]
        case _:
            assert_never(decision.verdict)


def _of_gate(cluster: ClusterState, tablet: TabletId, last_plan: LastPlan | None) -> list[str]:
    """State that a tablet waits for a trigger, if none is open."""
    table = cluster.tables.get(tablet.table)
    if table is None or last_plan is None or last_plan.triggered_at_s:
        return []
    if not is_gated(table.settings):
        return []
    return [f"system jobs are planned only on a trigger: {triggers_text(table.settings)}"]


def _of_plan(last_plan: LastPlan | None, now_s: float, *, busy: bool) -> list[str]:
    if last_plan is None:
        return ["it was not planned recently: it is idle, or waits for the next full scan"]
    when = f"{_ago(now_s - last_plan.planned_s)} ago"
    if last_plan.failure:
        return [f"its planner failed {when}: {last_plan.failure}"]
    if last_plan.held:
        return list(last_plan.held)
    if not last_plan.wanted:
        return [f"its planner wanted nothing {when}"]
    return [] if busy else [f"its planner wanted {format_count(last_plan.wanted, 'job')} {when}"]


def _of_statistics(last_plan: LastPlan | None) -> list[str]:
    statistics = None if last_plan is None else last_plan.statistics
    if statistics is None:
        return []
    changed = ", ".join(f"{name} {share:.0%}" for name, share in statistics.changed_shares)
    columns = f"; of {format_count(statistics.compared_rows, 'update')}, so many change {changed}"
    return [
        f"at version {statistics.tablet_version} newer rows hid {statistics.updated_share:.1%} of "
        f"its {format_count(statistics.rows, 'row')}{columns if changed else ''}"
    ]


def _until(until_s: float | None, now_s: float) -> str:
    return "until it is lifted" if until_s is None else f"for {_ago(until_s - now_s)} more"


def _ago(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


# ---------------------------------------------------------------------- Recorded values and metrics
# The sample of the series, and metrics that only a scrape needs.


def series_sample(
    cluster: ClusterState, scaling: Mapping[str, tuple[int, int]], now_s: float
) -> SeriesSample:
    """Return the values to record now. O(tables with a backlog + queued jobs).

    Args:
        cluster: The coordinator's memory.
        scaling: Group → its desired and its starting compactors.
        now_s: The current time.
    """
    table_bytes, group_bytes = cluster.backlogs.sums(work_done(cluster.attempts))
    queued = Counter(job.tablet.table for _, queue in cluster.queues for job in queue.unordered())
    busy = list(under_way(cluster))
    held = {(attempt.tablet.table, attempt.compactor) for attempt in busy}
    compactors = cluster.compactors.every()
    return SeriesSample(
        tables={
            "backlog_bytes": {table: size for table, size in table_bytes.items() if size},
            "queued_jobs": queued,
            "running_jobs": Counter(attempt.tablet.table for attempt in busy),
            "compactors": Counter(table for table, _ in held),
        },
        groups={
            "backlog_bytes": group_bytes,
            "queued_jobs": {group: len(queue) for group, queue in cluster.queues},
            "running_jobs": Counter(attempt.group for attempt in busy),
            "compactors": Counter(compactor.group for compactor in compactors),
            "compactors_desired": {group: desired for group, (desired, _) in scaling.items()},
            "compactors_starting": {group: starting for group, (_, starting) in scaling.items()},
            "compactors_draining": Counter(
                compactor.group for compactor in compactors if compactor.draining
            ),
        },
        total=control_values(cluster.control, len(busy), now_s)
        | {"backlog_bytes": sum(table_bytes.values())},
        attempts={
            attempt.id: (
                attempt.tablet.table,
                attempt.group,
                attempt.since_s,
                attempt.input_bytes * attempt_work(attempt).read_share,
            )
            for attempt in busy
        },
    )


def recorded_series(cluster: ClusterState, query: SeriesQuery) -> RecordedSeries:
    """Return recorded values; tables that were dropped are part of sums only."""
    names = {table.id: table.name for table in cluster.tables.values()}
    return cluster.series.read(query, names)


def recorded_tables(cluster: ClusterState) -> list[str]:
    """Return the names of the tables that have recorded values of their own."""
    tables = cluster.tables
    return [tables[table].name for table in cluster.series.tables.rows if table in tables]


def compactor_figures(cluster: ClusterState) -> list[MetricValue]:
    """Return the metrics of the living compactors, from their last heartbeats."""
    return [
        replace(value, labels=(compactor.group, compactor.name, *value.labels))
        for compactor in cluster.compactors.every()
        for value in compactor.metrics
    ]


WORST_TABLES_MAX = 99
"""Tables that each metric of tables names."""


def table_figures(cluster: ClusterState, now_s: float) -> list[MetricValue]:
    """Return metrics of the tables that need most attention. O(queued jobs)."""
    oldest: dict[str, float] = {}
    for _, queue in cluster.queues:
        for entry in queue.entries():
            table, age_s = entry.job.tablet.table, now_s - entry.offered_s
            oldest[table] = max(oldest.get(table, 0.0), age_s)
    quarantined = Counter(tablet.table for tablet in cluster.retry.quarantined())
    figures = [
        ("neve_table_queue_oldest_seconds", table, oldest[table])
        for table in nlargest(WORST_TABLES_MAX, oldest, key=lambda table: oldest[table])
    ]
    figures += [
        ("neve_table_quarantined_tablets", table, count)
        for table, count in quarantined.most_common(WORST_TABLES_MAX)
    ]
    for table, small, files in cluster.pressures.small_files(WORST_TABLES_MAX):
        figures.append(("neve_table_small_files", table, small))
        figures.append(("neve_table_files", table, files))
    return [
        MetricValue(metric, value, (cluster.table_name(table),)) for metric, table, value in figures
    ]
