"""The control loop: turn facts about the cluster into readings, and readings into a decision.

    facts ─► measured rates ─► readings ─► controller ─► guard ─► decision

A controller is a plug-in and may fail: the current decision then stays in force, and the status
shows the reason. All state is bounded, and none needs to survive a restart: the first decision is
made within a period, and rates are available again after a minute.
"""

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import exp, isfinite, nan
from typing import Final

from common.model.file import DataFile, overlapping_files
from common.model.job import Job, Kind, TabletPlan, TabletPressure
from common.model.tablet import Tablet, TabletId
from common.primitives import BoundedMap
from common.spi.controller import (
    DEFAULT_SHARES,
    SHARES_FULL,
    SHARES_MAX,
    SHARES_MIN,
    ControlDecision,
    Controller,
    ControlReadings,
    ForegroundLatency,
    ShareClass,
)
from common.units import format_bytes, format_duration

# -------------------------------------------------------------------------------------------- Guard
# Bounds on the decisions of every controller.
#
# 1. Hysteresis: shares that would change by less than a fraction of themselves stay unchanged.
# 2. Slew limit: shares change at a bounded speed. Slots and bytes per second change with them.
# 3. Foreground: while read latency exceeds its limit, rewrites get a lower rate. The target is
#    Ambry's curve (least + (greatest - least) · threshold / latency). The guard approaches it in
#    steps from the rate in force, so that the rate settles where readers just meet their limit:
#
#        bytes/s = floor + (bytes/s before - floor) · (limit / latency) ^ (period / REACTION_S)
#
#    Afterwards the rate rises by the fraction `RISE` per second, slower than it fell.
# 4. Floor: the rate never falls below the arrival rate plus a margin. Otherwise the backlog, and
#    with it the read latency, would grow without bound.
#
# ScyllaDB lets shares jump with each period, and takes read latency into account only through its
# CPU scheduler. Pure: the decision in force is part of the readings.


MOVED_PER_INPUT = 2.0
"""Bytes read and written per rewritten input byte, if outputs are as large as inputs."""
FLOOR_MARGIN = 1.25
"""Multiple of the arrival rate that may always be rewritten."""
REACTION_S = 5.0
"""Time in which the rate reaches the target of the curve at constant latency."""
RISE = 0.03
"""Fraction by which the rate rises per second once read latency is within its limit."""


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
    """Return a rate scaled like the shares that the guard has changed, within its bounds.

    The operator's limit also holds for a controller that sets no rate, whatever the shares are.
    """
    if bytes_s is None:
        return readings.bytes_s_max
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
    reason = (
        f"readers wait {format_duration(waits.latency_s)}, longer than"
        f" {format_duration(waits.limit_s)}: {format_bytes(rate)}/s, never below"
        f" {format_bytes(floor)}/s"
    )
    return replace(decided, bytes_s=rate, for_readers=True, reasons=(*decided.reasons, reason))


def _unhindered_bytes_s(decided: ControlDecision, readings: ControlReadings) -> float | None:
    """Return the rate before it is lowered for readers; None if it is unknown so far."""
    rates = [decided.bytes_s, _rate_for_readers(readings)]
    limits = [limit for limit in rates if limit is not None]
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


# ------------------------------------------------------------------------------------- Measurements
# Measurements of the control loop: rates of work, read latencies, bytes by class.
#
# Read latency is a decaying average per table. Controllers get a single number.
#
#     latency of a table = Σ wait / Σ reads, both decayed to 1/e in `DECAY_S`
#     signal             = the latency of the table with the highest latency
#
# The weight of a report is limited to `REPORT_READS_MAX` reads of `LATENCY_MAX_S`, and a table
# counts only while its readers send reports. A reader that reports too often or sends wrong values
# can therefore at most lower rewrites to their floor (`guard`), and its effect decays soon.


# ------------------------------------------------------------------------------------ Rates of work


