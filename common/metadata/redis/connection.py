"""One connection to Redis: where it is, and many commands out in one write, all answers back."""

import asyncio
import math
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis
import redis
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
    parse_url,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    RedisError,
    ResponseError,
)

from common.metadata.commands import Command, Reply
from common.metadata.keyspace import LinkLostError
from common.setting_rules import SettingError

# ---------------------------------------------------------------------------------------- Addresses


SENTINEL_PORT = 26379
SENTINEL_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
"""Scheme of a URL of Sentinels → scheme of each server behind it."""
SENTINEL_FORM = "redis+sentinel://[user:password@]host:26379,host:26379,host:26379/SERVICE/DB"

CLUSTER_PORT = 6379
CLUSTER_SCHEMES = {"redis+cluster": "redis", "rediss+cluster": "rediss"}
"""Scheme of a URL of a Redis Cluster → scheme of each of its nodes."""
CLUSTER_FORM = "redis+cluster://[user:password@]host:6379,host:6379,host:6379"


@dataclass(frozen=True, slots=True)
class Tls:
    """How to check a server, and how to show it who we are: paths of files in PEM."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    cert_reqs: str = "required"

    @property
    def check_hostname(self) -> bool:
        """Whether the server's certificate must be for its name."""
        return self.cert_reqs != "none"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of redis-py that mean the same."""
        return {f"ssl_{field.name}": getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """How to reach one Redis and what to say first."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    """Unix socket; wins over host and port."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: Tls | None = None

    def __str__(self) -> str:
        """Return the place without its secrets."""
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
    """A primary whose place only its Sentinels know."""

    sentinels: tuple[RedisAddress, ...]
    name: str
    """What the Sentinels call the primary and its replicas."""
    primary: RedisAddress
    """How to log in there. Host and port are the Sentinels' answer."""

    def primary_at(self, host: str, port: int) -> RedisAddress:
        """Return how to reach the primary at a place."""
        return replace(self.primary, host=host, port=port)


@dataclass(frozen=True, slots=True)
class ClusterSeeds:
    """A Redis Cluster, of which some nodes are known. They tell where the others are."""

    nodes: tuple[RedisAddress, ...]

    def node_at(self, host: str, port: int) -> RedisAddress:
        """Return how to reach the node at a place."""
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
    """Return the nodes in a URL behind its scheme; user and password are those of every node."""
    rest, _, query = rest.partition("?")
    places, _, database = rest.partition("/")
    login, _, hosts = places.rpartition("@")
    if database not in ("", "0"):
        raise ValueError(f"database {database!r} is not 0, the only one of a cluster")
    node = parse_address(f"{scheme}://{login}{'@' * bool(login)}node?{query}")
    if node.database:
        raise ValueError(f"database {node.database} is not 0, the only one of a cluster")
    found = (_place(node, host, CLUSTER_PORT, "a node") for host in hosts.split(","))
    return ClusterSeeds(tuple(found))


def _parse_sentinels(scheme: str, rest: str) -> StoreSource:
    """Return the service in a URL behind its scheme.

    The form is that of the packages redis-sentinel-url and limits. User and password are the
    primary's; Sentinels have `sentinel_username` and `sentinel_password` in the query.
    """
    rest, _, query = rest.partition("?")
    places, _, path = rest.partition("/")
    login, _, hosts = places.rpartition("@")
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
    hosts_found = (_place(template, host, SENTINEL_PORT, "a Sentinel") for host in hosts.split(","))
    return SentinelService(
        sentinels=tuple(hosts_found),
        name=unquote(service),
        primary=replace(primary, database=int(database or primary.database)),
    )


def _place(template: RedisAddress, text: str, port: int, whose: str) -> RedisAddress:
    parts = urlsplit(f"//{text.strip()}")
    if not parts.hostname:
        raise ValueError(f"the host of {whose} is missing")
    return replace(template, host=parts.hostname, port=parts.port or port)


