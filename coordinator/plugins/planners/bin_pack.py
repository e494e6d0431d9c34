"""The bin-pack planner: fill files up to a target size, and leave files of about that size alone.

What Iceberg's `rewrite_data_files`, Delta's `OPTIMIZE` and Amoro do. A file below `lower_share` of
the target is small. Small files are put into bins of at most the target, and each bin that is worth
its cost is a job of its own, so that progress is kept job by job. Three things are added for a
service that plans again after every change:

* A bin that is not full must multiply the size of its largest file. Otherwise a trickle of files
  would have everything that it has gathered rewritten with every few files.
* What is too few or grows too little waits. After `max_wait_s` two files are enough, so that an
  import rests at few files. The wait is longer where much would be rewritten for little.
* Outputs of jobs under way take part in bins as if they were there.

Files with many dead rows are rewritten alone, or, where the table has a key, with all files that
overlap them: only then may tombstones be dropped. Their outputs have the tag `purge=done` and are
not rewritten for the same reason again.

Fixed point: a merge has at least two inputs and one output, and a rewrite for dead rows leaves a
tag, so a tablet of n files that are not too large rests after at most 3n jobs, whatever the outputs
weigh. One that is too large counts as many times as it is cut. Files whose
rows expire are rewritten besides whenever half of the time that is left of a file has expired. A
request rests after as many, in files of at most the target: one if everything fits into one.

A file above `upper_share` is cut into files of about the target, where the table has no key: rows
are divided by their number. Its outputs have the tag `cut=done` and are not cut again, whatever
they weigh. Of a table with a key no metadata tells the keys that would divide a file. Files all of
whose rows have expired are rewritten to nothing; they will be dropped without being read.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

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
    expired_share: float = option(0.5, above=0, at_most=1)
    budget_gb_hours: float = option(0.0, at_least=0)
    jobs_max: int = option(0, at_least=0)
    max_files: int = of_table("max_files", at_least=2)  # One file is no merge.
    file_limit: int = of_table("file_limit", at_least=0)

    @property
    def lower_bytes(self) -> float:
        """Files below this are small."""
        return self.target_bytes * self.lower_share

    @property
    def upper_bytes(self) -> float:
        """Files above this are too large."""
        return self.target_bytes * self.upper_share

    @property
    def enough_files(self) -> int:
        """Files of a bin that need not wait; no more than one job may have."""
        return min(self.min_input_files, self.max_files)


def _options(settings: TableSettings | None, options: Mapping[str, object]) -> BinPackOptions:
    return read_options(BinPackOptions, "planner bin-pack", options, settings)


# -------------------------------------------------------------------------------------- The planner


CUT = ("cut", "done")
"""Tag of an output that is part of a file that was too large."""
PURGED = ("purge", "done")
"""Tag of an output that was written to drop dead rows."""
OUTPUTS_MAX = 1000
"""Of one job."""


@dataclass(slots=True)
class _Work:
    """Jobs found so far, and why other files are left."""

    parameters: PlanParameters
    options: BinPackOptions
    running: RunningOutputs
    jobs: list[PlannedJob] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    due_at_s: float | None = None

    def planned(self) -> set[str]:
        """Return the inputs of all jobs."""
        return {path for job in self.jobs for path in job.files}

    def leave(self, files: Sequence[DataFile], why: str) -> None:
        """Note why files are in no job."""
        self.left.update((file.path, why) for file in files)

    def ask_again(self, at_s: float) -> None:
        """Note that time alone will change the answer."""
        self.due_at_s = at_s if self.due_at_s is None else min(self.due_at_s, at_s)


class BinPackPlanner:
    """Plans by bins; see the module. Keeps no state between plans."""

    option_names = option_names(BinPackOptions)
    """Options that it knows."""
    setting_names = settings_of(BinPackOptions) | {"ttl_s", "tombstone_retention_s"}

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made.

        Raises:
            ConfigError: Names the option, its value and what is expected.
        """
        _options(None, options)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left.

        Raises:
            ConfigError: A setting is invalid.
        """
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
    """Leave the jobs of least score for which budget or number of jobs has no room.

    Jobs under way count; each commit has the tablet planned again, so what is left has its turn.
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
    for place, job in enumerate(work.jobs):
        if place not in chosen:
            inputs = [files[path] for path in job.files]
            work.leave(inputs, "waits for jobs with a better score (budget_gb_hours, jobs_max)")
    work.jobs = [job for place, job in enumerate(work.jobs) if place in chosen]


# --------------------------------------------------------------------------------- What a user asks


