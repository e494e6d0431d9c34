"""The story of the demo: start a stack, feed it, watch it come to rest, prove it.

Three quarters of the feed arrive while compaction is paused, which is what a table
looks like that nobody tends. Then compaction starts, and the last quarter arrives
while it works.
"""

import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from common.clock import SystemClock
from common.settings import CompactorSettings, CoordinatorSettings, Settings
from neve.client import Client
from neve.demo.feed import KEY, SCHEMA, TOMBSTONE, VERSION, FeedFile, month_splits, write_feed
from neve.demo.proof import Proof, prove
from neve.demo.show import Measured, Watch, show_before_after, show_proof
from neve.local import LocalStack, StackOptions

TABLE = "flights"
HISTORY_MAX = 10_000
LATE_SHARE = 0.25
BATCH_FILES = 12
LATE_PAUSE_S = 1.0
REST_MAX_S = 200.0
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
"""Flights are never reported late, so tombstones need not wait for late writers."""


class Feeder:
    """Adds files of the feed to the table, in order of arrival."""

    def __init__(self, client: Client, location: Path) -> None:
        """Add to the demo's table."""
        self._client = client
        self._location = location
        self.added_bytes = 0
        self.error: BaseException | None = None

    def add(self, files: Sequence[FeedFile]) -> None:
        """Copy files below the table's location and add them, a batch per call."""
        for first in range(0, len(files), BATCH_FILES):
            batch = files[first : first + BATCH_FILES]
            for file in batch:
                shutil.copyfile(file.path, self._location / file.path.name)
                self.added_bytes += file.path.stat().st_size
            self._client.add_files(TABLE, [file.path.name for file in batch])

    def add_slowly(self, files: Sequence[FeedFile]) -> threading.Thread:
        """Begin to add files in the background, with pauses, as a feed would."""

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


def main(*, keep: bool = False, compactors: int = 2, console: Console | None = None) -> int:
    """Run the demo and return its exit code: 0 only if the proof holds.

    Args:
        keep: Leave the stack and its table for the user to look at.
        compactors: How many compactors the stack has.
        console: Where the story is told.
    """
    console = console or Console()
    folder = Path(tempfile.mkdtemp(prefix="neve-demo-"))
    began_s = CLOCK.now_s()
    console.print("[bold]Névé demo[/]: a year of flights as several hundred small files\n")
    try:
        stack = _start(compactors, console)
        try:
            proof = _tell(stack, folder, console)
        finally:
            if not keep:
                stack.stop(delete_data=True)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    show_proof(console, proof, CLOCK.now_s() - began_s)
    if keep:
        console.print(f"\nThe stack is yours: table {TABLE!r} below {folder}; `neve down` ends it.")
    return 0 if proof.holds else 1


def _start(compactors: int, console: Console) -> LocalStack:
    coordinator = replace(CoordinatorSettings(), garbage_grace_s=5.0, collect_interval_s=2.0)
    compactor = replace(CompactorSettings(), slots=2)
    settings = Settings(coordinator=coordinator, compactor=compactor)
    options = StackOptions(compactors=compactors, settings=settings)
    with console.status("starting Redis, Ray and Spark …") as status:
        stack = LocalStack.start(
            name="demo",
            options=options,
            on_progress=lambda text: status.update(f"{text} …"),
        )
    console.print(f"[green]✓[/] stack runs: gateway {stack.gateway_url}")
    return stack


def _tell(stack: LocalStack, folder: Path, console: Console) -> Proof:
    location = folder / TABLE
    location.mkdir()
    with console.status("writing the feed …"):
        feed = write_feed(folder / "feed")
    console.print(f"[green]✓[/] feed written: {len(feed)} files, {_rows(feed):,} rows")
    with Client(stack.gateway_url, token=stack.token) as client:
        feeder = Feeder(client, location)
        before = _load(client, feeder, feed, location, console)
        _compact(client, feeder, feed, console)
        after = measure(client, feeder.added_bytes)
        show_before_after(console, before, after)
        with console.status("proving it against the raw feed …"):
            return prove([file.path for file in feed], client.scan(TABLE))


def _load(
    client: Client, feeder: Feeder, feed: list[FeedFile], location: Path, console: Console
) -> Measured:
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
    early = feed[: _early(feed)]
    with console.status(f"adding {len(early)} files while compaction is paused …"):
        feeder.add(early)
    before = measure(client, feeder.added_bytes)
    console.print(f"[green]✓[/] {len(early)} files added, compaction was paused")
    return before


def _compact(client: Client, feeder: Feeder, feed: list[FeedFile], console: Console) -> None:
    """Resume compaction, feed the rest meanwhile, and wait until every tablet is at rest."""
    client.resume(TABLE)
    thread = feeder.add_slowly(feed[_early(feed) :])
    with Watch(client, TABLE, console, total_files=len(feed)) as watch:
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


def measure(client: Client, added_bytes: int) -> Measured:
    """Return what a reader of the table has to do now."""
    table = client.describe(TABLE)
    scan_s = []
    rows = 0
    for _ in range(SCANS):
        began_s = CLOCK.now_s()
        rows = client.scan(TABLE).num_rows
        scan_s.append(CLOCK.now_s() - began_s)
    done = client.history(TABLE, count=HISTORY_MAX)
    rewritten = sum(each.bytes_out for each in done if each.end == "committed")
    return Measured(
        files=table.files or 0,
        size_bytes=table.size_bytes or 0,
        stored_rows=table.rows or 0,
        visible_rows=rows,
        scan_s=min(scan_s),
        added_bytes=added_bytes,
        rewritten_bytes=rewritten,
    )


def _early(feed: Sequence[FeedFile]) -> int:
    return int(len(feed) * (1 - LATE_SHARE))


def _rows(feed: Sequence[FeedFile]) -> int:
    return sum(file.rows for file in feed)
