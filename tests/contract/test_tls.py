"""A store over TLS: who is trusted, who is let in, and what an operator reads if it is neither.

The server behind the door is real, and so is all that the store does. `make tls` shows the same
on servers and Sentinels that speak TLS themselves.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from common.errors import ConfigError
from common.metadata.redis.connection import parse_address
from common.metadata.redis.keyspace import RedisKeyspace
from common.runtime import SystemClock
from common.settings import StoreSettings
from neve.serve.preflight import require_store
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import LOGIN, RedisServer
from tests.support.store_harness import Harness, applied, commit, reserve
from tests.support.tls_door import tls_door

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("authority of the servers")


@pytest.fixture
def trusted(tmp_path: Path, authority: Authority) -> str:
    return authority.write(tmp_path / "ca.pem")


@pytest.fixture
def door(tmp_path: Path, authority: Authority, redis_server: RedisServer) -> Iterator[int]:
    certificate = Path(authority.issue(tmp_path / "server.pem"))
    with tls_door(redis_server.port, certificate) as port:
        yield port


def url(port: int, *, scheme: str = "rediss", **query: str) -> str:
    return f"{scheme}://{LOGIN}localhost:{port}/0?{urlencode(query)}"


def accepted(found: str) -> bool:
    return require_store(StoreSettings(url=found, timeout_s=5.0)) == ()


def refusal(found: str) -> str:
    """Return what a service says that is to start on such a store."""
    with pytest.raises(ConfigError) as raised:
        require_store(StoreSettings(url=found, timeout_s=5.0))
    said = str(raised.value)
    assert "setting store.url" in said
    return said


async def test_a_store_is_used_over_tls(door: int, trusted: str) -> None:
    keyspace = RedisKeyspace(StoreSettings(url=url(door, ssl_ca_certs=trusted), timeout_s=5.0))
    harness = Harness("redis", keyspace, SystemClock())
    tablet = await harness.tablet_with("a", "b")
    applied(await harness.apply(reserve(tablet, "t1", "a", "b")))
    applied(await harness.apply(commit(tablet, "t1")))
    found = await harness.store.tablet(tablet)
    assert found is not None
    assert sorted(found.files) == ["out/t1-0.parquet"]
    await keyspace.close()


def test_who_speaks_no_tls_hears_nothing(door: int) -> None:
    with socket.create_connection(("127.0.0.1", door), timeout=PATIENCE_S) as link:
        link.sendall(b"PING\r\n")
        heard = b""
        while part := link.recv(100):
            heard += part
    assert b"PONG" not in heard
    said = refusal(url(door, scheme="redis"))
    assert "if the server speaks TLS, write rediss:// in place of redis://" in said


def test_a_server_without_tls_is_told_apart(redis_server: RedisServer, trusted: str) -> None:
    found = url(redis_server.port, ssl_ca_certs=trusted)
    with pytest.raises(ConfigError, match="if the server speaks no TLS there, name its TLS port"):
        require_store(StoreSettings(url=found, timeout_s=0.5))


def test_an_authority_that_nobody_trusts_is_refused(door: int, tmp_path: Path) -> None:
    stranger = Authority("authority of others").write(tmp_path / "others.pem")
    for query in ({}, {"ssl_ca_certs": stranger}):
        said = refusal(url(door, **query))
        assert "certificate verify failed" in said
        assert "no authority that is trusted here has signed it: name the file" in said


def test_only_the_named_authority_is_trusted(
    door: int, tmp_path: Path, trusted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py would trust those of the system as well."""
    monkeypatch.setenv("SSL_CERT_FILE", trusted)
    assert accepted(url(door)), "the system trusts the server"
    stranger = Authority("authority of others").write(tmp_path / "others.pem")
    assert "certificate verify failed" in refusal(url(door, ssl_ca_certs=stranger))


def test_a_certificate_that_has_expired_is_refused(
    tmp_path: Path, authority: Authority, trusted: str, redis_server: RedisServer
) -> None:
    old = Path(authority.issue(tmp_path / "old.pem", expired=True))
    with tls_door(redis_server.port, old) as port:
        said = refusal(url(port, ssl_ca_certs=trusted))
    assert "certificate has expired" in said
    assert "renew the certificate of the server" in said


def test_a_certificate_for_another_name_is_refused(
    tmp_path: Path, authority: Authority, trusted: str, redis_server: RedisServer
) -> None:
    other = Path(authority.issue(tmp_path / "other.pem", host="store.example.com"))
    with tls_door(redis_server.port, other) as port:
        said = refusal(url(port, ssl_ca_certs=trusted))
    assert "Hostname mismatch" in said
    assert "the certificate is for another name: write the name that it holds" in said


def test_a_client_may_have_to_prove_itself(
    tmp_path: Path, authority: Authority, trusted: str, redis_server: RedisServer
) -> None:
    server = Path(authority.issue(tmp_path / "server.pem"))
    own = authority.issue(tmp_path / "client.pem", "neve")
    other = Authority("authority of others").issue(tmp_path / "other.pem", "neve")
    old = authority.issue(tmp_path / "old.pem", "neve", expired=True)
    with tls_door(redis_server.port, server, clients=Path(trusted)) as port:
        pair = {"ssl_certfile": own, "ssl_keyfile": own}
        assert accepted(url(port, ssl_ca_certs=trusted, **pair))
        said = refusal(url(port, ssl_ca_certs=trusted))
        assert "name ssl_certfile and ssl_keyfile that it trusts in store.url" in said
        for wrong in (other, old):
            found = url(port, ssl_ca_certs=trusted, ssl_certfile=wrong, ssl_keyfile=wrong)
            assert "the certificate of this client" in refusal(found)


def test_files_that_are_none_are_named(tmp_path: Path, authority: Authority) -> None:
    own = authority.issue(tmp_path / "client.pem", "neve")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    for query, said in (
        ({"ssl_ca_certs": "/nowhere"}, "ssl_ca_certs /nowhere is no file"),
        ({"ssl_ca_certs": str(broken)}, f"ssl_ca_certs {broken} holds no certificate"),
        ({"ssl_certfile": "/nowhere"}, "ssl_certfile /nowhere is no file"),
        ({"ssl_certfile": own, "ssl_keyfile": "/nowhere"}, "ssl_keyfile /nowhere is no file"),
        ({"ssl_certfile": str(broken)}, "cannot be used together"),
        ({"ssl_keyfile": own}, "ssl_keyfile has no ssl_certfile"),
    ):
        with pytest.raises(ConfigError) as raised:
            parse_address(url(6379, **query))
        assert said in str(raised.value), query
