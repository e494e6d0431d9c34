"""What a Python worker does before its first rewrite, so that this one is as fast as the next."""

import gc
import importlib
import tempfile
from pathlib import Path

WARM_MODULES = ("numpy", "polars", "pyarrow.parquet", "compactor.rewrite.native_job")
ROWS = 1 << 10


def warm(_: int) -> None:
    """Load what every rewrite needs, and use it once; runs in each worker of an executor."""
    for name in WARM_MODULES:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="neve-warm-") as folder:
        _rehearse(Path(folder, "rows.parquet"))
    # After each task Spark's worker has garbage looked for: among all that was loaded by now
    # that takes 25 ms, and finds nothing.
    gc.collect()
    gc.freeze()


def _rehearse(path: Path) -> None:
    """Write, read, sort and write a few rows: libraries start threads, and load more, by then."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = [number * 7919 % ROWS for number in range(ROWS)]
    rows = pa.table({"number": numbers, "text": [f"{number:x}" for number in numbers]})
    pq.write_table(rows, path, compression="zstd", write_page_index=True)
    found = pl.scan_parquet(path, glob=False).collect().sort("number")
    pq.write_table(found[numbers].to_arrow(), path, compression="zstd")