RATE_DECAY_S = 60.0
"""Time in which the weight of completed work decays to 1/e."""
ARRIVAL_DECAY_S = 600.0
"""Time in which the weight of arrived work decays to 1/e; long, so that bursts are smoothed."""
ARRIVAL_MIN_S = 300.0
"""Minimum divisor of the arrival rate, so that the first burst does not count as a rate."""
BUSY_MIN_S = 1.0
"""Busy slot time, in seconds, below which the rate of a slot is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Facts about the cluster at one look."""

    backlog_bytes: float
    table_backlogs: Mapping[str, float] = field(default_factory=dict)
    """Table name → backlog in bytes."""
    done_bytes: float = 0.0
    """Input bytes rewritten since the start, including those of running attempts."""
    group_slots: Mapping[str, int] = field(default_factory=dict)
    """Group → slots of its living compactors."""
    busy_slots: int = 0
    queued_jobs: int = 0
    deepest_files: int = 0
    """Maximum number of overlapping files among the tablets with work."""
    garbage_fraction: float = 0.0
    """Known garbage as a fraction of all stored bytes, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRates:
    """Decayed sums of arrived and completed work."""

    seen_s: float | None = None
    backlog_bytes: float = 0.0
    done_bytes: float = 0.0
    arriving_s: float = 0.0
    busy_slot_s: float = 0.0
    rewritten_bytes: float = 0.0
    arrived_bytes: float = 0.0

    def seen(self, facts: ClusterFacts, now_s: float) -> "WorkRates":
        """Return the rates after a look; an unknown backlog counts as no arrivals."""
        is_known = isfinite(facts.backlog_bytes)
        backlog = facts.backlog_bytes if is_known else self.backlog_bytes
        if self.seen_s is None:
            return replace(self, seen_s=now_s, backlog_bytes=backlog, done_bytes=facts.done_bytes)
        passed_s = max(0.0, now_s - self.seen_s)
        kept = exp(-passed_s / RATE_DECAY_S)
        arrivals_kept = exp(-passed_s / ARRIVAL_DECAY_S)
        # Progress is reported as a fraction and drops when an attempt is lost.
        done = max(0.0, facts.done_bytes - self.done_bytes)
        arrived = max(0.0, backlog - self.backlog_bytes + done) if is_known else 0.0
        return WorkRates(
            seen_s=now_s,
            backlog_bytes=backlog,
            done_bytes=facts.done_bytes,
            arriving_s=self.arriving_s * arrivals_kept + passed_s,
            busy_slot_s=self.busy_slot_s * kept + facts.busy_slots * passed_s,
            rewritten_bytes=self.rewritten_bytes * kept + done,
            arrived_bytes=self.arrived_bytes * arrivals_kept + arrived,
        )

    @property
    def slot_bytes_s(self) -> float | None:
        """Input bytes that a busy slot rewrites per second; None if unknown."""
        if self.busy_slot_s < BUSY_MIN_S or not self.rewritten_bytes:
            return None
        return self.rewritten_bytes / self.busy_slot_s

    @property
    def arrival_bytes_s(self) -> float | None:
        """Arrival rate of work, in bytes per second; None if unknown."""
        if self.arriving_s < BUSY_MIN_S:
            return None
        return self.arrived_bytes / max(self.arriving_s, ARRIVAL_MIN_S)


# ----------------------------------------------------------------------------------- Read latencies


DECAY_S = 10.0
LATENCY_MAX_S = 60.0
"""Upper bound of a reported latency; longer ones are cut to it."""
REPORT_READS_MAX = 1_000
READS_MIN = 3.0
"""Decayed number of reads below which a table has no latency."""
TABLES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class _Waits:
    """Decayed reads and waits of a table."""

    at_s: float
    reads: float = 0.0
    wait_s: float = 0.0

    def at(self, now_s: float) -> "_Waits":
        kept = exp(-max(0.0, now_s - self.at_s) / DECAY_S)
        return _Waits(max(now_s, self.at_s), self.reads * kept, self.wait_s * kept)


class ReaderLatencies:
    """Read latencies by table. Bounded: the table with the oldest report is evicted first."""

    def __init__(self) -> None:
        self._tables: BoundedMap[str, _Waits] = BoundedMap(TABLES_MAX)

    def note(self, table: str, latency_s: float, reads: int, now_s: float) -> None:
        """Add a report of the average latency of a table's reads; invalid values are ignored."""
        if not (isfinite(latency_s) and latency_s >= 0 and reads > 0):
            return
        before = (self._tables.get(table) or _Waits(now_s)).at(now_s)
        count, wait_s = min(reads, REPORT_READS_MAX), min(latency_s, LATENCY_MAX_S)
        after = _Waits(before.at_s, before.reads + count, before.wait_s + count * wait_s)
        self._tables.put(table, after)

    def forget(self, table: str) -> None:
        """Remove a dropped table."""
        self._tables.pop(table)

    def by_table(self, now_s: float) -> dict[str, float]:
        """Return the latency of each table with enough recent reads."""
        waits = {table: recent.at(now_s) for table, recent in self._tables}
        return {
            table: recent.wait_s / recent.reads
            for table, recent in waits.items()
            if recent.reads >= READS_MIN
        }

    def signal(self, now_s: float) -> tuple[str, float] | None:
        """Return the table with the highest latency, and the latency; None without reports."""
        waits = self.by_table(now_s)
        return max(waits.items(), key=lambda item: (item[1], item[0]), default=None)


