"""Native tasks handed to Spark: each once, small ones of several attempts together."""

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from pyspark import TaskContext

from compactor.rewrite import tasks
from compactor.rewrite.allowance import allowance_of
from compactor.rewrite.plan import RewritePlan
from compactor.rewrite.sharing import Sharing
from compactor.rewrite.shortage import Begun, within_memory
from compactor.rewrite.spark_errors import named_error, translated
from compactor.rewrite.tasks import TaskFailure

JOB_GROUP, SHARED = "spark.jobGroup.id", "shared"
SHARED_BYTES = 16 * 1024**2
"""Decoded bytes of a job that may share a Spark job with others, at most."""

Call = Callable[[], object]
Job = tuple[RewritePlan, Call]
_SHARING: Sharing[Job, bytes] = Sharing()
"""Of this process: a driver has one session."""


def run_tasks(spark: Any, plan: RewritePlan, calls: Sequence[Call]) -> list[Any]:
    """Run native tasks, each in a task of its own; return how they ended, in order.

    Nothing of theirs is for Spark SQL, whose planning would take longer than a small merge.
    """
    context, jobs = spark.sparkContext, [(plan, call) for call in calls]
    try:
        if len(jobs) == 1 and _may_share(plan):
            together, cores = partial(_handed_out, context), context.defaultParallelism
            outcomes: Sequence[bytes] = [_SHARING.run(jobs[0], together, cores)]
        else:
            outcomes = _handed_out(context, jobs)
    except Exception as error:
        raise translated(plan, error) from error
    return [result_of(outcome) for outcome in outcomes]


def _may_share(plan: RewritePlan) -> bool:
    """Return whether a job is short for sure: others may have to wait for its end."""
    small = plan.decoded_bytes <= SHARED_BYTES and not plan.memory.halvings
    # One with a limit may take as long as its grant wants.
    return small and not allowance_of(plan.progress_folder).limited


def _handed_out(context: Any, jobs: Sequence[Job]) -> Sequence[bytes]:
    """Run tasks as one Spark job; return how they ended."""
    # Each task gets what is its own: what the others are told may take tens of megabytes.
    parcels = context.parallelize([pickle.dumps(job) for job in jobs], len(jobs))
    group = context.getLocalProperty(JOB_GROUP)
    several = len({plan.progress_folder for plan, _ in jobs}) > 1
    if several:  # Whoever cancels one of them must not end the others.
        context.setJobGroup(SHARED, "small jobs of several attempts")
    try:
        found: list[bytes] = parcels.mapPartitions(_run_jobs).collect()
    finally:
        if several and group is not None:
            context.setJobGroup(group, group, interruptOnCancel=True)
    return found


def _run_jobs(parcels: Iterator[bytes]) -> Iterator[bytes]:
    for parcel in parcels:
        yield tasks.outcome_of(partial(_run_once, *pickle.loads(parcel)))


def _run_once(plan: RewritePlan, call: Call) -> object:
    only_once(plan)
    return within_memory(plan, call)()


def only_once(plan: RewritePlan) -> None:
    """Refuse a second try of a task that writes; the coordinator hands out a new attempt.

    Raises:
        MemoryShortError: The process of an earlier try was killed.
        EngineDiedError: An earlier try has died with its executor, or seems to have.
    """
    context = TaskContext.get()
    if context is None:
        return
    begun = Begun(plan, context.stageId(), context.partitionId())
    if context.attemptNumber() > 0:
        raise begun.again()
    begun.first()


def result_of(pickled: bytes) -> Any:
    """Return what a task has returned, or raise what it has raised."""
    outcome = pickle.loads(pickled)
    if isinstance(outcome, TaskFailure):
        raise named_error(outcome.error_class, outcome.cause)
    return outcome
