"""Maintenance windows: when system jobs may start, in the time zone of an operator.

A text such as `0 22 * * 1-5 for 8h in Europe/Berlin` has a start in the form of cron(5), a length
and a time zone; `;` separates several windows, which are open together. Pure: times come in as
seconds since the epoch.

Length is elapsed time. At a change of daylight saving, a start at a fixed hour happens once:

* a time that the clock skips starts when the clock has gone forward;
* a time that the clock shows twice starts the first time.

With a `*` in the field of hours, as in `0 * * * *`, skipped times do not start, and repeated times
start twice. These are the rules of Debian's cron.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from common.errors import RequestError
from common.model.job import Job, Kind, is_urgent
from common.units import exact_duration, parse_duration_s, shown

TEXT_CHARS_MAX, WINDOWS_MAX = 1000, 20
LENGTH_MIN_S, LENGTH_MAX_S = 60.0, 31 * 86_400.0
SEARCH_DAYS_MAX = 41 * 366
"""Longest distance of two starts: some weekday on 29 February, across the year 2100."""
_DAY = timedelta(days=1)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, _DAYS),
)
"""Name, lowest and highest value, and names of values of each field; the first name is `low`."""
_PART = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
_WINDOW = re.compile(r"(.+?) for (\S+)(?: in (\S+))?", re.DOTALL)
EXAMPLE = "0 22 * * 1-5 for 8h in Europe/Berlin"

# --------------------------------------------------------------------------------------------- Cron


@dataclass(frozen=True, slots=True)
class Cron:
    """The starts of a window: the five fields of cron(5). Invariant: some day matches."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    """0 is Sunday."""
    either_day: bool
    """Whether one of day of the month and day of the week suffices, because both are given."""
    hourly: bool
    """Whether the field of hours begins with `*`."""

    @classmethod
    def parse(cls, text: str) -> "Cron":
        """Return the starts of a text such as `30 1 * * sat,sun`.

        Raises:
            RequestError: The text is not of that form, or no date matches.
        """
        words = text.split()
        if len(words) != len(_FIELDS):
            raise RequestError(
                f"start {shown(text)} has {len(words)} fields, expected 5: minute, hour, day of the"
                " month, month, day of the week"
            )
        values = [_values(word, *field) for word, field in zip(words, _FIELDS, strict=True)]
        minutes, hours, days, months, weekdays = values
        cron = cls(
            minutes=tuple(sorted(minutes)),
            hours=tuple(sorted(hours)),
            days=days,
            months=months,
            weekdays=frozenset(weekday % 7 for weekday in weekdays),
            either_day=not (words[2].startswith("*") or words[4].startswith("*")),
            hourly=words[1].startswith("*"),
        )
        first = date(2000, 1, 1)
        if not any(cron.matches(first + number * _DAY) for number in range(SEARCH_DAYS_MAX)):
            raise RequestError(f"start {shown(text)} has no date, expected one that exists")
        return cron

    def matches(self, day: date) -> bool:
        """Return whether there are starts on a date."""
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return of_month or of_week if self.either_day else of_month and of_week


def _values(word: str, name: str, low: int, high: int, names: tuple[str, ...]) -> frozenset[int]:
    """Return the values of a field such as `1-5,7` or `*/15`."""
    values: set[int] = set()
    for part in word.split(","):
        match = _PART.fullmatch(part)
        bounds = (None, None) if match is None else _bounds(match, low, high, names)
        first, last = bounds
        step = 0 if match is None else int((match[4] or "1")[:9])
        is_single = match is not None and match[4] is not None and not (match[1] or match[3])
        if first is None or last is None or first > last or step < 1 or is_single:
            expected = f"{low} to {high}" + (f" or {names[0]} to {names[-1]}" if names else "")
            raise RequestError(
                f"{name} {shown(part)} is not possible, expected {expected}, a range such as"
                f" {low + 1}-{low + 2}, or steps such as */2"
            )
        values.update(range(first, last + 1, step))
    return frozenset(values)


def _bounds(
    match: re.Match[str], low: int, high: int, names: tuple[str, ...]
) -> tuple[int | None, int | None]:
    if match[1]:
        return low, high if high != 7 else 6
    first = _value(match[2], low, high, names)
    return first, first if match[3] is None else _value(match[3], low, high, names)


def _value(text: str, low: int, high: int, names: tuple[str, ...]) -> int | None:
    if text.lower() in names:
        return names.index(text.lower()) + low
    value = int(text) if text.isdigit() and len(text) < 4 else -1
    return value if low <= value <= high else None


# ------------------------------------------------------------------------------------------ Windows


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """One start, length and time zone."""

    text: str
    start: Cron
    length_s: float
    zone: str

    @classmethod
    def parse(cls, text: str) -> "MaintenanceWindow":
        """Return the window of a text such as `EXAMPLE`; without a zone it is in UTC.

        Raises:
            RequestError: The text is not of that form.
        """
        match = _WINDOW.fullmatch(" ".join(text.split()))
        if match is None:
            raise RequestError(f"{shown(text)} is not a window, expected one such as {EXAMPLE}")
        length_s = parse_duration_s(match[2], "length")
        if not LENGTH_MIN_S <= length_s <= LENGTH_MAX_S:
            raise RequestError(
                f"length {shown(match[2])} is not possible, expected"
                f" {exact_duration(LENGTH_MIN_S)} to {exact_duration(LENGTH_MAX_S)}"
            )
        zone = match[3] or "UTC"
        try:
            ZoneInfo(zone)
        except (LookupError, ValueError, OSError) as error:  # A path is a ValueError.
            raise RequestError(
                f"time zone {shown(zone)} is unknown, expected a name such as Europe/Berlin"
            ) from error
        return cls(match[0], Cron.parse(match[1]), length_s, zone)

    def next_start_s(self, after_s: float) -> float:
        """Return the first start after a time."""
        day = _local(after_s, self.zone).date() - _DAY
        for _ in range(SEARCH_DAYS_MAX):
            later = [start_s for start_s in self._starts(day) if start_s > after_s]
            if later:
                # A clock that goes back over midnight shows times of this day after the next one.
                return min([*later, *(at for at in self._starts(day + _DAY) if at > after_s)])
            day += _DAY
        return after_s + SEARCH_DAYS_MAX * _DAY.total_seconds()  # It never starts.

    def last_start_s(self, until_s: float, since_s: float) -> float | None:
        """Return the last start at or before a time and after `since_s`, or None."""
        day, first = _local(until_s, self.zone).date() + _DAY, _local(since_s, self.zone).date()
        while day >= first - _DAY:
            starts = (*self._starts(day), *self._starts(day - _DAY))
            within = [start_s for start_s in starts if since_s < start_s <= until_s]
            if within:
                return max(within)
            day -= _DAY
        return None

    def _starts(self, day: date) -> Iterator[float]:
        """Yield the starts of a date."""
        if not self.start.matches(day):
            return
        midnight = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(self.zone))
        if midnight.utcoffset() == (midnight + _DAY).replace(fold=1).utcoffset():
            first_s = midnight.timestamp()
            for hour in self.start.hours:
                yield from (first_s + hour * 3600 + minute * 60 for minute in self.start.minutes)
            return
        for hour in self.start.hours:
            for minute in self.start.minutes:
                yield from self._starts_at(midnight.replace(hour=hour, minute=minute))

    def _starts_at(self, local: datetime) -> Iterator[float]:
        """Yield the starts at a local time, on a date with a change of the clock."""
        first_s, second_s = local.timestamp(), local.replace(fold=1).timestamp()
        if first_s <= second_s:
            yield first_s
            if first_s < second_s and self.start.hourly:
                yield second_s
        elif not self.start.hourly:  # The clock skips the time: find where it goes forward.
            yield _change_s(self.zone, second_s, first_s)


def _local(at_s: float, zone: str) -> datetime:
    return datetime.fromtimestamp(at_s, ZoneInfo(zone))


def _change_s(zone: str, before_s: float, after_s: float) -> float:
    """Return the second in which the offset of a zone changes between two times."""
    low, high = int(before_s), int(after_s)
    offset = _local(low, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if _local(middle, zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return float(high)


# ---------------------------------------------------------------------------------- Several at once


@dataclass(frozen=True, slots=True)
class WindowState:
    """Whether windows are open at a time, and until when this answer holds."""

    since_s: float | None
    """The last start; None: no window is open."""
    closes_s: float | None
    """When the open windows end, unless a later start keeps them open; None: none is open."""
    next_start_s: float
    """The next start of any window."""

    @property
    def until_s(self) -> float:
        """When the state changes."""
        return self.next_start_s if self.closes_s is None else min(self.closes_s, self.next_start_s)


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a table or group; at least one."""

    text: str
    windows: tuple[MaintenanceWindow, ...]

    def at(self, now_s: float) -> WindowState:
        """Return whether a window is open."""
        starts = [
            (start_s, start_s + window.length_s)
            for window in self.windows
            if (start_s := window.last_start_s(now_s, now_s - window.length_s)) is not None
        ]
        return WindowState(
            since_s=max((start_s for start_s, _ in starts), default=None),
            closes_s=max((end_s for _, end_s in starts), default=None),
            next_start_s=min(window.next_start_s(now_s) for window in self.windows),
        )

    def time_text(self, at_s: float) -> str:
        """Return a time in the zone of the first window: `2026-11-28 22:00 (Europe/Berlin)`."""
        zone = self.windows[0].zone
        return f"{_local(at_s, zone):%Y-%m-%d %H:%M} ({zone})"


