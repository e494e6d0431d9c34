"""One connection to Redis: where it is, and many commands out in one write, all answers back."""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis
from redis.asyncio.connection import SSLConnection, parse_url

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
class RedisAddress:
    """How to reach one Redis and what to say first."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    """Unix socket; wins over host and port."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    database: int = 0
    tls: ssl.SSLContext | None = None

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


_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


def _tls(parts: dict[str, Any]) -> ssl.SSLContext:
    """Return how to check the server; only `ssl_cert_reqs=none` switches it off."""
    files = [parts.get(name) for name in _TLS_FILES]
    for name, path in zip(_TLS_FILES, files, strict=True):
        if path is not None and not Path(path).is_file():
            raise SettingError(f"store.url: {name} {path} is no file")
    authorities, own, key = files
    if key and not own:
        raise SettingError("store.url: ssl_keyfile has no ssl_certfile beside it: name both")
    try:
        context = ssl.create_default_context(cafile=authorities)
    except OSError as error:  # Errors of TLS are such, too.
        raise SettingError(
            f"store.url: ssl_ca_certs {authorities} holds no certificate that can be read: {error}"
        ) from error
    if own:
        _show(context, own, key)
    if parts.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _show(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    """Show a server who we are."""
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise SettingError(
            f"store.url: ssl_certfile {certificate} and ssl_keyfile {key or certificate} cannot be"
            f" used together: {error}"
        ) from error


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
# Written on hiredis directly because a scan reads hundreds of thousands of replies a second, and
# a change is one or two round trips; redis-py waits for each reply by itself. A link that broke,
# timed out or was cancelled half-way is never used again.


_NONE_YET = object()
_pack: Any = hiredis.pack_command  # Its stub knows tuples of one word only.


class ReplyError(Exception):
    """Redis answered a command with an error. Never leaves this package."""


class Link(asyncio.Protocol):
    """A connection that one task uses at a time."""

    def __init__(self) -> None:
        """Be not connected yet."""
        self.alive = False
        self.address = RedisAddress()
        self.server: Mapping[bytes, Reply] = {}
        """What the server said of itself when the link was opened (`HELLO`)."""
        self._transport: asyncio.Transport | None = None
        self._reader: Any = hiredis.Reader(
            protocolError=ReplyError, replyError=ReplyError, notEnoughData=_NONE_YET
        )
        self._replies: list[Reply] = []
        self._expected = 0
        self._waiter: asyncio.Future[list[Reply]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; called by the event loop."""
        assert isinstance(transport, asyncio.Transport), transport
        self._transport = transport
        self.alive = True

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever waits; called by the event loop."""
        self.alive = False
        reason = f"connection lost ({exc})" if exc else "connection closed by the server"
        self._fail(LinkLostError(reason))

    def data_received(self, data: bytes) -> None:
        """Collect answers; called by the event loop."""
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not _NONE_YET:
                self._replies.append(reply)
        except ReplyError as error:
            self._fail(LinkLostError(f"not the protocol of Redis ({error})"))
            self.close()
            return
        waiter = self._waiter
        if waiter is not None and len(self._replies) >= self._expected and not waiter.done():
            replies, self._replies = self._replies, []
            waiter.set_result(replies)

    async def exchange(self, commands: Sequence[Command], timeout_s: float | None) -> list[Reply]:
        """Send commands in one write and return all answers; errors among them are values.

        Args:
            commands: At least one.
            timeout_s: Longest silence; None: for ever.

        Raises:
            LinkLostError: The link broke or stayed silent; it is closed.
        """
        assert self._waiter is None, "a link serves one task at a time"
        if self._transport is None or not self.alive:
            raise LinkLostError("not connected")
        loop = asyncio.get_running_loop()
        self._expected = len(commands)
        waiter: asyncio.Future[list[Reply]] = loop.create_future()
        self._waiter = waiter
        timer = None
        if timeout_s is not None:
            timer = loop.call_later(timeout_s, self._expire, timeout_s)
        try:
            self._transport.write(b"".join(map(_pack, commands)))
            return await waiter
        except BaseException:
            self.close()  # Answers may be half-way: the next user would read them as its own.
            raise
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Break the link."""
        self.alive = False
        if self._transport is not None:
            self._transport.abort()

    def _expire(self, timeout_s: float) -> None:
        self._fail(LinkLostError(f"no answer within {timeout_s:g} s"))

    def _fail(self, error: LinkLostError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


async def open_link(address: RedisAddress, timeout_s: float) -> Link:
    """Connect, log in, choose the database.

    Raises:
        LinkLostError: Nobody there, or no entry.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            if address.path is not None:
                _, link = await loop.create_unix_connection(Link, address.path)
            else:
                _, link = await loop.create_connection(
                    Link, address.host, address.port, ssl=address.tls
                )
    except OSError as error:  # TimeoutError is one, too.
        why = str(error) or f"no answer within {timeout_s:g} s"
        reason = _advised(address, f"cannot connect to {address} ({why})")
        raise LinkLostError(reason) from error
    try:
        replies = await link.exchange(_greeting(address), timeout_s)
    except LinkLostError as error:
        raise LinkLostError(_advised(address, f"{address}: {error}")) from error
    for reply in replies:
        if isinstance(reply, ReplyError):
            link.close()
            raise LinkLostError(f"{address} refuses: {reply}")
    link.address, link.server = address, replies[0]
    return link


def _greeting(address: RedisAddress) -> list[Command]:
    hello: Command = ("HELLO", 3)
    if address.password is not None:
        hello = (*hello, "AUTH", address.username or "default", address.password)
    greeting: list[Command] = [(*hello, "SETNAME", "neve")]
    if address.database:
        greeting.append(("SELECT", address.database))
    return greeting
