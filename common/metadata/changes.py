"""Every change of metadata, as a value. `common.metadata.mutation` defines their effects.

This file is long because it is the list of all changes, in which a reader looks one up by name.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from common.metadata.store_values import CallKind, CallMark
from common.model.file import DataFile
from common.model.group import LimitScope
from common.model.job import Kind
from common.model.location_identity import LocationIdentity
from common.model.outcome import (
    AttemptEnd,
    DroppedRows,
    Refusal,
    RefusalCode,
    RowCounts,
    Statistics,
)
from common.model.request import KeyRange, Request, RequestState
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import (
    Analysis,
    OperationKind,
    OperationStep,
    Reservation,
    Tablet,
    TabletId,
)

# ------------------------------------ Upkeep: analyses, garbage, pins, manifests, limits, who leads


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A change that is refused if the store has lost changes in the meantime.

    Such a store has a lower generation than the location (`common.parquet.service_files`).
    """

    generation: int = 0
    """The highest known generation of the table. 0: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnalysis:
    """Store the planner's verdict on a tablet, if the tablet has not changed since.

    It watches nothing and leaves the record's version: it is a note, not a decision.
    """

    tablet: TabletId
    analysis: Analysis
    version: int
    """The record's version that was planned; -1: keep the analysis, store only the rest."""
    settings_version: int
    due_at_s: float | None = None
    """When to plan again even if nothing changes; stored with the analysis."""
    settled: tuple[tuple[float, bytes], ...] | None = None
    """New marks of settled versions; None: keep them."""
    selector_hash: str | None = None
    """Files and settings of the selector's last call; None: keep them."""
    selector_due_s: float | None = None
    """When to call the selector again even if nothing changes; stored with `selector_hash`."""
    answered_s: float | None = None
    """The trigger that the tablet has fully answered (`Table.triggered_at_s`); None: keep it.
    Stored with the analysis."""
    analysis_group: str | None = None
    """Group whose compactors should count the tablet's live bytes; None: keep it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnalyses:
    """Store notes of many tablets of one table; refused notes are skipped."""

    table: str
    notes: tuple[WriteAnalysis, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StampGarbage(Guarded):
    """Stamp entries with Redis `TIME` when a collector first sees them."""

    table: str
    paths: tuple[str, ...]
    settled: tuple[str, ...] = ()
    """Uncommitted attempts whose inputs are in storage: their outputs may be deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepGarbage:
    """Reset the stamp of an entry to 0, because the file is still in use."""

    table: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetGarbage:
    """Remove entries after their files were deleted."""

    table: str
    paths: tuple[str, ...]
    location: str = ""
    """Location of the table; required to retire names."""
    retired_s: float = 0.0
    """Time for which no table may add a user's file under one of these names; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinFiles:
    """Begin or renew a reader's pin."""

    table: str
    pin: str
    lease_s: float
    renews: bool = False
    """Refuse the change if the pin is gone, because its files may have been deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinFiles:
    """End a reader's pin."""

    table: str
    pin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCoordination:
    """Store the id of the coordinator that leads from now on (`neve:coordinator`)."""

    coordinator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimit:
    """Limit the bytes per second of a group or volume (`neve:limits`)."""

    scope: LimitScope
    bytes_s: int | None
    """0: no limit; None: the limit of the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScale:
    """Set the number of compactors of a group (`neve:scales`)."""

    group: str
    count: int | None
    """None: decided by the settings and the amount of work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BumpGeneration(Guarded):
    """Increment the table's generation, so that a fail-over to an older state is detected.

    Guarded: otherwise, a store that loses changes between look and change would be incremented
    as usual, and the lower number would be written to the location.
    """

    table: str
    until_s: float = inf
    """Until when the look counts: then another may have counted before the store went back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishManifest(Guarded):
    """Record that a manifest is published; its pointer is already written."""

    table: str
    number: int
    path: str
    begun_s: float
    """Redis `TIME` before its reads."""
    deleted: tuple[str, ...] = ()
    """Paths of earlier manifests that were deleted."""


UpkeepChange = (
    WriteAnalysis
    | WriteAnalyses
    | StampGarbage
    | KeepGarbage
    | ForgetGarbage
    | PinFiles
    | UnpinFiles
    | ClaimCoordination
    | SetLimit
    | SetScale
    | BumpGeneration
    | PublishManifest
)


# ---------------------------------------------------------------------- Requests, splits and merges


REASON_CHARS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest(Guarded):
    """Store a request as ACTIVE. Repeating it with the same id and content succeeds."""

    request: Request
    call: str | None = None
    """Call id of the user who submits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkWaiting(Guarded):
    """Set a request's marker in a tablet, which prevents new SYSTEM reservations."""

    tablet: TabletId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectFiles(Guarded):
    """Hold the files that a request's selector chose; an empty choice completes it here."""

    tablet: TabletId
    request: str
    chosen: tuple[str, ...]
    shown: tuple[str, ...]
    """Every file that the selector received; all must still exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteHere(Guarded):
    """End a selection whose files are all results, and for which no job is wanted."""

    tablet: TabletId
    request: str
    files: tuple[str, ...]
    """The exact selection for which the planner had no further job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHere(Guarded):
    """Remove a request's marker, selection and running entries from a tablet.

    The request is CANCELLING, or it is ACTIVE and its whole part of the tablet is cancelled: then
    it is done here.
    """

    tablet: TabletId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishHere(Guarded):
    """Remove the done marker of an ended request."""

    tablet: TabletId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRequest:
    """Change the state of a request.

    DONE requires its done marker on every tablet of its range, and no cancelled range.
    DONE_IN_PART requires the same markers and a cancelled range (`CancelHere` leaves a marker
    there). CANCELLED and FAILED require that no tablet has a marker, selection or running entry
    of it. CANCELLING requires ACTIVE.
    """

    table: str
    request: str
    state: RequestState
    cause: str = ""
    fails: bool = False
    """For CANCELLING: whether it will end as FAILED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRange:
    """Mark a key range of an ACTIVE request as cancelled; `CancelHere` then carries it out."""

    table: str
    request: str
    range: KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequest:
    """Remove an ended request from the open ones, after all its done markers are gone."""

    table: str
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginOperation(Guarded):
    """Begin a split of one tablet, or a merge of two neighbours (the left one first)."""

    kind: OperationKind
    tablets: tuple[TabletId, ...]
    operation: str
    """Random id."""
    at: bytes | None = None
    """The key of a split."""
    reason: str = ""
    """Human-readable reason, truncated to `REASON_CHARS_MAX` characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOperation(Guarded):
    """Advance an operation by one step, in all its tablets at once."""

    tablets: tuple[TabletId, ...]
    operation: str
    step: OperationStep


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOperation(Guarded):
    """Carry out a split or merge, in one transaction over all its tablets."""

    tablets: tuple[TabletId, ...]
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonOperation(Guarded):
    """Abandon a split or merge at any step: bounds and files stay unchanged.

    Either this or `EndOperation` takes effect, whichever comes first; the other then succeeds
    without effect.
    """

    tablets: tuple[TabletId, ...]
    operation: str


