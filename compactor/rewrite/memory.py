"""Lack of memory: detected in tasks, distinguished from other failures, reported uniformly.

A thread of a task's own process ends a task that exceeds its limit: first with an error that allows
a clean-up, then by force, with a note about the cause. A process that the system kills leaves only
the note of its start.
"""

import ctypes
import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import polars as pl
import pyarrow as pa

from common.errors import CompactionError, EngineDiedError, MemoryShortError

# ------------------------------------------------------------------------------------ Memory budget
# How much a task may hold: pure, computed in advance from limits and footers.
#
# The memory of a task's process, as measured with difficult inputs:
#
#   libraries + 1.1 times the rows that overlap + 9 steps + 1.1 times an output row group
#
# A budget divides the memory of a process among these. After a job has run out of memory, its next
# attempt divides half as much: more ranges, longer runs, smaller steps.


TASK_BYTES = 768 * 1024**2
SCRATCH_SETTING = "spark.neve.scratch"
PAGE_CACHE_SETTING = "spark.neve.page.cache"
TASK_SETTING, LIMIT_SETTING = "spark.neve.task.bytes", "spark.neve.task.limit.bytes"
"""Settings that carry the limits to a driver; Spark keeps unknown settings."""
TASK_ENVIRON = {
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "narenas:1,dirty_decay_ms:500,muzzy_decay_ms:0",
    "_RJEM_MALLOC_CONF": "narenas:2,muzzy_decay_ms:0",
}
"""Environment of task processes. By default every thread, and every allocator, keeps memory that
others cannot use: 100 to 150 MB of a merge, without making it faster. Arrow's writer fragments the
system's allocator, by 0.5 MB with every row group of long texts, so it uses another one. The last
variable is for the allocator in Polars; returning pages earlier than it does (after 0.5 s) saves
50 MB more, but takes up to 40 % more time."""
BASE_BYTES = 280 * 1024**2
"""A Python worker with all libraries (110 MB), data that waits between the threads of a merge, data
that they encode, and memory that three allocators return late."""
HELD_FACTOR, STEP_FACTOR, GROUP_FACTOR = 1.1, 9, 1.1
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


def estimate_bytes(held_bytes: int, budget: MemoryBudget) -> int:
    """Return the estimated memory of a task's process with this many overlapping bytes."""
    parts = HELD_FACTOR * held_bytes + STEP_FACTOR * budget.step_bytes
    return int(BASE_BYTES + parts + GROUP_FACTOR * budget.group_bytes)


def rows_at_a_time(row_bytes: float, budget: MemoryBudget) -> int:
    """Return how many rows of a given width are read at a time."""
    return max(1, min(ROWS_MAX, int(budget.step_bytes / max(1.0, row_bytes))))


def _mb(size_bytes: int) -> str:
    return f"{size_bytes // 1024**2} MB"


# ------------------------------------------------------------------------------------- Memory guard


CHECK_INTERVAL_S = 0.05
CLEAN_UP_CHECKS = 60
"""Checks that a task above its limit gets for an orderly end."""
RELEASE_CHECKS = 30
"""Three times as long as allocators keep unused pages: see `TASK_ENVIRON`."""
BEGUN, OUTGROWN = "begun-", "outgrown-"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OUT_OF_MEMORY = re.compile(
    r"\bMemoryError|OutOfMemoryError|GC overhead limit|Cannot allocate memory"
    r"|memory allocation of \d+ bytes failed|(?:m|re)alloc of size \d+ failed"
)
_KILLED = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back")

T = TypeVar("T")


@contextmanager
def bounded_memory(memory: MemoryBudget, folder: str) -> Iterator[None]:
    """Limit the memory of this process; without a limit, do nothing.

    Raises:
        MemoryShortError: The limit was exceeded, or an allocation failed.
    """
    watch = _MemoryWatch(memory.limit_bytes, folder) if memory.limit_bytes else None
    try:
        with watch or nullcontext():
            yield
    except MemoryError as error:
        raise MemoryShortError(f"an allocation failed ({error}); {memory.text}") from error
    except MemoryShortError as error:
        if watch is None or not watch.seen_bytes:
            raise
        raise _outgrown_error(memory, watch.seen_bytes) from error
    except pl.exceptions.PolarsError as error:
        if _OUT_OF_MEMORY.search(str(error)):
            raise MemoryShortError(f"{error}; {memory.text}") from error
        raise


