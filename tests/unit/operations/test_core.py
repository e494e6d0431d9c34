"""Steps of a split and merge, the jobs that cut, and when one begins: tables of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from common.metadata.changes import (
    AbandonOperation,
    EndOperation,
    StepOperation,
)
from common.model.file import DataFile
from common.model.group import Group, Service
from common.model.job import (
    Kind,
    PriorityClass,
    class_of,
    job_priority,
)
from common.model.table import Column, Table, TableSettings, TableState
from common.model.tablet import (
    PLUS_INFINITY,
    Bounds,
    Operation,
    OperationKind,
    OperationStep,
    Record,
    Reservation,
    Selection,
    Tablet,
    TabletId,
)
from coordinator.core import split_merge as core
from coordinator.core.planning import crossing_files, cut_plan, is_cutting

CUT, DRAIN, CLOSE = OperationStep
MB = 1024**2
TABLE = Table(
    id="t1",
    name="events",
    location="file:///x",
    schema=(Column("k", "int64"),),
    key=("k",),
    settings=TableSettings(split_bytes=100 * MB, merge_bytes=50 * MB),
)
NOW_S, REST_S = 10_000.0, 3600.0


def file(path: str, key_min: bytes, key_max: bytes, size: int = 10, **more: object) -> DataFile:
    facts = {"path": path, "size_bytes": size, "rows": 1, "key_min": key_min, "key_max": key_max}
    return DataFile(**(facts | more))  # type: ignore[arg-type]  # facts by name


def tablet(
    *files: DataFile, end: bytes = b"z", start: bytes | None = None, **more: object
) -> Tablet:
    facts: dict[str, object] = {
        "id": TabletId("t1", end),
        "bounds": Bounds(start, end),
        "files": {each.path: each for each in files},
    }
    return Tablet(**(facts | more))  # type: ignore[arg-type]  # facts by name


def running(*inputs: str, attempt: str = "a1") -> dict[str, Reservation]:
    entry = Reservation(
        attempt=attempt, job="j", kind=Kind.SYSTEM, inputs=inputs, output_prefix="o",
        outputs_max=1, group="default", compactor="c", since_s=0, now_s=0,
    )  # fmt: skip
    return {attempt: entry}


def split(step: OperationStep, at: bytes = b"m", since_s: float = NOW_S) -> Operation:
    return Operation(OperationKind.SPLIT, "op", step, at, since_s)


def merge(step: OperationStep, at: bytes = b"m") -> Operation:
    return Operation(OperationKind.MERGE, "op", step, at, NOW_S)


def following(*tablets: Tablet, now_s: float = NOW_S, stuck: str = "") -> core.OperationChange:
    return core.next_change(tablets, now_s, lasts_max_s=600, stuck=stuck)


LEFT, RIGHT, OVER = file("l", b"a", b"m"), file("r", b"n", b"y"), file("x", b"b", b"n")
STEP = {step: StepOperation(tablets=(TabletId("t1", b"z"),), operation="op", step=step)
        for step in OperationStep}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "then"),
    [
        (tablet(operation=split(CUT)), STEP[DRAIN]),
        (tablet(LEFT, RIGHT, operation=split(CUT)), STEP[DRAIN]),
        (tablet(LEFT, running=running("l"), operation=split(CUT)), STEP[DRAIN]),
        (tablet(LEFT, OVER, operation=split(CUT)), "files cross the cut: x"),
        (tablet(LEFT, RIGHT, running=running("l", "r"), operation=split(CUT)), "joins files"),
        (tablet(LEFT, operation=split(DRAIN)), STEP[CLOSE]),
        (tablet(LEFT, running=running("l"), operation=split(DRAIN)), "attempts are running: a1"),
        (
            tablet(LEFT, operation=split(CLOSE)),
            EndOperation(tablets=(TabletId("t1", b"z"),), operation="op"),
        ),
        (tablet(LEFT, running=running("l"), operation=split(CLOSE)), "attempts are running: a1"),
    ],
)
def test_the_next_step_of_a_split(given: Tablet, then: object) -> None:
    found = following(given)
    if isinstance(then, str):
        assert isinstance(found, core.WaitForTablets)
        assert then in found.reason
        return
    assert found == then
    # What can be done is done, however late it is and whatever is stuck.
    assert following(given, now_s=NOW_S + 601, stuck="quarantined") == then


def test_the_next_step_of_a_merge() -> None:
    ids = (TabletId("t1", b"m"), TabletId("t1", b"z"))

    def both(step: OperationStep, **of_left: object) -> core.OperationChange:
        operation = merge(step)
        left = tablet(LEFT, end=b"m", operation=operation, **of_left)
        return following(left, tablet(RIGHT, start=b"m", operation=operation))

    assert both(DRAIN) == StepOperation(tablets=ids, operation="op", step=CLOSE)
    assert isinstance(both(DRAIN, running=running("l")), core.WaitForTablets)
    assert both(CLOSE) == EndOperation(tablets=ids, operation="op")
    alone = following(tablet(RIGHT, start=b"m", operation=merge(CLOSE)))
    assert isinstance(alone, core.AbandonStep)
    assert alone.change == AbandonOperation(tablets=ids[1:], operation="op")


@pytest.mark.parametrize(
    ("now_s", "stuck", "reason"),
    [
        (NOW_S + 600, "", None),
        (NOW_S + 601, "", "not finished after 600 s: tablet t1;7a: files cross the cut: x"),
        (NOW_S, "quarantined, failed 5 times", "quarantined, failed 5 times"),
    ],
)
def test_an_operation_that_stands_still_is_abandoned(
    now_s: float, stuck: str, reason: str | None
) -> None:
    found = following(tablet(OVER, operation=split(CUT)), now_s=now_s, stuck=stuck)
    if reason is None:
        assert isinstance(found, core.WaitForTablets)
        return
    change = AbandonOperation(tablets=(TabletId("t1", b"z"),), operation="op")
    assert found == core.AbandonStep(change, reason)


def test_crossing_files_are_cut_in_few_jobs() -> None:
    files = [file(f"x{number}", b"a", b"y", 10 + number) for number in range(5)]
    busy, unfinished = file("busy", b"a", b"y"), file("open", b"a", b"y", open=True)
    given = tablet(*files, LEFT, busy, unfinished, operation=split(CUT), running=running("busy"))
    assert is_cutting(given.operation)
    service = Service(groups=(Group(name="small", max_bytes=30), Group(name="all")))
    table = replace(TABLE, settings=TableSettings(max_files=3))
    plan = cut_plan(given, table, service)
    assert [job.inputs for job in plan.jobs] == [("x0", "x1", "x2"), ("x3", "x4")]
    assert [(job.group, job.cuts, job.outputs_expected) for job in plan.jobs] == [
        ("all", (b"m",), 2),
        ("small", (b"m",), 2),
    ]
    assert plan.left == {
        "l": "lies entirely on one side of the split key",
        "busy": "being merged by a1",
        "open": "still being written, but crosses the split key",
    }
    assert plan.jobs[0].reason == "cut at the split key: 3 files of 33 B"
    # One of them on its way leaves the other as it was, name and all.
    more = running("busy") | running("x0", "x1", "x2", attempt="a2")
    assert cut_plan(replace(given, running=more), table, service).jobs == plan.jobs[1:]
    two = cut_plan(given, TABLE, Service(options={"max_files": 2}))
    assert [len(job.inputs) for job in two.jobs] == [2, 2, 1]
    bounded = Service(groups=(Group(name="small", max_bytes=25),))
    assert [job.inputs for job in cut_plan(given, table, bounded).jobs] == [
        ("x0", "x1"), ("x2",), ("x3",), ("x4",)
    ]  # fmt: skip


def test_a_file_without_keys_is_cut_away_and_a_merge_cuts_nothing() -> None:
    empty = DataFile(path="none", size_bytes=1, rows=0)
    given = tablet(empty, OVER, LEFT, operation=split(CUT))
    assert [crossing_file.path for crossing_file in crossing_files(given)] == ["none", "x"]
    assert crossing_files(tablet(OVER, operation=merge(DRAIN))) == ()
    assert crossing_files(tablet(OVER)) == ()
    assert not is_cutting(split(DRAIN))
    assert not is_cutting(None)


def test_a_job_that_cuts_comes_before_all_others() -> None:
    plan = cut_plan(tablet(OVER, operation=split(CUT)), TABLE, Service())
    crowded = job_priority(Kind.SYSTEM, files_in_tablet=2000, files_in_job=10, file_limit=15)
    assert plan.jobs[0].priority > crowded
    assert class_of(plan.jobs[0].priority) is PriorityClass.OVER_LIMIT


BIG = file("b", b"a", b"y", 101 * MB)


@pytest.mark.parametrize(
    ("given", "table", "wanted"),
    [
        (tablet(BIG), TABLE, True),
        (tablet(file("b", b"a", b"y", 100 * MB)), TABLE, False),
        (tablet(BIG), replace(TABLE, settings=TableSettings()), False),
        (tablet(BIG), replace(TABLE, key=()), False),
        (tablet(BIG), replace(TABLE, partition_by=("k",)), False),
        (tablet(BIG), replace(TABLE, state=TableState.PAUSED), False),
        (tablet(BIG, operation=merge(DRAIN)), TABLE, False),
        (tablet(BIG, selection=Selection(request="r", files=("b",))), TABLE, False),
        (tablet(BIG, waiting={"r": 1.0}), TABLE, False),
        (tablet(BIG, done=frozenset({"r"})), TABLE, False),
        (tablet(BIG, running=running("b")), TABLE, True),
        (tablet(BIG, record=Record(abandoned_s=NOW_S - REST_S + 1)), TABLE, False),
        (tablet(BIG, record=Record(abandoned_s=NOW_S - REST_S)), TABLE, True),
    ],
)
def test_a_large_quiet_tablet_is_split(given: Tablet, table: Table, wanted: bool) -> None:
    why = core.why_split(given, table, NOW_S, REST_S)
    assert (why is not None) is wanted
    if why is not None:
        assert why == "its files have 101.0 MiB, more than split_bytes 100.0 MiB"


SMALL = tablet(file("s", b"a", b"m", 20 * MB), end=b"m")
NEXT = tablet(file("n", b"n", b"y", 29 * MB), start=b"m")


@pytest.mark.parametrize(
    ("left", "right", "table", "wanted"),
    [
        (SMALL, NEXT, TABLE, True),
        (SMALL, tablet(file("n", b"n", b"y", 30 * MB), start=b"m"), TABLE, False),
        (SMALL, tablet(start=b"n"), TABLE, False),
        (SMALL, NEXT, replace(TABLE, settings=TableSettings()), False),
        (SMALL, NEXT, replace(TABLE, state=TableState.PAUSED), False),
        (SMALL, NEXT, replace(TABLE, key=()), False),
        (replace(SMALL, waiting={"r": 1.0}), NEXT, TABLE, False),
        (SMALL, replace(NEXT, done=frozenset({"r"})), TABLE, False),
        (SMALL, replace(NEXT, record=Record(abandoned_s=NOW_S - 1)), TABLE, False),
    ],
)
def test_small_quiet_neighbours_are_merged(
    left: Tablet, right: Tablet, table: Table, wanted: bool
) -> None:
    why = core.why_merge(left, right, table, NOW_S, REST_S)
    assert (why is not None) is wanted
    if why is not None:
        assert why == "the files of both tablets have 49.0 MiB, less than merge_bytes 50.0 MiB"


def records(*sizes: int | Record) -> list[tuple[TabletId, Record]]:
    return [
        (
            TabletId("t1", bytes([number])),
            size if isinstance(size, Record) else Record(size_bytes=size * MB),
        )
        for number, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("given", "pairs"),
    [
        (records(), []),
        (records(10), []),
        (records(10, 39), [(0, 1)]),
        (records(10, 40), []),
        (records(40, 5, 5, 5), [(0, 1), (2, 3)]),
        (records(90, 5, 5, 90), [(1, 2)]),
        (records(5, Record(operation=True), 5, 5), [(2, 3)]),
        (records(5, Record(selected=True), 5), []),
        (records(5, Record(waiting=1), 5), []),
        (records(5, Record(abandoned_s=NOW_S - 1), 5), []),
        (records(5, Record(abandoned_s=NOW_S - REST_S), 5), [(0, 1)]),
    ],
)
def test_small_quiet_neighbours_are_paired_for_a_merge(
    given: list[tuple[TabletId, Record]], pairs: list[tuple[int, int]]
) -> None:
    found = core.pairs_to_merge(given, TABLE, NOW_S, REST_S)
    assert [(left.end[0], right.end[0]) for left, right in found] == pairs
    assert core.pairs_to_merge(given, replace(TABLE, key=()), NOW_S, REST_S) == []


def test_merged_tablets_stay_well_below_the_split_size() -> None:
    greedy = TableSettings(split_bytes=100, merge_bytes=99)
    assert core.merge_bytes(replace(TABLE, settings=greedy)) == 50
    assert core.merge_bytes(replace(TABLE, settings=TableSettings(merge_bytes=99))) == 99
    assert TabletId("t1", PLUS_INFINITY).text == "last"
