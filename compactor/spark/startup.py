"""Set-up of the driver process and of Spark's Python workers.

A process dies with its parent, its threads switch often, and a Python worker loads the libraries of
every rewrite before its first task. Workers import this module when they start, so it imports no
large library at module level.
"""

import ctypes
import importlib
import os
import signal
import sys
import tempfile
from pathlib import Path

from common.runtime import ignore_what_is_loaded

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


# ----------------------------------------------------------------------- Warming up a Python worker


SHARED_MODULES = (
    *("pandas", "pyarrow.compute", "pyarrow.parquet"),
    *("common.expressions.clauses", "common.settings", "common.wire"),
    "compactor.rewrite.spark_tasks",
)
"""Loaded by Spark's daemon, once for all workers. Arrow loads pandas when it converts the first
list. Polars is not among them: it starts threads, which a fork would lose. Modules load it where
they use it, so that a task that reads or stores values of expressions does without it."""
WARM_MODULES = ("numpy", "polars", "pyarrow.parquet", "compactor.rewrite.merge.driver")
WARM_UP_ROWS = 1 << 10


def load_shared_modules() -> None:
    """Load what all workers need; runs in Spark's daemon, before it forks any."""
    for name in SHARED_MODULES:
        importlib.import_module(name)


def warm_up(_: int) -> None:
    """Load and use the libraries of every rewrite once; runs in each worker of an executor."""
    for name in WARM_MODULES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="neve-warm-") as folder:
        _rehearse(Path(folder, "rows.parquet"))
    # Spark's worker collects garbage after each task. With all loaded objects included that takes
    # 25 ms and finds nothing.
    ignore_what_is_loaded()


def _rehearse(path: Path) -> None:
    """Write, read, sort and write a few rows, so that libraries start threads and load modules."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = [number * 7919 % WARM_UP_ROWS for number in range(WARM_UP_ROWS)]
    rows = pa.table({"number": numbers, "text": [f"{number:x}" for number in numbers]})
    pq.write_table(rows, path, compression="zstd", write_page_index=True)
    sorted_rows = pl.scan_parquet(path, glob=False).collect().sort("number")
    pq.write_table(sorted_rows[numbers].to_arrow(), path, compression="zstd")
