"""The backlog of tablets in windows of time: each window is a size-tiered tablet of its own.

`time-window` has windows of one length, counted from the epoch. `date-tiered`, Cassandra's older
rule, has windows that get longer with age: as soon as enough of one length lie beside each other,
they are one of the next. Since those move with the newest file, its windows are formed anew when
files came or went. Névé has no planner of that name; the tracker is for whoever brings one.
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
"""Walked by date-tiered compaction; what is older than that is in no window."""

# -------------------------------------------------------------------------------- Sums over windows


class _Windows:
    """A size-tiered tracker for each window that has files, and what they owe when all is quiet."""

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
        """Return the sum; windows without work under way are not read again.

        Args:
            work: Of all windows.
            window_of: Where an output belongs; None: nowhere.
        """
        self._read_changed(work.now_s)
        busy: dict[float, tuple[dict[str, int], list[PartialOutput]]] = {}
        for path, read_bytes in work.read_bytes.items():
            if (window := self._window_of.get(path)) is not None:
                busy.setdefault(window, ({}, []))[0][path] = read_bytes
        for output in work.outputs:
            window = window_of(output)
            # A window of nothing but unfinished files owes nothing.
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


# -------------------------------------------------------------------------- Windows of one length


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindowBacklogOptions(SizeTieredBacklogOptions):
    """Numbers that the tracker goes by: the planner's windows, and tiers in each of them."""

    window_unit: str = option("days", one_of=("minutes", "hours", "days"))
    window_size: int = option(1, at_least=1, at_most=1000)
    window_s: float | None = option(None, at_least=1)

    @property
    def length_s(self) -> float:
        """Length of a window."""
        own = TimeWindowOptions(
            window_unit=self.window_unit, window_size=self.window_size, window_s=self.window_s
        )
        return own.length_s


class TimeWindowTracker:
    """Backlog of one tablet in windows of one length; a file is where its latest row is."""

    def __init__(self, options: TimeWindowBacklogOptions) -> None:
        self._window_s = options.length_s
        self._windows = _Windows(options)

    def add(self, file: DataFile) -> None:
        """Note a file."""
        self._windows.add(file, window_start(file.time_max_s or 0.0, self._window_s))

    def remove(self, path: str) -> None:
        """Forget a file."""
        self._windows.remove(path)

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes still to be rewritten."""
        return self._windows.backlog_bytes(
            work, lambda output: window_start(output.time_max_s, self._window_s)
        )


class TimeWindowTrackers(TierTrackers[TimeWindowBacklogOptions]):
    """Makes trackers for time-window compaction; see the module."""

    def __init__(self) -> None:
        """Make trackers by the options."""
        super().__init__("time-window", TimeWindowBacklogOptions, TimeWindowTracker)


# ----------------------------------------------------------------------- Windows that grow with age


@dataclass(frozen=True, slots=True, kw_only=True)
class DateTieredBacklogOptions(SizeTieredBacklogOptions):
    """Numbers that the tracker goes by; those of tiers hold in each window."""

    base_s: float = option(60.0, at_least=0.001)
    """Length of the newest window."""
    growth: int = option(0, at_least=0)
    """Windows of a length that make one of the next; 0: `min_threshold`."""
    max_window_s: float = option(DAY_S, at_least=0.001)
    max_age_s: float = option(0.0, at_least=0)
    """Files whose latest row is older are left alone; 0: none are."""
    now_s: float | None = option(None)
    """The newest time; none: that of the latest row."""


@dataclass(frozen=True, slots=True, order=True)
class DateWindow:
    """A window: times from `start` up to `end`, itself not in it."""

    start: float
    end: float


def date_windows(
    now: float, base: float, growth: int, longest: float = inf
) -> Iterator[DateWindow]:
    """Yield windows from now back, the newest first, without an end.

    Args:
        now: The newest time, in any unit.
        base: Length of the newest window.
        growth: Windows of a length beside each other that make one of the next.
        longest: No window is longer.
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
    """Return windows that have files, the newest first, and so are the files of each.

    Args:
        times: Name and time of each file. One newer than the first window is left out.
        windows: The newest first.
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
    """Backlog of one tablet in windows that grow with age; a file is where its first row is."""

    def __init__(self, options: DateTieredBacklogOptions) -> None:
        self._options = options
        self._files: dict[str, DataFile] = {}
        self._placed: Sequence[DateWindow] = ()
        self._windows: _Windows | None = None
        """None: files came or went."""

    def add(self, file: DataFile) -> None:
        """Note a file."""
        self._files[file.path] = file
        self._windows = None

    def remove(self, path: str) -> None:
        """Forget a file."""
        if self._files.pop(path, None) is not None:
            self._windows = None

    def backlog_bytes(self, work: WorkUnderWay) -> float:
        """Return the bytes still to be rewritten."""
        if self._windows is None:
            self._windows = self._placed_anew()
        return self._windows.backlog_bytes(work, self._window_of)

    def _placed_anew(self) -> _Windows:
        """Place files by the newest of them: the clock has no say."""
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
    """Makes trackers for date-tiered compaction; see the module."""

    def __init__(self) -> None:
        """Make trackers by the options."""
        super().__init__("date-tiered", DateTieredBacklogOptions, DateTieredTracker)
