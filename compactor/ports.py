"""The interfaces that the compactor's service uses: engine, own files and metrics."""

from typing import Protocol

from common.model.outcome import AttemptEnd, RowCounts
from common.model.table import Table
from common.wire import Assignment
from compactor.core import (
    EngineHealth,
    OnProgress,
    RewriteProgress,
    RewriteResult,
)

__all__ = [
    "CompactorMetrics",
    "Engine",
    "EngineHealth",
    "OwnFiles",
    "RewriteProgress",
    "RewriteResult",
]


class Engine(Protocol):
    """Rewrites the files of assignments, several concurrently, up to its slots."""

    async def start(self) -> None:
        """Start the engine and wait until it is ready. A running engine is left as it is.

        Raises:
            ConfigError: It cannot start on this machine.
            EngineDiedError: It died while it started.
        """
        ...

    async def wait_down(self) -> None:
        """Wait until the engine is not ready: it died, and may be restarting."""
        ...

    async def run(self, assignment: Assignment, on_progress: OnProgress) -> RewriteResult:
        """Rewrite, verify, and return the outputs; nothing is committed here.

        Raises:
            RewriteError: The job failed; the class shows whether a retry may succeed.
        """
        ...

    async def cancel(self, attempt: str) -> None:
        """End an attempt soon; its `run` raises AttemptCancelledError."""
        ...

    async def grant(self, attempt: str, bytes_s: float | None) -> None:
        """Set an attempt's limit in bytes/s; None: no limit.

        The first limit is that of its assignment.
        """
        ...

    def health(self) -> EngineHealth:
        """Return the engine's signs of life."""
        ...

    async def restart(self, cause: str) -> None:
        """End the engine, whatever it does, and start it again, without waiting for the start.

        Every running attempt fails with EngineRestartedError.
        """
        ...

    async def stop(self) -> None:
        """End everything; no process is left."""
        ...

    @property
    def pid(self) -> int | None:
        """The process id of the driver, or None."""
        ...


class OwnFiles(Protocol):
    """The compactor's own access to storage: owners of locations, and deletion of outputs."""

    async def check_location(self, table: Table, *, again: bool = False) -> None:
        """Check that the table's location belongs to this store.

        Args:
            table: The table.
            again: Check even if a recent check was successful.

        Raises:
            InputError: It belongs to another store.
            UnavailableError: It has no owner now, or the storage does not answer.
        """
        ...

    async def missing(self, table: Table, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return the files that do not exist.

        Raises:
            UnavailableError: The storage does not answer.
        """
        ...

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        """Delete outputs of an attempt whose commit was never sent; missing ones are ignored.

        Files that cannot be deleted are left to the collector.
        """
        ...


class CompactorMetrics(Protocol):
    """Counts the results of attempts. No method blocks or fails."""

    def rewrite_ended(self, elapsed_s: float) -> None:
        """Count a rewrite, whatever its outcome."""
        ...

    def attempt_ended(
        self, end: AttemptEnd, *, read_bytes: int, written_bytes: int, waited_s: float
    ) -> None:
        """Count an attempt.

        Args:
            end: Its outcome.
            read_bytes: Size of its inputs; 0 unless it committed.
            written_bytes: Size of its outputs; 0 unless it committed.
            waited_s: Total time that its tasks have waited for the grant.
        """
        ...

    def rows_dropped(self, counts: RowCounts) -> None:
        """Count the rows that a committed attempt dropped, by reason."""
        ...
