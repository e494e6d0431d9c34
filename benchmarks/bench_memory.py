"""Memory of the coordinator's core with a million tablets that all have work.

    python -m benchmarks.bench_memory [tablets] [--collect-by-growth]

The bound of the design: less than 1 GB resident. What does not fit the queue is shed,
marked deferred, and found again when the queue has drained. The longest turn is told in
processor time, which other work on the machine does not change; with `--collect-by-growth`
garbage is collected as Python does it by default, and not as the coordinator has it done.
"""

import argparse
import resource
import time

from common.model.job import Job, Kind, TabletBacklog, TabletPlan, job_id
from common.model.tablet import Record, TabletId
from common.runtime import ignore_growth, ignore_what_is_loaded
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
    owed = TabletBacklog(strategy="ratio", size_bytes=job.input_bytes, group=job.group)
    plan = TabletPlan(jobs=(job,), backlog=owed)
    return on.TabletPlanned(tablet=job.tablet, plan=plan, record=record, settings_version=1)


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


def measure(tablets: int) -> None:
    """Plan every tablet and print what is held, the memory and the longest turn."""
    state = CoordinatorState(CoordinatorSettings())
    before_mb, longest_s, all_s = rss_mb(), 0.0, 0.0
    for number in range(tablets):
        event, begun_s = planned(number), time.thread_time()
        state.handle(event, now_s=number / 10_000)
        turn_s = time.thread_time() - begun_s
        longest_s, all_s = max(longest_s, turn_s), all_s + turn_s
        if number % 200_000 == 0:
            print(f"{number:>9,} tablets  {rss_mb():7.0f} MB", flush=True)
    status = state.status(tablets / 10_000)
    queued = sum(group.queued for group in status.groups)
    print(f"{tablets:>9,} tablets  {rss_mb():7.0f} MB ({before_mb:.0f} before); {queued:,} queued")

    print(f"turns: the longest {1000 * longest_s:.0f} ms, all {all_s:.1f} s of processor time")


def main() -> None:
    options = argparse.ArgumentParser(description="measure the memory of the coordinator's core")
    options.add_argument("tablets", type=int, nargs="?", default=TABLETS)
    options.add_argument("--collect-by-growth", action="store_true")
    given = options.parse_args()
    ignore_what_is_loaded()
    if not given.collect_by_growth:
        ignore_growth()
    measure(given.tablets)


if __name__ == "__main__":
    main()
