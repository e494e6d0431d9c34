"""Compactors and their groups: draining, scaling, pauses, limits of bytes per second."""

from typing import Annotated

from fastapi import Query

from common.model.group import LimitScope, LimitScopeKind, checked_limit
from common.units import parse_size_bytes
from neve import api
from neve.gateway.access.callers import ADMIN_ALL, READ_ALL, route
from neve.gateway.problems import UnknownCompactorError
from neve.gateway.services import Services, checked_label, known_group, whole_id

STOP_WAIT_MAX_S = 86_400.0


class LimitRoutes:
    """Routes of bandwidth limits of rewrites."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/limits", READ_ALL)
    async def limits(self) -> dict[str, list[api.Limit]]:
        """Return groups and volumes with their limits and what they move now."""
        status = await self._services.coordinator.status()
        return {"limits": list(status.scopes)}

    @route("PUT /v1/groups/{group}/limit", ADMIN_ALL, status_code=202)
    async def limit_group(self, group: str, body: api.LimitWish) -> None:
        """Limit the bytes per second that all jobs of a compaction group read and write."""
        await self._set(LimitScopeKind.GROUP, group, body.limit)

    @route("DELETE /v1/groups/{group}/limit", ADMIN_ALL, status_code=202)
    async def unlimit_group(self, group: str) -> None:
        """Reset the limit of a compaction group to the limit of the settings."""
        await self._set(LimitScopeKind.GROUP, group, None)

    @route("PUT /v1/volumes/{volume}/limit", ADMIN_ALL, status_code=202)
    async def limit_volume(self, volume: str, body: api.LimitWish) -> None:
        """Limit the bytes per second that all jobs on a volume read and write."""
        await self._set(LimitScopeKind.VOLUME, volume, body.limit)

    @route("DELETE /v1/volumes/{volume}/limit", ADMIN_ALL, status_code=202)
    async def unlimit_volume(self, volume: str) -> None:
        """Reset the limit of a volume to the limit of the settings."""
        await self._set(LimitScopeKind.VOLUME, volume, None)

    async def _set(self, kind: LimitScopeKind, name: str, limit: int | str | None) -> None:
        if kind is LimitScopeKind.GROUP:
            await known_group(self._services, name)
        scope = LimitScope(kind, checked_label(name, f"{kind.value} name"))
        what = f"limit of {kind.value} {name}"
        bytes_s = None if limit is None else parse_size_bytes(limit, what)
        checked_limit(bytes_s or 0, f"{kind.value} {name}")
        await self._services.coordinator.set_limit(scope.text, bytes_s)


class CompactorRoutes:
    """Routes of compactors and groups."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @route("GET /v1/compactors", READ_ALL)
    async def compactors(self) -> dict[str, list[api.Compactor]]:
        """Return the compactors that send heartbeats."""
        heard = await self._services.coordinator.compactors()
        return {"compactors": heard}

    @route("POST /v1/compactors/{compactor}/drain", ADMIN_ALL, status_code=202)
    async def drain(self, compactor: str) -> None:
        """Drain a compactor: it finishes its jobs, takes no more, and ends.

        Another one is started if its group needs it.
        """
        await self._services.coordinator.drain(await self._known_compactor(compactor))

    @route("POST /v1/compactors/{compactor}/stop", ADMIN_ALL, status_code=202)
    async def stop_compactor(
        self,
        compactor: str,
        wait_max_s: Annotated[
            float | None,
            Query(
                description="Longest wait for its jobs; `compactor.drain_timeout_s` by default.",
                ge=0,
                le=STOP_WAIT_MAX_S,
            ),
        ] = None,
    ) -> None:
        """Stop a compactor: its jobs end in time or are handed to others, and it ends.

        Another one is started if its group needs it.
        """
        whole = await self._known_compactor(compactor)
        await self._services.coordinator.stop_compactor(whole, wait_max_s)

    async def _known_compactor(self, compactor: str) -> str:
        heard = [reported.compactor for reported in await self._services.coordinator.compactors()]
        # Without the check for a digit, `default-1` would be `default-10` once it has ended.
        whole = whole_id(
            compactor,
            [name for name in heard if not name.removeprefix(compactor)[:1].isdigit()],
            "compactor",
        )
        if whole is None:
            running = ", ".join(heard) or "none"
            raise UnknownCompactorError(
                f"no compactor {compactor[:64]!r} is known, expected one of: {running}"
            )
        return whole

    @route("GET /v1/groups", READ_ALL)
    async def groups(self) -> dict[str, list[api.Group]]:
        """Return the compaction groups, with their queue, compactors and scaling."""
        status = await self._services.coordinator.status()
        return {"groups": list(status.groups)}

    @route("PUT /v1/groups/{group}/scale", ADMIN_ALL, status_code=202)
    async def scale_group(self, group: str, body: api.ScaleWish) -> None:
        """Set the number of compactors of a group, whatever the settings say."""
        name = await known_group(self._services, group)
        await self._services.coordinator.scale(name, body.compactors)

    @route("DELETE /v1/groups/{group}/scale", ADMIN_ALL, status_code=202)
    async def unscale_group(self, group: str) -> None:
        """Let the service decide again how many compactors a group has."""
        await self._services.coordinator.scale(await known_group(self._services, group), None)

    @route("POST /v1/groups/{group}/pause", ADMIN_ALL, status_code=202)
    async def pause_group(self, group: str) -> None:
        """Pause a compaction group: no more of its jobs start. Running jobs go on."""
        await self._services.coordinator.pause_group(await known_group(self._services, group))

    @route("POST /v1/groups/{group}/resume", ADMIN_ALL, status_code=202)
    async def resume_group(self, group: str) -> None:
        """Resume a paused compaction group."""
        await self._services.coordinator.resume_group(await known_group(self._services, group))
