"""From what the cluster shows to a decision of the controller, and where the decision holds.

    shares    on the turns of each queue          (`queue.fair_share`)
    slots     on hand-out, of system jobs and statistics; the autoscaler asks for its target
    bytes/s   on the grants of all attempts       (`throttle`)

Jobs of users and urgent ones have no cap of slots: somebody waits for them.
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
"""Tables whose backlog a controller is told by name; the last line stands for all others."""
CAPPED = frozenset({LaneClass.SYSTEM, LaneClass.STATISTICS})
"""Classes whose jobs have a cap of slots."""
_UNDER_WAY = frozenset({AttemptState.FOUND, AttemptState.RUNNING})


# ------------------------------------------------------------------------------- Facts → decision


def steer(cluster: ClusterState, now_s: float) -> None:
    """Let the controller decide, if its period is over, and have everybody keep to it."""
    if cluster.control.is_due(now_s):
        before = cluster.control.decision
        enforce(cluster, cluster.control.look(cluster_facts(cluster), now_s), before)


def cluster_facts(cluster: ClusterState) -> ClusterFacts:
    """Return what a controller is told of the cluster."""
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
    """Have queues and grants keep to a decision; slots are asked for when they are needed.

    Args:
        cluster: Whose queues and grants.
        decision: In force from now on.
        before: In force until now.
    """
    cluster.grants.scopes.set_control(decision.bytes_s)
    for share in cluster.shares.values():
        share.set_shares(decision.shares)
    if decision.table_weights or before.table_weights:
        for table in cluster.tables.values():
            weight = table.settings.weight * decision.table_weights.get(table.name, 1.0)
            for share in cluster.shares.values():
                share.set_weight(table.id, weight)


# ------------------------------------------------------------------------------- What may start


def barred_classes(cluster: ClusterState, group: str) -> frozenset[LaneClass]:
    """Return the classes of which a group runs as many jobs as the controller lets it."""
    return CAPPED if _is_capped(cluster, group) else frozenset()


def admission(cluster: ClusterState, barred: frozenset[LaneClass]) -> JobFilter | None:
    """Return what says whether a job may start now; None: any may.

    Args:
        cluster: What runs.
        barred: Classes of which none may.
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
    """Return why a queued job may not start by the controller or its weight, or None."""
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
    """Return the weight of a job; one that rewrites nothing has none."""
    return job_weight(job.input_bytes, drops_only=job.action != JobAction.REWRITE.value)


def note_handed_out(cluster: ClusterState, job: Job, now_s: float) -> None:
    """Count the bytes of a job that was handed out."""
    cluster.control.usage.note(share_class_of(job), job.cost_bytes + JOB_COST_BYTES, now_s)


def share_class_of(job: Job) -> ShareClass:
    """Return under whose shares a job is."""
    return SHARE_CLASSES[lane_class(job)]


def capped_jobs(cluster: ClusterState, group: str) -> int:
    """Return how many jobs with a cap of slots a group runs, or reserves."""
    running = sum(attempt.group == group and _has_cap(attempt) for attempt in _under_way(cluster))
    reserving = (take.job for take in cluster.takes.reserving())
    return running + sum(job.group == group and lane_class(job) in CAPPED for job in reserving)


def _is_capped(cluster: ClusterState, group: str) -> bool:
    slots = cluster.control.slots_of(group)
    return slots is not None and capped_jobs(cluster, group) >= slots


def _has_cap(attempt: Attempt) -> bool:
    """Return whether an attempt counts as one of a capped class."""
    if attempt.assignment is None:  # Only the store's word is known of it.
        return attempt.kind is Kind.SYSTEM
    return lane_class(attempt.assignment.job) in CAPPED


def _under_way(cluster: ClusterState) -> Iterator[Attempt]:
    return (attempt for attempt in cluster.attempts if attempt.state in _UNDER_WAY)


def _running_weights(cluster: ClusterState) -> Counter[tuple[str, int]]:
    """Return how many jobs of each weight run on each volume."""
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
