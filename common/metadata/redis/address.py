"""Where a store is: the forms of `store.url`, and how a server is checked and logged in to."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from common.runtime import not_installed
from common.setting_rules import SettingError

with not_installed("opentelemetry"):  # redis-py would measure itself.
    from redis.asyncio.connection import SSLConnection, parse_url

SENTINEL_FORM = "redis+sentinel://[user:password@]host:26379,host:26379,host:26379/SERVICE/DB"
CLUSTER_FORM = "redis+cluster://[user:password@]host:6379,host:6379,host:6379"
_WHAT = {"sentinel": ("Sentinels", SENTINEL_FORM), "cluster": ("a Redis Cluster", CLUSTER_FORM)}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """How to reach one Redis, and the login there."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    """Unix socket; wins over host and port."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: ssl.SSLContext | None = None

    def __str__(self) -> str:
        """Return the address without its secrets."""
        return self.path or f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class SentinelService:
    """A primary whose address only its Sentinels know."""

    sentinels: tuple[RedisAddress, ...]
    name: str
    """What the Sentinels call the primary and its replicas."""
    primary: RedisAddress
    """How to log in there. Host and port are the Sentinels' answer."""


@dataclass(frozen=True, slots=True)
class ClusterSeeds:
    """Some nodes of a Redis Cluster. Each of them knows all others."""

    nodes: tuple[RedisAddress, ...]


StoreSource = RedisAddress | SentinelService | ClusterSeeds


def parse_url_of_store(url: str) -> StoreSource:
    """Return what `store.url` names: one Redis, Sentinels that know it, or a Redis Cluster.

    Raises:
        SettingError: It is none of these.
    """
    scheme, _, rest = url.partition("://")
    inner, _, kind = scheme.partition("+")
    if inner not in {"redis", "rediss"} or kind not in _WHAT:
        return parse_address(url)
    rest, _, query = rest.partition("?")
    servers, _, path = rest.partition("/")
    login, at, hosts = servers.rpartition("@")
    try:
        template = parse_address(f"{inner}://{login}{at}server?{query}")
        if kind == "cluster":
            return _cluster(template, hosts, path)
        return _sentinels(template, hosts, path, query)
    except ValueError as error:
        what, form = _WHAT[kind]
        # Never the URL itself, which holds a password.
        raise SettingError(f"store.url is no URL of {what}: {error}; expected {form}") from error


def parse_address(url: str) -> RedisAddress:
    """Return the address in `redis://`, `rediss://` or `unix://`.

    Raises:
        SettingError: It is none of these.
    """
    try:
        parts: dict[str, Any] = dict(parse_url(url))
    except ValueError as error:
        raise SettingError(f"store.url is no URL of a Redis: {error}") from error
    return RedisAddress(
        host=parts.get("host", "127.0.0.1"),
        port=parts.get("port", 6379),
        path=parts.get("path"),
        username=parts.get("username"),
        password=parts.get("password"),
        database=int(parts.get("db", 0)),
        tls=_tls(parts) if parts.get("connection_class") is SSLConnection else None,
    )


def _cluster(node: RedisAddress, hosts: str, path: str) -> ClusterSeeds:
    database = node.database if path in {"", "0"} else path
    if database:
        raise ValueError(f"database {database!r} is not 0, the only one of a cluster")
    return ClusterSeeds(_servers(node, hosts, 6379, "a node"))


def _sentinels(primary: RedisAddress, hosts: str, path: str, query: str) -> SentinelService:
    """Return the service; user and password of the Sentinels are in the query.

    The form is that of the packages redis-sentinel-url and limits.
    """
    service, _, database = path.partition("/")
    if not service:
        raise ValueError("the name of the service is missing")
    if database and not database.isdecimal():
        raise ValueError(f"{database!r} is no number of a database")
    login = dict(parse_qsl(query))
    sentinel = replace(
        primary,
        username=login.get("sentinel_username"),
        password=login.get("sentinel_password"),
        database=0,
    )
    return SentinelService(
        sentinels=_servers(sentinel, hosts, 26379, "a Sentinel"),
        name=unquote(service),
        primary=replace(primary, database=int(database or primary.database)),
    )


def _servers(
    template: RedisAddress, hosts: str, default_port: int, whose: str
) -> tuple[RedisAddress, ...]:
    servers: list[RedisAddress] = []
    for host in hosts.split(","):
        parts = urlsplit(f"//{host.strip()}")
        if not parts.hostname:
            raise ValueError(f"the host of {whose} is missing")
        servers.append(replace(template, host=parts.hostname, port=parts.port or default_port))
    return tuple(servers)


def _tls(parts: Mapping[str, Any]) -> ssl.SSLContext:
    """Return how to check the server; only `ssl_cert_reqs=none` switches the check off.

    redis-py would trust the authorities of the system as well as those of `ssl_ca_certs`.
    """
    files = {name: parts.get(name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")}
    for name, path in files.items():
        if path is not None and not Path(path).is_file():
            raise SettingError(f"store.url: {name} {path} is no file")
    authorities, certificate, key = files.values()
    if key and not certificate:
        raise SettingError("store.url: ssl_keyfile has no ssl_certfile: name both")
    problem = f"ssl_ca_certs {authorities} holds no certificate that can be read"
    try:
        context = ssl.create_default_context(cafile=authorities)
        pair = f"ssl_certfile {certificate} and ssl_keyfile {key or certificate}"
        problem = f"{pair} cannot be used together"
        if certificate:
            context.load_cert_chain(certificate, key)
    except OSError as error:  # Errors of TLS are such, too.
        raise SettingError(f"store.url: {problem}: {error}") from error
    if parts.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
