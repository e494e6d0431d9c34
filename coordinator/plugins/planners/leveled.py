"""The leveled planner: files of a level do not overlap, and each level is larger than the previous.

This is leveled compaction as in LevelDB, RocksDB and Cassandra, for tables with a key. A reader of
one key opens the files of level 0 and one file per level. New files are in level 0 and may overlap.
Outputs of jobs have the tag `level` and a size of about `max_file_bytes`; level n holds up to
`fan_out`^n such files. A level that holds more sends files to the next level, where they are merged
with all files that they overlap.

Those systems choose the files of a level round-robin and run one job at a time. This planner
differs:

* From a level that is too large, the files with the least overlap per byte in the next level move
  first. A file that has waited for `starvation_s` takes precedence.
* All levels that are too large get jobs at once, as many as needed, on disjoint key ranges.
* A row wins by its version, regardless of its level. Part of level 0 may therefore move on while
  older files stay. A file that overlaps another file of its level, for any reason, counts as level
  0.
* A file without overlap in the next level is moved: only its tag changes, and no data is read.
* No job has more than `max_files` inputs. A file that overlaps too many files of the next level is
  first cut at their boundaries into files that overlap fewer.

Fixed point: each job moves rows to a higher level, or cuts a file that overlaps too many others
into files that do not, or reduces the number of files in level 0, or moves files that overlap
others of their level to level 0. There are nine levels, and outputs of a job never overlap other
files of their level. A request ends in files that do not overlap.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import ConfigError
from common.model.file import DataFile, total_bytes
from common.model.job import JobAction, Kind, Plan
from common.model.table import TableSettings
from common.spi.controller import LEVEL_TAG
from common.spi.deltas import Span, overlapping_sets, span_of
from common.spi.options import of_table, option, option_names, read_options, settings_of
from common.spi.planner import PlanParameters
from common.units import format_bytes, format_count, whole_number
from coordinator.plugins.planners.packing import capacity_bytes, cut_keys, forced_merges
from coordinator.plugins.planners.size_tiered import (
    PlanDraft,
    TierOptions,
    by_size,
    check_tier_options,
    is_result,
    is_under_way,
    pick_tiers,
    pick_tombstones,
)

_NAME = "planner leveled"
CUT_TAG = (LEVEL_TAG, "0")
"""Tag of a level 0 file that was cut or merged so that it fits into one job with level 1."""
LEVEL_MAX = 8
"""Number of the last level, which may hold any amount; there are nine levels."""
OUTPUTS_MAX = 1000
"""Maximum number of outputs of one job."""


# ------------------------------------------------------------------------------------------ Options


@dataclass(frozen=True, slots=True, kw_only=True)
class LeveledOptions(TierOptions):
    """Options of file and level sizes, and of tiers in level 0."""

    enforce_min_threshold: bool = option(True)
    max_file_bytes: int = of_table("target_bytes", at_least=1)
    fan_out: int = option(10, at_least=2, at_most=100)
    score_min: float = option(1.001, at_least=1)
    level0_files_max: int = option(32, at_least=2)
    starvation_s: float = option(86_400.0, above=0)

    def target_bytes(self, level: int) -> float:
        """Return the target size of a level, from level 1 on."""
        return float(self.fan_out) ** level * self.max_file_bytes


def _options(given: Mapping[str, object], settings: TableSettings | None = None) -> LeveledOptions:
    options = read_options(LeveledOptions, _NAME, given, settings)
    check_tier_options(_NAME, options)
    return options


# -------------------------------------------------------------------------------------- The planner


class LeveledPlanner:
    """Plans by levels; see the module. Keeps no state between plans."""

    option_names = option_names(LeveledOptions)
    setting_names = settings_of(LeveledOptions)

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
            draft.leave(parameters.candidates, "has no key, which planner leveled needs")
            return draft.plan()
        work = _Work(parameters, options, draft, levels_of(parameters.files.values()))
        # A reader of one key opens at most this number of files.
        depth = sum(1 for level in work.levels[1:] if level.files)
        draft.files_counted = len(work.levels[0].files) + depth
        if parameters.kind is Kind.USER:
            _plan_request(work)
        else:
            _plan_levels(work)
        return draft.plan()


# ------------------------------------------------------------------------------------------- Levels


@dataclass(frozen=True, slots=True)
class Level:
    """The files of one level; from level 1 on, they are sorted and do not overlap."""

    files: tuple[DataFile, ...] = ()
    starts: tuple[bytes, ...] = ()
    ends: tuple[bytes, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return total_bytes(self.files)

    def within_reach(self, span: Span) -> tuple[DataFile, ...]:
        """Return the files that overlap a key range."""
        low, high = span
        return self.files[bisect_left(self.ends, low) : bisect_right(self.starts, high)]


def level_of(file: DataFile) -> int:
    """Return the level in a file's tag; a file without the tag is in level 0."""
    return min(whole_number(dict(file.tags).get(LEVEL_TAG, "")) or 0, LEVEL_MAX)


