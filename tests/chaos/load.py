"""Writers and readers: rows go in without end, scans are held against the journal."""

from __future__ import annotations

import errno
import itertools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from common.runtime import call_id
from neve.client import Client
from neve.client.errors import UnavailableError
from tests.chaos.batches import Kind, by_tablet, drawn, rows_of
from tests.chaos.journal import Journal
from tests.chaos.story import Story
from tests.support.patience import SERVICE_S

T = TypeVar("T")

PAUSE_S = 0.2
SCAN_PAUSE_S = 0.1
CALL_MAX_S = 8.0
"""A caller hangs up before anything frozen goes on."""
APPEND_SHARE = 0.4


def connect(url: str, token: str) -> Client:
    """Return a client that hangs up soon."""
    return Client(url, token=token, timeout_s=CALL_MAX_S)


def answered(story: Story, what: str, ask: Callable[[], T]) -> T:
    """Ask until somebody answers; an outcome that is unknown is asked for again."""
    end_s = time.monotonic() + SERVICE_S
    while True:
        try:
            return ask()
        except UnavailableError as error:
            story.count(f"{what}: asked again")
            if time.monotonic() > end_s:
                raise
            story.tell("not answered", asked=what, error=error)
            time.sleep(PAUSE_S)


class Writer:
    """Gives one table a batch after the other; each is in the journal before and after."""

    def __init__(
        self, story: Story, journal: Journal, client: Client, kind: Kind, folder: Path
    ) -> None:
        self._story = story
        self._journal = journal
        self._client = client
        self._kind = kind
        self._folder = folder
        self._numbers = itertools.count(1)

    def run(self, seed: int) -> None:
        """Write until the load must end; what was begun is finished."""
        dice = random.Random(f"{seed} writes {self._kind.name}")
        while not self._story.over.is_set():
            self.give(dice)
            self._story.over.wait(dice.uniform(0.2, 1.8) * self._kind.pause_s)

    def give(self, dice: random.Random) -> None:
        """Give one batch, buffered or in files; repeat the call until it is answered."""
        kind, client, call = self._kind, self._client, call_id()
        batch = drawn(kind, next(self._numbers), dice)
        rows = rows_of(kind, batch)
        if dice.random() < kind.buffered:
            self._journal.intend(kind.name, batch, call)
            answered(self._story, "buffer", lambda: client.buffer_rows(kind.name, rows, call=call))
            self._story.count("buffered calls")
            self._story.count("rows buffered", rows.num_rows)
        elif dice.random() < APPEND_SHARE or not kind.adds:
            self._journal.intend(kind.name, batch, call)
            answered(self._story, "append", lambda: client.append(kind.name, rows, call=call))
            self._story.count("appends")
        else:
            paths = []
            for number, part in enumerate(by_tablet(kind, rows)):
                paths.append(f"in-{batch.number:05}-{number}.parquet")
                self._write(part, paths[-1])
            self._journal.intend(kind.name, batch, call)
            answered(self._story, "add", lambda: client.add_files(kind.name, paths, call=call))
            self._story.count("adds")
        self._journal.note(kind.name, "acknowledged", number=batch.number)
        self._story.count("rows", rows.num_rows)

    def _write(self, rows: pa.Table, path: str) -> None:
        """Write a file, again while the disk is full."""
        end_s = time.monotonic() + SERVICE_S
        while True:
            try:
                pq.write_table(rows, self._folder / path)
            except OSError as error:
                if error.errno != errno.ENOSPC or time.monotonic() > end_s:
                    raise
                self._story.count("files: written again")
                time.sleep(PAUSE_S)
            else:
                return


class Reader:
    """Scans all tables in turn, and holds every scan against the journal."""

    def __init__(
        self, story: Story, journal: Journal, client: Client, kinds: tuple[Kind, ...]
    ) -> None:
        self._story = story
        self._journal = journal
        self._client = client
        self._kinds = kinds

    def run(self) -> None:
        """Scan until the load must end."""
        for kind in itertools.cycle(self._kinds):
            if self._story.over.wait(SCAN_PAUSE_S):
                return
            self.scan(kind)

    def scan(self, kind: Kind) -> None:
        """Scan one table; a scan that breaks off proves nothing."""
        began = self._journal.moment()
        try:
            found = self._client.scan(kind.name)
        except UnavailableError as error:
            self._story.count("scans broken off")
            self._story.tell("scan broken off", table=kind.name, error=error)
            time.sleep(PAUSE_S)
            return
        problems = self._journal.check(kind.name, found, began)
        self._story.count("scans")
        self._story.count("rows scanned", found.num_rows)
        for problem in problems:
            self._story.fail(f"scan: {problem}")
