"""The size-tiered planner: merge files of similar size.

This is the rule of the strategy of the same name in Cassandra and ScyllaDB. Files are grouped into
tiers of similar size. A tier of `min_threshold` files becomes one file of a higher tier, so each
byte is rewritten once per tier. Section *Tiers* has the parts and the differences.

If a tablet has no other work, one file at a time is rewritten alone to drop its tombstones. Such a
file keeps its live rows, so drop jobs do not replace this rewrite.

Fixed point: a job has at least two inputs and at most one output, or it rewrites one file, which is
not repeated before `tombstone_compaction_interval_s`. A tablet of n files has no work left after at
most n - 1 jobs of the first kind and n of the second, regardless of the output sizes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from common.errors import ConfigError
from common.model.file import DataFile
from common.model.job import JobAction, Kind, Plan, PlannedJob, job_priority
from common.model.table import BACKLOG_MODES, TableSettings
from common.rows.rules import may_hold_older_between
from common.spi.options import of_table, option, option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from common.units import format_bytes, format_count, format_duration
from coordinator.plugins.planners.packing import forced_merges

# -------------------------------------------------------------------------------------------- Tiers
# Tiers of files of similar size, and the choice of jobs: shared by planners with tiers.
#
# Buckets, thresholds and the single-file job for tombstones follow Cassandra and ScyllaDB, with two
# differences. Every tier that is large enough gets a job at once, because jobs run on many
# machines. A file is not rewritten for tombstones that the rewrite could not drop.
#
# `PlanDraft` collects jobs, reasons and the time of the next plan. It is not a planner.


# -------------------------------------------------------------------------- Options of the families


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """Options of tiers and picks; names and defaults are those of Cassandra and ScyllaDB."""

    min_threshold: int = option(4, at_least=2)
    max_threshold: int = option(32, at_least=2)
    bucket_low: float = option(0.5, above=0, at_most=1)
    bucket_high: float = option(1.5, at_least=1)
    min_file_bytes: int = option(50 * 1024**2, at_least=0)
    min_file_age_s: float = option(3600.0, at_least=0)
    enforce_min_threshold: bool = option(False)
    tombstone_threshold: float = option(0.2, above=0)
    tombstone_compaction_interval_s: float = option(86_400.0, above=0)
    unchecked_tombstone_compaction: bool = option(False)
    max_files: int = of_table("max_files", at_least=2)
    file_limit: int = of_table("file_limit", at_least=0)
    tombstone_retention_s: float = of_table("tombstone_retention_s", at_least=0)
    backlog_mode: str = of_table("backlog_mode", one_of=BACKLOG_MODES)
    """Read by the tracker."""

    @property
    def width(self) -> int:
        """Maximum number of files of one job; the table's limit applies to every planner."""
        return min(self.max_threshold, self.max_files)

    @property
    def reached_from(self) -> int:
        """Minimum number of files of a tier for a job."""
        return min(self.min_threshold, self.width)


def check_tier_options(plugin: str, options: TierOptions) -> None:
    """Reject options that contradict each other.

    Args:
        plugin: Owner of the options, for the error message.
        options: Options that are valid individually.

    Raises:
        ConfigError: `min_threshold` is above `max_threshold`.
    """
    if options.min_threshold > options.max_threshold:
        raise ConfigError(
            f"{plugin}: option min_threshold is {options.min_threshold}, expected at most "
            f"max_threshold, which is {options.max_threshold}"
        )


# --------------------------------------------------------------------------------- The plan's draft


Tags = tuple[tuple[str, str], ...]


