"""The application: routes behind the guard, every error as a problem.

/healthz   the process answers            open
/readyz    store and coordinator answer   open
/docs      this interface, for people     open, loads nothing from elsewhere
/metrics   for Prometheus                 wants the token, like everything else
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

from fastapi import Depends, FastAPI, Response
from fastapi.responses import HTMLResponse
from fastapi.routing import iter_route_contexts
from fastapi.security import HTTPBearer

from common.errors import UnavailableError
from common.units import format_duration
from neve.gateway import problems
from neve.gateway.guard import Counted, Guard
from neve.gateway.metrics import RequestMetrics
from neve.gateway.routes_data import DataRoutes
from neve.gateway.routes_import import ImportRoutes
from neve.gateway.routes_limits import LimitRoutes
from neve.gateway.routes_operations import OperationRoutes
from neve.gateway.routes_recovery import RecoveryRoutes
from neve.gateway.routes_requests import RequestRoutes
from neve.gateway.routes_tables import TableRoutes
from neve.gateway.routes_work import WorkRoutes
from neve.gateway.services import Services
from neve.gateway.shared import Shared

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"
READY_LASTS_S = 1.0
"""Anyone may ask whether the service is ready; the coordinator is asked once in so long."""
_BEARER = Depends(HTTPBearer(auto_error=False, description="The token of the gateway."))


def create_app(services: Services) -> FastAPI:
    """Return the application over these ports.

    Args:
        services: Ports and settings; the token must not be empty.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        watching = asyncio.create_task(services.store_watch.run_forever())
        yield
        watching.cancel()
        services.footers.close()  # And with them those for rows.

    app = FastAPI(
        title="Névé",
        version=_version(),
        summary="Compaction of tables of Parquet files.",
        docs_url=None,
        redoc_url=None,
        lifespan=life,
    )
    problems.install(app, services.log)
    for routes in (
        TableRoutes(services),
        DataRoutes(services),
        ImportRoutes(services),
        RequestRoutes(services),
        OperationRoutes(services),
        WorkRoutes(services),
        LimitRoutes(services),
        RecoveryRoutes(services),
    ):
        app.include_router(routes.router(), dependencies=[_BEARER])
    metrics = RequestMetrics()
    _add_open_routes(app, services, metrics)
    gateway = services.settings.gateway
    app.add_middleware(
        Guard,
        token=gateway.token,
        body_bytes_max=gateway.body_bytes_max,
        body_wait_s=gateway.body_wait_s,
    )
    app.add_middleware(Counted, metrics=metrics, clock=services.clock)
    _build_routes(app)
    return app


def _build_routes(app: FastAPI) -> None:
    """Build what FastAPI else builds of the included routes when the first request comes.

    So nobody waits for it, and two applications served by two threads do not build at once,
    which Pydantic does not allow.
    """
    for _ in iter_route_contexts(app.routes):
        pass


def _add_open_routes(app: FastAPI, services: Services, metrics: RequestMetrics) -> None:
    page = files("neve.gateway").joinpath("static/docs.html").read_text("utf-8")

    alive = Shared(services.coordinator.status, READY_LASTS_S)

    @app.get("/healthz", tags=["service"])
    async def healthz() -> dict[str, str]:
        """Tell that the process answers."""
        return {"status": "ok"}

    @app.get("/readyz", tags=["service"])
    async def readyz() -> dict[str, str]:
        """Tell that the store and the coordinator answer; 503 if not."""
        await services.store_watch.until_looked()
        if silent_s := services.store_watch.silent_s:
            # Anyone may ask: no address, no cause.
            raise UnavailableError(f"the store has not answered for {format_duration(silent_s)}")
        await alive.answer()
        return {"status": "ready"}

    @app.get("/metrics", tags=["service"], response_class=Response, dependencies=[_BEARER])
    async def scrape() -> Response:
        """Return the metrics as Prometheus text."""
        try:
            status = await services.coordinator.status()
        except UnavailableError:
            status = None
        return Response(metrics.text(status, services.scans), media_type=PROMETHEUS_TEXT)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page)


def _version() -> str:
    try:
        return version("neve")
    except PackageNotFoundError:
        return "0"
