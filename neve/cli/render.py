"""Results as tables for people. Functions take values, return renderables and print nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Lines
from rich.table import Table as Grid
from rich.text import Text

from common.errors import RequestError
from common.units import format_bytes, format_count, format_duration
from neve import api
from neve.client.errors import NeveError

# -------------------------------------------------------------------------------------- Tablet keys
# Name tablets by their keys for people. Ids are for `--json` and for arguments of commands.


TabletKeys = Callable[[str, str], str]
"""Maps the name of a table and the id of a tablet to the tablet's keys, as a user writes them."""

ALL_KEYS = "all keys"


class KnownTables:
    """Keys of the tablets of these tables. A table is read when its first tablet is shown.

    A tablet keeps its id if its table is gone or its keys have another type.
    """

    def __init__(self, tables: Callable[[], Iterable[api.Table]]) -> None:
        """Store the function that reads the tables."""
        self._read = tables
        self._tables: dict[str, api.Table] | None = None

    def __call__(self, table: str, tablet: str) -> str:
        """Return the keys of a tablet."""
        if self._tables is None:
            try:
                self._tables = {table.name: table for table in self._read()}
            except NeveError:
                self._tables = {}  # Show the listing without keys rather than fail.
        listed = self._tables.get(table)
        return tablet if listed is None else keys_of(listed, tablet)


def keys_of(table: api.Table, tablet: str) -> str:
    """Return the keys of a tablet: a range such as `to [100]`, or a partition such as `day=1`."""
    from common.model.key_values import key_type_of, value_to_json
    from common.model.keys import decode_key, format_key
    from common.model.tablet import PLUS_INFINITY, TabletId

    columns = table.partition_by or table.key
    types = {column.name: column.type for column in table.schema}
    if table.lake is not None and table.lake.partition_types:
        types = dict(zip(columns, table.lake.partition_types, strict=True))
    try:
        end = TabletId.parse(table.id, tablet).end
        if not columns:
            return ALL_KEYS if end == PLUS_INFINITY else tablet
        kinds = [key_type_of(types[name]) for name in columns]
        if not table.partition_by:
            return range_text(None, format_key(end, kinds))
        values = zip(columns, decode_key(end, kinds), kinds, strict=True)
        return "/".join(
            f"{name}={'null' if value is None else value_to_json(value, kind)}"
            for name, value, kind in values
        )
    except (KeyError, RequestError, ValueError):
        return tablet


def range_text(start: str | None, end: str | None, partition: str | None = None) -> str:
    """Return a range of keys as text.

    Args:
        start: The key before the first one; None if there is no bound or it is unknown.
        end: The last key; None if there is no bound.
        partition: Partition values, which replace the keys in a partitioned table.
    """
    if partition is not None:
        return partition
    first = [] if start is None else [f"after {start}"]
    last = [] if end is None else [f"to {end}"]
    return " ".join(first + last) or ALL_KEYS


# ------------------------------------------------------------------------------------------- Render


RIGHT = "right"
WHOLE = "whole"
"""Column style for ids and times that people copy: left-aligned and never folded."""


_ID = re.compile(r"(?<![\w/.-])((?:att|job|op|req)-[0-9a-f]{8})([0-9a-f]{8,12})(?![\w/-]|\.\w)")
"""Id of an attempt, a job, an operation or a request; not as a part of a path."""


def grid(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Any]], *, whole_ids: bool = False
) -> RenderableType:
    """Return a plain table, or the word `none` if there are no rows.

    Args:
        columns: Headings with their style: `RIGHT` (numbers, never folded), `WHOLE`, or
            left-aligned.
        rows: Cells; None becomes a dash.
        whole_ids: Whether to print whole ids, instead of prefixes that every verb accepts.
    """
    cells = [tuple("-" if cell is None else str(cell) for cell in row) for row in rows]
    if not cells:
        return Text("none")
    return RowListing(tuple(columns), cells if whole_ids else _with_short_ids(cells))


