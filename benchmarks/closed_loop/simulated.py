"""The same in virtual time: the same arrivals, capacity, planner and controllers.

The real stack moves more bytes than inputs and outputs of files have; the simulator does not know
that. So its limit is twice the capacity that was measured: a byte is read and written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.closed_loop.capacity import Capacity
from benchmarks.closed_loop.schedule import BURST_LENGTH_S, BURST_TIMES, Phase, offered
from benchmarks.closed_loop.stack import (
    COMPACTORS,
    CONTROL,
    OPTIONS,
    PLANNER,
    SETTINGS,
    SLOTS,
    TABLES,
    Sample,
)
from common.spi.controller import ShareClass
from coordinator.core.control import MOVED_PER_INPUT
from neve.simulate.specification import DAY_S, Specification, read_specifications
from neve.simulate.world import World


@dataclass(frozen=True, slots=True)
class Moment:
    """A sample of a simulation."""

    at_s: float
    backlog_bytes: float
    system_shares: float


def arrived_part(plan: list[Phase], capacity: Capacity, runs: Sequence[Sequence[Sample]]) -> float:
    """Return what arrived in real runs, as a part of what was meant to."""
    arrived = sum(run[-1].arrived_bytes for run in runs)
    return arrived / (len(runs) * offered(plan) * capacity.arrivals_bytes_s)


def document(
    plan: list[Phase], capacity: Capacity, controller: str, arrived: float = 1.0
) -> dict[str, Any]:
    """Return the specification of a run, as `neve simulate` reads it.

    Args:
        plan: The phases.
        capacity: Of the real stack.
        controller: Its name.
        arrived: What arrived there, as a part of what the phases say.
    """
    texts = dict(each.split("=") for each in PLANNER["planner_options"].split(","))
    arrivals = {
        "files_per_s": round(arrived * capacity.files_s / len(TABLES), 4),
        "size": round(capacity.file_bytes),
        "regular": True,
        "burst": [burst for phase in plan for burst in _bursts(phase)],
    }
    return {
        "simulation": {"days": round(plan[-1].end_s / DAY_S, 6), "sample": "1s", "drain_max": "0s"},
        "table": [
            {
                "name": name,
                "keyed": False,
                "row_bytes": 8,
                "planner": PLANNER["planner"],
                "options": texts,
                "settings": SETTINGS,
                "arrivals": arrivals,
            }
            for name in TABLES
        ],
        "cluster": {
            "group": [
                {
                    "compactors": COMPACTORS,
                    "slots": SLOTS,
                    "slot_bytes_s": round(capacity.arrivals_bytes_s),
                }
            ]
        },
        "control": {
            "controller": controller,
            "options": dict(each.split("=") for each in OPTIONS.get(controller, ())),
            "period": CONTROL.period_s,
            "memory": CONTROL.memory_bytes,
            "bytes_s_max": round(MOVED_PER_INPUT * capacity.arrivals_bytes_s),
        },
    }


def _bursts(phase: Phase) -> list[dict[str, float]]:
    """Return a phase as bursts of the whole capacity: factors of times that overlap multiply."""
    whole = {"at": phase.begin_s, "for": phase.length_s, "times": phase.part}
    burst = {"at": phase.burst_s, "for": BURST_LENGTH_S, "times": BURST_TIMES}
    return [whole, burst] if phase.part else [whole]


def specification(
    plan: list[Phase], capacity: Capacity, controller: str, arrived: float
) -> Specification:
    """Return the run, with the least rate that the real stack has."""
    (found,) = read_specifications(document(plan, capacity, controller, arrived), _no_file)
    assert found.control is not None
    rules = found.control.rules
    least = CONTROL.bytes_s_min * found.control.rules.bytes_s_max / CONTROL.bytes_s_max
    guard = replace(rules.guard, bytes_s_min=least)
    return replace(found, control=replace(found.control, rules=replace(rules, guard=guard)))


def run(
    plan: list[Phase], capacity: Capacity, controller: str, arrived: float = 1.0
) -> list[Moment]:
    """Return a moment for each second; see `document`."""
    world = World(specification(plan, capacity, controller, arrived))
    assert world.control is not None
    shares: dict[int, float] = {}
    while world.step():
        shares[int(world.now_s)] = world.control.decision.shares[ShareClass.SYSTEM]
    return [
        Moment(sample.at_s, float(sample.backlog_bytes), shares.get(int(sample.at_s), 0.0))
        for sample in world.outcome.samples
    ]


def _no_file(name: str) -> object:
    raise AssertionError(name)
