"""What does less than a merge: delta-rs' compaction of bags, the limit, plain copying."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.rewrite.datasets import Dataset
from benchmarks.rewrite.queries import write_polars
from benchmarks.rewrite.wanted import THREADS, Form, Wanted


def delta_forms(data: Dataset) -> Mapping[str, Form]:
    """Return delta-rs' `optimize.compact`; keyed tables are nothing for it."""
    return {} if data.key else {"compact": _delta}


def prepare_delta(wanted: Wanted) -> None:
    """Make a Delta table of links to the files, which is not measured."""
    import deltalake

    for path in wanted.data.paths:
        os.link(path, Path(wanted.out) / Path(path).name)
    deltalake.convert_to_deltalake(wanted.out)


def _delta(wanted: Wanted) -> None:
    import deltalake

    writing = deltalake.WriterProperties(
        compression="ZSTD", compression_level=wanted.level, max_row_group_size=wanted.group_rows
    )
    table = deltalake.DeltaTable(wanted.out)
    table.optimize.compact(
        target_size=1 << 40, max_concurrent_tasks=THREADS, writer_properties=writing
    )


def limit_forms(data: Dataset) -> Mapping[str, Form]:
    """Return the limit: decode all inputs and encode the result, without a merge.

    It holds the result in memory, so it is left out where that may not fit.
    """
    return {} if data.change or data.large else {"decode+encode": _limit}


def _limit(wanted: Wanted) -> None:
    import polars as pl

    # The result itself is read beforehand (see `prepare_limit`): a merge does not decode it.
    for path in wanted.data.paths:
        pl.read_parquet(path)
    write_polars(wanted, _RESULTS[wanted.reference])


_RESULTS: dict[str, Any] = {}


def prepare_limit(wanted: Wanted) -> None:
    """Read the result, which is not measured."""
    import polars as pl

    if wanted.reference not in _RESULTS:
        _RESULTS.clear()
        _RESULTS[wanted.reference] = pl.read_parquet(wanted.reference)


def cp_forms(data: Dataset) -> Mapping[str, Form]:
    """Return plain copying of the bytes."""
    return {} if data.change else {"copy": _cp}


def _cp(wanted: Wanted) -> None:
    for path in wanted.data.paths:
        shutil.copyfile(path, Path(wanted.out) / Path(path).name)
