"""Callers, their rights, and the rights that routes require.

Pure, except for the current call of a task.

A grant gives a role on the tables whose names match a pattern. A caller that may not read a table
gets the same answer as for a table that does not exist, so that table names do not leak.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from common.errors import RefusedError, RequestError
from neve.gateway.problems import ForbiddenError

CONSOLE = "/console"
"""Path of the console, whose callers have a session instead of a token."""
SIGN_IN, STATIC = f"{CONSOLE}/sign-in", f"{CONSOLE}/static"
ALL_TABLES = "*"
GRANTS_MAX = 100
"""Limit of grants per caller; use a pattern instead of more grants."""
_PATTERN = re.compile(r"[a-z0-9*-]{1,63}")
"""Characters of table names, and the star."""


class Role(StrEnum):
    """Role of a grant."""

    READ = "read"
    WRITE = "write"
    COMPACT = "compact"
    ADMIN = "admin"


INCLUDED: dict[Role, frozenset[Role]] = {
    Role.READ: frozenset({Role.READ}),
    Role.WRITE: frozenset({Role.READ, Role.WRITE}),
    Role.COMPACT: frozenset({Role.READ, Role.COMPACT}),
    Role.ADMIN: frozenset(Role),
}
"""Role of a grant → roles of routes that it includes."""


@dataclass(frozen=True, slots=True)
class TableGrant:
    """A role on the tables whose names match a pattern."""

    role: Role
    tables: str = ALL_TABLES

    @classmethod
    def parse(cls, text: str) -> "TableGrant":
        """Parse a grant: `role` (all tables) or `role:pattern`.

        Raises:
            RequestError: The role does not exist, or the pattern cannot match any name.
        """
        word, colon, pattern = text.partition(":")
        if word not in set(Role):
            raise RequestError(
                f"grant {text[:100]!r} names no role, expected one of {', '.join(Role)},"
                " such as `read` or `write:events-*`"
            )
        pattern = pattern if colon else ALL_TABLES
        if not _PATTERN.fullmatch(pattern):
            raise RequestError(
                f"grant {text[:100]!r} has pattern {pattern[:100]!r}, expected a name of tables:"
                " lower-case letters, digits and dashes, with `*` for any"
            )
        return cls(Role(word), re.sub(r"\*+", ALL_TABLES, pattern))

    @property
    def text(self) -> str:
        """The grant in text form."""
        return self.role.value if self.tables == ALL_TABLES else f"{self.role.value}:{self.tables}"

    def covers(self, role: Role, table: str | None) -> bool:
        """Return whether the grant gives a role on a table; None: on the whole service."""
        if role not in INCLUDED[self.role]:
            return False
        return self.tables == ALL_TABLES or (table is not None and fnmatchcase(table, self.tables))


def parse_grants(texts: Iterable[str]) -> tuple[TableGrant, ...]:
    """Parse grants.

    Raises:
        RequestError: A grant is invalid, or there are no grants or too many.
    """
    grants = tuple(TableGrant.parse(text) for text in texts)
    if not 1 <= len(grants) <= GRANTS_MAX:
        raise RequestError(f"{len(grants)} grants are given, expected 1 to {GRANTS_MAX}")
    return grants


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller."""

    name: str
    grants: tuple[TableGrant, ...]

    def may(self, role: Role, table: str | None = None) -> bool:
        """Return whether the caller has a role on a table; None: on the whole service."""
        return any(grant.covers(role, table) for grant in self.grants)

    def may_somewhere(self, role: Role) -> bool:
        """Return whether the caller has a role on any possible table."""
        return any(role in INCLUDED[grant.role] for grant in self.grants)

    def sees(self, table: str) -> bool:
        """Return whether the caller may know of a table."""
        return self.may(Role.READ, table)

    @property
    def sees_all(self) -> bool:
        """Whether no table is hidden from the caller."""
        return self.may(Role.READ)

    @property
    def rights_text(self) -> str:
        """The grants, for messages."""
        return ", ".join(grant.text for grant in self.grants) or "none"


OPERATOR = Caller("gateway.token", (TableGrant(Role.ADMIN),))
"""Caller with the token of the settings. Its dot keeps the name distinct from named tokens."""


# -------------------------------------------------------------------------------- The current call