def _with_short_ids(rows: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Shorten ids to prefixes that differ from each other."""
    ids = {(match[1], match[2]) for row in rows for cell in row for match in _ID.finditer(cell)}
    more = 0
    while len({(first, rest[:more]) for first, rest in ids}) < len(ids):
        more += 1
    return [
        tuple(_ID.sub(lambda match: match[1] + match[2][:more], cell) for cell in row)
        for row in rows
    ]


FOLDED_MIN = 10
"""Width to which a folded column may shrink before a listing becomes pairs."""
LAST_FOLDED_MIN = 20
"""The same for the last column, which gives the reason in many listings."""


class RowListing:
    """A table that keeps every column; on a narrow terminal, each row becomes lines of pairs."""

    def __init__(
        self, columns: tuple[tuple[str, str], ...], rows: Sequence[tuple[str, ...]]
    ) -> None:
        """Store the columns and the rows."""
        self._columns, self._rows = columns, rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the table if it fits the terminal, else the pairs of each row."""
        if self._width_min() <= options.max_width:
            yield self._table()
            return
        for number, row in enumerate(self._rows):
            if number:
                yield Text("")
            yield facts(zip((heading for heading, _ in self._columns), row, strict=True))

    def _width_min(self) -> int:
        """Return the width below which the table would be unreadable or lose a column."""
        width = 0
        for index, (heading, side) in enumerate(self._columns):
            widest = max(len(row[index]) for row in self._rows)
            last = index == len(self._columns) - 1
            folded = min(widest, LAST_FOLDED_MIN if last else FOLDED_MIN)
            width += max(len(heading), widest if side in {RIGHT, WHOLE} else folded) + 2 * (
                not last
            )
        return width

    def _table(self) -> Grid:
        table = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for heading, side in self._columns:
            table.add_column(
                heading,
                justify="right" if side == RIGHT else "left",
                overflow="fold",
                no_wrap=side in {RIGHT, WHOLE},
                min_width=len(heading),
            )
        for row in self._rows:
            table.add_row(*map(Text, row))
        return table


def reasons(
    left: Mapping[str, str], counts: Mapping[str, int] | None = None, *, verbose: bool
) -> RenderableType:
    """Return why files are left out: equal reasons once with a count, or every file.

    Args:
        left: Path → reason.
        counts: Reason → number of files, where `left` has only some of them.
        verbose: List the files.
    """
    if verbose:
        return grid([("NOT PLANNED", ""), ("WHY", "")], sorted(left.items()), whole_ids=True)
    paths: dict[str, list[str]] = {}
    for path, why in sorted(left.items()):
        paths.setdefault(why, []).append(path)
    counts = counts or {why: len(group) for why, group in paths.items()}
    return grid(
        [("NOT PLANNED", ""), ("FILES", RIGHT), ("WHY", "")],
        [
            (f"{', '.join(paths.get(why, [])[:1])}{', …' if count > 1 else ''}", count, why)
            for why, count in counts.items()
        ],
    )


def facts(pairs: Iterable[tuple[str, Any]]) -> RenderableType:
    """Return names and values, one pair per line; None becomes a dash."""
    table = Grid(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, Text("-" if value is None else str(value)))
    return table


def lines(*parts: RenderableType | str) -> RenderableType:
    """Stack renderables vertically."""
    return Lines(*(Text(part) if isinstance(part, str) else part for part in parts))


def render_tables(tables: Sequence[api.Table]) -> RenderableType:
    """Render a list of tables; with the format of their logs if one is a lake table."""
    has_lake = any(table.lake is not None for table in tables)
    return grid(
        [
            ("NAME", ""),
            ("STATE", ""),
            *([("FORMAT", "")] if has_lake else []),
            ("KEY", ""),
            ("COLUMNS", RIGHT),
            ("LOCATION", ""),
        ],
        [
            (
                table.name,
                table.state_text,
                *([table.lake.text if table.lake else "neve"] if has_lake else []),
                _key(table),
                table.columns or len(table.schema),
                table.location,
            )
            for table in tables
        ],
    )


def _key(table: api.Table) -> str | None:
    return ", ".join(table.key) or None


def render_table(table: api.Table) -> RenderableType:
    """Render a table with all its details."""
    settings = [
        (name, _setting(name, value), table.without_effect.get(name, ""))
        for name, value in table.settings.items()
    ]
    return lines(
        facts(
            [
                ("name", table.name),
                ("state", table.state_text),
                ("location", table.location),
                *_lake_facts(table),
                *_published_facts(table),
                ("key", _key(table)),
                ("version", table.version_column),
                ("tombstone", table.tombstone_column),
                ("time", table.time_column),
                ("partitions", ", ".join(table.partition_by) or None),
                *_totals(table),
                *(
                    ("quarantined", f"tablet {keys_of(table, tablet)} (id {tablet}): {why}")
                    for tablet, why in table.unreadable.items()
                ),
            ]
        ),
        "",
        grid(
            [("COLUMN", ""), ("TYPE", ""), ("NULLS", "")],
            [
                (column.name, column.type, "yes" if column.nullable else "no")
                for column in table.schema
            ],
        ),
        "",
        grid(
            [(f"SETTING (version {table.settings_version})", ""), ("VALUE", ""), ("", "")], settings
        ),
    )


def _lake_facts(table: api.Table) -> list[tuple[str, str]]:
    if table.lake is None:
        return []
    problem = [("not followed", table.lake.problem)] if table.lake.problem else []
    return [("format", table.lake.text), *problem]


def _published_facts(table: api.Table) -> list[tuple[str, str]]:
    published = table.published
    if published is None:
        return []
    text = published.text
    if published.as_of_s is not None:
        text += f", as of {time_text(published.as_of_s)} UTC"
    reasons = [("not published", published.problem), ("published later", published.lag)]
    if published.metadata:
        reasons.append(("metadata", published.metadata))
    return [("published", text), *(fact for fact in reasons if fact[1])]


def render_attached(attached: api.Attached) -> RenderableType:
    """Render an attached table, or what would be attached."""
    rows = format_count(attached.rows, "row")
    deleted = f", {attached.deleted_rows:,} of them deleted" if attached.deleted_rows else ""
    files = format_count(attached.files, "file")
    size = format_bytes(attached.size_bytes)
    found = [
        ("table", f"{attached.table} ({attached.format}, {attached.uri})"),
        ("version", str(attached.version)),
        ("partitions", ", ".join(attached.partition_by) or None),
        ("tablets", _count(attached.tablets)),
        ("files", f"{files} of {size}, {attached.files_with_deletes:,} with deleted rows"),
        ("rows", f"{rows}{deleted}"),
    ]
    if attached.refusal:
        return lines(facts(found), "", f"refused: {attached.refusal}")
    if not attached.dry_run:
        sentence = f"attached {attached.table}; the service reads its log and plans it"
        return lines(facts(found), "", sentence)
    planned = f"{format_count(attached.jobs, 'job')} would be planned: "
    planned += f"{format_count(attached.planned_files, 'file')} of "
    planned += f"{format_bytes(attached.planned_bytes)}"
    reasons = [f"  {reason}" for reason in attached.reasons]
    more = attached.jobs - len(reasons)
    rest = [f"  and {more:,} more"] if more > 0 else []
    note = "nothing is attached: this was a dry run"
    return lines(facts(found), "", attached.planner, planned, *reasons, *rest, note)


def render_changes(before: api.Table, after: api.Table) -> RenderableType:
    """Render the changes of a table's settings and columns, as a user writes them."""
    from neve.setting_values import setting_text

    old = {column.name: column.type for column in before.schema}
    changed = [
        (name, f"{setting_text(name, before.settings.get(name))} → {setting_text(name, value)}")
        for name, value in after.settings.items()
        if before.settings.get(name) != value
    ]
    changed += [
        (f"column {column.name}", f"{old.get(column.name, 'new')} → {column.type}")
        for column in after.schema
        if old.get(column.name) != column.type
    ]
    return facts(changed) if changed else lines("nothing has changed")


def render_files(files: Sequence[api.File], table: str, keys: TabletKeys) -> RenderableType:
    """Render a list of files of a table."""
    return grid(
        [
            ("TABLET", ""),
            ("PATH", ""),
            ("SIZE", RIGHT),
            ("LIVE", RIGHT),
            ("ROWS", RIGHT),
            ("FIRST KEY", ""),
            ("LAST KEY", ""),
        ],
        [
            (
                shortened(keys(table, file.tablet)),
                file.path,
                format_bytes(file.size_bytes),
                None if file.live_bytes is None else format_bytes(file.live_bytes),
                _count(file.rows),
                None if file.key_min is None else shortened(file.key_min),
                None if file.key_max is None else shortened(file.key_max),
            )
            for file in files
        ],
    )


def render_tablets(tablets: Sequence[api.Tablet]) -> RenderableType:
    """Render a list of tablets."""
    return grid(
        [
            ("KEYS", ""),
            ("FILES", RIGHT),
            ("SIZE", RIGHT),
            ("ROWS", RIGHT),
            ("RUNNING", RIGHT),
            ("COMPACTIONS", RIGHT),
            ("STATE", ""),
            ("ID", ""),
        ],
        [
            (
                _tablet_range(tablet),
                tablet.files,
                format_bytes(tablet.size_bytes),
                _count(tablet.rows),
                tablet.running,
                tablet.compactions,
                _tablet_state(tablet),
                tablet.tablet,
            )
            for tablet in tablets
        ],
    )


def _tablet_range(tablet: api.Tablet) -> str:
    if tablet.start is None and tablet.end == "+inf":
        return ALL_KEYS
    start = None if tablet.start is None else shortened(tablet.start)
    end = None if tablet.end is None else shortened(tablet.end)
    return range_text(start, end, tablet.partition)


def drop_sentence(dropped: api.Dropped) -> str:
    """Return the result of a drop as a sentence."""
    if dropped.name_free_at_s is None:
        return f"dropped {dropped.table}"
    when = datetime.fromtimestamp(dropped.name_free_at_s, UTC).strftime("%Y-%m-%d %H:%M")
    files = format_count(dropped.files_left, "file is", "files are")
    return f"dropped {dropped.table}; its name is free when {files} deleted, about {when} UTC"


def detach_sentence(dropped: api.Dropped) -> str:
    """Return the result of a detach as a sentence."""
    return drop_sentence(dropped).replace("dropped", "detached", 1)


def buffered_sentence(answer: api.Buffered) -> str:
    """Return the result of a call that buffered rows."""
    rows = format_count(answer.rows, "row")
    if answer.repeated:
        return f"{rows} were buffered before under this call id; nothing was buffered now"
    return f"buffered {rows}, {answer.durability} (call {answer.call})"


def flushed_sentence(flushed: api.FlushedRows) -> str:
    """Return the result of a flush."""
    if not flushed.rows:
        where = flushed.table if flushed.tablet_rows is None else f"this tablet of {flushed.table}"
        return f"no rows of {where} are buffered"
    files = format_count(flushed.files, "file")
    sentence = f"flushed {format_count(flushed.rows, 'row')} of {flushed.table} into {files}"
    if flushed.tablet_rows is None:
        return sentence
    return f"{sentence}; {flushed.tablet_rows:,} of the rows were buffered in the tablet"


def add_sentence(added: api.Added) -> str:
    """Return the result of an add as a sentence."""
    done = f"{format_count(added.rows, 'row')} ({format_bytes(added.size_bytes)})"
    if added.repeated:
        return f"call {added.call} was accepted before, with {done}: nothing was added now"
    replaced = f"; replaced {format_count(added.replaced, 'file')}" if added.replaced else ""
    return (
        f"added {done} in {format_count(added.file_count, 'file')} "
        f"to {format_count(len(added.tablets), 'tablet')}{replaced}"
    )


def call_sentence(call: api.Call) -> str:
    """Return the outcome of a call as a sentence."""
    if call.state == "too-old":
        return f"call {call.call} is too old: its outcome is no longer stored"
    if call.state != "accepted":
        return f"call {call.call} has not been accepted so far: it is safe to repeat"
    when = time_text(call.at_s or 0.0)
    if call.request is not None:
        return f"call {call.call} was accepted at {when}, as request {call.request}"
    where = f" to {format_count(len(call.tablets), 'tablet')}" if call.tablets else ""
    size, files = format_bytes(call.size_bytes or 0), format_count(call.file_count or 0, "file")
    return (
        f"call {call.call} was accepted at {when}: {call.kind} of "
        f"{format_count(call.rows or 0, 'row')} "
        f"({size}) in {files}{where}"
    )


def time_text(at_s: float) -> str:
    """Return a time in UTC, to the second."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def shortened(text: str, most: int = 40) -> str:
    """Return a long name with its middle left out."""
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def _tablet_state(tablet: api.Tablet) -> str:
    if tablet.operation:
        return tablet.operation
    if tablet.selected:
        return "selected"
    if tablet.waiting:
        return "request waiting"
    return (
        f"{tablet.analysis}, {format_count(tablet.failures, 'failure')}"
        if tablet.failures
        else tablet.analysis
    )


def _setting(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name.endswith("_bytes"):
        return format_bytes(value)
    if name.endswith("_s"):
        return format_duration(value)
    return str(value)


def _count(number: int | None) -> str | None:
    return None if number is None else f"{number:,}"


def _totals(table: api.Table) -> list[tuple[str, str | None]]:
    if table.size_bytes is None:
        return []
    return [
        ("tablets", _count(table.tablets)),
        ("files", _count(table.files)),
        ("rows", _count(table.rows)),
        ("size", format_bytes(table.size_bytes)),
    ]


def queue_place(job: api.PlannedJob) -> str:
    """Return the place of a job in its queue, or why it has none."""
    if job.paused:
        return "paused"
    return "waits" if job.predecessors else f"{job.place}"


QUARANTINES_SHOWN = 10


def quarantine_texts(status: api.Status) -> list[str]:
    """Return which tablets are quarantined and why, a sentence each; of many, of some."""
    sentences = [
        f"table {quarantine.table}, tablet {quarantine.tablet}: {quarantine.reason};"
        f" `{quarantine.lift_command}` retries it"
        for quarantine in status.quarantines[:QUARANTINES_SHOWN]
    ]
    more = status.quarantined - len(sentences)
    return [
        *sentences,
        *(
            [f"{format_count(more, 'more tablet is', 'more tablets are')} quarantined"]
            if more > 0
            else []
        ),
    ]
