"""The storage of one table stands still: its calls are told so, those of others go on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.table import Table
from common.model.tablet import Tablet
from common.parquet.file_inspection import FileFacts
from common.parquet.service_files import LocationOwner
from common.storage_threads import StorageThreads
from neve.client import Client
from neve.client.errors import NeveError, UnavailableError
from neve.gateway import services
from neve.gateway.table_files import StoredFiles, TabletReader
from tests.support.gateway import TOKEN, Gateway, Storage, serving
from tests.support.patience import PATIENCE_S

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
DEADLINE_S = 1.0
SPLITS = ["10"]


class HangingFiles(StoredFiles):
    """Files of a table `held` stand still at one step, until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()
        self.at = ""
        self.hanging = 0

    def step(self, table: Table, name: str) -> None:
        if table.name == "held" and name == self.at:
            self.hanging += 1
            assert self.release.wait(PATIENCE_S)

    def owner(self, table: Table) -> LocationOwner | None:
        self.step(table, "owner")
        return super().owner(table)

    def inspect(self, table: Table, paths: Sequence[str]) -> list[Any]:
        self.step(table, "inspect")
        return super().inspect(table, paths)

    def write(self, table: Table, path: str, rows: pa.Table) -> FileFacts:
        self.step(table, "write")
        return super().write(table, path, rows)

    def reader(
        self, table: Table, now_s: float, columns: Sequence[str], **more: Any
    ) -> TabletReader:
        return HangingReader(super().reader(table, now_s, columns, **more), self, table)


@dataclass
class HangingReader:
    """Reads; its second tablet is where it may stand still."""

    reader: TabletReader
    files: HangingFiles
    table: Table
    tablets: int = 0
    read_bytes: int = 0

    def read(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[pa.Table]:
        self.tablets += 1
        for rows in self.reader.read(tablet, start, end):
            if self.tablets == 2:
                self.files.step(self.table, "read")
            yield rows

    def counts(self, tablet: Tablet, start: bytes | None, end: bytes | None) -> Iterator[int]:
        self.files.step(self.table, "read")
        yield from self.reader.counts(tablet, start, end)


@dataclass
class Site:
    gateway: Gateway
    client: Client
    files: HangingFiles
    folder: Path
    added: int = field(default=0)

    def hang_at(self, step: str) -> None:
        self.files.at = step

    def calls(self, table: str) -> dict[str, Callable[[], object]]:
        """Return all that reads or writes rows of a table; nothing of it is repeated."""
        self.added += 1
        name = f"{self.added}.parquet"
        pq.write_table(rows(1), self.folder / table / name)
        client = Client(self.gateway.url, token=TOKEN, timeout_s=PATIENCE_S, retry_s=0.0)
        return {
            "add": lambda: client.add_files(table, [name]),
            "append": lambda: client.append(table, rows(2, 20)),
            "scan": lambda: client.scan(table).num_rows,
            "count": lambda: client.count(table),
        }

    def others_go_on(self) -> None:
        for call in self.calls("quick").values():
            call()

    def until_answered(self) -> None:
        """Release what hangs, and wait until the storage is asked again."""
        self.files.at = ""
        self.files.release.set()
        waiting = threading.Event()
        for _ in range(int(PATIENCE_S * 100)):
            try:
                self.client.scan("held")
            except UnavailableError:
                waiting.wait(0.01)
            else:
                return
        raise AssertionError("the storage is not asked again")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [1] * len(ids)}, schema=SCHEMA)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(services, "LOOK_MAX_S", DEADLINE_S)
    files = HangingFiles()
    threads = StorageThreads(threads=2, deadline_s=DEADLINE_S, slow_s=0.05)
    try:
        with serving(storage=Storage(files, threads)) as gateway:
            client = Client(gateway.url, token=TOKEN, timeout_s=PATIENCE_S, retry_s=0.0)
            with client:
                for name in ("held", "quick"):
                    (tmp_path / name).mkdir()
                    client.create_table(
                        name,
                        str(tmp_path / name),
                        schema=SCHEMA,
                        key=["id"],
                        version_column="v",
                        splits=SPLITS,
                    )
                yield Site(gateway, client, files, tmp_path)
    finally:
        files.release.set()  # Not before the gateway has ended.


def test_calls_are_refused_while_those_of_other_tables_go_on(site: Site) -> None:
    site.hang_at("owner")
    with ThreadPoolExecutor(12) as callers:
        held = [callers.submit(call) for _ in range(3) for call in site.calls("held").values()]
        site.others_go_on()
        for each in held:
            with pytest.raises(
                UnavailableError, match=r"/held has (not answered|answered nothing)"
            ):
                each.result(PATIENCE_S)
    assert site.files.hanging <= 2
    site.others_go_on()
    for call in site.calls("held").values():
        with pytest.raises(UnavailableError, match="has not answered an operation"):
            call()
    assert site.files.hanging <= 2
    site.until_answered()
    for call in site.calls("held").values():
        call()


@pytest.mark.parametrize(
    ("step", "name"),
    [("inspect", "add"), ("write", "append"), ("read", "count")],
)
def test_a_step_that_does_not_end_is_refused_and_leaves_nothing_behind(
    site: Site, step: str, name: str
) -> None:
    site.client.append("held", rows(3, 30))
    site.hang_at(step)
    with pytest.raises(UnavailableError, match=r"/held has not answered for"):
        site.calls("held")[name]()
    site.others_go_on()
    site.until_answered()
    assert site.client.scan("held").column("id").to_pylist() == [3, 30]


def test_the_answer_is_503_and_says_which_storage(site: Site) -> None:
    site.hang_at("owner")
    answer = httpx.get(
        f"{site.gateway.url}/v1/tables/held/count",
        headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=PATIENCE_S,
    )
    assert answer.status_code == 503
    assert f"file://{site.folder}/held" in answer.json()["detail"]


def test_a_scan_that_stands_still_in_the_middle_ends_with_the_reason(site: Site) -> None:
    site.client.append("held", rows(3, 30))
    site.hang_at("read")
    with pytest.raises(NeveError, match="has not answered for"):
        site.client.scan("held")
    assert site.gateway.services.scans.open == 0
    site.others_go_on()
    site.until_answered()
    assert site.client.scan("held").column("id").to_pylist() == [3, 30]


def test_a_gateway_ends_although_a_storage_stands_still(site: Site) -> None:
    """Nobody releases it: the fixture's server has to end before that."""
    site.hang_at("owner")
    with pytest.raises(UnavailableError):
        site.client.count("held")
