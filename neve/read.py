"""Tables as data frames of other engines: `neve.read.pandas("flights")`.

Each function returns the same rows as `Client.scan`: a consistent snapshot of merged rows, without
deleted and expired rows. A program that reads the table's directory directly would count replaced
rows or miss rows. The engine must be installed; it is loaded when its function is called.

A table is given by its name, or by the path or URI of its location (any text with a slash, or a
`Path`). A location is read from its newest manifest, without the service.

Use `spark`, `spark_view` and `duckdb_view` for tables that do not fit into the program's memory:
the engine itself reads the files of the manifest. Modules of the project other than the client are
imported inside functions, because a notebook may have its own `common` folder.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from neve.client import Client
from neve.client.connect import connect
from neve.client.errors import NeveError, NotFoundError

TableOrLocation = str | os.PathLike[str]
GLOB_LETTERS = "\\*?[]{},"
"""Characters that Spark does not treat literally in a file path."""
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def arrow(
    table: TableOrLocation, *, client: Client | None = None, columns: Sequence[str] | None = None
) -> pa.Table:
    """Return the rows of a table as an Arrow table.

    Args:
        table: Name or location of the table.
        client: Client of the service; None: use `neve.connect()`.
        columns: Columns to return; None: all.
    """
    if (uri := _location_of(table)) is not None:
        return _published_rows(uri, columns)
    if client is not None:
        return client.scan(str(table), columns)
    with connect() as own:
        return own.scan(str(table), columns)


def pandas(
    table: TableOrLocation, *, client: Client | None = None, columns: Sequence[str] | None = None
) -> Any:
    """Return the rows of a table as a pandas data frame; arguments as for `arrow`."""
    _load("pandas")
    return arrow(table, client=client, columns=columns).to_pandas()


def polars(
    table: TableOrLocation, *, client: Client | None = None, columns: Sequence[str] | None = None
) -> Any:
    """Return the rows of a table as a Polars data frame; arguments as for `arrow`."""
    return _load("polars").from_arrow(arrow(table, client=client, columns=columns))


def duckdb(
    table: TableOrLocation,
    *,
    client: Client | None = None,
    columns: Sequence[str] | None = None,
    connection: Any = None,
) -> Any:
    """Return the rows of a table as a DuckDB relation.

    Args:
        table: Name or location of the table.
        client: Client of the service; None: use `neve.connect()`.
        columns: Columns to return; None: all.
        connection: DuckDB connection; None: the default.
    """
    engine = connection or _load("duckdb")
    return engine.from_arrow(arrow(table, client=client, columns=columns))


def spark(
    table: TableOrLocation,
    session: Any,
    *,
    client: Client | None = None,
    columns: Sequence[str] | None = None,
    lazy: bool = True,
) -> Any:
    """Return the rows of a table as a Spark data frame.

    Spark reads the files when the frame is used. Use the frame before the grace period of replaced
    files (`coordinator.garbage_grace_s`) ends. Spark rejects files with a column type narrower than
    the table's.

    Args:
        table: Name or location of the table.
        session: A Spark session.
        client: Client of the service; None: use `neve.connect()`.
        columns: Columns to return; None: all.
        lazy: If False, a scan reads the rows, which pass through the driver's memory.
    """
    _load("pyspark")
    if not lazy:
        rows = arrow(table, client=client, columns=columns)
        return session.createDataFrame(rows.to_pylist(), _spark_schema(rows.schema))
    manifest = _manifest(table, client)
    schema = _spark_schema(_arrow_schema(manifest))
    files = ["".join(f"\\{c}" if c in GLOB_LETTERS else c for c in f) for f in _files(manifest)]
    reader = session.read.schema(schema).option("recursiveFileLookup", "true")
    frame = reader.parquet(*files) if files else session.createDataFrame([], schema)
    # `Session.sql` would interpret single braces as placeholders.
    text = _spark_select(manifest, schema, "\0").replace("{", "{{").replace("}", "}}")
    selected = session.sql(text.replace("\0", "{neve_files}"), neve_files=frame)
    return selected if columns is None else selected.select(*map(_spark_quoted, columns))


def spark_view(
    table: TableOrLocation, *, client: Client | None = None, name: str | None = None
) -> list[str]:
    """Return statements that create a Spark view of a table over its current files.

    The restrictions of `duckdb_view` and `spark` apply.

    Args:
        table: Name or location of the table.
        client: Client of the service; None: use `neve.connect()`.
        name: Name of the view; None: the name of the table.

    Raises:
        ValueError: A file path has characters that are not allowed in a statement's path.
    """
    manifest = _manifest(table, client)
    schema, view = _spark_schema(_arrow_schema(manifest)), name or str(manifest["table"])
    typed = [(_spark_quoted(field.name), field.dataType.simpleString()) for field in schema]
    create = "CREATE OR REPLACE TEMPORARY VIEW"
    if not (files := _files(manifest)):
        nulls = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in typed)
        return [f"{create} {_spark_quoted(view)} AS\nSELECT {nulls} WHERE false"]
    if strange := [file for file in files if set(file) & set(GLOB_LETTERS)]:
        raise ValueError(
            f"file {strange[0]}: its path has one of {GLOB_LETTERS}, which a view of Spark cannot "
            "have; use neve.read.spark"
        )
    first = manifest["files"][0]
    root = first["file"].removesuffix(first["path"])
    inside = ",".join(file["path"] for file in manifest["files"])
    columns = ", ".join(f"{column} {kind}" for column, kind in typed)
    source = _spark_quoted(f"{view}_files")
    return [
        f"{create} {source} ({columns}) USING parquet\nOPTIONS "
        f"(path {_spark_text(f'{root}{{{inside}}}')}, recursiveFileLookup 'true')",
        f"{create} {_spark_quoted(view)} AS\n{_spark_select(manifest, schema, source)}",
    ]


def duckdb_view(
    table: TableOrLocation, *, client: Client | None = None, name: str | None = None
) -> str:
    """Return a statement that creates a DuckDB view of a table over its current files.

    A view is valid for the grace period of replaced files (`coordinator.garbage_grace_s`); create
    it again after that. For rows with the same key and version, only a scan picks the right one.

    Args:
        table: Name or location of the table.
        client: Client of the service; None: use `neve.connect()`.
        name: Name of the view; None: the name of the table.
    """
    manifest = _manifest(table, client)
    view = _quoted(name or str(manifest["table"]))
    return f"CREATE OR REPLACE VIEW {view} AS\n{_select(manifest)};"


# ---------------------------------------------------------------------------- Manifests and schemas


def _location_of(table: TableOrLocation) -> str | None:
    """Return the URI of a location, or None for the name of a table."""
    text = os.fspath(table)
    if isinstance(table, str) and "/" not in text:
        return None
    uri = text if "://" in text else Path(text).absolute().as_uri()
    return uri.rstrip("/").removesuffix("/_neve/manifest/latest.json").rstrip("/")


def _manifest(table: TableOrLocation, client: Client | None) -> Mapping[str, Any]:
    if (uri := _location_of(table)) is not None:
        return _published_manifest(uri)
    if client is not None:
        return client.manifest(str(table))
    with connect() as own:
        return own.manifest(str(table))


def _published_manifest(uri: str) -> Mapping[str, Any]:
    """Return the newest manifest of a location, in the form of the service's answer.

    Raises:
        NotFoundError: The location has no manifest.
        NeveError: The manifest cannot be used, or the storage does not answer.
    """
    from common.errors import CompactionError
    from common.parquet.location import open_location
    from common.parquet.manifest import FORMAT, FORMAT_VERSION, POINTER_PATH, absolute_name

    try:
        location = open_location(uri)
        with location.open_stream(POINTER_PATH) as stream:
            pointer = json.loads(stream.read())
        if (pointer["format"], pointer["version"]) != (FORMAT, FORMAT_VERSION):
            raise NeveError(f"location {uri}: its manifest has another format; upgrade neve")
        if not pointer.get("complete", True):
            raise NeveError(f"location {uri}: its manifest is of a table that lacks files")
        files = list[dict[str, Any]]()
        for part in pointer["parts"]:
            path = location.full(part["path"])
            names = pq.read_table(
                path, columns=["path"], filesystem=location.filesystem, partitioning=None
            )
            files += [
                {"path": path, "file": absolute_name(location, path)}
                for path in names["path"].to_pylist()
            ]
    except FileNotFoundError as error:
        raise NotFoundError(
            f"location {uri} has no manifest ({POINTER_PATH}): it is no table of Névé, or its "
            "setting manifest_interval_s is off"
        ) from error
    except (CompactionError, OSError, ValueError, KeyError) as error:
        raise NeveError(f"location {uri}: its manifest cannot be read: {error}") from error
    return {**pointer, "files": files}


def _published_rows(uri: str, columns: Sequence[str] | None) -> pa.Table:
    """Return the rows of a scan at the time of a location's newest manifest."""
    from common.errors import CompactionError
    from common.model.table import Column
    from common.parquet.location import open_location
    from common.runtime import SystemClock

    # These modules have more dependencies than the client.
    inspection, merge = _load("common.parquet.file_inspection"), _load("common.rows.merge")
    rules = _load("common.rows.rules").RowRules
    manifest = _published_manifest(uri)
    try:
        location = open_location(uri)
        row_rules = rules(
            schema=tuple(
                Column(column["name"], column["type"], column["nullable"])
                for column in manifest["schema"]
            ),
            key=tuple(manifest["key"]),
            partition_by=tuple(manifest["partition_by"]),
            **{
                name: manifest[name]
                for name in ("version_column", "tombstone_column", "time_column", "ttl_s")
            },
        )
        rows = [
            inspection.read_rows(location, file["path"], row_rules) for file in manifest["files"]
        ]
        scanned: pa.Table = merge.scan_tables(
            rows, row_rules, SystemClock().now_s(), columns=columns
        )
    except CompactionError as error:
        raise NeveError(f"location {uri}: {error}") from error
    return scanned


