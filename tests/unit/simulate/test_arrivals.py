"""When files come: rates, curves, bursts, choices of tablets, recordings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from neve.simulate.tablet import Flush, flushes, rate_at
from tests.support.simulated import document, read

DAY_S = 86_400.0


def all_flushes(
    arrivals: Mapping[str, Any], *, days: float = 1.0, seed: int = 1, **table: Any
) -> list[Flush]:
    written = document({"arrivals": arrivals, **table}, simulation={"days": days})
    return list(flushes(read(written).tables[0], seed, days * DAY_S))


def test_flushes_come_at_their_rate_in_order_of_time() -> None:
    found = all_flushes({"every": "1m"}, tablets=20)
    times = [each.at_s for each in found]

    assert len(found) == pytest.approx(20 * 1440, rel=0.02)
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] <= DAY_S
    assert {each.tablet for each in found} == set(range(20))


def test_regular_flushes_come_at_equal_intervals_tablet_after_tablet() -> None:
    found = all_flushes({"every": "1m", "regular": True, "files": 3}, tablets=2, days=0.01)

    assert [each.at_s for each in found[:4]] == [30.0, 60.0, 90.0, 120.0]
    assert [each.tablet for each in found[:4]] == [0, 1, 0, 1]
    assert {len(each.files) for each in found} == {3}


def test_a_rate_is_of_files_of_the_whole_table() -> None:
    found = all_flushes({"files_per_s": 2.0, "files": 4, "regular": True}, days=0.1)

    assert sum(len(each.files) for each in found) == pytest.approx(2.0 * 8640, abs=4)


def test_the_daily_curve_moves_files_from_night_to_day() -> None:
    found = all_flushes({"every": "10s", "daily": 0.5, "peak_hour": 14}, days=2)
    by_hour = Counter(int(each.at_s / 3600) % 24 for each in found)

    assert len(found) == pytest.approx(5 * 2 * 8640, rel=0.02)
    assert by_hour[14] / by_hour[2] == pytest.approx(3.0, rel=0.15)


def test_bursts_bring_so_many_times_the_files_and_only_then() -> None:
    burst = {"at": "2h", "for": "30m", "times": 6}
    found = all_flushes({"every": "20s", "burst": [burst]}, days=0.25)
    inside = [each for each in found if 7200 <= each.at_s < 9000]

    assert len(inside) == pytest.approx(6 * 5 * 1800 / 20, rel=0.05)
    assert len(found) - len(inside) == pytest.approx(5 * (21_600 - 1800) / 20, rel=0.05)


def test_equal_intervals_go_on_where_the_rate_changes() -> None:
    bursts = [{"at": 45, "for": 30, "times": 2}]
    arrivals = {"every": "30s", "regular": True, "burst": bursts}
    found = all_flushes(arrivals, tablets=1, days=0.002)

    # Half of an interval is over at 45 s, and the other half lasts 7.5 s; so it is at 75 s.
    assert [each.at_s for each in found[:5]] == [30.0, 52.5, 67.5, 90.0, 120.0]


def test_some_tablets_get_more_than_others() -> None:
    found = all_flushes({"every": "30s"}, tablets=10, tablet_skew=1.0)
    by_tablet = Counter(each.tablet for each in found)

    assert by_tablet[0] / by_tablet[4] == pytest.approx(5.0, rel=0.15)


def test_sizes_are_spread_about_their_mean() -> None:
    found = all_flushes({"every": "10s", "size": "1MB", "size_spread": 0.8})
    sizes = [file.size_bytes for each in found for file in each.files]

    assert sum(sizes) / len(sizes) == pytest.approx(1024**2, rel=0.03)
    assert min(sizes) < 0.3 * 1024**2
    assert max(sizes) > 4 * 1024**2


def test_late_files_are_late_by_up_to_the_longest_time() -> None:
    arrivals = {"every": "10s", "late": 0.2, "late_max": "1h"}
    found = all_flushes(arrivals, keyed=False, days=0.5)
    late = [file.late_s for each in found for file in each.files if file.late_s]

    assert len(late) / len(found) == pytest.approx(0.2, rel=0.1)
    assert 0 < min(late) <= max(late) <= 3600


def test_a_seed_gives_the_same_files_and_another_one_others() -> None:
    same, again = (all_flushes({"every": "1m", "size_spread": 0.5}) for _ in range(2))

    assert same == again
    assert same != all_flushes({"every": "1m", "size_spread": 0.5}, seed=2)


def test_a_recording_is_played_again_and_again() -> None:
    recording = {
        "table": "events",
        "tablets": 3,
        "length_s": 100,
        "arrivals": [
            {"at": 90, "tablet": 2, "size": 5_000, "rows": 50},
            {"at": 10, "tablet": 1, "size": 1_000, "rows": 10, "tombstones": 4},
        ],
    }
    written = document({"arrivals": {"recorded": "a.json"}}, simulation={"days": 250 / DAY_S})
    table = read(written, {"a.json": recording}).tables[0]
    found = list(flushes(table, 1, 250.0))

    assert [each.at_s for each in found] == [10, 90, 110, 190, 210]
    assert [each.tablet for each in found] == [1, 2, 1, 2, 1]
    assert [each.files[0].size_bytes for each in found[:2]] == [1_000, 5_000]
    assert found[0].files[0].deletes == 4


def test_a_rate_is_never_negative() -> None:
    rule = read(document({"arrivals": {"every": "1m", "daily": 1.0}})).tables[0].arrivals

    assert min(rate_at(rule, hour * 900.0) for hour in range(96)) >= -1e-12
