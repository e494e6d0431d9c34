"""The bin-pack planner: merge files up to a target size, and keep files near that size.

This is the rule of Iceberg's `rewrite_data_files`, Delta's `OPTIMIZE` and Amoro. A file below
`lower_share` of the target is small. Small files are put into bins of at most the target size. Each
bin that pays off is a separate job, so that progress is kept job by job. Three rules are added for
a service that plans again after every change:

* A bin that is not full must multiply the size of its largest file. Otherwise a trickle of files
  would cause a rewrite of all earlier data with every few files.
* Too few files, or files that grow too little, wait. After `max_wait_s` two files are enough, so
  that an import ends with few files. The wait is longer if much data would be rewritten for little
  new data.
* Outputs of running jobs take part in bins as if they existed.

Files with many dead rows are rewritten alone or, in a table with a key, with all files that overlap
them, because only then tombstones may be dropped. Their outputs have the tag `purge=done` and are
not rewritten for the same reason again.

Fixed point: a merge has at least two inputs and one output, and a rewrite for dead rows leaves a
tag. A tablet of n files that are not too large therefore has no work left after at most 3n jobs,
regardless of the output sizes. A file that is too large counts once per part. In addition, files
are rewritten whenever half of their remaining time range has expired. A request has the same bound
and ends in files of at most the target size: one file if all rows fit into it.

A file above `upper_share` is cut into files of about the target size if the table has no key; rows
are divided by count. Its outputs have the tag `cut=done` and are not cut again, regardless of their
size. In a table with a key, the metadata does not contain keys that would divide a file. Files
whose rows have all expired are rewritten without outputs; in future, they will be dropped without
being read.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from common.model.file import DataFile, total_bytes
from common.model.job import Kind, Plan, PlannedJob, job_priority
from common.model.table import TableSettings
from common.rows.rules import may_share_keys
from common.spi.options import of_table, option, option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from common.units import format_bytes, format_count, format_duration
from coordinator.plugins.planners.packing import (
    Bin,
    RunningOutputs,
    autocomp_choice,
    bins_of,
    capacity_bytes,
    cost_gb_hours,
    files_gained,
    first_merges,
    parts_of,
    patient_wait_s,
    running_outputs,
    size_skew,
)

# ------------------------------------------------------------------------------------------ Options


@dataclass(frozen=True, slots=True, kw_only=True)
class BinPackOptions:
    """Options and settings of the planner. Rejects values that would cause endless jobs."""

    target_bytes: int = of_table("target_bytes", at_least=1)
    lower_share: float = option(0.75, above=0, at_most=1)
    upper_share: float = option(1.8, at_least=1)
    min_input_files: int = option(5, at_least=2)
    min_growth: float = option(2.0, at_least=1)
    max_wait_s: float = option(3600.0, at_least=0)
    delete_share: float = option(0.3, above=0)
    delete_files_max: int = option(10, at_least=1)
    expired_share: float = option(0.5, above=0, at_most=1)
    budget_gb_hours: float = option(0.0, at_least=0)
    jobs_max: int = option(0, at_least=0)
    max_files: int = of_table("max_files", at_least=2)  # One file is no merge.
    file_limit: int = of_table("file_limit", at_least=0)

    @property
    def lower_bytes(self) -> float:
        """Files below this size are small."""
        return self.target_bytes * self.lower_share

    @property
    def upper_bytes(self) -> float:
        """Files above this size are too large."""
        return self.target_bytes * self.upper_share

    @property
    def enough_files(self) -> int:
        """Number of files at which a bin does not wait; limited by the files of one job."""
        return min(self.min_input_files, self.max_files)


def _options(settings: TableSettings | None, options: Mapping[str, object]) -> BinPackOptions:
    return read_options(BinPackOptions, "planner bin-pack", options, settings)


# -------------------------------------------------------------------------------------- The planner


CUT = ("cut", "done")
"""Tag of the parts of a file that was too large."""
PURGED = ("purge", "done")
"""Tag of an output that was written to drop dead rows."""
OUTPUTS_MAX = 1000
"""Maximum number of outputs of one job."""


@dataclass
class _Work:
    """State of one plan: jobs so far, and reasons for files that are left."""

    parameters: PlanParameters
    options: BinPackOptions
    running: RunningOutputs
    jobs: list[PlannedJob] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    due_at_s: float | None = None

    @cached_property
    def small_count(self) -> int:
        """Number of small files of the tablet; counted once, since a large plan has many jobs."""
        below = self.options.lower_bytes
        return sum(file.size_bytes < below for file in self.parameters.files.values())

    @cached_property
    def candidates(self) -> frozenset[str]:
        """Paths of the candidates."""
        return frozenset(file.path for file in self.parameters.candidates)

    def planned(self) -> set[str]:
        """Return the inputs of all jobs."""
        return {path for job in self.jobs for path in job.files}

    def leave(self, files: Sequence[DataFile], why: str) -> None:
        """Record why files are in no job."""
        self.left.update((file.path, why) for file in files)

    def ask_again(self, at_s: float) -> None:
        """Request another plan at a time at which the result changes."""
        self.due_at_s = at_s if self.due_at_s is None else min(self.due_at_s, at_s)


class BinPackPlanner:
    """Plans by bins; see the module. Keeps no state between plans."""

    option_names = option_names(BinPackOptions)
    """Names of the planner's options."""
    setting_names = settings_of(BinPackOptions) | {"ttl_s", "tombstone_retention_s"}

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made; see `DeclaredPlanner`."""
        _options(None, options)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left; see `Planner`."""
        options = _options(parameters.settings, parameters.options)
        work = _Work(parameters, options, running_outputs(parameters))
        if parameters.kind is Kind.USER:
            _pack_request(work)
        else:
            _pack_small(work)
            _purge(work)
            _cut_large(work)
            _keep_within_budget(work)
        planned = work.planned() | work.running.paths
        left = {path: why for path, why in work.left.items() if path not in planned}
        jobs = sorted(work.jobs, key=lambda job: -job.priority)
        return Plan(jobs=tuple(jobs), left=left, due_at_s=work.due_at_s)


