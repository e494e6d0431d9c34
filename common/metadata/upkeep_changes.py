"""The changes of upkeep, as values: notes, garbage, pins, manifests, who leads.

Like `common.metadata.changes`, which joins them to `Change`.
"""

from dataclasses import dataclass

from common.model.limit import Scope
from common.model.tablet import Analysis, TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarded:
    """A change that is refused if the store has gone back in time since somebody looked.

    A store that has lost changes knows a lower generation than the table's location
    (`common.parquet.generation`).
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
    retired_s: float = 0.0
    """How long no file of a user may be added again under one of these names; 0: no bar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """Begin or renew a reader's pin."""

    table: str
    pin: str
    lease_s: float
    renews: bool = False
    """Refused unless the pin is there: the files that were listed under it are kept still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpin:
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

    scope: Scope
    bytes_s: int | None
    """0: no limit; None: whatever the settings say of scopes that nobody speaks of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BumpGeneration(Guarded):
    """Count the table's generation up; a fail-over to an older state shows by it.

    Guarded, for a store that goes back between look and change would be counted up as if nothing
    had been, and its location be told the lower number.
    """

    table: str


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
    | Pin
    | Unpin
    | ClaimCoordination
    | SetLimit
    | BumpGeneration
    | PublishManifest
)