# ----------------------------------------------------------------------- Bytes assigned by class


USED_WINDOW_S = 60.0
USED_STEP_S = 1.0


class ClassUsage:
    """Assigned bytes by class. Bounded by the window, with one entry per second."""

    def __init__(self) -> None:
        self.total_bytes: Counter[ShareClass] = Counter(dict.fromkeys(ShareClass, 0))
        """Bytes since the start of the coordinator."""
        self._steps: deque[tuple[float, Counter[ShareClass]]] = deque()
        self._window: Counter[ShareClass] = Counter()

    def note(self, share_class: ShareClass, size_bytes: int, now_s: float) -> None:
        """Count the bytes of an assigned job."""
        self._expire(now_s)
        if not self._steps or now_s - self._steps[-1][0] >= USED_STEP_S:
            self._steps.append((now_s, Counter()))
        self._steps[-1][1][share_class] += size_bytes
        self._window[share_class] += size_bytes
        self.total_bytes[share_class] += size_bytes

    def last_minute(self, now_s: float) -> Mapping[ShareClass, int]:
        """Return the bytes of each class in the last minute."""
        self._expire(now_s)
        return {class_: self._window[class_] for class_ in ShareClass}

    def _expire(self, now_s: float) -> None:
        while self._steps and now_s - self._steps[0][0] >= USED_WINDOW_S:
            self._window.subtract(self._steps.popleft()[1])


def fractions(amounts: Mapping[ShareClass, float]) -> dict[ShareClass, float]:
    """Return each amount as a fraction of the total; all are 0 if the total is 0."""
    total = sum(amounts.values())
    return {name: amount / total if total else 0.0 for name, amount in amounts.items()}


# --------------------------------------------------------------------------------------------- Loop


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRules:
    """Settings of the operator, and the resources that can be divided."""

    period_s: float = 1.0
    base_shares: Mapping[ShareClass, float] = field(default_factory=lambda: DEFAULT_SHARES)
    guard: GuardRules = field(default_factory=GuardRules)
    bytes_s_max: float | None = None
    foreground_limit_s: float | None = None
    memory_bytes: int = 1
    group_slots: Mapping[str, int] = field(default_factory=dict)
    """Group → slots of the maximum number of compactors that the settings allow."""
    foreground_shares: float = 0.0
    """Shares of reads and appends on a volume with a limit, next to those of compaction."""

    def foreground_part(self, decision: ControlDecision) -> float:
        """Return the part of a volume that reads and appends get next to compaction, 0 to 1."""
        compaction = decision.shares[ShareClass.SYSTEM]
        return self.foreground_shares / (self.foreground_shares + compaction)


# ------------------------------------------------------------------------------------- The loop


