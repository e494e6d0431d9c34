"""The HTTP server: uvicorn, how many connections there may be, and how long it waits for whom."""

import asyncio
import resource
import ssl
from typing import Any, ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from common.telemetry import Log
from neve.gateway.app import create_app
from neve.gateway.services import Services
from neve.gateway.tls import ServerCertificate, require_safe_listener

DESCRIPTORS_KEPT = 384
"""Descriptors that connections leave to everything else: store, files, those just accepted."""
DESCRIPTORS_WANTED = 65_536
BACKLOG = 128
"""Connections that the system accepts on its own; all of them may arrive at one moment."""
LEAST = 16


def connections_max(wanted: int) -> int:
    """Return how many connections there can be, with room for other descriptors.

    Args:
        wanted: What the settings say.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(hard, DESCRIPTORS_WANTED):
        soft = min(hard, DESCRIPTORS_WANTED)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(LEAST, min(wanted, soft - DESCRIPTORS_KEPT))


class ServerConnections:
    """Those of one server, and which of them wait for a head, longest first."""

    def __init__(self, most: int, head_wait_s: float, answer_wait_s: float, log: Log) -> None:
        """Know of none.

        Args:
            most: Connections at a time.
            head_wait_s: Longest wait for the head of a request.
            answer_wait_s: Longest time in which nothing of an answer is taken.
            log: Hears when some had to go.
        """
        self.most = most
        self.head_wait_s = head_wait_s
        self.answer_wait_s = answer_wait_s
        self._log = log
        self._waiting: dict[H11Protocol | _Handshake, asyncio.TimerHandle] = {}
        self._shaking: set[_Handshake] = set()
        self._full: dict[H11Protocol, asyncio.TimerHandle] = {}
        self._crowded = False

    def waits(self, connection: "H11Protocol | _Handshake") -> None:
        """Note that a connection waits for a head, or for its TLS, from now on."""
        self.served(connection)
        loop = asyncio.get_running_loop()
        late = loop.call_later(self.head_wait_s, connection.transport.abort)
        self._waiting[connection] = late
        if isinstance(connection, _Handshake):
            self._shaking.add(connection)
        self._make_room(len(connection.connections) + len(self._shaking))

    def served(self, connection: "H11Protocol | _Handshake") -> None:
        """Note that a connection waits no longer: its head is there, or it is over."""
        if late := self._waiting.pop(connection, None):
            late.cancel()
        if isinstance(connection, _Handshake):
            self._shaking.discard(connection)

    def is_full(self, connection: H11Protocol) -> None:
        """Note that nobody takes what is sent over a connection."""
        self.flows(connection)
        late = asyncio.get_running_loop().call_later(self.answer_wait_s, self._cut, connection)
        self._full[connection] = late

    def flows(self, connection: H11Protocol) -> None:
        """Note that what is sent over a connection is taken, or that it is over."""
        if late := self._full.pop(connection, None):
            late.cancel()

    def _cut(self, connection: H11Protocol) -> None:
        self._log("an answer is not taken", waited_s=self.answer_wait_s)
        connection.transport.abort()

    def _make_room(self, open_now: int) -> None:
        if open_now > self.most:
            oldest = next(iter(self._waiting))
            self.served(oldest)
            # Uvicorn hears of it a moment later; it counts no more from now on.
            if isinstance(oldest, H11Protocol):
                oldest.connections.discard(oldest)
            oldest.transport.abort()
        if crowded := open_now > self.most:
            if not self._crowded:
                self._log("too many connections", most=self.most)
            self._crowded = crowded
        elif open_now < self.most // 2:
            self._crowded = False

    def protocol(self, context: ssl.SSLContext | None) -> type[asyncio.Protocol]:
        """Return the protocol of a server whose connections these are.

        Args:
            context: Of TLS; None: plain HTTP.
        """
        plain = type("Connection", (_Connection,), {"known": self})
        if context is None:
            return plain
        return type("Handshake", (_Handshake,), {"known": self, "context": context, "kind": plain})


class _Connection(H11Protocol):
    """One connection of uvicorn's, which tells what it waits for."""

    known: ClassVar[ServerConnections]

    def connection_made(self, transport: Any) -> None:
        """Wait for the first head."""
        super().connection_made(transport)
        self.known.waits(self)

    def handle_events(self) -> None:
        """Read what has come; a whole head begins a cycle."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self.known.served(self)

    def on_response_complete(self) -> None:
        """Wait for the next head, unless it has come along with this request."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self.known.waits(self)

    def pause_writing(self) -> None:
        """Wait for the caller to take something."""
        super().pause_writing()
        self.known.is_full(self)

    def resume_writing(self) -> None:
        """Go on: most was taken."""
        self.known.flows(self)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self.known.served(self)
        self.known.flows(self)
        super().connection_lost(exc)


