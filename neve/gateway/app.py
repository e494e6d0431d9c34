"""The application: authenticated routes, errors as problems, public probes."""

import asyncio
import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fastapi import APIRouter, FastAPI, Response

from common.config import secret_of
from neve.gateway import problems
from neve.gateway.access.oidc import OidcTokens
from neve.gateway.access.route_rights import declared_routes, guard_routes
from neve.gateway.access.tokens import KnownTokens
from neve.gateway.authentication import (
    AnswerHeaders,
    AuditedCalls,
    Authentication,
    BoundedBodies,
    CountedRequests,
    KnownCallers,
)
from neve.gateway.compactors import CompactorRoutes, LimitRoutes
from neve.gateway.control import ControlRoutes
from neve.gateway.imports import ImportRoutes
from neve.gateway.jobs import JobRoutes
from neve.gateway.metrics import RequestMetrics
from neve.gateway.planning import PlanningRoutes
from neve.gateway.recovery import RecoveryRoutes
from neve.gateway.request_bodies import JsonRoute
from neve.gateway.requests import RequestRoutes
from neve.gateway.rows.routes import IngestRoutes
from neve.gateway.rows.scan import ScanRoutes
from neve.gateway.service import ProbeRoutes, ServiceRoutes
from neve.gateway.services import BEARER, Services
from neve.gateway.tables import TableRoutes
from neve.gateway.tablets import OperationRoutes, TabletRoutes


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
    slices = (ProbeRoutes(services, metrics), *(kind(services) for kind in SLICES))
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


SLICES = (
    TableRoutes,
    IngestRoutes,
    ScanRoutes,
    ImportRoutes,
    RequestRoutes,
    OperationRoutes,
    JobRoutes,
    TabletRoutes,
    PlanningRoutes,
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
    return router


def _version() -> str:
    try:
        return version("neve")
    except PackageNotFoundError:
        return "0"