class ControlLoop:
    """One controller with its inputs and decisions.

    Invariant: `decision` has shares for every class, each above 0.
    """

    def __init__(self, controller: Controller | None, rules: ControlRules) -> None:
        """Create a loop whose decision is the configured shares until the first look.

        Args:
            controller: The plug-in; None means that the configured shares stay in force.
            rules: Settings of the operator.
        """
        self.controller, self.rules = controller, rules
        self.decision = ControlDecision(shares=rules.base_shares, reasons=("no decision so far",))
        self.usage = ClassUsage()
        self.latencies = ReaderLatencies()
        self.readings: ControlReadings | None = None
        """Readings of the last look."""
        self.failure = ""
        """Why the controller's last answer was rejected; empty if it was accepted."""
        self.failures = 0
        self._rates = WorkRates()
        self._living_slots: Mapping[str, int] = {}

    @property
    def name(self) -> str:
        """Name of the controller; empty if there is none."""
        return "" if self.controller is None else self.controller.name

    def is_due(self, now_s: float) -> bool:
        """Return whether a period has passed since the last look."""
        seen_s = self._rates.seen_s
        return seen_s is None or now_s - seen_s >= self.rules.period_s

    def look(self, facts: ClusterFacts, now_s: float) -> ControlDecision:
        """Take readings and return the decision that holds until the next look."""
        before_s = self._rates.seen_s
        self._rates = self._rates.seen(facts, now_s)
        self._living_slots = facts.group_slots
        passed_s = self.rules.period_s if before_s is None else now_s - before_s
        self.readings = self._readings(facts, now_s, passed_s)
        wanted = self._asked(self.readings)
        self.decision = guarded(wanted, self.readings, self.rules.guard)
        return self.decision

    def slots_of(self, group: str) -> int | None:
        """Return how many slots of a group compaction may use; None means all.

        The slots of a decision are divided between groups in proportion to their maximum slots.
        """
        slots, slots_max = self.decision.slots, self._slots_max()
        if slots is None or not slots_max:
            return None
        return max(1, round(slots * self._group_slots_max(group) / slots_max))

    def _group_slots_max(self, group: str) -> int:
        configured = self.rules.group_slots.get(group, 0)
        return max(configured, self._living_slots.get(group, 0))

    def _slots_max(self) -> int:
        groups = {*self.rules.group_slots, *self._living_slots}
        return sum(self._group_slots_max(group) for group in groups)

    def _readings(self, facts: ClusterFacts, now_s: float, passed_s: float) -> ControlReadings:
        rates, rules = self._rates, self.rules
        slot_bytes_s = rates.slot_bytes_s
        return ControlReadings(
            time_s=now_s,
            period_s=passed_s,
            backlog_bytes=facts.backlog_bytes,
            table_backlogs=facts.table_backlogs,
            memory_bytes=rules.memory_bytes,
            rewrite_bytes_s=None if slot_bytes_s is None else slot_bytes_s * facts.busy_slots,
            slot_bytes_s=slot_bytes_s,
            arrival_bytes_s=rates.arrival_bytes_s,
            foreground=self._foreground(now_s),
            slots=sum(facts.group_slots.values()),
            busy_slots=facts.busy_slots,
            slots_max=self._slots_max(),
            bytes_s_max=rules.bytes_s_max,
            base_shares=rules.base_shares,
            queued_jobs=facts.queued_jobs,
            deepest_files=facts.deepest_files,
            garbage_fraction=facts.garbage_fraction,
            previous=self.decision if self.readings is not None else None,
        )

    def _foreground(self, now_s: float) -> ForegroundLatency | None:
        limit_s, worst = self.rules.foreground_limit_s, self.latencies.signal(now_s)
        if limit_s is None or worst is None:
            return None
        return ForegroundLatency(latency_s=worst[1], limit_s=limit_s)

    def _asked(self, readings: ControlReadings) -> ControlDecision:
        """Return the controller's decision, or the decision in force if the controller fails."""
        if self.controller is None:
            return ControlDecision(shares=self.rules.base_shares, bytes_s=self.rules.bytes_s_max)
        try:
            wanted = self.controller.decide(readings)
            require_sound(wanted)
        except Exception as error:  # A plug-in must not stop the coordinator.
            self.failure = f"{type(error).__name__}: {error}"
            self.failures += 1
            reason = f"controller {self.name} failed, the last decision stays: {self.failure}"
            return replace(self.decision, reasons=(reason,))
        self.failure = ""
        return wanted


def control_values(loop: ControlLoop, busy_slots: int, now_s: float) -> dict[str, float]:
    """Return the decision of the controller and its effect; a value that does not exist is NaN."""
    decision, worst = loop.decision, loop.latencies.signal(now_s)
    used = fractions(loop.usage.last_minute(now_s))
    return {
        "busy_slots": busy_slots,
        "system_slots": nan if decision.slots is None else decision.slots,
        "limit_bytes_s": nan if decision.bytes_s is None else decision.bytes_s,
        "reader_wait_s": nan if worst is None else worst[1],
        **{f"shares_{class_.value}": decision.shares[class_] for class_ in ShareClass},
        **{f"used_{class_.value}": used[class_] for class_ in ShareClass},
    }


