"""The application, and its HTTP server: uvicorn with limits on connections and idle time."""

import asyncio
import inspect
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import uvicorn
from fastapi import APIRouter, FastAPI, Response
from starlette.routing import Route, request_response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from common.config import secret_of
from common.telemetry import Log
from neve.gateway import problems
from neve.gateway.access.callers import declared_routes, guard_routes
from neve.gateway.access.oidc import OidcTokens
from neve.gateway.access.sessions import IssuerSignIn, Sessions
from neve.gateway.access.tokens import KnownTokens
from neve.gateway.authentication import (
    AnswerHeaders,
    AuditedCalls,
    Authentication,
    BoundedBodies,
    CountedRequests,
    KnownCallers,
)
from neve.gateway.bodies import JsonRoute
from neve.gateway.compactors import CompactorRoutes, LimitRoutes
from neve.gateway.console import AccessRoutes, ConsolePages
from neve.gateway.control import ControlRoutes
from neve.gateway.imports import ImportRoutes
from neve.gateway.jobs import JobRoutes
from neve.gateway.lake import LakeRoutes
from neve.gateway.planning import PlanningRoutes, SimulationRoutes
from neve.gateway.recovery import RecoveryRoutes
from neve.gateway.requests import RequestRoutes
from neve.gateway.rows.buffered import BufferRoutes
from neve.gateway.rows.ingestion import IngestRoutes
from neve.gateway.rows.scan import ScanRoutes
from neve.gateway.service import ProbeRoutes, RequestMetrics, ServiceRoutes
from neve.gateway.services import BEARER, Services
from neve.gateway.table_summaries import TableSummaryRoutes
from neve.gateway.tables import TableRoutes
from neve.gateway.tablets import OperationRoutes, TabletRoutes
from neve.gateway.tls import ServerCertificate, require_safe_listener

# ---------------------------------------------------------------------------------------------- App
# The application: authenticated routes, errors as problems, public probes.


def create_app(services: Services) -> FastAPI:
    """Return the application over these ports.

    Args:
        services: Ports and settings; at least one caller must be configured.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(services.store_watch.run_forever())
        notifying = asyncio.create_task(services.notifier.run_forever())
        yield
        watching.cancel()
        notifying.cancel()
        await services.audit.close()
        services.footers.close()  # Closes the threads for rows as well.

    app = FastAPI(
        title="Névé",
        version=_version(),
        summary="Compaction of tables of Parquet files.",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    problems.install_problems(app, services.log)
    metrics = RequestMetrics()
    callers, access = known_callers(services), services.settings.access
    issuer = IssuerSignIn.of(services.settings, callers.oidc, services.clock)
    refresh = None if issuer is None else issuer.refreshed
    sessions = Sessions(callers.caller, access.session_max_s, services.clock, refresh)
    first, *others = (kind(services) for kind in SLICES)
    slices = (first, ProbeRoutes(services, metrics), AccessRoutes(services, sessions), *others)
    for slice_ in slices:
        # `include_router` would build each route again at the first request.
        app.router.routes.extend(router_of(slice_).routes)
    console = ConsolePages(services, sessions, SLICES, issuer)
    app.state.console = console
    app.router.routes.extend(console.routes())
    gateway = services.settings.gateway
    guard_routes(app.router.routes)
    console.answer_errors(app.router.routes)
    # A request passes the middleware in reverse order of addition.
    app.add_middleware(
        BoundedBodies, body_bytes_max=gateway.body_bytes_max, body_wait_s=gateway.body_wait_s
    )
    app.add_middleware(AuditedCalls, audit=services.audit, reads=access.audit_reads)
    app.add_middleware(
        Authentication,
        callers=callers,
        sessions=sessions,
        quotas=services.quotas,
        audit=services.audit,
    )
    app.add_middleware(CountedRequests, metrics=metrics, clock=services.clock)
    app.add_middleware(AnswerHeaders)
    return app


def known_callers(services: Services) -> KnownCallers:
    """Return the callers that the settings admit."""
    access, clock, log = services.settings.access, services.clock, services.log
    gateway = services.settings.gateway
    path = Path(access.tokens_file) if access.tokens_file else None
    return KnownCallers(
        secret_of("gateway.token", gateway.token, gateway.token_file),
        KnownTokens(path, clock, log),
        OidcTokens.of(access, clock, log),
    )


SLICES = (
    BufferRoutes,  # Routes are tried in this order, and this one has the most calls.
    TableRoutes,
    TableSummaryRoutes,
    LakeRoutes,
    IngestRoutes,
    ScanRoutes,
    ImportRoutes,
    RequestRoutes,
    OperationRoutes,
    JobRoutes,
    TabletRoutes,
    PlanningRoutes,
    SimulationRoutes,
    CompactorRoutes,
    ServiceRoutes,
    ControlRoutes,
    LimitRoutes,
    RecoveryRoutes,
)


def router_of(slice_: object) -> APIRouter:
    """Return the routes that the methods of a slice declare."""
    router = APIRouter(route_class=JsonRoute)
    for name, declared in declared_routes(type(slice_)):
        method, path = declared.name.split(" ")
        handler = getattr(slice_, name)
        answer = inspect.signature(handler).return_annotation
        options = dict(declared.options)
        if isinstance(answer, type) and issubclass(answer, Response):
            options["response_class"] = answer
        router.add_api_route(
            path,
            handler,
            methods=[method],
            tags=[type(slice_).__module__.split(".")[2]],
            dependencies=[] if declared.right.role is None else [BEARER],
            **options,
        )
        if declared.serve:
            app_route = router.routes[-1]
            assert isinstance(app_route, Route), app_route
            app_route.app = request_response(getattr(slice_, declared.serve))
    return router


def _version() -> str:
    try:
        return version("neve")
    except PackageNotFoundError:
        return "0"


# ------------------------------------------------------------------------------------------- Server


DESCRIPTORS_KEPT = 384
"""Descriptors reserved for other uses: the store, files, connections just accepted."""
DESCRIPTORS_WANTED = 65_536
BACKLOG = 128
"""Connections that the operating system queues; all of them may arrive at once."""
LEAST = 16


def connections_max(setting: int) -> int:
    """Return the possible number of connections, after raising the limit of descriptors.

    Args:
        setting: Number from the settings.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(hard, DESCRIPTORS_WANTED):
        soft = min(hard, DESCRIPTORS_WANTED)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(LEAST, min(setting, soft - DESCRIPTORS_KEPT))


