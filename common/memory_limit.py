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
    """Return what the limit counts already: private memory that can be written to."""
    try:
        with open("/proc/self/statm", encoding="ascii") as source:
            return int(source.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def available_bytes() -> int | None:
    """Return how much memory new work on this machine may take; None: the system does not say."""
    with suppress(OSError, ValueError, StopIteration), open("/proc/meminfo") as source:
        line = next(each for each in source if each.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return None


def limit_memory(most_bytes: int) -> None:
    """Let this process have no more data: whoever asks for more gets an error, not the memory.

    Args:
        most_bytes: Of private memory that can be written to.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard != resource.RLIM_INFINITY:
        most_bytes = min(most_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, hard))
