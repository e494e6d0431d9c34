"""What a commit leaves in a simulated tablet."""

from __future__ import annotations

from typing import Any

import pytest

from common.model.job import Job, JobAction, Kind
from coordinator.core.shadow import CUT_STEP_S
from neve.simulate.recording import key_behind, simulated_key
from neve.simulate.tablet import ArrivingFile, SimulatedTablet, alive_part
from tests.support.simulated import document, world

DAY_S = 86_400.0
NOW_S = 1_767_225_600.0


def tablet(**table: Any) -> SimulatedTablet:
    written = document({"tablets": 1, "arrivals": {"every": "1m"}, "keys": 1000, **table})
    (made,) = world(written).tablets()
    return made


def arrive(made: SimulatedTablet, number: int, now_s: float = NOW_S, **rows: float) -> str:
    """Let a file of 100 rows come; return its path."""
    coming = ArrivingFile(
        10_000, 100.0, rows.get("deletes", 0.0), rows.get("updates", 0.0), rows.get("late_s", 0.0)
    )
    made.arrive(coming, number, now_s, 60.0)
    return list(made.files)[-1]


def commit(made: SimulatedTablet, paths: list[str], now_s: float = NOW_S, **job: Any) -> list[str]:
    """Let a job replace files; return the paths of its outputs."""
    facts: dict[str, Any] = {"reason": "test", "group": "default", "priority": 1} | job
    merge = Job(
        id="job-1",
        tablet=made.id,
        table_name="events",
        kind=Kind.SYSTEM,
        inputs=tuple(paths),
        input_bytes=sum(made.files[path].size_bytes for path in paths),
        **facts,
    )
    before = set(made.files)
    made.reserve(merge)
    made.check()
    made.commit(merge, now_s)
    made.check()
    return [path for path in made.files if path not in before]


def test_inserts_add_up_to_the_byte() -> None:
    made = tablet()
    paths = [arrive(made, number) for number in range(5)]
    (output,) = commit(made, paths)

    assert made.files[output].size_bytes == 50_000
    assert made.files[output].rows == 500
    assert made.files[output].clean
    assert made.stored_bytes == 50_000


def test_updates_of_the_same_keys_leave_fewer_rows() -> None:
    made = tablet(keys=50)
    paths = [arrive(made, number, updates=100) for number in range(10)]
    assert all(made.files[path].rows < 50 for path in paths), "each key once in a file"
    (output,) = commit(made, paths)

    assert made.files[output].rows == 50
    assert made.live_bytes(NOW_S) == pytest.approx(5_000, rel=0.05)


def test_tombstones_stay_while_an_older_file_lies_outside() -> None:
    made = tablet(settings={"tombstone_retention": "1h"})
    old = arrive(made, 1)
    paths = [arrive(made, 2), arrive(made, 3, deletes=50)]
    later_s = NOW_S + DAY_S
    (kept,) = commit(made, paths, later_s)
    assert made.files[kept].tombstones > 0

    (gone,) = commit(made, [old, kept], later_s)
    assert made.files[gone].tombstones == 0
    assert made.files[gone].clean
    assert made.files[gone].rows < 250


def test_newer_files_outside_keep_no_tombstone() -> None:
    made = tablet(settings={"tombstone_retention": "1h"})
    paths = [arrive(made, 1), arrive(made, 2, deletes=50)]
    arrive(made, 3)
    (output,) = commit(made, paths, NOW_S + DAY_S)

    assert made.files[output].tombstones == 0


def test_tombstones_stay_for_their_retention() -> None:
    made = tablet(settings={"tombstone_retention": "10h"})
    first = arrive(made, 1, NOW_S, deletes=50)
    (early,) = commit(made, [first], NOW_S + 3600)
    assert made.files[early].tombstones > 40

    second = arrive(made, 2, NOW_S + 8 * 3600, deletes=50)
    # Tombstones are from 0 h to 8 h, and those up to 4 h are ten hours old.
    (half,) = commit(made, [early, second], NOW_S + 14 * 3600)
    both = made.rule.population.hit(100, made.keys)
    assert made.files[half].tombstones == pytest.approx(both / 2, abs=2)


def test_cuts_at_keys_divide_a_file_and_what_is_merged_with_it() -> None:
    made = tablet()
    paths = [arrive(made, number) for number in range(4)]
    cut = simulated_key(0.25)
    low, high = commit(made, paths, cuts=(cut,), outputs_expected=2)

    assert (made.files[low].rows, made.files[high].rows) == (100, 300)
    assert made.files[low].key_max == cut
    assert made.files[high].key_min == key_behind(0.25) > cut, "the cut is in one of them only"
    assert made.spans == pytest.approx(1.0)


def test_rows_expire_by_the_time_that_is_over() -> None:
    made = tablet(keyed=False, settings={"ttl": "1h"})
    path = arrive(made, 1, NOW_S)
    half = alive_part(made.files[path], NOW_S - 30)
    assert half is not None
    assert half[2:] == (pytest.approx(5_000), pytest.approx(50))

    (output,) = commit(made, [path], NOW_S + 3600 - 15)
    assert made.files[output].rows == 25
    assert commit(made, [output], NOW_S + 3600, action=JobAction.DROP.value) == []
    assert made.stored_bytes == 0


def test_cuts_at_times_lose_no_row_and_end_before_the_cut() -> None:
    made = tablet(keyed=False)
    paths = [arrive(made, number, NOW_S + 60 * number) for number in range(4)]
    cuts = (NOW_S, NOW_S + 90)
    outputs = commit(made, paths, cuts_at_s=cuts, outputs_expected=9)

    assert [made.files[output].rows for output in outputs] == [100, 150, 150]
    assert [made.files[output].time_max_s for output in outputs] == [
        NOW_S - CUT_STEP_S,
        NOW_S + 90 - CUT_STEP_S,
        NOW_S + 180,
    ]
    assert made.stored_bytes == 40_000


def test_outputs_have_at_most_so_many_rows() -> None:
    made = tablet(keyed=False)
    paths = [arrive(made, number) for number in range(4)]
    outputs = commit(made, paths, cuts_at_s=(NOW_S + 1,), outputs_expected=9, output_rows_max=150)
    assert [made.files[output].rows for output in outputs] == [133, 133, 133]
    assert made.stored_bytes == pytest.approx(40_000, abs=3)


def test_a_move_changes_tags_and_nothing_else() -> None:
    made = tablet()
    path = arrive(made, 1)
    tags = (("level", "1"),)

    assert commit(made, [path], action=JobAction.MOVE.value, output_tags=tags) == []
    assert made.files[path].tags == tags
    assert made.stored_bytes == 10_000


def test_a_late_file_is_late() -> None:
    made = tablet(keyed=False)
    path = arrive(made, 1, NOW_S, late_s=1000.0)

    assert made.files[path].time_max_s == NOW_S - 1000
    assert made.files[path].time_min_s == NOW_S - 1060