def _tls(parts: Mapping[str, Any]) -> Tls:
    """Return how to check the server; only `ssl_cert_reqs=none` switches it off."""
    tls = Tls(
        ca_certs=parts.get("ssl_ca_certs"),
        certfile=parts.get("ssl_certfile"),
        keyfile=parts.get("ssl_keyfile"),
        cert_reqs="none" if parts.get("ssl_cert_reqs") == "none" else "required",
    )
    for name in ("ca_certs", "certfile", "keyfile"):
        path = getattr(tls, name)
        if path is not None and not Path(path).is_file():
            raise SettingError(f"store.url: ssl_{name} {path} is no file")
    if tls.keyfile and not tls.certfile:
        raise SettingError("store.url: ssl_keyfile has no ssl_certfile: name both")
    try:
        context = ssl.create_default_context(cafile=tls.ca_certs)
    except OSError as error:  # Errors of TLS are such, too.
        raise SettingError(
            f"store.url: ssl_ca_certs {tls.ca_certs} holds no certificate that can be read: {error}"
        ) from error
    try:
        if tls.certfile:
            context.load_cert_chain(tls.certfile, tls.keyfile)
    except OSError as error:
        raise SettingError(
            f"store.url: ssl_certfile {tls.certfile} and ssl_keyfile"
            f" {tls.keyfile or tls.certfile} cannot be used together: {error}"
        ) from error
    return tls


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
    # A server that hangs up at once takes its words along.
    "closed by the server": _HUNG_UP,
    "connection lost": _HUNG_UP,
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "no answer within": _NO_TLS,
}
"""What OpenSSL or a link says → what to do; the first that fits."""
_PLAIN_ADVICE = "if the server speaks TLS, write rediss:// in place of redis://"
_UNHEARD = ("closed by the server", "connection lost", "not the protocol")
"""What a client without TLS finds at a port of TLS."""


def _advised(address: RedisAddress, reason: str) -> str:
    """Return why a connection failed, and what to do if it is about TLS."""
    if address.tls is None:
        advice = _PLAIN_ADVICE if any(word in reason for word in _UNHEARD) else ""
    else:
        advice = next((do for said, do in _TLS_ADVICE.items() if said in reason), "")
    return f"{reason}; {advice}" if advice else reason


# ---- Connections
#
# The connections of redis-py, with its retries off: a change is repeated by its executor, which
# looks for its mark first. A link that broke, timed out or was cancelled half-way is never used
# again: answers of the exchange before would be taken for its own.


ReplyError = ResponseError
"""Redis answered a command with an error. Never leaves this package."""

_pack: Any = hiredis.pack_command  # Its stub knows tuples of one word only.


def text_of(error: RedisError) -> str:
    """Return an answer's words as Redis wrote them: redis-py cuts off codes that it knows."""
    return f"{error.status_code} {error}" if error.status_code else str(error)


