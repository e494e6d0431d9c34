"""Files that overlap where work waits, and garbage: measured with a plan, told to controllers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.model.file import DataFile, overlapping_files
from common.model.job import Job, Kind, TabletPlan, TabletPressure
from common.model.tablet import Record, TabletId
from coordinator.core import events as on
from coordinator.core.control import (
    ControlLoop,
    ControlRules,
    Pressures,
    garbage_bytes,
    with_pressure,
)
from coordinator.plugins.controllers import DebtController, DebtOptions
from tests.support.task_manager import TABLE, TaskManager
from tests.unit.coordinator.test_planning import planned, running, tablet

pytestmark = pytest.mark.unit

MIB = 1024**2
KEYS = range(12)


def file(name: str, *keys: int, size: int = 100, **more: object) -> DataFile:
    low, high = (bytes([min(keys)]), bytes([max(keys)])) if keys else (None, None)
    return DataFile(
        path=name,
        size_bytes=size,
        rows=10,
        key_min=low,
        key_max=high,
        **more,  # type: ignore[arg-type]  # names are checked by the class
    )


# ------------------------------------------------------------------------------------ Of one tablet


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(KEYS)), max_size=12))
def test_files_overlap_where_most_of_them_hold_one_key(spans: list[tuple[int, int]]) -> None:
    files = [file(f"f{number}", *span) for number, span in enumerate(spans)]
    most = max(sum(min(span) <= key <= max(span) for span in spans) for key in KEYS)
    assert overlapping_files(files, ()) == most


def test_of_files_without_keys_those_count_that_jobs_take() -> None:
    files = [file(name) for name in "abcdef"]
    assert overlapping_files(files, {"a", "b", "c"}) == 3
    assert overlapping_files(files, ()) == 0
    assert overlapping_files([*files, file("g", 1, 2), file("h", 2, 3)], {"a"}) == 3


@pytest.mark.parametrize(
    ("given_of", "garbage"),
    [
        ({}, 0),
        ({"tombstones": 3}, 30),
        ({"tombstones": 30}, 100),
        ({"live_bytes": 60}, 40),
        ({"live_bytes": 60, "tombstones": 10}, 40),
        ({"live_bytes": 200}, 0),
    ],
)
def test_garbage_is_what_is_counted_and_else_tombstones(
    given_of: dict[str, int], garbage: int
) -> None:
    assert garbage_bytes(file("a", 1, 2, **given_of)) == garbage


def test_a_file_without_rows_has_no_garbage() -> None:
    assert garbage_bytes(replace(file("a"), rows=0)) == 0


def test_a_plan_tells_the_pressure_of_its_tablet() -> None:
    files = {name: file(name, 1, 2 + at, tombstones=1) for at, name in enumerate("abcdefgh")}
    found = with_pressure(planned(tablet(files=files)), tablet(files=files), 100).pressure
    assert found == TabletPressure(overlapping_files=8, stored_bytes=800, garbage_bytes=80, files=8)
    written = files | {"h": replace(files["h"], open=True)}
    found = with_pressure(planned(tablet(files=written)), tablet(files=written), 100).pressure
    assert found == TabletPressure(overlapping_files=7, stored_bytes=700, garbage_bytes=70, files=7)


def test_files_below_half_of_the_target_size_are_small_unless_one_is_alone() -> None:
    sizes = {"a": 49, "b": 50, "c": 10}
    files = {name: replace(file(name), size_bytes=size) for name, size in sizes.items()}
    for names, small in (("abc", 2), ("ab", 0), ("a", 0), ("ac", 2)):
        own = tablet(files={name: files[name] for name in names})
        pressure = with_pressure(planned(own), own, 100).pressure
        assert pressure is not None
        assert (pressure.files, pressure.small_files) == (len(names), small), names


def test_the_tables_with_most_small_files_are_named_with_all_their_files() -> None:
    found = Pressures(10)
    for tablet_id, small, files in zip(
        TABLETS, (1, 2, 0, 5, 0, 3), (4, 4, 9, 5, 5, 5), strict=True
    ):
        pressure = TabletPressure(stored_bytes=1, files=files, small_files=small)
        found.put(tablet_id, pressure)
    assert found.small_files(9) == [("u", 8, 15), ("t", 3, 17)]
    assert found.small_files(1) == [("u", 8, 15)]
    for tablet_id in TABLETS[3:]:
        found.discard(tablet_id)
    assert found.small_files(9) == [("t", 3, 17)]


def test_no_files_overlap_where_no_work_waits() -> None:
    two = {name: file(name, 1, 2, live_bytes=50) for name in "ab"}
    rest = with_pressure(TabletPlan(), tablet(files=two), 0).pressure
    assert rest == TabletPressure(stored_bytes=200, garbage_bytes=100, files=2)
    busy = tablet(files=two, running={"at1": running("at1", "a", "b")})
    assert with_pressure(TabletPlan(), busy, 0).pressure == replace(rest, overlapping_files=2)


# ----------------------------------------------------------------------------------- Of all tablets


TABLETS = [TabletId(table, end) for table in ("t", "u") for end in (b"a", b"b", b"c")]
PRESSURES = st.builds(
    lambda depth, stored, part: TabletPressure(
        overlapping_files=depth,
        stored_bytes=stored,
        garbage_bytes=stored * part // 10,
        files=stored,
        small_files=part,
    ),
    st.integers(0, 4),
    st.integers(0, 50),
    st.integers(0, 10),
)
STEPS = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(TABLETS), st.none() | PRESSURES),
    st.tuples(st.just("discard"), st.sampled_from(TABLETS), st.none()),
    st.tuples(st.just("forget"), st.sampled_from(TABLETS), st.none()),
)


@given(st.lists(STEPS, max_size=40))
def test_sums_and_the_deepest_are_those_of_the_tablets(
    steps: list[tuple[str, TabletId, TabletPressure | None]],
) -> None:
    found, model = Pressures(100), dict[TabletId, TabletPressure]()
    for step, tablet_id, pressure in steps:
        model.pop(tablet_id, None)
        match step:
            case "put":
                found.put(tablet_id, pressure)
                if pressure is not None:
                    model[tablet_id] = pressure
            case "discard":
                found.discard(tablet_id)
            case _:
                found.forget_table(tablet_id.table)
                model = {id_: each for id_, each in model.items() if id_.table != tablet_id.table}
        found.check()
        stored = sum(each.stored_bytes for each in model.values())
        garbage = sum(each.garbage_bytes for each in model.values())
        assert found.garbage_fraction == (garbage / stored if stored else 0.0)
        deepest = max((each.overlapping_files for each in model.values()), default=0)
        assert found.deepest_files == deepest
        by_table = dict[str, int]()
        for id_, each in model.items():
            if each.overlapping_files:
                depth = max(by_table.get(id_.table, 0), each.overlapping_files)
                by_table[id_.table] = depth
        assert found.deepest_tables(100) == by_table
        assert [*found.deepest_tables(1).values()] == ([deepest] if deepest else [])


def test_a_depth_that_comes_and_goes_leaves_nothing_behind() -> None:
    found = Pressures(10)
    found.put(TABLETS[0], TabletPressure(overlapping_files=9, stored_bytes=1))
    for _ in range(1000):
        found.put(TABLETS[1], TabletPressure(overlapping_files=5, stored_bytes=1))
        found.discard(TABLETS[1])
    assert len(found._depths) == 1
    found.discard(TABLETS[0])
    assert found.deepest_files == 0
    assert found._depths == {}


def test_those_planned_longest_ago_are_forgotten() -> None:
    found = Pressures(2)
    for depth, tablet_id in enumerate(TABLETS[:3], 3):
        found.put(tablet_id, TabletPressure(overlapping_files=9 - depth, stored_bytes=1))
        found.check()
    assert found.deepest_files == 5, "the first one, with 6, is forgotten"


# ---------------------------------------------------------------------------- What controllers hear


class DebtManager(TaskManager):
    """Tablets whose plans tell a pressure, under the controller `debt`."""

    def __init__(self) -> None:
        controller = DebtController(DebtOptions())
        super().__init__(ControlLoop(controller, ControlRules(group_slots={"g": 11})))

    def press(self, name: str, **pressure: int) -> None:
        """Plan a tablet with one job and this pressure."""
        tablet_id = self.tablets[name] = TabletId(TABLE.id, name.encode())
        job = Job(
            id=name,
            tablet=tablet_id,
            table_name="trips",
            kind=Kind.SYSTEM,
            inputs=(f"{name}-0",),
            input_bytes=MIB,
            group="g",
            priority=1,
            reason="because",
        )
        version = self.records.get(name, Record(files=1)).version + 1
        self.records[name] = Record(files=1, version=version)
        plan = TabletPlan(jobs=(job,), pressure=TabletPressure(**pressure))
        event = on.TabletPlanned(
            tablet=tablet_id,
            plan=plan,
            record=self.records[name],
            settings_version=TABLE.settings_version,
        )
        self._tell(event)

    def slots(self) -> int | None:
        """Let the slew limit pass, and return the slots of the decision."""
        for _ in range(12):
            self.tick()
        return self.state.control(self.now_s).slots


def test_deep_tablets_and_garbage_ask_for_slots() -> None:
    manager = DebtManager()
    assert manager.slots() == 1
    manager.press("a", overlapping_files=30, stored_bytes=1000)
    manager.press("b", overlapping_files=12, stored_bytes=1000)
    assert manager.slots() == 4, "one, and one for each ten files"
    told = manager.state.control(manager.now_s)
    assert (told.deepest_files, told.garbage_fraction) == (30, 0.0)
    manager.press("a", overlapping_files=5, stored_bytes=1000, garbage_bytes=400)
    assert manager.slots() == 6, "a fifth of all is garbage: half of ten slots"
    told = manager.state.control(manager.now_s)
    assert (told.deepest_files, told.garbage_fraction) == (12, 0.2)


def test_what_is_gone_presses_no_more() -> None:
    manager = DebtManager()
    manager.press("a", overlapping_files=30, stored_bytes=1000, garbage_bytes=500)
    manager.press("b", overlapping_files=20, stored_bytes=1000)
    manager._tell(on.TabletGone(tablet=manager.tablets["a"]))
    assert manager.slots() == 3
    assert manager.state.control(manager.now_s).garbage_fraction == 0.0
    manager._tell(on.TableGone(table=TABLE.id))
    assert manager.slots() == 1
    assert manager.state.control(manager.now_s).deepest_files == 0
