"""A store behind Sentinels over TLS, on real processes with an authority of their own.

`make tls` runs these: the server that other tests run on is built without TLS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import ConfigError, MetadataError, UnavailableError
from common.metadata.changes import AddFiles, Applied
from common.metadata.redis import connect
from common.metadata.redis.keyspace import RedisKeyspace
from common.metadata.store import TabletStore
from common.model.tablet import TabletId
from common.runtime import SystemClock, call_id
from common.settings import StoreSettings
from neve.serve.preflight import require_store
from tests.support.kubernetes.certificates import create_certificates
from tests.support.patience import SERVICE_S
from tests.support.redis_sentinels import until
from tests.support.redis_tls import HOST, TlsGroup, tls_group
from tests.support.store_harness import Harness, file

pytestmark = [pytest.mark.anyio, pytest.mark.tls, pytest.mark.integration]


@pytest.fixture(scope="module")
def group() -> Iterator[TlsGroup]:
    with tls_group() as servers:
        yield servers


def settings(url: str, *, wait_replicas: int = 0) -> StoreSettings:
    return StoreSettings(url=url, wait_replicas=wait_replicas, timeout_s=5.0)


async def add(store: TabletStore, tablet: TabletId, path: str) -> None:
    """Add a file, as an application does: the call is repeated until it is known."""
    change = AddFiles(table=tablet.table, call=call_id(), files={tablet.end: (file(path),)})
    async with asyncio.timeout(SERVICE_S):
        while True:
            try:
                if isinstance(await store.apply(change), Applied):
                    return
            except UnavailableError:
                await asyncio.sleep(0.05)


async def test_a_store_is_kept_over_a_fail_over() -> None:
    with tls_group() as group:
        store = connect(settings(group.url(), wait_replicas=1))
        harness = Harness(
            "redis", RedisKeyspace(StoreSettings(url=group.url(), timeout_s=5.0)), SystemClock()
        )
        tablet = await harness.tablet_with()
        await add(store, tablet, "before")
        lost, other = group.servers
        assert group.primary_port() == {lost.port}
        lost.kill()
        until("fail-over", lambda: group.primary_port() == {other.port})
        await store.close()

        # No replica is left that could acknowledge.
        store = connect(settings(group.url()))
        await add(store, tablet, "after")
        found = await store.tablet(tablet)
        assert found is not None
        assert sorted(found.files) == ["after", "before"]
        await store.close()
        await harness.keyspace.close()


def test_the_check_at_the_start_takes_it(group: TlsGroup) -> None:
    assert require_store(settings(group.url())) == ()


def refusal(url: str) -> str:
    with pytest.raises(ConfigError) as raised:
        require_store(settings(url))
    return str(raised.value)


def test_another_authority_is_named(group: TlsGroup, tmp_path: Path) -> None:
    stranger = create_certificates(tmp_path, [HOST])
    said = refusal(group.url(ssl_ca_certs=str(stranger.authority)))
    assert "certificate verify failed" in said, said


def test_a_url_without_tls_reaches_no_sentinel(group: TlsGroup) -> None:
    said = refusal(group.url(scheme="redis+sentinel"))
    assert "no Sentinel answers: localhost:" in said, said


def test_addresses_that_no_certificate_names_are_named() -> None:
    with tls_group(announced="127.0.0.1") as group:
        said = refusal(group.url())
    assert "127.0.0.1" in said, said
    assert "certificate" in said, said


async def test_clients_may_have_to_prove_themselves() -> None:
    with tls_group(clients_prove=True) as group:
        said = await asyncio.to_thread(refusal, group.url())
        # Whether the server's own words come before it hangs up is chance.
        assert "no Sentinel answers: localhost:" in said, said
        own = str(group.certificates.server)
        url = group.url(ssl_certfile=own, ssl_keyfile=own)
        assert await asyncio.to_thread(require_store, settings(url)) == ()


def test_a_file_of_authorities_that_is_none_is_named(group: TlsGroup) -> None:
    with pytest.raises((ConfigError, MetadataError), match="ssl_ca_certs /nowhere is no file"):
        connect(settings(group.url(ssl_ca_certs="/nowhere")))
