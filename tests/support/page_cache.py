"""How much of a file the system holds in memory."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)


def resident_bytes(path: Path) -> int:
    """Return how many bytes of a file that is not empty are in the page cache, in whole pages."""
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped,
    ):
        pages = -(-len(mapped) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = ctypes.c_char.from_buffer(mapped)
        size = ctypes.c_size_t(len(mapped))
        failed = _LIBC.mincore(ctypes.c_void_p(ctypes.addressof(start)), size, found)
        del start  # Otherwise the mapping cannot be closed.
        assert not failed, ctypes.get_errno()
        return sum(each & 1 for each in found) * mmap.PAGESIZE
