"""Rows and the files that hold them: adds, appends, calls, and the stream of a scan."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from neve.api.messages import PATHS_MAX, STRICT, MaxLength, ShortText

STREAM_PROBLEM = b"neve-problem:"
"""Prefix of the last message of a failed Arrow stream; the problem follows as JSON."""


def failed_stream(problem: Mapping[str, object]) -> bytes:
    """Return the end of an Arrow IPC stream that failed.

    It is framed as a message, so that every reader stops there with an error, and does not treat
    the rows before it as complete.
    """
    text = STREAM_PROBLEM + json.dumps(problem).encode()
    text += b" " * (-len(text) % 8)
    return b"\xff\xff\xff\xff" + len(text).to_bytes(4, "little") + text


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A data file of a table. `path` is relative to the location of the table."""

    path: str
    tablet: str
    size_bytes: int
    rows: int
    key_min: str | None = None
    key_max: str | None = None
    tombstones: int = 0
    schema_id: int = 0
    """Id of the newest schema of the table whose columns the file has."""
    clean: bool = False
    open: bool = False
    """Whether the file is still being written. Always false for now: added files are complete."""
    added_at_s: float = 0.0
    time_min_s: float | None = None
    time_max_s: float | None = None
    tags: dict[str, str] = field(default_factory=dict)
    job: str | None = None
    request: str | None = None
    live_bytes: int | None = None
    """Bytes of rows that a reader sees or a rewrite must keep; None: not counted."""
    measured_at_s: float | None = None
    """Time to which the count applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePage:
    """A page of files. `next` is the `after` of the following page; None: this is the last."""

    files: tuple[File, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFiles:
    """Parquet files to add: paths relative to the location of the table, or URIs below it."""

    __pydantic_config__ = STRICT

    paths: Annotated[tuple[ShortText, ...], MaxLength(PATHS_MAX)]
    version: int | None = None
    """With `window`: the version of the files, from 1. Only for a table without a key and with a
    time column."""
    window: ShortText | None = None
    """With `version`: two dates or times in UTC, the end exclusive, such as
    `2026-05-01..2026-05-02`. All rows are in it. Files of lower versions in it are replaced, in the
    tablets that get the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """Result of an add or append."""

    call: str
    files: tuple[File, ...]
    """Empty for a repeated call: the files may have been compacted since."""
    rows: int
    size_bytes: int
    file_count: int = 0
    tablets: tuple[str, ...] = ()
    """Tablets that hold the new files. For a repeated call only if there are few."""
    repeated: bool = False
    """Whether the call was accepted before. Nothing was added now."""
    replaced: int = 0
    """Number of files of lower versions that were replaced. 0 for a repeated call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """Result of a call that buffered rows: the rows are acknowledged and readable by scans."""

    call: str
    rows: int
    size_bytes: int
    """Decoded size of the rows."""
    durability: str
    """What the metadata store guarantees for them."""
    delay_s: float = 0.0
    """How long the call was delayed."""
    repeated: bool = False
    """Whether the call was accepted before. Nothing was buffered now."""
    delay_reason: str = ""
    """Why it was delayed; empty: it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushedRows:
    """Result of a flush: buffered rows that are in files now."""

    table: str
    rows: int
    files: int
    size_bytes: int
    """Size of the files."""
    tablet_rows: int | None = None
    """If a tablet was named: how many of its rows were in the segments; None: none was named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Outcome of a call id in a table."""

    call: str
    state: str
    """`accepted`, `unknown` (not accepted so far) or `too-old` (no longer known)."""
    kind: str | None = None
    """`add`, `append` or `compact`."""
    at_s: float | None = None
    """When the call was accepted."""
    rows: int | None = None
    file_count: int | None = None
    size_bytes: int | None = None
    tablets: tuple[str, ...] = ()
    """Tablets that hold the new files, if there are few."""
    request: str | None = None
    """Id of the request, if the call requested a compaction."""