class _MemoryWatch:
    """Checks the process's memory while a task runs."""

    def __init__(self, limit_bytes: int, folder: str) -> None:
        self._limit_bytes, self._folder = limit_bytes, folder
        self._task = threading.get_ident()
        self._done = threading.Event()
        self._over = threading.Lock()
        self._thread = threading.Thread(target=self._look, daemon=True, name="memory")
        self.seen_bytes = 0
        """Memory at the time the limit was exceeded; 0: it was not."""

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        try:
            with self._over:  # From now on no error is raised.
                self._done.set()
        finally:  # If an error was raised just now, the process must not be killed afterwards.
            self._done.set()
            self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(CHECK_INTERVAL_S):
            if (used_bytes := resident_bytes()) > self._limit_bytes:
                self.seen_bytes = used_bytes
                self._end()
                return

    def _end(self) -> None:
        """Raise an error in the task; kill the process if the task does not end soon."""
        with self._over:
            if self._done.is_set():
                return
            kind = ctypes.py_object(MemoryShortError)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._task), kind)
        for _ in range(CLEAN_UP_CHECKS):
            if self._done.wait(CHECK_INTERVAL_S):
                return
            if resident_bytes() > 2 * self._limit_bytes:
                break
        _leave_note(self._folder, f"{OUTGROWN}{os.getpid()}", str(self.seen_bytes))
        os.kill(os.getpid(), signal.SIGKILL)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the system has no figure."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def release_memory() -> None:
    """Return the memory of a failed task to the system; references to its error must be gone.

    Otherwise the next attempt in this process would start with it, and exceed its limit.
    """
    gc.collect()
    for pool in (pa.default_memory_pool(), pa.system_memory_pool()):
        pool.release_unused()
    pause = threading.Event()
    for _ in range(RELEASE_CHECKS):
        pause.wait(CHECK_INTERVAL_S)
        pl.Series([0]).sort()  # The allocator of Polars returns old pages when it is called.


class StartNote:
    """A note that a task has begun: a second run learns that the first died, and how."""

    def __init__(self, memory: MemoryBudget, folder: str, task: tuple[int, int]) -> None:
        """Create a note without writing it.

        Args:
            memory: Memory budget of the task.
            folder: Folder of the note.
            task: Numbers of its stage and partition.
        """
        self._memory, self._folder = memory, folder
        self._path = Path(folder, f"{BEGUN}{task[0]}-{task[1]}")

    def leave(self) -> None:
        """Write the note: the process, and the daemon that forked it."""
        _leave_note(self._folder, self._path.name, f"{os.getpid()} {os.getppid()}")

    def error_of_second_try(self) -> CompactionError:
        """Return why a second try is refused."""
        try:
            worker, daemon = map(int, self._path.read_text().split())
        except (OSError, ValueError):
            worker = daemon = 0
        if worker and not _pid_exists(worker) and _pid_exists(daemon):
            return killed_error(self._memory, self._folder)
        return EngineDiedError("the executor died while it wrote, or appeared to have died")


def _leave_note(folder: str, name: str, text: str) -> None:
    if folder:
        with suppress(OSError):
            Path(folder, name).write_text(text)


def _outgrown_error(memory: MemoryBudget, seen_bytes: int) -> MemoryShortError:
    return MemoryShortError(f"a task grew to {seen_bytes >> 20} MB; {memory.text}")


def killed_error(memory: MemoryBudget, folder: str) -> MemoryShortError:
    """Return the error for a missing task process: ended for its size, or by the system."""
    notes = Path(folder).glob(f"{OUTGROWN}*") if folder else ()
    with suppress(OSError, ValueError):
        for note in notes:
            return _outgrown_error(memory, int(note.read_text()))
    return MemoryShortError(
        "the process of a task was killed, most likely because the machine ran out of memory;"
        f" {memory.text}"
    )


def memory_error_of(memory: MemoryBudget, folder: str, text: str) -> MemoryShortError | None:
    """Return the error for a failure of Spark, if it was caused by a lack of memory."""
    if (sign := _OUT_OF_MEMORY.search(text)) is not None:
        begin = text.rfind("\n", 0, sign.start()) + 1
        line = text[begin:].partition("\n")[0].strip()[:300]
        return MemoryShortError(f"{line}; {memory.text}")
    return killed_error(memory, folder) if _KILLED.search(text) else None


def with_memory_limit(memory: MemoryBudget, folder: str, task: Callable[[], T]) -> Callable[[], T]:
    """Return a task that is limited to its memory budget."""

    def run() -> T:
        with bounded_memory(memory, folder):
            return task()

    return run


def _pid_exists(process: int) -> bool:
    return Path(f"/proc/{process}").exists()
