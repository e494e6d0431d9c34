"""Every change of metadata, as a value. What it needs and does: `common.metadata.mutation`.

This file is long because it is the list of all changes: a reader looks one up by name.
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
    """A change that is refused if the store has gone back in time since somebody looked.

    A store that has lost changes knows a lower generation than the table's location
    (`common.parquet.service_files`).
    """

    generation: int = 0
    """The highest generation of the table that the maker of the change knows of. 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnalysis:
    """Remember what the planner said of a tablet, if it has not changed since.

    Not watched and not bumping the record's version: a note, not a decision.
    """

    tablet: TabletId
    analysis: Analysis
    version: int
    """The record's, for which it was said; -1: leave the analysis, note only the rest."""
    settings_version: int
    due_at_s: float | None = None
    """When to look again though nothing has changed; said with the analysis."""
    settled: tuple[tuple[float, bytes], ...] | None = None
    """New marks of settled versions, or None to leave them."""
    selector_hash: str | None = None
    """For which files and settings the table's selector was asked, or None to leave it."""
    selector_due_s: float | None = None
    """When to ask it again though nothing has changed; written with `selector_hash`."""
    answered_s: float | None = None
    """The trigger for which the tablet has come to rest (`Table.triggered_at_s`), or None to
    leave it; said with the analysis."""
    analysis_group: str | None = None
    """Whose compactors are to count the tablet's live bytes, or None to leave it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAnalyses:
    """Write notes of many tablets of one table at once; one that is refused is left out."""

    table: str
    notes: tuple[WriteAnalysis, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StampGarbage(Guarded):
    """Stamp entries that a collector sees for the first time, with Redis `TIME`."""

    table: str
    paths: tuple[str, ...]
    settled: tuple[str, ...] = ()
    """Uncommitted attempts whose inputs were seen in storage: their outputs may go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepGarbage:
    """Stamp an entry back to 0: the file is still in use."""

    table: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetGarbage:
    """Remove entries after their files were deleted."""

    table: str
    paths: tuple[str, ...]
    location: str = ""
    """Of the table; needed if names are retired."""
    retired_s: float = 0.0
    """How long no table may add a user's file under one of these names; 0: no bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PinFiles:
    """Begin or renew a reader's pin."""

    table: str
    pin: str
    lease_s: float
    renews: bool = False
    """Refused unless the pin is there: the files that were listed under it are kept still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpinFiles:
    """End a reader's pin."""

    table: str
    pin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimCoordination:
    """Write the id of the coordinator that now leads (`neve:coordinator`)."""

    coordinator: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimit:
    """Limit the bytes per second of a group or volume (`neve:limits`)."""

    scope: LimitScope
    bytes_s: int | None
    """0: no limit; None: whatever the settings say of scopes that nobody speaks of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetScale:
    """Set the number of compactors of a group (`neve:scales`)."""

    group: str
    count: int | None
    """None: as many as the settings and the work want."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BumpGeneration(Guarded):
    """Count the table's generation up; a fail-over to an older state shows by it.

    Guarded, for a store that goes back between look and change would be counted up as if nothing
    had been, and its location be told the lower number.
    """

    table: str
    until_s: float = inf
    """Until when the look counts: then another may have counted before the store went back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishManifest(Guarded):
    """Note that readers are pointed to a manifest; its pointer is out already."""

    table: str
    number: int
    path: str
    begun_s: float
    """Redis `TIME` from before its reads."""
    deleted: tuple[str, ...] = ()
    """Paths of earlier manifests that are stored no more."""


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
    """Store a request as ACTIVE. The same id with the same content again succeeds."""

    request: Request
    call: str | None = None
    """Id of the call of a user who submits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkWaiting(Guarded):
    """Let a request's marker stand in a tablet: no new SYSTEM reservation meanwhile."""

    tablet: TabletId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectFiles(Guarded):
    """Hold the files that a request's selector chose; nothing chosen: done here."""

    tablet: TabletId
    request: str
    chosen: tuple[str, ...]
    shown: tuple[str, ...]
    """Every file that the selector was shown: all must still be there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteHere(Guarded):
    """End a selection whose files are all results and for which no job is wanted."""

    tablet: TabletId
    request: str
    files: tuple[str, ...]
    """Exactly the selection for which the planner had no further job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelHere(Guarded):
    """Remove a request's marker, selection and running entries from a tablet.

    The request is CANCELLING, or ACTIVE and all that it wants of the tablet is cancelled: then
    it is done here.
    """

    tablet: TabletId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishHere(Guarded):
    """Remove the done marker of a request that has ended."""

    tablet: TabletId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRequest:
    """Move a request on.

    DONE requires its done marker on every tablet of its range, and that no part was cancelled;
    DONE_IN_PART requires the same markers (`CancelHere` leaves one where a part was cancelled)
    and that a part was; CANCELLED and FAILED require that no tablet has a marker, selection
    or running entry of it; CANCELLING requires ACTIVE.
    """

    table: str
    request: str
    state: RequestState
    cause: str = ""
    fails: bool = False
    """For CANCELLING: whether it will end FAILED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRange:
    """List a key range of an ACTIVE request as cancelled; `CancelHere` then does it."""

    table: str
    request: str
    range: KeyRange


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRequest:
    """Take a request that has ended out of the open ones: no done marker of it is left."""

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
    """Where a split cuts."""
    reason: str = ""
    """Why, for people; what is longer than `REASON_CHARS_MAX` is cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOperation(Guarded):
    """Take an operation's next step, in all its tablets at once."""

    tablets: tuple[TabletId, ...]
    operation: str
    step: OperationStep


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOperation(Guarded):
    """Carry a split or merge out, in one transaction over all its tablets."""

    tablets: tuple[TabletId, ...]
    operation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonOperation(Guarded):
    """Give a split or merge up, at any step: bounds and files stay as they are.

    Whoever comes first counts, this or `EndOperation`: both succeed when it is over.
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
# Each says what was seen, and is refused if that is no longer so: a repair never overtakes the
# work that goes on.


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardFiles(Guarded):
    """Hand files that no key knows to the collector."""

    tablet: TabletId
    """Where the keys of these files belong; the collector looks there once more."""
    files: Mapping[str, bytes | None]
    """Path → smallest key, if the file can be read and has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetFiles(Guarded):
    """Take files out of a tablet whose bytes are lost. Refused: reserved or selected ones."""

    tablet: TabletId
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectFile(Guarded):
    """Correct what is said of a file. Refused: it says something else by now."""

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
    """Take a file that a tablet holds out of garbage."""

    tablet: TabletId
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecountRecord(Guarded):
    """Write the counts and flags of a tablet's record as its other keys have them."""

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
    """Make the tablet that is missing between two others."""

    tablet: TabletId
    """Its end is where the next one starts."""
    start: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDuplicate(Guarded):
    """Take a file out of a tablet, because another one, which holds its keys, has it, too."""

    tablet: TabletId
    holder: TabletId
    """The tablet that keeps it."""
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimTablet(Guarded):
    """Let a tablet that reaches into the one before it begin where that one ends.

    Refused while a file of it lies, or may lie, below that.
    """

    tablet: TabletId
    before: bytes | None
    """Its start as it was seen."""
    start: bytes
    """The end of the tablet before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTablets(Guarded):
    """Give everything of a tablet to the next one, which reaches into it.

    Refused while somebody works in one of them, and if dead rows were dropped in one of
    them that the other may hold older rows of.
    """

    left: TabletId
    right: TabletId
    """It keeps its end, and so its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreFiles:
    """Put files into a tablet of a paused table as they are: a restore, or a rebuild.

    What is there already is left alone, so that a repetition does no harm.
    """

    tablet: TabletId
    files: tuple[DataFile, ...]
    purge: bytes | None = None
    partition: str | None = None
    """Makes the tablet of a partitioned table if it is new."""
    run: str
    """The run that fills the table (`common.model.table.Filling`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptGeneration:
    """Raise the table's generation, so that it is not behind its location any more."""

    table: str
    generation: int
    lost: bool = False
    """Whether changes were lost: then files that nobody knows may be rows of users."""
    run: str = ""
    """The run that fills the table, if it is being filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerWatermark(Guarded):
    """Let a tablet take rows again of versions at which tombstones were dropped.

    Rows that such a tombstone had deleted may come back with files that are added again.
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
# A change says *which* write is wanted. Whether it is allowed is decided by the pure predicates,
# after `WATCH`, on what was read then (protocol, rule 1).


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """Make a table with its tablets. Refused: the name is none or is taken, locations overlap.

    `table.state` PAUSED makes it paused, FILLING leaves it to the run in `table.filling`; else
    it becomes live.
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
class ResumeFilling:
    """Take over a table that is being filled: the run before puts no more files in."""

    table: str
    run: str
    verb: str
    files: int
    """Number of files that the table shall have when this run ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishFilling:
    """Make a filled table live or paused. Refused: another run fills it, or files are missing."""

    table: str
    run: str
    files: int
    """Number of files that the run has put in: the table must have counted as many."""
    state: TableState
    """LIVE or PAUSED."""
    incomplete: bool = False
    """Whether the recovery did not find all files; only of a paused table."""


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
class TriggerTable(Guarded):
    """Have the planner of a table asked about every tablet. Refused: the table is not live."""

    table: str
    trigger: str
    """One of `common.model.table.TRIGGERS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTable:
    """Set the table going, then remove its tablets and keys, one change per tablet."""

    table: str
    delete_files: bool = False
    resumed: bool = False
    """Only go on with a drop that has begun: a table that is not going is left alone."""
    unfinished: bool = False
    """Only a table that was never live or paused, or of which no more than the name is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreName:
    """Give its name back to a table that is live or paused, if name and location are free."""

    table: str
    identity: LocationIdentity | None = None
    """Of its location, as `CreateTable` has it."""
    others: Mapping[str, LocationIdentity] = field(default_factory=dict)
    """Table id → identity of its location as it is now, where that is known."""


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
    """The key where this job cuts, for a tablet whose operation is at `cut`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
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
    statistics: Statistics | None = None
    """Of an analysis, which replaces nothing: they are written on those files that are still
    there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetagFiles:
    """Give the inputs of an attempt other tags, and end it: what they hold stays as it is."""

    tablet: TabletId
    attempt: str
    tags: tuple[tuple[str, str], ...]
    """Take the place of tags of the same names; all others stay."""
    elapsed_s: float = 0.0
    reason: str = ""
    """The job's reason, for the history."""
    inputs: tuple[str, ...] = ()
    """Its inputs. What counts is the reservation, which must have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseAttempt(Guarded):
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

    code: RefusalCode
    reason: str
    sent: bool = False
    """Whether any `EXEC` of this change was ever sent without a known answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """The store went silent; the change was made, was not, or is still on its way."""

    reason: str


Outcome = Applied | Refused | Unknown
Confirm = Callable[[], Awaitable[Refusal | None]]
"""Looks at something outside the store; returns why a change must not be written, or None."""
