"""Built-in controllers, which limit compaction; they implement `common.spi.controller`.

* `control-points` is ScyllaDB's compaction controller (`backlog_controller.hh`): shares are a
  piecewise linear function of `backlog / memory`, constant after the last point.
* `drain-time` sets the rate that drains the backlog within a goal, in addition to arrivals:

      needed bytes/s = backlog / goal + arrivals
      shares         = 1000 · needed / (bytes/s of all slots)

  With this rate, backlog' = arrivals - needed = -backlog / goal: the backlog decays exponentially
  with the goal as its time constant. The loop neither overshoots nor leaves a remainder.
* `shares`, the default, follows `drain-time`, but sets shares only: slots and bytes per second stay
  free, so nothing waits unless classes compete.
* `debt` starts slots as the backlog grows; `static` has fixed shares.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, isfinite

from common.errors import ConfigError
from common.spi.controller import (
    SHARES_FULL,
    SHARES_MAX,
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
        line = [(share, backlog) for backlog, share in self.points]
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
    index = min(bisect_right([position for position, _ in points], at), len(points) - 1)
    (left, low), (right, high) = points[index - 1], points[index]
    return low + (high - low) * (at - left) / (right - left) if right > left else high


def _problem_of(points: Sequence[tuple[float, float]]) -> str | None:
    if not 2 <= len(points) <= POINTS_MAX:
        return f"there are {len(points)}, expected 2 to {POINTS_MAX}"
    if not all(isfinite(number) for point in points for number in point):
        return "one is not a number, expected finite ones"
    backlogs, shares = [backlog for backlog, _ in points], [share for _, share in points]
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
            for backlog, shares in (pair.split(":") for pair in text.split())
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
        """Return a controller; see `ControllerPlugin`."""
        what = "controller control-points"
        parsed = read_options(ControlPointsOptions, what, options)
        line = parse_points(parsed.points, what)
        line = line.capped(parsed.max_shares) if parsed.max_shares else line
        return ControlPointsController(line, parsed.static_shares)


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
        shares, reason = self.needed_shares(readings)
        return with_system_shares(readings, shares, reason)

    def needed_shares(self, readings: ControlReadings) -> tuple[float, str]:
        """Return the shares that drain the backlog within the goal, and the reason."""
        goal = f"the goal is {format_duration(self._goal_s)}"
        backlog = f"the backlog is {_backlog_text(readings)}"
        slot_bytes_s = readings.slot_bytes_s
        if not readings.backlog_bytes > 0:
            return self._shares_min, f"{backlog}, {goal}"
        if not isfinite(readings.backlog_bytes) or not readings.slots_max:
            return SHARES_FULL, f"{backlog}: all slots, {goal}"
        if not slot_bytes_s:
            return self._by_jobs(readings, f"{backlog}, and no rate has been measured, {goal}")
        whole_bytes_s = slot_bytes_s * readings.slots_max
        arriving = readings.arrival_bytes_s or 0.0
        needed = readings.backlog_bytes / self._goal_s + arriving
        shares = min(SHARES_FULL, max(self._shares_min, SHARES_FULL * needed / whole_bytes_s))
        drained_s = readings.backlog_bytes / whole_bytes_s
        reason = (
            f"{backlog}, {format_duration(drained_s)} of work for all slots;"
            f" {format_bytes(arriving)}/s arrive; {goal}: {shares:.0f} shares"
        )
        return shares, reason

    def _by_jobs(self, readings: ControlReadings, reason: str) -> tuple[float, str]:
        """Return one slot per `JOBS_PER_SLOT` jobs; a busy slot soon provides a rate."""
        jobs = readings.queued_jobs + readings.busy_slots
        slots = ceil(jobs / JOBS_PER_SLOT)
        shares = max(self._shares_min, SHARES_FULL * min(1.0, slots / readings.slots_max))
        jobs_text = format_count(jobs, "job")
        return shares, f"{reason}: {JOBS_PER_SLOT} of {jobs_text} for each slot"


class DrainTimeControllers:
    """Factory of `drain-time` controllers."""

    option_names = option_names(DrainTimeOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller; see `ControllerPlugin`."""
        parsed = read_options(DrainTimeOptions, "controller drain-time", options)
        return DrainTimeController(parsed.goal_s, parsed.min_shares)


# -------------------------------------------------------------------------------------- Shares only


SHARES_FACTOR_MAX = 10.0
"""Shares with a backlog that needs all slots, relative to those of the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesOptions:
    """Options of the controller `shares`."""

    goal_s: float = option(600.0, at_least=1)
    """Time within which to rewrite the current backlog."""


class SharesController:
    """Raises the shares of system jobs with the backlog, and holds nothing back.

    Without a backlog the decision is that of the settings.
    """

    name = "shares"

    def __init__(self, goal_s: float) -> None:
        self._drain_time = DrainTimeController(goal_s, 0.0)

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return the shares of the settings, up to ten times as many for system jobs."""
        needed, reason = self._drain_time.needed_shares(readings)
        base = readings.base_shares[ShareClass.SYSTEM]
        factor = max(1.0, SHARES_FACTOR_MAX * min(1.0, needed / SHARES_FULL))
        return ControlDecision(
            shares={**readings.base_shares, ShareClass.SYSTEM: min(SHARES_MAX, base * factor)},
            reasons=(f"{reason}; system jobs have {factor:.1f} times their configured shares",),
        )


