"""Tables: create, describe, change, drop, pause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from neve import api
from neve.client.http import Connection, decode, decode_list

if TYPE_CHECKING:
    import pyarrow as pa


def table_path(table: str, *rest: str) -> str:
    """Return the path of a table's route."""
    return "/".join(["/v1/tables", quote(table, safe=""), *rest])


class TableCalls:
    """Client methods for tables."""

    _connection: Connection

    def tables(self) -> list[api.Table]:
        """Return all tables, ordered by name."""
        return decode_list(api.Table, self._connection.call("GET", "/v1/tables"), "tables")

    def table_summary(self, name: str) -> api.TableSummary:
        """Return figures of a table from at most 20 of its tablets, up to 30 seconds old."""
        return decode(api.TableSummary, self._connection.call("GET", table_path(name, "summary")))

    def create_table(
        self,
        name: str,
        location: str,
        *,
        schema: pa.Schema | None = None,
        example: str | None = None,
        key: Sequence[str] = (),
        splits: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        version_column: str | None = None,
        tombstone_column: str | None = None,
        time_column: str | None = None,
        partition_by: Sequence[str] = (),
        paused: bool = False,
    ) -> api.Table:
        """Create a table and return it.

        Args:
            name: A DNS label: lower-case letters, digits, dashes.
            location: URI of the folder of its files, or an absolute path on the service's machine.
            schema: Columns of the table. Give either `schema` or `example`.
            example: Path or URI of a Parquet file that has the schema.
            key: Sort and primary key; empty: an append-only table.
            splits: Last keys of all tablets except the last, ascending.
            settings: Settings by name: `{"ratio": 3, "target_bytes": "256MB", "ttl_s": "7d"}`.
            version_column: Column that orders the rows of a key; the highest version is the newest.
                Required with a key.
            tombstone_column: Boolean column that is true in rows that delete their key.
            time_column: Column that TTL and time windows use.
            partition_by: Partition columns; each combination of their values is a tablet.
            paused: Start no jobs until `resume`.
        """
        body = api.NewTable(
            name=name,
            location=location,
            schema=None if schema is None else columns_of(schema),
            example=example,
            key=tuple(key),
            splits=tuple(splits),
            settings=dict(settings or {}),
            version_column=version_column,
            tombstone_column=tombstone_column,
            time_column=time_column,
            partition_by=tuple(partition_by),
            paused=paused,
        )
        return decode(api.Table, self._connection.call("POST", "/v1/tables", body=asdict(body)))

    def attach(
        self,
        name: str,
        *,
        delta: str = "",
        iceberg: str = "",
        settings: Mapping[str, Any] | None = None,
        paused: bool = False,
        dry_run: bool = False,
    ) -> api.Attached:
        """Attach a table of another format, whose log stays the truth, to compact it in place.

        Args:
            name: Name of the table in this service, a DNS label.
            delta: Folder of a Delta table: a URI, or an absolute path on the service's machine.
            iceberg: An Iceberg table as `CATALOG:NAMESPACE.TABLE`, in place of `delta`. The catalog
                is one of the service's settings.
            settings: Settings by name, in the units of `create_table`.
            paused: Start no jobs until `resume`.
            dry_run: Attach nothing; the answer says what would be planned, or why it is refused.
        """
        if bool(delta) == bool(iceberg):
            raise ValueError("expected either delta or iceberg")
        body = api.AttachTable(
            format="delta" if delta else "iceberg",
            uri=delta or iceberg,
            settings=dict(settings or {}),
            paused=paused,
            dry_run=dry_run,
        )
        path = table_path(name, "attach")
        return decode(api.Attached, self._connection.call("POST", path, body=asdict(body)))

    def detach(self, table: str) -> api.Dropped:
        """End the maintenance of a lake table; its files and its log stay.

        Returns:
            What must finish before the name can be used again.
        """
        return decode(api.Dropped, self._connection.call("POST", table_path(table, "detach")))

    def describe(self, table: str) -> api.Table:
        """Return a table with its totals."""
        return decode(api.Table, self._connection.call("GET", table_path(table)))

    def set(
        self,
        table: str,
        settings: Mapping[str, Any] | None = None,
        *,
        settings_version: int | None = None,
        add_columns: Mapping[str, str] | None = None,
        widen_columns: Mapping[str, str] | None = None,
    ) -> api.Table:
        """Change some settings of a table, or its schema, and return it.

        Args:
            table: Name of the table.
            settings: Settings by name, in the units of `create_table`.
            settings_version: Expected version; the call fails if the settings have another one.
            add_columns: Name → type, such as `int64`; the column is null in existing rows.
            widen_columns: Name → new type, which must hold every value of the old type.
        """
        body = {
            "settings": dict(settings or {}),
            "settings_version": settings_version,
            "add_columns": _typed_columns(add_columns),
            "widen_columns": _typed_columns(widen_columns),
        }
        return decode(api.Table, self._connection.call("PATCH", table_path(table), body=body))

    def drop(self, table: str, *, delete_files: bool = False) -> api.Dropped:
        """Drop a table, and return what must finish before its name can be used again.

        Args:
            table: Name of the table.
            delete_files: Delete its files as well, once no reader can need them.
        """
        return decode(
            api.Dropped,
            self._connection.call(
                "DELETE", table_path(table), parameters={"delete_files": delete_files}
            ),
        )

    def tablets(self, table: str) -> list[api.Tablet]:
        """Return the tablets of a table, ascending by end."""
        pages = self._connection.pages(table_path(table, "tablets"), api.TabletPage)
        return [tablet for page in pages for tablet in page.tablets]

    def pause(self, table: str) -> api.Table:
        """Start no new jobs on a table; running jobs continue."""
        return decode(api.Table, self._connection.call("POST", table_path(table, "pause")))

    def resume(self, table: str) -> api.Table:
        """End the pause of a table."""
        return decode(api.Table, self._connection.call("POST", table_path(table, "resume")))


def columns_of(schema: pa.Schema) -> tuple[api.Column, ...]:
    """Convert an Arrow schema to columns of the wire model."""
    return tuple(
        api.Column(name=field.name, type=str(field.type), nullable=field.nullable)
        for field in schema
    )


def _typed_columns(columns: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"name": name, "type": kind} for name, kind in (columns or {}).items()]
