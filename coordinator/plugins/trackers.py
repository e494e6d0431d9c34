"""Built-in backlog trackers; entry point group `neve.trackers`.

A tracker holds one tablet and computes how many bytes its planner still has to rewrite:

    size-tiered   in two modes; the basis of other trackers
    leveled       for planner leveled
    time-window   for planners with time windows: time-window and date-tiered
    ratio         for planner ratio
    fixed, none   for planners without a tracker
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import ceil, e, floor, fsum, inf, log1p, log2
from typing import Generic, TypeVar

from common.model.file import DataFile
from common.model.table import BACKLOG_MODES, TableSettings
from common.spi.controller import BacklogTracker, PartialOutput, WorkUnderWay
from common.spi.options import of_table, option, option_names, read_options, settings_of
from coordinator.plugins.planners.leveled import LEVEL_MAX, level_of
from coordinator.plugins.planners.ratio import RatioRule, SizedFile, find_set, rule_of
from coordinator.plugins.planners.size_tiered import TierOptions, buckets, check_tier_options
from coordinator.plugins.planners.time_window import TimeWindowOptions, window_start

# -------------------------------------------------------------------------------------- Size-tiered
# The backlog of size-tiered compaction, in two modes.
#
# A byte of a file of size S is rewritten once per tier, up to the tier of the whole tablet of T
# bytes. It therefore needs log4(T / S) rewrites, where 4 is the number of files merged per tier.
#
# `seed`, from the note on ScyllaDB's controller, counts all files. With E = S - C for a file with C
# bytes already rewritten, and W for files that are being written:
#
#     backlog = sum of E log4(T / S) + sum of W log4(T / W)
#
# T counts finished files only, because a partial output would count the same bytes twice. By this
# formula, even a tablet without possible merges has a backlog.
#
# `interesting`, from current ScyllaDB, counts only the files of tiers that are large enough to be
# merged, and no outputs. It is 0 if there is no work, and falls linearly while a job runs.
# Controllers use this mode.
#
# Sums are kept relative to a reference near T, because the difference of two large numbers loses
# precision. They are recomputed after many changes.

SEED, INTERESTING = BACKLOG_MODES
LOG_BASE = 4.0
"""Number of files that are merged into one of the next tier."""
SUMMED_ANEW_AFTER = 1024
"""Number of changes after which sums are recomputed; the number of files if that is larger."""
EXACT_UP_TO = 64
"""Up to this number of files, sums are recomputed at each read after a change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeTieredBacklogOptions(TierOptions):
    """Options of the tracker; the tier options are those of the planner."""

    log_base: float = option(LOG_BASE, above=1)
    file_tax_bytes: int = option(0, at_least=0)
    """Added to the size of each counted file in mode `interesting`, because tiny files are work
    too.
    """


OptionsType = TypeVar("OptionsType", bound=SizeTieredBacklogOptions)


# -------------------------------------------------------------------------------- Sums of mode seed


class TierSums:
    """The part of the `seed` formula that depends only on files: T, and the sum of S log S.

    Adding and removing a file take constant time.
    """

    def __init__(self, log_base: float) -> None:
        self._scale = 1.0 / log2(log_base)
        self._sizes: dict[str, int] = {}
        self._reference = 1
        """Reference size, near T."""
        self._weighted = 0.0
        """Sum of S log(S / reference)."""
        self._changes = 0
        self.total_bytes = 0

    def add(self, path: str, size_bytes: int) -> None:
        """Add a file; files of 0 bytes are ignored."""
        self.remove(path)
        if size_bytes > 0:
            self._sizes[path] = size_bytes
            self.total_bytes += size_bytes
            self._weighted += self._weight(size_bytes)
            self._changes += 1

    def remove(self, path: str) -> None:
        """Remove a file if it exists."""
        size_bytes = self._sizes.pop(path, 0)
        if size_bytes:
            self.total_bytes -= size_bytes
            self._weighted -= self._weight(size_bytes)
            self._changes += 1

    def backlog_bytes(self, read: Mapping[str, int], written: Iterable[int]) -> float:
        """Return the backlog by the `seed` formula.

        Args:
            read: Path → rewritten bytes of the file.
            written: Written bytes of each output so far.
        """
        self._sum_anew()
        if not self.total_bytes:
            return 0.0
        effective, weighted = self.total_bytes, self._weighted
        for path, done_bytes in read.items():
            size_bytes = self._sizes.get(path, 0)
            done_bytes = min(max(done_bytes, 0), size_bytes)
            if done_bytes:
                effective -= done_bytes
                weighted -= done_bytes * self._exponent(size_bytes)
        for size_bytes in written:
            if size_bytes > 0:
                effective += size_bytes
                weighted += self._weight(size_bytes)
        if effective <= 0:
            return 0.0
        return max(0.0, effective * self._exponent(self.total_bytes) - weighted)

    def _sum_anew(self) -> None:
        """Set the reference to T and recompute the sum; rounding errors then do not accumulate."""
        if not self._changes:
            return
        most = max(SUMMED_ANEW_AFTER, len(self._sizes))
        near = self._reference <= 2 * self.total_bytes and self.total_bytes <= 2 * self._reference
        if len(self._sizes) <= EXACT_UP_TO or self._changes > most or not near:
            self._reference = max(1, self.total_bytes)
            self._weighted = fsum(map(self._weight, self._sizes.values()))
            self._changes = 0

    def _weight(self, size_bytes: int) -> float:
        return size_bytes * self._exponent(size_bytes)

    def _exponent(self, size_bytes: int) -> float:
        """Return log(size / reference), which is also accurate for nearly equal sizes."""
        beyond = (size_bytes - self._reference) / self._reference
        ratio = log1p(beyond) * log2(e) if abs(beyond) < 0.5 else log2(size_bytes / self._reference)
        return ratio * self._scale


