"""Where a store is; one connection to it: many commands in one write; what its errors mean.

The connections are those of redis-py, with every retry of the library off: a change is repeated
by its executor, which looks for the mark of the change first. A connection that broke, timed out
or was cancelled is never used again, since the next reader would take its late answers.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import hiredis

from common.metadata.keyspace import Command, LinkLostError, Reply
from common.runtime import not_installed
from common.setting_rules import SettingError

with not_installed("opentelemetry"):  # redis-py would measure itself.
    from redis.asyncio.connection import (
        AbstractConnection,
        Connection,
        SSLConnection,
        UnixDomainSocketConnection,
        parse_url,
    )
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import InvalidResponse, RedisError, ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError

# --------------------------------------------------------------------------------------- Addresses

SENTINEL_FORM = "redis+sentinel://[user:password@]host:26379,host:26379,host:26379/SERVICE/DB"
CLUSTER_FORM = "redis+cluster://[user:password@]host:6379,host:6379,host:6379"
_PARTS = ("host", "port", "path", "username", "password")
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
class StoreServers:
    """Servers that know where the others are: Sentinels, or nodes of a Redis Cluster."""

    known: tuple[RedisAddress, ...]
    login: RedisAddress
    """How to log in at the others, whose hosts and ports they know."""
    service: str = ""
    """What Sentinels call the primary and its replicas; empty: it is a cluster."""


def parse_url_of_store(url: str) -> RedisAddress | StoreServers:
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
    known = {name: parts[name] for name in _PARTS if name in parts}
    tls = _tls(parts) if parts.get("connection_class") is SSLConnection else None
    return RedisAddress(**known, database=int(parts.get("db", 0)), tls=tls)


def _cluster(node: RedisAddress, hosts: str, path: str) -> StoreServers:
    database = node.database if path in {"", "0"} else path
    if database:
        raise ValueError(f"database {database!r} is not 0, the only one of a cluster")
    return StoreServers(_servers(node, hosts, 6379, "a node"), node)


def _sentinels(primary: RedisAddress, hosts: str, path: str, query: str) -> StoreServers:
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
    return StoreServers(
        _servers(sentinel, hosts, 26379, "a Sentinel"),
        replace(primary, database=int(database or primary.database)),
        unquote(service),
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


# ------------------------------------------------------------------------------------- Connections

ReplyError = ResponseError
"""Redis answered a command with an error. It never leaves this package."""

_pack: Any = hiredis.pack_command  # Its stub knows tuples of one word only.


def text_of(error: RedisError) -> str:
    """Return an answer as Redis wrote it: redis-py keeps codes that it knows apart from the text.

    The code decides what an error means. redis-py takes `LOADING` for a lost connection.
    """
    return f"{error.status_code} {error}" if error.status_code else str(error)


class Link(AbstractConnection):
    """A connection that one task uses at a time."""

    host: str
    port: int
    ssl_context: Any
    _parser: Any

    def __init__(self, *, address: RedisAddress, timeout_s: float, **arguments: Any) -> None:
        """Create a link; `arguments` of redis-py win over the address."""
        self.address = address
        self.server: Mapping[bytes, Reply] = {}
        """The answer to `HELLO`."""
        self._timeout_s = timeout_s
        is_unix = address.path is not None
        ours: dict[str, Any] = {
            **({"path": address.path} if is_unix else {"host": address.host, "port": address.port}),
            "db": address.database,
            "username": address.username,
            "password": address.password,
            "driver_info": None,
            "socket_timeout": None,
            "socket_connect_timeout": timeout_s,
            "redis_connect_func": _greet,
        }
        super().__init__(**ours | arguments | {"protocol": 3, "retry": Retry(NoBackoff(), 0)})
        if address.tls is not None:
            self.ssl_context.context = address.tls

    async def open(self) -> None:
        """Connect, log in, choose the database.

        Raises:
            LinkLostError: No server answers, or it refuses.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self.connect()  # type: ignore[no-untyped-call]  # redis-py's own
        except BaseException as error:
            await self.disconnect()  # It may be connected, and not logged in.
            if isinstance(error, RedisError | OSError):
                raise LinkLostError(why_unreachable(self.address, error)) from error
            raise

    async def is_clean(self) -> bool:
        """Return whether it is connected, and no answer is left on it."""
        try:
            return bool(self.is_connected) and not await self.can_read()
        except (RedisError, OSError):
            return False

    async def exchange(self, commands: Sequence[Command], timeout_s: float) -> list[Reply]:
        """Send commands in one write and return all answers; errors among them are values.

        Raises:
            LinkLostError: The link broke, or stayed silent for this time; it is closed.
        """
        if not self.is_connected:
            # redis-py would connect anew, and a new connection watches nothing.
            raise LinkLostError("not connected")
        try:
            async with asyncio.timeout(timeout_s):
                packed = b"".join(map(_pack, commands))
                await self.send_packed_command((packed,), check_health=False)
                return await self._answers(len(commands))
        except BaseException as error:
            await self.disconnect()
            if isinstance(error, RedisError | OSError):
                raise LinkLostError(_why_lost(error, timeout_s)) from error
            raise

    async def _answers(self, count: int) -> list[Reply]:
        replies: list[Reply] = []
        read = self._parser.read_response  # The connection's adds limits of its own.
        for _ in range(count):
            try:
                replies.append(await read())
            except RedisError as error:
                if error.status_code is None:
                    raise
                # An answer with a code that redis-py takes for a lost connection, such as LOADING.
                replies.append(ReplyError(str(error), status_code=error.status_code))
        return replies

    async def disconnect(self, *_: Any, **__: Any) -> None:
        """Drop the connection at once: the closing handshake of TLS waits for the server."""
        if self._writer is not None:
            self._writer.transport.abort()
        await super().disconnect(nowait=True)