def _keep_within_budget(work: _Work) -> None:
    """Remove the jobs of lowest score that exceed the budget or the number of jobs.

    Running jobs count. Each commit triggers another plan, so the remaining jobs get their turn.
    """
    options, running = work.options, work.parameters.running
    budget = options.budget_gb_hours or math.inf
    count_max = options.jobs_max or len(work.jobs) + len(running)
    spent = sum(cost_gb_hours(total_bytes(job.files)) for job in running)
    files = work.parameters.files
    priced = []
    for job in work.jobs:
        sizes = [files[path].size_bytes for path in job.files]
        gain = files_gained(sizes, options.target_bytes, options.lower_share)
        priced.append((float(gain), cost_gb_hours(sum(sizes))))
    chosen = set(autocomp_choice(priced, budget - spent, count_max - len(running)))
    for number, job in enumerate(work.jobs):
        if number not in chosen:
            inputs = [files[path] for path in job.files]
            work.leave(inputs, "waits for jobs with a better score (budget_gb_hours, jobs_max)")
    work.jobs = [job for number, job in enumerate(work.jobs) if number in chosen]


# ------------------------------------------------------------------------------------ User requests


def _pack_request(work: _Work) -> None:
    """Rewrite every file of a request in bins of the target size; merge results that fit."""
    parameters, options = work.parameters, work.options
    request = parameters.request.request if parameters.request is not None else None
    pool = [*parameters.candidates, *work.running.files]
    for files in bins_of(pool, options.target_bytes, keyed=parameters.keyed):
        (first, *others) = files
        if others:
            _merge(work, files, "a request rewrites all")
        elif first.request != request and not _uncut(first, work):
            work.jobs.append(_cut_job(work, first, "a request rewrites all; "))
        elif first.path not in work.running.paths and first.request != request:
            work.jobs.append(_job(work, files, "a request rewrites all"))
        else:
            work.leave(
                files, "is a result of the request, and no other result fits into a bin with it"
            )


