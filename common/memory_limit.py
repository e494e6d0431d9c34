"""How much memory a process may take: a limit of the operating system, and what allocators keep."""

import os
import resource
from contextlib import suppress

SERVICE_ENVIRON = {
    "MALLOC_ARENA_MAX": "2",
    "ARROW_DEFAULT_MEMORY_POOL": "jemalloc",
    "JE_ARROW_MALLOC_CONF": "narenas:1,dirty_decay_ms:500,muzzy_decay_ms:0",
}
"""Of gateway and coordinator. By default each of their threads keeps freed memory that no other
thread can use: of 145 MB of Arrow's allocator in a gateway at rest, not one byte was in use."""


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
