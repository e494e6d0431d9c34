"""What people and metrics are shown: reads of the books as wire values."""

from itertools import islice

from common.wire import (
    CompactorStatus,
    CoordinatorStatus,
    GroupStatus,
    QueuedJob,
    RunningAttempt,
)
from coordinator.core.books import Books
from coordinator.core.lifecycle import Attempt, AttemptState
from coordinator.core.liveness import Compactor


def status(
    books: Books, coordinator: str, now_s: float, turns: int, conflicts: int
) -> CoordinatorStatus:
    """Return counters of everything."""
    counters = books.counters
    return CoordinatorStatus(
        coordinator=coordinator,
        started_s=now_s if books.started_s is None else books.started_s,
        now_s=now_s,
        groups=tuple(_group(books, group, now_s) for group in _groups(books)),
        compactors=tuple(_compactor(books, each, now_s) for each in books.compactors.every()),
        tables=len(books.tables),
        tablets_known=len(books.notes),
        committed=counters.committed,
        failed=counters.failed,
        released=counters.released,
        stalled=counters.stalled,
        conflicts=conflicts,
        quarantined=len(books.retry.quarantined()),
        turns=turns or counters.turns,
        scopes=books.grants.statuses(),
        warnings=tuple(
            sentence for group in _groups(books) if (sentence := books.unserved(group)) is not None
        ),
    )


def queued(books: Books, group: str | None, count: int, now_s: float) -> list[QueuedJob]:
    """Return the best queued jobs of a group, or of every group, best first."""
    lines: list[QueuedJob] = []
    for name, queue in books.queues:
        if group is None or name == group:
            for place, entry in enumerate(islice(queue.entries(), count), start=1):
                age_s = now_s - entry.offered_s
                aged = entry.priority + age_s * books.limits.ageing_per_s
                lines.append(
                    QueuedJob(job=entry.job, place=place, age_s=age_s, effective_priority=aged)
                )
    return lines


def running(books: Books, now_s: float) -> list[RunningAttempt]:
    """Return the attempts that are not over, oldest first."""
    attempts = sorted(books.attempts, key=lambda attempt: attempt.since_s)
    known = [each for each in attempts if each.state is not AttemptState.DOUBTFUL]
    return [_attempt(books, each, now_s) for each in known]


def _groups(books: Books) -> list[str]:
    names = [*books.configured_groups, *(group for group, _ in books.queues)]
    names += [*books.takes.groups(), *books.paused_groups]
    names += [compactor.group for compactor in books.compactors.every()]
    return sorted(dict.fromkeys(names))


def _group(books: Books, group: str, now_s: float) -> GroupStatus:
    queue = books.queues.queue(group)
    return GroupStatus(
        group=group,
        queued=len(queue),
        queued_bytes=queue.size_bytes,
        queued_cost_bytes=sum(job.cost_bytes for job in queue),
        running=books.capacity.jobs(group),
        compactors=len(books.compactors.of_group(group)),
        waiting_takes=len(books.takes.waiting(group)),
        accepted=queue.counts.accepted,
        rejected=queue.counts.rejected,
        evicted=queue.counts.evicted,
        oldest_age_s=queue.oldest_age_s(now_s),
        paused=group in books.paused_groups,
        longest_s=_longest_s(books, group, now_s),
        quiet_s=_quietest_s(books, group, now_s),
    )


def _longest_s(books: Books, group: str, now_s: float) -> float:
    begun = [
        attempt.since_s
        for attempt in books.attempts
        if attempt.group == group and attempt.state is AttemptState.RUNNING
    ]
    return max(0.0, now_s - min(begun, default=now_s))


def _quietest_s(books: Books, group: str, now_s: float) -> float:
    quiet = [
        _quiet_s(attempt, now_s)
        for attempt in books.attempts
        if attempt.group == group and attempt.state is AttemptState.RUNNING
    ]
    return max(quiet, default=0.0)


def _quiet_s(attempt: Attempt, now_s: float) -> float:
    """Return how long ago an attempt made progress: of a silent compactor nobody can say more."""
    listed = 0.0 if attempt.progress is None else attempt.progress.quiet_s
    return listed + max(0.0, now_s - attempt.listed_s)


def _compactor(books: Books, compactor: Compactor, now_s: float) -> CompactorStatus:
    held = books.attempts.of_compactor(compactor.name)
    pause = books.retry.compactor(compactor.name, now_s)
    until_s = None if pause is None else pause.until_s
    return CompactorStatus(
        compactor=compactor.name,
        group=compactor.group,
        node=compactor.node,
        slots=compactor.slots,
        busy=sum(1 for attempt in held if attempt.state is AttemptState.RUNNING),
        heard_ago_s=now_s - compactor.heard_s,
        draining=compactor.draining,
        failures=books.retry.compactor_failures(compactor.name),
        backing_off_s=0.0 if until_s is None else until_s - now_s,
    )


def _attempt(books: Books, attempt: Attempt, now_s: float) -> RunningAttempt:
    holder = books.grants.holder(attempt.id)
    return RunningAttempt(
        job_id=attempt.job_id,
        attempt=attempt.id,
        tablet=str(attempt.tablet),
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
    )
