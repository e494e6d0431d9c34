"""Tables as frames of other engines: `neve.read.pandas("flights")`.

Each function returns the rows that `Client.scan` returns: merged, without deleted and expired
rows, and of one moment. A program that reads the table's directory itself would count replaced
rows, or miss rows. The engine has to be installed; it is loaded when its function is called.

`duckdb_view` is for tables that are larger than the memory of the program: DuckDB reads the files
of the manifest itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from neve.client import Client
from neve.client.connect import connect


def arrow(
    table: str, *, client: Client | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return the rows of a table as an Arrow table.

    Args:
        table: Its name.
        client: Of the service; None: as `neve.connect()`.
        columns: Those wanted; None: all.
    """
    if client is not None:
        return client.scan(table, columns)
    with connect() as own:
        return own.scan(table, columns)


def pandas(
    table: str, *, client: Client | None = None, columns: Sequence[str] | None = None
) -> Any:
    """Return the rows of a table as a pandas frame; arguments as of `arrow`."""
    _load("pandas")
    return arrow(table, client=client, columns=columns).to_pandas()


def polars(
    table: str, *, client: Client | None = None, columns: Sequence[str] | None = None
) -> Any:
    """Return the rows of a table as a Polars frame; arguments as of `arrow`."""
    return _load("polars").from_arrow(arrow(table, client=client, columns=columns))


def duckdb(
    table: str,
    *,
    client: Client | None = None,
    columns: Sequence[str] | None = None,
    connection: Any = None,
) -> Any:
    """Return the rows of a table as a relation of DuckDB.

    Args:
        table: Its name.
        client: Of the service; None: as `neve.connect()`.
        columns: Those wanted; None: all.
        connection: Of DuckDB; None: its default.
    """
    engine = connection or _load("duckdb")
    return engine.from_arrow(arrow(table, client=client, columns=columns))


def spark(
    table: str,
    session: Any,
    *,
    client: Client | None = None,
    columns: Sequence[str] | None = None,
) -> Any:
    """Return the rows of a table as a frame of Spark; they pass through the driver's memory.

    Args:
        table: Its name.
        session: Of Spark.
        client: Of the service; None: as `neve.connect()`.
        columns: Those wanted; None: all.
    """
    _load("pyspark")
    types = importlib.import_module("pyspark.sql.pandas.types")
    rows = arrow(table, client=client, columns=columns)
    schema = types.from_arrow_schema(rows.schema, prefer_timestamp_ntz=True)
    return session.createDataFrame(rows.to_pylist(), schema)


def duckdb_view(table: str, *, client: Client | None = None, name: str | None = None) -> str:
    """Return a statement that makes a view of a table in DuckDB, over its files of this moment.

    A view is good for the grace of replaced files (`coordinator.garbage_grace_s`); then make it
    anew. Rows of one key with equal versions are told apart by the gateway only.

    Args:
        table: Its name.
        client: Of the service; None: as `neve.connect()`.
        name: Of the view; None: that of the table.
    """
    if client is not None:
        manifest = client.manifest(table)
    else:
        with connect() as own:
            manifest = own.manifest(table)
    return f"CREATE OR REPLACE VIEW {_quoted(name or table)} AS\n{_select(manifest)};"


def _select(manifest: dict[str, Any]) -> str:
    columns = [each["name"] for each in manifest["schema"]]
    chosen = ", ".join(map(_quoted, columns))
    files = ", ".join("'" + each["file"].replace("'", "''") + "'" for each in manifest["files"])
    if not files:
        typed = ", ".join(f"NULL AS {_quoted(each)}" for each in columns)
        return f"SELECT {typed} WHERE false"
    hive = "true" if manifest["partition_by"] else "false"
    source = f"read_parquet([{files}], union_by_name = true, hive_partitioning = {hive})"
    rows = f"SELECT {chosen} FROM {source}"
    if manifest["key"]:
        rows += f"\nQUALIFY row_number() OVER ({_order(manifest)}) = 1"
    return f"SELECT * FROM (\n{rows}\n)" + _where(manifest)


def _order(manifest: dict[str, Any]) -> str:
    """Return which row of a key comes first: the highest version, then a tombstone."""
    order = [f"{_quoted(manifest['version_column'])} DESC NULLS LAST"]
    if manifest["tombstone_column"]:
        order.append(f"coalesce({_quoted(manifest['tombstone_column'])}, false) DESC")
    key = ", ".join(map(_quoted, manifest["key"]))
    return f"PARTITION BY {key} ORDER BY {', '.join(order)}"


def _where(manifest: dict[str, Any]) -> str:
    tests = list[str]()
    if manifest["tombstone_column"]:
        tests.append(f"{_quoted(manifest['tombstone_column'])} IS NOT TRUE")
    if manifest["ttl_s"] is not None:
        kinds = {each["name"]: each["type"] for each in manifest["schema"]}
        time = _quoted(manifest["time_column"])
        if kinds[manifest["time_column"]].startswith(("timestamp", "date")):
            time = f"epoch({time})"
        tests.append(f"({time} IS NULL OR {time} + {manifest['ttl_s']} > epoch(now()))")
    return "\nWHERE " + " AND ".join(tests) if tests else ""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _load(module: str) -> Any:
    """Return an engine's module.

    Raises:
        ImportError: It is not installed; says what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{module} is not installed, and neve.read needs it for this: pip install {module}"
        ) from error
