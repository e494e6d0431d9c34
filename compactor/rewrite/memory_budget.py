"""How much a task may hold: pure, computed in advance from limits and footers.

The memory of a task's process, as measured with difficult inputs:

  libraries + 1.1 times the rows that overlap + 9 steps + 1.1 times an output row group

A budget divides the memory of a process among these. After a job has run out of memory, its next
attempt divides half as much: more ranges, longer runs, smaller steps.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

TASK_BYTES = 768 * 1024**2
SCRATCH_SETTING = "spark.neve.scratch"
PAGE_CACHE_SETTING = "spark.neve.page.cache"
LAKE_ACCESS_SETTING = "spark.neve.lake.access"
TASK_SETTING, LIMIT_SETTING = "spark.neve.task.bytes", "spark.neve.task.limit.bytes"
"""Settings that carry the limits to a driver; Spark keeps unknown settings."""
REMOTE_SETTING = "spark.neve.executors.remote"
"""Present if executors may be on other machines than the driver."""
PAGES_KEPT_MS, MUCH_PAGES_KEPT_MS = 2000, 120_000
"""Time that allocators keep freed pages, because a merge soon needs as many again: new ones take a
tenth to a seventh of a short job. Where a task has much memory, its process keeps them for its next
job, or ends if it is to wait without one and holds more than `TASK_BYTES`."""
MUCH_TASK_BYTES = 2 * TASK_BYTES
"""Memory of a task from which on pages are kept for longer."""


def task_environ(task_bytes: int) -> dict[str, str]:
    """Return the environment of task processes that have so much memory.

    By default every thread, and every allocator, keeps memory that others cannot use: 100 to 150 MB
    of a merge, without making it faster. Arrow's writer fragments the system's allocator, by 0.5 MB
    with every row group of long texts, so it uses another one. `_RJEM` is the allocator in Polars;
    returning pages at once would save 50 MB more, but take up to 40 % more time. The system's
    allocator would raise its thresholds to these values by itself, but only after an array of 32 MB
    was freed.
    """
    kept_ms = MUCH_PAGES_KEPT_MS if task_bytes >= MUCH_TASK_BYTES else PAGES_KEPT_MS
    decay = f"dirty_decay_ms:{kept_ms},muzzy_decay_ms:0"
    return {
        "MALLOC_ARENA_MAX": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
        "JE_ARROW_MALLOC_CONF": f"narenas:1,{decay}",
        "_RJEM_MALLOC_CONF": f"narenas:2,{decay}",
        "MALLOC_MMAP_THRESHOLD_": str(32 * 1024**2),
        "MALLOC_TRIM_THRESHOLD_": str(64 * 1024**2),
    }


BASE_BYTES = 280 * 1024**2
"""A Python worker with all libraries (110 MB), data that waits between the threads of a merge, data
that they encode, and memory that three allocators return late."""
HELD_FACTOR, STEP_FACTOR, GROUP_FACTOR = 1.1, 9, 1.1
WHOLE_FACTOR = 1.6
AT_ONCE_FACTOR = 5
"""Copies of the rows of one merge step: decoded, joined, gathered, as Arrow, cast."""
RESERVE_SHARE = 0.05
"""Share of the process that is reserved, because allocators return memory late."""
FREE_BYTES_MIN = 16 * 1024**2
GROUP_SHARE, STEP_SHARE = 3, 64
IN_MEMORY_SHARE = 7
"""Copies of a job that is merged at once: read, joined, sorted, written."""
ROWS_MAX = 1 << 16
"""Largest number of rows that are read at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """Limits on what a task may hold at once, in decoded bytes."""

    task_bytes: int
    """Memory of its process in total."""
    held_bytes: int
    """Row groups that overlap."""
    step_bytes: int
    """Rows of one merge step."""
    group_bytes: int
    """Largest row group of an output."""
    in_memory_bytes: int
    """Largest job that is read completely."""
    halvings: int = 0
    limit_bytes: int = 0
    """Memory above which a process is ended; 0: no limit."""

    @property
    def at_once_bytes(self) -> int:
        """Largest number of decoded bytes for one merge step, if nothing else is held."""
        return self.held_bytes // AT_ONCE_FACTOR

    @property
    def text(self) -> str:
        """A sentence about the budget, for the operator who can raise it."""
        halved = f", divided by {2**self.halvings}" if self.halvings else ""
        return (
            f"a task may have {_mb(self.task_bytes)}{halved}: raise compactor.task_memory, or"
            " write smaller row groups"
        )