def levels_of(files: Iterable[DataFile]) -> list[Level]:
    """Return the nine levels of a tablet.

    A file that overlaps another file of its level counts as level 0; as many files as possible keep
    their level. Such overlap results from changed tablets, planners or options.

    Args:
        files: All files of the tablet, including files in use.
    """
    tagged: list[list[DataFile]] = [[] for _ in range(LEVEL_MAX + 1)]
    for file in files:
        has_keys = file.key_min is not None and file.key_max is not None
        tagged[level_of(file) if has_keys else 0].append(file)
    levels = [Level()]
    for level in tagged[1:]:
        if not level:
            levels.append(Level())
            continue
        kept: list[DataFile] = []
        for file in sorted(level, key=lambda file: (file.key_max or b"", file.path)):
            if kept and (file.key_min or b"") <= (kept[-1].key_max or b""):
                tagged[0].append(file)
            else:
                kept.append(file)
        starts, ends = (
            tuple(getattr(file, name) for file in kept) for name in ("key_min", "key_max")
        )
        levels.append(Level(tuple(kept), starts, ends))
    oldest = sorted(tagged[0], key=lambda file: (file.added_at_s, file.path))
    levels[0] = Level(tuple(oldest))
    return levels


def overlap(one: Span, other: Span) -> bool:
    """Return whether two key ranges overlap."""
    return one[0] <= other[1] and other[0] <= one[1]


@dataclass(slots=True)
class _Work:
    """State of one plan: parameters, levels, and files that are still free."""

    parameters: PlanParameters
    options: LeveledOptions
    draft: PlanDraft
    levels: list[Level]
    free: dict[str, DataFile] = field(default_factory=dict)
    """Candidates that are in no job of this plan."""
    coming: list[tuple[Span, int]] = field(default_factory=list)
    """Key range and level of the outputs of planned and running jobs."""

    def __post_init__(self) -> None:
        self.free = {file.path: file for file in self.parameters.candidates}
        for job in self.parameters.running:
            if job.files:
                levels = range(LEVEL_MAX + 1)
                if job.kind is Kind.SYSTEM:
                    # The metadata does not show to which of the two levels a job writes.
                    deepest = max(map(level_of, job.files))
                    levels = range(deepest, min(deepest + 2, LEVEL_MAX + 1))
                self.coming += [(span_of(job.files), level) for level in levels]

    def candidates_of(self, level: int) -> list[DataFile]:
        """Return the free files of a level."""
        return [file for file in self.levels[level].files if file.path in self.free]

    def move(self, files: Sequence[DataFile], level: int, reason: str) -> None:
        """Add a job that moves files to another level without a rewrite."""
        self.rewrite(files, level, reason, action=JobAction.MOVE)

    def rewrite(
        self,
        files: Sequence[DataFile],
        level: int,
        reason: str,
        cuts: tuple[bytes, ...] = (),
        action: JobAction = JobAction.REWRITE,
    ) -> None:
        """Add a job with outputs in a level."""
        tags = ((LEVEL_TAG, str(level)),)
        self.draft.add_job(files, reason, tags=tags, cuts=cuts, action=action)
        self.coming.append((span_of(files), level))
        for file in files:
            self.free.pop(file.path, None)

    def cuts(self, files: Sequence[DataFile]) -> tuple[bytes, ...]:
        """Return the keys at which to cut outputs to the file size."""
        parts = math.ceil(total_bytes(tuple(files)) / self.options.max_file_bytes)
        return cut_keys(files, min(parts, OUTPUTS_MAX), self.parameters.key_types)


