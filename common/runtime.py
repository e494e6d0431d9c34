"""What a process needs of its surroundings: time, random ids, garbage collection, memory, a parent.

Time and ids are ports: decisions get `now_s` and ids as arguments, shells read a `Clock` and an
`IdSource`.
"""

import ctypes
import gc
import os
import resource
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast


class Clock(Protocol):
    """Where a shell reads time. Seconds since the epoch; only differences are compared."""

    def now_s(self) -> float:
        """Return the time now, in seconds."""
        ...


class SystemClock:
    """The clock of the machine, made monotonic: it never goes back within a process."""

    def __init__(self) -> None:
        """Pair the monotonic clock with the wall clock, once."""
        self._offset_s = time.time() - time.monotonic()

    def now_s(self) -> float:
        """Return the time now, in seconds since the epoch."""
        return self._offset_s + time.monotonic()


class MachineClock:
    """The time since the machine started: the same in all its processes, and never set.

    The wall clocks of processes that started before and after the clock was set differ.
    """

    def now_s(self) -> float:
        """Return the time now, in seconds; comparable on this machine only."""
        return time.monotonic()


@contextmanager
def not_installed(*names: str) -> Iterator[None]:
    """Import a library in this context as if these optional libraries of it were not installed.

    One that this process has loaded already stays.
    """
    modules = cast("dict[str, Any]", sys.modules)
    absent = [name for name in names if name not in modules]
    modules.update(dict.fromkeys(absent))
    try:
        yield
    finally:
        for name in absent:
            del modules[name]


# ---------------------------------------------------------------------------------------------- Ids
# Random identifiers: a port for shells, and its sources.
#
# Attempt, call, request and table ids are random and never used twice (protocol: a reservation is
# compared by attempt, and job ids repeat). `common.primitives` derives ids from content and reads
# the time from call ids.


class IdSource(Protocol):
    """Where a shell draws random ids."""

    def next(self, prefix: str) -> str:
        """Return a new, unique id `<prefix>-<random>`."""
        ...


class RandomIds:
    """Ids with 80 random bits."""

    def next(self, prefix: str) -> str:
        """Return a new id."""
        return f"{prefix}-{secrets.token_hex(10)}"


def call_id(clock: Clock | None = None) -> str:
    """Return a fresh call id that carries its time (UUIDv7, RFC 9562).

    Args:
        clock: Source of the time; the machine's clock if left out.
    """
    millis = int((clock or SystemClock()).now_s() * 1000)
    chance = secrets.randbits(74)
    value = (millis & (1 << 48) - 1) << 80 | 7 << 76 | (chance >> 62) << 64
    value |= 0b10 << 62 | chance & (1 << 62) - 1
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


# ------------------------------------------------------------------------------- Garbage collection
# Keep long-lived objects out of Python's garbage collection.
#
# A service loads some 300,000 objects before its first call, and nearly all of them live as long as
# the process. Each collection of the oldest generation visits all of them in vain. That blocks the
# loop for tens of milliseconds, and takes a third of the time of a scan that reads small records.
#
# A coordinator later holds millions of objects for hundreds of thousands of tablets. They form no
# cycles, so they are freed without a collection. A collection of the oldest generation takes half a
# second for 300,000 tablets, and Python starts one each time the number of objects has grown by a
# quarter.


