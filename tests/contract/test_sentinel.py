"""A store behind Sentinels: how its URL is read, and what is said when no primary is found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from common.errors import ConfigError, MetadataError, UnavailableError
from common.metadata.redis import connect
from common.metadata.redis.connection import RedisAddress, StoreServers, parse_url_of_store
from common.metadata.store import TabletStore
from common.settings import StoreSettings
from tests.support.redis_sentinels import (
    SERVICE,
    SentinelServer,
    group_running,
    sentinel_url,
)
from tests.support.redis_server import free_port, running

pytestmark = [pytest.mark.anyio]


def store_on(url: str) -> TabletStore:
    return connect(StoreSettings(url=url, timeout_s=5.0))


# ------------------------------------------------------------------------------------------- URLs


def test_a_url_names_sentinels_service_and_database() -> None:
    found = parse_url_of_store("redis+sentinel://user:p%40ss@one:1,two,[::1]:3/main%2Fstore/4")
    assert isinstance(found, StoreServers)
    places = [(sentinel.host, sentinel.port) for sentinel in found.known]
    assert places == [("one", 1), ("two", 26379), ("::1", 3)]
    assert {(sentinel.username, sentinel.password, sentinel.tls) for sentinel in found.known} == {
        (None, None, None)
    }
    assert {sentinel.db for sentinel in found.known} == {0}
    assert found.service == "main/store"
    primary = replace(found.login, host="there", port=7)
    assert (str(primary), primary.db) == ("there:7", 4)
    assert (primary.username, primary.password) == ("user", "p@ss")


def test_sentinels_have_a_login_of_their_own_and_tls_is_for_all() -> None:
    found = parse_url_of_store(
        "rediss+sentinel://:secret@one/main?sentinel_username=s&sentinel_password=p%26q"
        "&ssl_cert_reqs=none"
    )
    assert isinstance(found, StoreServers)
    (sentinel,) = found.known
    assert (sentinel.username, sentinel.password) == ("s", "p&q")
    assert (found.login.username, found.login.password) == (None, "secret")
    assert found.login.db == 0
    for address in (sentinel, found.login):
        assert address.tls is not None
        assert not address.tls.check_hostname


@pytest.mark.parametrize(
    ("rest", "reason"),
    [
        ("", "the name of the service is missing"),
        ("one:1", "the name of the service is missing"),
        ("one:1/", "the name of the service is missing"),
        ("/main", "the host of a Sentinel is missing"),
        ("one,,two/main", "the host of a Sentinel is missing"),
        ("one:port/main", "Port could not be cast"),
        ("one:70000/main", "Port out of range"),
        ("one/main/zero", "'zero' is no number of a database"),
        ("one/main/0/1", "'0/1' is no number of a database"),
    ],
)
def test_a_malformed_url_is_refused_with_the_form(rest: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=rf"no URL of Sentinels: {reason}.*; expected redis\+"):
        parse_url_of_store(f"redis+sentinel://{rest}")


def test_a_url_of_one_redis_stays_what_it_was() -> None:
    assert parse_url_of_store("redis://one:1/2") == RedisAddress(host="one", port=1, db=2)


# -------------------------------------------------------------------------------------- Sentences


async def said(url: str) -> str:
    """Return why a store cannot be used."""
    store = store_on(url)
    try:
        with pytest.raises((UnavailableError, MetadataError)) as refused:
            await store.tables()
    finally:
        await store.close()
    return str(refused.value)


async def test_what_is_wrong_is_one_sentence() -> None:
    with group_running(replicas=0, sentinels=1) as group:
        (sentinel,), (server,) = group.sentinels, group.servers
        unknown = await said(sentinel_url([sentinel.port], "other"))
        assert unknown.endswith(
            f"no Sentinel knows a service 'other': 127.0.0.1:{sentinel.port} knows {SERVICE}"
        )
        no_sentinel = await said(sentinel_url([server.port]))
        assert no_sentinel.endswith(f"127.0.0.1:{server.port} is no Sentinel")
        closed = free_port(), free_port()
        silent = await said(sentinel_url(closed))
        assert f"no Sentinel answers: cannot connect to 127.0.0.1:{closed[0]} (" in silent
        assert f"cannot connect to 127.0.0.1:{closed[1]} (" in silent
        direct = await said(f"redis://127.0.0.1:{sentinel.port}/0")
        assert direct.startswith(f"127.0.0.1:{sentinel.port} is a Sentinel, which holds no data")
        server.kill()
        fallen = await said(group.url)
        assert f"the primary '{SERVICE}' that the Sentinels name does not serve (" in fallen
        assert fallen.endswith("a fail-over may be under way")


async def test_sentinels_that_are_gone_are_passed_over() -> None:
    with group_running(replicas=0, sentinels=1) as group:
        known = group.sentinels[0].port
        store = store_on(sentinel_url([free_port(), known, free_port()]))
        assert await store.tables() == []
        await store.close()


async def test_primary_and_sentinels_have_logins_of_their_own(tmp_path: Path) -> None:
    may_ask = "+hello +auth +client|setname +sentinel|get-master-addr-by-name +sentinel|masters"
    with running() as server:
        server.say("CONFIG", "SET", "requirepass", "of the primary")
        sentinel = SentinelServer(
            tmp_path,
            server.port,
            f'sentinel auth-pass {SERVICE} "of the primary"',
            f"user asker on >asked -@all {may_ask}",
            "user default off",
        )
        try:
            place = f"127.0.0.1:{sentinel.port}/{SERVICE}"
            good = "sentinel_username=asker&sentinel_password=asked"
            store = store_on(f"redis+sentinel://:of%20the%20primary@{place}?{good}")
            assert await store.tables() == []
            await store.close()
            wrong = await said(f"redis+sentinel://:another@{place}?{good}")
            assert f"127.0.0.1:{server.port} refuses: WRONGPASS" in wrong
            closed = await said(f"redis+sentinel://:of%20the%20primary@{place}")
            assert f"no Sentinel answers: 127.0.0.1:{sentinel.port} refuses: " in closed
            assert "primary@" not in wrong + closed
        finally:
            sentinel.stop()