class _Handshake(asyncio.Protocol):
    """A connection until its TLS stands; then uvicorn's protocol takes its place.

    Asyncio could do this itself, but would not show a connection before its handshake is over: it
    would not count, and nothing would end it in favour of others.
    """

    known: ClassVar[ServerConnections]
    context: ClassVar[ssl.SSLContext]
    kind: ClassVar[type[_Connection]]

    def __init__(self, **given: Any) -> None:
        self._http = self.kind(**given)
        self.connections = self._http.connections
        self.transport: Any = None
        self._early: list[bytes] = []
        self._is_over = False
        self._shaking: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin the handshake."""
        self.transport = transport
        transport.pause_reading()
        self.known.waits(self)
        self._shaking = asyncio.get_running_loop().create_task(self._shake())

    def data_received(self, data: bytes) -> None:
        """Keep what comes in the same moment as the end of the handshake."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._is_over = True
        self.known.served(self)

    async def _shake(self) -> None:
        try:
            link = await asyncio.get_running_loop().start_tls(
                self.transport,
                self,
                self.context,
                server_side=True,
                ssl_handshake_timeout=self.known.head_wait_s,
            )
        except OSError:  # What comes is no TLS, or not enough of it in time.
            self.transport.abort()
            link = None
        self.known.served(self)
        if link is None or self._is_over:
            return
        self._http.connection_made(link)
        for data in self._early:
            self._http.data_received(data)
        link.set_protocol(self._http)


# --------------------------------------------------------------------------------------- The server


CERTIFICATE_LOOK_TICKS = 20
"""Ticks of the server, ten a second, between two looks at the certificate."""
DRAIN_MAX_S = 5
"""How long requests under way may still take when the server ends."""


class GatewayServer(uvicorn.Server):
    """The server of uvicorn, which looks after its certificate."""

    def __init__(self, config: uvicorn.Config, certificate: ServerCertificate | None) -> None:
        """Serve nothing yet.

        Args:
            config: Its settings.
            certificate: Of HTTPS; None: plain HTTP.
        """
        super().__init__(config)
        self._certificate = certificate

    async def on_tick(self, counter: int) -> bool:
        """Do what is done ten times a second; return whether the server ends."""
        if self._certificate is not None and counter % CERTIFICATE_LOOK_TICKS == 0:
            self._certificate.look()
        return await super().on_tick(counter)


def server_of(services: Services) -> GatewayServer:
    """Return the server of a gateway, which does not serve yet.

    Args:
        services: Ports and settings; some caller must be known.

    Raises:
        ConfigError: Its certificate cannot be used, or it would need one.
    """
    gateway = services.settings.gateway
    most = connections_max(gateway.connections_max)
    connections = ServerConnections(most, gateway.head_wait_s, gateway.answer_wait_s, services.log)
    require_safe_listener(gateway)
    certificate = ServerCertificate(gateway, services.log) if gateway.tls_certificate else None
    return GatewayServer(
        uvicorn.Config(
            create_app(services),
            host=gateway.host,
            port=gateway.port,
            http=connections.protocol(certificate.context if certificate else None),
            backlog=BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            # Else whoever is on this machine says where a call came from.
            proxy_headers=False,
            timeout_graceful_shutdown=DRAIN_MAX_S,
        ),
        certificate,
    )
