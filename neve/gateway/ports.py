"""What the gateway needs of the outside, beside the store: coordinator and planners."""

from collections.abc import Callable, Sequence
from typing import Protocol

from common.model.job import TabletPlan
from common.model.table import Table
from common.model.tablet import Tablet
from common.wire import (
    CompactorStatus,
    CoordinatorStatus,
    Explanation,
    QueuedJob,
    RunningAttempt,
    TabletStory,
)

PlanTablet = Callable[[Tablet, Table, float], TabletPlan]
"""The planners of the settings: tablet, table, now → plan of every kind. Pure."""


class Coordinator(Protocol):
    """The coordinator, as far as users ask of it.

    Every method may raise `UnavailableError`: it is being started, or does not answer.
    """

    async def status(self) -> CoordinatorStatus:
        """Return counters of groups and compactors."""
        ...

    async def queue(self, group: str | None, count: int) -> Sequence[QueuedJob]:
        """Return the best queued jobs of a group, or of all groups."""
        ...

    async def running(self) -> Sequence[RunningAttempt]:
        """Return the attempts under way."""
        ...

    async def compactors(self) -> Sequence[CompactorStatus]:
        """Return the compactors that are heard of."""
        ...

    async def explain(self, table: str, tablet: str) -> Explanation:
        """Return why a tablet is as it is.

        Args:
            table: Its id.
            tablet: Its end as text.
        """
        ...

    async def story(self, table: str, tablet: str) -> TabletStory:
        """Return what has happened to a tablet; arguments as for `explain`."""
        ...

    async def drain(self, compactor: str) -> None:
        """Have a compactor finish what it holds and take nothing more."""
        ...

    async def cancel(self, attempt: str) -> None:
        """End an attempt."""
        ...

    async def pause_group(self, group: str) -> None:
        """Hand out no job of a group."""
        ...

    async def resume_group(self, group: str) -> None:
        """Hand out jobs of a group again."""
        ...

    async def set_limit(self, scope: str, bytes_s: int | None) -> None:
        """Limit the bytes/s of a scope.

        Args:
            scope: Such as `group:default` or `volume:fast`.
            bytes_s: 0: no limit; None: what the settings say.
        """
        ...

    async def lift_quarantine(self, table: str, tablet: str | None) -> None:
        """Try a quarantined tablet again.

        Args:
            table: Its id.
            tablet: Its end as text; None: every one of the table.
        """
        ...

    async def replan(self, table: str) -> None:
        """Look at every tablet of a table now.

        Args:
            table: Its id.
        """
        ...
