"""Controllers whose shares follow a measure of the backlog.

* `control-points` is ScyllaDB's compaction controller (`backlog_controller.hh`): shares are a
  piecewise linear function of `backlog / memory`, constant after the last point.
* `drain-time` sets the rate that drains the backlog within a goal, in addition to arrivals:

      needed bytes/s = backlog / goal + arrivals
      shares         = 1000 · needed / (bytes/s of all slots)

  With this rate, backlog' = arrivals - needed = -backlog / goal: the backlog decays exponentially
  with the goal as its time constant. The loop neither overshoots nor leaves a remainder.
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
"""ScyllaDB's points for compaction. Small, often overwritten data needs the minimum."""
POINTS_MAX = 32


# ---------------------------------------------------------------------------------- Piecewise lines


@dataclass(frozen=True, slots=True)
class ControlPoints:
    """A piecewise line from normalised backlog to shares, constant after its last point.

    Invariant: backlogs rise strictly from 0; shares are above 0 and never fall.
    """

    points: tuple[tuple[float, float], ...] = SCYLLA_POINTS

    def __post_init__(self) -> None:
        """Reject points that violate the invariant."""
        if problem := _problem_of(self.points):
            raise ConfigError(f"controller: points {points_text(self.points)}: {problem}")

    def shares(self, normalized: float) -> float:
        """Return the shares for a backlog; an unknown backlog gets the shares of the last point."""
        last = self.points[-1]
        if not isfinite(normalized) or normalized >= last[0]:
            return last[1]
        return _between(self.points, max(0.0, normalized))

    def backlog(self, shares: float) -> float:
        """Return the normalised backlog for these shares: the inverse function.

        Shares below the first point map to its backlog, and shares above the last point to its
        backlog.
        """
        line = [(each, backlog) for backlog, each in self.points]
        if shares >= line[-1][0]:
            return line[-1][1]
        return line[0][1] if shares <= line[0][0] else _between(line, shares)

    def capped(self, shares_max: float) -> "ControlPoints":
        """Return the line with other shares at its last point, at least those of the point before.

        As in ScyllaDB, this flattens the whole last segment.
        """
        *before, (backlog, _) = self.points
        return ControlPoints((*before, (backlog, max(shares_max, before[-1][1]))))


def _between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Interpolate a line at a position within it."""
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
    """Return points as option text, such as `0:50 1.5:100 30:1000`."""
    return " ".join(f"{backlog:g}:{shares:g}" for backlog, shares in points)


def parse_points(text: str, what: str) -> ControlPoints:
    """Parse a line from text such as `0:50 1.5:100 30:1000`.

    Args:
        text: Normalised backlog and shares of each point.
        what: Owner of the option, for the error message.

    Raises:
        ConfigError: The text is not a valid line.
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
    """Return the decision for given shares of the system class.

    Slots and bytes per second are proportional to the shares: 1000 shares stand for all of them.

    Args:
        readings: Available slots and bytes per second, and the shares of the other classes.
        shares: Shares of the class `system`.
        reasons: Reasons for the decision.
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
    """Options of the controller `control-points`."""

    points: str = option(points_text(SCYLLA_POINTS))
    max_shares: int = option(0, at_least=0)
    """Replaces the shares of the last point; 0: keep them."""
    static_shares: int = option(0, at_least=0)
    """Fixed shares; 0: set shares by the backlog."""


class ControlPointsController:
    """Sets shares by backlog over memory."""

    name = "control-points"

    def __init__(self, line: ControlPoints, static_shares: float = 0.0) -> None:
        self.line = line
        self._static_shares = static_shares

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return shares from the line, or fixed shares."""
        normalized = readings.backlog_bytes / max(1, readings.memory_bytes)
        measured = f"the backlog is {_backlog_text(readings)}, {normalized:.3g} times the memory"
        if self._static_shares:
            fixed = f"static_shares holds {self._static_shares:g} shares"
            return with_system_shares(readings, self._static_shares, fixed, measured)
        shares = self.line.shares(normalized)
        return with_system_shares(readings, shares, f"{measured}: {shares:.0f} shares")


class ControlPointsControllers:
    """Factory of `control-points` controllers."""

    option_names = option_names(ControlPointsOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Raises:
            ConfigError: An option is unknown or invalid.
        """
        what = "controller control-points"
        found = read_options(ControlPointsOptions, what, options)
        line = parse_points(found.points, what)
        line = line.capped(found.max_shares) if found.max_shares else line
        return ControlPointsController(line, found.static_shares)


# --------------------------------------------------------------------------------- By time to drain


JOBS_PER_SLOT = 4
"""Used until a rate has been measured; the same rule as the autoscaler's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainTimeOptions:
    """Options of the controller `drain-time`."""

    goal_s: float = option(600.0, at_least=1)
    """Time within which to rewrite the current backlog."""
    min_shares: int = option(50, at_least=1, at_most=1000)
    """Shares with little or no backlog."""


class DrainTimeController:
    """Sets the shares that drain the backlog within a goal."""

    name = "drain-time"

    def __init__(self, goal_s: float, shares_min: float) -> None:
        self._goal_s, self._shares_min = goal_s, shares_min

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return the needed fraction of all slots; use the number of jobs until a rate is known."""
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
        """Return one slot per `JOBS_PER_SLOT` jobs; a busy slot soon provides a rate."""
        jobs = readings.queued_jobs + readings.busy_slots
        slots = ceil(jobs / JOBS_PER_SLOT)
        shares = max(self._shares_min, SHARES_FULL * min(1.0, slots / readings.slots_max))
        jobs_text = format_count(jobs, "job")
        return with_system_shares(
            readings, shares, f"{told}: {JOBS_PER_SLOT} of {jobs_text} for each slot"
        )


class DrainTimeControllers:
    """Factory of `drain-time` controllers."""

    option_names = option_names(DrainTimeOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller.

        Raises:
            ConfigError: An option is unknown or invalid.
        """
        found = read_options(DrainTimeOptions, "controller drain-time", options)
        return DrainTimeController(found.goal_s, found.min_shares)


def _backlog_text(readings: ControlReadings) -> str:
    known = isfinite(readings.backlog_bytes)
    return format_bytes(round(readings.backlog_bytes)) if known else "not known"