class SharesControllers:
    """Factory of `shares` controllers."""

    option_names = option_names(SharesOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller; see `ControllerPlugin`."""
        return SharesController(read_options(SharesOptions, "controller shares", options).goal_s)


def _backlog_text(readings: ControlReadings) -> str:
    is_known = isfinite(readings.backlog_bytes)
    return format_bytes(round(readings.backlog_bytes)) if is_known else "not known"


# --------------------------------------------------------------------------------------------- Debt
# Controllers that set slots by the debt, or keep the settings.
#
# * `debt` is the rule of Pebble, CockroachDB's storage engine: concurrency grows with debt.
#
#       slots = least + max(files / 10, debt / 1 GiB, garbage / 0.4 · (most - least)), at most
#       `most`
#
#   The tablet with the most files replaces Pebble's level 0, and the debt per slot is an option.
# * `static` keeps the shares of the settings, with an optional limit of slots.


GIB = 1024**3
FILES_STEP = 10
"""Files of one tablet per additional slot."""
GARBAGE_FULL = 0.4
"""Garbage fraction at which all slots are used."""


# ------------------------------------------------------------------------------------- Debt → slots


def debt_slots(
    least: int,
    most: int,
    *,
    debt_bytes: float,
    deepest_files: int = 0,
    garbage_fraction: float = 0.0,
    step_bytes: int = GIB,
) -> int:
    """Return the number of slots for a debt, from `least` to `most`.

    Args:
        least: Slots without debt.
        most: Maximum number of slots.
        debt_bytes: Bytes of debt.
        deepest_files: Number of files of the tablet with the most files.
        garbage_fraction: Fraction of all bytes that is garbage, 0 to 1.
        step_bytes: Debt per additional slot.
    """
    if not isfinite(debt_bytes):
        return most
    of_garbage = int(garbage_fraction / GARBAGE_FULL * (most - least))
    more = max(deepest_files // FILES_STEP, int(debt_bytes // step_bytes), of_garbage)
    return min(most, least + max(0, more))


@dataclass(frozen=True, slots=True, kw_only=True)
class DebtOptions:
    """Options of the controller `debt`."""

    allowed_bytes: int = option(0, at_least=0)
    """Backlog that does not count as debt."""
    step_bytes: int = option(GIB, at_least=1)
    """Debt per additional slot."""
    min_slots: int = option(1, at_least=1)
    max_slots: int = option(0, at_least=0)
    """0: the maximum slots of all compactors in the settings."""


class DebtController:
    """Sets slots by debt, and shares and bytes per second in proportion."""

    name = "debt"

    def __init__(self, options: DebtOptions) -> None:
        self._options = options

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return the decision for the current debt."""
        options = self._options
        most = max(options.min_slots, options.max_slots or readings.slots_max)
        debt = readings.backlog_bytes - options.allowed_bytes
        slots = debt_slots(
            options.min_slots,
            most,
            debt_bytes=debt,
            deepest_files=readings.deepest_files,
            garbage_fraction=readings.garbage_fraction,
            step_bytes=options.step_bytes,
        )
        part = slots / most
        owed = format_bytes(round(max(0.0, debt))) if isfinite(debt) else "not known"
        limit = readings.bytes_s_max
        return ControlDecision(
            shares={**readings.base_shares, ShareClass.SYSTEM: max(1.0, SHARES_FULL * part)},
            bytes_s=None if limit is None else limit * part,
            slots=slots,
            reasons=(f"the debt is {owed}: {slots} of {format_count(most, 'slot')}",),
        )


class DebtControllers:
    """Factory of `debt` controllers."""

    option_names = option_names(DebtOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller; see `ControllerPlugin`."""
        parsed = read_options(DebtOptions, "controller debt", options)
        if 0 < parsed.max_slots < parsed.min_slots:
            raise ConfigError(
                f"controller debt: option max_slots is {parsed.max_slots}, expected 0 or at least"
                f" min_slots, {parsed.min_slots}"
            )
        return DebtController(parsed)


# ------------------------------------------------------------------------------------- Fixed shares


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticOptions:
    """Options of the controller `static`."""

    slots: int = option(0, at_least=0)
    """Total slots of system jobs and statistics; 0: all slots."""


class StaticController:
    """Keeps the shares of the settings, regardless of the backlog."""

    name = "static"

    def __init__(self, slots: int = 0) -> None:
        self._slots = slots or None

    def decide(self, readings: ControlReadings) -> ControlDecision:
        """Return the decision from the settings."""
        return ControlDecision(
            shares=readings.base_shares,
            bytes_s=readings.bytes_s_max,
            slots=self._slots,
            reasons=("the settings fix the shares",),
        )


class StaticControllers:
    """Factory of `static` controllers."""

    option_names = option_names(StaticOptions)

    def controller(self, options: Mapping[str, object]) -> Controller:
        """Return a controller; see `ControllerPlugin`."""
        return StaticController(read_options(StaticOptions, "controller static", options).slots)