def memory_budget(
    task_bytes: int, halvings: int, group_bytes: int, limit_bytes: int = 0
) -> MemoryBudget:
    """Return the limits of a task.

    Args:
        task_bytes: Memory of its process.
        halvings: How often earlier attempts ran out of memory.
        group_bytes: Wanted decoded size of an output's row group.
        limit_bytes: Memory above which a process is ended; 0: no limit.
    """
    free = max(FREE_BYTES_MIN, int(task_bytes * (1 - RESERVE_SHARE)) - BASE_BYTES)
    free = max(free >> min(halvings, 32), FREE_BYTES_MIN >> 3)
    group = min(group_bytes, free // GROUP_SHARE)
    step = free // STEP_SHARE
    return MemoryBudget(
        task_bytes=task_bytes,
        held_bytes=int((free - GROUP_FACTOR * group - STEP_FACTOR * step) / HELD_FACTOR),
        step_bytes=step,
        group_bytes=group,
        in_memory_bytes=free // IN_MEMORY_SHARE,
        halvings=halvings,
        limit_bytes=limit_bytes,
    )


def whole_bytes_max(budget: MemoryBudget) -> int:
    """Return the largest decoded size of a job that is merged in memory.

    Its rows, one of its columns again, numbers and sorted words together are up to
    `WHOLE_FACTOR` times their size.
    """
    return int(budget.held_bytes * HELD_FACTOR / WHOLE_FACTOR)


def estimate_bytes(held_bytes: int, budget: MemoryBudget) -> int:
    """Return the estimated memory of a task's process with this many overlapping bytes."""
    parts = HELD_FACTOR * held_bytes + STEP_FACTOR * budget.step_bytes
    return int(BASE_BYTES + parts + GROUP_FACTOR * budget.group_bytes)


def rows_at_a_time(row_bytes: float, budget: MemoryBudget) -> int:
    """Return how many rows of a given width are read at a time."""
    return max(1, min(ROWS_MAX, int(budget.step_bytes / max(1.0, row_bytes))))


def _mb(size_bytes: int) -> str:
    return f"{size_bytes // 1024**2} MB"


# --------------------------------------------------------------------- Concurrent work of one merge
# Concurrent work of one merge: by few threads, in bounded memory.


MERGE_CORES = 2
"""Cores that one merge uses: the number of concurrently decoded row groups, and merged steps."""

_Result = TypeVar("_Result")


class MemoryInUse:
    """Memory that a merge holds out of its budget; the rest is for decoding ahead."""

    __slots__ = ("bytes_max", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0
        """Grows with rows passed to the merge; the merge reduces it when it releases rows."""

    @property
    def free_bytes(self) -> int:
        """Bytes that may be decoded in addition."""
        return max(0, self.bytes_max - self.held_bytes)


def ordered_map(name: str, calls: Iterable[Callable[[], _Result]]) -> Iterator[_Result]:
    """Run calls in a few threads; yield their results in the order of the calls.

    Args:
        name: Name of the threads.
        calls: Taken one by one, whenever a thread has room.

    Raises:
        Exception: The error of a call, raised at its position.
    """
    pending: deque[Future[_Result]] = deque()
    threads = ThreadPoolExecutor(MERGE_CORES, name)
    try:
        for call in calls:
            pending.append(threads.submit(call))
            # One more than threads, so that an idle thread finds the next call at once.
            while len(pending) > MERGE_CORES:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)