class SeedTracker:
    """Backlog by the `seed` formula."""

    def __init__(self, log_base: float = LOG_BASE) -> None:
        self._sums = TierSums(log_base)

    def add(self, file: DataFile) -> None:
        """Add a file."""
        self._sums.add(file.path, file.size_bytes)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._sums.remove(path)

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        written = (output.size_bytes for output in work.outputs)
        return self._sums.backlog_bytes(work.read_bytes, written)


# --------------------------------------------------------------------------------- Mode interesting


class InterestingTracker:
    """Backlog of the tiers that are large enough to be merged.

    Tiers are recomputed at the first read after files were added or removed.
    """

    def __init__(self, options: SizeTieredBacklogOptions) -> None:
        self._options = options
        self._files: dict[str, DataFile] = {}
        self._rewrites: dict[str, float] = {}
        """Counted file → expected number of rewrites of its bytes."""
        self._counted_bytes = 0
        self._owed_bytes = 0.0
        self._valid_until_s = -inf

    def add(self, file: DataFile) -> None:
        """Add a file."""
        self._files[file.path] = file
        self._valid_until_s = -inf

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self._files.pop(path, None) is not None:
            self._valid_until_s = -inf

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        if work.now_s >= self._valid_until_s:
            self._form_tiers(work.now_s)
        done_bytes, done_owed = 0, 0.0
        for path, read_bytes in work.read_bytes.items():
            if (rewrites := self._rewrites.get(path)) is not None:
                read_bytes = min(max(read_bytes, 0), self._files[path].size_bytes)
                done_bytes += read_bytes
                done_owed += read_bytes * rewrites
        if done_bytes >= self._counted_bytes:
            return 0.0
        return max(0.0, self._owed_bytes - done_owed)

    def _form_tiers(self, now_s: float) -> None:
        options = self._options
        files = [file for file in self._files.values() if file.size_bytes > 0]
        counted = [
            file
            for tier in buckets(files, options, now_s)
            if len(tier) >= options.min_threshold
            for file in tier
        ]
        total_bytes = sum(file.size_bytes for file in files)
        base = log2(options.log_base)
        self._rewrites = {file.path: log2(total_bytes / file.size_bytes) / base for file in counted}
        self._counted_bytes = sum(file.size_bytes for file in counted)
        self._owed_bytes = fsum(
            (file.size_bytes + options.file_tax_bytes) * self._rewrites[file.path]
            for file in counted
        )
        # The tier of tiny files can change when one of them reaches the minimum age.
        ages = (
            file.added_at_s + options.min_file_age_s
            for file in files
            if file.size_bytes < options.min_file_bytes and file.added_at_s > 0
        )
        self._valid_until_s = min((at_s for at_s in ages if at_s > now_s), default=inf)


# -------------------------------------------------------------------------------------- The plug-in


def tier_tracker(options: SizeTieredBacklogOptions) -> BacklogTracker:
    """Return a tracker for the mode in the options."""
    is_seed = options.backlog_mode == SEED
    return SeedTracker(options.log_base) if is_seed else InterestingTracker(options)


