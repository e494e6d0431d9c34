"""This release opens, finishes and compacts what an older one left, and restores its backup."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.metadata.redis import connect
from common.settings import StoreSettings
from neve.client import Client
from neve.local import StackOptions
from tests.support.gateway import Gateway, serving
from tests.support.installed_stack import InstalledStack
from tests.support.living_folder import stored_below
from tests.support.older_store import OlderStore, older_store
from tests.support.record_older_store import TABLES, rows_of
from tests.support.redis_server import RedisServer, empty, executable, running
from tests.support.stack import SETTINGS, Service

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(executable() is None, reason="no redis-server on this machine"),
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with running() as server:
        yield server


@pytest.fixture
def older() -> Iterator[OlderStore]:
    with older_store() as store:
        yield store


@pytest.fixture
def gateway(redis: RedisServer) -> Iterator[Gateway]:
    with serving(connect(StoreSettings(url=redis.user_url, timeout_s=5.0))) as served:
        yield served


def test_every_row_is_read(older: OlderStore, redis: RedisServer, gateway: Gateway) -> None:
    older.load(redis.port)
    with gateway.client() as client:
        older.check_rows(client)
        for table in TABLES:
            assert client.fsck(table, deep=True).sound
        added = client.append("readings", rows_of("readings", 4), call=older.facts["call"])
        assert added
        older.check_rows(client)


def test_a_backup_is_restored(older: OlderStore, redis: RedisServer, gateway: Gateway) -> None:
    gateway.ask(empty(redis))
    with gateway.client() as client:
        places = {table: older.location(table) for table in TABLES}
        report = client.restore(older.archive, locations=places, adopt=True)
        assert {table.table for table in report.tables} == set(TABLES)
        older.check_rows(client, older.facts["backed_up"])


def test_tables_are_rebuilt(older: OlderStore, redis: RedisServer, gateway: Gateway) -> None:
    gateway.ask(empty(redis))
    with gateway.client() as client:
        for table in TABLES:
            report = client.rebuild(older.location(table), table, adopt=True)
            assert (report.lost, report.state) == ({}, "live")
        older.check_rows(client)


def test_what_is_under_way_is_finished(
    older: OlderStore, redis: RedisServer, tmp_path: Path
) -> None:
    older.load(redis.port)
    store = StoreSettings(url=redis.user_url)
    # Without executors: what counts here is what the metadata of another release becomes.
    compactor = replace(SETTINGS.compactor, engine="local")
    sources = {"store.url": "this test"}
    settings = replace(SETTINGS, store=store, compactor=compactor, sources=sources)
    options = StackOptions(compactors=1, settings=settings, allow=older.allowed)
    with InstalledStack.start(home=tmp_path, options=options) as stack:
        service = Service(stack, tmp_path, compactors=1)
        client, facts = service.client, older.facts
        request = client.request("orders", facts["request"])
        service.wait("end of the request", lambda: request.status().state == "done")
        service.wait("another attempt", lambda: facts["attempt"] in ends(client, "users"))
        for table in TABLES:
            client.wait_until_at_rest(table)
            assert client.fsck(table, deep=True).sound
        assert ends(client, "users").pop(facts["attempt"]) == "lost"
        older.check_rows(client, {"orders": [r for r in facts["rows"]["orders"] if r["k"] >= 30]})
        check_garbage(service, older, redis)


def ends(client: Client, table: str) -> dict[str, str]:
    """Return how the attempts of a table ended."""
    return {entry.attempt: entry.end for entry in client.history(table)}


def check_garbage(service: Service, older: OlderStore, redis: RedisServer) -> None:
    """Assert that what was replaced is deleted, in the pinned table once the pin has ended."""

    def spare(table: str) -> set[str]:
        listed = {file.path for file in service.client.files(table)}
        return stored_below(older.root / table) - listed

    for table in TABLES:
        if table != "readings":
            service.wait(f"clean storage of {table}", lambda table=table: not spare(table))
    assert spare("readings"), "a pin keeps what was replaced since"
    redis.say("HDEL", *older.pin)
    service.wait("clean storage of readings", lambda: not spare("readings"))