@lru_cache(maxsize=4096)
def parse_windows(text: str) -> Windows | None:
    """Return the windows of a text; None: it is empty, so system jobs start at any time.

    Raises:
        RequestError: The text has a wrong window, or too many.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise RequestError(
            f"windows have {len(text)} characters, expected at most {TEXT_CHARS_MAX}"
        )
    windows = tuple(MaintenanceWindow.parse(part) for part in text.split(";") if part.strip())
    if len(windows) > WINDOWS_MAX:
        raise RequestError(f"there are {len(windows)} windows, expected at most {WINDOWS_MAX}")
    return Windows("; ".join(window.text for window in windows), windows) if windows else None


def check_windows(text: str, where: str) -> None:
    """Refuse windows that cannot be read.

    Args:
        text: The windows.
        where: The setting, for the message.

    Raises:
        RequestError: Names the setting, the part and what is expected.
    """
    try:
        parse_windows(text)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error


# ---------------------------------------------------------------------- Rules of a table or a group


REQUESTS, OVER_LIMIT = "requests", "over-limit"
EXEMPTIONS = (REQUESTS, OVER_LIMIT)
"""Jobs that may start outside of windows: those of requests, and urgent system jobs."""


class WindowSettings(Protocol):
    """The settings that tables and groups have for their windows."""

    @property
    def windows(self) -> str:
        """Windows as text; empty: any time."""
        ...

    @property
    def window_input_bytes(self) -> int:
        """Bytes of input of the jobs that start in one window; 0: no limit."""
        ...

    @property
    def window_cost_s(self) -> float:
        """Seconds of slots that the jobs of one window may take; 0: no limit."""
        ...

    @property
    def window_exempt(self) -> Collection[str]:
        """Some of `EXEMPTIONS`."""
        ...


@dataclass(frozen=True, slots=True)
class WindowRule:
    """When jobs of a table or group may start, and how much may start in one window."""

    windows: Windows
    bytes_max: int
    """Bytes of input; 0: no limit."""
    cost_max_s: float
    """Seconds of compactor slots; 0: no limit."""
    exempt: frozenset[str]

    @classmethod
    def of(cls, settings: WindowSettings) -> "WindowRule | None":
        """Return the rule of settings, or None if jobs may start at any time.

        Settings of another release may hold windows that this one refuses; they have no effect.
        """
        try:
            windows = parse_windows(settings.windows)
        except RequestError:
            return None
        if windows is None:
            return None
        exempt = frozenset(settings.window_exempt)
        return cls(windows, settings.window_input_bytes, settings.window_cost_s, exempt)

    @property
    def has_budget(self) -> bool:
        """Whether a window limits how much may start in it."""
        return self.bytes_max > 0 or self.cost_max_s > 0

    def is_exempt(self, job: Job) -> bool:
        """Return whether a job may start outside of the windows."""
        if job.kind is Kind.USER:
            return REQUESTS in self.exempt
        return OVER_LIMIT in self.exempt and is_urgent(job)
