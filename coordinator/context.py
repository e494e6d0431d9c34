"""Dependencies shared by all parts of the shell: store, clock, ids, log, and threads.

A change of the store goes through `ShellContext.apply`, which refuses changes of a table whose
store has lost recent changes.
"""

from dataclasses import dataclass, field, replace

from common.errors import MetadataError, UnavailableError
from common.metadata.changes import Applied, Change, Guarded, Outcome, Refused, Unknown, table_of
from common.metadata.store import TabletStore
from common.model.outcome import RefusalCode
from common.runtime import Clock, IdSource
from common.storage_threads import StorageThreads
from common.telemetry import Log
from common.tracing import NoSpans, Spans
from coordinator.storage.generations import Generations
from coordinator.table_faults import TableFaults


@dataclass(frozen=True, slots=True)
class ShellContext:
    """Shared dependencies of the shell. It makes no decisions."""

    store: TabletStore
    clock: Clock
    ids: IdSource
    log: Log
    coordinator: str
    """Random id under which this coordinator has claimed the lead."""
    generations: Generations | None = None
    """Refuses changes of tables whose store has lost recent changes."""
    spans: Spans = field(default_factory=NoSpans)
    """Receives the spans of attempts."""
    faults: TableFaults = field(init=False)
    """Keeps failures of one table from stopping the work on all tables."""
    threads: StorageThreads = field(init=False)
    """Threads that read storage. Callers share what they learn about a silent storage."""

    def __post_init__(self) -> None:
        """Share faults and threads with `generations`."""
        generations = self.generations
        faults = TableFaults(self.log) if generations is None else generations.faults
        object.__setattr__(self, "faults", faults)
        object.__setattr__(
            self, "threads", StorageThreads() if generations is None else generations.threads
        )

    async def apply(self, change: Change) -> Outcome:
        """Apply a change, unless the store of its table is older than the table's location.

        The change requires the same condition.
        """
        if self.generations is None or not isinstance(change, Guarded):
            return await self.store.apply(change)
        table = table_of(change)
        if (reason := await self.generations.refusal(table)) is not None:
            return Refused(code=RefusalCode.GENERATION, reason=reason)
        guarded = replace(change, generation=self.generations.known(table))
        return await self.store.apply(guarded)

    async def write(self, change: Change, what: str) -> None:
        """Write an operator's change.

        Args:
            change: A change of the whole store, not of one table.
            what: What is written, for messages.

        Raises:
            MetadataError: The store refused.
            UnavailableError: The store does not answer; the change may or may not be written.
        """
        outcome = await self.store.apply(change)
        if isinstance(outcome, Refused):
            raise MetadataError(f"{what} is not written: {outcome.reason}")
        if not isinstance(outcome, Applied):
            raise UnavailableError(f"{what} may not be written: {outcome.reason}")

    async def apply_or_unknown(self, change: Change) -> Outcome:
        """Apply a change; if the store gives no clear answer, the outcome is `Unknown`."""
        try:
            return await self.apply(change)
        except (MetadataError, UnavailableError) as error:
            return Unknown(reason=str(error))
