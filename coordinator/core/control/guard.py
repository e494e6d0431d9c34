"""Bounds on the decisions of every controller.

1. Hysteresis: shares that would change by less than a fraction of themselves stay unchanged.
2. Slew limit: shares change at a bounded speed. Slots and bytes per second change with them.
3. Foreground: while read latency exceeds its limit, rewrites get a lower rate. The target is
   Ambry's curve (least + (greatest - least) · threshold / latency). The guard approaches it in
   steps from the rate in force, so that the rate settles where readers just meet their limit:

       bytes/s = floor + (bytes/s before - floor) · (limit / latency) ^ (period / REACTION_S)

   Afterwards the rate rises by the fraction `RISE` per second, slower than it fell.
4. Floor: the rate never falls below the arrival rate plus a margin. Otherwise the backlog, and with
   it the read latency, would grow without bound.

ScyllaDB lets shares jump with each period, and takes read latency into account only through its
CPU scheduler. Pure: the decision in force is part of the readings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.spi.controller import (
    SHARES_FULL,
    ControlDecision,
    ControlReadings,
    ForegroundLatency,
    ShareClass,
)
from common.units import format_bytes, format_duration

MOVED_PER_INPUT = 2.0
"""Bytes read and written per rewritten input byte, if outputs are as large as inputs."""
FLOOR_MARGIN = 1.25
"""Multiple of the arrival rate that may always be rewritten."""
REACTION_S = 5.0
"""Time in which the rate reaches the target of the curve at constant latency."""
RISE = 0.03
"""Fraction by which the rate rises per second once read latency is within its limit."""
SHARES_MIN, SHARES_MAX = 1.0, 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRules:
    """Bounds on the change that one decision may cause."""

    slew_shares_s: float = 100.0
    """Shares per second that a class may gain or lose; 0 means no limit."""
    hysteresis: float = 0.05
    """Smaller relative changes of the shares of a class are ignored."""
    bytes_s_min: float = 1024.0**2
    """Minimum of the rate, in bytes/s."""


def guarded(
    wanted: ControlDecision, readings: ControlReadings, rules: GuardRules
) -> ControlDecision:
    """Return the decision of a controller within the bounds of the guard.

    Args:
        wanted: Decision of the controller.
        readings: Readings on which the controller decided.
        rules: Settings of the operator.
    """
    shares = {
        class_: _moved(_before(readings, class_), wanted.shares[class_], readings, rules)
        for class_ in ShareClass
    }
    part = shares[ShareClass.SYSTEM] / wanted.shares[ShareClass.SYSTEM]
    reasons = wanted.reasons
    if abs(part - 1.0) > rules.hysteresis:
        held = f"shares of system change by at most {rules.slew_shares_s:g} per second"
        reasons += (f"{held}: {shares[ShareClass.SYSTEM]:.0f} now",)
    decided = replace(
        wanted,
        shares=shares,
        slots=None if wanted.slots is None else max(1, round(wanted.slots * part)),
        bytes_s=_scaled_rate(wanted.bytes_s, part, readings, rules),
        reasons=reasons,
    )
    return _for_readers(decided, readings, rules)


def floor_bytes_s(readings: ControlReadings, rules: GuardRules) -> float:
    """Return the rate that keeps the backlog from growing, regardless of read latency.

    Args:
        readings: Readings with the arrival rate; if it is unknown, the minimum rate is returned.
        rules: Rules with the minimum rate.
    """
    arriving = readings.arrival_bytes_s or 0.0
    return max(rules.bytes_s_min, MOVED_PER_INPUT * FLOOR_MARGIN * arriving)


def _before(readings: ControlReadings, share_class: ShareClass) -> float | None:
    previous: ControlDecision | None = readings.previous
    shares: Mapping[ShareClass, float] = {} if previous is None else previous.shares
    return shares.get(share_class)


def _moved(
    before: float | None, wanted: float, readings: ControlReadings, rules: GuardRules
) -> float:
    """Return the shares of a class after this period."""
    if before is None:
        return wanted
    if abs(wanted - before) <= rules.hysteresis * before and wanted != SHARES_FULL:
        return before
    step = rules.slew_shares_s * readings.period_s
    return wanted if not step else min(max(wanted, before - step), before + step)


def _scaled_rate(
    bytes_s: float | None, part: float, readings: ControlReadings, rules: GuardRules
) -> float | None:
    """Return a rate scaled like the shares that the guard has changed, within its bounds."""
    if bytes_s is None:
        return None
    scaled = max(bytes_s * part, rules.bytes_s_min)
    return scaled if readings.bytes_s_max is None else min(scaled, readings.bytes_s_max)


# ------------------------------------------------------------------------------------ For readers


def _for_readers(
    decided: ControlDecision, readings: ControlReadings, rules: GuardRules
) -> ControlDecision:
    waits = readings.foreground
    if waits is not None and waits.exceeds:
        return _lowered(decided, waits, readings, rules)
    return _risen(decided, readings, rules)


def _lowered(
    decided: ControlDecision,
    waits: ForegroundLatency,
    readings: ControlReadings,
    rules: GuardRules,
) -> ControlDecision:
    """Return the decision with a lower rate, because read latency exceeds its limit."""
    most = _unhindered_bytes_s(decided, readings)
    if most is None:
        return decided
    floor = floor_bytes_s(readings, rules)
    if decided.bytes_s is not None:  # The floor must not exceed the decided rate.
        floor = min(floor, decided.bytes_s)
    most = max(most, floor)
    kept = (waits.limit_s / waits.latency_s) ** (readings.period_s / REACTION_S)
    rate = floor + (most - floor) * kept
    told = (
        f"readers wait {format_duration(waits.latency_s)}, longer than"
        f" {format_duration(waits.limit_s)}: {format_bytes(rate)}/s, never below"
        f" {format_bytes(floor)}/s"
    )
    return replace(decided, bytes_s=rate, for_readers=True, reasons=(*decided.reasons, told))


def _unhindered_bytes_s(decided: ControlDecision, readings: ControlReadings) -> float | None:
    """Return the rate before it is lowered for readers; None if it is unknown so far."""
    known = [decided.bytes_s, _rate_for_readers(readings)]
    limits = [each for each in known if each is not None]
    if limits:
        return min(limits)
    measured = readings.rewrite_bytes_s
    return MOVED_PER_INPUT * measured if measured else None


def _risen(
    decided: ControlDecision, readings: ControlReadings, rules: GuardRules
) -> ControlDecision:
    """Return the decision with a rate that recovers in steps after it was lowered for readers."""
    before, most = _rate_for_readers(readings), decided.bytes_s
    if before is None or (most is not None and before >= most):
        return decided
    risen = max(before, floor_bytes_s(readings, rules)) * (1 + RISE * readings.period_s)
    moved = MOVED_PER_INPUT * (readings.rewrite_bytes_s or 0.0)
    if risen >= (2 * moved if most is None else most):
        return decided
    return replace(decided, bytes_s=risen, for_readers=True)


def _rate_for_readers(readings: ControlReadings) -> float | None:
    """Return the rate in force if it was lowered for readers, or None."""
    previous = readings.previous
    return previous.bytes_s if previous is not None and previous.for_readers else None