class Link:
    """A connection that one task uses at a time."""

    def __init__(self, address: RedisAddress, timeout_s: float) -> None:
        """Make a link that is not connected.

        Args:
            address: Where to.
            timeout_s: Longest wait for a connection.
        """
        self.address = address
        self.server: Mapping[bytes, Reply] = {}
        """What the server answered to `HELLO`."""
        self._timeout_s = timeout_s
        self._connection = _connection(address, timeout_s)

    @property
    def alive(self) -> bool:
        """Whether it is connected, as far as is known."""
        return bool(self._connection.is_connected)

    async def is_clean(self) -> bool:
        """Return whether it is connected and no answer is left on it."""
        try:
            return self.alive and not await self._connection.can_read()
        except (RedisError, OSError):
            return False

    async def open(self) -> None:
        """Connect, log in, choose the database.

        Raises:
            LinkLostError: No server answers, or it refuses.
        """
        try:
            await self._connection.connect()  # type: ignore[no-untyped-call]  # redis-py's own
        except (AuthenticationError, BusyLoadingError, ReplyError) as error:
            raise LinkLostError(f"{self.address} refuses: {text_of(error)}") from error
        except (RedisError, OSError) as error:
            raise LinkLostError(_why_not_connected(self.address, error, self._timeout_s)) from error
        # `HELLO` names the client without the right to `CLIENT SETNAME`.
        hello: Command = ("HELLO", 3, "SETNAME", "neve")
        (self.server,) = await self.exchange([hello], self._timeout_s)

    async def exchange(self, commands: Sequence[Command], timeout_s: float | None) -> list[Reply]:
        """Send commands in one write and return all answers; errors among them are values.

        Args:
            commands: At least one.
            timeout_s: Longest wait for the answers; None: for ever.

        Raises:
            LinkLostError: The link broke or stayed silent; it is closed.
        """
        if not self.alive:
            raise LinkLostError("not connected")
        packed = b"".join(map(_pack, commands))
        try:
            async with asyncio.timeout(timeout_s):
                await self._connection.send_packed_command([packed], check_health=False)
                return [await self._reply() for _ in commands]
        except BaseException as error:
            await self.close()
            if isinstance(error, RedisError | OSError):
                raise LinkLostError(_why_lost(error, timeout_s)) from error
            raise

    async def _reply(self) -> Reply:
        try:
            return await self._connection.read_response(
                disable_decoding=True, timeout=math.inf, disconnect_on_error=False
            )
        except BusyLoadingError as error:  # An answer, for us: the connection is sound.
            return ReplyError(str(error), status_code=error.status_code)
        except ReplyError as error:
            return error

    async def close(self) -> None:
        """Break the link."""
        with suppress(RedisError, OSError):
            await self._connection.disconnect(nowait=True)


class _Aborting(AbstractConnection):
    """A connection that is dropped at once, without the closing handshake of TLS."""

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        """Disconnect from the server."""
        if self._writer is not None:
            self._writer.transport.abort()
        await super().disconnect(*args, **kwargs)


class _Connection(_Aborting, Connection):
    """TCP."""


class _SSLConnection(_Aborting, SSLConnection):
    """TCP with TLS."""


class _UnixConnection(_Aborting, UnixDomainSocketConnection):
    """A socket of Unix."""


def _connection(address: RedisAddress, timeout_s: float) -> AbstractConnection:
    arguments: dict[str, Any] = {
        "db": address.database,
        "username": address.username,
        "password": address.password,
        "protocol": 3,
        "driver_info": None,
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "maint_notifications_config": None,
    }
    if address.path is not None:
        return _UnixConnection(path=address.path, **arguments)
    arguments |= {"host": address.host, "port": address.port}
    if address.tls is None:
        return _Connection(**arguments)
    return _SSLConnection(**arguments, **address.tls.arguments())


def _why_not_connected(address: RedisAddress, error: Exception, timeout_s: float) -> str:
    context = error.__context__
    if isinstance(context, OSError) and str(context):
        return _advised(address, f"cannot connect to {address} ({context})")
    if isinstance(error, redis.exceptions.TimeoutError | TimeoutError):
        return _advised(address, f"cannot connect to {address} (no answer within {timeout_s:g} s)")
    return _advised(address, f"{address}: {_why_lost(error, timeout_s)}")


def _why_lost(error: Exception, timeout_s: float | None) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, InvalidResponse):
        return f"not the protocol of Redis ({error})"
    if "closed by server" in str(error):
        return "connection closed by the server"
    return f"connection lost ({error})"


async def open_link(address: RedisAddress, timeout_s: float) -> Link:
    """Connect, log in, choose the database.

    Raises:
        LinkLostError: No server answers, or it refuses.
    """
    link = Link(address, timeout_s)
    try:
        await link.open()
    except BaseException:
        await link.close()
        raise
    return link