@dataclass(slots=True)
class AuthorizedCall:
    """The call in progress; its route fills in the details."""

    caller: Caller
    begin: Callable[[], Awaitable[None]] | None = None
    """Writes the first line of the audit; None: it is written, or the call has none."""
    begins_at_table: bool = False
    """Whether the look-up of its table is the last check of its rights."""
    role: Role | None = None
    """Role that the route requires; None: no route was chosen so far, or the route is public."""
    further_role: Role | None = None
    """Role that its body requires in addition."""
    table: str = ""
    """Name of the call's table, as soon as it is known."""
    call: str = ""
    """Its call id, if it has one."""
    error: str = ""
    """Class of the error that ended an answer after it had started successfully."""
    details: str = ""
    """Parameters of its body, for the audit."""
    route: str = ""
    """Method and pattern of its route; empty: a page of the console, or background work."""
    session: object = None
    """Session of the console that it belongs to, see `sessions`; None: it has a token."""


_CALL: ContextVar[AuthorizedCall | None] = ContextVar("neve_call", default=None)


def serve_call(call: AuthorizedCall | None) -> None:
    """Set the call that this task and its child tasks serve."""
    _CALL.set(call)


def authorized_call() -> AuthorizedCall:
    """Return the authenticated call that this task serves."""
    call = _CALL.get()
    assert call is not None, "a route is served that nothing stands in front of"
    return call


def current_call() -> AuthorizedCall:
    """Return the call that this task serves; for background work, a call of the operator."""
    return _CALL.get() or AuthorizedCall(OPERATOR)


def sees_table(name: str) -> bool:
    """Return whether the current caller may know of a table."""
    return current_call().caller.sees(name)


def require_role(role: Role, table: str | None) -> None:
    """Check that the current caller has a role on a table; None: on the whole service.

    Raises:
        ForbiddenError: The caller does not have the role.
    """
    caller = current_call().caller
    if not caller.may(role, table):
        where = "the whole service" if table is None else f"table {table!r}"
        raise ForbiddenError(
            f"caller {caller.name!r} has no right to {role.value} on {where}; its grants are"
            f" {caller.rights_text}: somebody with `admin` can give more"
        )


def check_table(name: str) -> None:
    """Record the table of the current call, and check the roles that the call requires.

    Raises:
        ForbiddenError: The caller sees the table, but lacks a role that the call requires.
    """
    call = current_call()
    call.table = name
    for role in (call.role, call.further_role):
        if role is not None:
            require_role(role, name)


async def open_table(name: str) -> None:
    """Check the rights on the table of the current call, which begins then if it has no other.

    Raises:
        ForbiddenError: The caller sees the table, but lacks a role that the call requires.
        UnavailableError: The audit cannot be written.
    """
    check_table(name)
    if current_call().begins_at_table:
        await begin_call()


async def begin_call() -> None:
    """Write the first line of the current call into the audit, unless it is written.

    Raises:
        UnavailableError: The audit cannot be written, so the call must not be made.
    """
    call = current_call()
    if call.begin is not None:
        await call.begin()
        call.begin = None


# ------------------------------------------------------------------------------------- Route rights
# Declaration of routes with the right that each one requires.
#
# A route is declared at its handler: `@route("GET /v1/jobs", READ_LISTED)`. The gateway does not
# start if a route has no right.


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

OPEN_PATHS = frozenset(
    {
        *("/healthz", "/readyz", "/docs", "/openapi.json"),
        *(SIGN_IN, f"{SIGN_IN}/issuer", f"{SIGN_IN}/issued"),
        f"{STATIC}/{{digest}}/{{name}}",
    }
)
"""Paths of public routes. They reveal nothing about tables: probes have no token."""


def is_open(path: str) -> bool:
    """Return whether a path needs no token."""
    return path in OPEN_PATHS or path.startswith(f"{STATIC}/")


@dataclass(frozen=True, slots=True)
class DeclaredRoute:
    """A route as its handler declares it."""

    name: str
    """Method and pattern, such as `GET /v1/jobs`."""
    right: RouteRight
    options: Mapping[str, Any]
    """Arguments of `APIRouter.add_api_route`."""
    serve: str = ""
    """Method that takes the request and returns the whole response; empty: the handler, whose
    parameters and answer the framework converts."""


Handler = TypeVar("Handler", bound=Callable[..., Any])


def route(
    name: str, right: RouteRight, *, serve: str = "", **options: Any
) -> Callable[[Handler], Handler]:
    """Declare a method as the handler of a route.

    Args:
        name: Method and pattern of the route.
        right: Right that the route requires.
        serve: For a route with many calls per second; see `DeclaredRoute`.
        options: Further arguments of `APIRouter.add_api_route`.
    """

    def declare(handler: Handler) -> Handler:
        handler.declared = DeclaredRoute(name, right, options, serve)  # type: ignore[attr-defined]  # `right_of` reads it
        return handler

    return declare


def declared_routes(kind: type) -> Iterator[tuple[str, DeclaredRoute]]:
    """Yield the handlers of a class, by their names, and the routes that they declare."""
    for name, handler in vars(kind).items():
        if (declared := getattr(handler, "declared", None)) is not None:
            yield name, declared