class ServerConnections:
    """The connections of one server, and those waiting for a request head, longest first."""

    def __init__(self, most: int, head_wait_s: float, answer_wait_s: float, log: Log) -> None:
        """Start without connections.

        Args:
            most: Maximum number of connections.
            head_wait_s: Longest wait for the head of a request.
            answer_wait_s: Longest time in which a caller receives nothing of an answer.
            log: Receives an event when connections are closed because of a limit.
        """
        self.most = most
        self.head_wait_s = head_wait_s
        self.answer_wait_s = answer_wait_s
        self._log = log
        self._waiting: dict[_Connection | _Handshake, asyncio.TimerHandle] = {}
        self._shaking: set[_Handshake] = set()
        self._full: dict[_Connection, asyncio.TimerHandle] = {}
        self._crowded = False

    def waits(self, connection: "_Connection | _Handshake") -> None:
        """Record that a connection starts waiting for a request head or its TLS handshake."""
        self.served(connection)
        loop = asyncio.get_running_loop()
        late = loop.call_later(self.head_wait_s, connection.transport.abort)
        self._waiting[connection] = late
        if isinstance(connection, _Handshake):
            self._shaking.add(connection)
        self._make_room(len(connection.connections) + len(self._shaking))

    def served(self, connection: "_Connection | _Handshake") -> None:
        """Record that a connection stops waiting: its head arrived, or the connection ended."""
        if late := self._waiting.pop(connection, None):
            late.cancel()
        if isinstance(connection, _Handshake):
            self._shaking.discard(connection)

    def is_full(self, connection: "_Connection") -> None:
        """Record that the send buffer of a connection is full."""
        self.flows(connection)
        late = asyncio.get_running_loop().call_later(self.answer_wait_s, self._cut, connection)
        self._full[connection] = late

    def flows(self, connection: "_Connection") -> None:
        """Record that a connection's send buffer has room again, or that the connection ended."""
        if late := self._full.pop(connection, None):
            late.cancel()

    def _cut(self, connection: "_Connection") -> None:
        self._log("an answer is not taken", waited_s=self.answer_wait_s)
        connection.transport.abort()

    def _make_room(self, open_now: int) -> None:
        if open_now > self.most:
            oldest = next(iter(self._waiting))
            self.served(oldest)
            # Uvicorn removes the connection only later; stop counting it now.
            if isinstance(oldest, _Connection):
                oldest.connections.discard(oldest)
            oldest.transport.abort()
        if crowded := open_now > self.most:
            if not self._crowded:
                self._log("too many connections", most=self.most)
            self._crowded = crowded
        elif open_now < self.most // 2:
            self._crowded = False

    def protocol(self, context: ssl.SSLContext | None) -> type[asyncio.Protocol]:
        """Return the protocol class that registers its connections here.

        Args:
            context: TLS context; None: plain HTTP.
        """
        plain = type("Connection", (_Connection,), {"known": self})
        if context is None:
            return plain
        return type("Handshake", (_Handshake,), {"known": self, "context": context, "kind": plain})


