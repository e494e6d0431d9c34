"""Which system jobs may start now by the windows of their table and group, and how many did.

A job starts if the window of its table and that of its group are open, or if it is exempt from one
that is closed. A window with a budget is closed as soon as its budget is used up, until the next
start; jobs that run may end. Jobs of a closed window are not queued: their tablets wait in
`Deferrals` and are planned again when the window opens.

`common.windows` reads the settings. What has started in a window with a budget is stored, so that a
new coordinator goes on with the budget of the current window.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import NamedTuple

from common.model.job import Job
from common.units import format_bytes, format_duration
from common.windows import WindowRule, WindowState
from coordinator.core.retry import wait_queue_of_window
from neve import api

OPENINGS_MAX, OPENINGS_DAYS_MAX = 500, 400
"""Starts and days in which a common opening of two windows is searched."""
WINDOWS_SHOWN_MAX = 100
"""Tables and groups whose windows are part of a status."""
SHOWN_LASTS_S = 60.0
"""How long the choice of these tables and groups holds, unless a window opens or closes."""
USAGES_MAX = 5000
"""Windows with a budget whose use is stored; those with the most input come first."""
TABLE, GROUP = "table", "group"


class Scope(NamedTuple):
    """What has windows: a table by id, or a group by name."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Charge:
    """A job that was reserved or runs."""

    input_bytes: int
    began_s: float
    expected_s: float
    stored_s: float | None = None
    """When an earlier coordinator stored the charge. It does not grow since then: the job may have
    ended unseen. None: the charge is of this coordinator."""

    def cost_s(self, now_s: float) -> float:
        """Return its seconds of a slot; at least what is expected."""
        until_s = now_s if self.stored_s is None else self.stored_s
        return max(self.expected_s, until_s - self.began_s)


@dataclass(slots=True)
class WindowUsage:
    """What has started in one window."""

    since_s: float
    """The start of the window."""
    input_bytes: int = 0
    ended_s: float = 0.0
    """Seconds that the ended jobs took."""
    held: dict[str, Charge] = field(default_factory=dict)
    """Take or attempt → its charge."""

    def cost_s(self, now_s: float) -> float:
        """Return the seconds of slots; a running job counts as long as is expected of it."""
        return self.ended_s + sum(job.cost_s(now_s) for job in self.held.values())


