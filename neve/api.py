"""Wire models of tables: what the HTTP interface takes and returns, as frozen values.

Client, gateway and command line share these classes; `neve.client_decode` builds them
from JSON. Those of the work on tables are in `neve.api_work`. Nothing of the project is
imported here. Sizes are in bytes, times in seconds since the epoch. A tablet is named by
its end: hex, or `last`. Keys are texts that a person can read and that every `start`,
`end` and `splits` parameter takes back.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STRICT = {"extra": "forbid"}
"""Bodies are refused if they hold a name that nobody knows (read by the gateway)."""

CALL_HEADER = "Neve-Call"
"""Header that carries the id of a call, so that a repeated call counts once."""

ARROW_STREAM = "application/vnd.apache.arrow.stream"
PROBLEM = "application/problem+json"
STREAM_PROBLEM = b"neve-problem:"
"""Begins the last message of an Arrow stream that broke off; the problem follows as JSON."""


def failed_stream(problem: Mapping[str, object]) -> bytes:
    """Return what ends an Arrow IPC stream that cannot go on.

    It has the frame of a message, so that every reader stops there, and none takes the rows
    before it for all of them.
    """
    text = STREAM_PROBLEM + json.dumps(problem).encode()
    text += b" " * (-len(text) % 8)
    return b"\xff\xff\xff\xff" + len(text).to_bytes(4, "little") + text


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table; `type` as Arrow writes it: `int64`, `timestamp[us, tz=UTC]`."""

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTable:
    """A table to create. Give `schema`, or the path of a Parquet file as `example`."""

    __pydantic_config__ = STRICT

    name: str
    location: str
    schema: tuple[Column, ...] | None = None
    example: str | None = None
    key: tuple[str, ...] = ()
    version_column: str | None = None
    tombstone_column: str | None = None
    time_column: str | None = None
    partition_by: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    """Last keys of all tablets but the last, ascending."""
    settings: dict[str, Any] = field(default_factory=dict)
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """New values for some settings, new and wider columns; the others stay."""

    __pydantic_config__ = STRICT

    settings: dict[str, Any] = field(default_factory=dict)
    settings_version: int | None = None
    """Refuse if the table's settings have another version by now."""
    add_columns: tuple[Column, ...] = ()
    """New columns, null in the rows that are there."""
    widen_columns: tuple[Column, ...] = ()
    """Columns that are there, with types that hold every value of the old ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table and its totals; totals are None in listings."""

    id: str
    name: str
    location: str
    state: str
    schema: tuple[Column, ...]
    schema_id: int = 0
    """Counted up by every change of the schema."""
    key: tuple[str, ...] = ()
    version_column: str | None = None
    tombstone_column: str | None = None
    time_column: str | None = None
    partition_by: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    settings_version: int = 1
    without_effect: dict[str, str] = field(default_factory=dict)
    """Setting → why it changes nothing in this service; empty in listings."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Tablets that totals do not count: what is stored of them and cannot be decoded."""
    created_at_s: float = 0.0
    tablets: int | None = None
    files: int | None = None
    rows: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A data file of a table; `path` is relative to the table's location."""

    path: str
    tablet: str
    size_bytes: int
    rows: int
    key_min: str | None = None
    key_max: str | None = None
    tombstones: int = 0
    schema_id: int = 0
    """Of the newest schema of the table that the file has in full."""
    clean: bool = False
    open: bool = False
    """Still being written. Not used yet: every file that is added is complete."""
    added_at_s: float = 0.0
    time_min_s: float | None = None
    time_max_s: float | None = None
    tags: dict[str, str] = field(default_factory=dict)
    job: str | None = None
    request: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFiles:
    """Parquet files to add: relative to the table's location, or URIs below it."""

    __pydantic_config__ = STRICT

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What an `add` or `append` brought into the table."""

    call: str
    files: tuple[File, ...]
    """Not told if the call is answered a second time: the files may have been compacted since."""
    rows: int
    size_bytes: int
    file_count: int = 0
    tablets: tuple[str, ...] = ()
    """Those that took the files; of a repeated call only if they were few."""
    repeated: bool = False
    """Whether the call had been accepted before, so that nothing was added now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What became of a call id in a table."""

    call: str
    state: str
    """`accepted`, `unknown` (not accepted so far) or `too-old` (nobody can tell any more)."""
    kind: str | None = None
    """`add`, `append` or `compact`."""
    at_s: float | None = None
    """When it was accepted."""
    rows: int | None = None
    file_count: int | None = None
    size_bytes: int | None = None
    tablets: tuple[str, ...] = ()
    """Those that took the files, if they were few."""
    request: str | None = None
    """Of a compaction: the id of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tablet:
    """A tablet and what holds it. `start` is the key before its first, None: from the beginning."""

    tablet: str
    files: int
    size_bytes: int
    rows: int
    start: str | None = None
    end: str | None = None
    partition: str | None = None
    running: int = 0
    waiting: int = 0
    selected: bool = False
    operation: str | None = None
    analysis: str = "unknown"
    failures: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPage:
    """Some tablets, ascending; `next`: the `after` of the following page, None: the last."""

    tablets: tuple[Tablet, ...]
    unreadable: dict[str, str] = field(default_factory=dict)
    """Tablet → what is stored of it and cannot be decoded. Nothing else is known of these."""
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A table that was dropped, and what its name still waits for."""

    table: str
    files_left: int = 0
    """Files that the collector deletes first: replaced ones, and with `delete_files` all."""
    name_free_at_s: float | None = None
    """When the name is free at the earliest; None: it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePage:
    """Files of some tablets; `next`: the `after` of the following page, None: the last."""

    files: tuple[File, ...]
    next: str | None = None
