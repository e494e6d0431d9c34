"""What the compactor's service needs of the outside: the coordinator and an engine."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from common.model.file import DataFile
from common.model.outcome import DroppedRows, RowCounts
from common.wire import Assignment, Beat, BeatReply, Report, TakeRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteProgress:
    """How far the engine is with one attempt."""

    fraction: float
    bytes_done: int = 0
    rows_done: int = 0
    state: str = "rewriting"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """What the engine has written and verified: outputs with their statistics."""

    outputs: tuple[DataFile, ...]
    counts: RowCounts
    dropped: DroppedRows | None = None
    kernel: str = ""
    timings_s: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Rewrites the files of an assignment. Several at a time, up to its slots."""

    async def start(self) -> None:
        """Be ready to run; returns when it is.

        Raises:
            ConfigError: It cannot start on this machine.
        """
        ...

    async def run(
        self, assignment: Assignment, on_progress: Callable[[RewriteProgress], None]
    ) -> RewriteResult:
        """Rewrite, verify, and return the outputs; nothing is committed here.

        Raises:
            RewriteError: The job failed; its class says whether it is worth another try.
        """
        ...

    async def cancel(self, attempt: str) -> None:
        """End an attempt soon; its `run` raises AttemptCancelledError."""
        ...

    async def stop(self) -> None:
        """End everything and leave no process behind."""
        ...

    @property
    def pid(self) -> int | None:
        """The process id of the driver, or None."""
        ...


class Coordinator(Protocol):
    """The coordinator as a compactor sees it; an adapter over Ray or a simulation.

    Every call raises UnavailableError when the coordinator does not answer.
    """

    async def take(self, request: TakeRequest) -> Assignment | None:
        """Wait for a job; None if there was none in time."""
        ...

    async def beat(self, beat: Beat) -> BeatReply:
        """Say that we live and what we hold."""
        ...

    async def report(self, report: Report) -> None:
        """Say how an attempt ended."""
        ...

    async def leave(self, compactor: str, incarnation: str, cause: str) -> None:
        """Say goodbye: nothing is held any more."""
        ...
