"""What the coordinator's shell needs from outside, apart from the store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.model.job import Kind, TabletPlan
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.parquet.foreign_formats import ForeignMark
from common.parquet.service_files import LocationOwner
from common.spi.planner import RequestFacts
from coordinator.core.events import Event

Submit = Callable[[Event], None]
"""Hand an event to the state; the turn happens before it returns."""


class Storage(Protocol):
    """Deletion of files, and the mark that says whose a location is."""

    async def delete(self, location: str, path: str, until_s: float) -> bool:
        """Delete a file; return whether it was there.

        Args:
            location: Of its table.
            path: Relative to it.
            until_s: When it is too late, by the clock: then nothing is deleted.

        Raises:
            RewriteError: It was too late, or the storage refused or did not answer.
        """
        ...

    async def only_copies(
        self, location: str, outputs: Sequence[str], inputs: Sequence[str]
    ) -> Sequence[str]:
        """Return the outputs of an attempt that are whole although an input of it is missing.

        Args:
            location: Of their table.
            outputs: Paths that the attempt may have written.
            inputs: Paths of what it read.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        ...

    async def owner(self, location: str) -> LocationOwner | None:
        """Return what the mark of a location says, or None if there is none.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        ...

    async def foreign_mark(self, location: str, paths: Sequence[str]) -> ForeignMark | None:
        """Return the mark of another table format that owns a location or files in it.

        Args:
            location: Of their table.
            paths: Of the files.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Lack:
    """What compactors of a group need and no node has."""

    sentence: str = ""
    """Empty: nothing is missing, or it is not known."""
    final: bool = False
    """Whether nothing that Ray knows of can give it; otherwise a node may come."""


class CompactorLever(Protocol):
    """Starts and ends compactors. Every method raises `UnavailableError` if it cannot."""

    @property
    def edition(self) -> str:
        """What compactors are started with now; those of another edition are replaced."""
        ...

    async def names(self) -> frozenset[str]:
        """Return the compactors that exist: that run, start, or wait for a place."""
        ...

    async def start(self, group: str, name: str) -> None:
        """Start a compactor of a group under a name that is free."""
        ...

    async def shut_down(self, name: str, wait_max_s: float | None) -> None:
        """Let a compactor end its jobs and end for good; return at once.

        Args:
            name: The compactor; one that is gone is left alone.
            wait_max_s: Longest wait for its jobs; None: `compactor.drain_timeout_s`.
        """
        ...

    async def kill(self, name: str) -> None:
        """End a compactor at once, for good."""
        ...

    async def why_gone(self, name: str) -> str:
        """Return why a compactor that does not exist any more has died, as far as is known."""
        ...

    async def lack(self, group: str, *, asked: bool) -> Lack:
        """Return what compactors of a group need and no node has.

        Args:
            group: The group.
            asked: Whether compactors are starting. Without one, a node that has gone, as after the
                last job, is not missed.
        """
        ...


class PlanTablet(Protocol):
    """The registry's planners, bound. Pure."""

    def __call__(
        self,
        tablet: Tablet,
        table: Table,
        now_s: float,
        requests: Mapping[str, RequestFacts] | None = None,
        *,
        only: Kind | None = None,
    ) -> TabletPlan:
        """Return the plan of a tablet; arguments as for `core.planning.plan_tablet`.

        Raises:
            PluginError: A planner or dispatcher misbehaved.
        """
        ...


class QueuedJobs(Protocol):
    """What is queued, as far as a full scan compares it with what is wanted."""

    def queued_ends(self, table: str) -> list[bytes]:
        """Return the ends of a table's tablets that have queued jobs."""
        ...

    def queued_ids(self, tablet: TabletId) -> tuple[str, ...]:
        """Return the ids of a tablet's queued jobs."""
        ...

    def is_deferred(self, tablet: TabletId) -> bool:
        """Return whether a tablet waits to be planned again."""
        ...
