"""Backlog trackers: the cases of their sources, and what a user asks of a file."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal, localcontext
from functools import cache
from math import inf, log, nan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from common.errors import ConfigError, RequestError
from common.model.file import DataFile
from common.model.table import TableSettings
from common.plugins import TRACKERS, load_planner, load_tracker
from common.spi.controller import BacklogTracker, PartialOutput, WorkUnderWay
from coordinator.plugins.planners.ratio import RatioPlanner
from coordinator.plugins.planners.time_window import window_start
from coordinator.plugins.trackers import (
    TierSums,
    date_windows,
    in_date_windows,
    leveled_backlog_bytes,
)
from neve.offline import backlog_offline
from tests.support.plan_loop import live
from tests.support.planning import parameters

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "data/backlog.json").read_text("utf-8")
)
MIB = 1024**2
GIB = 1024**3
ACROSS = ("size-tiered", "ratio", "time-window", "leveled")
DAY_S = 86_400.0


def named(case: dict[str, Any]) -> str:
    return str(case["name"])


trackers_of, planner_of = cache(load_tracker), cache(load_planner)
"""Loading reads a file of every installed package."""


def tracker(name: str, files: list[DataFile], **options: object) -> BacklogTracker:
    made = trackers_of(name).tracker(TableSettings(), options)
    for file in files:
        made.add(file)
    return made


def file(path: str, size_bytes: int, **given: Any) -> DataFile:
    return DataFile(path=path, size_bytes=size_bytes, rows=1, **given)


def sizes_of(case: dict[str, Any]) -> dict[str, int]:
    sizes = case["sizes"]
    if "repeat" in sizes:
        return {f"f{number}": sizes["size"] for number in range(sizes["repeat"])}
    return dict(sizes)


# ------------------------------------------------------------------------------------- Size-tiered


@pytest.mark.parametrize("case", CASES["stcs_seed"], ids=named)
def test_the_seed_s_backlog_is_the_seed_s(case: dict[str, Any]) -> None:
    document = {
        "files": [{"path": path, "size": size} for path, size in sizes_of(case).items()],
        "compacted": case["compacted"],
        "partial": [{"bytes": size} for size in case["partial"]],
    }
    found = backlog_offline(document, "size-tiered", "seed")
    assert found == {"backlog": pytest.approx(case["backlog"], rel=1e-9)}


@pytest.mark.parametrize("strategy", ["size-tiered", "ratio"])
def test_the_mode_is_a_setting_of_the_table(strategy: str) -> None:
    files = [file(f"f{number}", size) for number, size in enumerate((100, 200, 400, 800))]
    made = load_tracker(strategy).tracker(TableSettings(backlog_mode="seed"), {})
    for added in files:
        made.add(added)
    expected = sum(size * log(1500 / size, 4) for size in (100, 200, 400, 800))
    assert made.backlog_bytes(WorkUnderWay()) == pytest.approx(expected)
    written = (PartialOutput(size_bytes=300),)
    more = made.backlog_bytes(WorkUnderWay(outputs=written)) - expected
    assert more == pytest.approx(300 * log(1500 / 300, 4)), "as a full file of 300 bytes"


def test_a_large_file_does_not_take_the_digits_of_small_ones() -> None:
    sizes = [10**12, *[10**6] * 4]
    total = sum(sizes)
    with localcontext(prec=50):
        exact = sum(size * (Decimal(total) / size).ln() for size in sizes) / Decimal(4).ln()
    files = [file(f"f{number}", size) for number, size in enumerate(sizes)]
    found = tracker("size-tiered", files, backlog_mode="seed").backlog_bytes(WorkUnderWay())
    assert found == pytest.approx(float(exact), rel=1e-12)


def test_the_backlog_of_several_tables_is_the_sum() -> None:
    case, by_name = (
        CASES["stcs_seed_table_sum"],
        {each["name"]: each for each in CASES["stcs_seed"]},
    )
    total = 0.0
    for (name,) in case["tables"]:
        files = [file(path, size) for path, size in sizes_of(by_name[name]).items()]
        total += tracker("size-tiered", files, backlog_mode="seed").backlog_bytes(WorkUnderWay())
    assert total == pytest.approx(case["backlog"], rel=1e-12)


@pytest.mark.parametrize("case", CASES["stcs_interesting"], ids=named)
def test_the_interesting_backlog_is_scylla_s(case: dict[str, Any]) -> None:
    files = case["files"]
    if isinstance(files, dict):
        files = [[f"f{number}", files["size"]] for number in range(files["count"])]
    added = {"added_at": 1000.0} if case["options"].get("recent_tiny") else {}
    document = {
        "table": {"min_threshold": case["min_threshold"]},
        "files": [{"path": path, "size": size, **added} for path, size in files],
        "compacted": case["compacted"],
        "now": 1001.0,
    }
    found = backlog_offline(document)
    assert found == {"backlog": pytest.approx(case["backlog"], rel=1e-12)}


def test_tiny_files_are_a_tier_as_soon_as_the_youngest_is_old_enough() -> None:
    files = [file(f"f{size}", size, added_at_s=1000.0) for size in (1, 10, 100, 1000)]
    made = tracker("size-tiered", files)
    assert made.backlog_bytes(WorkUnderWay(now_s=4599.0)) == 0.0
    assert made.backlog_bytes(WorkUnderWay(now_s=4600.0)) > 0.0


def test_the_log_s_base_only_scales_and_a_tax_makes_tiny_files_count() -> None:
    files = [file(f"f{number}", 1000) for number in range(8)]
    work = WorkUnderWay()
    four, two = (
        tracker("size-tiered", files, backlog_mode="seed", log_base=base).backlog_bytes(work)
        for base in (4, 2)
    )
    assert two == 2 * four == pytest.approx(8 * 1000 * 3)
    taxed = tracker("size-tiered", files, file_tax=500).backlog_bytes(work)
    assert taxed == pytest.approx(1.5 * tracker("size-tiered", files).backlog_bytes(work))


def test_progress_is_read_each_time_and_counts_no_more_than_the_file() -> None:
    files = [file(f"f{number}", 1000) for number in range(4)]
    for mode in ("seed", "interesting"):
        made = tracker("size-tiered", files, backlog_mode=mode)

        def backlog(*read: int, made: BacklogTracker = made) -> float:
            done = {f"f{number}": size for number, size in enumerate(read)}
            return made.backlog_bytes(WorkUnderWay(read_bytes={**done, "gone": 10**9}))

        assert backlog() == backlog(0, 0, 0, 0) == 4000.0
        assert backlog(500, 500) == pytest.approx(3000.0)
        assert backlog(10**6) == pytest.approx(3000.0)
        assert backlog(1000, 1000, 1000, 10**6) == 0.0


# ----------------------------------------------------------------------------------------- Leveled


@pytest.mark.parametrize("case", CASES["lcs"], ids=named)
def test_the_backlog_of_levels_is_scylla_s(case: dict[str, Any]) -> None:
    sizes = {int(level): size for level, size in case["level_bytes"].items()}
    found = leveled_backlog_bytes(sizes, case["max_sstable"])
    assert found + case["l0_stcs_backlog"] == case["backlog"]


def test_files_count_on_the_level_of_their_tag_and_move_with_the_work() -> None:
    options = {"max_file_bytes": 100, "backlog_mode": "seed"}
    files = [
        file("a", 3000, tags=(("level", "1"),)),
        file("b", 15_000, tags=(("level", "2"),)),
        file("c", 100_000, tags=(("level", "3"),)),
        *(file(f"new{number}", 50) for number in range(4)),
        file("odd", 1, tags=(("level", "top"),)),
    ]
    made = tracker("leveled", files, **options)
    made.remove("odd")
    made.remove("odd")
    at_rest = made.backlog_bytes(WorkUnderWay())
    # Level 0 owes 200 for its own merge and 93 x 10 upwards, then 2029 x 10 and 6389 x 10 move on.
    assert at_rest == 200 + 930 + 20_290 + 63_890
    written = (PartialOutput(size_bytes=3000, level=2),)
    moved = WorkUnderWay(read_bytes={"a": 3000}, outputs=written)
    assert made.backlog_bytes(moved) < at_rest - 10_000
    assert tracker("leveled", [], **options).backlog_bytes(moved) == 0.0


# ----------------------------------------------------------------------------------------- Windows


@pytest.mark.parametrize("case", CASES["twcs"]["lower_bounds"], ids=str)
def test_a_window_begins_where_scylla_has_it(case: dict[str, Any]) -> None:
    assert window_start(case["ts_us"] / 1e6, case["window_s"]) == case["bound_us"] / 1e6


def test_the_planner_s_options_make_the_tracker_s_windows() -> None:
    files = [file(f"f{hour}", 1000, time_max_s=hour * 3600.0) for hour in range(4)]
    work = WorkUnderWay()
    assert tracker("time-window", files, backlog_mode="seed").backlog_bytes(work) == 4000.0
    hours = tracker("time-window", files, backlog_mode="seed", window_unit="hours", window_size="2")
    assert hours.backlog_bytes(work) == 2 * 1000.0


def test_each_window_is_a_tablet_of_its_own() -> None:
    case = CASES["twcs"]["sum_example"]
    files = [
        {"path": path, "size": size, "time_max": latest} for path, size, latest in case["files"]
    ]
    document = {"table": {"window_s": case["window_s"]}, "files": files}
    found = {
        strategy: backlog_offline(document, strategy, "seed")["backlog"]
        for strategy in ("time-window", "size-tiered")
    }
    assert found == {
        "time-window": case["total"],
        "size-tiered": pytest.approx(case["as_one_stcs_table"]),
    }
    # What is written counts in its window alone.
    partial = [{"bytes": 500, "time_max": 3900}, {"bytes": 500, "time_max": 20_000}]
    told = backlog_offline({**document, "partial": partial}, "time-window", "seed")["backlog"]
    assert told == pytest.approx(case["total"] + 500 * log(2000 / 500, 4))


@pytest.mark.parametrize("case", CASES["dtcs"], ids=lambda case: f"base {case['base']}")
def test_windows_grow_with_age_as_cassandra_s_do(case: dict[str, Any]) -> None:
    windows = date_windows(case["now"], case["unit"], case["base"])
    expected = case["windows"]
    shown = [[window.start, window.end - 1] for window in itertools.islice(windows, len(expected))]
    assert shown == expected
    windows = itertools.islice(date_windows(case["now"], case["unit"], case["base"]), 100)
    assert [names for _, names in in_date_windows(case["files"], windows)] == case["buckets"]


def test_the_date_tiered_backlog_is_the_sum_over_its_windows() -> None:
    times = {"a1": 199, "b1": 299, "a2": 1, "b2": 201}
    files = [
        {"path": path, "size": 1000, "time_min": at, "time_max": at} for path, at in times.items()
    ]
    document = {
        "table": {"base_s": 100, "min_threshold": 2, "now": 200},
        "files": files,
        "partial": [{"bytes": 1000, "time_max": 250}],
    }
    assert backlog_offline(document, "date-tiered", "seed")["backlog"] == pytest.approx(2500.0)
    # A window of the newest file alone, and one of the others.
    aged = {**document, "table": {"base_s": 100, "min_threshold": 2, "max_age_s": 150}}
    assert backlog_offline(aged, "date-tiered", "seed")["backlog"] == pytest.approx(1500.0)


# ------------------------------------------------------------------------------- Ratio, and no rule


@pytest.mark.parametrize("max_files", [2, 3, 10])
@pytest.mark.parametrize("seed", range(8))
def test_the_ratio_s_backlog_is_what_its_planner_rewrites(seed: int, max_files: int) -> None:
    sizes = [1 + (seed * 7919 + number * number * 104_729) % 1000 for number in range(30)]
    files = {f"f{number:02}": file(f"f{number:02}", size) for number, size in enumerate(sizes)}
    asked = parameters(files, ratio=1.5, max_files=max_files, file_limit=0)
    life = live("ratio", RatioPlanner(), asked, jobs_max=len(files))
    made = tracker("ratio", [*files.values()], ratio=1.5, max_files=max_files)
    assert made.backlog_bytes(WorkUnderWay()) == life.rewritten_bytes
    for path in set(files) - set(life.files):
        made.remove(path)
    for path in set(life.files) - set(files):
        made.add(life.files[path])
    assert made.backlog_bytes(WorkUnderWay()) == 0.0


def test_a_planner_without_a_tracker_has_a_fixed_backlog() -> None:
    files = [file(f"f{number}", GIB) for number in range(9)]
    assert tracker("fixed", files, backlog="3MB").backlog_bytes(WorkUnderWay()) == 3 * 1024**2
    assert tracker("fixed", files).backlog_bytes(WorkUnderWay()) == 0
    assert tracker("none", files).backlog_bytes(WorkUnderWay()) == 0
    with pytest.raises(ConfigError, match="option 'backlog' is unknown"):
        tracker("none", files, backlog="3MB")


# ------------------------------------------------------------------------- Of every strategy, asked


@pytest.mark.parametrize(
    "name", ["size-tiered", "leveled", "time-window", "date-tiered", "ratio", "unified"]
)
def test_a_file_alone_owes_nothing_and_more_files_owe_more(name: str) -> None:
    def owed(count: int) -> float:
        files = [file(f"f{number:02}", GIB, time_max_s=5.0) for number in range(count)]
        return tracker(name, files).backlog_bytes(WorkUnderWay(now_s=DAY_S))

    assert owed(0) == owed(1) == 0.0
    assert 0.0 < owed(8) < owed(16) < owed(32)


def lived(name: str, files: list[DataFile], **options: Any) -> tuple[float, int, float]:
    """Plan and commit until the planner of this name wants nothing.

    Returns:
        The backlog before, the bytes that were rewritten, and the backlog after.
    """
    by_path = {each.path: each for each in files}
    life = live(name, planner_of(name), parameters(by_path, **options), jobs_max=500)
    known = {each: value for each, value in options.items() if each != "max_files"}
    before, after = (
        tracker(name, some, **known).backlog_bytes(WorkUnderWay(now_s=DAY_S))
        for some in (files, list(life.files.values()))
    )
    return before, life.rewritten_bytes, after


def sized(sizes: list[int]) -> list[DataFile]:
    return [file(f"f{number:03}", size, time_max_s=5.0) for number, size in enumerate(sizes)]


@pytest.mark.parametrize("count", [16, 64, 256])
def test_equal_files_owe_exactly_what_merges_of_four_rewrite(count: int) -> None:
    """The base of the logarithm is the fan-in."""
    before, rewritten, after = lived("size-tiered", sized([64 * MIB] * count), max_files=4)
    assert before == pytest.approx(rewritten)
    assert after == 0.0


@pytest.mark.parametrize("seed", range(12))
def test_files_of_all_sizes_owe_what_merges_of_four_rewrite_within_a_factor_of_two(
    seed: int,
) -> None:
    chance = Random(seed)
    sizes = [int(10 * MIB * 2 ** chance.uniform(0, 7)) for _ in range(40 + 40 * (seed % 3))]
    before, rewritten, after = lived("size-tiered", sized(sizes), max_files=4)
    assert before / 2 <= rewritten <= before * 2
    assert after == 0.0


@pytest.mark.parametrize("name", ["size-tiered", "time-window", "ratio", "unified"])
def test_a_table_owes_nothing_when_its_planner_wants_nothing(name: str) -> None:
    chance = Random(5)
    before, _, after = lived(name, sized([chance.randint(MIB, 500 * MIB) for _ in range(60)]))
    assert before > 0.0
    assert after == 0.0


@pytest.mark.parametrize("name", ["single", "ladder_1_4_16_64GiB", "perfect_ladder"])
def test_a_ladder_of_sizes_has_reached_its_goal(name: str) -> None:
    sizes = {
        "single": [64 * GIB],
        "ladder_1_4_16_64GiB": [GIB * 4**step for step in range(4)],
        "perfect_ladder": [MIB * 4**step for step in range(8)],
    }
    files = [{"path": f"f{number}", "size": size} for number, size in enumerate(sizes[name])]
    assert backlog_offline({"files": files}) == {"backlog": 0.0}


def test_more_work_is_more_backlog_whatever_the_strategies_are() -> None:
    """Four tables, each of another strategy: the one with more to rewrite owes more."""
    alike = 0
    for seed in range(10):
        chance = Random(seed)
        counts = chance.sample([10, 40, 160, 320], 4)
        work: list[tuple[float, int]] = []
        for name, count in zip(ACROSS, counts, strict=True):
            sizes = [int(64 * MIB * chance.uniform(0.8, 1.2)) for _ in range(count)]
            before, rewritten, _ = lived(name, sized(sizes))
            work.append((before, rewritten))
        alike += sorted(work) == sorted(work, key=lambda each: each[1])
    assert alike >= 9


def test_one_document_serves_all_strategies() -> None:
    table = {"window_s": "1h", "base_s": 60, "min_threshold": 2, "max_file_bytes": "1MB"}
    document = {"table": table, "files": [{"path": f"f{n}", "size": "5MB"} for n in range(4)]}
    assert {
        name for name in TRACKERS.names() if backlog_offline(document, name)["backlog"] > 0
    } == {
        *("size-tiered", "leveled", "time-window", "date-tiered", "ratio", "unified"),
    }


def test_the_progress_of_running_jobs_counts() -> None:
    files = [{"path": f"f{number}", "size": 1000} for number in range(4)]
    running = [{"kind": "SYSTEM", "files": ["f0", "f1"], "progress": {"f0": 500}, "written": 400}]
    document = {"files": files, "running": running}
    assert backlog_offline(document)["backlog"] == pytest.approx(3500.0)
    seed = backlog_offline(document, mode="seed")["backlog"]
    assert seed == pytest.approx(3500.0 + 400 * log(10, 4))


@pytest.mark.parametrize(
    ("change", "strategy", "mode", "expected"),
    [
        ({}, "tiered", None, "strategy 'tiered' is unknown: .*size-tiered"),
        ({}, "unified", "seed", "strategy 'unified' has no modes; leave --mode out"),
        ({}, None, "sed", "option backlog_mode is 'sed', expected one of seed, interesting"),
        ({"compacted": {"b": 1}}, None, None, "compacted names 'b', expected the path of a file"),
        ({"compacted": {"a": -1}}, None, None, "compacted.a"),
        ({"partial": [{"time_max": 1}]}, None, None, r"partial\[0\].bytes is missing"),
        ({"partial": [{"bytes": 1, "levels": 2}]}, None, None, "did you mean 'level'"),
        ({"table": {"now": "noon"}}, None, None, "now is 'noon', expected a number"),
        ({"table": {"window": 0}}, "time-window", None, "window_s is 0 s, expected at least 1 s"),
        ({"table": {"windwo_s": 1}}, "time-window", None, "did you mean 'window_s'"),
        ({"files": [{"path": "a", "size": -5}]}, None, None, r"files\[0\].size -5 is not a size"),
        ({"files": [{"path": "a", "size": nan}]}, None, None, "size nan is not a size"),
        ({"files": [{"path": "a", "size": 1 << 63}]}, None, None, "size is larger than the limit"),
        ({"files": [{"path": "a", "size": "9" * 60 + "T"}]}, None, None, "larger than the limit"),
        ({"compacted": {"a": inf}}, None, None, "compacted.a inf is not a size"),
        ({"compacted": {"a": 10**400}}, None, None, "compacted.a is larger than the limit"),
        ({"partial": [{"bytes": -1}]}, None, None, r"partial\[0\].bytes -1 is not a size"),
        ({"partial": [{"bytes": 1, "time_max": nan}]}, None, None, "time_max is nan"),
        ({"partial": [{"bytes": 1, "time_max": 1e300}]}, None, None, "expected seconds since 1970"),
        ({"files": [{"path": "a", "size": 5, "time_max": -1e300}]}, None, None, "seconds since"),
        ({"table": {"base_s": 1e-300}}, "date-tiered", None, "base_s is 1e-300 s, expected"),
        ({"table": {"now": 1e300}}, "date-tiered", None, "now is .*, expected seconds since 1970"),
        ({"table": {"log_base": nan}}, None, None, "log_base is nan"),
    ],
)  # fmt: skip
def test_a_bad_document_is_refused(
    change: dict[str, Any], strategy: str | None, mode: str | None, expected: str
) -> None:
    document = {"files": [{"path": "a", "size": 5}], **change}
    with pytest.raises(RequestError, match=expected):
        backlog_offline(document, strategy, mode)


@pytest.mark.parametrize("strategy", ["leveled", "time-window", "date-tiered", "size-tiered"])
@pytest.mark.parametrize("mode", ["seed", "interesting"])
def test_the_most_extreme_tablet_has_a_finite_backlog(strategy: str, mode: str) -> None:
    most, far = (1 << 63) - 1, 1e18
    files = [
        {"path": f"f{number}", "size": most - number, "time_min": -far, "time_max": at, "level": 8}
        for number, at in enumerate([far, -far, 0.0, far])
    ]
    partial = [{"bytes": most, "level": 10**12, "time_max": far}]
    table = {"base_s": 0.001, "max_window_s": 0.001, "window_s": 1, "max_file_bytes": 1}
    document = {"files": files, "partial": partial, "compacted": {"f0": most}, "table": table}
    assert 0.0 <= backlog_offline(document, strategy, mode)["backlog"] < 1e21


def test_an_output_beyond_the_last_level_counts_on_the_last() -> None:
    files = [{"path": f"f{number}", "size": 1000, "level": 7} for number in range(9)]
    document = {"files": files, "table": {"max_file_bytes": 10}}
    found = [
        backlog_offline({**document, "partial": [{"bytes": 500, "level": level}]}, "leveled")
        for level in (8, 9, 10**12)
    ]
    assert found[0] == found[1] == found[2] != backlog_offline(document, "leveled")


def test_every_tracker_loads_and_reads_in_time_that_does_not_grow_with_the_files() -> None:
    assert set(TRACKERS.names()) >= set(TRACKERS.built_in)
    sums = TierSums(4.0)
    for number in range(5000):
        sums.add(f"f{number}", 1 + number)
    looked: list[str] = []

    class Watched(dict[str, int]):
        def get(self, path: str, default: Any = None) -> Any:
            looked.append(path)
            return super().get(path, default)

    before = sums.backlog_bytes({}, ())
    sums._sizes = Watched(sums._sizes)  # to count what a read looks at
    assert sums.backlog_bytes({"f7": 3, "f9": 4}, ()) < before
    assert looked == ["f7", "f9"]
    sums.add("more", 1)
    assert sums.backlog_bytes({}, ()) == pytest.approx(before, rel=1e-3), "one file sums not anew"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("size-tiered", {"backlog_mode": "seed"}),
        ("size-tiered", {}),
        *((name, {}) for name in ("ratio", "leveled", "time-window", "date-tiered", "unified")),
        ("none", {}),
    ],
)
def test_a_file_that_is_removed_counts_no_more(name: str, options: dict[str, object]) -> None:
    files = [
        file(f"f{number}", size, time_max_s=DAY_S * (number // 4), time_min_s=0.0)
        for number, size in enumerate((MIB, 2 * MIB, 3 * MIB, 40 * MIB, 5 * MIB, 6 * MIB, 0))
    ]
    outputs = (
        PartialOutput(size_bytes=MIB),
        PartialOutput(size_bytes=MIB, level=1),
        PartialOutput(size_bytes=0),
    )
    work = WorkUnderWay(read_bytes={"f1": MIB, "f5": MIB}, outputs=outputs, now_s=3 * DAY_S)

    def backlog(*kept: DataFile) -> float:
        return tracker(name, list(kept), **options).backlog_bytes(work)

    changed = tracker(name, files, **options)
    for _ in range(2):
        assert changed.backlog_bytes(work) == pytest.approx(backlog(*files))
    for path in ("f0", "f4", "f5", "f6", "no such file"):
        changed.remove(path)
    assert changed.backlog_bytes(work) == pytest.approx(backlog(*files[1:4]))
    for path in ("f1", "f2", "f3"):
        changed.remove(path)
    assert changed.backlog_bytes(work) == pytest.approx(backlog())
