"""Loses a table again and again, and brings it back: every row of its must be there.

The verb that brings it back is broken off at a random point, by a caller who hangs up or by the
death of the gateway, and repeated. Its tables are apart from those of the writers.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from common.runtime import call_id
from neve.client import Client
from neve.client.errors import NeveError, UnavailableError
from tests.chaos.load import PAUSE_S, answered
from tests.chaos.story import Story
from tests.support.patience import SERVICE_S
from tests.support.stack import Service

VERB_MAX_S = 60.0
BROKEN_OFF_MAX = 3
"""Tries of a verb that are broken off."""
HANGS_UP_MAX_S = 1.5
GATEWAY_DIES_SHARE = 0.3
APPENDS_MAX, ROWS_MAX = 6, 300
BUFFERED_SHARE = 0.4
"""Share of the calls whose rows are buffered: drops and backups flush them."""
SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
SETTINGS = {"ratio": 2, "max_files": 4}


class Recoverer:
    """An operator who recovers tables, and does not wait for the end the first time."""

    def __init__(self, story: Story, client: Client, service: Service) -> None:
        self._story = story
        self._client = client
        self._service = service
        self._numbers = 0

    def run(self, seed: int) -> None:
        """Recover until the load must end; what was begun is finished."""
        dice, number = random.Random(f"{seed} recovers"), 0
        while not self._story.over.is_set():
            number += 1
            verb = dice.choice((self._rebuild, self._restore, self._import))
            verb(dice, f"lost-{number}")
            self._story.over.wait(dice.uniform(0.5, 3.0))

    def _rebuild(self, dice: random.Random, name: str) -> None:
        rows = self._fill(dice, name)
        self._drop(name)
        uri = self._folder(name).as_uri()
        self._insist(dice, name, "rebuild", lambda client: client.rebuild(uri, name))
        self._check(name, "rebuild", rows)

    def _restore(self, dice: random.Random, name: str) -> None:
        rows = self._fill(dice, name)
        archive, client = self._service.folder.parent / f"{name}.backup", self._client
        # Nothing is replaced after the backup: its files would be gone before they are restored.
        self._answered("pause", lambda: client.pause(name))
        while answered(self._story, "plan", lambda: client.plan(name)).running:
            time.sleep(PAUSE_S)
        self._answered("backup", lambda: client.backup(archive, [name]))
        self._drop(name)
        self._insist(dice, name, "restore", lambda client: client.restore(archive))
        archive.unlink()
        self._check(name, "restore", rows)

    def _import(self, dice: random.Random, name: str) -> None:
        folder, rows = self._folder(name), list[int]()
        folder.mkdir()
        for number in range(dice.randint(1, APPENDS_MAX)):
            batch = self._rows(dice)
            self._answered("file", lambda b=batch, n=number: _write(b, folder / f"{n}.parquet"))
            rows += batch["n"].to_pylist()
        uri = folder.as_uri()
        self._insist(dice, name, "import", lambda client: client.import_table(uri, name))
        self._check(name, "import", rows)

    # --------------------------------------------------------------------------------------- Steps

    def _folder(self, name: str) -> Path:
        return self._service.folder / name

    def _rows(self, dice: random.Random) -> pa.Table:
        """Return rows that no other call of this gives."""
        count = dice.randint(1, ROWS_MAX)
        self._numbers += count
        return pa.table({"n": range(self._numbers - count, self._numbers)}, schema=SCHEMA)

    def _fill(self, dice: random.Random, name: str) -> list[int]:
        """Create a table and append to it; return its rows."""
        client, folder, rows = self._client, self._folder(name), list[int]()
        folder.mkdir()
        self._until_there(
            name,
            lambda: client.create_table(name, folder.as_uri(), schema=SCHEMA, settings=SETTINGS),
        )
        for _ in range(dice.randint(1, APPENDS_MAX)):
            batch, call = self._rows(dice), call_id()
            send = client.buffer_rows if dice.random() < BUFFERED_SHARE else client.append
            self._answered("append", lambda b=batch, c=call, s=send: s(name, b, call=c))
            rows += batch["n"].to_pylist()
            self._story.over.wait(dice.uniform(0.0, 1.0))
        return rows

    def _drop(self, name: str, *, delete_files: bool = False) -> None:
        """Drop a table and wait until its name is free."""
        end_s = time.monotonic() + SERVICE_S
        while self._is_there(name):
            with suppress(NeveError):
                self._client.drop(name, delete_files=delete_files)
            assert time.monotonic() < end_s, f"{name} does not go"
            time.sleep(PAUSE_S)

    def _is_there(self, name: str) -> bool:
        tables = answered(self._story, "tables", self._client.tables)
        return any(table.name == name for table in tables)

    def _insist(
        self, dice: random.Random, name: str, what: str, verb: Callable[[Client], object]
    ) -> None:
        """Break a verb off some times, then repeat it until the table is there."""
        for _ in range(dice.randint(0, BROKEN_OFF_MAX)):
            if self._break_off(dice, verb):
                break
            self._story.count("recoveries broken off")
        else:
            self._until_there(name, lambda: verb(self._other(VERB_MAX_S)))
        self._story.tell("recovered", by=what, table=name)

    def _break_off(self, dice: random.Random, verb: Callable[[Client], object]) -> bool:
        """Begin a verb and do not wait for it; return whether it had ended before."""
        dies, after_s = dice.random() < GATEWAY_DIES_SHARE, dice.uniform(0.0, HANGS_UP_MAX_S)
        ended: list[bool] = []

        def begin() -> None:
            with suppress(NeveError):
                verb(self._other(VERB_MAX_S if dies else max(after_s, 0.01)))
                ended.append(True)

        thread = self._story.thread("verb that is broken off", begin)
        if dies:
            thread.join(after_s)
            for process in self._service.titled("ray::GatewayActor"):
                with suppress(psutil.Error):
                    process.kill()
        thread.join(SERVICE_S)
        return bool(ended)

    def _other(self, timeout_s: float) -> Client:
        stack = self._service.stack
        return Client(stack.gateway_url, token=stack.token, timeout_s=timeout_s)

    def _until_there(self, name: str, make: Callable[[], object]) -> None:
        """Make a table; whether a try has made it whose answer was lost, the next one shows."""
        end_s, error = time.monotonic() + SERVICE_S, NeveError("it was not tried")
        while time.monotonic() < end_s:
            try:
                make()
            except NeveError as said:
                error = said
                self._story.tell("not made", table=name, error=said)
            else:
                return
            if not isinstance(error, UnavailableError) and self._lives(name):
                return
            time.sleep(PAUSE_S)
        raise error

    def _lives(self, name: str) -> bool:
        found = answered(self._story, "tables", self._client.tables)
        return any(each.name == name and each.state in ("live", "paused") for each in found)

    def _answered(self, what: str, ask: Callable[[], object]) -> None:
        """Ask until it is done, whatever is full or away meanwhile."""
        end_s = time.monotonic() + SERVICE_S
        while True:
            try:
                ask()
            except (UnavailableError, OSError) as error:
                self._story.count(f"{what}: asked again")
                if time.monotonic() > end_s:
                    raise
                self._story.tell("not answered", asked=what, error=error)
                time.sleep(PAUSE_S)
            else:
                return

    def _check(self, name: str, verb: str, rows: list[int]) -> None:
        """Hold the table against its rows, and drop it."""
        found = answered(self._story, "scan", lambda: self._client.scan(name))
        shown = sorted(found["n"].to_pylist())
        if shown != sorted(rows):
            missing, more = set(rows) - set(shown), len(shown) - len(set(shown))
            self._story.fail(
                f"{name} after {verb}: {len(shown)} of {len(rows)} rows,"
                f" {len(missing)} missing, {more} twice, {len(set(shown) - set(rows))} others"
            )
        self._story.count(f"recovered by {verb}")
        self._drop(name, delete_files=True)


def _write(rows: pa.Table, file: Path) -> None:
    pq.write_table(rows, file)
