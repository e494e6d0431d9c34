"""A gateway that stands still between what it sees and what it writes: no row is lost by it.

A listing sweep takes a file that nobody has added yet for waste, and the collector deletes
it a grace later. Whoever was about to add it must not acknowledge what is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.metadata.changes import (
    AddFiles,
    Applied,
    Change,
    DiscardFiles,
    ForgetGarbage,
    Outcome,
    StampGarbage,
)
from common.model.tablet import TabletId
from common.settings import Settings
from neve.client import Client
from neve.client.errors import CallerError, RefusedError
from tests.support.gateway import Gateway, serving
from tests.support.memory_store import MemoryStore
from tests.support.predictable import ManualClock

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
GRACE_S = Settings().coordinator.garbage_grace_s


class Stalls(MemoryStore):
    """Stands still before some adds, and lets a sweep and a collector do their work."""

    def __init__(self) -> None:
        self.clock = ManualClock(time.time())
        super().__init__(self.clock)
        self.folder = Path()
        self.stalls: list[float] = []
        self.swept: list[str] = []
        self.deletes = True

    async def apply(self, change: Change) -> Outcome:
        if isinstance(change, AddFiles) and self.stalls:
            self.clock.advance(self.stalls.pop(0))
            for end, files in change.files.items():
                for file in files:
                    await self._sweep(TabletId(change.table, end), file.path)
        return await super().apply(change)

    async def _sweep(self, tablet: TabletId, path: str) -> None:
        changes: list[Change] = [
            DiscardFiles(tablet=tablet, files={path: None}),
            StampGarbage(table=tablet.table, paths=(path,)),
            ForgetGarbage(table=tablet.table, paths=(path,)),
        ]
        for change in changes if self.deletes else changes[:2]:
            assert isinstance(await super().apply(change), Applied)
        self.swept.append(path)
        if self.deletes:
            (self.folder / path).unlink()


@pytest.fixture
def store() -> Stalls:
    return Stalls()


@pytest.fixture
def gateway(store: Stalls) -> Iterator[Gateway]:
    with serving(store) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway, store: Stalls, tmp_path: Path) -> Iterator[Client]:
    store.folder = tmp_path
    with gateway.client() as made:
        made.create_table(
            "events",
            str(tmp_path),
            schema=SCHEMA,
            key=["id"],
            version_column="v",
            splits=["100"],
        )
        yield made


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [1] * len(ids)}, schema=SCHEMA)


def held(client: Client, folder: Path) -> list[int]:
    """Return the ids of a scan, which reads every file that the table has."""
    assert all((folder / file.path).exists() for file in client.files("events"))
    return client.scan("events").column("id").to_pylist()


def test_an_append_that_stood_still_for_two_graces_writes_its_rows_again(
    client: Client, store: Stalls, tmp_path: Path
) -> None:
    store.stalls = [2 * GRACE_S]
    added = client.append("events", rows(1, 150))
    assert len(store.swept) == 2
    assert not {*store.swept} & {file.path for file in added.files}
    assert held(client, tmp_path) == [1, 150]


def test_an_append_whose_files_wait_for_deletion_writes_them_anew(
    client: Client, store: Stalls, tmp_path: Path
) -> None:
    """A sweep whose storage has a clock of its own takes a fresh file for an old one."""
    store.stalls, store.deletes = [1.0], False
    added = client.append("events", rows(1, 150))
    assert not {*store.swept} & {file.path for file in added.files}
    assert held(client, tmp_path) == [1, 150]


def test_an_append_that_always_stands_still_is_refused(
    client: Client, store: Stalls, tmp_path: Path
) -> None:
    store.stalls = [2 * GRACE_S] * 9
    with pytest.raises(RefusedError, match="takes longer than files without metadata are kept"):
        client.append("events", rows(1, 150))
    store.stalls = []
    assert held(client, tmp_path) == []


def test_an_add_that_stood_still_does_not_bring_back_what_was_deleted(
    client: Client, store: Stalls, tmp_path: Path
) -> None:
    pq.write_table(rows(1), tmp_path / "a.parquet")
    store.stalls = [2 * GRACE_S]
    with pytest.raises(CallerError, match=r"a.parquet does not exist"):
        client.add_files("events", ["a.parquet"])
    assert held(client, tmp_path) == []


def test_a_file_that_was_seen_long_ago_is_looked_at_again(tmp_path: Path) -> None:
    """Slow storage: all is well as long as nothing is gone; then it is done anew."""

    class Scripted(MemoryStore):
        """Passes time at each reading of the garbage: before the footers are read."""

        def __init__(self) -> None:
            self.clock = ManualClock(time.time())
            super().__init__(self.clock)
            self.steps: list[Callable[[], None]] = []
            self.adds: list[AddFiles] = []

        async def garbage_among(self, table: str, paths: object) -> list[str]:
            found = await super().garbage_among(table, paths)  # type: ignore[arg-type]  # as given
            if self.steps:
                self.steps.pop(0)()
                self.clock.advance(0.6 * GRACE_S)
            return [*found]

        async def apply(self, change: Change) -> Outcome:
            if isinstance(change, AddFiles):
                self.adds.append(change)
            return await super().apply(change)

    store = Scripted()
    with serving(store, clock=store.clock) as gateway, gateway.client() as client:
        client.create_table("events", str(tmp_path), schema=SCHEMA)
        for name in ("a", "b"):
            pq.write_table(rows(1), tmp_path / f"{name}.parquet")
        begun_s = store.clock.now_s()
        store.steps = [lambda: None]
        client.add_files("events", ["a.parquet"])
        (change,) = store.adds
        assert change.looked_s == pytest.approx(begun_s + 0.6 * GRACE_S), "the second look counts"

        gone = lambda: (tmp_path / "b.parquet").unlink()  # noqa: E731  # one use
        store.steps = [lambda: None, gone]
        with pytest.raises(CallerError, match=r"b.parquet does not exist"):
            client.add_files("events", ["b.parquet"])
        assert len(store.adds) == 1
