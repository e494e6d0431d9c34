"""How much memory a process may take: a limit of the operating system, and what allocators keep."""

import ctypes
import os
import resource
from contextlib import suppress

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
    import pyarrow as pa  # Here: readers import this module and stay light.

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
        line = next(each for each in source if each.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return None


def limit_memory(most_bytes: int) -> None:
    """Limit the data memory of this process: larger allocations fail with an error.

    Args:
        most_bytes: Largest amount of private writable memory.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most_bytes = min(most_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, hard))