# -------------------------------------------------------------------------------------- Small files


def _pack_small(work: _Work) -> None:
    """Merge small files whose bins are full, have enough files, or have waited long enough."""
    parameters, options = work.parameters, work.options
    small = list[DataFile]()
    most_bytes = min(options.target_bytes, capacity_bytes(parameters))
    for file in parameters.candidates:
        if why := _not_small(file, options, most_bytes):
            work.left[file.path] = why
        else:
            small.append(file)
    small += [file for file in work.running.files if file.size_bytes < options.lower_bytes]
    for files in bins_of(small, most_bytes, keyed=parameters.keyed):
        _pack_bin(work, files, crowded=0 < options.file_limit < len(small))


def _not_small(file: DataFile, options: BinPackOptions, capacity_bytes: float) -> str:
    """Return why a file need not be merged; empty if it is small enough to merge."""
    # Called for every file of every plan. Most files are small, so texts are created only if
    # needed.
    if file.size_bytes < options.lower_bytes and file.size_bytes <= capacity_bytes:
        return ""
    size, target = format_bytes(file.size_bytes), format_bytes(options.target_bytes)
    low, high = format_bytes(int(options.lower_bytes)), format_bytes(int(options.upper_bytes))
    if file.size_bytes > options.upper_bytes:
        return f"is {size}, above {high}"
    if file.size_bytes >= options.lower_bytes:
        return f"is {size}, between {low} and {high}: near the target of {target}"
    return f"is {size}, more than any group accepts ({format_bytes(int(capacity_bytes))})"


def _pack_bin(work: _Work, files: Bin, *, crowded: bool) -> None:
    """Plan the merges of a bin, or record why it waits.

    Args:
        work: Receives the jobs and reasons.
        files: Files of the bin, including future outputs of running jobs.
        crowded: Whether the tablet has more small files than its limit; no bin waits then.
    """
    options, count, size_bytes = work.options, len(files), total_bytes(files)
    summary = f"{format_count(count, 'small file')} of {format_bytes(size_bytes)}"
    if count < 2:
        low = format_bytes(int(options.lower_bytes))
        work.leave(files, f"is below {low}, and no other small file fits into a bin with it")
    elif size_bytes >= options.lower_bytes:
        _merge(work, files, f"a full bin of {summary}")
    elif crowded:
        _merge(work, files, f"more small files than file_limit {options.file_limit}: {summary}")
    elif growing := _growing(files, options):
        _merge(work, growing, f"min_input_files {options.min_input_files}: bin")
        merged = {file.path for file in growing}
        rest = [file for file in files if file.path not in merged]
        work.leave(rest, f"is left for a later merge with the output of {len(growing)} smaller")
    else:
        _wait(work, files, summary)


def _growing(files: Bin, options: BinPackOptions) -> Bin:
    """Return the longest prefix of the smallest files that has enough files and growth."""
    ordered = sorted(files, key=lambda file: (file.size_bytes, file.path))
    size_bytes, best_count = 0, 0
    for count, file in enumerate(ordered, 1):
        size_bytes += file.size_bytes
        if count >= options.enough_files and size_bytes >= options.min_growth * file.size_bytes:
            best_count = count
    return ordered[:best_count]


def _wait(work: _Work, files: Bin, summary: str) -> None:
    """Merge a bin that has waited long enough; otherwise request a plan for that time."""
    options = work.options
    coming = work.running.paths & {file.path for file in files}
    few = f"is one of {summary}, which "
    few += (
        f"are fewer than min_input_files {options.min_input_files}"
        if len(files) < options.enough_files
        else f"have less than min_growth {options.min_growth:g} times the size of the largest file"
        " to merge"
    )
    if coming:
        work.leave(files, f"{few}; waits for the output of a running job")
        return
    wait_s = _wait_s(files, options.max_wait_s)
    # The wait starts with the second file, when a merge becomes possible.
    second_s = sorted(file.added_at_s for file in files)[1]
    if work.parameters.now_s >= second_s + wait_s:
        _merge(work, files, f"waited for {format_duration(wait_s)}: {summary}")
        return
    work.ask_again(second_s + wait_s)
    work.leave(files, f"{few}; two are enough after {format_duration(wait_s)}")


