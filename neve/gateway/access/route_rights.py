"""The right that each route requires: the only table of roles and routes.

The gateway does not start if a route has no entry here, or an entry has no route.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from neve.gateway.access.callers import (
    INCLUDED,
    AuthorizedCall,
    Role,
    authorized_call,
    require_role,
)
from neve.gateway.problems import ForbiddenError


class Reach(StrEnum):
    """The tables on which a caller needs the role of a route."""

    NOBODY = "none"
    """The route is public and needs no token."""
    TABLE = "the table"
    """The look-up of the table checks the role."""
    LISTED = "any table"
    """The answer contains only tables that the caller may see."""
    SERVICE = "all tables"
    """The route concerns the whole service: a grant on a pattern is not enough."""


@dataclass(frozen=True, slots=True)
class RouteRight:
    """The right that a route requires of its callers."""

    role: Role | None
    reach: Reach
    note: str = ""
    """Remark for the documentation."""
    late: bool = False
    """Whether the right depends on the body or on a job, so that the path alone does not decide.

    The handler then begins the call in the audit, once it knows that the caller has the right.
    """


_OPEN = RouteRight(None, Reach.NOBODY)
_READ = RouteRight(Role.READ, Reach.TABLE)
_READ_LISTED = RouteRight(Role.READ, Reach.LISTED)
_READ_ALL = RouteRight(Role.READ, Reach.SERVICE)
_WRITE = RouteRight(Role.WRITE, Reach.TABLE)
_COMPACT = RouteRight(Role.COMPACT, Reach.TABLE)
_ADMIN = RouteRight(Role.ADMIN, Reach.TABLE)
_ADMIN_ALL = RouteRight(Role.ADMIN, Reach.SERVICE)

ROUTE_RIGHTS: Mapping[str, RouteRight] = {
    "GET /healthz": _OPEN,
    "GET /readyz": _OPEN,
    "GET /docs": _OPEN,
    "GET /openapi.json": _OPEN,
    "GET /metrics": _READ_ALL,
    "GET /v1/tables": RouteRight(Role.READ, Reach.LISTED, "lists the tables that may be read"),
    "POST /v1/tables": _ADMIN_ALL,
    "GET /v1/tables/{table}": _READ,
    "PATCH /v1/tables/{table}": _ADMIN,
    "DELETE /v1/tables/{table}": _ADMIN,
    "POST /v1/tables/{table}/pause": _COMPACT,
    "POST /v1/tables/{table}/resume": _COMPACT,
    "GET /v1/tables/{table}/tablets": _READ,
    "GET /v1/tables/{table}/files": _READ,
    "POST /v1/tables/{table}/files": _WRITE,
    "POST /v1/tables/{table}/append": _WRITE,
    "GET /v1/tables/{table}/calls/{call}": _READ,
    "GET /v1/tables/{table}/scan": _READ,
    "GET /v1/tables/{table}/count": _READ,
    "POST /v1/import": _ADMIN_ALL,
    "GET /v1/tables/{table}/manifest": _READ,
    "GET /v1/tables/{table}/manifest/files": _READ,
    "POST /v1/tables/{table}/compactions": RouteRight(
        Role.COMPACT, Reach.TABLE, "`write` as well if it changes or deletes rows", late=True
    ),
    "GET /v1/tables/{table}/compactions": _READ,
    "GET /v1/tables/{table}/compactions/{request}": _READ,
    "POST /v1/tables/{table}/compactions/{request}/cancel": _COMPACT,
    "POST /v1/tables/{table}/split": _COMPACT,
    "POST /v1/tables/{table}/merge": _COMPACT,
    "GET /v1/tables/{table}/operations": _READ,
    "POST /v1/tables/{table}/operations/{operation}/abandon": _COMPACT,
    "GET /v1/status": _READ_ALL,
    "GET /v1/config": _ADMIN_ALL,
    "GET /v1/audit": _ADMIN_ALL,
    "GET /v1/jobs": _READ_LISTED,
    "POST /v1/jobs/{attempt}/cancel": RouteRight(
        Role.COMPACT, Reach.LISTED, "on the table of the job", late=True
    ),
    "GET /v1/queue": _READ_LISTED,
    "GET /v1/backlog": _READ_LISTED,
    "GET /v1/backlog/history": _READ_LISTED,
    "GET /v1/tables/{table}/backlog": _READ,
    "GET /v1/control": _READ_ALL,
    "POST /v1/reads": RouteRight(
        Role.READ, Reach.LISTED, "readers report how long they have waited", late=True
    ),
    "GET /v1/compactors": _READ_ALL,
    "POST /v1/compactors/{compactor}/drain": _ADMIN_ALL,
    "POST /v1/compactors/{compactor}/stop": _ADMIN_ALL,
    "GET /v1/groups": _READ_ALL,
    "PUT /v1/groups/{group}/scale": _ADMIN_ALL,
    "DELETE /v1/groups/{group}/scale": _ADMIN_ALL,
    "POST /v1/groups/{group}/pause": _ADMIN_ALL,
    "POST /v1/groups/{group}/resume": _ADMIN_ALL,
    "GET /v1/tables/{table}/explain": _READ,
    "GET /v1/tables/{table}/story": _READ,
    "GET /v1/tables/{table}/plan": _READ,
    "GET /v1/tables/{table}/history": _READ,
    "POST /v1/tables/{table}/replan": _COMPACT,
    "POST /v1/tables/{table}/analyze": _COMPACT,
    "GET /v1/tables/{table}/live-bytes": _READ,
    "POST /v1/tables/{table}/trigger": _COMPACT,
    "GET /v1/tables/{table}/maintenance": _READ,
    "POST /v1/tables/{table}/reads": RouteRight(
        Role.READ, Reach.TABLE, "readers tell what they have scanned"
    ),
    "POST /v1/tables/{table}/lift-quarantine": _COMPACT,
    "POST /v1/tables/{table}/lower-watermark": _ADMIN,
    "GET /v1/limits": _READ_ALL,
    "PUT /v1/groups/{group}/limit": _ADMIN_ALL,
    "DELETE /v1/groups/{group}/limit": _ADMIN_ALL,
    "PUT /v1/volumes/{volume}/limit": _ADMIN_ALL,
    "DELETE /v1/volumes/{volume}/limit": _ADMIN_ALL,
    "POST /v1/tables/{table}/fsck": _ADMIN,
    "POST /v1/tables/{table}/gc": _ADMIN,
    "POST /v1/rebuild": _ADMIN_ALL,
    "POST /v1/backup": _ADMIN_ALL,
    "POST /v1/restore": _ADMIN_ALL,
}
"""Method and pattern of a route → what it asks for."""

OPEN_PATHS = frozenset(
    name.partition(" ")[2] for name, right in ROUTE_RIGHTS.items() if right.reach is Reach.NOBODY
)
"""They tell nothing of tables, and probes and newcomers have no token."""


def route_names(routes: Iterable[BaseRoute]) -> Iterator[tuple[str, Route]]:
    """Yield method and pattern of every route, and the route."""
    for route in routes:
        assert isinstance(route, Route), f"{route!r} is no plain route, so nothing guards it"
        for method in sorted((route.methods or set()) - {"HEAD"}):
            yield f"{method} {route.path}", route


def guard_routes(
    routes: Iterable[BaseRoute], rights: Mapping[str, RouteRight] = ROUTE_RIGHTS
) -> None:
    """Make every route check its right before it reads the request.

    Args:
        routes: All routes of an application.
        rights: Required rights, by method and pattern.

    Raises:
        AssertionError: A route has no right, or a right has no route.
    """
    named = list(route_names(routes))
    missing = sorted({name for name, _ in named} - set(rights))
    assert not missing, f"routes without a right: {missing}; add them to ROUTE_RIGHTS"
    gone = sorted(set(rights) - {name for name, _ in named})
    assert not gone, f"rights without a route: {gone}; take them out of ROUTE_RIGHTS"
    for name, route in named:
        route.app = GuardedRoute(route.app, rights[name])


class GuardedRoute:
    """A route that checks the caller's right before it serves a call."""

    def __init__(self, app: ASGIApp, right: RouteRight) -> None:
        self._app = app
        self._right = right

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the right, then serve the call.

        Raises:
            ForbiddenError: The caller lacks the right.
        """
        if self._right.reach is not Reach.NOBODY:
            self._check(authorized_call())
        await self._app(scope, receive, send)

    def _check(self, call: AuthorizedCall) -> None:
        role, reach = self._right.role, self._right.reach
        assert role is not None
        call.role, call.begins_at_table = role, reach is Reach.TABLE
        if reach is Reach.SERVICE:
            require_role(role, None)
        elif not call.caller.may_somewhere(role):
            raise ForbiddenError(
                f"caller {call.caller.name!r} has no right to {role.value} on any table; its"
                f" grants are {call.caller.rights_text}: somebody with `admin` can give more"
            )


def rights_table() -> str:
    """Return the table of roles and routes, for the reference page."""
    lines = [
        "| route | read | write | compact | admin | on | |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, right in ROUTE_RIGHTS.items():
        marks = " | ".join("✓" if _allows(role, right) else "" for role in Role)
        lines.append(f"| `{name}` | {marks} | {right.reach.value} | {right.note} |")
    return "\n".join(lines)


def _allows(role: Role, right: RouteRight) -> bool:
    return right.role is None or right.role in INCLUDED[role]
