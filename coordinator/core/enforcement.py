"""Collect the facts for the controller, and enforce its decisions.

    shares    enforced by the fair share of each queue     (`queue.fair_share`)
    slots     enforced when system and statistics jobs are assigned; the autoscaler uses them, too
    bytes/s   enforced by the grants of all attempts       (`throttle`)

User jobs and urgent jobs are not subject to the slot cap, because a caller waits for them.
"""

from collections import Counter
from collections.abc import Iterator

from common.model.job import Job, JobAction, Kind, LaneClass, lane_class
from common.spi.controller import ControlDecision, ShareClass
from common.units import format_count
from coordinator.core.attempts import Attempt, AttemptState, done_shares
from coordinator.core.cluster_state import ClusterState
from coordinator.core.control.measurements import ClusterFacts
from coordinator.core.queue.admission import JobFilter, admits_weight, job_weight
from coordinator.core.queue.fair_share import JOB_COST_BYTES, SHARE_CLASSES

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
    lines = cluster.backlogs.told(cluster.table_name, done_shares(cluster.attempts), BACKLOGS_MAX)
    groups: Counter[str] = Counter()
    for compactor in cluster.compactors.every():
        groups[compactor.group] += 0 if compactor.draining else compactor.slots
    under_way = [attempt for attempt in cluster.attempts if attempt.state in _UNDER_WAY]
    rewritten = sum(
        attempt.input_bytes * attempt.progress.fraction
        for attempt in under_way
        if attempt.progress is not None
    )
    return ClusterFacts(
        backlog_bytes=float(sum(line.size_bytes for line in lines)),
        table_backlogs={line.table: float(line.size_bytes) for line in lines if line.table},
        done_bytes=sum(cluster.counters.committed_bytes.values()) + rewritten,
        group_slots=groups,
        busy_slots=len(under_way),
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
    running = sum(attempt.group == group and _has_cap(attempt) for attempt in _under_way(cluster))
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


def _under_way(cluster: ClusterState) -> Iterator[Attempt]:
    return (attempt for attempt in cluster.attempts if attempt.state in _UNDER_WAY)


def _running_weights(cluster: ClusterState) -> Counter[tuple[str, int]]:
    """Return the number of running jobs by volume and weight."""
    found: Counter[tuple[str, int]] = Counter()
    for attempt in _under_way(cluster):
        assignment = attempt.assignment
        weight = (
            job_weight(attempt.input_bytes) if assignment is None else weight_of(assignment.job)
        )
        found[cluster.volume_of(attempt.tablet.table), weight] += 1
    for take in cluster.takes.reserving():
        found[cluster.volume_of(take.job.tablet.table), weight_of(take.job)] += 1
    return found