def _wait_s(files: Bin, max_wait_s: float) -> float:
    """Return how long a bin waits; longer if its largest file dominates."""
    largest = max(file.size_bytes for file in files)
    return patient_wait_s(max_wait_s, largest, total_bytes(files) - largest)


def _merge(work: _Work, files: Bin, why: str) -> None:
    """Plan the first merges of files that must become one; merges with future outputs wait."""
    for merge in first_merges(files, work.options.max_files):
        if any(file.path in work.running.paths for file in merge):
            work.leave(merge, "waits for the output of a running job, to be merged with it")
        else:
            work.jobs.append(_job(work, merge, why))
    work.left.update(
        (file.path, "is merged in a later step, after earlier jobs")
        for file in files
        if file.path not in work.left
    )


# ---------------------------------------------------------------------------------- Too large files


def _cut_large(work: _Work) -> None:
    """Cut each file that is too large in its own job; record why others are left."""
    taken, capacity = work.planned(), capacity_bytes(work.parameters)
    for file in work.parameters.candidates:
        if file.path in taken or file.size_bytes <= work.options.upper_bytes:
            continue
        why = _uncut(file, work)
        if not why and file.size_bytes > capacity:
            why = f"more than any group accepts ({format_bytes(int(capacity))})"
        if why:
            work.left[file.path] = f"{work.left[file.path]}, and is not cut: {why}"
        else:
            work.jobs.append(_cut_job(work, file, ""))


def _uncut(file: DataFile, work: _Work) -> str:
    """Return why a file cannot be cut; empty if it can."""
    if file.size_bytes <= work.options.upper_bytes:
        return "it is not too large"
    if file.path in work.running.paths:
        return "it is not there yet"
    if work.parameters.keyed:
        return "no metadata shows which keys would divide it"
    if CUT in file.tags:
        return "it was cut before"
    return "it has one row" if file.rows == 1 else ""


def _cut_job(work: _Work, file: DataFile, why: str) -> PlannedJob:
    options = work.options
    parts = parts_of(
        file.size_bytes, options.target_bytes, options.lower_share, options.upper_share
    )
    # A file with an unknown number of rows (0) may have any number.
    parts = max(2, min(parts, file.rows or parts, OUTPUTS_MAX))
    high = format_bytes(int(options.upper_bytes))
    planned = _job(
        work, [file], f"{why}above {high}: cut into {format_count(parts, 'file')}", tags=(CUT,)
    )
    return replace(planned, outputs_expected=parts)


# ------------------------------------------------------------------------------- Files of dead rows


def _purge(work: _Work) -> None:
    """Rewrite files with many dead rows, together with all files that their rows may hide."""
    taken = work.planned()
    for file in work.parameters.candidates:
        why = "" if file.path in taken else _dead_rows(file, work)
        if not why:
            continue
        files = _overlapping(file, work.parameters)
        if problem := _cannot_purge(files, taken, work):
            work.left[file.path] = f"{work.left.get(file.path, 'is small')}; {why}, but {problem}"
            continue
        work.jobs.append(_job(work, files, why, tags=(PURGED,)))
        taken |= {file.path for file in files}


def _overlapping(file: DataFile, parameters: PlanParameters) -> Bin:
    """Return the files that a job needs to drop a file's dead rows, including the file."""
    if not parameters.keyed:
        return [file]
    by_path = (other for _, other in sorted(parameters.files.items()))
    return [other for other in by_path if may_share_keys(other, file.key_min, file.key_max)]