@cache
def ignore_what_is_loaded() -> None:
    """Collect once, then exclude all living objects from later collections.

    Only the first call in a process has an effect. Call it after everything is imported and
    wired: objects that are alive then and later become part of a cycle are never freed.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def growth_ignored() -> Iterator[None]:
    """Suspend collections that growth of the oldest generation would start.

    For work that holds millions of values for a while in a process that serves other callers.
    """
    if not _Growth.ignored:
        _Growth.thresholds = gc.get_threshold()
        ignore_growth()
    _Growth.ignored += 1
    try:
        yield
    finally:
        _Growth.ignored -= 1
        if not _Growth.ignored:
            gc.set_threshold(*_Growth.thresholds)


class _Growth:
    """The number of active suspensions, and the thresholds before the first one."""

    ignored = 0
    thresholds = (700, 10, 10)


OLDEST_EVERY_S = 60.0
OLDEST_SHARE_MAX = 0.001
"""Part of the time that collections of the oldest generation may take. After a collection of half a
second the next one follows 500 s later, so that collections affect less than 1 % of the turns."""
_NEVER = (1 << 31) - 1


def ignore_growth() -> None:
    """Never collect the oldest generation because of growth, only on explicit calls."""
    gc.set_threshold(*gc.get_threshold()[:2], _NEVER)


async def collect_oldest_forever(every_s: float = OLDEST_EVERY_S) -> None:
    """Collect the oldest generation at intervals instead of on growth.

    The younger generations are collected as before, in milliseconds. Cycles of old garbage
    occupy memory until the next collection.

    Args:
        every_s: Interval between two collections, if collections are short.
    """
    import asyncio  # Here: readers import this module and stay light.

    ignore_growth()
    loop, pause_s = asyncio.get_running_loop(), every_s
    while True:
        await asyncio.sleep(pause_s)
        begun_s = loop.time()
        gc.collect()
        pause_s = pause_after(loop.time() - begun_s, every_s)


def pause_after(took_s: float, every_s: float) -> float:
    """Return the pause after a collection."""
    return max(every_s, took_s / OLDEST_SHARE_MAX)


# ------------------------------------------------------------------------------------------ Threads


THREAD_SWITCH_S = 0.0005
"""Python's default is ten times as long. A thread that copies 2 MB in a millisecond, outside of
Python, would wait five for another one that reads footers. Merges take the same time either way.
A loop takes Python back after each wait for a socket, several times for each call."""


def shorten_thread_switches() -> None:
    """Make threads of this process, and of its forks, wait less for each other."""
    sys.setswitchinterval(THREAD_SWITCH_S)


# ------------------------------------------------------------------------------------- Memory limit
# How much memory a process may take: a limit of the operating system, and what allocators keep.


ARENAS_MAX = 2
"""Heaps of the C library in a service process; by default up to eight for each core."""
_M_ARENA_MAX = -8
_DECAY_MS = 500


def share_freed_memory() -> None:
    """Keep the freed memory of a service process where each of its threads can use it.

    By default, each thread keeps freed memory that no other thread can use: of 145 MB of Arrow's
    allocator in a gateway at rest, not one byte was in use. Call it before threads start.

    Files and streams of Arrow keep the allocator that the environment names when Arrow is loaded,
    so the packages of both services set it.
    """
    with suppress(OSError, AttributeError):  # Another C library has no such setting.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS_MAX)
    import pyarrow as pa  # Here, for the same reason.

    with suppress(NotImplementedError):  # Arrow was built without it.
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(_DECAY_MS)


def data_bytes() -> int:
    """Return the private writable memory that already counts towards the limit."""
    try:
        with open("/proc/self/statm", encoding="ascii") as source:
            return int(source.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def available_bytes() -> int | None:
    """Return the memory available for new work on this machine; None: the system has no figure."""
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo") as source:
        line = next(line for line in source if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return None


CGROUP = Path("/sys/fs/cgroup")


def control_group_bytes(folder: Path = CGROUP) -> int:
    """Return the memory limit of this process's container; 0: none, or unknown.

    Args:
        folder: Where the control group of the container is mounted.
    """
    with suppress(OSError, ValueError):  # Without a limit it holds the word `max`.
        return int((folder / "memory.max").read_text())
    return 0


def limit_memory(most_bytes: int) -> None:
    """Limit the data memory of this process: larger allocations fail with an error.

    Args:
        most_bytes: Largest amount of private writable memory.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most_bytes = min(most_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, hard))


PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when its parent ends; on Linux only.

    Args:
        parent: The parent's process id; if it is gone already, this process ends here.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the call.
    if os.getppid() != parent:
        os._exit(1)
