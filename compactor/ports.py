"""What the compactor's service needs of the outside: engine, own files and metrics."""

from typing import Protocol

from common.model.outcome import AttemptEnd, RowCounts
from common.model.table import Table
from common.wire import Assignment
from compactor.core.progress import (
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
    """Rewrites the files of an assignment. Several at a time, up to its slots."""

    async def start(self) -> None:
        """Be ready to run; returns when it is. A running engine stays as it is.

        Raises:
            ConfigError: It cannot start on this machine.
            EngineDiedError: It died while it started.
        """
        ...

    async def wait_down(self) -> None:
        """Return when it is not ready to run: it died, and is perhaps being started again."""
        ...

    async def run(self, assignment: Assignment, on_progress: OnProgress) -> RewriteResult:
        """Rewrite, verify, and return the outputs; nothing is committed here.

        Raises:
            RewriteError: The job failed; its class says whether it is worth another try.
        """
        ...

    async def cancel(self, attempt: str) -> None:
        """End an attempt soon; its `run` raises AttemptCancelledError."""
        ...

    async def grant(self, attempt: str, bytes_s: float | None) -> None:
        """Let an attempt move so many bytes/s from now on; None: no limit.

        It begins with what its assignment says.
        """
        ...

    def health(self) -> EngineHealth:
        """Return what the engine shows of its life."""
        ...

    async def restart(self, cause: str) -> None:
        """End the engine, whatever it does, and start it again; does not wait for the start.

        Every attempt under way fails with EngineRestartedError.
        """
        ...

    async def stop(self) -> None:
        """End everything and leave no process behind."""
        ...

    @property
    def pid(self) -> int | None:
        """The process id of the driver, or None."""
        ...


class OwnFiles(Protocol):
    """The compactor's own hand on storage: is the location ours, and deletion of outputs."""

    async def check_location(self, table: Table, *, again: bool = False) -> None:
        """Make sure that the table's location belongs to this store.

        Args:
            table: The table.
            again: Look also if the location was ours a moment ago.

        Raises:
            InputError: It belongs to another store.
            UnavailableError: It belongs to none now, or the storage does not answer.
        """
        ...

    async def missing(self, table: Table, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of these files that are not there.

        Raises:
            UnavailableError: The storage does not answer.
        """
        ...

    async def delete(self, table: Table, paths: tuple[str, ...]) -> None:
        """Delete outputs of an attempt whose commit was never sent; missing ones are fine.

        What cannot be deleted stays for the collector.
        """
        ...


class CompactorMetrics(Protocol):
    """Counts what attempts did. No method blocks or fails."""

    def rewrite_ended(self, elapsed_s: float) -> None:
        """Count a rewrite, whatever its end."""
        ...

    def attempt_ended(
        self, end: AttemptEnd, *, read_bytes: int, written_bytes: int, waited_s: float
    ) -> None:
        """Count an attempt.

        Args:
            end: How it ended.
            read_bytes: Size of its inputs; 0 unless it committed.
            written_bytes: Size of its outputs; 0 unless it committed.
            waited_s: How long its tasks have waited for the grant, together.
        """
        ...

    def rows_dropped(self, counts: RowCounts) -> None:
        """Count the rows that an attempt which has committed left out, by reason."""
        ...
