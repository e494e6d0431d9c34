"""Windows open where a clock on the wall of their zone shows the start, also when it changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import RequestError
from common.model.job import CLASS_WIDTH, Job, Kind
from common.model.table import TableSettings
from common.model.tablet import TabletId
from common.settings import GroupSettings
from common.windows import MaintenanceWindow, WindowRule, check_windows, parse_windows

pytestmark = pytest.mark.unit

CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "Australia/Lord_Howe": ("2026-10-04", "2026-04-05"),  # By half an hour.
    "America/Sao_Paulo": ("2018-11-04", "2018-02-18"),  # At midnight, forward and back.
    "America/St_Johns": ("2011-03-13", "2010-11-07"),  # Back at 00:01, to the day before.
    "Africa/Casablanca": ("2026-03-22", "2026-02-15"),
    "Pacific/Apia": ("2011-12-30", "2011-09-24"),  # A day that does not exist.
    "Asia/Kathmandu": ("2026-03-29", "2026-10-25"),  # No change.
}


def instant(text: str, zone: str, fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def starts_of(window: MaintenanceWindow, first_s: float, last_s: float) -> list[float]:
    """Return the starts in a span, by `next_start_s` alone."""
    starts, at_s = [], first_s - 1
    while (at_s := window.next_start_s(at_s)) <= last_s:
        starts.append(at_s)
    return starts


def watched_starts(window: MaintenanceWindow, first_s: float, last_s: float) -> list[float]:
    """Return the starts by a look at the clock each minute, by the rules of the module."""
    cron, zone = window.start, ZoneInfo(window.zone)

    def shows(local: datetime) -> bool:
        of_time = local.minute in cron.minutes and local.hour in cron.hours
        return of_time and cron.matches(local.date())

    starts = []
    before = datetime.fromtimestamp(first_s - 60, zone)
    for at_s in range(int(first_s), int(last_s) + 1, 60):
        now = datetime.fromtimestamp(at_s, zone)
        skipped = before.replace(tzinfo=None) + timedelta(minutes=1)
        is_start = shows(now) and (now.fold == 0 or cron.hourly)
        while skipped < now.replace(tzinfo=None):
            is_start |= shows(skipped) and not cron.hourly
            skipped += timedelta(minutes=1)
        if is_start:
            starts.append(float(at_s))
        before = now
    return starts


def field(low: int, high: int) -> st.SearchStrategy[str]:
    value = st.integers(low, high)
    span = st.tuples(value, value).map(lambda ends: "{}-{}".format(*sorted(ends)))
    stepped = st.tuples(st.one_of(st.just("*"), span), st.integers(1, 20)).map(
        lambda parts: f"{parts[0]}/{parts[1]}"
    )
    part = st.one_of(value.map(str), span, stepped)
    return st.one_of(st.just("*"), st.lists(part, min_size=1, max_size=3).map(",".join))


minutes = st.one_of(
    st.lists(st.integers(0, 59).map(str), min_size=1, max_size=2).map(",".join),
    st.sampled_from(["*/20", "15-40/10"]),
)
crons = st.tuples(
    minutes, field(0, 23), st.one_of(st.just("*"), field(1, 28)), st.just("*"), field(0, 7)
).map(" ".join)
near_midnight = st.tuples(
    st.sampled_from(["0", "30", "*/15", "0,1,59"]),
    st.sampled_from(["0", "1", "2", "3", "23", "0-3", "*", "*/2", "22-23", "1,2"]),
).map(lambda parts: f"{parts[0]} {parts[1]} * * *")


@given(
    st.one_of(near_midnight, crons),
    st.sampled_from(sorted(CHANGES)),
    st.integers(0, 1),
    st.sampled_from([60, 1800, 3600, 5400, 8 * 3600, 26 * 3600]),
)
@settings(max_examples=40, deadline=None)
def test_starts_and_spans_are_those_of_a_clock_that_is_watched(
    cron: str, zone: str, change: int, length_s: int
) -> None:
    window = MaintenanceWindow.parse(f"{cron} for {length_s}s in {zone}")
    change_s = instant(CHANGES[zone][change], zone)
    first_s, last_s = change_s - 27 * 3600, change_s + 30 * 3600

    starts = watched_starts(window, first_s, last_s)

    assert starts_of(window, first_s, last_s) == starts
    windows = parse_windows(window.text)
    assert windows is not None
    begun = [start_s for start_s in starts if start_s + length_s < last_s]
    for at_s in [at for start in begun[:25] for at in (start, start + length_s - 1)]:
        state = windows.at(at_s)
        assert state.since_s == max(start for start in starts if start <= at_s)
        assert state.closes_s == state.since_s + length_s
    for ended, following in pairwise(starts):
        if ended + length_s < following:
            closed = windows.at(ended + length_s)
            assert closed.since_s is None
            assert closed.until_s == closed.next_start_s == following


def test_a_window_at_night_is_as_long_in_the_nights_when_the_clock_changes() -> None:
    window = MaintenanceWindow.parse("0 22 * * * for 8h in Europe/Berlin")
    for evening, end in (
        ("2026-03-27T22:00", "2026-03-28T06:00"),
        ("2026-03-28T22:00", "2026-03-29T07:00"),
        ("2026-10-24T22:00", "2026-10-25T05:00"),
    ):
        start_s = instant(evening, "Europe/Berlin")
        assert window.last_start_s(start_s + 5 * 3600, start_s - 60) == start_s
        assert instant(end, "Europe/Berlin") == start_s + 8 * 3600


def test_a_start_that_the_clock_skips_or_shows_twice_happens_once() -> None:
    window = MaintenanceWindow.parse("30 2 * * * for 1h in Europe/Berlin")
    first_s = instant("2026-03-29", "Europe/Berlin")
    assert window.next_start_s(first_s) == instant("2026-03-29T03:00", "Europe/Berlin")
    first_s = instant("2026-10-25", "Europe/Berlin")
    start_s = window.next_start_s(first_s)
    assert start_s == instant("2026-10-25T02:30", "Europe/Berlin", fold=0)
    assert window.next_start_s(start_s) == instant("2026-10-26T02:30", "Europe/Berlin")


def test_an_hourly_start_happens_in_each_hour_that_passes() -> None:
    window = MaintenanceWindow.parse("0 * * * * for 10m in Europe/Berlin")
    for day, hours in (("2026-03-29", 23), ("2026-10-25", 25)):
        first_s = instant(day, "Europe/Berlin")
        last_s = instant(f"{day}T23:59", "Europe/Berlin")
        assert starts_of(window, first_s, last_s) == [first_s + 3600 * n for n in range(hours)]


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("0 0 1 * 1 for 1h", "2026-11-01 2026-11-02 2026-11-09 2026-11-16 2026-11-23"),
        ("0 0 */10 * 1 for 1h", "2026-12-21"),
        ("0 0 * dec sat,SUN for 1h", "2026-12-05 2026-12-06 2026-12-12 2026-12-13 2026-12-19"),
        ("0 0 29 2 * for 1h", "2028-02-29 2032-02-29"),
        ("0 0 31 * * for 1h", "2026-12-31 2027-01-31 2027-03-31"),
        ("0 0 * * 7 for 1h", "2026-11-01 2026-11-08"),
    ],
)
def test_days_of_month_and_week_are_those_of_cron(text: str, starts: str) -> None:
    window = MaintenanceWindow.parse(text)
    at_s = datetime(2026, 10, 31, 23, 59, tzinfo=UTC).timestamp()
    for day in starts.split():
        at_s = window.next_start_s(at_s)
        assert datetime.fromtimestamp(at_s, UTC).date() == date.fromisoformat(day)


def test_several_windows_are_open_together() -> None:
    windows = parse_windows("0 22 * * * for 8h in UTC ; 0 2 * * * for 6h;")
    assert windows is not None
    assert windows.text == "0 22 * * * for 8h in UTC; 0 2 * * * for 6h"
    midnight_s = datetime(2026, 11, 28, tzinfo=UTC).timestamp()
    night = windows.at(midnight_s + 3600)
    assert night.since_s == midnight_s - 7200
    assert night.until_s == midnight_s + 7200
    morning = windows.at(midnight_s + 7 * 3600)
    assert (morning.since_s, morning.closes_s) == (midnight_s + 7200, midnight_s + 8 * 3600)
    assert windows.at(midnight_s + 8 * 3600).since_s is None
    assert windows.time_text(midnight_s) == "2026-11-28 00:00 (UTC)"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 22 * * *", "'0 22 * * *' is not a window, expected one such as 0 22 * * 1-5 for 8h"),
        ("0 22 * * for 8h", "has 4 fields, expected 5"),
        ("60 22 * * * for 8h", "minute '60' is not possible, expected 0 to 59"),
        ("0 22 * * moon for 8h", "day of the week 'moon' is not possible, expected 0 to 7 or sun"),
        ("0 22-3 * * * for 8h", "hour '22-3' is not possible"),
        ("0 1/2 * * * for 8h", "hour '1/2' is not possible"),
        ("*/0 1 * * * for 8h", "minute '*/0' is not possible"),
        ("0 0 30 2 * for 8h", "has no date, expected one that exists"),
        ("0 0 * * * for 10s", "length '10s' is not possible, expected 1m to 31d"),
        ("0 0 * * * for ever", "length 'ever'"),
        ("0 0 * * * for 8h in Mars/Base", "time zone 'Mars/Base' is unknown"),
        ("0 0 * * * for 8h in ../../etc/passwd", "time zone '../../etc/passwd' is unknown"),
        ("0 0 * * * for 8h;" * 21, "there are 21 windows, expected at most 20"),
        ("0 " * 600, "windows have 1200 characters"),
    ],
)
def test_a_wrong_window_names_its_part(text: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        check_windows(text, "setting window")
    assert str(caught.value).startswith("setting window: ")
    assert message in str(caught.value)


def test_settings_of_tables_and_groups_have_the_same_rule() -> None:
    assert WindowRule.of(TableSettings()) is None
    assert WindowRule.of(GroupSettings()) is None
    text = "0 22 * * * for 8h"
    table = WindowRule.of(TableSettings(windows=text, window_input_bytes=5))
    assert table == WindowRule.of(GroupSettings(windows=text, window_input_bytes=5))
    assert WindowRule.of(TableSettings(windows="of another release")) is None


def job(priority: int, kind: Kind = Kind.SYSTEM) -> Job:
    return Job(
        id="j",
        tablet=TabletId("t", b"a"),
        table_name="trips",
        kind=kind,
        inputs=("f1", "f2"),
        input_bytes=2,
        group="g",
        priority=priority,
        reason="because",
    )


def test_requests_and_jobs_above_the_limit_are_exempt_by_a_setting() -> None:
    small, above = job(1), job(2 * CLASS_WIDTH + 1)
    asked, boosted = job(CLASS_WIDTH, Kind.USER), job(3 * CLASS_WIDTH, Kind.USER)
    expected = {
        ("requests", "over-limit"): (False, True, True, True),
        ("requests",): (False, False, True, True),
        ("over-limit",): (False, True, False, False),
        (): (False, False, False, False),
    }
    for exempt, answers in expected.items():
        rule = WindowRule.of(TableSettings(windows="0 0 * * * for 1h", window_exempt=exempt))
        assert rule is not None
        assert tuple(map(rule.is_exempt, (small, above, asked, boosted))) == answers
