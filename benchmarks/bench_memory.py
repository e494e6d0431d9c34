"""Memory of the coordinator's core with a million tablets that all have work.

    python -m benchmarks.bench_memory [tablets]

The bound of the design: less than 1 GB resident. What does not fit the queue is shed,
marked deferred, and found again when the queue has drained.
"""

import resource
import sys

from common.model.job import Job, Kind, TabletPlan, job_id
from common.model.tablet import Record, TabletId
from common.settings import CoordinatorSettings
from coordinator.core import events as on
from coordinator.core.state import CoordinatorState

TABLETS = 1_000_000
FILES = 10


def rss_mb() -> float:
    """Return the peak resident memory of this process, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def planned(number: int) -> on.TabletPlanned:
    """Return a plan of one job over ten files, as a scanner makes it."""
    job = system_job(number, largest_mib=1)
    record = Record(version=1, files=FILES)
    return on.TabletPlanned(
        tablet=job.tablet, plan=TabletPlan(jobs=(job,)), record=record, settings_version=1
    )


def system_job(number: int, *, largest_mib: int) -> Job:
    """Return a job over the ten files of a tablet, as a planner wants it."""
    tablet = TabletId("t-0123456789", number.to_bytes(9, "big"))
    inputs = tuple(f"data/part-{number:08d}-{file:02d}.parquet" for file in range(FILES))
    return Job(
        id=job_id(tablet, Kind.SYSTEM, None, inputs),
        tablet=tablet,
        table_name="events",
        kind=Kind.SYSTEM,
        inputs=inputs,
        input_bytes=FILES << 20,
        group="default",
        priority=number % 1000,
        reason=f"ratio 3: 10 files of 10.0 MiB, the largest {largest_mib}.0 MiB",
    )


def main(tablets: int) -> None:
    """Plan every tablet and print what is held, and the memory."""
    state = CoordinatorState(CoordinatorSettings())
    before_mb = rss_mb()
    for number in range(tablets):
        state.handle(planned(number), now_s=number / 10_000)
        if number % 200_000 == 0:
            print(f"{number:>9,} tablets  {rss_mb():7.0f} MB", flush=True)
    status = state.status(tablets / 10_000)
    queued = sum(group.queued for group in status.groups)
    print(f"{tablets:>9,} tablets  {rss_mb():7.0f} MB ({before_mb:.0f} before); {queued:,} queued")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else TABLETS)
