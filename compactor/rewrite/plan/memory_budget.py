"""How much a task may hold: pure, worked out beforehand from limits and footers.

What a task's process takes, as measured with inputs that are hard on it:

    libraries + 1.1 times what overlaps at one place + 9 steps + 1.1 times an output row group

A budget divides what a process may have among these. Whenever a job has run out of
memory, its next attempt divides half as much: more ranges, longer runs, smaller steps.
"""

from dataclasses import dataclass

TASK_BYTES = 768 * 1024**2
SCRATCH_SETTING = "spark.neve.scratch"
PAGE_CACHE_SETTING = "spark.neve.page.cache"
TASK_SETTING, LIMIT_SETTING = "spark.neve.task.bytes", "spark.neve.task.limit.bytes"
"""How a driver is told; Spark keeps settings that it does not know."""
TASK_ENVIRON = {
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "narenas:1,dirty_decay_ms:500,muzzy_decay_ms:0",
    "_RJEM_MALLOC_CONF": "narenas:2,muzzy_decay_ms:0",
}
"""Of the processes of tasks. By default every thread, and every allocator, keeps memory that others
cannot use: 100 to 150 MB of a merge, which is no faster for it. Arrow's writer leaves the system's
allocator in pieces: 0.5 MB more of it with every row group of long texts, so it has another. The
last one is of the allocator in Polars; giving pages back sooner than it does (after 0.5 s) saves
50 MB more, but takes up to 40 % more time."""
BASE_BYTES = 280 * 1024**2
"""A Python worker with all libraries loaded (110 MB), what waits between the threads of a merge,
what they encode, and what three allocators give back late."""
HELD_FACTOR, STEP_FACTOR, GROUP_FACTOR = 1.1, 9, 1.1
AT_ONCE_FACTOR = 5
"""Of rows that are merged in one step: decoded, joined, gathered, as Arrow, cast."""
RESERVE_SHARE = 0.05
"""Of the process: allocators give back late."""
FREE_BYTES_MIN = 16 * 1024**2
GROUP_SHARE, STEP_SHARE = 3, 64
IN_MEMORY_SHARE = 7
"""A job that is merged at once is held about so many times: read, joined, sorted, written."""
ROWS_MAX = 1 << 16
"""Rows that are read at a time, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """What a task may hold at once, in decoded bytes."""

    task_bytes: int
    """What its process may have altogether."""
    held_bytes: int
    """Row groups that overlap at one place."""
    step_bytes: int
    """Rows that are merged at a time."""
    group_bytes: int
    """An output's row group, at most."""
    in_memory_bytes: int
    """A job that is read whole."""
    halvings: int = 0
    limit_bytes: int = 0
    """A process with more is ended; 0: none is."""

    @property
    def at_once_bytes(self) -> int:
        """Decoded rows that are merged in one step at most, with nothing else held."""
        return self.held_bytes // AT_ONCE_FACTOR

    @property
    def text(self) -> str:
        """A sentence on the budget, for whoever has to raise it."""
        halved = f", divided by {2**self.halvings}" if self.halvings else ""
        return (
            f"a task may have {_mb(self.task_bytes)}{halved}: raise compactor.task_memory, or"
            " write smaller row groups"
        )


def memory_budget(
    task_bytes: int, halvings: int, group_bytes: int, limit_bytes: int = 0
) -> MemoryBudget:
    """Return what a task may hold.

    Args:
        task_bytes: What its process may have.
        halvings: How often attempts before it ran out of memory.
        group_bytes: Decoded bytes of an output's row group, as wanted.
        limit_bytes: A process with more is ended; 0: none is.
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


def estimate_bytes(held_bytes: int, budget: MemoryBudget) -> int:
    """Return what the process of a task will take that holds so much at one place."""
    parts = HELD_FACTOR * held_bytes + STEP_FACTOR * budget.step_bytes
    return int(BASE_BYTES + parts + GROUP_FACTOR * budget.group_bytes)


def rows_at_a_time(row_bytes: float, budget: MemoryBudget) -> int:
    """Return how many rows of a width are read at a time."""
    return max(1, min(ROWS_MAX, int(budget.step_bytes / max(1.0, row_bytes))))


def _mb(size_bytes: int) -> str:
    return f"{size_bytes // 1024**2} MB"