class PlanDraft:
    """A plan under construction. A file has one job or one reason; the last reason wins."""

    files_counted: int
    """Number of files for the file limit and for the priority of added jobs."""
    explains: bool
    """Whether the caller needs reasons for files that are left; otherwise none are created."""

    def __init__(self, parameters: PlanParameters, file_limit: int) -> None:
        self.files_counted = len(parameters.files)
        self.explains = parameters.explains
        self._parameters = parameters
        self._file_limit = file_limit
        self._jobs: list[PlannedJob] = []
        self._left: dict[str, str] = {}
        self._due_at_s: float | None = None

    @property
    def has_jobs(self) -> bool:
        """Whether the draft has any jobs."""
        return bool(self._jobs)

    def add_job(
        self,
        files: Sequence[DataFile],
        reason: str,
        *,
        tags: Tags = (),
        cuts: tuple[bytes, ...] = (),
        outputs_expected: int | None = None,
        action: JobAction = JobAction.REWRITE,
        overlap: int | None = None,
    ) -> None:
        """Add a job; by default, a rewrite to one file.

        Args:
            files: Inputs of the job.
            reason: A sentence for people.
            tags: Tags of the outputs.
            cuts: Keys after which another output starts.
            outputs_expected: As in `PlannedJob`; None: derived from action and cuts.
            action: Action of the job; a drop has no outputs.
            overlap: Number of files for the priority; None: all inputs.
        """
        parameters = self._parameters
        total = sum(file.size_bytes for file in files)
        self._jobs.append(
            PlannedJob(
                kind=parameters.kind,
                files=tuple(file.path for file in files),
                group=parameters.group_for(total),
                priority=job_priority(
                    parameters.kind,
                    files_in_tablet=self.files_counted,
                    files_in_job=len(files) if overlap is None else overlap,
                    file_limit=self._file_limit,
                ),
                reason=reason,
                outputs_expected=_outputs_expected(action, cuts, outputs_expected),
                cuts=cuts,
                output_tags=tags,
                action=action,
            )
        )

    def leave(self, files: Iterable[DataFile], reason: str) -> None:
        """Record why files are in no job."""
        if self.explains:
            self._left.update((file.path, reason) for file in files)

    def add_note(self, file: DataFile, note: str) -> None:
        """Add a note to the reason of a file that is left."""
        if not self.explains:
            return
        earlier = self._left.get(file.path)
        self._left[file.path] = f"{earlier}; {note}" if earlier else note

    def ask_again(self, at_s: float) -> None:
        """Request another plan at a future time; ignore past times."""
        if at_s > self._parameters.now_s and (self._due_at_s is None or at_s < self._due_at_s):
            self._due_at_s = at_s

    def plan(self) -> Plan:
        """Return the plan."""
        if not self._left:
            return Plan(jobs=tuple(self._jobs), due_at_s=self._due_at_s)
        planned = {path for job in self._jobs for path in job.files}
        left = {path: why for path, why in self._left.items() if path not in planned}
        return Plan(jobs=tuple(self._jobs), left=left, due_at_s=self._due_at_s)


def _outputs_expected(action: JobAction, cuts: Sequence[bytes], given: int | None) -> int:
    if given is not None:
        return given
    return 0 if action is JobAction.DROP else len(cuts) + 1


def smallest_within(files: Sequence[DataFile], width: int, cap: int | None) -> tuple[DataFile, ...]:
    """Return the smallest files, at most `width`, with a total size within the cap.

    Args:
        files: Files sorted by size.
        width: Maximum number of files.
        cap: Maximum bytes of a job; None: no limit.
    """
    chosen: list[DataFile] = []
    total = 0
    for file in files[:width]:
        total += file.size_bytes
        if cap is not None and total > cap:
            break
        chosen.append(file)
    return tuple(chosen)


def by_size(files: Iterable[DataFile]) -> list[DataFile]:
    """Return the files sorted by size, smallest first."""
    return sorted(files, key=lambda file: (file.size_bytes, file.path))


def moment(at_s: float) -> str:
    """Format a time for people: `2026-03-01 12:30 UTC`."""
    try:
        date = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at_s)
    except OverflowError:
        return f"second {at_s:.0f}"
    return date.strftime("%Y-%m-%d %H:%M UTC")


# ---------------------------------------------------------------------------------- Tiers and picks


Tier = list[DataFile]
"""Files of similar size, smallest first."""


