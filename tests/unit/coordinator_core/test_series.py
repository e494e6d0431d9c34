"""Recorded values: rings, names with and without rows, sums, snapshots, and bounds."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from common.metadata.changes.upkeep import SERIES_PART_BYTES_MAX
from common.model.job import TabletBacklog, TabletPlan
from common.model.table import Table
from common.model.tablet import Record, TabletId
from common.settings import CoordinatorSettings
from common.wire import RecordedLine, RecordedSeries, SeriesQuery
from coordinator.core import events as on
from coordinator.core.series import (
    MEMORY_BYTES_MAX,
    TABLES_MAX,
    SeriesPart,
    SeriesSample,
    SeriesStore,
)
from coordinator.core.state import CoordinatorState
from coordinator.core.views import recorded_series, recorded_tables
from neve import api

STEP_S = api.SERIES_STEP_S
HOUR = SeriesQuery(span_s=3600.0, points=720, count=100)
DAY = SeriesQuery(span_s=86400.0, points=1440, count=100)


def sample(
    tables: Mapping[str, float],
    attempts: Mapping[str, tuple[str, str, float, float]] | None = None,
) -> SeriesSample:
    backlog = {"backlog_bytes": tables}
    groups = {"backlog_bytes": {"default": sum(tables.values())}}
    return SeriesSample(tables=backlog, groups=groups, total={}, attempts=attempts or {})


@dataclass
class Answer:
    """The lines of an answer by their kinds."""

    series: RecordedSeries

    def __post_init__(self) -> None:
        lines = self.series.lines
        self.start_s, self.step_s = self.series.start_s, self.series.step_s
        self.count = self.series.count
        self.tables = tuple(line for line in lines if line.kind == "tables")
        self.groups = tuple(line for line in lines if line.kind == "groups")
        (self.total,) = (line for line in lines if line.kind == "total")
        self.others = next((line for line in lines if line.kind == "others"), None)


def read(store: SeriesStore, query: SeriesQuery, names: Sequence[str] = ()) -> Answer:
    return Answer(store.read(query, {name: name for name in names}))


def values(line: RecordedLine | None, measure: str = "backlog_bytes") -> list[float | None]:
    """Return the values of a measure; None: a gap."""
    assert line is not None
    rows = np.frombuffer(line.values, "<f4").reshape(len(line.measures), -1)
    own = rows[line.measures.index(measure)].tolist()
    return [None if value != value else value for value in own]


def table_values(found: Answer, measure: str = "backlog_bytes") -> dict[str, list[float | None]]:
    return {line.name: values(line, measure) for line in found.tables}


def test_an_hour_has_steps_of_five_seconds_and_a_day_has_minutes() -> None:
    store = SeriesStore()
    for step in range(24 * 720 + 100):
        store.note(sample({"a": float(step)}), step * STEP_S)
    last = 24 * 720 + 99

    hour, day = read(store, HOUR, ["a"]), read(store, DAY, ["a"])

    assert (hour.count, hour.step_s, hour.start_s) == (720, 5.0, (last - 719) * STEP_S)
    assert table_values(hour) == {"a": [float(step) for step in range(last - 719, last + 1)]}
    minute = (last + 1) // 12 - 1
    assert (day.count, day.step_s, day.start_s) == (1440, 60.0, (minute - 1439) * 60.0)
    averages = [12 * number + 5.5 for number in range(minute - 1439, minute + 1)]
    assert table_values(day)["a"] == averages
    assert values(day.total) == values(day.groups[0]) == averages


def test_few_points_combine_neighbours_and_add_failures() -> None:
    store = SeriesStore()
    for step in range(12):
        store.note_end("x", "a", "default", 0, failed=True)
        store.note(sample({"a": float(step)}), step * STEP_S)

    found = read(store, SeriesQuery(span_s=40.0, points=3, count=1), ["a"])

    # Eight steps in three points: three steps each, and the oldest two are left out.
    assert (found.count, found.step_s, found.start_s) == (2, 15.0, 30.0)
    assert table_values(found) == {"a": [7.0, 10.0]}
    assert table_values(found, "failures") == {"a": [3.0, 3.0]}
    assert values(found.total, "failures") == [3.0, 3.0]


def test_throughput_is_what_attempts_have_rewritten_since_the_last_sample() -> None:
    store = SeriesStore()
    store.note(sample({}), 0.0)
    running = {"x": ("a", "default", 1.0, 50.0), "old": ("a", "default", -9.0, 500.0)}
    store.note(sample({"a": 1.0}, running), 5.0)
    store.note(sample({"a": 1.0}, {**running, "x": ("a", "default", 1.0, 80.0)}), 10.0)
    store.note_end("x", "a", "default", 100.0, failed=False)
    store.note_end("y", "b", "small", 200.0, failed=False)
    store.note(sample({"a": 1.0}), 15.0)
    store.note(sample({"a": 1.0}), 20.0)

    found = read(store, SeriesQuery(span_s=25.0, points=720, count=9), ["a", "b"])

    # The work of attempt `old` was done before its first sample, so its time is not known.
    assert table_values(found, "rewritten_bytes_s") == {
        "a": [0.0, 10.0, 6.0, 4.0, 0.0],
        "b": [0.0, 0.0, 0.0, 40.0, 0.0],
    }
    assert values(found.total, "rewritten_bytes_s") == [0.0, 10.0, 6.0, 44.0, 0.0]
    assert [line.name for line in found.groups] == ["default", "small"]
    assert values(found.groups[1], "rewritten_bytes_s") == [0.0, 0.0, 0.0, 40.0, 0.0]


def test_late_ticks_fill_their_steps_and_a_stop_is_a_gap() -> None:
    store = SeriesStore()
    for at_s in (0.0, 15.0, 90.0):
        store.note(sample({"a": at_s + 1}), at_s)

    found = read(store, SeriesQuery(span_s=95.0, points=720, count=1), ["a"])

    assert table_values(found) == {"a": [1.0, 16.0, 16.0, 16.0, *[None] * 14, 91.0]}
    assert values(found.total) == values(found.groups[0]) == table_values(found)["a"]


@pytest.mark.parametrize("seed", range(4))
def test_rows_and_others_always_add_up_to_all_tables(seed: int) -> None:
    chance, store = random.Random(seed), SeriesStore()
    names = [f"t{number}" for number in range(TABLES_MAX + 60)]
    sums: list[float] = []
    for step in range(150):
        busy = chance.sample(names, chance.choice([5, 300, len(names)]))
        sizes = {name: float(chance.choice([1, 5, 1000])) for name in busy}
        if chance.random() < 0.1:
            store.forget_table(chance.choice(names))
        store.note(sample(sizes), step * STEP_S)
        sums.append(sum(sizes.values()))

    for count in (1, 7, 100):
        found = read(store, SeriesQuery(span_s=750.0, points=720, count=count), names)
        listed = [values(line) for line in (*found.tables, found.others)]
        added = [sum(value or 0.0 for value in column) for column in zip(*listed, strict=True)]
        assert values(found.total) == sums
        assert added == sums
    assert read(store, SeriesQuery(span_s=750.0, points=720), names).others is None
    assert len(store.tables.rows) == len(set(store.tables.rows.values())) == TABLES_MAX


def test_a_table_without_a_row_was_at_rest_if_all_others_were() -> None:
    store, many = SeriesStore(), {f"t{number}": 9.0 for number in range(TABLES_MAX - 1)}
    store.note(sample(many), 0.0)
    store.note(sample({**many, "new": 5.0}), 5.0)
    store.note(sample({**many, "new": 5.0, "late": 500.0}), 10.0)
    store.note(sample({**many, "late": 500.0}), 60.0)
    asked = SeriesQuery(span_s=65.0, points=720, tables=("late", "new", "t1", "idle"))

    found = table_values(read(store, asked, ["late", "new", "t1", "idle"]))

    # At 60 s the large table took the row of a table at rest, whose values the others have now.
    # The steps from 15 s to 55 s are filled by the tick at 60 s.
    assert found["t1"] == [9.0] * 13
    assert found["late"] == [0.0, None, None, *[500.0] * 10]
    assert found["new"] == found["idle"] == [0.0, None, None, *[0.0] * 10]


def test_a_large_backlog_takes_the_row_of_a_small_one_once_a_minute() -> None:
    store, many = SeriesStore(), {f"t{number:03}": 100.0 + number for number in range(TABLES_MAX)}
    store.note(sample(many), 0.0)
    store.note(sample({**many, "big": 1000.0, "like": 150.0}), 5.0)
    assert "big" not in store.tables.rows
    store.note(sample({**many, "big": 1000.0, "like": 150.0}), 60.0)
    assert "big" in store.tables.rows
    assert "t000" not in store.tables.rows, "the smallest one has lost its row"
    assert "like" not in store.tables.rows, "one half as large again is no reason"


def test_memory_is_bounded_with_a_hundred_thousand_tables() -> None:
    store = SeriesStore()
    sizes = {f"table-{number}": float(number % 1000 + 1) for number in range(100_000)}
    groups = {f"group-{number}": 1.0 for number in range(1000)}
    work = {"backlog_bytes": sizes, "queued_jobs": sizes, "running_jobs": sizes}
    for step in (0, 12, 24):
        store.note(
            SeriesSample(tables=work, groups={"backlog_bytes": groups}, total={}), step * STEP_S
        )

    assert 24 * 1024**2 < store.size_bytes <= MEMORY_BYTES_MAX
    assert len(store.tables.rows) == TABLES_MAX
    found = read(store, SeriesQuery(span_s=5.0, points=1, count=100), list(sizes))
    assert {size for line in found.tables for size in values(line)} == {1000.0}
    assert values(found.total) == [1000.0], "the sum of the groups"
    assert values(found.others) == [pytest.approx(sum(sizes.values()) - 100 * 1000.0)]
    # What the rings are made of is all there is, but for the names.
    assert store.size_bytes == sum(
        ring.nbytes
        for lines in (store.total, store.groups, store.tables)
        for block in lines.blocks
        for ring in (block.fine, block.minute)
    )


def test_a_caller_gets_the_sum_of_its_tables_and_no_groups() -> None:
    store = SeriesStore()
    store.note(sample({"mine": 3.0, "mine2": 4.0, "theirs": 100.0, "gone": 50.0}), 0.0)
    names = ["mine", "mine2", "theirs"]
    asked = SeriesQuery(span_s=5.0, points=1, count=1, visible=("mine", "mine2"))

    found = read(store, asked, names)

    assert table_values(found) == {"mine2": [4.0]}
    assert (values(found.total), values(found.others)) == ([7.0], [3.0])
    assert found.groups == ()
    assert found.total.measures == api.SERIES_MEASURES
    everything = read(store, SeriesQuery(span_s=5.0, points=1, count=100), names)
    assert [line.name for line in everything.tables] == ["theirs", "mine2", "mine"]
    assert values(everything.others) == [50.0], "a dropped table has no name any more"


def test_a_snapshot_survives_a_restart_and_the_time_between_is_a_gap() -> None:
    store = SeriesStore()
    for step in range(30):
        store.note(sample({"a": float(step), "b": 1.0}), step * STEP_S)
    packed = {name: store.part(name).packed() for name in store.parts()}
    assert sum(map(len, packed.values())) < 20_000, "values that repeat are compressed"

    again = SeriesStore()
    again.load({name: SeriesPart.unpacked(part) for name, part in packed.items()}, 200.0)
    again.note(sample({"a": 7.0}), 200.0)

    found = read(again, SeriesQuery(span_s=205.0, points=720, count=2), ["a", "b"])
    gap: list[float | None] = [None] * 10
    assert table_values(found)["a"] == [*map(float, range(30)), *gap, 7.0]
    assert table_values(found)["b"] == [*[1.0] * 30, *gap, 0.0]
    assert values(found.total) == values(found.groups[0])
    assert values(found.total)[-2:] == [None, 7.0]
    again.note(sample({"a": 7.0}), 240.0)
    day = read(again, SeriesQuery(span_s=3700.0, points=720, count=2), ["a"])
    assert table_values(day)["a"][-4:] == [5.5, 17.5, 26.5, 7.0]


def test_a_store_without_a_sample_has_gaps_only() -> None:
    found = read(SeriesStore(), HOUR, ["a"])
    assert {*values(found.total)} <= {None}
    assert not found.tables


def test_a_second_sample_of_a_step_is_left_out() -> None:
    store = SeriesStore()
    store.note(sample({"a": 1.0}), 10.0)
    store.note(sample({"a": 9.0}), 14.0)
    assert table_values(read(store, SeriesQuery(span_s=5.0, points=1, count=1), ["a"])) == {
        "a": [1.0]
    }


def test_a_name_has_one_row_if_parts_of_two_ages_name_it_twice() -> None:
    store = SeriesStore()
    store.note(sample({"a": 1.0}), 0.0)
    part = store.part("tables:0")

    again = SeriesStore()
    again.load({"tables:0": part, "tables:1": part}, 5.0)

    found = read(again, SeriesQuery(span_s=5.0, points=1, count=2), ["a"])
    assert table_values(found) == {"a": [1.0]}


def test_parts_of_several_ages_are_put_together() -> None:
    store = SeriesStore()
    many = {f"t{number}": 1.0 for number in range(20)}
    parts: dict[str, SeriesPart] = {}
    for step in range(40):
        store.note(sample(many), step * STEP_S)
        # Part after part is written; the first ones are 30 steps older than the last one.
        if step in (5, 35):
            names = [name for name in store.parts() if (name == "tables:1") == (step == 5)]
            parts.update({name: store.part(name) for name in names})

    again = SeriesStore()
    again.load(parts, 1000.0)

    found = read(again, SeriesQuery(span_s=180.0, points=720, count=20), list(many))
    ages = {tuple(value is None for value in own) for own in table_values(found).values()}
    assert ages == {(False,) * 36, (False,) * 6 + (True,) * 30}
    assert values(found.total) == [20.0] * 36


def test_a_snapshot_of_the_future_or_with_damage_is_left_out() -> None:
    store = SeriesStore()
    store.note(sample({"a": 1.0}), 1000.0)
    part = store.part("tables:0")
    again = SeriesStore()
    again.load({"tables:0": part, "tables:999": part, "what:0": part, "tables:x": part}, 999.0)
    assert again.parts() == []
    packed = part.packed()
    for damaged in (b"", packed[:-9], b"{}\n", b"[]\nx", packed.replace(b"a", b"\xff", 1)):
        with pytest.raises(ValueError, match=r".+"):
            SeriesPart.unpacked(damaged)


def test_a_part_that_does_not_compress_fits_into_the_store() -> None:
    store = SeriesStore()
    store.note(sample({"a": 1.0}), 0.0)
    noise = np.random.default_rng(3)
    for name, lines in (("total", store.total), ("groups", store.groups), ("tables", store.tables)):
        block = lines.blocks[0]
        block.fine[:] = noise.random(block.fine.shape)
        block.minute[:] = noise.random(block.minute.shape)

        packed = store.part(f"{name}:0").packed()

        assert len(packed) <= SERIES_PART_BYTES_MAX
        part = SeriesPart.unpacked(packed)
        assert np.array_equal(part.minute, block.minute)
        assert np.array_equal(part.fine, block.fine)


def planned(size_bytes: int, version: int) -> on.TabletPlanned:
    backlog = TabletBacklog(strategy="ratio", size_bytes=size_bytes, group="default")
    return on.TabletPlanned(
        tablet=TabletId("t", b"m"),
        plan=TabletPlan(backlog=backlog),
        record=Record(version=version),
        settings_version=0,
    )


def test_the_coordinator_samples_with_its_ticks() -> None:
    state = CoordinatorState(CoordinatorSettings(), groups=["default"])
    state.handle(on.TableSeen(table=Table(id="t", name="trips", location="x", schema=())), 0.0)
    for version, size_bytes in enumerate((70, 40), 1):
        state.handle(planned(size_bytes, version), 100.0 * version)
        for second in range(12):
            ticked = on.Ticked(scaling={"default": (3, 2)})
            state.handle(ticked, 100.0 * version + second)

    query = SeriesQuery(span_s=15.0, points=720, count=1)
    found = Answer(state.look(recorded_series, query))
    assert found.start_s == 200.0
    assert table_values(found) == {"trips": [40.0] * 3}
    assert values(found.total, "compactors_desired") == [3.0] * 3
    assert values(found.groups[0], "compactors_starting") == [2.0] * 3
    assert values(found.total, "limit_bytes_s") == [None] * 3, "there is no limit"
    assert values(found.total, "shares_user") == [1000.0] * 3
    assert state.look(recorded_tables) == ["trips"]
    state.handle(on.TableGone(table="t"), 301.0)
    gone = Answer(state.look(recorded_series, query))
    assert (gone.tables, values(gone.others)) == ((), [40.0] * 3)
