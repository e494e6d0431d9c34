"""The delta planner: merge updates and deletes with each other, and rarely into their base.

These are Apache Kudu's delta compactions, for tables with a key. The base of a tablet consists of
its large files with disjoint key ranges; deltas are the smaller files that overlap the base
(`common.spi.deltas`).

    minor   merges deltas with each other. Readers open fewer files, and hidden versions are
            dropped. The large base is not rewritten.
    major   merges a set's base with its deltas when enough of its rows are updated. A reader then
            opens one file per key again.

A large base with many deltas is therefore rewritten rarely, and never for a few updates. Two things
differ from Kudu. Rows are whole, so a major job rewrites all columns; and a set that is too large
for one job is first cut. Small adjacent files without overlap, which result from new keys, are also
merged, because no delta compaction would include them.

Only the row rules decide which rows a job may drop.

Fixed point: a minor job merges several files into one. A major job leaves disjoint files without
deltas. A cut divides one delta into parts that each overlap fewer base files, and is made only in a
set with one delta. Adjacent files become one file. A request ends in one file.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import ConfigError
from common.model.file import DataFile, total_bytes
from common.model.job import Kind, Plan
from common.model.table import TableSettings
from common.spi.deltas import DELTA_TAG, MAJOR, MINOR, DeltaSet, delta_sets, span_of, within_reach
from common.spi.options import of_table, option, option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from common.units import format_bytes, format_count
from coordinator.plugins.planners.packing import capacity_bytes, cut_keys, small_bytes_below
from coordinator.plugins.planners.size_tiered import (
    PlanDraft,
    TierOptions,
    bring_to_one,
    is_under_way,
    pick_tombstones,
    smallest_within,
)

_NAME = "planner delta"
OUTPUTS_MAX = 1000
"""Maximum number of outputs of one job."""


# ------------------------------------------------------------------------------------------ Options


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions:
    """Options and settings of the planner."""

    minor_files: int = option(4, at_least=2)
    major_ratio: float = option(0.1, above=0)
    scan_weight: float = option(1.0, at_least=0, at_most=100)
    columns: str = option("")
    target_bytes: int = of_table("target_bytes", at_least=1)
    small_share: float = option(0.5, above=0, at_most=1)
    tombstone_threshold: float = option(0.2, above=0)
    tombstone_compaction_interval_s: float = option(86_400.0, above=0)
    max_files: int = of_table("max_files", at_least=2)
    file_limit: int = of_table("file_limit", at_least=0)
    tombstone_retention_s: float = of_table("tombstone_retention_s", at_least=0)

    @property
    def column_names(self) -> tuple[str, ...]:
        """Columns whose updates count; empty: all updates count."""
        return tuple(name for name in self.columns.split("+") if name)

    def major_from(self, scans_s: float) -> float:
        """Return the fraction of updated rows at which a base is merged with its deltas.

        Args:
            scans_s: Scans of the tablet per second; the effect is largest from one scan on.
        """
        return self.major_ratio / (1 + self.scan_weight * min(1.0, scans_s))

    @property
    def tombstone_rules(self) -> TierOptions:
        """Rules for rewriting a single file for its tombstones."""
        return TierOptions(
            tombstone_threshold=self.tombstone_threshold,
            tombstone_compaction_interval_s=self.tombstone_compaction_interval_s,
            max_files=self.max_files,
            file_limit=self.file_limit,
            tombstone_retention_s=self.tombstone_retention_s,
        )


def _options(given: Mapping[str, object], settings: TableSettings | None = None) -> DeltaOptions:
    return read_options(DeltaOptions, _NAME, given, settings)


# -------------------------------------------------------------------------------------- The planner


class DeltaPlanner:
    """Plans by base and deltas; see the module. Keeps no state between plans."""

    option_names = option_names(DeltaOptions)
    setting_names = settings_of(DeltaOptions)

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made; see `DeclaredPlanner`."""
        _options(options)

    def check_table(self, *, keyed: bool, timed: bool) -> None:
        """Reject tables without a key.

        Raises:
            ConfigError: The message names alternatives.
        """
        if not keyed:
            instead = "bin-pack, size-tiered" + (" or time-window" if timed else "")
            raise ConfigError(f"needs a table with a key; choose {instead}")

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left; see `Planner`."""
        options = _options(parameters.options, parameters.settings)
        draft = PlanDraft(parameters, options.file_limit)
        if not parameters.keyed:
            draft.leave(parameters.candidates, "has no key, which planner delta needs")
        elif parameters.kind is Kind.USER:
            if is_under_way(Kind.USER, parameters):
                draft.leave(parameters.candidates, "waits for the running jobs of the request")
            elif parameters.candidates:
                bring_to_one(draft, parameters.candidates, options.max_files, parameters)
        else:
            _plan_sets(_Work(parameters, options, draft))
        return draft.plan()


@dataclass(slots=True)
class _Work:
    """State of one plan."""

    parameters: PlanParameters
    options: DeltaOptions
    draft: PlanDraft
    free: dict[str, DataFile] = field(default_factory=dict)
    """Candidates that are in no job of this plan."""

    def __post_init__(self) -> None:
        self.free = {file.path: file for file in self.parameters.candidates}

    def are_free(self, files: Sequence[DataFile]) -> bool:
        """Return whether none of the files is in use."""
        return all(file.path in self.free for file in files)

    def fits(self, files: Sequence[DataFile]) -> bool:
        """Return whether the files fit into one job."""
        few = len(files) <= self.options.max_files
        return few and total_bytes(files) <= capacity_bytes(self.parameters)

    def rewrite(
        self, files: Sequence[DataFile], reason: str, kind: str = "", cuts: tuple[bytes, ...] = ()
    ) -> None:
        """Add a job; `kind` is the tag value of its outputs."""
        tags = ((DELTA_TAG, kind),) if kind else ()
        self.draft.add_job(files, reason, tags=tags, cuts=cuts)
        for file in files:
            self.free.pop(file.path, None)

    def leave(self, files: Sequence[DataFile], reason: str) -> None:
        """Record why the free files among some files are left."""
        self.draft.leave([file for file in files if file.path in self.free], reason)


def _plan_sets(work: _Work) -> None:
    """Plan jobs for all sets; each set gets one job at a time."""
    sets = delta_sets(work.parameters.files.values())
    for set_ in sets:
        _plan_set(work, set_)
    _merge_neighbours(work, sets)
    if not work.draft.has_jobs and not is_under_way(Kind.SYSTEM, work.parameters):
        files, rules = [*work.free.values()], work.options.tombstone_rules
        pick_tombstones(work.draft, files, rules, work.parameters)


def _plan_set(work: _Work, delta_set: DeltaSet) -> None:
    """Plan the major compaction of a set, or else a minor one."""
    options, parameters = work.options, work.parameters
    if not delta_set.deltas:
        work.leave(delta_set.files, "is base data, and no delta overlaps it")
        return
    share = delta_set.updated_share(parameters.statistics, options.column_names)
    least = options.major_from(parameters.heat.scans_s)
    says = (
        f"{_percent(share)} of the rows of {format_count(len(delta_set.base), 'base file')} are "
        f"updated by {format_count(len(delta_set.deltas), 'delta')} (major from {_percent(least)})"
    )
    work.leave(delta_set.files, says)
    if share >= least:
        _major(work, delta_set, says)
    else:
        _minor(work, delta_set, says, options.minor_files)


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _major(work: _Work, delta_set: DeltaSet, says: str) -> None:
    """Merge a base with its deltas; if that is too large for a job, reduce the set first."""
    if work.fits(delta_set.files):
        if work.are_free(delta_set.files):
            expected_bytes = total_bytes(delta_set.files) * work.parameters.correction.written
            parts = math.ceil(expected_bytes / work.options.target_bytes)
            types = work.parameters.key_types
            cuts = cut_keys(delta_set.files, min(parts, OUTPUTS_MAX), types)
            work.rewrite(delta_set.files, f"major: {says}", MAJOR, cuts)
        else:
            work.leave(delta_set.files, f"{says}; others of them are in use")
        return
    if len(delta_set.deltas) > 1:
        _minor(work, delta_set, f"{says}, more than one job accepts, so deltas come first", 2)
    else:
        _cut_apart(work, delta_set, says)


def _minor(work: _Work, delta_set: DeltaSet, says: str, least: int) -> None:
    """Merge the smallest free deltas of a set, if there are enough."""
    free = [file for file in delta_set.deltas if file.path in work.free]
    ordered = sorted(free, key=lambda file: (file.size_bytes, file.path))
    least = min(least, work.options.max_files)
    chosen = smallest_within(ordered, work.options.max_files, work.parameters.job_bytes_max)
    if len(chosen) >= least:
        size = format_bytes(total_bytes(chosen))
        work.rewrite(
            chosen, f"minor: {format_count(len(chosen), 'delta')} of {size}; {says}", MINOR
        )
    elif len(free) < least:
        work.leave(free, f"{says}; deltas are merged from {format_count(least, 'file')} on")
    else:
        work.leave(free, f"{says}; {least} of the deltas are more than any group accepts")


def _cut_apart(work: _Work, delta_set: DeltaSet, says: str) -> None:
    """Cut the only delta of a set so that each part and its base fit into one job."""
    (delta,) = delta_set.deltas
    cuts = _cuts_of(work, delta_set.base, delta)
    if not cuts:
        work.leave(delta_set.files, f"{says}; they are more than any group accepts")
    elif not work.are_free([delta]):
        work.leave(delta_set.files, f"{says}; the delta is in use")
    else:
        what = (
            f"minor: a delta over {format_count(len(delta_set.base), 'base file')} is cut "
            f"into {len(cuts) + 1}"
        )
        work.rewrite([delta], f"{what}, because one job cannot hold them all; {says}", MINOR, cuts)


def _cuts_of(work: _Work, base: Sequence[DataFile], delta: DataFile) -> tuple[bytes, ...]:
    """Return the ends of base files at which to cut a delta; empty if a cut does not help."""
    span = span_of([delta])
    cuts, group = list[bytes](), list[DataFile]()
    for file in within_reach(base, span):
        if group and not work.fits([*group, file, delta]):
            cuts.append(group[-1].key_max or b"")
            group = []
        group.append(file)
    return tuple(cut for cut in cuts if span[0] <= cut < span[1])


def _merge_neighbours(work: _Work, sets: Sequence[DeltaSet]) -> None:
    """Merge small adjacent base files without overlap."""
    below = small_bytes_below(work.options.target_bytes, work.options.small_share)
    run = list[DataFile]()
    for set_ in sets:
        small = not set_.deltas and set_.base_bytes < below and work.are_free(set_.base)
        if run and not (small and _may_join(work, run, set_.base)):
            _merge_run(work, run)
            run = []
        if small:
            run += set_.base
    _merge_run(work, run)


def _may_join(work: _Work, run: Sequence[DataFile], more: Sequence[DataFile]) -> bool:
    files = [*run, *more]
    return total_bytes(files) <= work.options.target_bytes and work.fits(files)


def _merge_run(work: _Work, run: Sequence[DataFile]) -> None:
    least = min(work.options.minor_files, work.options.max_files)
    if len(run) >= least:
        size = format_bytes(total_bytes(run))
        work.rewrite(run, f"{len(run)} small neighbours of {size} that no file overlaps")
