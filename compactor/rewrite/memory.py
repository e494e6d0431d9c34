"""Lack of memory: detected in tasks, distinguished from other failures, reported uniformly.

A thread of a task's own process ends a task that exceeds its limit: first with an error that allows
a clean-up, then by force, with a note about the cause. A process that the system kills leaves only
the note of its start.
"""

import ctypes
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from common.errors import CompactionError, EngineDiedError, MemoryShortError
from compactor.rewrite.memory_budget import MemoryBudget

CHECK_INTERVAL_S = 0.05
CLEAN_UP_CHECKS = 60
"""Checks that a task above its limit gets for an orderly end."""
BEGUN, OUTGROWN = "begun-", "outgrown-"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_OUT_OF_MEMORY = re.compile(
    r"\bMemoryError|OutOfMemoryError|GC overhead limit|Cannot allocate memory"
    r"|memory allocation of \d+ bytes failed|(?:m|re)alloc of size \d+ failed"
)
_KILLED = re.compile(r"Python worker exited unexpectedly|Python worker failed to connect back")


@contextmanager
def bounded_memory(memory: MemoryBudget, folder: str) -> Iterator[None]:
    """Limit the memory of this process; without a limit, do nothing.

    Raises:
        MemoryShortError: The limit was exceeded, or an allocation failed.
    """
    watch = _MemoryWatch(memory, folder) if memory.limit_bytes else None
    try:
        with watch or nullcontext():
            yield
    except MemoryError as error:
        raise MemoryShortError(f"an allocation failed ({error}); {memory.text}") from error
    except MemoryShortError as error:
        if watch is None or not watch.seen_bytes:
            raise
        raise _outgrown_error(memory, watch.seen_bytes) from error
    except Exception as error:
        polars = _loaded_polars()
        is_of_polars = polars is not None and isinstance(error, polars.exceptions.PolarsError)
        if is_of_polars and _OUT_OF_MEMORY.search(str(error)):
            raise MemoryShortError(f"{error}; {memory.text}") from error
        raise


class _MemoryWatch:
    """Checks the process's memory while a task runs."""

    def __init__(self, memory: MemoryBudget, folder: str) -> None:
        self._memory, self._folder = memory, folder
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
            if (used_bytes := resident_bytes()) > self._memory.limit_bytes:
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
            if resident_bytes() > 2 * self._memory.limit_bytes:
                break
        end_this_process(self._folder, str(_outgrown_error(self._memory, self.seen_bytes)))


def end_this_process(folder: str, cause: str) -> None:
    """Kill this process and leave a note why, so that its memory is free at once.

    The allocators would return it late, and the next job of the process would begin with it.
    """
    _leave_note(folder, f"{OUTGROWN}{os.getpid()}", cause)
    os.kill(os.getpid(), signal.SIGKILL)


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 if the system has no figure."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _loaded_polars() -> Any:
    """Return Polars, or None in a task that has not loaded it."""
    return sys.modules.get("polars")


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
        """Return why a second try is refused, possibly on another machine than the first."""
        if cause := _noted_cause(self._folder):
            return MemoryShortError(cause)
        try:
            worker, daemon = map(int, self._path.read_text().split())
        except (OSError, ValueError):
            worker = daemon = 0
        if worker and not _pid_exists(worker) and _pid_exists(daemon):
            return _killed_error(self._memory)
        return EngineDiedError("the executor died while it wrote, or appeared to have died")


def _leave_note(folder: str, name: str, text: str) -> None:
    if folder:
        with suppress(OSError):
            Path(folder, name).write_text(text)


def _outgrown_error(memory: MemoryBudget, seen_bytes: int) -> MemoryShortError:
    return MemoryShortError(f"a task grew to {seen_bytes >> 20} MB; {memory.text}")


def _noted_cause(folder: str) -> str:
    """Return why a process of an attempt has ended itself; empty: none has."""
    with suppress(OSError):
        for note in Path(folder).glob(f"{OUTGROWN}*") if folder else ():
            return note.read_text()
    return ""


def _killed_error(memory: MemoryBudget) -> MemoryShortError:
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
    if cause := _noted_cause(folder):
        return MemoryShortError(cause)
    return _killed_error(memory) if _KILLED.search(text) else None


def _pid_exists(process: int) -> bool:
    return Path(f"/proc/{process}").exists()