def _plan_levels(work: _Work) -> None:
    """Plan jobs for all levels that are too large, the highest first."""
    options, parameters = work.options, work.parameters
    if parameters.explains:
        _leave_all(work)
    alone = not is_under_way(Kind.SYSTEM, parameters)
    crowd = len(work.levels[0].files)
    if crowd > options.level0_files_max:
        where = (
            f", in level 0, which has {format_count(crowd, 'file')}, and they are merged"
            " before other jobs"
        )
        files = [file for file in work.candidates_of(0) if CUT_TAG not in file.tags]
        _tier_level0(work, files, where, alone=alone)
        if work.draft.has_jobs:
            return
    _settle(work)
    for level in range(LEVEL_MAX - 1, 0, -1):
        _push_level(work, level)
    if total_bytes(work.candidates_of(0)) >= options.max_file_bytes:
        _push_level0(work)
    else:
        _tier_level0(work, work.candidates_of(0), ", in level 0", alone=alone)
    if not work.draft.has_jobs and alone:
        files = [*work.free.values()]
        pick_tombstones(work.draft, files, options, parameters, kept_tag=LEVEL_TAG)


def _leave_all(work: _Work) -> None:
    """Record the level of all candidates; jobs and specific reasons replace this later."""
    for number, level in enumerate(work.levels):
        holds = f"is in level {number}, which holds {format_bytes(level.size_bytes)}"
        if 0 < number < LEVEL_MAX:
            holds += f" of {format_bytes(int(work.options.target_bytes(number)))}"
        work.draft.leave(work.candidates_of(number), holds)


def _tier_level0(work: _Work, files: Sequence[DataFile], where: str, *, alone: bool) -> None:
    """Merge files of similar size in level 0."""
    pick_tiers(work.draft, files, work.options, work.parameters, alone=alone, where=where)


def _settle(work: _Work) -> None:
    """Move files that count as level 0, because they overlap others of their level, to level 0."""
    files = [file for file in work.candidates_of(0) if level_of(file)]
    for start in range(0, len(files), work.options.max_files):
        chunk = files[start : start + work.options.max_files]
        levels = " and ".join(sorted({str(level_of(file)) for file in chunk}))
        count = format_count(len(chunk), "file")
        work.move(
            chunk,
            0,
            f"{count} of level {levels} to level 0, because other files there overlap them",
        )


# ------------------------------------------------------------------------- From a level to the next


@dataclass(frozen=True, slots=True)
class _Push:
    """A job that takes files of a level to the next level."""

    files: tuple[DataFile, ...]
    overlapped: tuple[DataFile, ...]
    """Overlapped files of the next level."""

    @property
    def inputs(self) -> tuple[DataFile, ...]:
        """All inputs of the job."""
        return (*self.files, *self.overlapped)

    @property
    def cost(self) -> float:
        """Rewritten bytes of the next level per byte that enters it."""
        return total_bytes(self.overlapped) / max(1, total_bytes(self.files))


def _can_cut(work: _Work, push: _Push) -> bool:
    """Return whether a job is too large and a cut of its file would reduce the overlap."""
    return not _fits(work, push) and len(push.overlapped) > 1


def _push_of(work: _Work, files: Sequence[DataFile], level: int) -> _Push:
    """Return the job that takes files of a level to the next level."""
    return _Push(tuple(files), work.levels[level + 1].within_reach(span_of(files)))


def _fits(work: _Work, push: _Push) -> bool:
    """Return whether the inputs fit into one job."""
    return len(push.inputs) <= work.options.width and total_bytes(push.inputs) <= capacity_bytes(
        work.parameters
    )


def _is_free(work: _Work, push: _Push, level: int) -> bool:
    """Return whether a job's inputs are free and no other job writes to its output range."""
    span = span_of(push.inputs)
    return all(file.path in work.free for file in push.inputs) and not any(
        to == level + 1 and overlap(span, other) for other, to in work.coming
    )


def _push_level(work: _Work, level: int) -> None:
    """Plan jobs that reduce a level to its target, with the cheapest or longest waiting files."""
    options = work.options
    if not work.levels[level].files:
        return
    size, target = work.levels[level].size_bytes, options.target_bytes(level)
    if size / target <= options.score_min:
        return
    score = f"level {level} holds {format_bytes(size)}, {size / target:.2f} times its target"
    pushes = [_push_of(work, [file], level) for file in work.candidates_of(level)]
    pushes.sort(key=lambda push: _turn(work, push))
    for push in pushes:
        if size / target <= options.score_min:
            return
        if _fits(work, push) and _is_free(work, push, level):
            wider = _with_neighbours(work, push, level)
            _push(work, wider, level, score)
            size -= total_bytes(wider.files)
        else:
            why = "are in use" if _fits(work, push) else "are more than one job accepts"
            work.draft.leave(
                push.files, f"stays although {score}: it and the files that it overlaps {why}"
            )
    wide = [push for push in pushes if _can_cut(work, push) and _is_free(work, push, level)]
    if wide and size / target > options.score_min:
        _cut_apart(work, [wide[0].files[0]], level)


