"""How the driver process and Spark's Python workers are set up.

A process dies with its parent, its threads switch often, and a Python worker loads what
every rewrite needs before its first task. Workers import this module when they start, so
it imports no large library at the top.
"""

import ctypes
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path

from common.garbage_collection import ignore_what_is_loaded

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; on Linux only.

    Args:
        parent: The parent's process id; if it is gone already, this process ends here.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have died before we asked.
    if os.getppid() != parent:
        os._exit(1)


THREAD_SWITCH_S = 0.0005
"""Python's own is ten times as long: a thread that copies 2 MB in a millisecond, outside of
Python, would then wait five for another one that reads footers. Merges are as fast either way."""


def shorten_thread_switches() -> None:
    """Have threads of this process, and of its forks, wait less for each other."""
    sys.setswitchinterval(THREAD_SWITCH_S)


# ----------------------------------------------------------------------- Warming up a Python worker


WARM_MODULES = ("numpy", "polars", "pyarrow.parquet", "compactor.rewrite.merge.driver")
WARM_UP_ROWS = 1 << 10


def warm_up(_: int) -> None:
    """Load what every rewrite needs, and use it once; runs in each worker of an executor."""
    for name in WARM_MODULES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="neve-warm-") as folder:
        _rehearse(Path(folder, "rows.parquet"))
    # After each task Spark's worker has garbage looked for: among all that was loaded by now
    # that takes 25 ms, and finds nothing.
    ignore_what_is_loaded()


def _rehearse(path: Path) -> None:
    """Write, read, sort and write a few rows: libraries start threads, and load more, by then."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = [number * 7919 % WARM_UP_ROWS for number in range(WARM_UP_ROWS)]
    rows = pa.table({"number": numbers, "text": [f"{number:x}" for number in numbers]})
    pq.write_table(rows, path, compression="zstd", write_page_index=True)
    found = pl.scan_parquet(path, glob=False).collect().sort("number")
    pq.write_table(found[numbers].to_arrow(), path, compression="zstd")