def buckets(files: Iterable[DataFile], options: TierOptions, now_s: float) -> list[Tier]:
    """Group files into tiers, smallest files first.

    A file joins the previous tier if its size is within `bucket_low` and `bucket_high` of the
    tier's average, and the tier's smallest file stays within `bucket_low` of the new average. All
    files below `min_file_bytes` form one tier, unless one of them was added less than
    `min_file_age_s` ago. Otherwise each new small file would cause a rewrite of all the others.

    Args:
        files: Files of any size, in any order.
        options: Options of the planner.
        now_s: The time now.
    """
    ordered = by_size(files)
    tiny_bytes = 0 if youngest_tiny(ordered, options, now_s) else options.min_file_bytes
    tiers: list[Tier] = []
    total = 0
    for file in ordered:
        if tiers and _joins(tiers[-1], total, file.size_bytes, tiny_bytes, options):
            tiers[-1].append(file)
            total += file.size_bytes
        else:
            tiers.append([file])
            total = file.size_bytes
    return tiers


def _joins(tier: Tier, total: int, size: int, tiny_bytes: int, options: TierOptions) -> bool:
    average = total / len(tier)
    if size < tiny_bytes and average < tiny_bytes:
        return True
    if not average * options.bucket_low < size < average * options.bucket_high:
        return False
    return tier[0].size_bytes > (total + size) / (len(tier) + 1) * options.bucket_low


def youngest_tiny(files: Iterable[DataFile], options: TierOptions, now_s: float) -> DataFile | None:
    """Return the newest file below `min_file_bytes` if it is younger than `min_file_age_s`.

    A file with an unknown time of arrival (0) counts as old.
    """
    recent = [
        file
        for file in files
        if file.size_bytes < options.min_file_bytes
        and file.added_at_s > 0
        and now_s - file.added_at_s < options.min_file_age_s
    ]
    return max(recent, key=lambda file: (file.added_at_s, file.path), default=None)


def pick_tiers(
    draft: PlanDraft,
    files: Sequence[DataFile],
    options: TierOptions,
    parameters: PlanParameters,
    *,
    alone: bool = True,
    where: str = "",
) -> None:
    """Plan size-tiered jobs over files; each file is in a job or is left with a reason.

    Tiers of at least `min_threshold` files get jobs of their smallest files, the fullest tier
    first. If no tier qualifies, `enforce_min_threshold` is off and no other job is running, the
    fullest tier of at least two files gets one job.

    Args:
        draft: Gets jobs and reasons.
        files: All files that may be merged with each other.
        options: Options of the planner.
        parameters: Parameters of the plan.
        alone: Whether no job is running on these files; only then fewer files suffice.
        where: Suffix of each reason: `, in window 7`.
    """
    tiers = buckets(files, options, parameters.now_s)
    tiers.sort(key=lambda tier: (-min(len(tier), options.width), tier[0].size_bytes))
    cap = parameters.job_bytes_max
    planned = False
    for tier in tiers:
        if draft.explains:
            draft.leave(tier, _why_left(tier, options) + where)
        rest = tier
        while len(rest) >= options.reached_from:
            chosen = smallest_within(rest, options.width, cap)
            if len(chosen) < options.reached_from:
                draft.leave(rest, too_large(cap) + where)
                break
            draft.add_job(chosen, _tier_reason(chosen, options) + where)
            planned = True
            rest = rest[len(chosen) :]
    if not planned and alone and not options.enforce_min_threshold:
        _pick_fewer(draft, tiers, options, cap, where)
    _note_tiny(draft, files, options, parameters.now_s)


def _pick_fewer(
    draft: PlanDraft, tiers: Sequence[Tier], options: TierOptions, cap: int | None, where: str
) -> None:
    for tier in tiers:
        if len(tier) < 2:
            continue
        chosen = smallest_within(tier, options.width, cap)
        if len(chosen) < 2:
            draft.leave(tier, too_large(cap) + where)
            continue
        reason = (
            f"{_tier_reason(chosen, options)}; no tier has more, and min_threshold is not enforced"
        )
        draft.add_job(chosen, reason + where)
        return