def _turn(work: _Work, push: _Push) -> tuple[float, float, float, str]:
    """Return the sort key of a level's files: starving files first, then the lowest cost."""
    (file,) = push.files
    starving = work.parameters.now_s - file.added_at_s >= work.options.starvation_s
    since_s = file.added_at_s if starving and file.added_at_s > 0 else math.inf
    return (since_s, push.cost, file.added_at_s, file.path)


def _with_neighbours(work: _Work, push: _Push, level: int) -> _Push:
    """Return a job with additional files of its level that cause no more overlap."""
    low, high = span_of(push.inputs)
    widest = push
    for file in work.levels[level].within_reach((low, high)):
        wider = _Push((*widest.files, file), widest.overlapped)
        inside = low <= (file.key_min or b"") and (file.key_max or b"") <= high
        if inside and file.path in work.free and file not in push.files and _fits(work, wider):
            widest = wider
    return widest


def _push(work: _Work, push: _Push, level: int, why: str) -> None:
    count, size = format_count(len(push.files), "file"), format_bytes(total_bytes(push.files))
    if _can_move(work, push, level):
        what = f"{why}: {count} of {size} to level {level + 1}, which has no files at its keys"
        work.move(push.files, level + 1, what)
        return
    onto = format_bytes(total_bytes(push.overlapped))
    overlapped = format_count(len(push.overlapped), "file")
    reason = f"{why}: {count} of {size} to level {level + 1}, onto {overlapped} of {onto} there"
    work.rewrite(push.inputs, level + 1, reason, work.cuts(push.inputs))


MOVED_MAX = 1.5
"""Relative to the file size: larger files are rewritten, because they must be cut."""
MOVED_MIN = 0.5
"""Relative to the file size: smaller files of level 0 are not moved, because no job would merge
them.
"""


def _can_move(work: _Work, push: _Push, level: int) -> bool:
    """Return whether files may move to the next level unchanged."""
    size = work.options.max_file_bytes
    if push.overlapped or any(file.size_bytes > MOVED_MAX * size for file in push.files):
        return False
    if level > 0:
        return True
    (first, *others) = push.files
    return not others and first.size_bytes >= MOVED_MIN * size and first.key_min is not None


def _cut_apart(work: _Work, files: Sequence[DataFile], level: int) -> None:
    """Plan a cut of files that overlap too much of the next level (`_can_cut`).

    The overlap of each part with the next level fits into one job.
    """
    span = span_of(files)
    rest_bytes, cuts, group = capacity_bytes(work.parameters), list[bytes](), list[DataFile]()
    for other in work.levels[level + 1].within_reach(span):
        full = len(group) + 1 >= work.options.width
        if group and (full or total_bytes([*group, other, *files]) > rest_bytes):
            cuts.append(group[-1].key_max or b"")
            group = []
        group.append(other)
    more = format_count(len(work.levels[level + 1].within_reach(span)), "file")
    what = format_count(len(files), "file")
    work.rewrite(
        files,
        level,
        f"{what} of level {level} overlap {more} of level {level + 1}, more than one job"
        f" accepts: cut into {len(cuts) + 1}",
        tuple(cuts),
    )


# ------------------------------------------------------------------------------------------ Level 0


SEEDS_MAX = 64
"""Maximum number of files of level 0, oldest first, that are tried as the first of a job."""


