"""The alternatives that run in one process: the same merge, as each of them says it best.

Every engine has forms of the same question; a warm-up tries all and the fastest is
measured. All read every input, keep per key the row of the highest version, leave tombstones out,
and write one file ordered by key. Bags are copied. A change is applied to the rows that are kept:
with one row per version this has the result of applying it to all versions, for less work.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rewrite.datasets import TOMBSTONE, VERSION, Dataset
from benchmarks.rewrite.wanted import THREADS, Form, Wanted


def polars_forms(data: Dataset) -> Mapping[str, Form]:
    """Return Polars' forms: sort and unique, in memory or streaming."""
    if not data.key:
        return {"sink": lambda wanted: _sink(wanted, _scan(wanted))}
    return {
        "sort-unique": lambda wanted: write_polars(wanted, _merged(wanted).collect()),
        "sort-unique-streaming": lambda wanted: _sink(wanted, _merged(wanted)),
        "sort-compare": lambda wanted: write_polars(wanted, _compared(wanted)),
    }


def _scan(wanted: Wanted) -> Any:
    import polars as pl

    return pl.scan_parquet(wanted.data.paths)


def _merged(wanted: Wanted) -> Any:
    import polars as pl

    key = list(wanted.data.key)
    best = _scan(wanted).sort(wanted.order).unique(subset=key, keep="last", maintain_order=True)
    return _changed(wanted, best.filter(~pl.col(TOMBSTONE)))


def _changed(wanted: Wanted, frame: Any) -> Any:
    """Apply the change of the job."""
    import polars as pl

    change = wanted.data.change
    if change is None:
        return frame
    if change.delete_where:
        return frame.filter(~pl.sql_expr(change.delete_where))
    return frame.with_columns(pl.sql_expr(change.value).alias(change.column))


def _compared(wanted: Wanted) -> Any:
    """Keep the last row before each change of the key."""
    import polars as pl

    ordered = _scan(wanted).sort(wanted.order).collect()
    following = [pl.col(name).ne_missing(pl.col(name).shift(-1)) for name in wanted.data.key]
    return _changed(wanted, ordered.filter(pl.any_horizontal(following) & ~pl.col(TOMBSTONE)))


def write_polars(wanted: Wanted, frame: Any) -> None:
    """Write a frame as the result."""
    frame.write_parquet(
        wanted.file,
        compression="zstd",
        compression_level=wanted.level,
        row_group_size=wanted.group_rows,
    )


def _sink(wanted: Wanted, frame: Any) -> None:
    frame.sink_parquet(
        wanted.file,
        compression="zstd",
        compression_level=wanted.level,
        row_group_size=wanted.group_rows,
    )


def duckdb_forms(data: Dataset) -> Mapping[str, Form]:
    """Return DuckDB's forms: a window, or the maximum of a struct."""
    if not data.key:
        return {"copy": lambda wanted: _duckdb(wanted, f"SELECT * FROM {_files(wanted)}")}
    return {
        "qualify": lambda wanted: _duckdb(wanted, _window(wanted)),
        "arg-max": lambda wanted: _duckdb(wanted, _arg_max(wanted)),
    }


def _duckdb(wanted: Wanted, query: str) -> None:
    import duckdb

    config: dict[str, Any] = {"threads": THREADS}
    if wanted.memory_bytes:
        config |= {
            "memory_limit": f"{wanted.engine_bytes // 1_000_000}MB",
            "temp_directory": wanted.spill,
        }
    with duckdb.connect(config=config) as connection:
        connection.execute("SET enable_progress_bar = false")
        connection.execute(
            f"COPY ({query}) TO '{wanted.file}' (FORMAT parquet, COMPRESSION zstd, "
            f"COMPRESSION_LEVEL {wanted.level}, ROW_GROUP_SIZE {wanted.group_rows})"
        )


def _files(wanted: Wanted) -> str:
    return f"read_parquet({wanted.data.paths})"


def _ranked(wanted: Wanted) -> str:
    return (
        f"row_number() OVER (PARTITION BY {_names(wanted.data.key)} "
        f"ORDER BY {VERSION} DESC, {TOMBSTONE} DESC)"
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def _window(wanted: Wanted) -> str:
    best = f"SELECT * FROM {_files(wanted)} QUALIFY {_ranked(wanted)} = 1"
    return _kept(wanted, best)


def _kept(wanted: Wanted, best: str) -> str:
    """Return the rows that a job keeps, changed and in order."""
    change, columns, condition = wanted.data.change, "*", f"NOT {TOMBSTONE}"
    if change is not None and change.delete_where:
        condition += f" AND NOT ({change.delete_where})"
    elif change is not None:
        columns = f"* REPLACE ({change.value} AS {change.column})"
    key = _names(wanted.data.key)
    return f"SELECT {columns} FROM ({best}) WHERE {condition} ORDER BY {key}"


def _arg_max(wanted: Wanted) -> str:
    best = (
        f"SELECT unnest(arg_max(r, {{'v': r.{VERSION}, 't': r.{TOMBSTONE}}})) "
        f"FROM {_files(wanted)} r GROUP BY {_names([f'r.{name}' for name in wanted.data.key])}"
    )
    return _kept(wanted, best)


def datafusion_forms(data: Dataset) -> Mapping[str, Form]:
    """Return DataFusion's forms: a window, or a plain copy."""
    if not data.key:
        return {"copy": lambda wanted: _datafusion(wanted, "SELECT * FROM inputs")}
    return {"window": lambda wanted: _datafusion(wanted, _numbered(wanted))}


def _numbered(wanted: Wanted) -> str:
    import pyarrow.parquet as pq

    change, condition = wanted.data.change, f"newest = 1 AND NOT {TOMBSTONE}"
    columns = pq.read_schema(wanted.data.paths[0]).names
    if change is not None and change.delete_where:
        condition += f" AND NOT ({change.delete_where})"
    elif change is not None:
        columns[columns.index(change.column)] = f"{change.value} AS {change.column}"
    best = f"SELECT *, {_ranked(wanted)} AS newest FROM inputs"
    return (
        f"SELECT {_names(columns)} FROM ({best}) WHERE {condition} "
        f"ORDER BY {_names(wanted.data.key)}"
    )


def _datafusion(wanted: Wanted, query: str) -> None:
    import datafusion

    config = datafusion.SessionConfig().with_target_partitions(THREADS)
    runtime = datafusion.RuntimeEnvBuilder()
    if wanted.memory_bytes:
        runtime = runtime.with_disk_manager_os().with_fair_spill_pool(wanted.engine_bytes)
    context = datafusion.SessionContext(config, runtime)
    # The files by name: in the folder is also the guard that Névé writes, which makes every
    # program fail that lists the folder of a table.
    files = ", ".join(f"'{path}'" for path in wanted.data.paths)
    context.sql(f"CREATE EXTERNAL TABLE inputs STORED AS PARQUET LOCATION ({files})").collect()
    context.sql(
        f"COPY ({query}) TO '{wanted.file}' STORED AS PARQUET OPTIONS "
        f"('format.compression' 'zstd({wanted.level})', "
        f"'format.max_row_group_size' '{wanted.group_rows}')"
    ).collect()