def _tier_reason(files: Sequence[DataFile], options: TierOptions) -> str:
    total = sum(file.size_bytes for file in files)
    return (
        f"{format_count(len(files), 'file')} of similar size,"
        f" {format_bytes(total / len(files))} on average (min_threshold"
        f" {options.min_threshold})"
    )


def _why_left(tier: Tier, options: TierOptions) -> str:
    average = format_bytes(sum(file.size_bytes for file in tier) / len(tier))
    if len(tier) == 1:
        return f"no other file is of similar size ({average})"
    fewer = "" if options.enforce_min_threshold else ", fewer only when there is no other job"
    return (
        f"is in a tier of {format_count(len(tier), 'file')} of about {average}; a tier is "
        "merged from "
        f"{format_count(options.reached_from, 'file')} on{fewer}"
    )


def too_large(cap: int | None) -> str:
    """Return the reason for files that are too large for any group together."""
    shown = "any" if cap is None else format_bytes(cap)
    return f"with the smaller files of its tier it is more than any group accepts ({shown})"


def _note_tiny(
    draft: PlanDraft, files: Sequence[DataFile], options: TierOptions, now_s: float
) -> None:
    """Add a note that small files do not form a tier at present, and when they will."""
    tiny = [file for file in files if file.size_bytes < options.min_file_bytes]
    youngest = youngest_tiny(tiny, options, now_s)
    if youngest is None or len(tiny) < 2:
        return
    ready_s = youngest.added_at_s + options.min_file_age_s
    draft.ask_again(ready_s)
    if not draft.explains:
        return
    note = (
        f"files below {format_bytes(options.min_file_bytes)} become one tier at"
        f" {moment(ready_s)}, {format_duration(options.min_file_age_s)} after the newest"
        " arrived"
    )
    for file in tiny:
        draft.add_note(file, note)


# --------------------------------------------------------------------- Single files with tombstones


RETENTION_SLACK = 0.25
"""Fraction of a retention. Scans record reached versions, a sixth of a retention apart."""


def pick_tombstones(
    draft: PlanDraft,
    files: Sequence[DataFile],
    options: TierOptions,
    parameters: PlanParameters,
    *,
    kept_tag: str = "",
) -> None:
    """Plan the rewrite of one file with droppable tombstones, if there is one.

    The file with the oldest rows is chosen, from the tier of the largest files with such a file. A
    file is tried again after `tombstone_compaction_interval_s` at the earliest, regardless of the
    result.

    Args:
        draft: Gets the job, and notes on files with tombstones that have to wait.
        files: Files that are in no job and not in use.
        options: Options of the planner.
        parameters: Parameters of the plan.
        kept_tag: Name of a tag that the output inherits from the file; empty: none.
    """
    cap = parameters.job_bytes_max
    oldest: DataFile | None = None
    for tier in reversed(buckets(files, options, parameters.now_s)):
        ready = [
            file
            for file in tier
            if _tombstones_are_ready(draft, file, options, parameters)
            and (cap is None or file.size_bytes <= cap)
        ]
        if ready and oldest is None:
            oldest = min(ready, key=lambda f: (f.version_min or b"", f.added_at_s, f.path))
    if oldest is None:
        return
    draft.add_job(
        (oldest,),
        f"{_tombstone_share(oldest):.0%} of its rows are tombstones, at least "
        f"{options.tombstone_threshold:.0%}, and they may be dropped",
        tags=tuple(tag for tag in oldest.tags if tag[0] == kept_tag),
    )


def _tombstone_share(file: DataFile) -> float:
    return file.tombstones / max(file.rows, file.tombstones, 1)


