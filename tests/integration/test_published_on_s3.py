"""A table that publishes its log in an object store, while it gets appends and compactions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import deltalake
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from common.lake.delta import publication
from common.lake.open import open_published_log
from common.parquet import location as object_store
from common.parquet.foreign_formats import (
    foreign_mark,
    own_log,
    remove_own_log,
)
from neve.gateway.table_files import published_log
from tests.support.manifest_site import GRACE_S
from tests.support.published_site import (
    published_site,
    read_as_iceberg,
    read_by_deltalake,
    read_by_polars,
    row_file,
)
from tests.support.s3_server import VARIABLES, S3Server, s3_server

pytestmark = [pytest.mark.integration]
ROUNDS = 25


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server() as running:
        running.create_bucket("lake")
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in running.environ.items():
            monkeypatch.setenv(name, value)
        object_store._client.cache_clear()
        yield running
    object_store._client.cache_clear()


URI = "s3://lake/tables/events"


def options_of(server: S3Server) -> dict[str, str]:
    options = {name.lower(): value for name, value in server.environ.items()}
    return {**options, "aws_allow_http": "true"}


async def followed(server: S3Server) -> None:
    site, options = await published_site(URI), options_of(server)
    other = site.coordinator("b")
    await site.add("day=7/first.parquet", 0)
    path = "day=7/first.parquet"
    for number in range(1, ROUNDS):
        added = f"day=7/a {number}%.parquet"
        await site.add(added, number)
        await site.add(f"day={8 + number % 2}/b{number}.parquet", 1000 + number)
        path = await site.compact(7, path, added)
        by = (site.here, other)[number % 2]
        assert await site.publish(by)
        if number % 8 == 0 or number == ROUNDS - 1:
            assert read_by_deltalake(URI, options) == site.model
            assert read_by_polars(URI, options) == site.model
        await by.collector.collect(site.table)
    log = own_log(site.location)
    assert log is not None
    assert log.version == ROUNDS - 2 > publication.CHECKPOINT_VERSIONS
    site.clock.advance(GRACE_S)
    assert (await site.here.collector.collect(site.table)).deleted > 0
    assert read_by_deltalake(URI, options) == site.model


def test_other_engines_follow_a_table_in_an_object_store(server: S3Server) -> None:
    asyncio.run(followed(server))


async def followed_as_iceberg(server: S3Server, rounds: int) -> None:
    site = await published_site(URI, publish="iceberg")
    options = {**options_of(server), "aws_endpoint": server.endpoint}
    other, path = site.coordinator("b"), "day=7/first.parquet"
    await site.add(path, 0)
    for number in range(1, rounds):
        added = f"day=7/a {number}%.parquet"
        await site.add(added, number)
        await site.add(f"day={8 + number % 2}/b{number}.parquet", 1000 + number)
        path = await site.compact(7, path, added)
        by = (site.here, other)[number % 2]
        assert await site.publish(by)
        await by.collector.collect(site.table)
    shown = published_log(site.table)
    assert (shown.version, shown.rows) == (rounds - 2, len(site.model))
    assert shown.metadata.startswith(f"{URI}/metadata/000")
    site.clock.advance(GRACE_S)
    assert (await site.here.collector.collect(site.table)).deleted > 0
    for uri in (shown.metadata, URI):
        assert read_as_iceberg(uri, options) == site.model
    log = open_published_log(URI, {}, "iceberg", pq.read_metadata)
    assert log.clean(0, time.time() + 60) > 0
    assert read_as_iceberg(URI, options) == site.model
    assert foreign_mark(site.location) is None
    assert remove_own_log(site.location)
    assert not remove_own_log(site.location)
    site.here = site.coordinator("c")
    await site.add("day=7/second.parquet", 2)
    assert await site.publish()
    assert (site.log.format, site.log.version) == ("iceberg", 0)
    assert read_as_iceberg(URI, options) == site.model


@pytest.mark.parametrize("rounds", [4, pytest.param(ROUNDS, marks=pytest.mark.long)])
def test_other_engines_follow_iceberg_metadata_in_an_object_store(
    rounds: int, server: S3Server
) -> None:
    asyncio.run(followed_as_iceberg(server, rounds))


async def begun_again(server: S3Server) -> None:
    site, options = await published_site(URI), options_of(server)
    await site.add("day=7/first.parquet", 1)
    assert await site.publish()
    rows = row_file([9]).append_column("day", [[7]])
    with pytest.raises(deltalake.exceptions.DeltaError, match="neveManaged"):
        write_deltalake(URI, rows, mode="append", storage_options=options)
    assert foreign_mark(site.location) is None
    assert remove_own_log(site.location)
    assert not remove_own_log(site.location)
    assert foreign_mark(site.location) is None
    site.here = site.coordinator("b")
    await site.add("day=7/second.parquet", 2)
    assert await site.publish()
    assert site.log.version == 0
    assert read_by_polars(URI, options) == site.model


def test_no_other_engine_writes_and_a_log_that_is_gone_begins_again(server: S3Server) -> None:
    asyncio.run(begun_again(server))