def require_sound(decision: ControlDecision) -> None:
    """Reject a decision that is invalid or would stop all work.

    Raises:
        ValueError: Names the invalid value.
    """
    for class_ in ShareClass:
        shares = decision.shares.get(class_, 0.0)
        if not SHARES_MIN <= shares <= SHARES_MAX:
            raise ValueError(
                f"shares of {class_} are {shares}, expected {SHARES_MIN:g} to {SHARES_MAX:g}"
            )
    if decision.bytes_s is not None and not 0 < decision.bytes_s < float("inf"):
        raise ValueError(f"bytes_s is {decision.bytes_s}, expected a rate above 0 or None")
    if decision.slots is not None and decision.slots < 1:
        raise ValueError(f"slots are {decision.slots}, expected at least 1 or None")
    for table, weight in decision.table_weights.items():
        if not 0 < weight < float("inf"):
            raise ValueError(f"weight of table {table!r} is {weight}, expected a number above 0")


# ----------------------------------------------------------------------------------------- Pressure
# Pressure of tablets: overlapping files where work waits, and garbage.
#
# Pressure is measured with each plan of a tablet, so a look of the controller is cheap. Only the
# most recently planned tablets are remembered, so memory is bounded.
#
# The number of overlapping files corresponds to the sublevels of level 0 in Pebble
# (`L0CompactionConcurrency`): a reader of one key may have to open that many files. Files without
# key bounds may all overlap; those among them that jobs are to merge count. Garbage is the bytes
# that a rewrite would leave out:
#
#     live bytes are counted (`neve analyze`)   size - live bytes
#     otherwise                                 size · tombstones / rows, from the file's footer
#
# Garbage is therefore a lower bound: it lacks replaced rows that no analysis has counted.


NONE: Final = TabletPressure()


# --------------------------------------------------------------------------------------- One tablet


