"""The controller in a simulation: the service's control loop, run once per period.

    shares    limit the turns of each queue
    slots     limit assignment of non-urgent jobs, and are the autoscaler's target
    bytes/s   limit all jobs that move bytes; each job gets an equal share

The simulation has no readers that report wait times, so foreground load has no effect.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from common.errors import ConfigError, RequestError
from common.model.job import Job, LaneClass, lane_class
from common.plugins import load_controller_plugin, request_errors
from common.spi.controller import ControlDecision, ControllerPlugin
from coordinator.core.control import (
    MOVED_PER_INPUT,
    ClusterFacts,
    ControlLoop,
    ControlRules,
    GuardRules,
)
from neve.simulate.sections import Section

PERIOD_S = 10.0
"""A service decides every second. A longer period makes simulated days cheap, and backlogs change
slowly.
"""
_CAPPED = frozenset({LaneClass.SYSTEM, LaneClass.STATISTICS})
"""Classes of jobs with a slot cap; urgent jobs have none, because a user waits for them."""
GIB = 1024**3


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRule:
    """The controller and its limits."""

    name: str
    plugin: ControllerPlugin = field(repr=False)
    options: Mapping[str, object] = field(default_factory=dict)
    rules: ControlRules = field(default_factory=ControlRules)


def read_control(section: Section, group_slots: Mapping[str, int]) -> ControlRule:
    """Read the section `control`.

    Args:
        section: The section, which must exist.
        group_slots: Group → slots of the maximum number of compactors.

    Raises:
        RequestError: Names the key, its value and what was expected.
    """
    name, options = section.text("controller"), section.table("options")
    with request_errors(f"{section.place('controller')}: "):
        plugin = load_controller_plugin(name)
    try:
        plugin.controller(options)
    except ConfigError as error:
        raise RequestError(f"{section.place('options')}: {error}") from error
    most = 1 << 60
    limit = section.size_bytes("bytes_s_max", 0, least=0, most=most)
    rule = ControlRule(
        name=name,
        plugin=plugin,
        options=options,
        rules=ControlRules(
            period_s=section.duration_s("period", PERIOD_S, least=1.0, most=3600.0),
            guard=GuardRules(
                slew_shares_s=section.number("slew_shares_s", 100.0, least=0.0, most=1e6),
                hysteresis=section.number("hysteresis", 0.05, least=0.0, most=0.9),
            ),
            bytes_s_max=limit or None,
            memory_bytes=section.size_bytes(
                "memory", GIB * max(1, sum(group_slots.values())), least=1, most=most
            ),
            group_slots=group_slots,
        ),
    )
    section.close()
    return rule


class SimulatedControl:
    """The control loop of one run, and the admission of jobs by its decision."""

    def __init__(self, rule: ControlRule) -> None:
        """Create the loop without a first decision."""
        self._loop = ControlLoop(rule.plugin.controller(rule.options), rule.rules)
        self.period_s = rule.rules.period_s

    @property
    def decision(self) -> ControlDecision:
        """The decision in force."""
        return self._loop.decision

    @property
    def moving_bytes_s(self) -> float | None:
        """Input bytes that all jobs together may rewrite per second; None: no limit."""
        limit = self._loop.decision.bytes_s
        return None if limit is None else limit / MOVED_PER_INPUT

    def look(self, facts: ClusterFacts, now_s: float) -> ControlDecision:
        """Return the decision until the next call."""
        return self._loop.look(facts, now_s)

    def slots_of(self, group: str) -> int | None:
        """Return the target number of slots of a group; None: all slots."""
        return self._loop.slots_of(group)

    def admission(self, group: str, running: Callable[[], int]) -> Callable[[Job], bool] | None:
        """Return a filter for jobs that may start now; None if all jobs may start.

        Args:
            group: The group with free slots.
            running: Returns the number of the group's running jobs with a cap.
        """
        slots = self.slots_of(group)
        if slots is None or running() < slots:
            return None
        return lambda job: not is_capped(job)


def is_capped(job: Job) -> bool:
    """Return whether a job's class has a slot cap."""
    return lane_class(job) in _CAPPED
