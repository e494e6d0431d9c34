"""From a take to an assignment: which job a compactor gets, and the data to run it.

A job leaves its queue when its reservation is requested. It is assigned only after the store has
confirmed the reservation. A take has at most one reservation in flight and is answered once.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import assert_never

from common.model.job import (
    KEEPS_DELETED,
    KNOWS_BUFFERS,
    KNOWS_LAKE,
    PLANNED_ACTIONS,
    Job,
    JobAction,
    Kind,
    LaneClass,
    lane_class,
)
from common.model.location_identity import SERVICE_FOLDER
from common.model.outcome import AttemptEnd
from common.model.request import Request, TransformKind
from common.model.table import LakeTable, Table
from common.model.tablet import Reservation, Tablet, TabletId
from common.rows.key_encoding import partition_folder
from common.rows.rules import keeps_deleted_rows, may_drop_rows
from common.spi.controller import ControlDecision, ShareClass
from common.units import format_count
from common.wire import Assignment, OutsideFile, TakeRequest
from coordinator.core import actions as do
from coordinator.core import events as on
from coordinator.core.actions import Action
from coordinator.core.attempt_events import note_sign_of_life, release_attempt
from coordinator.core.attempts import (
    Attempt,
    AttemptState,
    Compactor,
    Ending,
    ReservingTake,
    Take,
    attempt_of_job,
    attempt_work,
    work_done,
)
from coordinator.core.cluster_state import ClusterState
from coordinator.core.control import ClusterFacts
from coordinator.core.queue import JobFilter, admits_weight, job_weight
from coordinator.core.queue_index import JOB_COST_BYTES, SHARE_CLASSES
from coordinator.core.scans import droppable_version

# -------------------------------------------------------------------------------------- Enforcement
# Collect the facts for the controller, and enforce its decisions.
#
#     shares    enforced by the fair share of each queue     (`queue_index`)
#     slots     enforced when system and statistics jobs are assigned; the autoscaler uses them, too
#     bytes/s   enforced by the grants of all attempts       (`throttle`)
#
# User jobs and urgent jobs are not subject to the slot cap, because a caller waits for them.


BACKLOGS_MAX = 1000
"""Tables whose backlog a controller gets by name; the last entry sums up all others."""
CAPPED = frozenset({LaneClass.SYSTEM, LaneClass.STATISTICS})
"""Classes whose jobs are subject to the slot cap."""
_UNDER_WAY = frozenset({AttemptState.FOUND, AttemptState.RUNNING})


# ------------------------------------------------------------------------------- Facts → decision


def steer(cluster: ClusterState, now_s: float) -> None:
    """Run the controller if its period is over, and enforce the decision."""
    if cluster.control.is_due(now_s):
        before = cluster.control.decision
        enforce(cluster, cluster.control.look(cluster_facts(cluster), now_s), before)


def cluster_facts(cluster: ClusterState) -> ClusterFacts:
    """Return the facts about the cluster that the controller gets."""
    lines = cluster.backlogs.top(cluster.table_name, work_done(cluster.attempts), BACKLOGS_MAX)
    groups: Counter[str] = Counter()
    for compactor in cluster.compactors.every():
        groups[compactor.group] += 0 if compactor.draining else compactor.slots
    busy = list(under_way(cluster))
    rewritten = sum(attempt.input_bytes * attempt_work(attempt).read_share for attempt in busy)
    return ClusterFacts(
        backlog_bytes=float(sum(line.size_bytes for line in lines)),
        table_backlogs={line.table: float(line.size_bytes) for line in lines if line.table},
        done_bytes=sum(cluster.counters.committed_bytes.values()) + rewritten,
        group_slots=groups,
        busy_slots=len(busy),
        queued_jobs=len(cluster.queues),
        deepest_files=cluster.pressures.deepest_files,
        garbage_fraction=cluster.pressures.garbage_fraction,
    )


def enforce(cluster: ClusterState, decision: ControlDecision, before: ControlDecision) -> None:
    """Apply a decision to queues and grants; slots are checked when a job is assigned.

    Args:
        cluster: The owner of the queues and grants.
        decision: The new decision.
        before: The previous decision.
    """
    cluster.grants.scopes.set_control(decision.bytes_s)
    cluster.grants.foreground_part = cluster.control.rules.foreground_part(decision)
    for share in cluster.shares.values():
        share.set_shares(decision.shares)
    if decision.table_weights or before.table_weights:
        for table in cluster.tables.values():
            weight = table.settings.weight * decision.table_weights.get(table.name, 1.0)
            for share in cluster.shares.values():
                share.set_weight(table.id, weight)


# ----------------------------------------------------------------------------- Which jobs may start


def barred_classes(cluster: ClusterState, group: str) -> frozenset[LaneClass]:
    """Return the classes whose slot cap is used up in a group."""
    return CAPPED if _is_capped(cluster, group) else frozenset()


def admission(cluster: ClusterState, barred: frozenset[LaneClass]) -> JobFilter | None:
    """Return a filter for the jobs that may start now, or None if every job may.

    Args:
        cluster: The coordinator's memory, including the running jobs.
        barred: Classes whose jobs may not start.
    """
    most = cluster.limits.volume_weight_max
    if not (barred or most):
        return None
    weights = _running_weights(cluster) if most else Counter()

    def admits(job: Job) -> bool:
        if lane_class(job) in barred:
            return False
        volume, weight = cluster.volume_of(job.tablet.table), weight_of(job)
        return not most or admits_weight(weight, [weight] * weights[volume, weight], most)

    return admits


def why_barred(cluster: ClusterState, job: Job) -> str | None:
    """Return why the controller or the weight limit blocks a queued job, or None."""
    if _is_capped(cluster, job.group) and lane_class(job) in CAPPED:
        slots = cluster.control.slots_of(job.group) or 0
        return f"the controller allows these jobs {format_count(slots, 'slot')} (`neve control`)"
    volume, weight = cluster.volume_of(job.tablet.table), weight_of(job)
    most = cluster.limits.volume_weight_max
    running = _running_weights(cluster)[volume, weight] if most else 0
    if most and not admits_weight(weight, [weight] * running, most):
        return f"volume {volume} runs {format_count(running, 'job')} of similar size, its limit"
    return None


def weight_of(job: Job) -> int:
    """Return the weight of a job, or 0 for a job that rewrites nothing."""
    return job_weight(job.input_bytes, drops_only=job.action != JobAction.REWRITE.value)


def note_handed_out(cluster: ClusterState, job: Job, now_s: float) -> None:
    """Count the bytes of a job that was assigned."""
    cluster.control.usage.note(share_class_of(job), job.cost_bytes + JOB_COST_BYTES, now_s)


def share_class_of(job: Job) -> ShareClass:
    """Return the share class of a job."""
    return SHARE_CLASSES[lane_class(job)]


def capped_jobs(cluster: ClusterState, group: str) -> int:
    """Return how many jobs under the slot cap a group runs or reserves."""
    running = sum(attempt.group == group and _has_cap(attempt) for attempt in under_way(cluster))
    reserving = (take.job for take in cluster.takes.reserving())
    return running + sum(job.group == group and lane_class(job) in CAPPED for job in reserving)


def _is_capped(cluster: ClusterState, group: str) -> bool:
    slots = cluster.control.slots_of(group)
    return slots is not None and capped_jobs(cluster, group) >= slots


def _has_cap(attempt: Attempt) -> bool:
    """Return whether an attempt counts towards the slot cap."""
    if attempt.assignment is None:  # Only its reservation in the store is known.
        return attempt.kind is Kind.SYSTEM
    return lane_class(attempt.assignment.job) in CAPPED


def under_way(cluster: ClusterState) -> Iterator[Attempt]:
    """Return the attempts that run, as far as is known."""
    return (attempt for attempt in cluster.attempts if attempt.state in _UNDER_WAY)


def _running_weights(cluster: ClusterState) -> Counter[tuple[str, int]]:
    """Return the number of running jobs by volume and weight."""
    counts: Counter[tuple[str, int]] = Counter()
    for attempt in under_way(cluster):
        assignment = attempt.assignment
        weight = (
            job_weight(attempt.input_bytes) if assignment is None else weight_of(assignment.job)
        )
        counts[cluster.volume_of(attempt.tablet.table), weight] += 1
    for take in cluster.takes.reserving():
        counts[cluster.volume_of(take.job.tablet.table), weight_of(take.job)] += 1
    return counts


# --------------------------------------------------------------------------------------- Assignment


# -------------------------------------------------------- Volumes that run as many jobs as allowed


def saturated_tables(cluster: ClusterState) -> frozenset[str]:
    """Return the tables whose volume runs its maximum number of jobs."""
    most = cluster.limits.volume_running_max
    if not most:
        return frozenset()
    tables = [attempt.tablet.table for attempt in under_way(cluster)]
    tables += [take.job.tablet.table for take in cluster.takes.reserving()]
    counts = Counter(cluster.volume_of(table) for table in tables)
    return frozenset(table for table in cluster.tables if counts[cluster.volume_of(table)] >= most)


# ---------------------------------------- Takes, and the answers of the store to their reservations


TAKER_LEFT = "the compactor stopped waiting"
"""Cause of an attempt that was never assigned, because its take was cancelled."""
UNKNOWN_ACTION_PAUSE_S = 10.0
"""Delay before a job is queued again if no waiting compactor supports it."""
HELD_JOBS_MAX = 64
"""Maximum number of paused jobs of a group that one turn skips."""


def decide(cluster: ClusterState, event: on.TakeEvent, now_s: float) -> list[Action]:
    """Return the actions that follow from a take, or from the answer to one of its reservations."""
    match event:
        case on.TakeAsked(request=request):
            return _take_asked(cluster, request, now_s)
        case on.TakeLate(take=take):
            return (
                answer_nothing(cluster, take) if cluster.takes.leave(take, wants_last=True) else []
            )
        case on.TakeLeft(take=take):
            return answer_nothing(cluster, take) if cluster.takes.leave(take) else []
        case on.JobReserved():
            return _job_reserved(cluster, event, now_s)
        case on.JobRefused():
            return _job_refused(cluster, event, now_s)
        case on.JobReserveUnknown():
            return _reservation_unknown(cluster, event, now_s)
        case _:
            assert_never(event)


def hand_out(cluster: ClusterState, now_s: float) -> list[Action]:
    """Reserve jobs for waiting takes while there are both; called in every turn."""
    actions: list[Action] = []
    for group in cluster.takes.groups():
        if group not in cluster.paused_groups and len(cluster.queues.queue(group)):
            actions += _hand_out_group(cluster, group, now_s)
    return actions


def answer_nothing(cluster: ClusterState, take: str) -> list[Action]:
    """Answer a take with no job."""
    cluster.takes.note_answer(take, "")
    return [do.AnswerNothing(take=take)]


def _hand_out_group(cluster: ClusterState, group: str, now_s: float) -> list[Action]:
    actions: list[Action] = []
    if cluster.capacity.full(group):
        return actions
    free = [
        take
        for take in cluster.takes.waiting(group)
        if cluster.retry.compactor(take.compactor, now_s) is None
    ]
    while free and not cluster.capacity.full(group):
        job = _next_job(cluster, group, free, now_s)
        if job is None:
            break
        take = next(candidate for candidate in free if _knows(cluster, candidate, job))
        free.remove(take)
        cluster.takes.reserve(take, job)
        cluster.job_enters(take.take, job, now_s)
        actions.append(do.Reserve(take=take.take, job=job, compactor=take.compactor))
    return actions


def _knows(cluster: ClusterState, take: Take, job: Job) -> bool:
    """Return whether a compactor supports a job's action and table; an older release may not."""
    table = cluster.tables.get(job.tablet.table)
    if table is not None and table.lake is not None:
        # An older compactor would replace the files in the store only, and waste its work.
        return job.action == JobAction.REWRITE and KNOWS_LAKE in take.actions
    if job.action not in PLANNED_ACTIONS:
        return job.action in take.actions
    if table is None:
        return True
    keeps = not keeps_deleted_rows(table) or KEEPS_DELETED in take.actions
    # Rows may be buffered at any time until the commit. Without the knowledge of buffers, it could
    # drop a tombstone that a buffered row is older than.
    return keeps and (not may_drop_rows(table) or KNOWS_BUFFERS in take.actions)


