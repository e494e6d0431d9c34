"""Results of a run: samples over time, wait times of jobs, totals, and the backlog."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, log2

from common.errors import PluginError
from common.model.tablet import TabletId
from common.spi.controller import WorkUnderWay
from neve.simulate.tablet import SimulatedTablet

BIN_WIDTH = log2(1.02)
WAIT_LEAST_S = 0.001
SETTLED_AFTER = 0.1
"""Means exclude this first share of the run, in which tables fill."""


class WaitHistogram:
    """A histogram of times with bins of 2 %, so that memory use is independent of their number."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self.count = 0
        self.longest_s = 0.0

    def note(self, wait_s: float) -> None:
        """Record a time."""
        at = 0 if wait_s <= WAIT_LEAST_S else ceil(log2(wait_s / WAIT_LEAST_S) / BIN_WIDTH)
        self._bins[at] += 1
        self.count += 1
        self.longest_s = max(self.longest_s, wait_s)

    def percentile_s(self, share: float) -> float:
        """Return the percentile of the times; the result is at most 2 % too long."""
        left = share * self.count
        for at, count in sorted(self._bins.items()):
            left -= count
            if left <= 0:
                bound_s = WAIT_LEAST_S * 2 ** (at * BIN_WIDTH) if at else 0.0
                return min(self.longest_s, bound_s)
        return self.longest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state at one moment. Totals are since the beginning of the run."""

    at_s: float
    arrived_bytes: int
    rewritten_bytes: int
    stored_bytes: int
    live_bytes: int
    """Bytes that would be left if each tablet were merged into one file."""
    files: int
    files_per_tablet: float
    files_per_key: float
    """Mean number of files of a tablet that may hold a key."""
    backlog_bytes: int
    """As measured by the trackers."""
    queued_jobs: int
    queued_bytes: int
    oldest_s: float
    """How long the oldest queued job has waited."""
    running_jobs: int
    compactors: int
    """Includes starting compactors."""
    wasted_bytes: int = 0
    """Input bytes that failed attempts had moved."""
    open_requests: int = 0
    """User requests that are not finished."""

    @property
    def write_amplification(self) -> float:
        """Bytes written by jobs per byte that arrived."""
        return self.rewritten_bytes / self.arrived_bytes if self.arrived_bytes else 0.0

    @property
    def space_amplification(self) -> float:
        """Bytes stored per byte that a reader could see."""
        return self.stored_bytes / self.live_bytes if self.live_bytes else 1.0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """All results of one run."""

    variant: str
    planners: tuple[str, ...]
    length_s: float
    samples: list[Sample] = field(default_factory=list)
    waits: WaitHistogram = field(default_factory=WaitHistogram)
    """Wait times of jobs, from the first plan with the job to its start."""
    jobs: Counter[str] = field(default_factory=Counter)
    """Finished jobs by action: rewrite, drop, move."""
    initial_bytes: int = 0
    arrived_files: int = 0
    arrived_bytes: int = 0
    rewritten_bytes: int = 0
    read_bytes: int = 0
    """Bytes that jobs read."""
    dropped_bytes: int = 0
    """Input bytes minus output bytes."""
    stored_bytes: int = 0
    files: int = 0
    files_max: int = 0
    """Largest number of files that a tablet had at one moment."""
    plans: int = 0
    deferred: int = 0
    """How often a full queue rejected or evicted a job."""
    compactor_s: float = 0.0
    busy_slot_s: float = 0.0
    ended_s: float = 0.0
    requests_done: int = 0
    requests_failed: int = 0
    request_waits: WaitHistogram = field(default_factory=WaitHistogram)
    """Times from user requests to the start of their first job."""
    request_times: WaitHistogram = field(default_factory=WaitHistogram)
    """Times from user requests to their end."""
    failed_attempts: int = 0
    lost_compactors: int = 0
    lost_attempts: int = 0
    """Attempts that ended with their compactor."""
    wasted_bytes: int = 0
    """Input bytes that failed attempts had moved."""
    at_rest: bool = True
    """Whether all work was done at the end."""

    @property
    def write_amplification(self) -> float:
        """Bytes written by jobs per byte that arrived."""
        return self.rewritten_bytes / self.arrived_bytes if self.arrived_bytes else 0.0

    @property
    def space_amplification(self) -> float:
        """Mean bytes stored per byte that a reader could see."""
        return self._mean([(sample.at_s, sample.space_amplification) for sample in self.samples])

    @property
    def files_per_tablet(self) -> float:
        """Mean number of files of a tablet, which a scan of the whole tablet opens."""
        return self._mean([(sample.at_s, sample.files_per_tablet) for sample in self.samples])

    @property
    def files_per_key(self) -> float:
        """Mean number of files that may hold a key."""
        return self._mean([(sample.at_s, sample.files_per_key) for sample in self.samples])

    @property
    def backlog_bytes(self) -> float:
        """Mean backlog, in bytes."""
        return self._mean([(sample.at_s, float(sample.backlog_bytes)) for sample in self.samples])

    @property
    def backlog_bytes_max(self) -> int:
        """Largest backlog of any sample."""
        return max((sample.backlog_bytes for sample in self.samples), default=0)

    @property
    def drain_s(self) -> float:
        """How long work continued after the end of the arrivals."""
        return max(0.0, self.ended_s - self.length_s)

    @property
    def compactor_hours(self) -> float:
        """Compactor-hours, including starting and idle compactors."""
        return self.compactor_s / 3600.0

    def _mean(self, values: list[tuple[float, float]]) -> float:
        """Return the time-weighted mean while files arrive, without the initial phase."""
        inside = [value for value in values if value[0] <= self.length_s]
        settled = [
            sample for sample in inside if sample[0] >= self.length_s * SETTLED_AFTER
        ] or inside
        if len(settled) < 2:
            return settled[0][1] if settled else 0.0
        area = sum(
            (later[0] - earlier[0]) * (later[1] + earlier[1]) / 2
            for earlier, later in pairwise(settled)
        )
        return area / (settled[-1][0] - settled[0][0])


# --------------------------------------------------------------------------- Backlog and live bytes


Progress = Mapping[TabletId, Mapping[str, int]]
"""Tablet → path of an input → rewritten bytes of that input."""


class TabletMeasures:
    """Backlog and live bytes of all tablets at the last measurement."""

    def __init__(self) -> None:
        self._changed: dict[SimulatedTablet, None] = {}
        self._backlogs: dict[SimulatedTablet, float] = {}
        self._live: dict[SimulatedTablet, float] = {}

    @property
    def backlog_bytes(self) -> float:
        """Bytes that remain to be rewritten."""
        return sum(self._backlogs.values())

    @property
    def live_bytes(self) -> float:
        """Bytes that would be left if each tablet were merged into one file."""
        return sum(self._live.values())

    def note_change(self, tablet: SimulatedTablet) -> None:
        """Include a tablet in the next measurement."""
        self._changed[tablet] = None

    def measure(self, progress: Progress, now_s: float) -> None:
        """Measure tablets that have changed, run jobs, or have a TTL.

        Raises:
            PluginError: A tracker fails.
        """
        changed, self._changed = self._changed, {}
        for tablet in changed:
            self._live[tablet] = tablet.live_bytes(now_s)
            backlog = _backlog_bytes(tablet, progress.get(tablet.id, {}), now_s)
            if backlog:
                self._backlogs[tablet] = backlog
            else:
                self._backlogs.pop(tablet, None)
            if tablet.running or tablet.rule.settings.ttl_s is not None:
                self._changed[tablet] = None


def _backlog_bytes(tablet: SimulatedTablet, read_bytes: Mapping[str, int], now_s: float) -> float:
    rule = tablet.rule
    if rule.tracker is None:
        under_way = sum(job.size_bytes for job in tablet.running.values())
        return tablet.planned_bytes + under_way - sum(read_bytes.values())
    name, plugin = rule.tracker
    try:
        options = {key: value for key, value in rule.options.items() if key in plugin.option_names}
        tracker = plugin.tracker(rule.settings, options)
        for file in tablet.files.values():
            tracker.add(file)
        return tracker.backlog_bytes(WorkUnderWay(read_bytes=read_bytes, now_s=now_s))
    except Exception as error:
        raise PluginError(f"tracker {name}: {type(error).__name__}: {error}") from error