def _pack_request(work: _Work) -> None:
    """Rewrite every file of a request, in bins of the target; results that fit are merged."""
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
    """Return why a file needs no other beside it; empty: it does."""
    # Asked for every file of every plan, and most are small: texts are made only where one is read.
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
    """Plan the merges of a bin, or note why it waits.

    Args:
        work: Takes the jobs and reasons.
        files: Of the bin, outputs to come among them.
        crowded: Whether the tablet has more small files than its limit: nothing waits then.
    """
    options, count, size_bytes = work.options, len(files), total_bytes(files)
    said = f"{format_count(count, 'small file')} of {format_bytes(size_bytes)}"
    if count < 2:
        low = format_bytes(int(options.lower_bytes))
        work.leave(files, f"is below {low}, and no other small file fits into a bin with it")
    elif size_bytes >= options.lower_bytes:
        _merge(work, files, f"a full bin of {said}")
    elif crowded:
        _merge(work, files, f"more small files than file_limit {options.file_limit}: {said}")
    elif growing := _growing(files, options):
        _merge(work, growing, f"min_input_files {options.min_input_files}: bin")
        rest = [file for file in files if file not in growing]
        work.leave(rest, f"is left for a later merge with the output of {len(growing)} smaller")
    else:
        _wait(work, files, said)


def _growing(files: Bin, options: BinPackOptions) -> Bin:
    """Return the most of the smallest files that are enough and multiply their largest."""
    ordered = sorted(files, key=lambda file: (file.size_bytes, file.path))
    size_bytes, found = 0, 0
    for count, file in enumerate(ordered, 1):
        size_bytes += file.size_bytes
        if count >= options.enough_files and size_bytes >= options.min_growth * file.size_bytes:
            found = count
    return ordered[:found]


def _wait(work: _Work, files: Bin, said: str) -> None:
    """Merge a bin that has waited long enough; else note when it will have."""
    options = work.options
    coming = work.running.paths & {file.path for file in files}
    few = f"is one of {said}, which "
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
    # Since then there has been something to merge.
    second_s = sorted(file.added_at_s for file in files)[1]
    if work.parameters.now_s >= second_s + wait_s:
        _merge(work, files, f"waited for {format_duration(wait_s)}: {said}")
        return
    work.ask_again(second_s + wait_s)
    work.leave(files, f"{few}; two are enough after {format_duration(wait_s)}")


def _wait_s(files: Bin, max_wait_s: float) -> float:
    """Return how long a bin waits: longer where its largest file is most of it."""
    largest = max(file.size_bytes for file in files)
    return patient_wait_s(max_wait_s, largest, total_bytes(files) - largest)


def _merge(work: _Work, files: Bin, why: str) -> None:
    """Plan the first merges of files that are to become one; those with outputs to come wait."""
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
    """Cut files that are too large, each by a job of its own; say why others are left."""
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
    """Return why a file cannot be cut into smaller ones; empty: it can."""
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
    # A file whose rows nobody has counted may have any number.
    parts = max(2, min(parts, file.rows or parts, OUTPUTS_MAX))
    high = format_bytes(int(options.upper_bytes))
    planned = _job(
        work, [file], f"{why}above {high}: cut into {format_count(parts, 'file')}", tags=(CUT,)
    )
    return replace(planned, outputs_expected=parts)


# ------------------------------------------------------------------------------- Files of dead rows


def _purge(work: _Work) -> None:
    """Rewrite files most of whose rows are dead, with all that their rows may hide below."""
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
        taken |= {each.path for each in files}


def _overlapping(file: DataFile, parameters: PlanParameters) -> Bin:
    """Return the files without which no dead row of a file may go, itself among them."""
    if not parameters.keyed:
        return [file]
    every = (each for _, each in sorted(parameters.files.items()))
    return [each for each in every if may_share_keys(each, file.key_min, file.key_max)]


def _cannot_purge(files: Bin, taken: set[str], work: _Work) -> str:
    """Return why these files cannot be rewritten together now; empty: they can."""
    options, candidates = work.options, {file.path for file in work.parameters.candidates}
    size_bytes, count = total_bytes(files), len(files)
    if any(file.path in taken or file.path not in candidates for file in files):
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
    """Return why a file is worth a rewrite for its dead rows; empty: it is not, or not yet."""
    return next(filter(None, (_deleted(file, work), _expired(file, work))), "")


def _deleted(file: DataFile, work: _Work) -> str:
    share = file.tombstones / max(1, file.rows)
    if share < work.options.delete_share or PURGED in file.tags:
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
    # Expired rows of a table with a key are kept as long as tombstones.
    kept_s = settings.ttl_s + (settings.tombstone_retention_s if parameters.keyed else 0.0)
    if PURGED in file.tags:
        # Whatever had expired when it was written is gone, though its times may not tell.
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
    """Return a job; within its class those come first that gain most files per cost."""
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
            files_in_tablet=sum(_is_small(file, options) for file in parameters.files.values()),
            files_in_job=round(worth),
            file_limit=options.file_limit,
        ),
        reason=f"{why}; {_facts(sizes, gain, options)}",
        output_tags=tags,
    )


def _is_small(file: DataFile, options: BinPackOptions) -> bool:
    return file.size_bytes < options.lower_bytes


def _facts(sizes: Sequence[int], gain: int, options: BinPackOptions) -> str:
    count, size = len(sizes), format_bytes(sum(sizes))
    target = format_bytes(options.target_bytes)
    off = format_bytes(int(math.sqrt(size_skew(sizes, options.target_bytes))))
    return (
        f"{format_count(count, 'file')} of {size}, {gain} fewer after it, {off} off "
        f"the target of {target} on average"
    )