def why_no_buffers(cluster: ClusterState) -> dict[str, str]:
    """Return the tables whose rows may not be buffered now, by id, and why.

    An attempt that an older coordinator has assigned to an older compactor may drop rows. All later
    ones know of buffers.
    """
    reasons: dict[str, str] = {}
    for attempt in cluster.attempts:
        table = cluster.tables.get(attempt.tablet.table)
        drops = table is None or may_drop_rows(table)
        if attempt.assignment is not None or attempt.state is AttemptState.DOUBTFUL or not drops:
            continue
        compactor = cluster.compactors.get(attempt.compactor)
        if compactor is None or KNOWS_BUFFERS not in compactor.actions:
            reasons[attempt.tablet.table] = (
                f"attempt {attempt.id} of compactor {attempt.compactor} was begun by an earlier"
                " coordinator, and the compactor has not announced that it knows buffered rows"
            )
    return reasons


def _next_job(cluster: ClusterState, group: str, free: Sequence[Take], now_s: float) -> Job | None:
    """Take the next job that can run now; blocked jobs are planned again later."""
    only_urgent, barred = cluster.keeps_slots(group), barred_classes(cluster, group)
    admits = admission(cluster, barred)
    for _ in range(HELD_JOBS_MAX):
        saturated = saturated_tables(cluster)
        job = cluster.backfill.take(
            group, saturated, only_urgent=only_urgent, admits=admits, barred=barred
        )
        if job is None:
            return None
        if not any(_knows(cluster, take, job) for take in free):
            cluster.replan_timers.set(job.tablet, now_s + UNKNOWN_ACTION_PAUSE_S)
            continue
        pause = cluster.retry.pause_of(job, now_s)
        wait_queue = cluster.windows.wait_queue_of(job, now_s)
        if pause is None and wait_queue is None:
            return job
        if pause is None:
            assert wait_queue is not None
            cluster.deferrals.defer(job.tablet, wait_queue, now_s)
            continue
        if pause.until_s is not None:
            cluster.replan_timers.set(job.tablet, pause.until_s)
    return None


