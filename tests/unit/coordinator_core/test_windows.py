"""Jobs start while the windows of their table and group are open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.model.job import CLASS_WIDTH, Kind
from common.model.table import TableSettings
from common.settings import CoordinatorSettings, GroupSettings
from common.windows import WindowRule
from coordinator.core import events as on
from coordinator.core.limits import Limits
from coordinator.core.plan_events import await_window
from coordinator.core.views import closed_windows, coordinator_status, window_usages
from coordinator.core.windows import JobWindows, Scope, packed_usages, unpacked_usages
from neve import api
from tests.support.task_manager import TABLE, TaskManager

pytestmark = pytest.mark.unit

HOUR_S, DAY_S = 3600.0, 86_400.0
OVER_LIMIT = 2 * CLASS_WIDTH + 5
FROM_ONE = "0 1 * * * for 1h"
"""The clock of a `TaskManager` begins at midnight, 1 January 1970."""


def windows_of(**groups: GroupSettings) -> dict[str, object]:
    return {"windows": Limits.of(CoordinatorSettings(), groups=groups).windows}


def with_table(manager: TaskManager, **settings: object) -> TaskManager:
    """Give the table of a manager these settings."""
    chosen = TableSettings(**settings)  # type: ignore[arg-type]  # names are checked by the class
    manager._tell(on.TableSeen(table=replace(TABLE, settings=chosen)))
    return manager


def in_window(**settings: object) -> TaskManager:
    return with_table(TaskManager(), windows=FROM_ONE, **settings)


def until(manager: TaskManager, at_s: float) -> None:
    """Let time pass to a time, with compactors that wait just before it."""
    manager.tick(at_s - 0.25 - manager.now_s)
    manager.ask(4)
    manager.tick(0.25)


def test_a_system_job_starts_when_the_window_opens_and_none_after_it() -> None:
    manager = in_window()
    manager.offer("a", 1)
    manager.ask(3)
    assert manager.running == []
    assert manager.queue == [], "a job that may not start takes no room and asks for no compactor"

    manager.tick(HOUR_S - 0.25)
    assert manager.ask(3) == []
    manager.tick(0.25)
    assert manager.running == ["a"]

    manager.tick(HOUR_S - 0.25)
    manager.offer("b", 1)
    assert manager.ask(2) == ["b"]
    manager.tick(0.25)
    manager.offer("c", 1)
    assert manager.running == ["a", "b"], "what runs may end"
    manager.finish("a")
    assert manager.running == ["b"]
    until(manager, DAY_S + HOUR_S)
    assert manager.running == ["b", "c"]


def test_a_queued_job_leaves_its_queue_when_the_window_closes() -> None:
    manager = in_window()
    manager.tick(HOUR_S)
    for name in "abc":
        manager.offer(name, 1)
    manager.offer("urgent", OVER_LIMIT)
    assert len(manager.queue) == 4
    manager.tick(HOUR_S)
    assert manager.queue == ["urgent"]
    assert manager.ask(4) == ["urgent"]
    until(manager, DAY_S + HOUR_S)
    assert sorted(manager.running) == ["a", "b", "c", "urgent"]


def test_a_job_does_not_start_between_the_end_of_the_window_and_the_next_tick() -> None:
    manager = in_window()
    manager.tick(HOUR_S)
    manager.offer("a", 1)
    manager.now_s += HOUR_S
    assert manager.ask(1) == []
    manager.tick(0.25)
    assert manager.running == []
    until(manager, DAY_S + HOUR_S)
    assert manager.running == ["a"]


def test_queued_jobs_of_a_closed_window_are_removed_in_steps() -> None:
    limits = Limits(withdrawals_max=2)
    manager = with_table(TaskManager(withdrawals_max=limits.withdrawals_max), windows=FROM_ONE)
    manager.tick(HOUR_S)
    for name in "abcde":
        manager.offer(name, 1)
    manager.tick(HOUR_S)
    assert len(manager.queue) == 3
    manager.tick()
    manager.tick()
    assert manager.queue == []


@pytest.mark.parametrize(
    ("exempt", "starts"),
    [
        (("requests", "over-limit"), ["above", "asked"]),
        (("requests",), ["asked"]),
        (("over-limit",), ["above"]),
        ((), []),
    ],
)
def test_exempt_jobs_start_outside_of_the_window(
    exempt: tuple[str, ...], starts: list[str]
) -> None:
    manager = in_window(window_exempt=exempt)
    manager.offer("small", 1)
    manager.offer("above", OVER_LIMIT)
    manager.offer("asked", CLASS_WIDTH, kind=Kind.USER)
    assert manager.ask(3) == starts


def test_other_tables_of_the_group_start_meanwhile() -> None:
    manager = in_window()
    manager.table("other", "default")
    manager.offer("a", 9)
    manager.offer("b", 1, table="other")
    assert manager.ask(2) == ["b"]


def test_both_windows_of_table_and_group_must_be_open() -> None:
    groups = windows_of(g=GroupSettings(windows="30 1 * * * for 1h"))
    manager = with_table(TaskManager(**groups), windows=FROM_ONE)  # type: ignore[arg-type]  # a limit
    manager.offer("a", 1)
    until(manager, HOUR_S)
    assert manager.running == []
    assert "opens at 1970-01-01 01:30 (UTC)" in explanation(manager, "a")
    until(manager, 1.5 * HOUR_S)
    assert manager.running == ["a"]
    manager.tick(HOUR_S / 2)
    manager.offer("b", 1)
    manager.ask(1)
    assert manager.running == ["a"], "the window of the table has closed"


def test_a_group_has_windows_for_all_of_its_tables() -> None:
    groups = windows_of(g=GroupSettings(windows=FROM_ONE), other=GroupSettings())
    manager = TaskManager(**groups)  # type: ignore[arg-type]  # a limit
    manager.offer("a", 1)
    manager.offer("b", 1, group="other")
    assert manager.ask(1) + manager.ask(1, group="other") == ["b"]
    until(manager, HOUR_S)
    assert manager.running == ["b", "a"]


def test_a_window_that_is_removed_or_moved_counts_at_once() -> None:
    manager = in_window()
    manager.offer("a", 1)
    assert manager.ask(2) == []
    with_table(manager)
    manager.tick(0.25)
    assert manager.running == ["a"]
    with_table(manager, windows="0 2 * * * for 1h")
    manager.offer("b", 1)
    until(manager, HOUR_S)
    assert manager.running == ["a"]
    until(manager, 2 * HOUR_S)
    assert manager.running == ["a", "b"]


def explanation(manager: TaskManager, name: str) -> str:
    sentences = manager.state.explain(manager.tablets[name], manager.now_s).sentences
    return "\n".join(sentences)


def test_explain_plan_and_status_name_the_next_opening() -> None:
    manager = with_table(TaskManager(), windows="0 22 * * * for 8h in Europe/Berlin")
    manager.tick(12 * HOUR_S)
    manager.offer("a", 1)
    opens = (
        "system jobs wait for the window of table trips (0 22 * * * for 8h in Europe/Berlin),"
        " which opens at 1970-01-01 22:00 (Europe/Berlin)"
    )
    assert opens in explanation(manager, "a")
    assert manager.state.why_held(manager.jobs["a"], manager.now_s) == opens
    (window,) = windows_shown(manager)
    assert (window.kind, window.name, window.is_open) == ("table", "trips", False)
    assert (window.opens_s, window.closes_s) == (21 * HOUR_S, None)
    assert window.opens_text == "1970-01-01 22:00 (Europe/Berlin)"
    until(manager, 21 * HOUR_S)
    (window,) = windows_shown(manager)
    assert (window.is_open, window.closes_s) == (True, 29 * HOUR_S)
    assert "window" not in explanation(manager, "a")
    assert manager.state.look(closed_windows, "t", ["g"], manager.now_s) == []


@pytest.mark.parametrize(
    ("of_table", "of_group"),
    [
        ("0 0 * * * for 1h", "0 2 * * * for 1h"),
        ("0 * * * * for 10m", "30 * * * * for 10m"),
        ("0 0 29 2 * for 1h", "0 0 1 3 * for 1h"),
    ],
)
def test_windows_that_never_overlap_are_explained(of_table: str, of_group: str) -> None:
    groups = windows_of(g=GroupSettings(windows=of_group))
    manager = with_table(TaskManager(**groups), windows=of_table)  # type: ignore[arg-type]
    manager.offer("a", 1)
    assert (
        "and does not open, because the windows of table trips and of group g do not overlap"
    ) in explanation(manager, "a")


def test_a_budget_of_bytes_closes_the_window_until_the_next_start() -> None:
    manager = in_window(window_input_bytes=100)
    manager.tick(HOUR_S)
    for name in ("a", "b", "c"):
        manager.offer(name, 1, cost_bytes=60)
    manager.offer("asked", CLASS_WIDTH, cost_bytes=1000, kind=Kind.USER)
    assert manager.ask(4) == ["asked", "a", "b"], "requests use no budget"
    manager.tick(0.25)
    assert manager.queue == []
    assert "which opens at 1970-01-02 01:00 (UTC) (this one has used its 100 B)" in explanation(
        manager, "c"
    )
    (window,) = windows_shown(manager)
    assert (window.is_open, window.used_bytes, window.bytes_max) == (False, 120, 100)
    assert window.opens_s == DAY_S + HOUR_S
    manager.finish("a")
    assert manager.running == ["asked", "b"], "bytes stay used after the job"
    until(manager, DAY_S + HOUR_S)
    assert manager.running == ["asked", "b", "c"]
    (window,) = windows_shown(manager)
    assert window.used_bytes == 60


def windows_shown(manager: TaskManager) -> tuple[api.Window, ...]:
    status = manager.state.look(coordinator_status, "c", manager.now_s, 0, 0)
    return status.windows


def own_windows(manager: TaskManager) -> JobWindows:
    return manager.state._cluster.windows


def test_a_refused_reservation_uses_no_budget() -> None:
    manager = in_window(window_input_bytes=100)
    manager.tick(HOUR_S)
    manager.offer("a", 1, cost_bytes=100)
    own = own_windows(manager)
    for _ in range(2):
        own.enter("take", manager.jobs["a"], manager.now_s)
        assert own.lines(str, manager.now_s)[0].used_bytes == 100, "a repeated key counts once"
    assert not own.is_open("t", "g", manager.now_s)
    own.refund("take")
    own.refund("take")
    assert manager.ask(1) == ["a"]


def test_a_job_that_is_confirmed_after_the_window_uses_no_budget() -> None:
    manager = in_window(window_input_bytes=100)
    manager.tick(HOUR_S)
    manager.offer("a", 1, cost_bytes=60)
    own = own_windows(manager)
    own.enter("take", manager.jobs["a"], manager.now_s)
    own.refund("take")
    own.enter("attempt", manager.jobs["a"], manager.now_s + HOUR_S)
    own.leave("attempt", manager.now_s + HOUR_S + 9)
    own.check()
    assert own.lines(str, manager.now_s + HOUR_S)[0].used_bytes == 0


def test_a_tablet_whose_jobs_wait_for_different_windows_is_planned_at_the_first() -> None:
    groups = windows_of(
        g=GroupSettings(windows="0 3 * * * for 1h"), other=GroupSettings(windows=FROM_ONE)
    )
    manager = TaskManager(**groups)  # type: ignore[arg-type]  # a limit
    manager.offer("a", 1)
    manager.offer("b", 1, group="other")
    jobs = [manager.jobs["a"], replace(manager.jobs["b"], tablet=manager.tablets["a"])]
    for job in jobs:
        wait_queue = own_windows(manager).wait_queue_of(job, manager.now_s)
        assert wait_queue is not None
        await_window(manager.state._cluster, job, wait_queue, manager.now_s)
    planned = manager.planned
    manager.tick(HOUR_S)
    assert manager.planned == planned + 2, "a by its timer, b by its wait queue"
    with_table(manager, windows="0 5 * * * for 1h")
    await_window(manager.state._cluster, jobs[0], "window::elsewhere", manager.now_s)
    assert manager.state._cluster.replan_timers.due(DAY_S * 500, 9) == [], "they never overlap"


def test_a_budget_of_slots_counts_what_jobs_take() -> None:
    manager = in_window(window_cost_s=600.0)
    manager.tick(HOUR_S)
    manager.offer("a", 1)
    manager.offer("b", 1)
    assert manager.ask(2) == ["a", "b"]
    manager.tick(200.0)
    manager.finish("a")
    manager.offer("c", 1)
    assert manager.ask(1) == ["c"], "400 s are used"
    manager.tick(100.0)
    (window,) = windows_shown(manager)
    assert window.used_cost_s == 200 + 300 + 100
    manager.offer("d", 1)
    assert manager.ask(1) == []
    assert "this one has used its 10 m 00 s of slots" in explanation(manager, "d")


def test_a_job_of_the_window_before_does_not_count() -> None:
    manager = with_table(TaskManager(), windows="0 * * * * for 30m", window_cost_s=60.0)
    manager.offer("a", 1)
    assert manager.ask(1) == ["a"]
    manager.tick(HOUR_S)
    manager.offer("b", 1)
    assert manager.ask(1) == ["b"]
    manager.tick(10.0)
    manager.finish("a")
    (window,) = windows_shown(manager)
    assert window.used_cost_s == pytest.approx(10.0)


def test_many_tables_cost_nothing_between_the_changes_of_their_windows() -> None:
    manager = TaskManager()
    for number in range(200):
        settings = TableSettings(windows=FROM_ONE)
        table = replace(TABLE, id=f"t{number}", name=f"t{number}", settings=settings)
        manager._tell(on.TableSeen(table=table))
    manager.tick()
    own = own_windows(manager)
    own._rules = None  # type: ignore[assignment]  # A look at any of them would fail.
    own.look(manager.now_s + 10)
    with pytest.raises(TypeError):
        own.look(HOUR_S)


def test_the_lines_of_a_status_look_at_each_table_once_a_minute() -> None:
    manager = TaskManager()
    for number in range(200):
        settings = TableSettings(windows=FROM_ONE)
        table = replace(TABLE, id=f"t{number}", name=f"t{number}", settings=settings)
        manager._tell(on.TableSeen(table=table))
    looks = 0
    own = own_windows(manager)
    is_open = own._is_open

    def counted(scope: Scope, now_s: float) -> bool:
        nonlocal looks
        looks += 1
        return is_open(scope, now_s)

    own._is_open = counted  # type: ignore[method-assign]  # to count the looks

    def looks_of(now_s: float) -> int:
        nonlocal looks
        looks = 0
        assert len(own.lines(str, now_s)) == 100
        return looks

    assert looks_of(5.0) == 300, "each table, then those that are shown"
    assert looks_of(9.0) == 100
    assert looks_of(66.0) == 300
    assert looks_of(67.0) == 100
    own.set_table("another", WindowRule.of(TableSettings(windows="* * * * * for 1m")))
    assert looks_of(68.0) == 301
    assert [line.name for line in own.lines(str, 68.0)].count("another") == 0, "open ones are last"


def restarted(manager: TaskManager, **settings: object) -> TaskManager:
    """Return a manager whose coordinator begins with what that of another one has stored."""
    changes, usages = manager.state.look(window_usages, 0, manager.now_s)
    assert changes
    assert usages is not None
    assert manager.state.look(window_usages, changes, manager.now_s) == (changes, None)
    after = in_window(**settings)
    after.now_s = manager.now_s
    for _ in range(2):  # An event may arrive twice.
        after._tell(on.WindowUsesSeen(packed=packed_usages(usages)))
    own_windows(after).check()
    return after


def test_a_restart_does_not_grant_the_budget_of_a_window_twice() -> None:
    before = in_window(window_input_bytes=100)
    before.tick(HOUR_S)
    for name, size_bytes in (("a", 60), ("b", 70)):
        before.offer(name, 1, cost_bytes=size_bytes)
    assert before.ask(2) == ["a", "b"]
    before.finish("a")

    after = restarted(before, window_input_bytes=100)
    (window,) = windows_shown(after)
    assert (window.used_bytes, window.is_open) == (130, False)
    after.offer("c", 1, cost_bytes=10)
    assert after.ask(1) == []
    until(after, DAY_S + HOUR_S)
    assert after.running == ["c"], "the next window has a budget of its own"
    own_windows(after).check()


def test_a_restart_goes_on_with_the_slots_that_were_used() -> None:
    before = in_window(window_cost_s=2000.0)
    before.tick(HOUR_S)
    for name in "ab":
        before.offer(name, 1)
    assert before.ask(2) == ["a", "b"]
    before.tick(100.0)
    before.finish("a")
    before.tick(300.0)

    after = restarted(before, window_cost_s=2000.0)
    own = own_windows(after)
    (line,) = own.lines(str, after.now_s + 500.0)
    assert line.used_cost_s == 100 + 400, "it is unknown whether b still runs"
    (attempt,) = own._charges
    own.leave(attempt, after.now_s + 500.0)
    (line,) = own.lines(str, after.now_s + 600.0)
    assert line.used_cost_s == 100 + 900
    own.check()


def test_what_starts_before_the_stored_use_is_read_counts_as_well() -> None:
    before = in_window(window_input_bytes=100)
    before.tick(HOUR_S)
    before.offer("a", 1, cost_bytes=60)
    assert before.ask(1) == ["a"]
    _, usages = before.state.look(window_usages, 0, before.now_s)
    assert usages is not None

    after = in_window(window_input_bytes=100)
    after.tick(HOUR_S)
    after.offer("b", 1, cost_bytes=30)
    assert after.ask(1) == ["b"]
    after._tell(on.WindowUsesSeen(packed=packed_usages(usages)))
    assert windows_shown(after)[0].used_bytes == 90
    after.finish("b")
    own_windows(after).check()

    late = in_window(window_input_bytes=100)
    until(late, DAY_S + HOUR_S)
    late.offer("c", 1, cost_bytes=30)
    assert late.running == ["c"]
    late._tell(on.WindowUsesSeen(packed=packed_usages(usages)))
    assert windows_shown(late)[0].used_bytes == 30, "the stored use is of the day before"


@pytest.mark.parametrize("packed", [b"{", b"7", b'[["table"]]', b'[["table","t",1,2,3,[]]]'])
def test_a_damaged_use_is_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="no use of windows"):
        unpacked_usages(packed)