def right_of(app_route: Route) -> RouteRight | None:
    """Return the right that a route requires, or None if it declares none."""
    declared = getattr(app_route.endpoint, "declared", None)
    if declared is not None:
        return declared.right  # type: ignore[no-any-return]  # see `route`
    return OPEN if app_route.path in OPEN_PATHS else None


def guard_routes(routes: Iterable[BaseRoute]) -> None:
    """Make every route check its right before it reads the request.

    Raises:
        AssertionError: A route has no right, or is public at a path that is not in `OPEN_PATHS`.
    """
    for app_route in routes:
        assert isinstance(app_route, Route), (
            f"{app_route!r} is no plain route, so nothing guards it"
        )
        right = right_of(app_route)
        assert right is not None, f"route {app_route.path} has no right; declare it with `@route`"
        is_open = right.reach is Reach.NONE
        assert is_open == (app_route.path in OPEN_PATHS), f"route {app_route.path}: see OPEN_PATHS"
        declared = getattr(app_route.endpoint, "declared", None)
        app_route.app = GuardedRoute(app_route.app, right, declared.name if declared else "")


class GuardedRoute:
    """A route that checks the caller's right before it serves a call."""

    def __init__(self, app: ASGIApp, right: RouteRight, name: str = "") -> None:
        self._app = app
        self._right = right
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the right, then serve the call.

        Raises:
            ForbiddenError: The caller lacks the right.
        """
        if self._right.reach is not Reach.NONE:
            check_right(self._right)
            authorized_call().route = self._name
        await self._app(scope, receive, send)


def check_right(right: RouteRight) -> None:
    """Check that the current caller may use a route; the look-up of a table checks the rest.

    Raises:
        ForbiddenError: The caller lacks the right.
    """
    call, role = authorized_call(), right.role
    assert role is not None
    call.role, call.begins_at_table = role, right.reach is Reach.TABLE
    if right.reach is Reach.SERVICE:
        require_role(role, None)
    elif not call.caller.may_somewhere(role):
        raise ForbiddenError(
            f"caller {call.caller.name!r} has no right to {role.value} on any table; its"
            f" grants are {call.caller.rights_text}: somebody with `admin` can give more"
        )


# -------------------------------------------------------------------------------------- Lake tables

_WRITES = "rows are written by its own engine, such as deltalake or Spark"
_READS = "read it with its own engine, such as deltalake, DuckDB or Polars"
_OWN_METADATA = "its metadata is the log of the table, which its own engine maintains"
_RANGES = "its tablets are partitions, not ranges of keys"
NOT_FOR_LAKE: Mapping[str, str] = {
    "POST /v1/tables/{table}/files": f"files cannot be added: {_WRITES}",
    "POST /v1/tables/{table}/append": f"rows cannot be appended: {_WRITES}",
    "POST /v1/tables/{table}/rows": f"rows cannot be buffered: {_WRITES}",
    "POST /v1/tables/{table}/flush": f"there are no buffered rows to flush: {_WRITES}",
    "GET /v1/tables/{table}/scan": f"it cannot be scanned: {_READS}",
    "GET /v1/tables/{table}/count": f"its rows cannot be counted by a scan: {_READS}",
    "GET /v1/tables/{table}/manifest": f"it has no manifest of the service: {_READS}",
    "GET /v1/tables/{table}/manifest/files": f"it has no manifest of the service: {_READS}",
    "POST /v1/tables/{table}/fsck": f"there is nothing to check: {_OWN_METADATA}",
    "POST /v1/tables/{table}/gc": (
        "its files are not listed: files without a reference are deleted by its own engine (for"
        " Delta: VACUUM), or by `neve maintain TABLE vacuum`"
    ),
    "POST /v1/tables/{table}/lower-watermark": f"it has no watermark: {_WRITES}",
    "POST /v1/tables/{table}/analyze": (
        "its live bytes need no analysis: its log names the deleted rows of each file"
    ),
    "POST /v1/tables/{table}/split": f"it cannot be split: {_RANGES}",
    "POST /v1/tables/{table}/merge": f"its tablets cannot be merged: {_RANGES}",
    "POST /v1/backup": f"it is not in a backup: {_OWN_METADATA}; attach it again after a loss",
}
"""Route → why it does not serve lake tables, and what to do instead."""


def refuse_lake_table(table: str, uri: str) -> None:
    """Refuse a lake table if the route of the current call does not serve such tables.

    Raises:
        RefusedError: It does not; the message names the way of the table's own engine.
    """
    if (why := NOT_FOR_LAKE.get(current_call().route)) is not None:
        raise RefusedError(f"table {table!r} is a lake table ({uri}): {why}", "lake")