class TierTrackers(Generic[OptionsType]):
    """Factory of trackers that use tiers: of a tablet, a level or a window."""

    def __init__(
        self, name: str, kind: type[OptionsType], make: Callable[[OptionsType], BacklogTracker]
    ) -> None:
        """Create a factory.

        Args:
            name: Name of the trackers, for error messages.
            kind: The options dataclass.
            make: Returns the tracker of a tablet without files.
        """
        self.option_names = option_names(kind)
        self.setting_names = settings_of(kind)
        self._name, self._kind, self._make = f"tracker {name}", kind, make

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files; see `TrackerPlugin`."""
        parsed = read_options(self._kind, self._name, options, settings)
        check_tier_options(self._name, parsed)
        return self._make(parsed)


class SizeTieredTrackers(TierTrackers[SizeTieredBacklogOptions]):
    """Factory of trackers for size-tiered compaction; see the module."""

    def __init__(self) -> None:
        """Create the factory."""
        super().__init__("size-tiered", SizeTieredBacklogOptions, tier_tracker)


# -------------------------------------------------------------------------------------------- Fixed
# The backlog of planners without a tracker: a constant, or 0, regardless of the files.


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBacklogOptions:
    """The constant backlog."""

    backlog_bytes: int = option(0, at_least=0)


class FixedTracker:
    """A tracker with a constant backlog."""

    def __init__(self, backlog_bytes: int = 0) -> None:
        self._backlog_bytes = backlog_bytes

    def add(self, file: DataFile) -> None:
        """Change nothing."""

    def remove(self, path: str) -> None:
        """Change nothing."""

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the constant."""
        return float(self._backlog_bytes)


class FixedTrackers:
    """Factory of trackers with the option `backlog_bytes` as backlog."""

    option_names = option_names(FixedBacklogOptions)
    setting_names: frozenset[str] = frozenset()

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files; see `TrackerPlugin`."""
        parsed = read_options(FixedBacklogOptions, "tracker fixed", options)
        return FixedTracker(parsed.backlog_bytes)


class NullTrackers(FixedTrackers):
    """Factory of trackers with backlog 0."""

    option_names: frozenset[str] = frozenset()

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files; see `TrackerPlugin`."""
        read_options(_NoOptions, "tracker none", options)
        return FixedTracker()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NoOptions:
    """No options."""


# ------------------------------------------------------------------------------------------ Leveled
# The backlog of leveled compaction, after ScyllaDB.
#
# Level 0 has the backlog of size-tiered compaction of its files. Each higher level has a target
# size, a tenth of the next level's; the highest level holds the rest. Bytes above a level's target
# move up and rewrite the overlapping data, up to ten files of the next level. They then count as
# part of the next level and may move on.
#
#     backlog += excess x min(10, ceil(bytes of the next level / bytes of a file))
#
# Bytes that a job has read no longer count on their level; written bytes count on the output's
# level. A level with a negative size counts as empty.


