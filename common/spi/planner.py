"""The planner door: files of a tablet in, jobs out. Entry point group `neve.planners`.

A planner is pure: same parameters, same plan; no clock, no I/O, no randomness. It must
have `plan`. It should have what `DeclaredPlanner` adds, so that a wrong option stops the
start of a service and not its planning; a planner without it is taken as it is.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import CompactionError, ConfigError
from common.model.file import DataFile
from common.model.group import Group
from common.model.job import Kind, Plan
from common.model.key_values import KeyType
from common.model.outcome import TabletStatistics
from common.model.table import TableSettings
from common.model.tablet import Bounds, TabletId


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job under way in the tablet: its kind, and its inputs with their sizes."""

    kind: Kind
    files: tuple[DataFile, ...]
    read_bytes: Mapping[str, int] = field(default_factory=dict)
    """Path of an input → bytes of it that have been read; empty: nobody has said."""
    written_bytes: int = 0
    """Bytes of outputs that are written and not yet committed."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all inputs."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """What a planner may know of the user request that it plans for."""

    request: str
    hints: Mapping[str, str] = field(default_factory=dict)
    boost: int = 0
    output: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heat:
    """How often a tablet is read and written: rates per second, over about the last minute."""

    scans_s: float = 0.0
    rows_s: float = 0.0
    """Rows that users have added."""


COLD = Heat()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What is known of a tablet besides its metadata. Each may be unknown."""

    heat: Heat = COLD
    progress: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """Attempt → share of its inputs that is read (0 to 1), bytes of outputs that are written."""
    free_bytes: int | None = None
    """Free space where the table's files are; None: nobody has measured."""


NOTHING_KNOWN = Surroundings()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanParameters:
    """Everything a planner may look at, for one tablet and one kind."""

    tablet: TabletId
    table_name: str
    kind: Kind
    settings: TableSettings
    options: Mapping[str, object] = field(default_factory=dict)
    """Of the planner: the service's, or the table's `planner_options` (texts); they win over
    settings of the same name."""
    files: Mapping[str, DataFile]
    """All files of the tablet."""
    candidates: tuple[DataFile, ...]
    """Those that may be used now."""
    running: tuple[RunningJob, ...] = ()
    groups: tuple[Group, ...] = (Group(name="default"),)
    """Ascending by `max_bytes`, the unlimited one last; never empty."""
    waiting: bool = False
    """Whether a request waits to select files here."""
    request: RequestFacts | None = None
    """For kind USER: the request that holds the candidates."""
    now_s: float = 0.0
    keyed: bool = True
    """Whether the table has a key. The outputs of jobs can be cut only where there is one."""
    timed: bool = False
    """Whether the table has a time column: `ttl_s` and the times of files mean something."""
    key_types: tuple[KeyType, ...] = ()
    """Families of the key columns, by which keys can be read; empty: nobody has said."""
    bounds: Bounds | None = None
    """Keys of the tablet; None: nobody has said."""
    heat: Heat = COLD
    """How often the tablet is read and written, when it is planned."""
    free_bytes: int | None = None
    """Free space where the table's files are; None: nobody has measured."""
    statistics: TabletStatistics | None = None
    """What the last analysis has found; None: there was none."""
    explains: bool = True
    """Whether anybody reads why files are left (`Plan.left`). False in simulations: a planner may
    leave the reasons out then, and decides the same."""

    @property
    def job_bytes_max(self) -> int | None:
        """Most bytes of a job, None: any. A user's may be of any size."""
        return None if self.kind is Kind.USER else self.groups[-1].max_bytes

    def group_for(self, size_bytes: int) -> str:
        """Return the first group that takes jobs of so many bytes, or the last."""
        for group in self.groups:
            if group.max_bytes is None or size_bytes < group.max_bytes:
                return group.name
        return self.groups[-1].name


class Planner(Protocol):
    """Breaks the compaction work of a tablet into jobs."""

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs wanted now and why each other candidate was left.

        Must reach a fixed point: planning and committing repeatedly ends in no jobs.
        """
        ...


class DeclaredPlanner(Planner, Protocol):
    """A planner that says what it reads. Each of these attributes may be left out."""

    option_names: frozenset[str]
    """Options of a service that it knows."""
    setting_names: frozenset[str]
    """Settings of a table that it reads: one that no planner reads has no effect."""

    def check(self, options: Mapping[str, object]) -> None:
        """Refuse options that are missing, unknown or wrong, whatever the tables' settings.

        Raises:
            ConfigError: Names the option, its value and what is expected.
        """
        ...

    def check_table(self, *, keyed: bool, timed: bool) -> None:
        """Refuse tables that it cannot plan, when such a table chooses it.

        Args:
            keyed: Whether the table has a key.
            timed: Whether it has a time column.

        Raises:
            ConfigError: Says what the table lacks, and what to choose instead.
        """
        ...


def check_table(name: str, planner: Planner, *, keyed: bool, timed: bool) -> None:
    """Have a planner say whether it can plan a table, if it says such things.

    Args:
        name: The planner's.
        planner: Any; one that declares nothing takes every table.
        keyed: Whether the table has a key.
        timed: Whether it has a time column.

    Raises:
        ConfigError: It cannot; the message names the planner and says what to choose instead.
    """
    check = getattr(planner, "check_table", None)
    if check is None:
        return
    try:
        check(keyed=keyed, timed=timed)
    except Exception as error:
        # Whatever a plug-in raises here is its way to refuse.
        cause = str(error) if isinstance(error, CompactionError) else repr(error)
        raise ConfigError(f"planner {name!r}: {cause}") from error


def check_options(name: str, planner: Planner, options: Mapping[str, object]) -> None:
    """Have a planner check the options that a service gives it, as far as it can.

    Args:
        name: The planner's.
        planner: Any; one that declares nothing accepts everything.
        options: The service's.

    Raises:
        ConfigError: An option is unknown or refused; the message names planner and option.
    """
    known = getattr(planner, "option_names", None)
    if known is not None and (unknown := sorted(options.keys() - set(known))):
        close = difflib.get_close_matches(unknown[0], sorted(known), n=1)
        listed = ", ".join(sorted(known)) or "none"
        hint = f"did you mean {close[0]!r}?" if close else f"known are {listed}"
        raise ConfigError(f"planner {name!r}: option {unknown[0]!r} is unknown; {hint}")
    check = getattr(planner, "check", None)
    if check is None:
        return
    try:
        check(options)
    except Exception as error:
        # Whatever a plug-in raises here is its way to refuse.
        cause = str(error) if isinstance(error, CompactionError) else repr(error)
        raise ConfigError(f"planner {name!r} refuses its options: {cause}") from error


def settings_read_by(planner: Planner) -> frozenset[str] | None:
    """Return the table settings that a planner declares to read; None: it does not tell."""
    declared = getattr(planner, "setting_names", None)
    return None if declared is None else frozenset(declared)
