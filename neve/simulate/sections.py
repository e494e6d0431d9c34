"""Sections of a specification, read key by key with bounds; unknown keys are rejected.

The sections of the controller and of disturbances have their rules and draws here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random  # noqa: TID251  seeded by the specification: the same run every time
from typing import Any

from common.documents import FieldKind, FieldRule, read_list, read_object, unknown
from common.errors import ConfigError, RequestError
from common.model.job import BOOST_MAX, Job, LaneClass, lane_class
from common.plugins import load_controller_plugin, request_errors
from common.spi.controller import ControlDecision, ControllerPlugin
from coordinator.core.control import (
    MOVED_PER_INPUT,
    ClusterFacts,
    ControlLoop,
    ControlRules,
    GuardRules,
)


class Section:
    """A table of the document. The reader calls `close` at the end, which rejects unread keys."""

    def __init__(self, value: object, where: str) -> None:
        """Start reading.

        Args:
            value: The table; None: an empty table.
            where: Path of the table in the document, for error messages.

        Raises:
            RequestError: The value is not a table.
        """
        self.where = where
        self._left = read_object({} if value is None else value, where)
        self._names: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def names(self) -> list[str]:
        """Return the keys that have not been read."""
        return list(self._left)

    def key_path(self, name: str) -> str:
        """Return the full path of a key, for error messages."""
        return f"{self.where}.{name}" if self.where else name

    def raw(self, name: str) -> Any:
        """Return a raw value, or None."""
        self._names.append(name)
        return self._left.pop(name, None)

    def number(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a number within bounds."""
        return float(self._read(FieldKind.NUMBER, name, default, least=least, most=most))

    def count(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a whole number within bounds."""
        return int(self._read(FieldKind.COUNT, name, default, least=least, most=most))

    def size_bytes(self, name: str, default: int, *, least: int, most: int) -> int:
        """Return a size such as `32MB` within bounds."""
        return int(self._read(FieldKind.SIZE, name, default, least=least, most=most))

    def duration_s(self, name: str, default: float, *, least: float, most: float) -> float:
        """Return a duration such as `5m` within bounds, in seconds."""
        return float(self._read(FieldKind.DURATION, name, default, least=least, most=most))

    def text(self, name: str, default: str | None = None) -> str:
        """Return a text that is not empty, which is required if there is no default."""
        return str(self._read(FieldKind.TEXT, name, default, least=1))

    def switch(self, name: str, *, default: bool) -> bool:
        """Return a Boolean value."""
        return bool(self._read(FieldKind.FLAG, name, default))

    def _read(self, kind: FieldKind, name: str, default: Any, **bounds: float) -> Any:
        value, rule = self.raw(name), FieldRule(kind=kind, **bounds)  # type: ignore[arg-type]  # bounds only
        return rule.read(default if value is None else value, self.key_path(name))

    def table(self, name: str) -> dict[str, Any]:
        """Return a table with arbitrary keys; empty if it is missing."""
        return read_object(self.raw(name) or {}, self.key_path(name))

    def section(self, name: str) -> "Section":
        """Return a nested section; empty if it is missing."""
        return Section(self.raw(name), self.key_path(name))

    def sections(self, name: str, *, most: int) -> "list[Section]":
        """Return a list of nested sections; empty if it is missing."""
        entries = read_list(self.raw(name) or [], self.key_path(name))
        if len(entries) > most:
            raise RequestError(
                f"{self.key_path(name)} has {len(entries):,} entries, expected at most {most:,}"
            )
        return [Section(entry, f"{self.key_path(name)}[{at}]") for at, entry in enumerate(entries)]

    def close(self) -> None:
        """Reject keys that were not read.

        Raises:
            RequestError: A key is unknown; the message suggests a known key.
        """
        for name in self._left:
            raise unknown(f"{self.key_path(name)}: key {name!r}", name, self._names)


def checked_total(what: str, value: float, most: int, advice: str) -> None:
    """Reject a specification with too large a total.

    Args:
        what: What is counted, with its verb: `files would arrive`.
        value: The total.
        most: The limit.
        advice: A suggested change.

    Raises:
        RequestError: The total exceeds the limit.
    """
    if value > most:
        raise RequestError(f"{value:,.0f} {what}, expected at most {most:,}; {advice}")


def merged_documents(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the keys of `over`; tables are merged key by key."""
    merged = dict(base)
    for name, value in over.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[name] = merged_documents(before, value) if both else value  # type: ignore[arg-type]  # `both` says so
    return merged


# ------------------------------------------------------------------------------------------ Control
# The controller in a simulation: the service's control loop, run once per period.
#
#     shares    limit the turns of each queue
#     slots     limit assignment of non-urgent jobs, and are the autoscaler's target
#     bytes/s   limit all jobs that move bytes; each job gets an equal share
#
# The simulation has no readers that report wait times, so foreground load has no effect.


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
    with request_errors(f"{section.key_path('controller')}: "):
        plugin = load_controller_plugin(name)
    try:
        plugin.controller(options)
    except ConfigError as error:
        raise RequestError(f"{section.key_path('options')}: {error}") from error
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


# ------------------------------------------------------------------------------------- Disturbances
# Disturbances of a simulation: user requests, attempt failures, compactor losses.
#
# These are only the rules and the random draws. The service's own code decides the response.


REQUESTS_MAX = 1_000_000
"""Maximum number of requests in one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRule:
    """How often users request the compaction of a whole tablet."""

    every_s: float
    """Mean time between two requests."""
    boost: int = 0
    """Added to the priority of the requests' jobs."""


def read_requests(section: Section) -> RequestRule:
    """Read the section `requests` of a table.

    Raises:
        RequestError: Names the key, its value and what was expected.
    """
    rule = RequestRule(
        every_s=section.duration_s("every", 3600.0, least=0.1, most=1e9),
        boost=section.count("boost", 0, least=0, most=BOOST_MAX),
    )
    section.close()
    return rule


def submissions(
    rule: RequestRule, table: str, tablets: int, seed: int, length_s: float
) -> Iterator[tuple[float, int]]:
    """Yield the times of requests and their tablet numbers: a Poisson process.

    Args:
        rule: The rate of requests.
        table: Name of the table.
        tablets: Number of tablets of the table.
        seed: Seed of the run.
        length_s: End of the requests, in seconds.
    """
    chance, at_s = Random(f"{seed}/{table}/requests"), 0.0
    while (at_s := at_s + chance.expovariate(1.0 / rule.every_s)) < length_s:
        yield round(at_s, 3), int(chance.random() * tablets)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRule:
    """The rates of attempt failures and compactor losses."""

    attempts: float = 0.0
    """Fraction of attempts that die after a random share of their bytes."""
    compactor_life_s: float = 0.0
    """Mean time until a compactor is lost with its running jobs; 0: no losses."""
    restart_s: float = 60.0
    """Time from the loss of a compactor until its replacement is ready."""


def read_failures(section: Section) -> FailureRule:
    """Read the section `cluster.failures`.

    Raises:
        RequestError: Names the key, its value and what was expected.
    """
    lives = "compactor_life" in section
    rule = FailureRule(
        attempts=section.number("attempts", 0.0, least=0.0, most=0.9),
        compactor_life_s=section.duration_s("compactor_life", 60.0, least=60.0, most=1e9)
        if lives
        else 0.0,
        restart_s=section.duration_s("restart", 60.0, least=0.0, most=86_400.0),
    )
    section.close()
    return rule


class Failures:
    """Draws failures and their times. The same seed gives the same failures."""

    def __init__(self, rule: FailureRule, seed: int) -> None:
        self.rule = rule
        self._attempts, self._losses = Random(f"{seed}/attempts"), Random(f"{seed}/compactors")

    def dies_after(self) -> float:
        """Return the fraction of bytes after which an attempt dies; 1: it does not die."""
        chance = self._attempts
        if not self.rule.attempts or chance.random() >= self.rule.attempts:
            return 1.0
        return chance.random()

    def next_loss_s(self, compactors: int) -> float:
        """Return the time until one of `compactors` compactors is lost."""
        return self._losses.expovariate(compactors / self.rule.compactor_life_s)

    def lost(self, compactors: int, most: int) -> int | None:
        """Return the index of the lost compactor; None if no running compactor is hit.

        Losses are drawn as if `most` compactors were always running; a loss of one that is not
        running has no effect.
        """
        drawn = int(self._losses.random() * most)
        return drawn if drawn < compactors else None
