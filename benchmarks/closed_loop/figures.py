"""What came of the runs, and how far the simulation agrees with them."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.closed_loop.schedule import BURST_LENGTH_S, Phase
from benchmarks.closed_loop.simulated import Moment
from benchmarks.closed_loop.stack import Sample
from common.units import format_bytes

JOB_BYTES = 2 * 1024**2
"""Of one job: no backlog is told more finely, and none below it is work that is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A controller on the real stack, and the same in simulation."""

    controller: str
    real: tuple[Sample, ...]
    foretold: tuple[Moment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """The backlog in one phase."""

    mean_bytes: float
    level_bytes: float
    """The most before the burst; at least a job."""
    peak_bytes: float
    """From the burst on."""
    returned_s: float | None
    """From the beginning of the burst until the level is reached again; None: not in the phase."""


def course(phase: Phase, found: Sequence[Sample] | Sequence[Moment]) -> Course:
    """Return what the backlog does in a phase with a burst.

    Args:
        phase: Which.
        found: Moments of the whole run, in order.
    """
    own = [(each.at_s, each.backlog_bytes) for each in found if _is_in(phase, each.at_s)]
    before = [backlog for at_s, backlog in own if at_s < phase.burst_s]
    later = [(at_s, backlog) for at_s, backlog in own if at_s >= phase.burst_s]
    level = max([*before, JOB_BYTES])
    # What comes late in the burst must not hide behind a low moment at its beginning.
    peak_s, peak = max(
        (each for each in later if each[0] < phase.burst_s + 2 * BURST_LENGTH_S),
        key=lambda each: each[1],
        default=(phase.burst_s, 0.0),
    )
    back_s = [at_s for at_s, backlog in later if at_s >= peak_s and backlog <= level]
    return Course(
        mean_bytes=statistics.mean(backlog for _, backlog in own) if own else 0.0,
        level_bytes=level,
        peak_bytes=peak,
        returned_s=back_s[0] - phase.burst_s if back_s else None,
    )


def _is_in(phase: Phase, at_s: float) -> bool:
    return phase.begin_s <= at_s < phase.end_s


def report(plan: list[Phase], pairs: Sequence[Pair], capacity_bytes_s: float) -> Iterator[str]:
    """Yield the lines of two tables: the real runs, and the simulated ones beside them."""
    heads = ("controller", "phase", "arrived", "backlog: level → peak", "back after")
    yield f"| {' | '.join((*heads, 'shares', 'busy slots', 'scans', 'machine busy'))} |"
    yield f"|{'---|' * 9}"
    for pair in pairs:
        idle_s = scan_s(plan[0], pair.real)
        for phase in (each for each in plan if each.part):
            yield _real_line(pair, phase, idle_s, capacity_bytes_s)
    yield ""
    yield "| controller | phase | mean backlog, simulated | peak | back after |"
    yield "|---|---|---|---|---|"
    for pair in pairs:
        for phase in (each for each in plan if each.part):
            yield _foretold_line(pair, phase)


def scan_s(phase: Phase, found: Sequence[Sample]) -> float:
    """Return the mean seconds of a scan in a phase."""
    own = [each for each in found if _is_in(phase, each.at_s)]
    scans = own[-1].scans - own[0].scans
    return (own[-1].scan_s - own[0].scan_s) / max(1, scans)


def _real_line(pair: Pair, phase: Phase, idle_s: float, capacity_bytes_s: float) -> str:
    own = [each for each in pair.real if _is_in(phase, each.at_s)]
    seen = course(phase, pair.real)
    cells = [
        pair.controller,
        phase.name,
        f"{_arrived_bytes_s(phase, own) / capacity_bytes_s:.0%}",
        f"{_mib(seen.level_bytes)} → {_mib(seen.peak_bytes)}",
        _seconds(seen.returned_s),
        f"{statistics.mean(each.system_shares for each in own):,.0f}",
        f"{statistics.mean(each.busy_slots for each in own):.1f}",
        f"{idle_s / scan_s(phase, pair.real):.0%}",
        f"{statistics.mean(each.machine for each in own):.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def _arrived_bytes_s(phase: Phase, own: Sequence[Sample]) -> float:
    """Return how much arrived per second before the burst."""
    before = [each for each in own if each.at_s < phase.burst_s]
    passed_s = max(1.0, before[-1].at_s - before[0].at_s)
    return (before[-1].arrived_bytes - before[0].arrived_bytes) / passed_s


def _foretold_line(pair: Pair, phase: Phase) -> str:
    seen, told = course(phase, pair.real), course(phase, pair.foretold)
    cells = [
        pair.controller,
        phase.name,
        f"{_mib(seen.mean_bytes)}, {_mib(told.mean_bytes)}",
        f"{_mib(seen.peak_bytes)}, {_mib(told.peak_bytes)}",
        f"{_seconds(seen.returned_s)}, {_seconds(told.returned_s)}",
    ]
    return f"| {' | '.join(cells)} |"


def _mib(size_bytes: float) -> str:
    return format_bytes(round(size_bytes))


def _seconds(seconds: float | None) -> str:
    return "not in the phase" if seconds is None else f"{seconds:.0f} s"
