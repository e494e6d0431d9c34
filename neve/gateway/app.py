"""The application: authenticated routes, errors as problems, public probes."""

import asyncio
import base64
import hashlib
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Generic, TypeVar

from fastapi import APIRouter, FastAPI, Response
from fastapi.responses import HTMLResponse

from common.errors import UnavailableError
from common.secret_files import secret_of
from common.units import format_duration
from neve.gateway import problems
from neve.gateway.access.oidc import OidcTokens
from neve.gateway.access.route_rights import OPEN, READ_ALL, declared_routes, guard_routes, route
from neve.gateway.access.tokens import KnownTokens
from neve.gateway.authentication import (
    AnswerHeaders,
    AuditedCalls,
    Authentication,
    BoundedBodies,
    CountedRequests,
    KnownCallers,
)
from neve.gateway.control import ControlRoutes
from neve.gateway.imports import ImportRoutes
from neve.gateway.ingest.routes import IngestRoutes
from neve.gateway.metrics import RequestMetrics
from neve.gateway.recovery import RecoveryRoutes
from neve.gateway.request_bodies import JsonRoute
from neve.gateway.requests.routes import RequestRoutes
from neve.gateway.scan import ScanRoutes
from neve.gateway.services import BEARER, Services
from neve.gateway.split_merge import OperationRoutes
from neve.gateway.tables import TableRoutes
from neve.gateway.work import LimitRoutes, WorkRoutes

# ----------------------------------------------------------- One answer for many concurrent callers


T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """Caches an answer briefly, and runs at most one query at a time for all callers."""

    def __init__(self, ask: Callable[[], Awaitable[T]], lasts_s: float) -> None:
        """Create an empty cache.

        Args:
            ask: Called for an answer; its exceptions are cached like answers.
            lasts_s: How long an answer is cached.
        """
        self._ask = ask
        self._lasts_s = lasts_s
        self._asked: asyncio.Future[T] | None = None
        self._until_s = 0.0

    async def answer(self) -> T:
        """Return the answer, at most `lasts_s` old.

        Raises:
            Exception: Any exception of `ask`.
        """
        loop = asyncio.get_running_loop()
        old = self._asked is None or (self._asked.done() and loop.time() >= self._until_s)
        if old:
            self._asked = asyncio.ensure_future(self._ask_once())
        assert self._asked is not None
        # A caller that leaves must not cancel the query of the others.
        return await asyncio.shield(self._asked)

    async def _ask_once(self) -> T:
        try:
            return await self._ask()
        finally:
            self._until_s = asyncio.get_running_loop().time() + self._lasts_s


# ---------------------------------------------------------------------------------- The application


PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
READY_LASTS_S = 1.0
"""How long the coordinator's answer is cached, because `/readyz` is public."""


def create_app(services: Services) -> FastAPI:
    """Return the application over these ports.

    Args:
        services: Ports and settings; at least one caller must be configured.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(services.store_watch.run_forever())
        yield
        watching.cancel()
        await services.audit.close()
        services.footers.close()  # Closes the threads for rows as well.

    app = FastAPI(
        title="Névé",
        version=_version(),
        summary="Compaction of tables of Parquet files.",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    problems.install_problems(app, services.log)
    metrics = RequestMetrics()
    slices = (ServiceRoutes(services, metrics), *(kind(services) for kind in SLICES))
    for slice_ in slices:
        # `include_router` would build each route again at the first request.
        app.router.routes.extend(router_of(slice_).routes)
    gateway = services.settings.gateway
    guard_routes(app.router.routes)
    # A request passes the middleware in reverse order of addition.
    app.add_middleware(
        BoundedBodies, body_bytes_max=gateway.body_bytes_max, body_wait_s=gateway.body_wait_s
    )
    app.add_middleware(
        AuditedCalls, audit=services.audit, reads=services.settings.access.audit_reads
    )
    app.add_middleware(
        Authentication,
        callers=known_callers(services),
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


def page_policy(page: str) -> str:
    """Return a Content-Security-Policy that allows only the page's own script, styles and calls."""
    return (
        f"default-src 'none'; script-src {_digests(page, 'script')};"
        f" style-src {_digests(page, 'style')};"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _digests(page: str, tag: str) -> str:
    """Return the digests of the content of all tags of a kind, in policy notation."""
    texts = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in texts)
    return " ".join(f"'sha256-{digest.decode()}'" for digest in digests)


class ServiceRoutes:
    """Probes, metrics and the page that shows the routes."""

    def __init__(self, services: Services, metrics: RequestMetrics) -> None:
        self._services = services
        self._metrics = metrics
        self._alive = SharedAnswer(services.coordinator.status, READY_LASTS_S)
        self._page = files("neve.gateway").joinpath("static/docs.html").read_text("utf-8")
        self._policy = page_policy(self._page)

    @route("GET /healthz", OPEN)
    async def healthz(self) -> dict[str, str]:
        """Tell that the process answers."""
        return {"status": "ok"}

    @route("GET /readyz", OPEN)
    async def readyz(self) -> dict[str, str]:
        """Tell that the store and the coordinator answer; 503 if not."""
        watch = self._services.store_watch
        await watch.until_looked()
        if silent_s := watch.silent_s:
            # The probe is public: reveal neither address nor cause.
            raise UnavailableError(f"the store has not answered for {format_duration(silent_s)}")
        await self._alive.answer()
        return {"status": "ready"}

    @route("GET /metrics", READ_ALL)
    async def metrics(self) -> Response:
        """Return the metrics as Prometheus text."""
        services = self._services
        try:
            status = await services.coordinator.status()
        except UnavailableError:
            status = None
        text = self._metrics.text(status, services.scans, services.audit.counts)
        return Response(text, media_type=PROMETHEUS_TEXT)

    @route("GET /docs", OPEN, include_in_schema=False)
    async def docs(self) -> HTMLResponse:
        """Return the page that shows the routes."""
        return HTMLResponse(self._page, headers={"Content-Security-Policy": self._policy})


SLICES = (
    TableRoutes,
    IngestRoutes,
    ScanRoutes,
    ImportRoutes,
    RequestRoutes,
    OperationRoutes,
    WorkRoutes,
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
    return router


def _version() -> str:
    try:
        return version("neve")
    except PackageNotFoundError:
        return "0"