def _files(manifest: Mapping[str, Any]) -> list[str]:
    return [file["file"] for file in manifest["files"]]


def _arrow_schema(manifest: Mapping[str, Any]) -> pa.Schema:
    from common.rows.schema import type_from_text

    return pa.schema(
        [(column["name"], type_from_text(column["type"])) for column in manifest["schema"]]
    )


# -------------------------------------------------------------------------------------- Spark's SQL


def _spark_schema(schema: pa.Schema) -> Any:
    types = _load("pyspark.sql.pandas.types")
    return types.from_arrow_schema(schema, prefer_timestamp_ntz=True)


def _spark_select(manifest: Mapping[str, Any], schema: Any, source: str) -> str:
    """Return the query that merges the rows of files by version, tombstones and TTL."""
    types = {field.name: field.dataType.simpleString() for field in schema}
    columns = [
        _spark_partition(name, kind) if name in manifest["partition_by"] else _spark_quoted(name)
        for name, kind in types.items()
    ]
    rows, tests = f"SELECT {', '.join(columns)} FROM {source}", list[str]()
    if manifest["key"]:
        order = _order(manifest, _spark_quoted)
        rows = f"SELECT *, row_number() OVER ({order}) AS `neve rank` FROM (\n{rows}\n)"
        tests.append("`neve rank` = 1")
    if manifest["tombstone_column"]:
        tests.append(f"{_spark_quoted(manifest['tombstone_column'])} IS NOT TRUE")
    if manifest["ttl_s"] is not None:
        tests.append(_spark_alive(manifest["time_column"], types, manifest["ttl_s"]))
    where = f"\nWHERE {' AND '.join(tests)}" if tests else ""
    return f"SELECT {', '.join(map(_spark_quoted, types))} FROM (\n{rows}\n){where}"


