"""Where a store is: the forms of `store.url`, and how a server is checked and logged in to."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from redis.asyncio.connection import SSLConnection, parse_url

from common.setting_rules import SettingError

SENTINEL_PORT = 26379
SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
"""Scheme of a URL of Sentinels → scheme of each of their servers."""
SENTINEL_FORM = "redis+sentinel://[user:password@]host:26379,host:26379,host:26379/SERVICE/DB"

CLUSTER_PORT = 6379
CLUSTER_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""Scheme of a URL of a Redis Cluster → scheme of each of its nodes."""
CLUSTER_FORM = "redis+cluster://[user:password@]host:6379,host:6379,host:6379"


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


@dataclass(frozen=True, slots=True)
class SentinelService:
    """A primary whose address only its Sentinels know."""

    sentinels: tuple[RedisAddress, ...]
    name: str
    """What the Sentinels call the primary and its replicas."""
    primary: RedisAddress
    """How to log in there. Host and port are the Sentinels' answer."""

    def primary_at(self, host: str, port: int) -> RedisAddress:
        """Return how to reach the primary at an address."""
        return replace(self.primary, host=host, port=port)


@dataclass(frozen=True, slots=True)
class ClusterSeeds:
    """Some nodes of a Redis Cluster. Each of them knows all others."""

    nodes: tuple[RedisAddress, ...]

    def node_at(self, host: str, port: int) -> RedisAddress:
        """Return how to reach the node at an address."""
        return replace(self.nodes[0], host=host, port=port)


StoreSource = RedisAddress | SentinelService | ClusterSeeds


def parse_url_of_store(url: str) -> StoreSource:
    """Return what `store.url` names: one Redis, Sentinels that know it, or a Redis Cluster.

    Raises:
        SettingError: It is none of these.
    """
    scheme, _, rest = url.partition("://")
    if scheme in CLUSTER_SCHEMES:
        parse, inner = _parse_cluster, CLUSTER_SCHEMES[scheme]
        what, form = "a Redis Cluster", CLUSTER_FORM
    elif scheme in SENTINEL_SCHEMES:
        parse, inner = _parse_sentinels, SENTINEL_SCHEMES[scheme]
        what, form = "Sentinels", SENTINEL_FORM
    else:
        return parse_address(url)
    try:
        return parse(inner, rest)
    except ValueError as error:
        # Never the URL itself, which holds a password.
        raise SettingError(f"store.url is no URL of {what}: {error}; expected {form}") from error


def _parse_cluster(scheme: str, rest: str) -> StoreSource:
    """Return the nodes in a URL after its scheme; user and password are those of every node."""
    rest, _, query = rest.partition("?")
    servers, _, database = rest.partition("/")
    login, _, hosts = servers.rpartition("@")
    if database not in ("", "0"):
        raise ValueError(f"database {database!r} is not 0, the only one of a cluster")
    node = parse_address(f"{scheme}://{login}{'@' * bool(login)}node?{query}")
    if node.database:
        raise ValueError(f"database {node.database} is not 0, the only one of a cluster")
    seeds = (_server(node, host, CLUSTER_PORT, "a node") for host in hosts.split(","))
    return ClusterSeeds(tuple(seeds))


def _parse_sentinels(scheme: str, rest: str) -> StoreSource:
    """Return the service in a URL after its scheme.

    The form is that of the packages redis-sentinel-url and limits. User and password are the
    primary's; Sentinels have `sentinel_username` and `sentinel_password` in the query.
    """
    rest, _, query = rest.partition("?")
    servers, _, path = rest.partition("/")
    login, _, hosts = servers.rpartition("@")
    service, _, database = path.partition("/")
    if not service:
        raise ValueError("the name of the service is missing")
    if database and not database.isdecimal():
        raise ValueError(f"{database!r} is no number of a database")
    primary = parse_address(f"{scheme}://{login}{'@' * bool(login)}primary?{query}")
    options = parse_qs(query)
    template = replace(
        primary,
        username=options.get("sentinel_username", [None])[0],
        password=options.get("sentinel_password", [None])[0],
        database=0,
    )
    sentinels = (_server(template, host, SENTINEL_PORT, "a Sentinel") for host in hosts.split(","))
    return SentinelService(
        sentinels=tuple(sentinels),
        name=unquote(service),
        primary=replace(primary, database=int(database or primary.database)),
    )


def _server(template: RedisAddress, text: str, port: int, whose: str) -> RedisAddress:
    parts = urlsplit(f"//{text.strip()}")
    if not parts.hostname:
        raise ValueError(f"the host of {whose} is missing")
    return replace(template, host=parts.hostname, port=parts.port or port)


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
    try:
        context = ssl.create_default_context(cafile=authorities)
    except OSError as error:  # Errors of TLS are such, too.
        raise SettingError(
            f"store.url: ssl_ca_certs {authorities} holds no certificate that can be read: {error}"
        ) from error
    try:
        if certificate:
            context.load_cert_chain(certificate, key)
    except OSError as error:
        raise SettingError(
            f"store.url: ssl_certfile {certificate} and ssl_keyfile {key or certificate} cannot be"
            f" used together: {error}"
        ) from error
    if parts.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
