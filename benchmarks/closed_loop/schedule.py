"""When how much arrives: phases at parts of the capacity, each with a burst."""

from dataclasses import dataclass

BURST_TIMES = 3.0
BURST_AT = 0.4
"""Part of a phase that has passed when the burst begins: the backlog has settled by then."""
BURST_LENGTH_S = 7.0
"""A tenth of the shorter phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A time with one rate of arrivals."""

    name: str
    begin_s: float
    length_s: float
    part: float
    """Of the capacity, outside the burst; 0: nothing arrives."""

    @property
    def end_s(self) -> float:
        """Return when the next phase begins."""
        return self.begin_s + self.length_s

    @property
    def burst_s(self) -> float:
        """Return when the burst begins."""
        return self.begin_s + BURST_AT * self.length_s


def phases(scale: float = 1.0) -> list[Phase]:
    """Return the phases, one after the other.

    At 80 % a burst is worked off by what is left, a fifth of the capacity: that phase is longer.

    Args:
        scale: Of the lengths of all phases; bursts stay as they are.
    """
    found: list[Phase] = []
    begin_s = 0.0
    for name, length_s, part in (
        ("idle", 15.0, 0.0),
        ("20 %", 70.0, 0.2),
        ("50 %", 70.0, 0.5),
        ("80 %", 130.0, 0.8),
        ("after", 20.0, 0.0),
    ):
        phase = Phase(name=name, begin_s=begin_s, length_s=length_s * scale, part=part)
        found.append(phase)
        begin_s = phase.end_s
    return found


def part_at(plan: list[Phase], at_s: float) -> float:
    """Return which part of the capacity arrives at a time."""
    for phase in plan:
        if phase.begin_s <= at_s < phase.end_s:
            is_burst = phase.burst_s <= at_s < phase.burst_s + BURST_LENGTH_S
            return phase.part * (BURST_TIMES if is_burst else 1.0)
    return 0.0


def offered(plan: list[Phase]) -> float:
    """Return for how many seconds of the whole capacity files arrive in all."""
    return sum(
        phase.part * (phase.length_s + (BURST_TIMES - 1.0) * BURST_LENGTH_S) for phase in plan
    )


def name_at(plan: list[Phase], at_s: float) -> str:
    """Return the phase of a time; after the end: the last one."""
    return next((each.name for each in plan if at_s < each.end_s), plan[-1].name)
