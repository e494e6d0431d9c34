"""Imports over a real Redis: broken off and gone on with, by two at once, and for Spark to read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.metadata.redis import connect
from common.runtime import RandomIds, SystemClock
from common.settings import StoreSettings
from coordinator.storage.manifests import ManifestPublisher
from neve.api import ImportProgress
from neve.client import Client
from neve.client.errors import NotFoundError, RefusedError
from tests.support.gateway import Gateway, serving
from tests.support.redis_server import RedisServer, empty, executable, running
from tests.support.spark_session import local_session

FILES = 1020
PARTITIONS = 17
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(executable() is None, reason="no redis-server on this machine"),
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@pytest.fixture
def gateway(redis: RedisServer) -> Iterator[Gateway]:
    with served(redis) as gateway:
        gateway.ask(empty(redis))
        yield gateway


def served(redis: RedisServer) -> Any:
    return serving(connect(StoreSettings(url=redis.url, timeout_s=10.0)))


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory of many small files: one is written, the others are its copies."""
    folder = tmp_path_factory.mktemp("lake")
    for part in range(PARTITIONS):
        (folder / f"part={part}").mkdir()
    pq.write_table(pa.table({"id": [1, 2], "v": [1, 1]}), folder / "one.parquet")
    content = (folder / "one.parquet").read_bytes()
    (folder / "one.parquet").unlink()
    for number in range(FILES):
        path = folder / f"part={number % PARTITIONS}" / f"{number:05}.parquet"
        path.write_bytes(content)
    return folder


@pytest.fixture(autouse=True)
def unowned(lake: Path) -> Iterator[None]:
    """Let every test find the directory as nobody's."""
    yield
    for path in sorted((lake / "_neve").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    if (lake / "_neve").exists():
        (lake / "_neve").rmdir()


class LeftError(Exception):
    """The caller has gone."""


def test_an_import_that_is_broken_off_goes_on_elsewhere(
    gateway: Gateway, redis: RedisServer, lake: Path
) -> None:
    def leave(told: ImportProgress) -> None:
        if told.text == "adding files" and told.files_done < told.files:
            raise LeftError

    with gateway.client() as first, pytest.raises(LeftError):
        first.import_table(str(lake), "lake", progress=leave)
    with served(redis) as other, other.client() as second:
        half = second.describe("lake")
        assert half.filling is not None
        assert half.filling.files == FILES > half.filling.done >= 500
        (listed,) = second.tables()
        assert re.fullmatch(rf"filling \(import, [0-9]+ of {FILES} files\)", listed.state_text)
        refuse_all(second, lake)
        done = second.import_table(str(lake), "lake", readers_use_manifest=True)
        assert done.already >= 500
        assert (done.added + done.already, done.files, done.state) == (FILES, FILES, "live")
        totals = second.describe("lake")
        assert (totals.files, totals.rows, totals.tablets) == (FILES, 2 * FILES, PARTITIONS)
        assert second.count("lake") == 2 * FILES


def refuse_all(client: Client, lake: Path) -> None:
    """Require that a filling table is read, written, changed and rebuilt by nothing."""
    calls: list[Callable[[], object]] = [
        lambda: client.count("lake"),
        lambda: client.files("lake"),
        lambda: client.manifest("lake"),
        lambda: client.append("lake", pa.table({"id": [1], "v": [1]})),
        lambda: client.add_files("lake", ["part=0/00000.parquet"]),
        lambda: client.set("lake", {"ratio": 2.0}),
        lambda: client.pause("lake"),
        lambda: client.resume("lake"),
        lambda: client.compact("lake"),
        lambda: client.fsck("lake"),
        lambda: client.gc("lake", delete=True),
        lambda: client.rebuild(str(lake), "lake"),
        lambda: client.drop("lake", delete_files=True),
    ]
    for call in calls:
        with pytest.raises(RefusedError, match="is being filled"):
            call()
    with pytest.raises(NotFoundError, match="no table to back up"):
        client.backup(lake.parent / "archive")


def test_a_drop_ends_an_import_and_leaves_its_files(gateway: Gateway, lake: Path) -> None:
    def leave(told: ImportProgress) -> None:
        if told.text == "adding files" and told.files_done < told.files:
            raise LeftError

    with gateway.client() as client:
        with pytest.raises(LeftError):
            client.import_table(str(lake), "lake", progress=leave)
        client.drop("lake")
        assert client.tables() == []
        assert len(list(lake.rglob("*.parquet"))) == FILES
        done = client.import_table(str(lake), "lake")
        assert (done.added, done.state) == (FILES, "paused")


def test_two_at_once_add_every_file_once(gateway: Gateway, redis: RedisServer, lake: Path) -> None:
    def run(client: Client) -> bool:
        for _ in range(30):  # Each takes the table over from the other, and goes on with it.
            with suppress(RefusedError):
                return client.import_table(str(lake), "lake").files == FILES
        return False

    with (
        gateway.client() as first,
        served(redis) as other,
        other.client() as second,
        ThreadPoolExecutor(2) as pool,
    ):
        assert list(pool.map(run, (first, second))) == [True, True]
        assert first.describe("lake").rows == 2 * FILES
        assert len({file.path for file in first.files("lake")}) == FILES


@pytest.mark.slow
def test_spark_reads_a_table_by_its_manifest(gateway: Gateway, lake: Path) -> None:
    with gateway.client() as client:
        client.import_table(str(lake), "lake")
        client.append("lake", pa.table({"id": [9], "v": [9], "part": pa.array([40], pa.int32())}))
        found = client.manifest("lake")

    async def publish() -> bool:
        table = await gateway.store.table_named("lake")
        assert table is not None
        manifests = ManifestPublisher(gateway.store, RandomIds(), 900.0, lambda *_, **__: None)
        return await manifests.look(table)

    assert gateway.ask(publish()) is True
    pointer = json.loads((lake / "_neve/manifest/latest.json").read_text("utf-8"))
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own name; loads Java

    spark = local_session()
    parts = [part["file"] for part in pointer["parts"]]
    files = [row.file for row in spark.read.parquet(*parts).collect()]
    options = {"recursiveFileLookup": "true", "mergeSchema": "true"}
    read = spark.read.options(**options).parquet(*files)
    said = F.regexp_extract(F.input_file_name(), "/part=([^/]*)/", 1).cast("int")
    frame = read.withColumn("part", F.coalesce("part", said))

    assert sorted(files) == sorted(each["file"] for each in found["files"])
    assert pointer["totals"] == found["totals"]
    per_part = {row.part: row["count"] for row in frame.groupBy("part").count().collect()}
    assert per_part == dict.fromkeys(range(PARTITIONS), 2 * FILES // PARTITIONS) | {40: 1}
    assert SystemClock().now_s() > pointer["begun_s"]
