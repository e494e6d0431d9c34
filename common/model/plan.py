"""A plan: the jobs of one tablet, and for every file left out, why."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.model.job import Job, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job as a planner proposes it, before ids, tablet and request are written on it.

    A planner refers to earlier jobs of its plan by their position in `Plan.jobs`.
    """

    kind: Kind
    files: tuple[str, ...]
    group: str
    priority: int
    reason: str
    depends_on: tuple[int, ...] = ()
    outputs_expected: int = 1
    cuts: tuple[bytes, ...] = ()
    """Keys after which a new output begins, ascending; of tables with a key only."""
    output_tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a planner wants for one tablet and one kind.

    Jobs without open dependencies are disjoint.
    """

    jobs: tuple[PlannedJob, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    """Path → why it was left out."""
    due_at_s: float | None = None
    """When the planner has to be asked again though nothing has changed; None: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TabletPlan:
    """All jobs wanted for a tablet, of every kind, with ids; replaces what is queued."""

    jobs: tuple[Job, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)
    holds: tuple[str, ...] = ()
    """Which requests hold files, or wait to; a sentence each."""
    due_at_s: float | None = None
    """When planners have to be asked again though nothing has changed; None: never."""
