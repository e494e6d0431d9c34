"""The interfaces of planners, dispatchers and selectors, and of the plug-ins of a rewrite.

The planner interface: files of a tablet in, jobs out. Entry point group `neve.planners`.

A planner is pure: same parameters, same plan; no clock, no I/O, no randomness. It must have
`plan`. It should also have the members of `DeclaredPlanner`, so that a wrong option fails at the
start of a service instead of during planning. A planner without them is accepted as it is.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from common.documents import unknown
from common.errors import CompactionError, ConfigError
from common.model.file import ChunkGrid, DataFile
from common.model.group import Group
from common.model.job import AttemptWork, Kind, Plan
from common.model.key_values import KeyType
from common.model.outcome import TabletStatistics
from common.model.request import OutputSpec
from common.model.table import DERIVED_SETTINGS, FIXED_SETTINGS, Table, TableSettings
from common.model.tablet import Bounds, TabletId
from common.units import shown
from neve.api.planning import Correction


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A running job of the tablet: its kind, and its inputs with their sizes."""

    kind: Kind
    files: tuple[DataFile, ...]
    read_bytes: Mapping[str, int] = field(default_factory=dict)
    """Path of an input → bytes of it that were read; empty: not reported."""
    written_bytes: int = 0
    """Bytes of outputs that are written but not committed."""

    @property
    def size_bytes(self) -> int:
        """Total bytes of the inputs."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFacts:
    """Facts about the user request that is being planned."""

    request: str
    hints: Mapping[str, str] = field(default_factory=dict)
    boost: int = 0
    output: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heat:
    """Read and write rates of a tablet per second, over about the last minute."""

    scans_s: float = 0.0
    rows_s: float = 0.0
    """Rows added by users."""


COLD = Heat()
UNCORRECTED = Correction()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Facts about a tablet that are not in its metadata. Each may be unknown."""

    heat: Heat = COLD
    progress: Mapping[str, AttemptWork] = field(default_factory=dict)
    """Attempt → what it has read and written so far."""
    free_bytes: int | None = None
    """Free space in the table's location; None: not measured."""
    latest_s: float | None = None
    """See `PlanParameters`."""
    correction: Correction = UNCORRECTED
    """Results of the table's recent jobs, relative to their estimates."""


NOTHING_KNOWN = Surroundings()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanParameters:
    """The inputs of a planner, for one tablet and one kind."""

    tablet: TabletId
    table_name: str
    kind: Kind
    settings: TableSettings
    options: Mapping[str, object] = field(default_factory=dict)
    """Options of the planner, from the service or the table's `planner_options` (texts); they
    override table settings of the same name."""
    files: Mapping[str, DataFile]
    """All files of the tablet."""
    candidates: tuple[DataFile, ...]
    """Files that may be used now."""
    running: tuple[RunningJob, ...] = ()
    groups: tuple[Group, ...] = (Group(name="default"),)
    """Groups ascending by `max_bytes`, the unlimited one last; never empty."""
    waiting: bool = False
    """Whether a request waits to select files here."""
    request: RequestFacts | None = None
    """For kind USER: the request that holds the candidates."""
    now_s: float = 0.0
    keyed: bool = True
    """Whether the table has a key. Only outputs of a table with a key can be cut at keys."""
    timed: bool = False
    """Whether the table has a time column, which `ttl_s` and the times of files require."""
    key_types: tuple[KeyType, ...] = ()
    """Families of the key columns, for decoding keys; empty: unknown."""
    bounds: Bounds | None = None
    """Keys of the tablet; None: unknown."""
    heat: Heat = COLD
    """Read and write rates of the tablet at planning time."""
    free_bytes: int | None = None
    """Free space in the table's location; None: not measured."""
    statistics: TabletStatistics | None = None
    """Result of the last analysis; None: there was none."""
    latest_s: float | None = None
    """Latest time of the tablet's files that is not in the future, if the planner is asked only for
    the chunks that have changed or do not rest: `files` are then those of these chunks. None: the
    planner is asked for all files."""
    correction: Correction = UNCORRECTED
    """Results of the table's recent jobs, relative to their estimates."""
    explains: bool = True
    """Whether reasons for files that are left out (`Plan.left`) are used. False in simulations: a
    planner may then omit the reasons, but must decide the same."""

    @property
    def job_bytes_max(self) -> int | None:
        """Largest input size of a job; None: no limit. A user's job may have any size."""
        return None if self.kind is Kind.USER else self.groups[-1].max_bytes

    def group_for(self, size_bytes: int) -> str:
        """Return the first group that accepts jobs of this size, or the last group."""
        for group in self.groups:
            if group.max_bytes is None or size_bytes < group.max_bytes:
                return group.name
        return self.groups[-1].name