def _take_asked(cluster: ClusterState, request: TakeRequest, now_s: float) -> list[Action]:
    if cluster.takes.known(request.take):
        return []
    given = cluster.takes.answer(request.take)
    if given is not None:
        attempt = cluster.attempts.get(given)
        if attempt is not None and attempt.assignment is not None:
            return [_assign_action(cluster, request.take, attempt, attempt.assignment, now_s)]
        return [do.AnswerNothing(take=request.take)]
    _, actions = note_sign_of_life(cluster, _compactor_of_take(cluster, request, now_s), now_s)
    if not _may_take(cluster, request.compactor, request.incarnation):
        return actions + answer_nothing(cluster, request.take)
    take = Take(
        take=request.take,
        compactor=request.compactor,
        incarnation=request.incarnation,
        group=request.group,
        since_s=now_s,
        actions=request.actions,
    )
    waits = cluster.takes.wait(take)
    return actions if waits else actions + answer_nothing(cluster, request.take)


def _compactor_of_take(cluster: ClusterState, request: TakeRequest, now_s: float) -> Compactor:
    """Return the compactor with the details in a take; a heartbeat has more."""
    heard = cluster.compactors.get(request.compactor)
    if heard is not None and heard.incarnation == request.incarnation:
        return replace(heard, heard_s=now_s, actions=request.actions)
    return Compactor(
        name=request.compactor,
        incarnation=request.incarnation,
        group=request.group,
        heard_s=now_s,
        actions=request.actions,
    )