RequestChange = (
    SubmitRequest
    | MarkWaiting
    | SelectFiles
    | CompleteHere
    | CancelHere
    | FinishHere
    | MoveRequest
    | CancelRange
    | CloseRequest
    | BeginOperation
    | StepOperation
    | EndOperation
    | AbandonOperation
)


# ---- Repair and restore
#
# Each carries what was observed, and is refused if that has changed: a repair never interferes
# with concurrent work.


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardFiles(Guarded):
    """Hand files that are in no key to the collector."""

    tablet: TabletId
    """Tablet whose bounds contain the keys of these files; the collector checks it again."""
    files: Mapping[str, bytes | None]
    """Path → smallest key, if the file can be read and has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetFiles(Guarded):
    """Remove files from a tablet whose bytes are lost. Refused for reserved or selected files."""

    tablet: TabletId
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectFile(Guarded):
    """Correct the entry of a file. Refused if the entry has changed."""

    tablet: TabletId
    before: DataFile
    after: DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveFile(Guarded):
    """Move a file's entry to the tablet that holds its keys."""

    tablet: TabletId
    target: TabletId
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RescueFile(Guarded):
    """Remove a file from garbage that a tablet holds."""

    tablet: TabletId
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecountRecord(Guarded):
    """Recompute the counts and flags of a tablet's record from its other keys."""

    tablet: TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndReservation(Guarded):
    """Remove the reservation of an attempt whose outcome is written."""

    tablet: TabletId
    attempt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearMarks(Guarded):
    """Remove selection and markers of requests that have ended or do not exist."""

    tablet: TabletId
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FillHole(Guarded):
    """Create a tablet that is missing between two others."""

    tablet: TabletId
    """Its end is the start of the next tablet."""
    start: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDuplicate(Guarded):
    """Remove a file from a tablet, because the tablet that holds its keys has it as well."""

    tablet: TabletId
    holder: TabletId
    """The tablet that keeps it."""
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTablet(Guarded):
    """Move the start of a tablet that overlaps the previous one to the previous one's end.

    Refused if a file of it is, or may be, below that.
    """

    tablet: TabletId
    before: bytes | None
    """Its observed start."""
    start: bytes
    """The end of the tablet before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTablets(Guarded):
    """Move everything of a tablet to the next one, which overlaps it.

    Refused while work runs in one of them, and if dead rows were dropped in one of them that
    the other may hold older rows of.
    """

    left: TabletId
    right: TabletId
    """It keeps its end, and thereby its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFiles:
    """Add files unchanged to a tablet of a paused table: a restore, or a rebuild.

    Existing files are skipped, so a repetition is harmless.
    """

    tablet: TabletId
    files: tuple[DataFile, ...]
    purge: bytes | None = None
    partition: str | None = None
    """Partition of a new tablet of a partitioned table."""
    run: str
    """The run that fills the table (`common.model.table.Filling`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptGeneration:
    """Raise the table's generation to that of its location."""

    table: str
    generation: int
    lost: bool = False
    """Whether changes were lost: unknown files may then hold rows of users."""
    run: str = ""
    """The run that fills the table, if it is being filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerWatermark(Guarded):
    """Let a tablet accept rows again at versions whose tombstones were dropped.

    Rows that such a tombstone had deleted may reappear with files that are added again.
    """

    tablet: TabletId
    to: bytes | None
    """The new watermark; None: none."""


RepairChange = (
    DiscardFiles
    | ForgetFiles
    | CorrectFile
    | MoveFile
    | RescueFile
    | RecountRecord
    | EndReservation
    | ClearMarks
    | FillHole
    | DropDuplicate
    | TrimTablet
    | JoinTablets
    | RestoreFiles
    | AcceptGeneration
    | LowerWatermark
)


# ---- Tables, files, attempts; and what comes of a change
#
# A change says *which* write is wanted. Pure predicates decide whether it is allowed, after
# `WATCH`, on the values that were read then (protocol, rule 1).


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """Create a table with its tablets. Refused: the name is invalid or taken, locations overlap.

    With `table.state` PAUSED the table becomes paused; with FILLING the run in `table.filling`
    fills it; otherwise it becomes live.
    """

    table: Table
    splits: tuple[bytes, ...] = ()
    """Ends of all tablets but the last, ascending. Ignored for a partitioned table."""
    identity: LocationIdentity | None = None
    """Identity of its location; None: derived from its URI."""
    others: Mapping[str, LocationIdentity] = field(default_factory=dict)
    """Table id → current identity of its location, for tables whose entry may be outdated."""
    generation: int = 0
    """Its first generation: above that of an earlier table in the location."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeFilling:
    """Take over a table that is being filled: the previous run may not add files any more."""

    table: str
    run: str
    verb: str
    files: int
    """Number of files that the table has when this run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishFilling:
    """Make a filled table live or paused. Refused: another run fills it, or files are missing."""

    table: str
    run: str
    files: int
    """Number of files that the run has added; the table must have counted the same number."""
    state: TableState
    """LIVE or PAUSED."""
    incomplete: bool = False
    """Whether the recovery missed files; only for a paused table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeTable:
    """Write new settings or another state. Refused if `settings_version` is outdated."""

    table: str
    settings_version: int
    settings: TableSettings | None = None
    state: TableState | None = None
    """LIVE or PAUSED."""
    schema: tuple[Column, ...] | None = None
    """All columns; the schema's id is incremented."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerTable(Guarded):
    """Make the planner plan every tablet of a table. Refused if the table is not live."""

    table: str
    trigger: str
    """One of `common.model.table.TRIGGERS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """Mark the table as going, then remove its tablets and keys, one change per tablet."""

    table: str
    delete_files: bool = False
    resumed: bool = False
    """Only continue a drop that has begun."""
    unfinished: bool = False
    """Only drop a table that was never live or paused, or an entry with only a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreName:
    """Restore the lost name of a live or paused table, if name and location are free."""

    table: str
    identity: LocationIdentity | None = None
    """Identity of its location, as in `CreateTable`."""
    others: Mapping[str, LocationIdentity] = field(default_factory=dict)
    """Table id → current identity of its location, where it is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFiles(Guarded):
    """Add files to any number of tablets at once, under one call id."""

    table: str
    call: str
    """UUIDv7 (`common.runtime.call_id`); repeating the same call succeeds without effect."""
    files: Mapping[bytes, tuple[DataFile, ...]]
    """Tablet end → its new files."""
    partitions: Mapping[bytes, str] = field(default_factory=dict)
    """For a partitioned table: tablet end → partition text, for new tablets."""
    kind: CallKind = CallKind.ADD
    content: str = ""
    """Digest of the caller's data; empty: names and sizes of the files are the content."""
    looked_s: float | None = None
    """The store's time before the check that all files exist and none is in garbage."""
    look_max_s: float = 0.0
    """Largest age of that check, shorter than the time a collector needs to delete a file."""
    run: str = ""
    """The run that fills the table, if it is being filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveFiles(Guarded):
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
    """The key at which this job cuts, for a tablet whose operation is at the step `cut`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
    """Replace the inputs of an attempt by its outputs."""

    tablet: TabletId
    attempt: str
    outputs: tuple[DataFile, ...]
    counts: RowCounts
    dropped: DroppedRows | None = None
    """Set if dead rows were dropped and older versions of them must stay out."""
    outside: tuple[str, ...] = ()
    """Paths of the non-input files that the kernel considered when it dropped rows."""
    elapsed_s: float = 0.0
    reason: str = ""
    """The job's reason, for the history."""
    inputs: tuple[str, ...] = ()
    """Its inputs, if known: saves a round trip. The reservation is authoritative."""
    statistics: Statistics | None = None
    """Result of an analysis, which replaces nothing; written to files that still exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetagFiles:
    """Change the tags of an attempt's inputs and end the attempt; file contents stay unchanged."""

    tablet: TabletId
    attempt: str
    tags: tuple[tuple[str, str], ...]
    """They replace tags of the same names; other tags stay."""
    elapsed_s: float = 0.0
    reason: str = ""
    """The job's reason, for the history."""
    inputs: tuple[str, ...] = ()
    """Its inputs, which must match the reservation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAttempt(Guarded):
    """Give up a reservation without replacing files."""

    tablet: TabletId
    attempt: str
    end: AttemptEnd
    """FAILED counts as a failure of the tablet; the others do not."""
    cause: str
    coordinator: str | None = None
    """For a release because of silence: the id of the coordinator that must still lead."""
    halvings: int = 0
    """Halvings for the next attempt at this job; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropHold(Guarded):
    """Drop an expired selection without completed or running jobs."""

    tablet: TabletId


Change = (
    CreateTable
    | ResumeFilling
    | FinishFilling
    | ChangeTable
    | TriggerTable
    | DropTable
    | RestoreName
    | AddFiles
    | ReserveFiles
    | CommitAttempt
    | RetagFiles
    | ReleaseAttempt
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
    return str(change.table)  # type: ignore[attr-defined]  # all other changes have a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """The change was made, now or by an earlier try."""

    tries: int = 1
    conflicts: int = 0
    now_s: float = 0.0
    """Redis `TIME` at the change."""
    reservation: Reservation | None = None
    """For Reserve: the `Reservation` written."""
    tablet: Tablet | None = None
    """For Reserve: the `Tablet` as read under `WATCH` (with all files)."""
    generation: int | None = None
    """For BumpGeneration: the new generation."""
    complete: bool = True
    """For DropTable: False while garbage is left; repeat the change after it is gone."""
    call: CallMark | None = None
    """For AddFiles and SubmitRequest: the mark of the call."""
    repeated: bool = False
    """Whether that mark existed before this change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The change is not allowed; nothing was written. `sent`: an `EXEC` of it was sent before."""

    code: RefusalCode
    reason: str
    sent: bool = False
    """Whether any `EXEC` of this change was ever sent without a known answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The store did not answer: the change may have been made, or may still be on its way."""

    reason: str


Outcome = Applied | Refused | Unknown
Confirm = Callable[[], Awaitable[Refusal | None]]
"""Checks something outside the store; returns why a change must not be written, or None."""
