"""Who calls, and what that caller may do. Pure, but for the call that a task serves.

A grant is a role on tables, by a pattern of their names. A caller that may not read a table is
told the same as of a table that does not exist, so that names are no secret that leaks.
"""

import re
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from common.errors import RequestError
from neve.gateway.problems import ForbiddenError

ALL_TABLES = "*"
GRANTS_MAX = 100
"""Grants of one caller; more than that is a pattern that nobody has thought of."""
_PATTERN = re.compile(r"[a-z0-9*-]{1,63}")
"""What names of tables consist of, and the star."""


class Role(StrEnum):
    """What a grant allows."""

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
"""Role of a grant → roles that a route may ask for."""


@dataclass(frozen=True, slots=True)
class TableGrant:
    """A role on the tables whose names match a pattern."""

    role: Role
    tables: str = ALL_TABLES

    @classmethod
    def parse(cls, text: str) -> "TableGrant":
        """Return a grant from `role` (all tables) or `role:pattern`.

        Raises:
            RequestError: There is no such role, or the pattern can match no name.
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
        """The grant as it is written."""
        return self.role.value if self.tables == ALL_TABLES else f"{self.role.value}:{self.tables}"

    def covers(self, role: Role, table: str | None) -> bool:
        """Return whether the grant gives a role on a table; None: on the whole service."""
        if role not in INCLUDED[self.role]:
            return False
        return self.tables == ALL_TABLES or (table is not None and fnmatchcase(table, self.tables))


def parse_grants(texts: Iterable[str]) -> tuple[TableGrant, ...]:
    """Return grants from their texts.

    Raises:
        RequestError: One cannot be read, or there are none or too many.
    """
    grants = tuple(TableGrant.parse(text) for text in texts)
    if not 1 <= len(grants) <= GRANTS_MAX:
        raise RequestError(f"{len(grants)} grants are given, expected 1 to {GRANTS_MAX}")
    return grants


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who was recognised."""

    name: str
    grants: tuple[TableGrant, ...]

    def may(self, role: Role, table: str | None = None) -> bool:
        """Return whether the caller has a role on a table; None: on the whole service."""
        return any(grant.covers(role, table) for grant in self.grants)

    def may_somewhere(self, role: Role) -> bool:
        """Return whether the caller has a role on any table that there may be."""
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
"""Who shows the token of the settings. No named token can have this name: it has a dot."""


# ------------------------------------------------------------------------------ The call under way


@dataclass(slots=True)
class AuthorizedCall:
    """What is known of a call while it is served; its route fills in the rest."""

    caller: Caller
    role: Role | None = None
    """What the route asks for; None: it was not routed yet, or everybody may."""
    table: str = ""
    """Name of the table that it is about, as soon as it is known."""
    call: str = ""
    """Its call id, if it has one."""
    error: str = ""
    """Class of the error with which an answer ended that had begun well."""
    details: str = ""
    """Parameters of its body, for the audit."""


_CALL: ContextVar[AuthorizedCall | None] = ContextVar("neve_call", default=None)


def serve_call(call: AuthorizedCall | None) -> None:
    """Let a call be the one that this task, and what it starts, serves."""
    _CALL.set(call)


def authorized_call() -> AuthorizedCall:
    """Return the call that this task serves, which somebody has let in."""
    call = _CALL.get()
    assert call is not None, "a route is served that nothing stands in front of"
    return call


def current_call() -> AuthorizedCall:
    """Return the call that this task serves; of work that nobody has called for: the operator's."""
    return _CALL.get() or AuthorizedCall(OPERATOR)


def sees_table(name: str) -> bool:
    """Return whether the present caller may know of a table."""
    return current_call().caller.sees(name)


def require_role(role: Role, table: str | None) -> None:
    """Refuse the present call without a role on a table; None: on the whole service.

    Raises:
        ForbiddenError: The caller does not have it.
    """
    caller = current_call().caller
    if not caller.may(role, table):
        where = "the whole service" if table is None else f"table {table!r}"
        raise ForbiddenError(
            f"caller {caller.name!r} has no right to {role.value} on {where}; its grants are"
            f" {caller.rights_text}: somebody with `admin` can give more"
        )


def open_table(name: str) -> None:
    """Note which table the present call is about, and refuse what its route may not do there.

    Raises:
        ForbiddenError: The caller sees the table, but has not the role that the route asks for.
    """
    call = current_call()
    call.table = name
    if call.role is not None:
        require_role(call.role, name)
