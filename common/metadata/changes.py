"""Every change of metadata, as a value. What it needs and does: `common.metadata.mutation`.

A change says *which* write is wanted. Whether it is allowed is decided by the pure
predicates, after `WATCH`, on what was read then (protocol, rule 1).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from common.metadata.readings import CallKind, CallMark
from common.metadata.repair_changes import RepairChange
from common.metadata.request_changes import RequestChange
from common.metadata.upkeep_changes import Guarded, UpkeepChange
from common.model.file import DataFile
from common.model.job import Kind
from common.model.location_identity import LocationIdentity
from common.model.outcome import AttemptEnd, DroppedRows, RowCounts
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import Reservation, Tablet, TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """Make a table with its tablets. Refused: the name is none or is taken, locations overlap.

    `table.state` PAUSED makes it paused (an import); else it becomes live.
    """

    table: Table
    splits: tuple[bytes, ...] = ()
    """Ends of all tablets but the last, ascending. Ignored for a partitioned table."""
    identity: LocationIdentity | None = None
    """What its location is; None: what its URI tells."""
    others: Mapping[str, LocationIdentity] = field(default_factory=dict)
    """Table id → what its location is now, of tables whose entry may say it no longer."""
    generation: int = 0
    """Where its generation begins: above what an earlier table has left in the location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTable:
    """Write new settings or another state. Refused: `settings_version` is not the present one."""

    table: str
    settings_version: int
    settings: TableSettings | None = None
    state: TableState | None = None
    """LIVE or PAUSED."""
    schema: tuple[Column, ...] | None = None
    """All columns; with it the schema's id is counted up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """Set the table going, then remove its tablets and keys, one change per tablet."""

    table: str
    delete_files: bool = False
    resumed: bool = False
    """Only go on with a drop that has begun: a table that is not going is left alone."""
    unfinished: bool = False
    """Only a table that was never live, or of which no more than the name is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFiles(Guarded):
    """Add files to any number of tablets at once, under one call id."""

    table: str
    call: str
    """UUIDv7 (`common.ids.call_id`); the same call again changes nothing and succeeds."""
    files: Mapping[bytes, tuple[DataFile, ...]]
    """Tablet end → its new files."""
    partitions: Mapping[bytes, str] = field(default_factory=dict)
    """For a partitioned table: tablet end → partition text, to create tablets that are new."""
    kind: CallKind = CallKind.ADD
    content: str = ""
    """Digest of what the caller sent; empty: the files' names and sizes are the content."""
    looked_s: float | None = None
    """The store's time before somebody saw that all files exist and none is in garbage."""
    look_max_s: float = 0.0
    """How old that look may be: in less time no collector can have deleted a file since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve(Guarded):
    """Let one attempt alone replace these files."""

    tablet: TabletId
    attempt: str
    job: str
    kind: Kind
    inputs: tuple[str, ...]
    output_prefix: str
    outputs_max: int
    group: str
    compactor: str
    request: str | None = None
    cuts_at: bytes | None = None
    """The key where this job cuts, for a tablet whose operation is at `cut`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Replace the inputs of an attempt by its outputs."""

    tablet: TabletId
    attempt: str
    outputs: tuple[DataFile, ...]
    counts: RowCounts
    dropped: DroppedRows | None = None
    """Set if dead rows were dropped whose older versions must stay out."""
    outside: tuple[str, ...] = ()
    """Paths of the files, not inputs, that the kernel was told of when it decided to drop."""
    elapsed_s: float = 0.0
    reason: str = ""
    """The job's reason, for the history."""
    inputs: tuple[str, ...] = ()
    """Its inputs, if known: spares a round trip. What counts is the reservation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(Guarded):
    """Give a reservation up, nothing replaced."""

    tablet: TabletId
    attempt: str
    end: AttemptEnd
    """FAILED counts as a failure of the tablet; the others do not."""
    cause: str
    coordinator: str | None = None
    """For a release because of silence: the id that must still be the coordinator's."""
    halvings: int = 0
    """What the next attempt at this job is to be told; 0: nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropHold(Guarded):
    """Drop an expired selection of which no job completed and none runs."""

    tablet: TabletId


Change = (
    CreateTable
    | ChangeTable
    | DropTable
    | AddFiles
    | Reserve
    | Commit
    | Release
    | DropHold
    | UpkeepChange
    | RequestChange
    | RepairChange
)


def table_of(change: Guarded) -> str:
    """Return the id of the table that a change is about."""
    for name in ("tablet", "tablets", "left", "request"):
        about = getattr(change, name, None)
        if about:
            return str((about[0] if name == "tablets" else about).table)
    return str(change.table)  # type: ignore[attr-defined]  # all others name their table


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The change was made (now, or by an earlier try of the same change)."""

    tries: int = 1
    conflicts: int = 0
    now_s: float = 0.0
    """Redis `TIME` that the change used."""
    reservation: Reservation | None = None
    """For Reserve: the `Reservation` written."""
    tablet: Tablet | None = None
    """For Reserve: the `Tablet` as read under the `WATCH` (with all files)."""
    generation: int | None = None
    """For BumpGeneration: the generation that was written."""
    complete: bool = True
    """For DropTable: False while garbage is left; to be applied again when it has gone."""
    call: CallMark | None = None
    """For AddFiles and SubmitRequest: the mark of the call."""
    repeated: bool = False
    """Whether that mark was there before this change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The change is not allowed; nothing was written. `sent`: an `EXEC` of it was sent before."""

    code: str
    reason: str
    sent: bool = False
    """Whether any `EXEC` of this change was ever sent without a known answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The store went silent; the change was made, was not, or is still on its way."""

    reason: str


Outcome = Applied | Refused | Unknown