class JobWindows:
    """The windows of all tables and groups that have some.

    Invariant: a usage belongs to the last start of its scope at which a job was charged.
    """

    def __init__(self, groups: Mapping[str, WindowRule]) -> None:
        """Create an instance without tables.

        Args:
            groups: Group → its rule; a group without windows is missing.
        """
        self._rules = {Scope(GROUP, group): rule for group, rule in sorted(groups.items())}
        self._states: dict[Scope, WindowState] = {}
        self._usage: dict[Scope, WindowUsage] = {}
        self._charges: dict[str, tuple[Scope, ...]] = {}
        """Take or attempt → what it is charged to."""
        self._closed: frozenset[Scope] = frozenset()
        self._look_s = float("-inf")
        self._shown: list[Scope] = []
        self._shown_until_s = float("-inf")
        self.withdraws = False
        """Whether queues may hold jobs of windows that have closed."""
        self.changes = 0
        """Changes of the use of budgets."""
        self._is_restored = False

    def set_table(self, table: str, rule: WindowRule | None) -> None:
        """Set or remove the windows of a table."""
        scope = Scope(TABLE, table)
        if rule == self._rules.get(scope):
            return
        self._states.pop(scope, None)
        if rule is not None:
            self._rules[scope] = rule
        else:
            del self._rules[scope]
            self._usage.pop(scope, None)
        self._look_s = self._shown_until_s = float("-inf")

    def look(self, now_s: float) -> None:
        """Find windows that have closed since the last look, and set `withdraws` if there are any.

        Between the changes of all windows, a look costs nothing.
        """
        if now_s < self._look_s:
            return
        closed = frozenset(scope for scope in self._rules if not self._is_open(scope, now_s))
        self.withdraws |= bool(closed - self._closed)
        if closed != self._closed:
            self._shown_until_s = float("-inf")
        self._closed = closed
        until = (self._state(scope, now_s).until_s for scope in self._rules)
        # The cost of running jobs grows with time.
        self._look_s = now_s if self._has_growing_cost() else min(until, default=float("inf"))

    def wait_queue_of(self, job: Job, now_s: float) -> str | None:
        """Return the wait queue for the tablet of a job that may not start now, or None."""
        for scope, _ in self._rules_of(job):
            if not self._is_open(scope, now_s):
                return wait_queue_of_window(scope.name if scope.kind == TABLE else "", job.group)
        return None

    def is_open(self, table: str, group: str, now_s: float) -> bool:
        """Return whether jobs of a table may start in a group.

        Args:
            table: Id of the table; empty: only the windows of the group count.
            group: Name of the group.
            now_s: The current time.
        """
        return all(
            scope not in self._rules or self._is_open(scope, now_s)
            for scope in _scopes(table, group)
        )

    def opens_s(self, table: str, group: str, now_s: float) -> float | None:
        """Return when jobs of a table may start next in a group; None: the windows do not overlap.

        Args:
            table: Id of the table.
            group: Name of the group.
            now_s: The current time, which is the answer if they may start now.
        """
        scopes = [scope for scope in _scopes(table, group) if scope in self._rules]
        opens_s, last_s = now_s, now_s + OPENINGS_DAYS_MAX * 86_400
        for _ in range(OPENINGS_MAX):
            closed = [scope for scope in scopes if not self._will_be_open(scope, opens_s, now_s)]
            if not closed:
                return opens_s
            starts = [self._rules[scope].windows.at(opens_s).next_start_s for scope in closed]
            opens_s = max(starts)
            if opens_s > last_s:
                return None
        return None

    def sentence(self, table: str, name: str, group: str, now_s: float) -> str | None:
        """Return why system jobs of a table do not start in a group now, or None if they do.

        Args:
            table: Id of the table.
            name: Name of the table.
            group: Name of the group.
            now_s: The current time.
        """
        closed = [
            scope
            for scope in _scopes(table, group)
            if scope in self._rules and not self._is_open(scope, now_s)
        ]
        if not closed:
            return None
        whose = " and of ".join(
            f"table {name}" if scope.kind == TABLE else f"group {scope.name}" for scope in closed
        )
        opens_s = self.opens_s(table, group, now_s)
        windows = self._rules[closed[0]].windows
        opening = (
            f"and does not open, because the windows of table {name} and of group {group} do not"
            " overlap"
            if opens_s is None
            else f"which opens at {windows.time_text(opens_s)}"
        )
        used = next((text for scope in closed if (text := self._used_up(scope, now_s))), "")
        texts = "; ".join(dict.fromkeys(self._rules[scope].windows.text for scope in closed))
        why = f" (this one has {used})" if used else ""
        return f"system jobs wait for the window of {whose} ({texts}), {opening}{why}"

    def lines(self, name_of: Callable[[str], str], now_s: float) -> tuple[api.Window, ...]:
        """Return the windows of groups and tables, closed ones first, at most 100.

        They are chosen once a minute, and when a window opens or closes: a status costs the same
        for any number of tables.

        Args:
            name_of: Returns the name of a table.
            now_s: The current time.
        """
        if now_s >= self._shown_until_s:
            self._shown = nsmallest(
                WINDOWS_SHOWN_MAX,
                self._rules,
                key=lambda scope: (self._is_open(scope, now_s), *scope),
            )
            until = (self._state(scope, now_s).until_s for scope in self._rules)
            self._shown_until_s = min((now_s + SHOWN_LASTS_S, *until))
        return tuple(self._line(scope, name_of, now_s) for scope in self._shown)

    # ------------------------------------------------------------------------------------ Budgets

    def enter(self, key: str, job: Job, now_s: float) -> None:
        """Charge a job that is being reserved or starts; a repeated key is ignored.

        Args:
            key: The take, then the attempt.
            job: The job; exempt jobs are not charged.
            now_s: The current time.
        """
        if key in self._charges:
            return
        charged: list[Scope] = []
        for scope, rule in self._rules_of(job):
            state = self._state(scope, now_s)
            if state.since_s is None:
                continue
            charged.append(scope)
            usage = self._usage.get(scope)
            if usage is None or usage.since_s != state.since_s:
                usage = self._usage[scope] = WindowUsage(state.since_s)
            usage.held[key] = Charge(job.input_bytes, now_s, job.expected_s)
            usage.input_bytes += job.input_bytes
            if rule.has_budget:
                self._look_s = now_s
                self.changes += 1
        if charged:
            self._charges[key] = tuple(charged)

    def leave(self, key: str, now_s: float) -> None:
        """Note the end of an attempt; an unknown key is ignored."""
        for usage, charge in self._discharge(key):
            usage.ended_s += max(0.0, now_s - charge.began_s)

    def refund(self, key: str) -> None:
        """Take back the charge of a reservation; an unknown key is ignored."""
        for usage, charge in self._discharge(key):
            usage.input_bytes -= charge.input_bytes

    def _discharge(self, key: str) -> Iterator[tuple[WindowUsage, Charge]]:
        """Yield the charges of a key in windows that are current, and remove them."""
        for scope in self._charges.pop(key, ()):
            usage = self._usage.get(scope)
            charge = None if usage is None else usage.held.pop(key, None)
            if usage is not None and charge is not None:
                self.changes += 1
                yield usage, charge

    def usages(self, now_s: float) -> dict[Scope, WindowUsage]:
        """Return what current windows with a budget have used, for `restore`.

        Args:
            now_s: The current time.
        """
        current = [
            (scope, usage)
            for scope, usage in self._usage.items()
            if (rule := self._rules.get(scope)) is not None
            and rule.has_budget
            and usage.since_s == self._state(scope, now_s).since_s
        ]
        current.sort(key=lambda entry: (-entry[1].input_bytes, entry[0]))
        return {
            scope: replace(usage, held={
                key: charge if charge.stored_s is not None else replace(charge, stored_s=now_s)
                for key, charge in usage.held.items()
            })
            for scope, usage in current[:USAGES_MAX]
        }  # fmt: skip

    def restore(self, usages: Mapping[Scope, WindowUsage]) -> None:
        """Go on with the budgets that an earlier coordinator has stored.

        Its attempts that still run are discharged when they end. The others stay charged with what
        was expected of them. A second call is ignored.

        Args:
            usages: What `usages` has returned.
        """
        if self._is_restored:
            return
        self._is_restored = True
        for scope, stored in usages.items():
            own = self._usage.get(scope)
            if own is not None and own.since_s > stored.since_s:
                continue
            usage = self._usage[scope] = replace(stored, held=dict(stored.held))
            if own is not None and own.since_s == stored.since_s:
                usage.input_bytes += own.input_bytes
                usage.ended_s += own.ended_s
                usage.held |= own.held
            for key in stored.held:
                self._charges[key] = (*self._charges.get(key, ()), scope)
        self._look_s = self._shown_until_s = float("-inf")

    def check(self) -> None:
        """Assert the invariants; for tests."""
        for scope, usage in self._usage.items():
            assert all(scope in self._charges[key] for key in usage.held)
            assert usage.input_bytes >= sum(job.input_bytes for job in usage.held.values())

    def _rules_of(self, job: Job) -> Iterator[tuple[Scope, WindowRule]]:
        """Yield the windows that a job is subject to."""
        for scope in _scopes(job.tablet.table, job.group):
            rule = self._rules.get(scope)
            if rule is not None and not rule.is_exempt(job):
                yield scope, rule

    def _has_growing_cost(self) -> bool:
        return any(
            usage.held and (rule := self._rules.get(scope)) is not None and rule.cost_max_s > 0
            for scope, usage in self._usage.items()
        )

    def _used_up(self, scope: Scope, now_s: float) -> str:
        """Return which budget of the current window is used up; empty: none, or it is closed."""
        rule, usage = self._rules[scope], self._usage.get(scope)
        if usage is None or usage.since_s != self._state(scope, now_s).since_s:
            return ""
        if 0 < rule.bytes_max <= usage.input_bytes:
            return f"used its {format_bytes(rule.bytes_max)}"
        if 0 < rule.cost_max_s <= usage.cost_s(now_s):
            return f"used its {format_duration(rule.cost_max_s)} of slots"
        return ""

    # ------------------------------------------------------------------------------------- States

    def _state(self, scope: Scope, now_s: float) -> WindowState:
        state = self._states.get(scope)
        if state is None or now_s >= state.until_s:
            state = self._states[scope] = self._rules[scope].windows.at(now_s)
        return state

    def _is_open(self, scope: Scope, now_s: float) -> bool:
        return self._state(scope, now_s).since_s is not None and not self._used_up(scope, now_s)

    def _will_be_open(self, scope: Scope, at_s: float, now_s: float) -> bool:
        state = self._rules[scope].windows.at(at_s)
        if state.since_s is None:
            return False
        # What is used up now stays used up until the next start.
        current_s = self._state(scope, now_s).since_s
        return state.since_s != current_s or not self._used_up(scope, now_s)

    def _line(self, scope: Scope, name_of: Callable[[str], str], now_s: float) -> api.Window:
        rule, state, usage = self._rules[scope], self._state(scope, now_s), self._usage.get(scope)
        is_open = self._is_open(scope, now_s)
        name = name_of(scope.name) if scope.kind == TABLE else scope.name
        if usage is not None and usage.since_s != state.since_s:
            usage = None
        return api.Window(
            kind=scope.kind,
            name=name,
            windows=rule.windows.text,
            is_open=is_open,
            closes_s=state.closes_s if is_open else None,
            opens_s=now_s if is_open else state.next_start_s,
            opens_text="" if is_open else rule.windows.time_text(state.next_start_s),
            used_bytes=0 if usage is None else usage.input_bytes,
            bytes_max=rule.bytes_max,
            used_cost_s=0.0 if usage is None else usage.cost_s(now_s),
            cost_max_s=rule.cost_max_s,
        )