class Planner(Protocol):
    """Divides the compaction work of a tablet into jobs."""

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and the reason for each candidate that is left out.

        Must reach a fixed point: repeated planning and committing ends with a plan without jobs.

        Raises:
            ConfigError: An option or setting is invalid.
        """
        ...


class DeclaredPlanner(Planner, Protocol):
    """A planner that declares what it reads. Each of these attributes is optional."""

    option_names: frozenset[str]
    """Options of a service that it accepts."""
    setting_names: frozenset[str]
    """Table settings that it reads; a setting that no planner reads has no effect."""

    def check(self, options: Mapping[str, object]) -> None:
        """Refuse missing, unknown or wrong options, whatever the tables' settings.

        Raises:
            ConfigError: Names the option, its value and what is expected.
        """
        ...

    def check_table(self, *, keyed: bool, timed: bool) -> None:
        """Refuse tables that it cannot plan. Called when a table chooses the planner.

        Args:
            keyed: Whether the table has a key.
            timed: Whether it has a time column.

        Raises:
            ConfigError: Names what the table lacks, and what to choose instead.
        """
        ...

    def fixed_settings(
        self, options: Mapping[str, object], settings: TableSettings
    ) -> Mapping[str, Any]:
        """Return settings that follow from the options. Called when settings are written.

        A table keeps those of `FIXED_SETTINGS` for life.

        Args:
            options: Options of the service and of the table together.
            settings: Settings of the table; they hold what was fixed before.

        Raises:
            ConfigError: An option cannot be used, or contradicts what was fixed before.
        """
        ...

    def chunk_grid(self, options: Mapping[str, object], settings: TableSettings) -> ChunkGrid:
        """Return the chunks of time by which it plans; their states are stored.

        Such a planner returns an interval with its index for each chunk that has files. It is asked
        again only for chunks whose files have changed, for those that do not rest, and for those
        that share files with them. It must decide on them as if it were asked for all.

        Args:
            options: Options of the service and of the table together.
            settings: Settings of the table.

        Raises:
            ConfigError: An option is wrong.
        """
        ...


def chunk_grid(
    planner: Planner | None, options: Mapping[str, object], settings: TableSettings
) -> ChunkGrid | None:
    """Return the chunks of time by which a planner plans; None if it has none, or fails."""
    grid = getattr(planner, "chunk_grid", None)
    if grid is None:
        return None
    try:
        found: ChunkGrid = grid(options, settings)
    except Exception:
        return None  # Planning reports the error.
    return found


def check_table(name: str, planner: Planner, *, keyed: bool, timed: bool) -> None:
    """Let a planner check whether it can plan a table, if it has such a check.

    Args:
        name: Name of the planner.
        planner: Any planner; one without the check accepts every table.
        keyed: Whether the table has a key.
        timed: Whether it has a time column.

    Raises:
        ConfigError: It cannot; the message names the planner and an alternative.
    """
    check = getattr(planner, "check_table", None)
    if check is None:
        return
    try:
        check(keyed=keyed, timed=timed)
    except Exception as error:
        # Any error of a plug-in is a refusal.
        cause = str(error) if isinstance(error, CompactionError) else repr(error)
        raise ConfigError(f"planner {name!r}: {cause}") from error


def fixed_settings(
    name: str, planner: Planner, options: Mapping[str, object], settings: TableSettings
) -> Mapping[str, Any]:
    """Return the settings that follow from a planner's options; for most planners none.

    Args:
        name: Name of the planner.
        planner: Any planner.
        options: Options of the service and of the table together.
        settings: Settings of the table.

    Raises:
        ConfigError: The planner refuses the options; the message names it.
    """
    fix = getattr(planner, "fixed_settings", None)
    if fix is None:
        return {}
    try:
        fixed: Mapping[str, Any] = fix(options, settings)
    except Exception as error:
        # Any error of a plug-in is a refusal.
        cause = str(error) if isinstance(error, CompactionError) else repr(error)
        raise ConfigError(f"planner {name!r} refuses its options: {cause}") from error
    allowed = FIXED_SETTINGS | DERIVED_SETTINGS
    if others := sorted(fixed.keys() - allowed):
        names = ", ".join(sorted(allowed))
        raise ConfigError(f"planner {name!r} fixes setting {others[0]!r}, expected one of {names}")
    return fixed


def with_derived(
    name: str, planner: Planner, options: Mapping[str, object], settings: TableSettings
) -> TableSettings:
    """Return the settings that a table with this planner would have, for plans without a service.

    Args:
        name: Name of the planner.
        planner: Any planner. It reports wrong options when it plans.
        options: Its options.
        settings: Settings of the table.
    """
    with suppress(ConfigError):
        fixed = fixed_settings(name, planner, options, settings)
        derived = {setting: fixed[setting] for setting in fixed.keys() & DERIVED_SETTINGS}
        return replace(settings, **derived)
    return settings


def check_options(name: str, planner: Planner, options: Mapping[str, object]) -> None:
    """Let a planner check its options from a service, if it has such a check.

    Args:
        name: Name of the planner.
        planner: Any planner; one without the check accepts every option.
        options: Options of the service.

    Raises:
        ConfigError: An option is unknown or refused; the message names planner and option.
    """
    names = getattr(planner, "option_names", None)
    if names is not None and (others := sorted(options.keys() - set(names))):
        refusal = unknown(f"planner {name!r}: option {shown(others[0])}", others[0], names)
        raise ConfigError(str(refusal))
    check = getattr(planner, "check", None)
    if check is None:
        return
    try:
        check(options)
    except Exception as error:
        # Any error of a plug-in is a refusal.
        cause = str(error) if isinstance(error, CompactionError) else repr(error)
        raise ConfigError(f"planner {name!r} refuses its options: {cause}") from error


def settings_read_by(planner: Planner) -> frozenset[str] | None:
    """Return the table settings that a planner declares to read; None: it declares nothing."""
    declared = getattr(planner, "setting_names", None)
    return None if declared is None else frozenset(declared)


# --------------------------------------------------------------------------------------- Dispatcher
# The dispatcher interface: chooses the service of a tablet. Group `neve.dispatchers`.


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchParameters:
    """The inputs of a dispatcher."""

    table: Table
    kind: Kind
    hints: Mapping[str, str] = field(default_factory=dict)
    """Hints of the user request; empty for SYSTEM."""
    services: tuple[str, ...] = ()
    """Names of the configured services."""


class Dispatcher(Protocol):
    """Chooses the service for a table, kind and hints."""

    def dispatch(self, parameters: DispatchParameters) -> str:
        """Return the name of a service."""
        ...


# ----------------------------------------------------------------------------------------- Selector
# The selector interface: files of a tablet in, files that a request rewrites out.
#
# Entry point group `neve.selectors`. A selector is pure: same parameters, same choice; no clock, no
# I/O, no randomness. It sees metadata only, and runs in a thread. A selector that takes too long
# fails its request.
#
# A selector may also use summaries that are stored in the files. It then has a method
# `summary_names`, and receives the values that footers have under these names.


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorParameters:
    """The inputs of a selector, for one tablet."""

    tablet: TabletId
    table: Table
    files: tuple[DataFile, ...]
    """Complete files that may hold rows of the request's range, sorted by path."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options from the request, or from the table's settings."""
    now_s: float = 0.0
    summaries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Path → name → text in the footer's key-value metadata. Names that a file lacks are left out;
    empty for a selector that uses no summaries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A selector's choice: paths among the given files; empty: none."""

    files: tuple[str, ...] = ()
    reason: str
    """A human-readable sentence."""
    times_s: Mapping[str, float] = field(default_factory=dict)
    """Path → time at which the file was or will be chosen because of time alone.

    A table's own selector is called again at the next of these times. Files that do not
    depend on time are left out.
    """