def _spark_partition(name: str, kind: str) -> str:
    """Return a column that files may omit; the folder name then holds its value."""
    folder, column = _spark_text(f"/{quote(quote(name))}="), _spark_quoted(name)
    text = f"substring_index(substring_index(input_file_name(), {folder}, -1), '/', 1)"
    for _ in range(2):  # Both the folder and the file's URI are percent-encoded.
        text = f"url_decode(replace({text}, '+', '%2B'))"
    value = f"IF(contains(input_file_name(), {folder}), {text}, NULL)"
    return f"coalesce({column}, CAST(nullif({value}, '{NO_VALUE}') AS {kind})) AS {column}"


def _spark_alive(name: str, types: Mapping[str, str], ttl_s: float) -> str:
    """Return the condition that a row has not expired; times without a zone are in UTC."""
    time, kind = _spark_quoted(name), types[name]
    limit = f"unix_micros(current_timestamp()) / 1e6 - {ttl_s}"
    if kind == "timestamp_ntz":
        seconds = f"CAST({limit} AS DECIMAL(18, 6))"
        limit = f"TIMESTAMP_NTZ '1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds})"
        return f"({time} IS NULL OR {time} > {limit})"
    numbers = {"timestamp": f"unix_micros({time}) / 1e6", "date": f"unix_date({time}) * 86400"}
    return f"({time} IS NULL OR {numbers.get(kind, time)} > {limit})"