SHARE_OF_HIGHEST = 1.111
"""Size of a full tree relative to its highest level, if each level is a tenth of the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeveledBacklogOptions(SizeTieredBacklogOptions):
    """Options of the tracker; the tier options apply to level 0."""

    max_file_bytes: int = of_table("target_bytes", at_least=1)
    fan_out: int = option(10, at_least=2)


def leveled_backlog_bytes(
    levels: Mapping[int, int], max_file_bytes: int, fan_out: int = 10
) -> float:
    """Return the backlog of the levels, without level 0's own merges.

    Args:
        levels: Level → bytes, including the progress of running jobs.
        max_file_bytes: Maximum size of one file.
        fan_out: Size ratio of two adjacent levels.
    """
    held = {level: size for level, size in levels.items() if size > 0}
    if not held:
        return 0.0
    highest = max(held)
    most_bytes = ceil(sum(held.values()) / SHARE_OF_HIGHEST)
    backlog = 0.0
    for level in range(highest):
        target = max(ceil(most_bytes / fan_out ** (highest - level)), max_file_bytes)
        excess = held.get(level, 0) - target
        if excess > 0:
            above = held.get(level + 1, 0)
            backlog += excess * min(fan_out, ceil(above / max_file_bytes))
            held[level + 1] = above + excess
    return backlog


class LeveledTracker:
    """Backlog of one leveled tablet."""

    def __init__(self, options: LeveledBacklogOptions) -> None:
        self._options = options
        self._arrived = tier_tracker(options)
        """Tracker of level 0."""
        self._files: dict[str, tuple[int, int]] = {}
        """Path → level and bytes."""
        self._levels: dict[int, int] = {}

    def add(self, file: DataFile) -> None:
        """Add a file to the level in its tag."""
        self.remove(file.path)
        level = level_of(file)
        self._files[file.path] = (level, file.size_bytes)
        self._levels[level] = self._levels.get(level, 0) + file.size_bytes
        if level == 0:
            self._arrived.add(file)

    def remove(self, path: str) -> None:
        """Remove a file."""
        level, size_bytes = self._files.pop(path, (0, 0))
        if size_bytes:
            self._levels[level] -= size_bytes
        self._arrived.remove(path)

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        levels = dict(self._levels)
        for path, read_bytes in work.read_bytes.items():
            level, size_bytes = self._files.get(path, (0, 0))
            if size_bytes:
                levels[level] -= min(max(read_bytes, 0), size_bytes)
        arrived = list[PartialOutput]()
        for output in work.outputs:
            level = min(max(output.level, 0), LEVEL_MAX)
            levels[level] = levels.get(level, 0) + output.size_bytes
            if level == 0:
                arrived.append(output)
        started = WorkUnderWay(read_bytes=work.read_bytes, outputs=tuple(arrived), now_s=work.now_s)
        options = self._options
        return self._arrived.backlog_bytes(started) + leveled_backlog_bytes(
            levels, options.max_file_bytes, options.fan_out
        )


class LeveledTrackers(TierTrackers[LeveledBacklogOptions]):
    """Factory of trackers for leveled compaction; see the module."""

    def __init__(self) -> None:
        """Create the factory."""
        super().__init__("leveled", LeveledBacklogOptions, LeveledTracker)


# -------------------------------------------------------------------------------------------- Ratio
# The backlog of the ratio planner: the bytes that it reads until no job is left. The tracker runs
# the planner's rule on the file sizes until no set qualifies, and assumes that outputs are as large
# as the sums of their inputs. Bytes that running jobs have read are subtracted. In mode `seed` the
# backlog is that of size-tiered compaction with merges of four.


def bytes_until_rest(sizes: Iterable[tuple[int, str]], ratio: float, max_files: int) -> int:
    """Return how many bytes merges read until no set of files qualifies.

    Args:
        sizes: Size in bytes and path of each file.
        ratio: The planner's ratio.
        max_files: Maximum number of input files of a job.
    """
    pool: list[SizedFile] = sorted((size, 0, path) for size, path in sizes)
    owed_bytes = merges = 0
    while chosen := find_set(pool, ratio, max_files):
        merged = sum(size for size, _, _ in chosen)
        start = bisect_left(pool, chosen[0])
        del pool[start : start + len(chosen)]
        merges += 1
        insort(pool, (merged, merges, ""))
        owed_bytes += merged
    return owed_bytes


class RatioTracker:
    """Backlog of one tablet under the ratio planner."""

    def __init__(self, rule: RatioRule) -> None:
        self._rule = rule
        self._sizes: dict[str, int] = {}
        self._owed_bytes: int | None = 0
        """Cached backlog; None after files were added or removed."""

    def add(self, file: DataFile) -> None:
        """Add a file."""
        self._sizes[file.path] = file.size_bytes
        self._owed_bytes = None

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self._sizes.pop(path, None) is not None:
            self._owed_bytes = None

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        if self._owed_bytes is None:
            sizes = ((size, path) for path, size in self._sizes.items())
            self._owed_bytes = bytes_until_rest(sizes, self._rule.ratio, self._rule.max_files)
        done_bytes = sum(
            min(max(read_bytes, 0), self._sizes.get(path, 0))
            for path, read_bytes in work.read_bytes.items()
        )
        return float(max(0, self._owed_bytes - done_bytes))


class RatioTrackers:
    """Factory of trackers for the ratio planner; see the module."""

    option_names = option_names(RatioRule)
    setting_names = settings_of(RatioRule)

    def tracker(self, settings: TableSettings, options: Mapping[str, object]) -> BacklogTracker:
        """Return the tracker of a tablet without files; see `TrackerPlugin`."""
        rule = rule_of(settings, options)
        return SeedTracker() if rule.backlog_mode == SEED else RatioTracker(rule)


# ------------------------------------------------------------------------------------------ Windows
# The backlog of tablets with time windows: each window is a separate size-tiered tablet.
#
# `time-window` uses windows of equal length, aligned to the epoch. `date-tiered`, Cassandra's older
# rule, uses windows that grow with age: enough adjacent windows of one length become one window of
# the next length. These windows move with the newest file, so they are recomputed after files are
# added or removed. Névé has no planner of that name; the tracker supports third-party planners.


DAY_S = 86_400.0
WINDOWS_MAX = 100_000
"""Maximum number of date-tiered windows; older files are in no window."""

# -------------------------------------------------------------------------------- Sums over windows


class _Windows:
    """A size-tiered tracker per window with files, and its cached backlog without running jobs."""

    def __init__(self, options: SizeTieredBacklogOptions) -> None:
        self._options = options
        self._trackers: dict[float, BacklogTracker] = {}
        self._window_of: dict[str, float] = {}
        self._count: dict[float, int] = {}
        self._quiet: dict[float, float] = {}
        self._changed: set[float] = set()
        self._quiet_sum = 0.0

    def add(self, file: DataFile, window: float) -> None:
        self.remove(file.path)
        if window not in self._trackers:
            self._trackers[window] = tier_tracker(self._options)
        self._trackers[window].add(file)
        self._window_of[file.path] = window
        self._count[window] = self._count.get(window, 0) + 1
        self._changed.add(window)

    def remove(self, path: str) -> None:
        window = self._window_of.pop(path, None)
        if window is None:
            return
        self._count[window] -= 1
        self._changed.add(window)
        if self._count[window]:
            self._trackers[window].remove(path)
        else:
            del self._trackers[window], self._count[window]

    def backlog_bytes(
        self, work: WorkUnderWay, window_of: Callable[[PartialOutput], float | None]
    ) -> float:
        """Return the total backlog; recompute only windows that changed or have running jobs.

        Args:
            work: Work in progress in all windows.
            window_of: Returns the window of an output; None: no window.
        """
        self._read_changed(work.now_s)
        busy: dict[float, tuple[dict[str, int], list[PartialOutput]]] = {}
        for path, read_bytes in work.read_bytes.items():
            if (window := self._window_of.get(path)) is not None:
                busy.setdefault(window, ({}, []))[0][path] = read_bytes
        for output in work.outputs:
            window = window_of(output)
            # A window with only unfinished files has no backlog.
            if window is not None and window in self._trackers:
                busy.setdefault(window, ({}, []))[1].append(output)
        total = self._quiet_sum
        for window, (inputs, outputs) in busy.items():
            share = WorkUnderWay(read_bytes=inputs, outputs=tuple(outputs), now_s=work.now_s)
            total += self._trackers[window].backlog_bytes(share) - self._quiet[window]
        return max(0.0, total)

    def _read_changed(self, now_s: float) -> None:
        if not self._changed:
            return
        for window in self._changed:
            tracker = self._trackers.get(window)
            if tracker is None:
                self._quiet.pop(window, None)
            else:
                self._quiet[window] = tracker.backlog_bytes(WorkUnderWay(now_s=now_s))
        self._changed.clear()
        self._quiet_sum = fsum(self._quiet.values())


# ---------------------------------------------------------------------------- Windows of one length


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindowBacklogOptions(SizeTieredBacklogOptions):
    """Options of the tracker: the planner's windows, and the tiers in each window."""

    window_unit: str = option("days", one_of=("minutes", "hours", "days"))
    window_size: int = option(1, at_least=1, at_most=1000)
    window_s: float | None = option(None, at_least=1)

    @property
    def length_s(self) -> float:
        """Length of a window, in seconds."""
        windows = TimeWindowOptions(
            window_unit=self.window_unit, window_size=self.window_size, window_s=self.window_s
        )
        return windows.length_s