def _may_take(cluster: ClusterState, name: str, incarnation: str) -> bool:
    """Return whether a compactor may receive a job: it is alive and not draining."""
    compactor = cluster.compactors.get(name)
    return compactor is not None and compactor.incarnation == incarnation and not compactor.draining


def _job_reserved(cluster: ClusterState, event: on.JobReserved, now_s: float) -> list[Action]:
    """Handle reserved inputs: answer the take, or release the inputs."""
    reserving = _reservation_answered(cluster, event.take)
    assignment = event.assignment
    job, reservation = assignment.job, assignment.reservation
    attempt = reservation.attempt
    cluster.retry.note_allowed(job)
    held = cluster.attempts.get(attempt)
    is_found = held is not None and held.state is AttemptState.FOUND
    if not is_found and (held is not None or cluster.attempts.ended(attempt) is not None):
        # The attempt ended, or its end was requested, before this answer arrived.
        return [do.Replan(tablet=job.tablet), *_wait_again(cluster, reserving)]
    running = attempt_of_job(job, attempt, reservation.compactor, AttemptState.RUNNING, now_s)
    take = None if reserving is None or reserving.left else reserving.take
    if take is None or not _may_take(cluster, take.compactor, take.incarnation):
        cluster.attempts.add(running)
        ending = Ending(end=AttemptEnd.LOST, cause=TAKER_LEFT, for_silence=False)
        answer = answer_nothing(cluster, event.take) if reserving is not None else []
        return release_attempt(cluster, running, ending, now_s) + answer
    running = replace(running, incarnation=take.incarnation, assignment=assignment)
    cluster.attempts.add(running)
    cluster.job_enters(attempt, job, now_s)
    cluster.takes.note_answer(take.take, attempt)
    note_handed_out(cluster, job, now_s)
    if _transforms_rows(assignment):
        cluster.transforming.put(attempt, None)
    return [_assign_action(cluster, take.take, running, assignment, now_s)]


