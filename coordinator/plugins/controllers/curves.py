"""Controllers whose shares follow a measure of the backlog.

* `control-points` is ScyllaDB's compaction controller (`backlog_controller.hh`): shares are a
  line through points over `backlog / memory`, and level behind the last point.
* `drain-time` asks for what drains the backlog within a goal beside what arrives:

      needed bytes/s = backlog / goal + arrivals
      shares         = 1000 · needed / (bytes/s of all slots)

  While it holds, backlog' = arrivals - needed = -backlog / goal: the backlog decays with the goal
  as its time constant, so the loop neither overshoots nor leaves a rest.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite

from common.errors import ConfigError
from common.spi.controller import (
    SHARES_FULL,
    ControlDecision,
    Controller,
    ControlReadings,
    ShareClass,
)
from common.spi.options import option, option_names, read_options
from common.units import format_bytes, format_count, format_duration

SCYLLA_POINTS = ((0.0, 50.0), (1.5, 100.0), (30.0, 1000.0))
"""ScyllaDB's points of compaction. Little data that is overwritten much needs the floor."""
POINTS_MAX = 32


# ------------------------------------------------------------------------------- A line with points


@dataclass(frozen=True, slots=True)
class ControlPoints:
    """A line from normalised backlog to shares, level behind its last point.

    Always true: backlogs rise strictly from 0, shares are above 0 and never fall.
    """

    points: tuple[tuple[float, float], ...] = SCYLLA_POINTS

    def __post_init__(self) -> None:
        """Refuse points that are no such line."""
        if problem := _problem_of(self.points):
            raise ConfigError(f"controller: points {points_text(self.points)}: {problem}")

    def shares(self, normalized: float) -> float:
        """Return the shares of a backlog; one that is not known gets those of the last point."""
        last = self.points[-1]
        if not isfinite(normalized) or normalized >= last[0]:
            return last[1]
        return _between(self.points, max(0.0, normalized))

    def backlog(self, shares: float) -> float:
        """Return the normalised backlog that has these shares: the inverse.

        Fewer shares than the first point has mean no backlog, more than the last one its backlog.
        """
        line = [(each, backlog) for backlog, each in self.points]
        if shares >= line[-1][0]:
            return line[-1][1]
        return line[0][1] if shares <= line[0][0] else _between(line, shares)

    def capped(self, shares_max: float) -> "ControlPoints":
        """Return the line with another last point, whose shares are never below those before it.

        As in ScyllaDB, the whole last stretch becomes flatter.
        """
        *before, (backlog, _) = self.points
        return ControlPoints((*before, (backlog, max(shares_max, before[-1][1]))))


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the height of a line at a place within it."""
    place = min(bisect_right([each for each, _ in points], at), len(points) - 1)
    (left, low), (right, high) = points[place - 1], points[place]
    return low + (high - low) * (at - left) / (right - left) if right > left else high


def _problem_of(points: Sequence[tuple[float, float]]) -> str | None:
    if not 2 <= len(points) <= POINTS_MAX:
        return f"there are {len(points)}, expected 2 to {POINTS_MAX}"
    if not all(isfinite(number) for point in points for number in point):
        return "one is not a number, expected finite ones"
    backlogs, shares = [each for each, _ in points], [each for _, each in points]
    if backlogs[0] != 0 or any(b <= a for a, b in pairwise(backlogs)):
        return "backlogs must rise from 0"
    if shares[0] <= 0 or any(b < a for a, b in pairwise(shares)):
        return "shares must be above 0 and must not fall"
    return None


def points_text(points: Sequence[tuple[float, float]]) -> str:
    """Return points as an option has them, such as `0:50 1.5:100 30:1000`."""
    return " ".join(f"{backlog:g}:{shares:g}" for backlog, shares in points)


def parse_points(text: str, what: str) -> ControlPoints:
    """Return the line of a text such as `0:50 1.5:100 30:1000`.

    Args:
        text: Normalised backlog and shares of each point.
        what: It is of, for the message.

    Raises:
        ConfigError: It is none.
    """
    try:
        points = tuple(
            (float(backlog), float(shares))
            for backlog, shares in (each.split(":") for each in text.split())
        )
    except ValueError as error:
        expected = "expected backlog:shares of each point, such as 0:50 1.5:100 30:1000"
        raise ConfigError(f"{what}: option points is {text[:80]!r}, {expected}") from error
    return ControlPoints(points)


# ------------------------------------------------------------------------------ By backlog / memory


def with_system_shares(readings: ControlReadings, shares: float, *reasons: str) -> ControlDecision:
    """Return the decision that follows from shares of the system class.

    Slots and bytes per second are in proportion to them: 1000 shares are all that there is.

    Args:
        readings: Tell what there is, and the shares of the other classes.
        shares: Of the class `system`.
        reasons: Why.
    """
    part = min(1.0, shares / SHARES_FULL)
    most = readings.bytes_s_max
    return ControlDecision(
        shares={**readings.base_shares, ShareClass.SYSTEM: shares},
        bytes_s=None if most is None else most * part,
        slots=max(1, round(readings.slots_max * part)) if readings.slots_max else None,
        reasons=reasons,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPointsOptions:
    """Numbers of the controller `control-points`."""

    points: str = option(points_text(SCYLLA_POINTS))
    max_shares: int = option(0, at_least=0)
    """Shares of the last point instead of its own; 0: its own."""
    static_shares: int = option(0, at_least=0)
    """Shares whatever the backlog; 0: by the backlog."""


class ControlPointsController:
    """Shares by backlog over memory."""

    name = "control-points"

    def __init__(self, line: ControlPoints, static_shares: float = 0.0) -> None:
        self.line = line
        self._static_shares = static_shares

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return shares by the line, or those that are fixed."""
        normalized = readings.backlog_bytes / max(1, readings.memory_bytes)
        measured = f"the backlog is {_backlog_text(readings)}, {normalized:.3g} times the memory"
        if self._static_shares:
            fixed = f"static_shares holds {self._static_shares:g} shares"
            return with_system_shares(readings, self._static_shares, fixed, measured)
        shares = self.line.shares(normalized)
        return with_system_shares(readings, shares, f"{measured}: {shares:.0f} shares")


