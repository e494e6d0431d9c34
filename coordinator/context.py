"""What every part of the shell is given: the store, clock, ids, log, and shared threads.

A change of the store goes through `ShellContext.apply`, which refuses changes of a table
whose store has gone back in time.
"""

from dataclasses import dataclass, field, replace

from common.clock import Clock
from common.errors import MetadataError, UnavailableError
from common.ids import IdSource
from common.metadata.changes import Applied, Change, Guarded, Outcome, Refused, Unknown, table_of
from common.metadata.store import TabletStore
from common.model.outcome import RefusalCode
from common.storage_threads import StorageThreads
from common.telemetry import Log
from common.tracing import NoSpans, Spans
from coordinator.storage.generations import Generations
from coordinator.table_faults import TableFaults


@dataclass(frozen=True, slots=True)
class ShellContext:
    """What the parts of the shell share. Nothing here decides."""

    store: TabletStore
    clock: Clock
    ids: IdSource
    log: Log
    coordinator: str
    """The random id under which this coordinator has claimed the lead."""
    generations: Generations | None = None
    """Bars changes of tables whose store has gone back in time."""
    spans: Spans = field(default_factory=NoSpans)
    """Where spans of attempts go."""
    faults: TableFaults = field(init=False)
    """Keeps what fails for one table from ending the work on all."""
    threads: StorageThreads = field(init=False)
    """Where storage is read: what one caller learns of a silent storage, all know."""

    def __post_init__(self) -> None:
        """Share faults and threads with `generations`."""
        generations = self.generations
        faults = TableFaults(self.log) if generations is None else generations.faults
        object.__setattr__(self, "faults", faults)
        object.__setattr__(
            self, "threads", StorageThreads() if generations is None else generations.threads
        )

    async def apply(self, change: Change) -> Outcome:
        """Apply a change, unless its table is behind its location; the change requires it, too.

        Raises:
            ConflictError: Something required changed on every try.
            MetadataError: The store did not answer as it should.
            UnavailableError: It did not answer.
        """
        if self.generations is None or not isinstance(change, Guarded):
            return await self.store.apply(change)
        table = table_of(change)
        if (reason := await self.generations.refusal(table)) is not None:
            return Refused(code=RefusalCode.GENERATION, reason=reason)
        guarded = replace(change, generation=self.generations.known(table))
        return await self.store.apply(guarded)

    async def write(self, change: Change, what: str) -> None:
        """Write what an operator wants.

        Args:
            change: Of the whole store, not of a table.
            what: What is written, for messages.

        Raises:
            MetadataError: The store refused.
            UnavailableError: The store does not answer: it may be written or not.
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