def _tombstones_are_ready(
    draft: PlanDraft, file: DataFile, options: TierOptions, parameters: PlanParameters
) -> bool:
    """Return whether a file qualifies for its own job; if not, note why for its tombstones."""
    share = _tombstone_share(file)
    if share < options.tombstone_threshold:
        return False
    says = f"{share:.0%} of its rows are tombstones"
    if not options.unchecked_tombstone_compaction:
        holder = file_with_older_rows(file, parameters)
        if holder is not None:
            draft.add_note(file, f"{says}, and {holder.path} may hold older rows of their keys")
            return False
    since_s = file.added_at_s if file.tombstones_since_s is None else file.tombstones_since_s
    ready_s = max(
        since_s + options.tombstone_retention_s * (1 + RETENTION_SLACK),
        file.added_at_s + options.tombstone_compaction_interval_s,
    )
    if ready_s > parameters.now_s:
        draft.ask_again(ready_s)
        draft.add_note(file, f"{says}; they are checked again at {moment(ready_s)}")
        return False
    return True


def file_with_older_rows(file: DataFile, parameters: PlanParameters) -> DataFile | None:
    """Return another file that may hold rows that this file's dead rows hide, or None.

    Unknown bounds of a file count as possible matches.
    """
    for other in parameters.files.values():
        if other.path != file.path and may_hold_older_between(
            other, file.key_min, file.key_max, file.version_max
        ):
            return other
    return None


# ------------------------------------------------------------------------------------ User requests


def bring_to_one(
    draft: PlanDraft,
    files: Sequence[DataFile],
    width: int,
    parameters: PlanParameters,
    *,
    tags: Tags = (),
    where: str = "",
) -> None:
    """Plan the next step of a request that ends in one file; the largest files come last.

    Full jobs run concurrently. With less than two full jobs left, the smallest files are merged
    until the rest fits into one job. A single file is rewritten unless it is a result of the
    request.

    Args:
        draft: Gets jobs and reasons.
        files: All files to merge into one.
        width: Maximum number of files of one job.
        parameters: Parameters of the plan.
        tags: Tags of the last output.
        where: Phrase for these files in reasons: ` of window 7`.
    """
    ordered = by_size(files)
    if len(ordered) == 1 and is_result(ordered[0], parameters):
        draft.leave(ordered, "is the result of the request")
        return
    draft.leave(ordered, "is merged in a later step, after earlier jobs")
    for step in forced_merges(ordered, width):
        total = format_bytes(sum(file.size_bytes for file in step))
        merged = f"{format_count(len(step), 'file')} of {total}"
        draft.add_job(
            step,
            f"a request merges all files{where} into one: {merged}",
            tags=tags if len(step) == len(ordered) else (),
        )


def is_result(file: DataFile, parameters: PlanParameters) -> bool:
    """Return whether a job of the current request wrote the file."""
    return parameters.request is not None and file.request == parameters.request.request


def is_under_way(kind: Kind, parameters: PlanParameters) -> bool:
    """Return whether a job of this kind is running in the tablet."""
    return any(job.kind is kind for job in parameters.running)


# -------------------------------------------------------------------------------------- Size tiered


_NAME = "planner size-tiered"


class SizeTieredPlanner:
    """Plans by size tiers; see the module. Keeps no state between plans."""

    option_names = option_names(TierOptions)
    setting_names = settings_of(TierOptions)

    def check(self, options: Mapping[str, object]) -> None:
        """Reject options with which no plan can be made; see `DeclaredPlanner`."""
        _options(options)

    def plan(self, parameters: PlanParameters) -> Plan:
        """Return the jobs to run now, and why each other candidate is left; see `Planner`."""
        options = _options(parameters.options, parameters.settings)
        draft = PlanDraft(parameters, options.file_limit)
        running = is_under_way(parameters.kind, parameters)
        if parameters.kind is Kind.USER:
            if running:
                draft.leave(parameters.candidates, "waits for the running jobs of the request")
            elif parameters.candidates:
                bring_to_one(draft, parameters.candidates, options.width, parameters)
            return draft.plan()
        pick_tiers(draft, parameters.candidates, options, parameters, alone=not running)
        if not draft.has_jobs and not running:
            pick_tombstones(draft, parameters.candidates, options, parameters)
        return draft.plan()


def _options(given: Mapping[str, object], settings: TableSettings | None = None) -> TierOptions:
    options = read_options(TierOptions, _NAME, given, settings)
    check_tier_options(_NAME, options)
    return options
