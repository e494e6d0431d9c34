"""Compaction groups, the services that use them, and limits on bytes per second.

A limit applies to a compaction group, or to a volume that tables share.

A group is one queue and the compactors that serve it. A service is a planner with the groups that
its jobs may run in; a table's dispatcher names a service.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.errors import RequestError
from common.model.table import DNS_LABEL
from neve.api.compactors import Limit
from neve.api.messages import readable_across_releases


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One compaction group as a planner sees it."""

    name: str
    max_bytes: int | None = None
    """Jobs with fewer input bytes may run here; None: jobs of any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A planner and its groups, ascending by `max_bytes`, the unlimited one last."""

    name: str = "default"
    planner: str = "ratio"
    groups: tuple[Group, ...] = (Group(name="default"),)
    options: Mapping[str, object] = field(default_factory=dict)
    """Planner options that override the table's settings of the same name."""


# ----------------------------------------------------------------------- Limits on bytes per second


DEFAULT_VOLUME = "default"
"""Volume of tables that name no other."""
LIMIT_BYTES_S_MIN = 64 * 1024
"""Lowest limit: below it, a single row group would take minutes."""


class LimitScopeKind(StrEnum):
    """What a limit applies to."""

    GROUP = "group"
    """All attempts of a compaction group."""
    VOLUME = "volume"
    """All attempts on tables with this `volume` in their settings."""
    CONTROL = "control"
    """All attempts of the service: the controller's limit, which no operator sets."""


@dataclass(frozen=True, slots=True, order=True)
class LimitScope:
    """The target of a limit. Every attempt is subject to its group, its volume, and the total."""

    kind: LimitScopeKind
    name: str

    @property
    def text(self) -> str:
        """The scope in text form: `group:default`."""
        return f"{self.kind.value}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> "LimitScope":
        """Return the scope of a text such as `volume:fast`.

        Raises:
            RequestError: The text is not a scope.
        """
        kind, _, name = text.partition(":")
        if kind not in (LimitScopeKind.GROUP, LimitScopeKind.VOLUME) or not DNS_LABEL.fullmatch(
            name
        ):
            raise RequestError(f"{text!r} is not a scope, expected group:<name> or volume:<name>")
        return cls(LimitScopeKind(kind), name)


CONTROL_SCOPE = LimitScope(LimitScopeKind.CONTROL, "all")


def limit_scopes(group: str, volume: str) -> tuple[LimitScope, ...]:
    """Return the scopes that limit an attempt of a group on a volume."""
    return (
        LimitScope(LimitScopeKind.GROUP, group),
        LimitScope(LimitScopeKind.VOLUME, volume),
        CONTROL_SCOPE,
    )


def checked_limit(bytes_s: int, what: str) -> int:
    """Return a limit after validation; 0 means no limit.

    Args:
        bytes_s: The limit.
        what: Subject of the message.

    Raises:
        RequestError: The limit is too low.
    """
    if bytes_s == 0 or bytes_s >= LIMIT_BYTES_S_MIN:
        return bytes_s
    raise RequestError(
        f"limit of {what} is {bytes_s} bytes/s, expected 0 (none) or at least {LIMIT_BYTES_S_MIN}"
    )


@readable_across_releases
@dataclass(frozen=True, slots=True, kw_only=True)
class RateGrant:
    """Bytes per second that an attempt may move until the next grant; None: no limit."""

    attempt: str
    bytes_s: float | None


LimitStatus = Limit
"""The name under which older releases send it."""
