"""Wire models of tables, their files and rows, and of import.

Client, gateway and command line share these frozen values; `neve.client.http` builds them from
JSON. Nothing of the project is imported here. Sizes are in bytes, times in seconds since the
epoch. A tablet is named by its end: hex, or `last`. Keys are texts that a person can read and
that every `start`, `end` and `splits` parameter takes back.
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


# ---------------------------------------------------- Import: an existing directory becomes a table


@dataclass(frozen=True, slots=True, kw_only=True)
class NewImport:
    """A directory to make a table of."""

    __pydantic_config__ = STRICT

    location: str
    name: str
    key: tuple[str, ...] = ()
    version_column: str | None = None
    tombstone_column: str | None = None
    time_column: str | None = None
    partition_by: tuple[str, ...] | None = None
    """None: what the folders say (`month=1/`)."""
    partition_types: dict[str, str] = field(default_factory=dict)
    """Types of partition columns that no file has; else they are told from the folders."""
    settings: dict[str, Any] = field(default_factory=dict)
    leave_misfits: bool = False
    """Import the files that fit, and leave those that do not."""
    readers_use_manifest: bool = False
    """Confirm that nobody reads the directory itself any more, so that it may be compacted."""
    dry_run: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """A file that cannot be in the table, and why."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTotals:
    """What is in one partition."""

    partition: str
    files: int
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportProgress:
    """How far an import is. Numbers are 0 while they are not known."""

    text: str
    files_done: int = 0
    files: int = 0
    bytes_done: int = 0
    size_bytes: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What an import came to, or would come to."""

    table: str
    location: str
    state: str
    """Of the table; empty: there is none (a dry run)."""
    files: int
    """That fit, those that are in the table already among them."""
    rows: int
    """Of the files that were not in the table already."""
    size_bytes: int
    """Likewise."""
    added: int
    already: int
    """Files that were in the table, or had been and were replaced."""
    ignored: int
    """Hidden files: their name, or a folder's, begins with `_` or `.`."""
    misfits: int
    schema: tuple[Column, ...]
    key: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    partitions: int = 0
    per_partition: tuple[PartitionTotals, ...] = ()
    """The first of them."""
    misfit_files: tuple[Misfit, ...] = ()
    """The first of them."""
    notes: tuple[str, ...] = ()
    dry_run: bool = False