def _spark_quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _spark_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# ------------------------------------------------------------------------------------- DuckDB's SQL


def _select(manifest: Mapping[str, Any]) -> str:
    columns = [column["name"] for column in manifest["schema"]]
    chosen = ", ".join(map(_quoted, columns))
    files = ", ".join("'" + file.replace("'", "''") + "'" for file in _files(manifest))
    if not files:
        typed = ", ".join(f"NULL AS {_quoted(column)}" for column in columns)
        return f"SELECT {typed} WHERE false"
    hive = "true" if manifest["partition_by"] else "false"
    source = f"read_parquet([{files}], union_by_name = true, hive_partitioning = {hive})"
    rows = f"SELECT {chosen} FROM {source}"
    if manifest["key"]:
        rows += f"\nQUALIFY row_number() OVER ({_order(manifest)}) = 1"
    return f"SELECT * FROM (\n{rows}\n)" + _where(manifest)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _order(manifest: Mapping[str, Any], quoted: Callable[[str], str] = _quoted) -> str:
    """Return the window order of a key's rows: highest version first, then tombstones."""
    order = [f"{quoted(manifest['version_column'])} DESC NULLS LAST"]
    if manifest["tombstone_column"]:
        order.append(f"coalesce({quoted(manifest['tombstone_column'])}, false) DESC")
    key = ", ".join(map(quoted, manifest["key"]))
    return f"PARTITION BY {key} ORDER BY {', '.join(order)}"


def _where(manifest: Mapping[str, Any]) -> str:
    tests = list[str]()
    if manifest["tombstone_column"]:
        tests.append(f"{_quoted(manifest['tombstone_column'])} IS NOT TRUE")
    if manifest["ttl_s"] is not None:
        kinds = {column["name"]: column["type"] for column in manifest["schema"]}
        time = _quoted(manifest["time_column"])
        if kinds[manifest["time_column"]].startswith(("timestamp", "date")):
            time = f"epoch({time})"
        tests.append(f"({time} IS NULL OR {time} + {manifest['ttl_s']} > epoch(now()))")
    return "\nWHERE " + " AND ".join(tests) if tests else ""


def _load(module: str) -> Any:
    """Return an engine's module.

    Raises:
        ImportError: The module is not installed; the message names the package to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise ImportError(
            f"{missing} is not installed, and neve.read needs it for this: pip install {missing}"
        ) from error