def packed_usages(usages: Mapping[Scope, WindowUsage]) -> bytes:
    """Return what windows have used in the stored form, JSON: kind, name, and their use."""
    lines = [
        [
            *scope,
            usage.since_s,
            usage.input_bytes,
            usage.ended_s,
            {
                key: [charge.input_bytes, charge.began_s, charge.expected_s, charge.stored_s]
                for key, charge in usage.held.items()
            },
        ]
        for scope, usage in usages.items()
    ]
    return json.dumps(lines, separators=(",", ":")).encode()


def unpacked_usages(packed: bytes) -> dict[Scope, WindowUsage]:
    """Return what `packed_usages` has written.

    Raises:
        ValueError: The value is malformed.
    """
    usages: dict[Scope, WindowUsage] = {}
    try:
        for kind, name, since_s, input_bytes, ended_s, held, *_ in json.loads(packed):
            charges = {
                str(key): Charge(int(charge[0]), *(float(value) for value in charge[1:4]))
                for key, charge in held.items()
            }
            usage = WindowUsage(float(since_s), int(input_bytes), float(ended_s), charges)
            usages[Scope(str(kind), str(name))] = usage
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"no use of windows ({type(error).__name__}: {error})") from error
    return usages


def _scopes(table: str, group: str) -> tuple[Scope, ...]:
    of_group = Scope(GROUP, group)
    return (Scope(TABLE, table), of_group) if table else (of_group,)
