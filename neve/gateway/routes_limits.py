"""Routes about bytes per second: limits of compaction groups and of volumes."""

from dataclasses import asdict

from fastapi import APIRouter

from common.model.group import (
    LimitScope,
    LimitScopeKind,
    checked_limit,
)
from common.units import parse_size_bytes
from neve import api_limits as api
from neve.client_decode import decode
from neve.gateway.services import Services, checked_label, known_group


class LimitRoutes:
    """The routes that limit what rewrites read and write."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def router(self) -> APIRouter:
        """Return the routes."""
        router = APIRouter(prefix="/v1", tags=["limits"])
        router.get("/limits")(self.limits)
        router.put("/groups/{group}/limit", status_code=202)(self.limit_group)
        router.delete("/groups/{group}/limit", status_code=202)(self.unlimit_group)
        router.put("/volumes/{volume}/limit", status_code=202)(self.limit_volume)
        router.delete("/volumes/{volume}/limit", status_code=202)(self.unlimit_volume)
        return router

    async def limits(self) -> dict[str, list[api.Limit]]:
        """Return groups and volumes with their limits, and what moves under them."""
        status = await self._services.coordinator.status()
        return {"limits": [decode(api.Limit, asdict(each)) for each in status.scopes]}

    async def limit_group(self, group: str, body: api.LimitWish) -> None:
        """Limit what the rewrites of a compaction group read and write together, per second."""
        await self._set(LimitScopeKind.GROUP, group, body.limit)

    async def unlimit_group(self, group: str) -> None:
        """Let the settings say again what a group may move."""
        await self._set(LimitScopeKind.GROUP, group, None)

    async def limit_volume(self, volume: str, body: api.LimitWish) -> None:
        """Limit what all rewrites on a volume read and write together, per second."""
        await self._set(LimitScopeKind.VOLUME, volume, body.limit)

    async def unlimit_volume(self, volume: str) -> None:
        """Let the settings say again what a volume's rewrites may move."""
        await self._set(LimitScopeKind.VOLUME, volume, None)

    async def _set(self, kind: LimitScopeKind, name: str, limit: int | str | None) -> None:
        if kind is LimitScopeKind.GROUP:
            await known_group(self._services, name)
        scope = LimitScope(kind, checked_label(name, f"{kind.value} name"))
        what = f"limit of {kind.value} {name}"
        bytes_s = None if limit is None else parse_size_bytes(limit, what)
        checked_limit(bytes_s or 0, f"{kind.value} {name}")
        await self._services.coordinator.set_limit(scope.text, bytes_s)
