"""Does the stack fit on this machine? Asked before anything is started."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from common.errors import ConfigError

MEGABYTE = 1 << 20
BASE_BYTES = 700 * MEGABYTE
"""Redis, Ray's own processes, coordinator and gateway."""
COMPACTOR_BYTES = 800 * MEGABYTE
"""Actor, driver, app master and Python workers; heaps of driver and executor are added half."""
SHARED_SLACK_BYTES = 16 * MEGABYTE
SHARED_MEMORY = Path("/dev/shm")
"""Where Ray keeps its objects, if it is large enough."""
CGROUP = Path("/sys/fs/cgroup")


def check_memory(heap_bytes: Sequence[int], free_bytes: int | None = None) -> None:
    """Refuse if the compactors do not fit into memory.

    Args:
        heap_bytes: Of each compactor that is wanted, the heaps of driver and executors.
        free_bytes: What is free; measured if left out.
    """
    free = free_memory_bytes() if free_bytes is None else free_bytes
    wanted = BASE_BYTES + sum(COMPACTOR_BYTES + heap // 2 for heap in heap_bytes)
    if free < wanted:
        raise ConfigError(
            f"too little memory: {free // MEGABYTE} MB are free, a stack with "
            f"{len(heap_bytes)} compactors wants {wanted // MEGABYTE} MB; ask for fewer compactors"
            " or free memory"
        )


def object_folder(size_bytes: int, fallback: Path, shared: Path = SHARED_MEMORY) -> Path | None:
    """Return where Ray's object store goes: None for shared memory, else `fallback`.

    Args:
        size_bytes: What the object store wants.
        fallback: A folder on disk, used where shared memory is small (containers).
        shared: Where shared memory is mounted.
    """
    wanted = size_bytes + SHARED_SLACK_BYTES
    if shared.is_dir() and shutil.disk_usage(shared).free >= wanted:
        return None
    free = shutil.disk_usage(fallback).free
    if free >= wanted:
        return fallback
    raise ConfigError(
        f"too little room for Ray's objects: {wanted // MEGABYTE} MB are wanted, neither {shared} "
        f"nor {fallback} ({free // MEGABYTE} MB free) has it; free some disk or mount a larger "
        f"{shared} (containers: --shm-size=512m)"
    )


def free_memory_bytes() -> int:
    """Return the memory that may still be taken, in a container by its limit."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((CGROUP / "memory.max").read_text())
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return free
    return min(free, max(limit - used, 0))