def _push_level0(work: _Work) -> None:
    """Push level 0 to level 1: cheap jobs, else cuts or merges, else any possible job."""
    size = format_bytes(work.levels[0].size_bytes)
    score = f"level 0 holds {size}, at least {format_bytes(work.options.max_file_bytes)}"
    pushed = False
    while (push := _best_push(work)) is not None and push.cost <= work.options.fan_out:
        _push(work, push, 0, score)
        pushed = True
    if pushed:
        return
    singles = [_push_of(work, [file], 0) for file in work.candidates_of(0)]
    wide = [single.files[0] for single in singles if _can_cut(work, single)]
    if wide:
        _cut_apart(work, _within(work, wide), 0)
    elif (files := _mergeable(work)) and not _waits_for_level1(work):
        total = format_bytes(total_bytes(files))
        reason = (
            f"{score}: {format_count(len(files), 'file')} of {total} are merged "
            "before they go to level 1"
        )
        work.rewrite(files, 0, reason)
    elif push is not None:
        _push(work, push, 0, score)
    else:
        why = (
            f"stays although {score}: it and the files that it overlaps are in use, or more than"
            " a job accepts"
        )
        work.draft.leave(work.candidates_of(0), why)


def _best_push(work: _Work) -> _Push | None:
    """Return the job that rewrites least of level 1 per byte of level 0; None without a job."""
    files = work.candidates_of(0)
    pushes = [_grown(work, seed, files) for seed in files[:SEEDS_MAX]]
    return min(
        (push for push in pushes if push is not None),
        key=lambda push: (push.cost, push.files[0].added_at_s, push.files[0].path),
        default=None,
    )


def _grown(work: _Work, seed: DataFile, files: Sequence[DataFile]) -> _Push | None:
    """Return a job with one file of level 0, extended by other files at no higher cost."""
    push = _push_of(work, [seed], 0)
    if not _fits(work, push) or not _is_free(work, push, 0):
        return None
    for file in files:
        if file.path == seed.path:
            continue
        wider = _push_of(work, [*push.files, file], 0)
        if wider.cost <= push.cost and _fits(work, wider) and _is_free(work, wider, 0):
            push = wider
    return push


def _within(work: _Work, files: Sequence[DataFile]) -> list[DataFile]:
    """Return the first files, as many as fit into one job."""
    chosen: list[DataFile] = []
    for file in files[: work.options.width]:
        if chosen and total_bytes([*chosen, file]) > capacity_bytes(work.parameters):
            break
        chosen.append(file)
    return chosen


def _mergeable(work: _Work) -> list[DataFile]:
    """Return files of level 0 whose merge still fits into one job with level 1."""
    files = work.candidates_of(0)
    for seed in files[:SEEDS_MAX]:
        grown = [seed]
        for file in files:
            if file.path == seed.path or len(grown) == work.options.width:
                continue
            wider = [*grown, file]
            push = _push_of(work, wider, 0)
            small = len(push.overlapped) < work.options.width
            if small and total_bytes(push.inputs) <= capacity_bytes(work.parameters):
                grown = wider
        if len(grown) > 1:
            return grown
    return []


def _waits_for_level1(work: _Work) -> bool:
    """Return whether level 0 only waits for files that are in use."""
    singles = (_push_of(work, [file], 0) for file in work.candidates_of(0))
    return any(_fits(work, single) and not _is_free(work, single, 0) for single in singles)


# ----------------------------------------------------------------------------------------- Requests


def _plan_request(work: _Work) -> None:
    """Rewrite the files of a request without overlap, to the lowest level that can hold them all.

    Files that overlap each other form a set. A set that is too large for one job is merged in
    steps; the last step cuts.
    """
    candidates = work.parameters.candidates
    if is_under_way(Kind.USER, work.parameters):
        work.draft.leave(candidates, "waits for the running jobs of the request")
        return
    level = _level_for(total_bytes(candidates), work.options)
    for files in overlapping_sets(candidates):
        if len(files) == 1 and is_result(files[0], work.parameters):
            work.draft.leave(files, "is a result of the request, and overlaps no other file")
            continue
        ordered = by_size(files)
        work.draft.leave(files, "is merged in a later step, after earlier jobs")
        for step in forced_merges(ordered, work.options.width):
            whole, size = len(step) == len(files), format_bytes(total_bytes([*step]))
            what = "that overlap each other" if len(files) > 1 else "that overlap no other file"
            work.rewrite(
                step,
                level if whole else 0,
                f"a request rewrites all: {format_count(len(step), 'file')} of {size} {what}",
                work.cuts(step) if whole else (),
            )


def _level_for(size_bytes: int, options: LeveledOptions) -> int:
    """Return the first level whose target size is large enough."""
    levels = range(1, LEVEL_MAX)
    return next((level for level in levels if options.target_bytes(level) >= size_bytes), LEVEL_MAX)