def with_pressure(plan: TabletPlan, tablet: Tablet, target_bytes: int) -> TabletPlan:
    """Return a plan with the pressure of its tablet.

    Args:
        plan: Plan of the tablet; work waits if it has system jobs or attempts are running.
        tablet: The version that was planned.
        target_bytes: Target size of the table's files.
    """
    reserved = tablet.reserved_files if tablet.running else ()
    files = [file for file in tablet.files.values() if not file.open]
    return replace(plan, pressure=tablet_pressure(files, plan.jobs, reserved, target_bytes // 2))


def tablet_pressure(
    files: Collection[DataFile], jobs: Iterable[Job], reserved: Iterable[str], small_bytes: int = 0
) -> TabletPressure:
    """Return the pressure of a tablet.

    Args:
        files: Files of the tablet.
        jobs: Planned jobs; work waits if there are system jobs or reserved files.
        reserved: Paths that running jobs have reserved.
        small_bytes: Size below which a file is small.
    """
    inputs = {path for job in jobs if job.kind is Kind.SYSTEM for path in job.inputs}
    inputs.update(reserved)
    stored = garbage = small = 0
    for file in files:  # One loop: it runs for each tablet of each full scan.
        stored += file.size_bytes
        small += file.size_bytes < small_bytes
        if file.tombstones or file.live_bytes is not None:
            garbage += garbage_bytes(file)
    return TabletPressure(
        overlapping_files=overlapping_files(files, inputs) if inputs else 0,
        stored_bytes=stored,
        garbage_bytes=garbage,
        files=len(files),
        small_files=small if small > 1 else 0,
    )


def garbage_bytes(file: DataFile) -> int:
    """Return the known bytes of a file that a rewrite would leave out."""
    if file.live_bytes is not None:
        return max(0, file.size_bytes - file.live_bytes)
    return file.size_bytes * min(file.tombstones, file.rows) // file.rows if file.rows else 0


# -------------------------------------------------------------------------------------- All tablets


class Pressures:
    """The pressures of the most recently planned tablets.

    The cost of a change does not depend on the number of tablets; a look visits each distinct
    depth. Invariant: sums and depths are those of the stored tablets.
    """

    def __init__(self, count_max: int) -> None:
        """Create an empty registry of at most `count_max` tablets; the oldest plan is evicted."""
        self._count_max = count_max
        self._tablets: OrderedDict[TabletId, TabletPressure] = OrderedDict()
        self._of_table: dict[str, dict[TabletId, None]] = {}
        self._stored_bytes = self._garbage_bytes = 0
        self._depths: Counter[int] = Counter()
        """Number of overlapping files → number of tablets; zero counts are removed."""
        self._files, self._small_files = Counter[str](), Counter[str]()
        """Table → files of its tablets; tables without tablets are removed."""
        self._depths_of: dict[str, Counter[int]] = {}
        """The same for each table with overlapping files."""

    @property
    def deepest_files(self) -> int:
        """Maximum number of overlapping files in a tablet; 0 if no work waits."""
        return max(self._depths, default=0)

    def deepest_tables(self, count: int) -> dict[str, int]:
        """Return the largest number of overlapping files of a tablet, for tables with the most."""
        deepest = {table: max(depths) for table, depths in self._depths_of.items()}
        return dict(heapq.nlargest(count, deepest.items(), key=lambda item: item[1]))

    @property
    def garbage_fraction(self) -> float:
        """Garbage as a fraction of all stored bytes, 0 to 1."""
        return self._garbage_bytes / self._stored_bytes if self._stored_bytes else 0.0

    def of(self, tablet: TabletId) -> TabletPressure:
        """Return the pressure of a tablet; it is empty if no plan of the tablet is known."""
        return self._tablets.get(tablet, NONE)

    def small_files(self, count: int) -> list[tuple[str, int, int]]:
        """Return the tables with the most small files: id, small files, all files."""
        most = self._small_files.most_common(count)
        return [(table, small, self._files[table]) for table, small in most if small]

    def put(self, tablet: TabletId, pressure: TabletPressure | None) -> None:
        """Store the pressure of a tablet; None or an empty pressure removes the tablet."""
        self.discard(tablet)
        if pressure is None or pressure == NONE:
            return
        self._tablets[tablet] = pressure
        self._of_table.setdefault(tablet.table, {})[tablet] = None
        self._stored_bytes += pressure.stored_bytes
        self._garbage_bytes += pressure.garbage_bytes
        self._files[tablet.table] += pressure.files
        self._small_files[tablet.table] += pressure.small_files
        if pressure.overlapping_files:
            self._depths[pressure.overlapping_files] += 1
            depths = self._depths_of.setdefault(tablet.table, Counter())
            depths[pressure.overlapping_files] += 1
        if len(self._tablets) > self._count_max:
            self.discard(next(iter(self._tablets)))

    def discard(self, tablet: TabletId) -> None:
        """Remove a tablet."""
        before = self._tablets.pop(tablet, None)
        if before is None:
            return
        own = self._of_table[tablet.table]
        del own[tablet]
        self._files[tablet.table] -= before.files
        self._small_files[tablet.table] -= before.small_files
        if not own:
            del self._of_table[tablet.table]
            del self._files[tablet.table], self._small_files[tablet.table]
        self._stored_bytes -= before.stored_bytes
        self._garbage_bytes -= before.garbage_bytes
        if before.overlapping_files:
            depths = self._depths_of[tablet.table]
            for counts in (self._depths, depths):
                counts[before.overlapping_files] -= 1
                if not counts[before.overlapping_files]:
                    del counts[before.overlapping_files]
            if not depths:
                del self._depths_of[tablet.table]

    def forget_table(self, table: str) -> None:
        """Remove all tablets of a table."""
        for tablet in list(self._of_table.get(table, ())):
            self.discard(tablet)

    def check(self) -> None:
        """Assert the invariants; for tests."""
        pressures = self._tablets.values()
        assert self._stored_bytes == sum(pressure.stored_bytes for pressure in pressures)
        assert self._garbage_bytes == sum(pressure.garbage_bytes for pressure in pressures)
        depths = Counter(
            pressure.overlapping_files for pressure in pressures if pressure.overlapping_files
        )
        assert self._depths == depths
        files, small = Counter[str](), Counter[str]()
        for tablet, pressure in self._tablets.items():
            files[tablet.table] += pressure.files
            small[tablet.table] += pressure.small_files
        assert (self._files, self._small_files) == (files, small)
        assert self._files.keys() == self._small_files.keys() == self._of_table.keys()
        assert self._depths == sum(self._depths_of.values(), Counter())
        assert all(self._depths_of.values())
        assert 0 not in self._depths.values()
        assert self.deepest_files == max(depths, default=0)
        assert sum(map(len, self._of_table.values())) == len(self._tablets) <= self._count_max
