"""Where a store is, the connections to its servers, what their errors mean, and who owns a slot.

    RedisAddress    one server, as `store.url` names it
    Link            one connection: many commands in one write
    Node, Nodes     one server and the pool of redis-py for it; all servers of a store
    _Primary        the primary that Sentinels name
    ClusterNodes    the primaries of a Redis Cluster, by the slot map of redis-py

The connections are those of redis-py, with every retry of the library off: a change is repeated
by its executor, which looks for the mark of the change first. A connection that broke, timed out
or was cancelled is never used again, since the next reader would take its late answers. A pool asks
for the primary again with each new connection, so a fail-over needs no restart.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import hiredis

from common.errors import MetadataError, SettingError
from common.metadata.keyspace import Command, LinkLostError, Reply, StoreBusyError
from common.runtime import not_installed

with not_installed("opentelemetry"):  # redis-py would measure itself.
    from redis.asyncio import Redis
    from redis.asyncio.cluster import ClusterNode, NodesManager
    from redis.asyncio.connection import (
        Connection,
        ConnectionPool,
        DefaultParser,
        SSLConnection,
        parse_url,
    )
    from redis.asyncio.retry import Retry
    from redis.asyncio.sentinel import Sentinel
    from redis.backoff import NoBackoff
    from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot
    from redis.exceptions import InvalidResponse, RedisClusterException, RedisError, ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError

# --------------------------------------------------------------------------------------- Addresses

SENTINEL_FORM = "redis+sentinel://[user:password@]host:26379,host:26379,host:26379/SERVICE/DB"
CLUSTER_FORM = "redis+cluster://[user:password@]host:6379,host:6379,host:6379"
_PARTS = ("host", "port", "db", "username", "password")
_KINDS = {
    "sentinel": ("Sentinels", SENTINEL_FORM, "a Sentinel", 26379),
    "cluster": ("a Redis Cluster", CLUSTER_FORM, "a node", 6379),
}
"""What comes after `+` in the scheme → what it means, its form, and what each server is."""


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """How to reach one Redis, and the login there."""

    host: str = "127.0.0.1"
    port: int = 6379
    path: str | None = None
    """Unix socket; wins over host and port."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
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
    if inner not in {"redis", "rediss"} or kind not in _KINDS:
        return parse_address(url)
    rest, _, query = rest.partition("?")
    servers, _, path = rest.partition("/")
    login, at, hosts = servers.rpartition("@")
    try:
        template = parse_address(f"{inner}://{login}{at}server?{query}")
        return (_sentinels if kind == "sentinel" else _cluster)(template, hosts, path, query)
    except ValueError as error:
        what, form, *_ = _KINDS[kind]
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
    known = {name: parts[name] for name in (*_PARTS, "path") if name in parts}
    tls = _tls(parts) if parts.get("connection_class") is SSLConnection else None
    return RedisAddress(**known, tls=tls)


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
    user, password = login.get("sentinel_username"), login.get("sentinel_password")
    sentinel = replace(primary, username=user, password=password, db=0)
    return StoreServers(
        _servers(sentinel, hosts, "sentinel"),
        replace(primary, db=int(database or primary.db)),
        unquote(service),
    )


def _cluster(node: RedisAddress, hosts: str, path: str, _query: str) -> StoreServers:
    if database := node.db if path in {"", "0"} else path:
        raise ValueError(f"database {database!r} is not 0, the only one of a cluster")
    return StoreServers(_servers(node, hosts, "cluster"), node)


def _servers(template: RedisAddress, hosts: str, kind: str) -> tuple[RedisAddress, ...]:
    *_, whose, default_port = _KINDS[kind]
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


class _Parser(DefaultParser):  # type: ignore[valid-type,misc]  # redis-py chooses it when imported
    """A parser that leaves errors as Redis wrote them: the code decides what one means.

    redis-py would keep codes that it knows apart from the text, and take some, such as `LOADING`,
    for a lost connection.
    """

    EXCEPTION_CLASSES: dict[str, Any] = {}  # noqa: RUF012  # As redis-py declares it.