class TimeWindowTracker:
    """Backlog of one tablet with equal windows; a file belongs to the window of its latest row."""

    def __init__(self, options: TimeWindowBacklogOptions) -> None:
        self._window_s = options.length_s
        self._windows = _Windows(options)

    def add(self, file: DataFile) -> None:
        """Add a file."""
        self._windows.add(file, window_start(file.time_max_s or 0.0, self._window_s))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._windows.remove(path)

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        return self._windows.backlog_bytes(
            work, lambda output: window_start(output.time_max_s, self._window_s)
        )


class TimeWindowTrackers(TierTrackers[TimeWindowBacklogOptions]):
    """Factory of trackers for time-window compaction; see the module."""

    def __init__(self) -> None:
        """Create the factory."""
        super().__init__("time-window", TimeWindowBacklogOptions, TimeWindowTracker)


# ----------------------------------------------------------------------- Windows that grow with age


@dataclass(frozen=True, slots=True, kw_only=True)
class DateTieredBacklogOptions(SizeTieredBacklogOptions):
    """Options of the tracker; the tier options apply to each window."""

    base_s: float = option(60.0, at_least=0.001)
    """Length of the newest window."""
    growth: int = option(0, at_least=0)
    """Number of windows of one length that form one of the next; 0: `min_threshold`."""
    max_window_s: float = option(DAY_S, at_least=0.001)
    max_age_s: float = option(0.0, at_least=0)
    """Files whose latest row is older are ignored; 0: no limit."""
    now_s: float | None = option(None)
    """The newest time; None: the time of the latest row."""