def _transforms_rows(assignment: Assignment) -> bool:
    request = assignment.request
    return request is not None and request.transform.kind is not TransformKind.NONE


def _assign_action(
    cluster: ClusterState, take: str, attempt: Attempt, assignment: Assignment, now_s: float
) -> do.Assign:
    """Answer a take. The attempt starts with a grant, so its limits always apply."""
    # Free slots are unknown until every compactor has had time to report what it holds.
    young = now_s - (cluster.started_s or 0.0) < cluster.limits.unlisted_max_s
    blind = young or any(held.state is AttemptState.FOUND for held in cluster.attempts.unsettled())
    grant_bytes_s = cluster.grants.begin(
        attempt.id, attempt.compactor, cluster.scopes_of(attempt), now_s, blind=blind
    )
    granted = replace(assignment, grant_bytes_s=grant_bytes_s)
    return do.Assign(take=take, attempt=attempt.id, assignment=granted)


def _job_refused(cluster: ClusterState, event: on.JobRefused, now_s: float) -> list[Action]:
    """Handle a refused reservation: the plan was stale. Plan the tablet again, try the next job."""
    reserving = _reservation_answered(cluster, event.take)
    cluster.counters.refused += 1
    cluster.retry.note_refused(event.job, event.code, event.reason, now_s)
    return [do.Replan(tablet=event.job.tablet), *_wait_again(cluster, reserving)]