class Link(Connection):
    """A connection that one task uses at a time, over TCP, TLS or a Unix socket."""

    _parser: Any

    def __init__(self, *, address: RedisAddress, timeout_s: float, **arguments: Any) -> None:
        """Create a link; `arguments` of redis-py win over the address."""
        self.address = address
        self.timeout_s = timeout_s
        """Longest wait for a connection, and for an answer."""
        self.server: Mapping[bytes, Reply] = {}
        """The answer to `HELLO`."""
        ours: dict[str, Any] = {
            **{name: getattr(address, name) for name in _PARTS},
            "driver_info": None,
            "parser_class": _Parser,
            "socket_timeout": None,
            "socket_connect_timeout": timeout_s,
        }
        super().__init__(**ours | arguments | {"protocol": 3, "retry": Retry(NoBackoff(), 0)})

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "ssl": self.address.tls}

    async def _connect(self) -> None:
        if self.address.path is None:
            await super()._connect()  # type: ignore[no-untyped-call]  # redis-py's own
        else:
            self._reader, self._writer = await asyncio.open_unix_connection(self.address.path)

    async def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in and choose the database; `HELLO` names the client without a right of its own."""
        await super().on_connect_check_health(check_health)
        await self.send_command("HELLO", 3, "SETNAME", "neve", check_health=False)
        self.server = await self.read_response()

    async def open(self) -> None:
        """Connect, log in, choose the database.

        Raises:
            LinkLostError: No server answers, or it refuses.
        """
        try:
            async with asyncio.timeout(self.timeout_s):
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

    async def exchange(self, commands: Sequence[Command], wait_s: float = 0.0) -> list[Reply]:
        """Send commands in one write and return all answers; errors among them are values.

        `wait_s` is how long the commands themselves may wait.

        Raises:
            LinkLostError: The link broke, or stayed silent for too long; it is closed.
        """
        timeout_s = self.timeout_s + wait_s
        if not self.is_connected:
            # redis-py would connect anew, and a new connection watches nothing.
            raise LinkLostError("not connected")
        try:
            async with asyncio.timeout(timeout_s):
                packed = b"".join(map(hiredis.pack_command, commands))  # type: ignore[arg-type]  # Its stub knows tuples of one word only.
                await self.send_packed_command((packed,), check_health=False)
                read = self._parser.read_response  # The connection's adds limits of its own.
                return [await read() for _ in commands]
        except BaseException as error:
            await self.disconnect()
            if isinstance(error, RedisError | OSError):
                raise LinkLostError(_why_lost(error, timeout_s)) from error
            raise

    async def disconnect(self, *_: Any, **__: Any) -> None:
        """Drop the connection at once: the closing handshake of TLS waits for the server."""
        if self._writer is not None:
            self._writer.transport.abort()
        await super().disconnect(nowait=True)


def link_arguments(address: RedisAddress, timeout_s: float, **more: Any) -> dict[str, Any]:
    """Return what pools of redis-py need to make links to an address."""
    return {"connection_class": Link, "address": address, "timeout_s": timeout_s, **more}


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
    if isinstance(error, ReplyError):
        return f"{address} refuses: {error}"
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


# ------------------------------------------------------------------------------------------ Servers


LOOKUP_WAIT_S = 2.0
"""Longest wait for one Sentinel, or for the slot map of one node: the next one may answer."""
_UNBOUNDED = 1 << 30


class Node:
    """One server, and the connections to it. Every idle one is whole and watches nothing."""

    def __init__(self, address: RedisAddress, connections_max: int, timeout_s: float) -> None:
        """Create a node with so many connections for reads and changes; streams have their own."""
        self.address = address
        self.tags: Sequence[str] = ("",)
        """Endings of the keys under which it may hold something of its own; it uses the first."""
        self.retired = False
        """Whether no slot is there any more."""
        self._pool = ConnectionPool(
            max_connections=_UNBOUNDED, **link_arguments(address, timeout_s)
        )
        self._permits = asyncio.Semaphore(connections_max)
        self._primary: RedisAddress | None = None

    @asynccontextmanager
    async def lend(self, *, extra: bool = False, fresh: bool = False) -> AsyncIterator[Link]:
        """Lend a link for a read or a change.

        Args:
            extra: To a caller that may not wait for others, or that waits long itself.
            fresh: Connect anew, which finds out where the primary is.
        """
        async with nullcontext() if extra else self._permits:
            link: Link = self._pool.get_available_connection()  # type: ignore[no-untyped-call]  # redis-py's own
            try:
                if fresh or not await link.is_clean():
                    await link.disconnect()
                    await self._open(link)
                    if link.address != self._primary:
                        self._primary = link.address
                        await self.close_idle()  # They lead to an earlier primary.
                yield link
                if self.retired or link.address != self._primary:
                    await link.disconnect()
            except BaseException as error:
                await link.disconnect()  # It may watch keys, or have answers left.
                if isinstance(error, LinkLostError):
                    await self._doubt(error)
                raise
            finally:
                await self._pool.release(link)

    async def _open(self, link: Link) -> None:
        """Connect to a server that must be able to hold a store."""
        await link.open()
        if other := _OTHERS.get(link.server[b"mode"]):
            raise MetadataError(f"{link.address} is a {other}")

    async def _doubt(self, error: LinkLostError) -> None:
        """Close idle connections: a server that is silent, or demoted, to one is so to all."""
        if not isinstance(error, StoreBusyError) or str(error).startswith(DEMOTED):
            await self.close_idle()

    async def send(self, commands: Sequence[Command]) -> list[Reply]:
        """Send single commands without a permit, for which callers that need room may wait."""
        async with self.lend(extra=True, fresh=True) as link:
            return await link.exchange(commands)

    async def close_idle(self) -> None:
        """Close all connections that are not lent."""
        await self._pool.disconnect(inuse_connections=False)


_OTHERS = {
    b"sentinel": f"Sentinel, which holds no data: write store.url as {SENTINEL_FORM}",
    b"cluster": f"node of a Redis Cluster: write store.url as {CLUSTER_FORM}",
}


class Nodes:
    """The servers of a store. Here the one that has everything."""

    def __init__(self, only: Node | None) -> None:
        """Use one node for everything; None: slots decide."""
        self.only = only
        self._every: Sequence[Node] = [only] if only else []

    @staticmethod
    def of(url: str, connections_max: int, timeout_s: float) -> "Nodes":
        """Return the servers of the store that `store.url` names, none of them connected."""
        source = parse_url_of_store(url)
        if isinstance(source, RedisAddress):
            return Nodes(Node(source, connections_max, timeout_s))
        if source.service:
            return Nodes(_Primary(source, connections_max, timeout_s))
        return ClusterNodes(source, connections_max, timeout_s)

    def slot_of(self, key: str) -> int:
        """Return the slot of a key."""
        return 0

    async def node_of(self, slot: int) -> Node:
        """Return the node that owns a slot.

        Raises:
            StoreBusyError: None owns it.
            LinkLostError: No node answers.
        """
        return self._every[0]

    async def every(self) -> Sequence[Node]:
        """Return all nodes that own slots, in a fixed order."""
        return self._every

    async def close_idle(self) -> None:
        """Close all connections that are not lent."""
        for node in self._every:
            await node.close_idle()


# ---------------------------------------------------------------------------------------- Sentinels


class _IgnorantError(LinkLostError):
    """A server that answers does not know the service."""


_NOT_FOUND = {
    StoreBusyError: (
        "the primary {!r} that the Sentinels name does not serve ({}): a fail-over may be under way"
    ),
    _IgnorantError: "no Sentinel knows a service {!r}: {}",
    LinkLostError: "no Sentinel answers: {1}",
}
"""Problem → how it is reported if it is the one that matters most."""


class _Primary(Node):
    """A primary that is found by its Sentinels, in the steps that Redis asks of clients.

    `Sentinel.discover_master` believes the first Sentinel that answers. This asks the next one if
    the server that it names does not serve as primary.
    """

    def __init__(self, servers: StoreServers, connections_max: int, timeout_s: float) -> None:
        super().__init__(servers.login, connections_max, timeout_s)
        self._service = servers.service
        self._wait_s = min(timeout_s, LOOKUP_WAIT_S)
        self._sentinels = list(servers.known)

    async def _open(self, link: Link) -> None:
        problems: dict[RedisAddress, LinkLostError] = {}
        for sentinel in list(self._sentinels):
            subject = sentinel
            try:
                subject = await self._primary_of(sentinel)
                if subject not in problems:
                    await self._open_primary(link, subject)
                    self._sentinels.sort(key=sentinel.__ne__)  # It is asked first next time.
                    return
            except LinkLostError as error:
                problems[subject] = error
        for kind, form in _NOT_FOUND.items():
            texts = [str(problem) for problem in problems.values() if isinstance(problem, kind)]
            if texts:
                raise kind(form.format(self._service, "; ".join(texts)))

    async def _primary_of(self, sentinel: RedisAddress) -> RedisAddress:
        """Return the address of the primary that a Sentinel names."""
        arguments = link_arguments(sentinel, self._wait_s, socket_timeout=self._wait_s, protocol=3)
        try:
            async with Redis.from_pool(ConnectionPool(**arguments)) as client:
                services: Any = await client.sentinel_masters()
        except (RedisError, OSError) as error:
            if "unknown command" in str(error):
                raise _IgnorantError(f"{sentinel} is no Sentinel") from error
            raise LinkLostError(why_unreachable(sentinel, error)) from error
        if self._service not in services:
            raise _IgnorantError(f"{sentinel} knows {', '.join(sorted(services)) or 'none'}")
        state = services[self._service]
        primary = replace(self.address, host=state["ip"], port=int(state["port"]))
        if not Sentinel([]).check_master_state(state, self._service):  # type: ignore[no-untyped-call]  # redis-py's own
            raise StoreBusyError(f"{primary} is down, as {sentinel} reports")
        return primary

    async def _open_primary(self, link: Link, primary: RedisAddress) -> None:
        """Connect a link to a server that serves as primary; raise `StoreBusyError` if not."""
        link.address = primary
        link.host, link.port = primary.host, primary.port
        try:
            await super()._open(link)
        except LinkLostError as error:
            raise StoreBusyError(str(error)) from error
        # The role as `ROLE` reports it. It comes with the greeting, and needs no right.
        if link.server.get(b"role") != b"master":
            await link.disconnect()
            raise StoreBusyError(f"{primary} is a replica by now")


# ---------------------------------------------------------------------------------- A Redis Cluster


TAGGED_SLOTS = range(0, REDIS_CLUSTER_HASH_SLOTS, 64)
"""Slots in which nodes hold what is their own: few, so that all of them can be looked into."""


@cache
def tag_of_slot(slot: int) -> str:
    """Return a hash tag whose keys lie in a slot."""
    return next(str(number) for number in count() if key_slot(b"%d" % number) == slot)


class _Member(Node):
    """A node of a cluster; what fails there makes the slot map doubtful."""

    def __init__(self, cluster: "ClusterNodes", address: RedisAddress, *limits: Any) -> None:
        super().__init__(address, *limits)
        self._cluster = cluster

    async def _open(self, link: Link) -> None:
        try:
            await link.open()
        except LinkLostError as error:
            self._cluster.doubt_map(str(self.address))
            raise StoreBusyError(
                f"a node of the Redis Cluster does not answer ({error}): a fail-over may be under"
                " way"
            ) from error

    async def _doubt(self, error: LinkLostError) -> None:
        await super()._doubt(error)
        if not isinstance(error, StoreBusyError):
            self._cluster.doubt_map(str(self.address))
        elif str(error).startswith(ELSEWHERE):
            self._cluster.doubt_map()


class ClusterNodes(Nodes):
    """The primaries of a Redis Cluster, and the slot map of redis-py as a node gave it last.

    An answer that a key is elsewhere, and a node that is silent, dead or demoted, make the map
    doubtful. It is read again before it is used, since a replica may have taken over.
    """

    def __init__(self, servers: StoreServers, connections_max: int, timeout_s: float) -> None:
        """Create the nodes that the map names later; the seeds can be asked for it, too."""
        super().__init__(None)
        wait_s = min(timeout_s, LOOKUP_WAIT_S)
        first = self._login = servers.known[0]
        arguments = link_arguments(first, wait_s, socket_timeout=wait_s)
        self._seeds = [ClusterNode(node.host, node.port, **arguments) for node in servers.known]
        self._map = NodesManager(
            self._seeds,
            require_full_coverage=False,
            connection_kwargs=arguments,
            dynamic_startup_nodes=False,
            # A node that does not know its own host is reached where the seed is.
            address_remap=lambda at: (at[0] if at[0] not in (None, "?") else first.host, at[1]),
        )
        self._limits = connections_max, timeout_s
        self._nodes: dict[str, Node] = {}
        self._is_doubtful = True
        self._silent: str | None = None
        self._asking = asyncio.Lock()

    def slot_of(self, key: str) -> int:
        """Return the slot of a key."""
        return key_slot(key.encode())

    async def node_of(self, slot: int) -> Node:
        """Return the node that owns a slot."""
        await self._refresh()
        owners = self._map.slots_cache.get(slot)
        if not owners:
            self._is_doubtful = True
            raise StoreBusyError(f"CLUSTERDOWN no node of the Redis Cluster has slot {slot}")
        return self._nodes[owners[0].name]

    async def every(self) -> Sequence[Node]:
        """Return all primaries that own slots, in the order of their addresses."""
        await self._refresh()
        return self._every

    def doubt_map(self, silent: str | None = None) -> None:
        """Read the map again before it is used, from a silent node last."""
        self._is_doubtful = True
        self._silent = self._silent or silent

    async def _refresh(self) -> None:
        while self._is_doubtful:
            async with self._asking:
                if self._is_doubtful:
                    await self._read_map()
                    await self._follow_map()
                    self._is_doubtful, self._silent = False, None

    async def _read_map(self) -> None:
        """Ask one node after the other for the map, the silent one last."""
        self._map.startup_nodes = {node.name: node for node in self._seeds} | self._map.nodes_cache
        try:
            await self._map.initialize(last_failed_node_name=self._silent)
        except RedisClusterException as error:
            raise self._not_found(error) from error
        except IndexError as error:  # redis-py looks for a primary among no nodes.
            raise StoreBusyError("no node of the Redis Cluster knows one that has slots") from error
        finally:
            await self._map.aclose("startup_nodes")

    def _not_found(self, error: RedisClusterException) -> Exception:
        """Return why no node gave the map; redis-py calls every refusal a server without slots."""
        last = error.__cause__
        refusal = last.__context__ if isinstance(last, RedisClusterException) else last
        nodes = ", ".join(f"{node.host}:{node.port}" for node in self._seeds)
        text = str(refusal or error)
        if "cluster support disabled" in text:
            return MetadataError(
                f"{nodes} is no node of a Redis Cluster (`cluster-enabled no`): write store.url as"
                " redis://host:port"
            )
        return StoreBusyError(f"no node of the Redis Cluster answers: {nodes}: {text}")

    async def _follow_map(self) -> None:
        """Have a pool for each primary of the map; connections to other servers end."""
        slots: dict[str, list[int]] = {}
        for slot, owners in self._map.slots_cache.items():
            slots.setdefault(owners[0].name, []).append(slot)
        for name in self._nodes.keys() - slots.keys():
            gone = self._nodes.pop(name)
            gone.retired = True
            await gone.close_idle()
        for name, own in slots.items():
            if name not in self._nodes:
                owner = self._map.nodes_cache[name]
                address = replace(self._login, host=owner.host, port=int(owner.port))
                self._nodes[name] = _Member(self, address, *self._limits)
            tagged = [slot for slot in own if slot in TAGGED_SLOTS] or [min(own)]
            self._nodes[name].tags = [f":{{{tag_of_slot(slot)}}}" for slot in sorted(tagged)]
        self._every = [self._nodes[name] for name in sorted(self._nodes)]
