"""The backlog of tablets with time windows: each window is a separate size-tiered tablet.

`time-window` uses windows of equal length, aligned to the epoch. `date-tiered`, Cassandra's older
rule, uses windows that grow with age: enough adjacent windows of one length become one window of
the next length. These windows move with the newest file, so they are recomputed after files are
added or removed. Névé has no planner of that name; the tracker supports third-party planners.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import floor, fsum, inf

from common.model.file import DataFile
from common.spi.options import option
from common.spi.tracker import BacklogTracker, PartialOutput, WorkUnderWay
from coordinator.plugins.planners.time_window import TimeWindowOptions, window_start
from coordinator.plugins.trackers.size_tiered import (
    SizeTieredBacklogOptions,
    TierTrackers,
    tier_tracker,
)

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
        for window, (read, outputs) in busy.items():
            own = WorkUnderWay(read_bytes=read, outputs=tuple(outputs), now_s=work.now_s)
            total += self._trackers[window].backlog_bytes(own) - self._quiet[window]
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
        own = TimeWindowOptions(
            window_unit=self.window_unit, window_size=self.window_size, window_s=self.window_s
        )
        return own.length_s


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
    found: list[tuple[DateWindow, list[str]]] = []
    walk = iter(windows)
    window = next(walk, None)
    for name, at in sorted(times, key=lambda each: (-each[1], each[0])):
        while window is not None and at < window.start:
            window = next(walk, None)
        if window is None:
            break
        if at < window.end:
            if not found or found[-1][0] != window:
                found.append((window, []))
            found[-1][1].append(name)
    return found


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
        found = (each for each in self._placed if each.start <= output.time_max_s < each.end)
        window = next(found, None)
        return None if window is None else window.start


class DateTieredTrackers(TierTrackers[DateTieredBacklogOptions]):
    """Factory of trackers for date-tiered compaction; see the module."""

    def __init__(self) -> None:
        """Create the factory."""
        super().__init__("date-tiered", DateTieredBacklogOptions, DateTieredTracker)
