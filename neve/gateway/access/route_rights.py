"""Declaration of routes with the right that each one requires.

A route is declared at its handler: `@route("GET /v1/jobs", READ_LISTED)`. The gateway does not
start if a route has no right.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from neve.gateway.access.callers import (
    AuthorizedCall,
    Role,
    authorized_call,
    require_role,
)
from neve.gateway.problems import ForbiddenError


class Reach(StrEnum):
    """The tables on which a caller needs the role of a route."""

    NONE = "none"
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

    def noted(self, note: str, *, late: bool = False) -> "RouteRight":
        """Return this right with a remark; `late`: see there."""
        return replace(self, note=note, late=late)


OPEN = RouteRight(None, Reach.NONE)
READ = RouteRight(Role.READ, Reach.TABLE)
READ_LISTED = RouteRight(Role.READ, Reach.LISTED)
READ_ALL = RouteRight(Role.READ, Reach.SERVICE)
COMPACT_LISTED = RouteRight(Role.COMPACT, Reach.LISTED)
WRITE = RouteRight(Role.WRITE, Reach.TABLE)
COMPACT = RouteRight(Role.COMPACT, Reach.TABLE)
ADMIN = RouteRight(Role.ADMIN, Reach.TABLE)
ADMIN_ALL = RouteRight(Role.ADMIN, Reach.SERVICE)

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
"""Paths of public routes. They reveal nothing about tables: probes have no token."""


@dataclass(frozen=True, slots=True)
class DeclaredRoute:
    """A route as its handler declares it."""

    name: str
    """Method and pattern, such as `GET /v1/jobs`."""
    right: RouteRight
    options: Mapping[str, Any]
    """Arguments of `APIRouter.add_api_route`."""


Handler = TypeVar("Handler", bound=Callable[..., Any])


def route(name: str, right: RouteRight, **options: Any) -> Callable[[Handler], Handler]:
    """Declare a method as the handler of a route.

    Args:
        name: Method and pattern of the route.
        right: Right that the route requires.
        options: Further arguments of `APIRouter.add_api_route`.
    """

    def declare(handler: Handler) -> Handler:
        handler.declared = DeclaredRoute(name, right, options)  # type: ignore[attr-defined]  # `right_of` reads it
        return handler

    return declare


def declared_routes(kind: type) -> Iterator[tuple[str, DeclaredRoute]]:
    """Yield the handlers of a class, by their names, and the routes that they declare."""
    for name, handler in vars(kind).items():
        if (declared := getattr(handler, "declared", None)) is not None:
            yield name, declared


def right_of(found: Route) -> RouteRight | None:
    """Return the right that a route requires, or None if it declares none."""
    declared = getattr(found.endpoint, "declared", None)
    if declared is not None:
        return declared.right  # type: ignore[no-any-return]  # see `route`
    return OPEN if found.path in OPEN_PATHS else None


def guard_routes(routes: Iterable[BaseRoute]) -> None:
    """Make every route check its right before it reads the request.

    Args:
        routes: All routes of an application.

    Raises:
        AssertionError: A route has no right, or is public at a path that is not in `OPEN_PATHS`.
    """
    for found in routes:
        assert isinstance(found, Route), f"{found!r} is no plain route, so nothing guards it"
        right = right_of(found)
        assert right is not None, f"route {found.path} has no right; declare it with `@route`"
        is_open = right.reach is Reach.NONE
        assert is_open == (found.path in OPEN_PATHS), f"route {found.path}: see OPEN_PATHS"
        found.app = GuardedRoute(found.app, right)


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
        if self._right.reach is not Reach.NONE:
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
