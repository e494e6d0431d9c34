"""Memory that runs out: noticed in tasks, told apart from other failures, said in one way.

A task that outgrows what it may have is ended by a thread of its own process, first with
an error that lets it clean up, then by force and with a note of why. What the system kills
leaves nothing but a note that it had begun.
"""

import ctypes
import gc
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

import polars as pl
import pyarrow as pa

from common.errors import CompactionError, EngineDiedError, MemoryShortError
from compactor.rewrite.plan.memory_budget import MemoryBudget

CHECK_INTERVAL_S = 0.05
CLEAN_UP_CHECKS = 60
"""How many looks a task that outgrew its bound has for an end in order."""
RELEASE_CHECKS = 30
"""Three times as long as allocators keep pages that nobody uses: see `TASK_ENVIRON`."""
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
    """Let this process outgrow its bound no more than for a moment; does nothing without one.

    Raises:
        MemoryShortError: It did, or an allocation failed.
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
    """Looks at the process's memory while a task runs."""

    def __init__(self, limit_bytes: int, folder: str) -> None:
        self._limit_bytes, self._folder = limit_bytes, folder
        self._task = threading.get_ident()
        self._done = threading.Event()
        self._over = threading.Lock()
        self._thread = threading.Thread(target=self._look, daemon=True, name="memory")
        self.seen_bytes = 0
        """What the process had when it was too much; 0: it never was."""

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        try:
            with self._over:  # From now on nothing is raised.
                self._done.set()
        finally:  # If it was raised just here, the process must not be killed for no end.
            self._done.set()
            self._thread.join()

    def _look(self) -> None:
        while not self._done.wait(CHECK_INTERVAL_S):
            if (found := resident_bytes()) > self._limit_bytes:
                self.seen_bytes = found
                self._end()
                return

    def _end(self) -> None:
        """Raise an error in the task; kill the process if that does not help soon."""
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
    """Return what this process has in memory; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def release_memory() -> None:
    """Return to the system what a failed task held; its error must be forgotten by now.

    The next attempt in this process would begin with it, and outgrow its bound for that.
    """
    gc.collect()
    for pool in (pa.default_memory_pool(), pa.system_memory_pool()):
        pool.release_unused()
    pause = threading.Event()
    for _ in range(RELEASE_CHECKS):
        pause.wait(CHECK_INTERVAL_S)
        pl.Series([0]).sort()  # Its allocator gives back old pages when it is called.


class StartNote:
    """A note that a task has begun: whoever runs it again knows that it died, and how."""

    def __init__(self, memory: MemoryBudget, folder: str, task: tuple[int, int]) -> None:
        """Hold what the note is about.

        Args:
            memory: What the task may hold.
            folder: Where the note is left.
            task: Numbers of its stage and partition.
        """
        self._memory, self._folder = memory, folder
        self._path = Path(folder, f"{BEGUN}{task[0]}-{task[1]}")

    def leave(self) -> None:
        """Leave the note: process, and the daemon that it came from."""
        _leave_note(self._folder, self._path.name, f"{os.getpid()} {os.getppid()}")

    def error_of_second_try(self) -> CompactionError:
        """Return why a second try is refused."""
        try:
            worker, daemon = map(int, self._path.read_text().split())
        except (OSError, ValueError):
            worker = daemon = 0
        if worker and not _pid_exists(worker) and _pid_exists(daemon):
            return killed_error(self._memory, self._folder)
        return EngineDiedError("the executor died while it wrote, or was taken for dead")


def _leave_note(folder: str, name: str, text: str) -> None:
    if folder:
        with suppress(OSError):
            Path(folder, name).write_text(text)


def _outgrown_error(memory: MemoryBudget, seen_bytes: int) -> MemoryShortError:
    return MemoryShortError(f"a task grew to {seen_bytes >> 20} MB; {memory.text}")


def killed_error(memory: MemoryBudget, folder: str) -> MemoryShortError:
    """Return the error for a task's process that is gone: ended for its size, or by others."""
    notes = Path(folder).glob(f"{OUTGROWN}*") if folder else ()
    with suppress(OSError, ValueError):
        for note in notes:
            return _outgrown_error(memory, int(note.read_text()))
    return MemoryShortError(
        "the process of a task was killed, most likely because the machine had no memory left;"
        f" {memory.text}"
    )


def memory_error_of(memory: MemoryBudget, folder: str, text: str) -> MemoryShortError | None:
    """Return the error that a failure of Spark stands for, if memory is what was missing."""
    if (sign := _OUT_OF_MEMORY.search(text)) is not None:
        begin = text.rfind("\n", 0, sign.start()) + 1
        line = text[begin:].partition("\n")[0].strip()[:300]
        return MemoryShortError(f"{line}; {memory.text}")
    return killed_error(memory, folder) if _KILLED.search(text) else None


def with_memory_limit(memory: MemoryBudget, folder: str, task: Callable[[], T]) -> Callable[[], T]:
    """Return a task that cannot outgrow its budget."""

    def run() -> T:
        with bounded_memory(memory, folder):
            return task()

    return run


def _pid_exists(process: int) -> bool:
    return Path(f"/proc/{process}").exists()
