"""The calls that the coordinator answers, as protocols for its callers.

`coordinator.actor.CoordinatorActor` implements both protocols. mypy compares the signatures
there, and a test compares the names. `common.coordinator_proxy` turns them into remote calls.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from common.wire import (
    Assignment,
    AttemptReport,
    BacklogSample,
    CoordinatorStatus,
    Heartbeat,
    HeartbeatReply,
    QueuedJob,
    RunningAttempt,
    TabletStory,
    TakeRequest,
)
from neve import api


class CompactorCalls(Protocol):
    """Calls that a compactor makes.

    Every method raises `UnavailableError` when the coordinator does not answer.
    """

    async def take(self, request: TakeRequest) -> Assignment | None:
        """Wait for a job; None if none was available in time."""
        ...

    async def withdraw(self, take: str) -> None:
        """End a call of `take`, which then returns soon, possibly with a job."""
        ...

    async def beat(self, beat: Heartbeat) -> HeartbeatReply:
        """Report that the compactor is alive, and which attempts it holds."""
        ...

    async def report(self, report: AttemptReport) -> None:
        """Report how an attempt ended."""
        ...

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        """Report that the compactor stops and holds no attempts any more."""
        ...


class OperatorCalls(Protocol):
    """Calls that the gateway makes for users and operators.

    Every method raises `UnavailableError` when the coordinator does not answer.
    """

    async def status(self) -> CoordinatorStatus:
        """Return the counters of the groups, and the compactors."""
        ...

    async def queue(self, group: str | None, count: int) -> Sequence[QueuedJob]:
        """Return the best queued jobs of a group; None: of all groups."""
        ...

    async def running(self) -> Sequence[RunningAttempt]:
        """Return the attempts under way."""
        ...

    async def owed_tablets(self, table: str, count: int) -> Sequence[api.OwedTablet]:
        """Return the tablets of a table in which most is still to be rewritten."""
        ...

    async def backlog_history(self) -> Sequence[BacklogSample]:
        """Return the backlog of the last hour, oldest sample first."""
        ...

    async def compactors(self) -> Sequence[api.Compactor]:
        """Return the compactors that the coordinator hears from."""
        ...

    async def explain(self, table: str, tablet: str) -> api.Explanation:
        """Return why a tablet is as it is.

        Args:
            table: Id of the table.
            tablet: End of the tablet as text.
        """
        ...

    async def story(self, table: str, tablet: str) -> TabletStory:
        """Return the history of a tablet.

        Args:
            table: Id of the table.
            tablet: End of the tablet as text.
        """
        ...

    async def drain(self, compactor: str) -> None:
        """Let a compactor finish its jobs; it takes no new ones."""
        ...

    async def stop_compactor(self, compactor: str, wait_max_s: float | None) -> None:
        """Stop a compactor for good after its jobs; jobs that still run then are handed back.

        Args:
            compactor: Its name.
            wait_max_s: Longest wait for its jobs; None: `compactor.drain_timeout_s`.
        """
        ...

    async def scale(self, group: str, count: int | None) -> None:
        """Set how many compactors a group has.

        Args:
            group: Its name.
            count: Number of compactors; None: decided by the settings and the amount of work.
        """
        ...

    async def cancel(self, attempt: str) -> None:
        """End an attempt. An attempt of a request also cancels the request in this tablet."""
        ...

    async def pause_group(self, group: str) -> None:
        """Stop handing out jobs of a group."""
        ...

    async def resume_group(self, group: str) -> None:
        """Resume handing out jobs of a group."""
        ...

    async def set_limit(self, scope: str, bytes_s: int | None) -> None:
        """Limit the bytes per second of a scope.

        Args:
            scope: Such as `group:default` or `volume:fast`.
            bytes_s: The limit. 0: no limit; None: the limit of the settings.
        """
        ...

    async def lift_quarantine(self, table: str, tablet: str | None) -> None:
        """Lift the quarantine of a tablet, so that it is planned again.

        Args:
            table: Id of the table.
            tablet: End of the tablet as text; None: every tablet of the table.
        """
        ...

    async def analyze(self, table: str, tablets: Sequence[str]) -> None:
        """Request a count of the live bytes of tablets. A repeated request has no effect.

        Args:
            table: Id of the table.
            tablets: Ends of the tablets as text.
        """
        ...

    async def unanalyzed(self, table: str, tablets: Sequence[str]) -> Sequence[str]:
        """Return which tablets still wait for their live bytes to be counted.

        Args:
            table: Id of the table.
            tablets: Ends of the tablets as text.
        """
        ...

    async def replan(self, table: str) -> None:
        """Plan every tablet of a table now.

        Args:
            table: Id of the table.
        """
        ...

    async def maintenance(self, table: str, tablet: str | None) -> api.TableMaintenance:
        """Return the maintenance operations of the tablets of a table.

        Args:
            table: Id of the table.
            tablet: End of a tablet as text; None: the first tablets of the table.
        """
        ...

    async def note_scans(self, table: str, scans: Mapping[str, int]) -> None:
        """Count scans of tablets.

        Args:
            table: Id of the table.
            scans: End of a tablet as text → scans since the last call.
        """
        ...

    async def note_latencies(self, latencies: Mapping[str, tuple[float, int]]) -> None:
        """Record how long readers have waited.

        Args:
            latencies: Id of a table → average wait in seconds, and the number of reads.
        """
        ...

    async def control(self) -> api.Control:
        """Return what the controller reads and has decided."""
        ...

    async def trigger(self, table: str) -> api.Trigger:
        """Have the planner of a table asked now; return what it decides for each tablet.

        Args:
            table: Id of the table.

        Raises:
            RefusedError: The table is not live, or does not have the trigger `admin`.
        """
        ...


class CoordinatorCalls(CompactorCalls, OperatorCalls, Protocol):
    """Every call that the coordinator's actor answers."""


def call_names(port: type) -> frozenset[str]:
    """Return the names of the calls of a port."""
    return frozenset(name for name in vars(port) if not name.startswith("_"))