class Selector(Protocol):
    """Chooses the files that a request rewrites in a tablet.

    A selector that uses summaries also has `summary_names(options) -> Sequence[str]`.
    """

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse missing, unknown or wrong options.

        Raises:
            RequestError: Names the option and what was expected.
        """
        ...

    def select(self, parameters: SelectorParameters) -> Chosen:
        """Return the files to rewrite; the options are valid."""
        ...


# ---------------------------------------------------------------------------- Plug-ins of a rewrite
# Interfaces for plug-ins in a rewrite: transforms of rows, and configurers of outputs.
#
# The transform interface: rows in, changed rows out. Entry point group `neve.transforms`.
#
# A transform runs before a rewrite, on batches of rows: an attempt shows it each row of each input
# once, those of an input in order. The division into batches is not defined, nor is the order of
# inputs, which several processes may read. So the result for a row may depend only on that row and
# the context.


DELETED = "_neve_deleted"
"""A bool column that a transform may add: rows where it is true are deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformContext:
    """The inputs of a transform other than the rows."""

    table: Table
    request: str
    """Id of the user request."""
    options: Mapping[str, str] = field(default_factory=dict)
    now_s: float = 0.0
    """The same moment for all rows of the attempt, in seconds since the epoch."""


class RowTransform(Protocol):
    """Changes rows of one table."""

    def apply(self, rows: pa.Table, context: TransformContext) -> pa.Table:
        """Return the same rows in the same order, with changed values.

        The columns and their types stay the same, and `DELETED` may be appended.
        No row is added or removed; key, version, tombstone, time and partition stay.
        A violation fails the job.

        Args:
            rows: Rows in the request's range, without tombstones; at least one.
            context: The other inputs.
        """
        ...


# ------------------------------------------------------------------------------------------- Output
# The configurer interface: how a job's outputs are written. Group `neve.configurers`.
#
# A configurer is pure: same parameters, same result; no clock, no I/O, no randomness.


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputParameters:
    """The inputs of a configurer, for one job."""

    table: Table
    kind: Kind
    inputs: tuple[DataFile, ...]
    hints: Mapping[str, str] = field(default_factory=dict)
    """Hints of the user request; empty for SYSTEM."""

    @property
    def input_bytes(self) -> int:
        """Total bytes of the inputs."""
        return sum(file.size_bytes for file in self.inputs)


class OutputConfigurer(Protocol):
    """Chooses codec and row groups for a job; its options are a setting of the table."""

    def check(self, options: Mapping[str, str]) -> None:
        """Refuse missing, unknown or wrong options.

        Raises:
            RequestError: Names the option and what was expected.
        """
        ...

    def configure(self, parameters: OutputParameters) -> OutputSpec:
        """Return settings that differ from the table's; None means the table's setting."""
        ...
