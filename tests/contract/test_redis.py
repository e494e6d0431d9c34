"""What only a real Redis can show: cut connections, silence, errors, restarts, logins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from common.errors import ConfigError, MetadataError, UnavailableError
from common.metadata.changes import AddFiles, Unknown
from common.metadata.keys import TableKeys
from common.metadata.keyspace import LinkLostError, get, hgetall
from common.metadata.redis import connect
from common.metadata.redis.connection import parse_address
from common.metadata.redis.keyspace import RedisKeyspace
from common.runtime import SystemClock, call_id
from common.settings import StoreSettings
from tests.support.redis_proxy import Cut, RedisProxy, proxy_to
from tests.support.redis_server import RedisServer, executable, free_port, running
from tests.support.store_harness import MIDDLE, Harness, applied, commit, file, reserve

pytestmark = pytest.mark.anyio


@pytest.fixture
async def direct(redis_server: RedisServer, anyio_backend: str) -> AsyncIterator[Harness]:
    """A store on a connection that nobody breaks."""
    keyspace = RedisKeyspace(StoreSettings(url=redis_server.user_url, timeout_s=5.0))
    admin = RedisKeyspace(StoreSettings(url=redis_server.url, timeout_s=5.0))
    yield Harness("redis", keyspace, SystemClock(), admin=admin)
    await keyspace.close()
    await admin.close()


@pytest.fixture
async def proxy(redis_server: RedisServer, anyio_backend: str) -> AsyncIterator[RedisProxy]:
    """The door that breaks connections."""
    async with proxy_to(redis_server.user_url) as door:
        yield door


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER, Cut.LATE, Cut.SILENT])
async def test_an_add_and_a_commit_are_made_once(
    direct: Harness, proxy: RedisProxy, cut: Cut
) -> None:
    tablet = await direct.tablet_with("a", "b")
    keyspace = RedisKeyspace(StoreSettings(url=proxy.url, timeout_s=0.5))
    store = direct.another(keyspace)
    await store.store_id()
    proxy.cut = cut
    change = AddFiles(table=tablet.table, call=call_id(direct.clock), files={MIDDLE: (file("c"),)})
    assert applied(await store.apply(change)).tries == 2
    if cut is Cut.LATE:
        await proxy.let_go()
    applied(await direct.apply(reserve(tablet, "t1", "a", "b", "c")))
    proxy.cut = Cut.AFTER if cut is Cut.LATE else cut
    applied(await store.apply(commit(tablet, "t1")))
    found = await direct.store.tablet(tablet)
    assert found is not None
    assert sorted(found.files) == ["out/t1-0.parquet"]
    assert (found.record.files, found.record.running) == (1, 0)
    assert len(await direct.store.history(tablet.table)) == 1
    await store.close()


@pytest.mark.parametrize(("cut", "made"), [(Cut.BEFORE, False), (Cut.AFTER, True)])
async def test_a_reservation_is_found_or_unknown(
    direct: Harness, proxy: RedisProxy, cut: Cut, made: bool
) -> None:
    tablet = await direct.tablet_with("a")
    store = direct.another(RedisKeyspace(StoreSettings(url=proxy.url, timeout_s=5.0)))
    await store.store_id()
    proxy.cut = cut
    outcome = await store.apply(reserve(tablet, "t1", "a"))
    if made:
        assert applied(outcome).reservation is not None
    else:
        assert isinstance(outcome, Unknown)
    await store.close()


async def test_how_an_attempt_ended_is_known_for_a_day(direct: Harness) -> None:
    tablet = await direct.tablet_with("a")
    applied(await direct.apply(reserve(tablet, "t1", "a")))
    applied(await direct.apply(commit(tablet, "t1")))
    life_ms = await direct.read(("PTTL", TableKeys(tablet.table).outcome("t1")))
    assert 86_000_000 < life_ms <= 86_400_000


async def test_a_store_that_cannot_be_reached_is_unavailable() -> None:
    store = connect(StoreSettings(url=f"redis://127.0.0.1:{free_port()}", tries_max=2))
    with pytest.raises(UnavailableError, match=r"cannot connect to 127\.0\.0\.1"):
        await store.tables()
    await store.close()


async def test_errors_of_redis_do_not_leave(direct: Harness) -> None:
    await direct.write(("SET", "neve:wrong", b"x"))
    with pytest.raises(MetadataError, match="WRONGTYPE"):
        await direct.read(hgetall("neve:wrong"))
    with pytest.raises(MetadataError, match="WRONGTYPE"):
        await direct.keyspace.fetch([[get("neve:wrong"), hgetall("neve:wrong")]])
    with pytest.raises(MetadataError, match="unknown command"):
        await direct.keyspace.fetch([[("NOSUCH",), get("neve:wrong")]])
    async with direct.keyspace.session() as session:
        with pytest.raises(MetadataError, match="unknown command"):
            await session.execute([("NOSUCH",)])
    await direct.write(("DEL", "neve:wrong"))


async def test_a_cancelled_read_leaves_no_answers_behind(direct: Harness) -> None:
    tablet = await direct.tablet_with(*(f"f{number:03}" for number in range(200)))
    for _ in range(20):
        reading = asyncio.create_task(direct.store.tablet(tablet))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await direct.store.claim() is None


async def test_connections_are_bounded(redis_server: RedisServer, direct: Harness) -> None:
    tablet = await direct.tablet_with("a")
    store = direct.another(
        RedisKeyspace(StoreSettings(url=redis_server.user_url, connections_max=3, timeout_s=5.0))
    )
    before = int(
        (await direct.read(("INFO", "clients"))).split(b"connected_clients:")[1].split()[0]
    )
    await asyncio.gather(*(store.tablet(tablet) for _ in range(50)))
    after = int((await direct.read(("INFO", "clients"))).split(b"connected_clients:")[1].split()[0])
    assert after - before <= 3
    await store.close()


async def test_a_restart_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    if executable() is None:
        pytest.skip("no redis-server")
    server = RedisServer(tmp_path, fsync="always")
    server.start()
    keyspace = RedisKeyspace(StoreSettings(url=server.url, timeout_s=5.0))
    harness = Harness("redis", keyspace, SystemClock())
    try:
        tablet = await harness.tablet_with("a", "b")
        applied(await harness.apply(reserve(tablet, "t1", "a")))
        server.kill()
        with pytest.raises(UnavailableError):
            await harness.store.tablet(tablet)
        server.start()
        found = await harness.store.tablet(tablet)
        assert found is not None
        assert (sorted(found.files), sorted(found.running)) == (["a", "b"], ["t1"])
        applied(await harness.apply(commit(tablet, "t1")))
    finally:
        await keyspace.close()
        server.stop()


async def test_an_add_is_acknowledged_only_with_its_replicas() -> None:
    if executable() is None:
        pytest.skip("no redis-server")
    with running(append_only=False) as first, running(append_only=False) as second:
        keyspace = RedisKeyspace(StoreSettings(url=first.url, timeout_s=0.3, wait_replicas=1))
        harness = Harness("redis", keyspace, SystemClock(), tries_max=2)
        plain = Harness(
            "redis", RedisKeyspace(StoreSettings(url=first.url, timeout_s=5.0)), SystemClock()
        )
        tablet = await plain.tablet_with("a")
        change = AddFiles(table=tablet.table, call=call_id(), files={MIDDLE: (file("b"),)})
        outcome = await harness.apply(change)
        assert isinstance(outcome, Unknown)
        assert "replicas" in outcome.reason
        replica = RedisKeyspace(StoreSettings(url=second.url, timeout_s=5.0))
        port = first.url.rsplit(":", 1)[1].split("/")[0]
        await replica.fetch([[("REPLICAOF", "127.0.0.1", port)]])
        for _ in range(100):
            if b"master_link_status:up" in (await replica.fetch([[("INFO", "replication")]]))[0][0]:
                break
            await asyncio.sleep(0.1)
        applied(await harness.apply(change))
        assert await plain.store.tablet(tablet) == await plain.another(replica).tablet(tablet)
        with pytest.raises(LinkLostError, match="READONLY"):
            async with replica.session() as session:
                await session.execute([("SET", "x", 1)])
        for each in (keyspace, plain.keyspace, replica):
            await each.close()


async def test_user_and_password_of_the_url_are_used(redis_server: RedisServer) -> None:
    with running(append_only=False) as server:
        keyspace = RedisKeyspace(StoreSettings(url=server.url, timeout_s=5.0))
        await keyspace.fetch([[("CONFIG", "SET", "requirepass", "secret")]])
        await keyspace.close()
        place = server.url.split("//")[1].split("/")[0]
        store = connect(StoreSettings(url=f"redis://:secret@{place}/3"))
        assert await store.tables() == []
        await store.close()
        for url in (f"redis://{place}/0", f"redis://:wrong@{place}/0"):
            closed = connect(StoreSettings(url=url))
            with pytest.raises(UnavailableError, match="refuses"):
                await closed.tables()
            await closed.close()


def test_a_url_is_parsed_and_its_password_is_hidden() -> None:
    address = parse_address("redis://user:p%40ss@example:7000/2")
    assert (address.host, address.port, address.db) == ("example", 7000, 2)
    assert (address.username, address.password, address.tls) == ("user", "p@ss", None)
    assert str(address) == "example:7000"
    assert "p@ss" not in repr(address)
    assert parse_address("unix:///run/redis.sock").path == "/run/redis.sock"
    secure = parse_address("rediss://example")
    assert secure.tls is not None
    assert secure.tls.check_hostname
    open_door = parse_address("rediss://example?ssl_cert_reqs=none").tls
    assert open_door is not None
    assert not open_door.check_hostname
    with pytest.raises(ConfigError, match=r"store\.url"):
        parse_address("http://example")
    with pytest.raises(ConfigError, match="no file"):
        parse_address("rediss://example?ssl_ca_certs=/nowhere.pem")