def _cannot_purge(files: Bin, taken: set[str], work: _Work) -> str:
    """Return why these files cannot be rewritten together now; empty if they can."""
    options, size_bytes, count = work.options, total_bytes(files), len(files)
    if any(file.path in taken or file.path not in work.candidates for file in files):
        return "a file that overlaps it is in use"
    if count > options.max_files:
        return (
            f"with the files that overlap it, a job has {count}, max_files is {options.max_files}"
        )
    most = min(capacity_bytes(work.parameters), max(options.upper_bytes, files[0].size_bytes))
    if size_bytes > most and count > 1:
        return f"with the files that overlap it, a job has {format_bytes(size_bytes)}"
    return ""


def _dead_rows(file: DataFile, work: _Work) -> str:
    """Return why to rewrite a file for its dead rows; empty if no rewrite is due."""
    return next(filter(None, (_deleted(file, work), _expired(file, work))), "")


def _deleted(file: DataFile, work: _Work) -> str:
    share = file.tombstones / max(1, file.rows)
    if PURGED in file.tags:
        return ""
    if (count := file.delete_files) >= work.options.delete_files_max:
        return f"readers apply {format_count(count, 'file')} of deletes to it"
    if share < work.options.delete_share:
        return ""
    ripe_s = (file.tombstones_since_s or 0.0) + work.parameters.settings.tombstone_retention_s
    if work.parameters.now_s <= ripe_s:
        work.ask_again(ripe_s + 1)
        return ""
    return f"{share:.0%} of its rows are tombstones that may be dropped"


def _expired(file: DataFile, work: _Work) -> str:
    parameters, settings = work.parameters, work.parameters.settings
    first_s, last_s = file.time_min_s, file.time_max_s
    if settings.ttl_s is None or not parameters.timed or first_s is None or last_s is None:
        return ""
    # In a table with a key, expired rows are kept as long as tombstones.
    kept_s = settings.ttl_s + (settings.tombstone_retention_s if parameters.keyed else 0.0)
    if PURGED in file.tags:
        # Rows that had expired when the file was written are gone, even if its times include them.
        first_s = min(last_s, max(first_s, file.added_at_s - kept_s))
        if file.added_at_s - kept_s > last_s:
            return ""
    wanted_s = first_s + work.options.expired_share * (last_s - first_s) + kept_s + 1
    if parameters.now_s < wanted_s:
        work.ask_again(wanted_s)
        return ""
    share = min(1.0, (parameters.now_s - kept_s - first_s) / max(last_s - first_s, 1e-9))
    return f"about {share:.0%} of its rows have expired"


# --------------------------------------------------------------------------------------------- Jobs


def _job(
    work: _Work, files: Bin, why: str, *, tags: tuple[tuple[str, str], ...] = ()
) -> PlannedJob:
    """Return a job; its priority within its class is the number of gained files per cost."""
    parameters, options = work.parameters, work.options
    sizes = [file.size_bytes for file in files]
    size_bytes, gain = sum(sizes), files_gained(sizes, options.target_bytes, options.lower_share)
    worth = gain / cost_gb_hours(size_bytes)
    return PlannedJob(
        kind=parameters.kind,
        files=tuple(sorted(file.path for file in files)),
        group=parameters.group_for(size_bytes),
        priority=job_priority(
            parameters.kind,
            files_in_tablet=work.small_count,
            files_in_job=round(worth),
            file_limit=options.file_limit,
        ),
        reason=f"{why}; {_facts(sizes, gain, options)}",
        output_tags=tags,
    )


def _facts(sizes: Sequence[int], gain: int, options: BinPackOptions) -> str:
    count, size = len(sizes), format_bytes(sum(sizes))
    target = format_bytes(options.target_bytes)
    off = format_bytes(int(math.sqrt(size_skew(sizes, options.target_bytes))))
    return (
        f"{format_count(count, 'file')} of {size}, {gain} fewer after it, {off} off "
        f"the target of {target} on average"
    )