def _reservation_unknown(
    cluster: ClusterState, event: on.JobReserveUnknown, now_s: float
) -> list[Action]:
    """Handle an unknown outcome: assign the job to no compactor, and release its inputs later."""
    reserving = _reservation_answered(cluster, event.take)
    compactor = reserving.take.compactor if reserving is not None else ""
    reserved = cluster.attempts.get(event.attempt)
    if reserved is None or reserved.state is AttemptState.FOUND:
        # The feed may have reported the reservation first. Still, no compactor runs the attempt.
        doubtful = attempt_of_job(event.job, event.attempt, compactor, AttemptState.DOUBTFUL, now_s)
        cluster.attempts.add(doubtful)
    return _wait_again(cluster, reserving)


def _reservation_answered(cluster: ClusterState, take: str) -> ReservingTake | None:
    cluster.capacity.leave(take)
    cluster.windows.refund(take)
    return cluster.takes.reserved(take)


def _wait_again(cluster: ClusterState, reserving: ReservingTake | None) -> list[Action]:
    """Let a take wait for the next job after its reservation failed."""
    if reserving is None:
        return []
    take = reserving.take
    if reserving.late or not _may_take(cluster, take.compactor, take.incarnation):
        return answer_nothing(cluster, take.take)
    cluster.takes.wait_again(take)
    return []


# ---------------------------------------------------- What a compactor is given with a reserved job


def tablet_folder(tablet: TabletId) -> str:
    """Return the folder of a tablet's job outputs, relative to the table's location.

    Long keys are cut; the attempt in the file name keeps outputs apart. The folder name is for
    people. Keys determine which tablet owns a file.
    """
    return f"{SERVICE_FOLDER}/{tablet.text[:48]}"


LAKE_OUTPUT = "neve"
"""First part of the names of outputs of lake tables."""


def output_prefix(job: Job, attempt: str, table: Table | None) -> str:
    """Return the path prefix of an attempt's outputs, which contains job and attempt.

    It also contains the partition's folders, so that engines that use hive paths can read both
    outputs and files of users. Outputs of a lake table lie where its own writers put files: its
    vacuum does not see a folder of the service.
    """
    folder = partition_folder(job.partition)
    if table is not None and table.lake is not None:
        if table.lake.partition_types:
            folder = _folder_of_spec(table.lake, job.partition)
        return f"{folder}{LAKE_OUTPUT}-{job.id}-{attempt}"
    return f"{tablet_folder(job.tablet)}/{folder}{job.id}-{attempt}"


def _folder_of_spec(lake: LakeTable, partition: str | None) -> str:
    """Return the folder of a partition as the table's writers name it, without the spec's id."""
    _, _, values = (partition or "").partition("/")
    return partition_folder("/".join(filter(None, (lake.data_folder, values))))


def compose_assignment(
    job: Job,
    reservation: Reservation,
    table: Table,
    tablet: Tablet,
    now_s: float,
    *,
    request: Request | None = None,
) -> Assignment:
    """Return the assignment of a reserved job.

    Args:
        job: The job as it left the queue.
        reservation: The reservation that the store has written.
        table: The current table.
        tablet: The tablet as it was read under the reservation's `WATCH`.
        now_s: The current time, for the retention of tombstones.
        request: The job's request, for kind USER. Without it, the job fails.
    """
    held, record = frozenset(reservation.inputs), tablet.record
    analyzes = job.action == JobAction.ANALYZE
    outside = tuple(
        OutsideFile(
            path=file.path,
            key_min=file.key_min,
            key_max=file.key_max,
            version_min=file.version_min,
        )
        for path, file in sorted(tablet.files.items())
        if path not in held and not analyzes
    )
    return Assignment(
        job=job,
        reservation=reservation,
        table=table,
        bounds=tablet.bounds,
        inputs=tuple(tablet.files[path] for path in reservation.inputs),
        outside=outside,
        settled=droppable_version(table, record, now_s),
        purge=tablet.purge,
        request=request,
        halvings=record.halvings if record.halved_job == job.id else 0,
        analyzed=tuple(file for _, file in sorted(tablet.files.items()) if not file.open)
        if analyzes
        else (),
        tablet_version=record.version if analyzes else 0,
    )