HEAD_BYTES_MAX = 16 * 1024
"""Limit of a head that is incomplete, and of what surrounds a chunk of a body. A head that arrives
at once may be longer: as long as what the server reads at a time, 256 KiB."""
PIPELINED_MAX = 32
"""Requests of a connection that may wait for the answers to earlier ones."""


class _Connection(HttpToolsProtocol):
    """A connection of uvicorn that reports what it waits for, with bounds that uvicorn lacks.

    The parser accepts more than this server: it keeps a head of any length, adds trailers to the
    headers of a request that may be in progress, ignores the body of a request for an upgrade, and
    reads all requests that a caller sends in advance.
    """

    known: ClassVar[ServerConnections]

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._unparsed_bytes = 0
        """Bytes received since the last end of a head, piece of a body, or end of a message."""
        self._is_refused = False

    def connection_made(self, transport: Any) -> None:
        """Start waiting for the first request head."""
        super().connection_made(transport)
        self.known.waits(self)

    def data_received(self, data: bytes) -> None:
        """Parse data, unless the connection ends because of what arrived before."""
        if self._is_refused:
            return
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > HEAD_BYTES_MAX and not self._is_refused:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        """Start a request, or put it after those that are not answered so far.

        Raises:
            ValueError: The head is one that no client of this server sends; it is answered 400.
        """
        self._unparsed_bytes = 0
        has_upgrade = self.parser.should_upgrade()
        if fault := self._fault_of_head(has_upgrade=has_upgrade):
            raise ValueError(fault)
        super().on_headers_complete()
        if has_upgrade:  # It is not done, and what follows it may be in another protocol.
            self.cycle.keep_alive = False
        self.headers = []  # Trailers must not change the head of the request.
        self.known.served(self)

    def _fault_of_head(self, *, has_upgrade: bool) -> str:
        names = [name for name, _ in self.headers]
        version, hosts = self.parser.get_http_version(), names.count(b"host")
        if not (hosts == 1 and version == "1.1") and not (hosts <= 1 and version == "1.0"):
            return f"version {version} with {hosts} hosts"
        if has_upgrade and (b"content-length" in names or b"transfer-encoding" in names):
            return "an upgrade with a body"
        return "too many requests in advance" if len(self.pipeline) >= PIPELINED_MAX else ""

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = partial(_without_chunks, app, cycle)
        cycle.transport = _Answer(cycle.transport, self.loop)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Take the end of a request."""
        self._unparsed_bytes = 0
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what has arrived, and end the connection after the answers to what came before."""
        self._is_refused = True
        cycle = self.cycle
        if cycle is None or cycle.response_complete:
            super().send_400_response(msg)
        elif not cycle.more_body:
            self.flow.pause_reading()
            cycle.keep_alive = False
        elif cycle.response_started or self.pipeline:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        """Start waiting for the next head, unless it arrived with this request."""
        super().on_response_complete()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self.known.waits(self)

    def pause_writing(self) -> None:
        """Start the time limit for the caller to receive data."""
        super().pause_writing()
        self.known.is_full(self)

    def resume_writing(self) -> None:
        """End the time limit: the caller has received most of the data."""
        self.known.flows(self)
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all waiting."""
        self.known.served(self)
        self.known.flows(self)
        super().connection_lost(exc)


class _Answer:
    """The transport of one answer: its head and the body that follows at once are one write.

    Uvicorn writes them one after the other, and the transport sends each at once. Two writes cost
    two calls of the kernel here, and wake the caller twice.
    """

    def __init__(self, transport: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._unsent: list[bytes] = []
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """Write data: with the next data of this turn of the loop, or at its end."""
        if self._unsent:
            self._unsent.append(data)
            self._flush()
        else:
            self._unsent.append(data)
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Close the connection when all data is sent."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._unsent:
            data, self._unsent = b"".join(self._unsent), []
            self._transport.write(data)


async def _without_chunks(
    app: ASGIApp, cycle: Any, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve a request of HTTP/1.0, which has no chunks: the end of the connection ends an answer.

    Args:
        app: The application.
        cycle: Uvicorn's state of the request.
        scope: Scope of the request.
        receive: Receives the body.
        send: Sends the answer.
    """
    has_length = True

    async def send_plain(message: Message) -> None:
        nonlocal has_length
        if message["type"] == "http.response.start":
            has_length = b"content-length" in {name.lower() for name, _ in message["headers"]}
            if not has_length:
                cycle.chunked_encoding = False
        elif not has_length:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_plain)