class ControlPointsControllers:
    """Makes controllers by control points."""

    option_names = option_names(ControlPointsOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        what = "controller control-points"
        found = read_options(ControlPointsOptions, what, options)
        line = parse_points(found.points, what)
        line = line.capped(found.max_shares) if found.max_shares else line
        return ControlPointsController(line, found.static_shares)


# ------------------------------------------------------------------------------- By time to drain


JOBS_PER_SLOT = 4
"""While nobody knows how long a job takes; as the autoscaler's rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTimeOptions:
    """Numbers of the controller `drain-time`."""

    goal_s: float = option(600.0, at_least=1)
    """The backlog of now should be rewritten within this time."""
    min_shares: int = option(50, at_least=1, at_most=1000)
    """With little or no backlog."""


class DrainTimeController:
    """Shares that drain the backlog within a goal."""

    name = "drain-time"

    def __init__(self, goal_s: float, shares_min: float) -> None:
        self._goal_s, self._shares_min = goal_s, shares_min

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return the part of all slots that is needed; by jobs while the rate is not known."""
        goal = f"the goal is {format_duration(self._goal_s)}"
        backlog = f"the backlog is {_backlog_text(readings)}"
        slot_bytes_s = readings.slot_bytes_s
        if not readings.backlog_bytes > 0:
            return with_system_shares(readings, self._shares_min, f"{backlog}, {goal}")
        if not isfinite(readings.backlog_bytes) or not readings.slots_max:
            return with_system_shares(readings, SHARES_FULL, f"{backlog}: all slots, {goal}")
        if not slot_bytes_s:
            return self._by_jobs(readings, f"{backlog}, and no rate has been measured, {goal}")
        whole_bytes_s = slot_bytes_s * readings.slots_max
        arriving = readings.arrival_bytes_s or 0.0
        needed = readings.backlog_bytes / self._goal_s + arriving
        shares = min(SHARES_FULL, max(self._shares_min, SHARES_FULL * needed / whole_bytes_s))
        drained_s = readings.backlog_bytes / whole_bytes_s
        told = (
            f"{backlog}, {format_duration(drained_s)} of work for all slots;"
            f" {format_bytes(arriving)}/s arrive; {goal}: {shares:.0f} shares"
        )
        return with_system_shares(readings, shares, told)

    def _by_jobs(self, readings: ControlReadings, told: str) -> ControlDecision:
        """Return a slot for every few jobs: one that is busy for a moment tells the rate."""
        jobs = readings.queued_jobs + readings.busy_slots
        slots = ceil(jobs / JOBS_PER_SLOT)
        shares = max(self._shares_min, SHARES_FULL * min(1.0, slots / readings.slots_max))
        jobs_text = format_count(jobs, "job")
        return with_system_shares(
            readings, shares, f"{told}: {JOBS_PER_SLOT} of {jobs_text} for each slot"
        )


class DrainTimeControllers:
    """Makes controllers by the time to drain."""

    option_names = option_names(DrainTimeOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Raises:
            ConfigError: An option is unknown or refused.
        """
        found = read_options(DrainTimeOptions, "controller drain-time", options)
        return DrainTimeController(found.goal_s, found.min_shares)


def _backlog_text(readings: ControlReadings) -> str:
    known = isfinite(readings.backlog_bytes)
    return format_bytes(round(readings.backlog_bytes)) if known else "not known"
