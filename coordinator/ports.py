"""Ports of the coordinator's shell to external systems, apart from the store."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from common.model.job import Kind, TabletPlan
from common.model.table import Table
from common.model.tablet import Tablet, TabletId
from common.parquet.foreign_formats import ForeignMark
from common.parquet.service_files import LocationOwner
from common.spi.planner import RequestFacts, Surroundings
from coordinator.core.events import Event
from neve.api import Correction

Submit = Callable[[Event], None]
"""Passes an event to the state; the turn has ended when the call returns."""


class Storage(Protocol):
    """Deletion of files, and access to the owner's mark of a location."""

    async def delete(self, location: str, path: str, until_s: float) -> bool:
        """Delete a file; return whether it existed.

        Args:
            location: Location of its table.
            path: Path relative to the location.
            until_s: Deadline by the clock; after it, nothing is deleted.

        Raises:
            RewriteError: The deadline has passed, or the storage refused or did not answer.
        """
        ...

    async def only_copies(
        self, location: str, outputs: Sequence[str], inputs: Sequence[str]
    ) -> Sequence[str]:
        """Return the complete outputs of an attempt if one of its inputs is missing.

        Args:
            location: Location of their table.
            outputs: Paths that the attempt may have written.
            inputs: Paths that the attempt has read.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        ...

    async def owner(self, location: str) -> LocationOwner | None:
        """Return the owner according to the mark of a location, or None if there is no mark.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        ...

    async def foreign_mark(self, location: str, paths: Sequence[str]) -> ForeignMark | None:
        """Return the mark of another table format that owns a location or files in it.

        Args:
            location: Location of their table.
            paths: Paths of the files.

        Raises:
            RewriteError: The storage refused or did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class Lack:
    """Resources that the compactors of a group need and no node has."""

    sentence: str = ""
    """Description; empty if nothing is missing or the resources are unknown."""
    final: bool = False
    """Whether no node type known to Ray has the resources; otherwise a node may be added."""


class CompactorLever(Protocol):
    """Starts and stops compactors. Every method raises `UnavailableError` on failure."""

    @property
    def edition(self) -> str:
        """Edition of newly started compactors; compactors of another edition are replaced."""
        ...

    async def names(self) -> frozenset[str]:
        """Return the existing compactors: running, starting, or waiting for a node."""
        ...

    async def start(self, group: str, name: str) -> None:
        """Start a compactor of a group under an unused name."""
        ...

    async def shut_down(self, name: str, wait_max_s: float | None) -> None:
        """Ask a compactor to finish its jobs and to exit; return at once.

        Args:
            name: The compactor; ignored if it does not exist.
            wait_max_s: Maximum wait for its jobs; None means `compactor.drain_timeout_s`.
        """
        ...

    async def kill(self, name: str) -> None:
        """Kill a compactor at once, without a restart."""
        ...

    async def why_gone(self, name: str) -> str:
        """Return why a compactor that no longer exists has died, as far as is known."""
        ...

    async def lack(self, group: str, *, asked: bool) -> Lack:
        """Return the resources that the compactors of a group need and no node has.

        Args:
            group: The group.
            asked: Whether compactors are starting. If not, a node that was removed, for example
                after the last job, does not count as missing.
        """
        ...


class PlanTablet(Protocol):
    """A function that plans a tablet with the configured planners. Pure."""

    def __call__(
        self,
        tablet: Tablet,
        table: Table,
        now_s: float,
        requests: Mapping[str, RequestFacts] | None = None,
        *,
        only: Kind | None = None,
        correction: Correction | None = None,
        known: Surroundings | None = None,
    ) -> TabletPlan:
        """Return the plan of a tablet; arguments as for `core.planning.plan_tablet`.

        With a `correction`, the caller has read the history of the table. With `known`, it has
        collected the facts that are not metadata; then the call may be made in a thread.

        Raises:
            PluginError: A planner or dispatcher failed.
        """
        ...


class QueuedJobs(Protocol):
    """The queued jobs, for comparison with the wanted jobs of a full scan."""

    def queued_ends(self, table: str) -> list[bytes]:
        """Return the ends of a table's tablets that have queued jobs."""
        ...

    def queued_ids(self, tablet: TabletId) -> tuple[str, ...]:
        """Return the ids of a tablet's queued jobs."""
        ...

    def is_deferred(self, tablet: TabletId) -> bool:
        """Return whether a tablet waits to be replanned."""
        ...
