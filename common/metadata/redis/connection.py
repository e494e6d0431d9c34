"""One connection to Redis: many commands in one write, all answers, and what its errors mean.

The connections are those of redis-py, with every retry of the library off: a change is repeated
by its executor, which looks for the mark of the change first. A connection that broke, timed out
or was cancelled is never used again, since the next reader would take its late answers.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import hiredis

from common.metadata.keyspace import Command, LinkLostError, Reply
from common.metadata.redis.address import RedisAddress
from common.runtime import not_installed

with not_installed("opentelemetry"):  # redis-py would measure itself.
    from redis.asyncio.connection import (
        AbstractConnection,
        Connection,
        SSLConnection,
        UnixDomainSocketConnection,
    )
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import InvalidResponse, RedisError, ResponseError
    from redis.exceptions import TimeoutError as RedisTimeoutError

ReplyError = ResponseError
"""Redis answered a command with an error. It never leaves this package."""

_pack: Any = hiredis.pack_command  # Its stub knows tuples of one word only.


def text_of(error: RedisError) -> str:
    """Return an answer as Redis wrote it: redis-py keeps codes that it knows apart from the text.

    The code decides what an error means. The classes of redis-py do not: `LOADING` is a lost
    connection there.
    """
    return f"{error.status_code} {error}" if error.status_code else str(error)


class Link(AbstractConnection):
    """A connection that one task uses at a time."""

    host: str
    port: int
    ssl_context: Any

    def __init__(self, *, address: RedisAddress, timeout_s: float, **arguments: Any) -> None:
        """Create a link that is not connected.

        Args:
            address: Of the server.
            timeout_s: Longest wait for a connection.
            arguments: Of redis-py; they win over the address.
        """
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

        Args:
            commands: At least one.
            timeout_s: Longest wait for the answers.

        Raises:
            LinkLostError: The link broke or stayed silent; it is closed.
        """
        if not self.is_connected:
            # redis-py would connect anew, and a new connection watches nothing.
            raise LinkLostError("not connected")
        try:
            async with asyncio.timeout(timeout_s):
                packed = b"".join(map(_pack, commands))
                await self.send_packed_command((packed,), check_health=False)
                return [await self._answer() for _ in commands]
        except BaseException as error:
            await self.disconnect()
            if isinstance(error, RedisError | OSError):
                raise LinkLostError(_why_lost(error, timeout_s)) from error
            raise

    async def _answer(self) -> Reply:
        try:
            return await self.read_response(timeout=math.inf, disconnect_on_error=False)
        except ResponseError as error:
            return error
        except RedisError as error:
            if error.status_code is None:
                raise
            # An answer with a code that redis-py takes for a lost connection, such as LOADING.
            return ReplyError(str(error), status_code=error.status_code)

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
_PLAIN_ADVICE = "if the server speaks TLS, write rediss:// in place of redis://"
_PLAIN_FAILURES = ("closed by the server", "connection lost", "not the protocol")
"""What a client without TLS finds at a port of TLS."""


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
    if address.tls is None:
        advice = _PLAIN_ADVICE if any(word in reason for word in _PLAIN_FAILURES) else ""
    else:
        advice = next((do for report, do in _TLS_ADVICE.items() if report in reason), "")
    return f"{reason}; {advice}" if advice else reason


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