async def _greet(link: Link) -> None:
    """Log in and choose the database; `HELLO` names the client without a right of its own."""
    await link.on_connect()
    await link.send_command("HELLO", 3, "SETNAME", "neve", check_health=False)
    link.server = await link.read_response()


class _TcpLink(Link, Connection):
    """A link over TCP."""


class _TlsLink(Link, SSLConnection):
    """A link over TLS."""


class _UnixLink(Link, UnixDomainSocketConnection):
    """A link over a Unix socket."""


def link_class(address: RedisAddress) -> type[Link]:
    """Return the class of links to an address."""
    if address.path is not None:
        return _UnixLink
    return _TcpLink if address.tls is None else _TlsLink


def link_arguments(address: RedisAddress, timeout_s: float) -> dict[str, Any]:
    """Return what pools of redis-py need to make links to an address."""
    return {"connection_class": link_class(address), "address": address, "timeout_s": timeout_s}


# ------------------------------------------------------------------------------------ Why it failed


_PROVE = "name ssl_certfile and ssl_keyfile that it trusts in store.url"
_HUNG_UP = f"it may refuse the certificate of this client, or miss one: {_PROVE}"
_NO_TLS = "if the server speaks no TLS there, name its TLS port, or write redis:// in store.url"
_TLS_ADVICE = {
    "certificate has expired": "renew the certificate of the server",
    "mismatch": "the certificate is for another name: write the name that it holds into store.url",
    "CERTIFICATE_VERIFY_FAILED": (
        "no authority that is trusted here has signed it: name the file of the server's as"
        " ssl_ca_certs in store.url"
    ),
    "CERTIFICATE_REQUIRED": _PROVE,
    "_ALERT_": "the server does not accept the certificate of this client, or its TLS",
    # The alert of a server that closes at once is lost.
    "closed by the server": _HUNG_UP,
    "connection lost": _HUNG_UP,
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "no answer within": _NO_TLS,
}
"""What OpenSSL or a link reports → what to do; the first that fits."""
_PLAIN_ADVICE = dict.fromkeys(
    ("closed by the server", "connection lost", "not the protocol"),
    "if the server speaks TLS, write rediss:// in place of redis://",
)
"""The same for a client without TLS."""


def why_unreachable(address: RedisAddress, error: Exception) -> str:
    """Return why a server cannot be used, and what to do if TLS is the reason."""
    if isinstance(error, RedisError) and (
        error.status_code is not None or isinstance(error, ResponseError)
    ):
        return f"{address} refuses: {text_of(error)}"
    cause = error.__context__
    if isinstance(error, TimeoutError | RedisTimeoutError):
        reason = f"cannot connect to {address} (no answer within the time limit)"
    elif isinstance(cause, OSError) and str(cause):
        is_greeting = "while reading" in str(error) or "while writing" in str(error)
        reason = f"{address}: connection lost" if is_greeting else f"cannot connect to {address}"
        reason += f" ({cause})"
    else:
        reason = f"{address}: {_why_lost(error, 0.0)}"
    advice = _PLAIN_ADVICE if address.tls is None else _TLS_ADVICE
    return "; ".join([reason, *[do for report, do in advice.items() if report in reason][:1]])


def _why_lost(error: Exception, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, InvalidResponse):
        return f"not the protocol of Redis ({error})"
    if "closed by server" in str(error):
        return "connection closed by the server"
    return f"connection lost ({error})"


# ------------------------------------------------------------------------------ Codes of refusals


NO_MEMORY = "OOM"
DEMOTED = ("READONLY", "MASTERDOWN", "UNBLOCKED")
"""Answers of a Redis that is no longer the primary, or is not sure that it is."""
ELSEWHERE = ("MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", *DEMOTED)
"""Answers of a node about a key that another node of the cluster has, or will have."""
TRANSIENT = (*ELSEWHERE, "LOADING", "BUSY", "NOREPLICAS", "MISCONF", NO_MEMORY)
"""Answers of a Redis that starts, fails over, moves a slot, is full or cannot write: nothing was
written, and the same change succeeds later."""