@dataclass(frozen=True, slots=True, order=True)
class DateWindow:
    """A window: times from `start` to before `end`."""

    start: float
    end: float


def date_windows(
    now: float, base: float, growth: int, longest: float = inf
) -> Iterator[DateWindow]:
    """Yield windows backwards from `now`, without end.

    Args:
        now: The newest time, in any unit.
        base: Length of the newest window.
        growth: Number of adjacent windows of one length that form one of the next.
        longest: Maximum length of a window.
    """
    size, number = base, floor(now / base)
    while True:
        yield DateWindow(number * size, (number + 1) * size)
        if number % growth > 0 or size * growth > longest:
            number -= 1
        else:
            size, number = size * growth, number // growth - 1


def in_date_windows(
    times: Iterable[tuple[str, float]], windows: Iterable[DateWindow]
) -> list[tuple[DateWindow, list[str]]]:
    """Return windows with files; windows and files are ordered newest first.

    Args:
        times: Name and time of each file. Files newer than the first window are left out.
        windows: The windows, the newest first.
    """
    by_window: list[tuple[DateWindow, list[str]]] = []
    walk = iter(windows)
    window = next(walk, None)
    for name, at in sorted(times, key=lambda item: (-item[1], item[0])):
        while window is not None and at < window.start:
            window = next(walk, None)
        if window is None:
            break
        if at < window.end:
            if not by_window or by_window[-1][0] != window:
                by_window.append((window, []))
            by_window[-1][1].append(name)
    return by_window


class DateTieredTracker:
    """Backlog of one tablet with growing windows; a file belongs to the window of its first row."""

    def __init__(self, options: DateTieredBacklogOptions) -> None:
        self._options = options
        self._files: dict[str, DataFile] = {}
        self._placed: Sequence[DateWindow] = ()
        self._windows: _Windows | None = None
        """None after files were added or removed."""

    def add(self, file: DataFile) -> None:
        """Add a file."""
        self._files[file.path] = file
        self._windows = None

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self._files.pop(path, None) is not None:
            self._windows = None

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes that remain to be rewritten."""
        if self._windows is None:
            self._windows = self._placed_anew()
        return self._windows.backlog_bytes(work, self._window_of)

    def _placed_anew(self) -> _Windows:
        """Assign files to windows relative to the newest file, independent of the clock."""
        options, windows = self._options, _Windows(self._options)
        now_s = options.now_s
        if now_s is None:
            now_s = max((file.time_max_s or 0.0 for file in self._files.values()), default=0.0)
        oldest_s = now_s - options.max_age_s if options.max_age_s else -inf
        kept = {
            path: file for path, file in self._files.items() if (file.time_max_s or 0.0) >= oldest_s
        }
        growth = options.growth or options.min_threshold
        walk = islice(
            date_windows(now_s, options.base_s, growth, options.max_window_s), WINDOWS_MAX
        )
        times = ((path, file.time_min_s or 0.0) for path, file in kept.items())
        placed = in_date_windows(times, walk)
        for window, paths in placed:
            for path in paths:
                windows.add(kept[path], window.start)
        self._placed = [window for window, _ in placed]
        return windows

    def _window_of(self, output: PartialOutput) -> float | None:
        at_s = output.time_max_s
        starts = (window.start for window in self._placed if window.start <= at_s < window.end)
        return next(starts, None)


class DateTieredTrackers(TierTrackers[DateTieredBacklogOptions]):
    """Factory of trackers for date-tiered compaction; see the module."""

    def __init__(self) -> None:
        """Create the factory."""
        super().__init__("date-tiered", DateTieredBacklogOptions, DateTieredTracker)