class _Handshake(asyncio.Protocol):
    """A connection during its TLS handshake; afterwards uvicorn's protocol replaces it.

    Asyncio can perform the handshake itself, but hides the connection until it is complete. Such
    a connection would not be counted, and could not be closed in favour of others.
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
        """Start the handshake."""
        self.transport = transport
        self.known.waits(self)
        self._shaking = asyncio.get_running_loop().create_task(self._shake())

    def data_received(self, data: bytes) -> None:
        """Keep data that arrives before the handshake starts, or at the moment when it ends."""
        self._early.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all waiting."""
        self._is_over = True
        self.known.served(self)

    async def _shake(self) -> None:
        loop = asyncio.get_running_loop()
        handshake = loop.create_task(
            loop.start_tls(
                self.transport,
                self,
                self.context,
                server_side=True,
                ssl_handshake_timeout=self.known.head_wait_s,
            )
        )
        while self.transport.get_protocol() is self and not handshake.done():
            await asyncio.sleep(0)
        loop.call_soon(self._pass_early)  # After the start of the handshake, before other data.
        try:
            link = await handshake
        except OSError:  # The data is not TLS, or the handshake took too long.
            self.transport.abort()
            link = None
        self.known.served(self)
        if link is None or self._is_over:
            return
        self._http.connection_made(link)
        for data in self._early:
            self._http.data_received(data)
        link.set_protocol(self._http)

    def _pass_early(self) -> None:
        """Pass on what arrived before the handshake: uvloop reads even from a paused transport."""
        early, self._early = memoryview(b"".join(self._early)), []
        while early and not self._is_over and not self.transport.is_closing():
            handshake = self.transport.get_protocol()
            buffer = memoryview(handshake.get_buffer(len(early)))
            count = min(len(buffer), len(early))
            buffer[:count] = early[:count]
            handshake.buffer_updated(count)
            early = early[count:]


# --------------------------------------------------------------------------------------- The server


TICK = 5
"""Tenths of a second between two ticks of the server; uvicorn counts in tenths, and wakes up for
each. A server that is asked to end does so at the next tick."""
CERTIFICATE_LOOK_TICKS = 20
"""Tenths of a second between two checks of the certificate."""
DRAIN_MAX_S = 5
"""How long running requests may still take when the server ends."""


class GatewayServer(uvicorn.Server):
    """A uvicorn server that reloads its certificate when it changes."""

    def __init__(self, config: uvicorn.Config, certificate: ServerCertificate | None) -> None:
        """Create the server without starting it.

        Args:
            config: Configuration of uvicorn.
            certificate: Certificate for HTTPS; None: plain HTTP.
        """
        super().__init__(config)
        self._certificate = certificate

    async def main_loop(self) -> None:
        """Tick until the server ends."""
        counter = 0
        while not await self.on_tick(counter):
            await asyncio.sleep(TICK / 10)
            counter += TICK

    async def on_tick(self, counter: int) -> bool:
        """Run the periodic work, twice per second; return whether the server ends."""
        if self._certificate is not None and counter % CERTIFICATE_LOOK_TICKS == 0:
            self._certificate.look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams of the console, for which the server would wait, then all connections."""
        self.config.app.state.console.sampler.close()  # type: ignore[union-attr]  # see `create_app`
        await super().shutdown(sockets)


def server_of(services: Services) -> GatewayServer:
    """Create the server of a gateway without starting it.

    Args:
        services: Ports and settings; at least one caller must be configured.

    Raises:
        ConfigError: The certificate cannot be used, or is missing although TLS is required.
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
            # Otherwise any local process could forge the address of a caller.
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=DRAIN_MAX_S,
        ),
        certificate,
    )
