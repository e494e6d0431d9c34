"""Compaction groups and the services that use them.

A group is one queue and the compactors that serve it. A service is a planner with
the groups that its jobs may run in; a table's dispatcher names a service.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One compaction group as a planner sees it."""

    name: str
    max_bytes: int | None = None
    """Jobs of fewer input bytes may run here; None: of any size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A planner and its groups, ascending by `max_bytes`, the unlimited one last."""

    name: str = "default"
    planner: str = "ratio"
    groups: tuple[Group, ...] = (Group(name="default"),)
    options: Mapping[str, object] = field(default_factory=dict)
    """Planner options that override the table's settings of the same name."""
