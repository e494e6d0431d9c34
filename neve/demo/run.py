"""The steps of the demo: start a stack, feed it, request compactions, verify the result."""

import os
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

from common.clock import SystemClock
from common.settings import CompactorSettings, CoordinatorSettings, Settings
from common.units import format_count
from neve.client import Client
from neve.client.requests import Request
from neve.demo.feed import (
    KEY,
    SCHEMA,
    TOMBSTONE,
    VERSION,
    Feeder,
    FeedFile,
    month_splits,
    write_feed,
)
from neve.demo.proof import (
    ProgressDisplay,
    Proof,
    ReadCost,
    prove,
    show_before_after,
    show_proof,
)
from neve.local import LocalStack, StackOptions
from neve.local.stack import stop_stack
from neve.local.stack_folder import StackFolder

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
    place = expected.schema.get_field_index("distance")
    changed = expected.set_column(place, expected.schema.field(place), distance)
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
CLOCK = SystemClock()
PAUSE = threading.Event()
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
        f"{format_count(_row_count(feed), 'row')}"
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


def _row_count(feed: Sequence[FeedFile]) -> int:
    return sum(file.rows for file in feed)
