"""Rows over HTTP: add, append, scan. All or nothing, once per call, merged on read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from neve.api import ARROW_STREAM, CALL_HEADER
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NeveError,
    RefusedError,
)
from neve.client.http import new_call
from tests.support.gateway import TOKEN, Gateway, serving

SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.int64()), ("name", pa.string()), ("gone", pa.bool_())]
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving(body_bytes_max=1 << 20) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made
        for table in made.tables():
            made.drop(table.name)


@pytest.fixture
def folder(client: Client, tmp_path: Path) -> Path:
    """Return the location of `events`: three tablets, up to 100, up to 200, the rest."""
    client.create_table(
        "events",
        str(tmp_path),
        schema=SCHEMA,
        key=["id"],
        version_column="v",
        tombstone_column="gone",
        splits=["100", "200"],
    )
    return tmp_path


def rows(*ids: int, v: int = 1, **columns: Any) -> pa.Table:
    values = {"id": ids, "v": [v] * len(ids), "name": [f"n{i}" for i in ids]} | columns
    fields = [SCHEMA.field(name) for name in values if name in SCHEMA.names]
    return pa.table({**values}, schema=pa.schema(fields) if len(fields) == len(values) else None)


def write(folder: Path, name: str, table: pa.Table) -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name)
    return name


def paths(client: Client) -> list[str]:
    return sorted(file.path for file in client.files("events"))


def test_files_are_added_to_their_tablets(client: Client, folder: Path) -> None:
    names = [write(folder, "a.parquet", rows(1, 5, 100)), write(folder, "b/b.parquet", rows(101))]

    added = client.add_files("events", names)

    assert {file.path: file.key_max for file in added.files} == {
        "a.parquet": "[100]",
        "b/b.parquet": "[101]",
    }
    assert [tablet.files for tablet in client.tablets("events")] == [1, 1, 0]
    assert (added.rows, client.describe("events").rows) == (4, 4)


def test_a_path_may_be_written_in_every_form(client: Client, folder: Path) -> None:
    for name in ("a.parquet", "b.parquet", "c.parquet"):
        write(folder, name, rows(1))

    client.add_files("events", ["a.parquet", str(folder / "b.parquet")])
    client.add_files("events", [(folder / "c.parquet").as_uri()])
    assert paths(client) == ["a.parquet", "b.parquet", "c.parquet"]


def _bad_files(folder: Path) -> dict[str, str]:
    """Make one bad file of each kind; return path → what the refusal says."""
    outside = folder.parent / "outside.parquet"
    pq.write_table(rows(1), outside)
    (folder / "link.parquet").symlink_to(outside)
    (folder / "text.parquet").write_text("no parquet at all, not even a little bit of it")
    (folder / "folder.parquet").mkdir()
    write(folder, "cross.parquet", rows(5, 150, 250))
    write(folder, "nokey.parquet", pa.table({"v": [1]}))
    write(folder, "type.parquet", pa.table({"id": ["a"], "v": [1]}))
    write(folder, "extra.parquet", rows(1, names=["x"]))
    return {
        "../outside.parquet": "'../outside.parquet' is not a plain path",
        str(outside): "is not in the table's location",
        "s3://bucket/x.parquet": "is not in the table's location",
        "link.parquet": "leads out of .* through a link",
        "none.parquet": "file none.parquet does not exist",
        "folder.parquet": "file folder.parquet is a folder",
        "text.parquet": "file text.parquet is not readable as Parquet",
        "cross.parquet": r"cross.parquet has keys from \[5\] to \[250\], so it crosses the tablets "
        r"\w+ \(up to \[100\]\), \w+ \(up to \[200\]\), last \(up to \+inf\); .*`append`",
        "nokey.parquet": "file nokey.parquet lacks the columns id",
        "type.parquet": "column id is string in file type.parquet, but int64 in the table",
        "extra.parquet": "file extra.parquet contains column 'names'.* did you mean 'name'",
        "_neve/store": "file _neve/store lies in _neve/, which the service keeps for itself",
        "": "path '' is not a plain path",
        "a\x00b": "is not a plain path",
    }


def test_a_bad_file_is_refused_with_all_that_came_with_it(client: Client, folder: Path) -> None:
    write(folder, "good.parquet", rows(1))
    for path, message in _bad_files(folder).items():
        with pytest.raises(CallerError, match=message):
            client.add_files("events", ["good.parquet", path])
        assert paths(client) == [], path
    client.add_files("events", ["good.parquet"])


def test_no_file_too_many_or_one_twice_is_refused(client: Client, folder: Path) -> None:
    write(folder, "a.parquet", rows(1))

    for wanted, message in (
        ([], "0 files are given, expected 1 to 10000"),
        (["a.parquet", str(folder / "a.parquet")], "file a.parquet is given twice"),
        ([f"{i}.parquet" for i in range(10_001)], "at most 10000 items"),
    ):
        with pytest.raises(CallerError, match=message):
            client.add_files("events", wanted)
    assert paths(client) == []


def test_an_add_counts_once_per_call(client: Client, folder: Path) -> None:
    write(folder, "a.parquet", rows(1))
    call = new_call()

    first = client.add_files("events", ["a.parquet"], call=call)
    again = client.add_files("events", ["a.parquet"], call=call)
    assert (again.rows, again.file_count, again.tablets) == (1, 1, first.tablets)
    assert (first.repeated, again.repeated) == (False, True)
    assert paths(client) == ["a.parquet"]
    with pytest.raises(RefusedError, match=r"a.parquet is already in the table"):
        client.add_files("events", ["a.parquet"])
    write(folder, "b.parquet", rows(2))
    with pytest.raises(RefusedError, match=r"was used before, with other content") as caught:
        client.add_files("events", ["b.parquet"], call=call)
    assert (caught.value.error, caught.value.code) == ("RefusedError", "call-content")


@pytest.mark.parametrize(
    ("call", "message", "code"),
    [
        ("mine", "call id 'mine' is not a UUIDv7", "call-form"),
        (
            "0190a1b2-0000-7000-8000-000000000000",
            "was made .* s ago, at most 86400",
            "call-too-old",
        ),
        ("f190a1b2-0000-7000-8000-000000000000", "in the future", "call-too-new"),
        ("6ba7b810-9dad-11d1-80b4-00c04fd430c8", "is not a UUIDv7", "call-form"),
    ],
)
def test_a_call_id_that_nobody_could_recognise_is_refused(
    client: Client, folder: Path, call: str, message: str, code: str
) -> None:
    """Nothing was added, and that is what the caller is told."""
    write(folder, "a.parquet", rows(1))
    with pytest.raises(CallerError, match=message) as caught:
        client.add_files("events", ["a.parquet"], call=call)
    assert caught.value.code == code
    with pytest.raises(CallerError, match=message) as caught:
        client.append("events", rows(1), call=call)
    assert (caught.value.error, caught.value.code) == ("RequestError", code)
    assert paths(client) == []


def test_rows_are_cut_by_tablet_and_sorted(client: Client, folder: Path) -> None:
    added = client.append("events", rows(250, 7, 100, 101, 3))

    assert sorted((file.key_min, file.key_max) for file in added.files) == [
        ("[101]", "[101]"),
        ("[250]", "[250]"),
        ("[3]", "[100]"),
    ]
    assert all(file.path.startswith("_neve/append/") and file.clean for file in added.files)
    assert client.scan("events", ["id"]).column("id").to_pylist() == [3, 7, 100, 101, 250]


def test_an_append_counts_once_per_call(client: Client, folder: Path) -> None:
    call = new_call()

    first = client.append("events", rows(1, 150), call=call)
    again = client.append("events", rows(1, 150), call=call)
    assert (first.file_count, len(first.files), len(first.tablets)) == (2, 2, 2)
    assert (again.rows, again.size_bytes) == (first.rows, first.size_bytes)
    assert (again.file_count, again.tablets) == (2, first.tablets)
    assert (again.repeated, again.files) == (True, ())
    assert len(paths(client)) == 2
    client.append("events", rows(1, 150))
    assert len(paths(client)) == 4
    assert not list(folder.glob("_neve/append/*.part"))


def test_appended_rows_are_widened(client: Client, folder: Path) -> None:
    narrow = pa.table({"v": pa.array([3], pa.int8()), "id": pa.array([9], pa.int32())})

    client.append("events", narrow)
    assert client.scan("events").to_pylist() == [{"id": 9, "v": 3, "name": None, "gone": None}]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (rows(), "the body contains no rows"),
        (rows(1, names=["x"]), "the body contains column 'names'.* did you mean 'name'"),
        (pa.table({"id": ["x"], "v": [1]}), "column id is string in the body, but int64"),
        (pa.table({"id": [1.5], "v": [1]}), "column id is double in the body, but int64"),
        (pa.table({"v": [1]}), "the body lacks the columns id of the table's key"),
        (pa.table({"id": [1]}), "the body lacks the columns v"),
        (pa.table({"id": [1], "v": [1], "name": ["x" * (2 << 20)]}), "more than 1048576 bytes"),
    ],
)
def test_bad_rows_are_refused(client: Client, folder: Path, table: pa.Table, message: str) -> None:
    with pytest.raises(CallerError, match=message):
        client.append("events", table)
    assert paths(client) == []
    assert not list(folder.glob("_neve/append/*"))


@pytest.mark.parametrize(
    ("content", "kind", "status", "message"),
    [
        (b"", ARROW_STREAM, 400, "not an Arrow IPC stream"),
        (b"\xff" * 100, ARROW_STREAM, 400, "not an Arrow IPC stream"),
        (b"{}", "application/json", 422, "content type 'application/json' is not accepted here"),
    ],
)
def test_a_body_that_is_no_arrow_is_refused(
    gateway: Gateway,
    client: Client,
    folder: Path,
    content: bytes,
    kind: str,
    *,
    status: int,
    message: str,
) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind, CALL_HEADER: new_call()}
    answer = httpx.post(f"{gateway.url}/v1/tables/events/append", content=content, headers=headers)

    assert (answer.status_code, message in answer.json()["detail"]) == (status, True)


def test_a_scan_merges_what_it_reads(client: Client, folder: Path) -> None:
    client.append("events", rows(1, 2, 3, 150, v=1))
    client.append("events", rows(1, v=3, name=["new"]))
    client.append("events", rows(1, v=2, name=["late"]))
    client.append("events", rows(2, 150, v=2, gone=[True, True]))

    assert client.scan("events", ["id", "name"]).to_pydict() == {
        "id": [1, 3],
        "name": ["new", "n3"],
    }
    assert client.count("events") == 2


def test_a_table_gets_another_key_by_a_new_table_alone(
    client: Client, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    client.append("events", rows(1, 150, 250))
    client.append("events", rows(2, v=2, gone=[True]))
    before = client.describe("events")
    with pytest.raises(CallerError, match="key"):
        client.set("events", {"key": "name"})
    assert client.describe("events") == before

    client.create_table(
        "renewed",
        str(tmp_path_factory.mktemp("renewed")),
        schema=SCHEMA,
        key=["name"],
        version_column="v",
        tombstone_column="gone",
    )
    for _ in range(2):  # A copy that was interrupted may begin anew.
        for batch in client.scan("events", batches=True):
            client.append("renewed", batch)

    found = client.scan("renewed", ["name", "id"]).to_pydict()
    assert found == {"name": ["n1", "n150", "n250"], "id": [1, 150, 250]}


def test_a_scan_shows_tombstones_to_those_who_ask(client: Client, folder: Path) -> None:
    client.append("events", rows(1, 2, 150, v=1))
    client.append("events", rows(2, 150, v=2, gone=[True, True]))
    client.append("events", rows(150, v=3))

    found = client.scan("events", ["id", "v", "gone"], include_deleted=True)
    assert found.to_pydict() == {"id": [1, 2, 150], "v": [1, 2, 3], "gone": [None, True, None]}
    assert client.count("events", include_deleted=True) == 3
    assert client.count("events", "2", "150", include_deleted=True) == 2
    assert client.count("events") == client.count("events", include_expired=True) == 2


def test_a_table_that_keeps_deleted_rows_shows_them_to_those_who_ask(
    client: Client, tmp_path: Path
) -> None:
    client.create_table(
        "kept",
        str(tmp_path / "kept"),
        schema=SCHEMA,
        key=["id"],
        version_column="v",
        tombstone_column="gone",
        settings={"keep_deleted_rows": "true"},
    )
    client.append("kept", rows(1, 2, 150, v=1))
    client.append("kept", rows(1, 2, 150, v=2))
    client.append("kept", rows(2, 150, v=3, gone=[True, True]))
    client.append("kept", rows(150, v=4))

    found = client.scan("kept", ["id", "v", "gone"], include_deleted=True)
    assert found.to_pydict() == {
        "id": [1, 2, 2, 150],
        "v": [2, 3, 2, 4],
        "gone": [None, True, None, None],
    }
    assert client.count("kept", include_deleted=True) == 4
    assert client.count("kept", "2", "2", include_deleted=True) == 2
    assert client.scan("kept", ["id", "v"]).to_pydict() == {"id": [1, 150], "v": [2, 4]}
    assert client.count("kept") == 2


def test_a_scan_shows_expired_rows_to_those_who_ask(client: Client, tmp_path: Path) -> None:
    client.create_table(
        "series",
        str(tmp_path / "series"),
        schema=pa.schema([("at", pa.int64()), ("n", pa.int64())]),
        time_column="at",
        settings={"ttl": "1d"},
    )
    now_s = int(time.time())
    client.append("series", pa.table({"at": [0, now_s, None], "n": [1, 2, 3]}))

    assert sorted(client.scan("series")["n"].to_pylist()) == [2, 3]
    assert sorted(client.scan("series", include_expired=True)["n"].to_pylist()) == [1, 2, 3]
    assert client.count("series", include_expired=True) == 3
    assert client.count("series", include_deleted=True) == 2


def test_files_replace_those_of_lower_versions_in_a_window_of_time(tmp_path: Path) -> None:
    with serving() as gateway, gateway.client() as client:
        schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
        client.create_table("series", str(tmp_path), schema=schema, time_column="at")

        def day(number: int, n: int) -> pa.Table:
            at = datetime(2026, 5, number, 23, 59, 59, 999_999, tzinfo=UTC)
            return pa.table({"at": [at], "n": [n]}, schema=schema)

        names = [write(tmp_path, f"{number}.parquet", day(number, number)) for number in (1, 2, 3)]
        client.add_files("series", names)
        new = write(tmp_path, "new.parquet", day(2, 20))
        window, call = "2026-05-02..2026-05-03", new_call()
        added = client.add_files("series", [new], version=2, window=window, call=call)

        assert (added.file_count, added.replaced) == (1, 1)
        assert sorted(client.scan("series")["n"].to_pylist()) == [1, 3, 20]
        assert {file.path: file.tags for file in client.files("series")}[new] == {
            "data-version": "2"
        }
        assert client.add_files("series", [new], version=2, window=window, call=call).repeated
        with pytest.raises(RefusedError, match="with other content"):
            client.add_files("series", [new], version=3, window=window, call=call)
        newest = write(tmp_path, "newest.parquet", day(2, 30))
        with pytest.raises(RefusedError, match=r"file new\.parquet in 2026-05-02 .* has version 2"):
            client.add_files("series", [newest], version=1, window=window)
        both = write(tmp_path, "both.parquet", pa.concat_tables([day(3, 31), day(4, 41)]))
        client.add_files("series", [both])
        third = write(tmp_path, "third.parquet", day(3, 32))
        with pytest.raises(RefusedError, match=r"both\.parquet .* would be replaced only in part"):
            client.add_files("series", [third], version=3, window="2026-05-03..2026-05-04")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"version": 1}, "only version is given, expected version and window together"),
        ({"window": "2026-05-01..2026-05-02"}, "only window is given"),
        ({"version": 0, "window": "2026-05-01..2026-05-02"}, "version is 0, expected 1 to"),
        ({"version": 1, "window": "2026-05-01"}, "window is '2026-05-01', expected two dates"),
        ({"version": 1, "window": "2026-05-02..2026-05-01"}, "the later one last"),
        ({"version": 1, "window": "may..june"}, "window is 'may..june', expected two dates"),
    ],
)
def test_a_wrong_window_is_refused(
    client: Client, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    schema = pa.schema([("at", pa.int64()), ("n", pa.int64())])
    client.create_table("series", str(tmp_path), schema=schema, time_column="at")
    with pytest.raises(CallerError, match=message):
        client.add_files("series", ["a.parquet"], **more)


def test_a_table_with_a_key_takes_no_window(client: Client, folder: Path) -> None:
    with pytest.raises(CallerError, match="'events' has a key: version and window need an append"):
        client.add_files("events", ["a"], version=1, window="2026-05-01..2026-05-02")


def test_one_key_is_read_by_a_range_and_an_expired_one_is_answered_like_a_missing_one(
    client: Client, tmp_path: Path
) -> None:
    client.create_table(
        "sessions",
        str(tmp_path / "sessions"),
        schema=pa.schema([("id", pa.int64()), ("v", pa.int64()), ("at", pa.int64())]),
        key=["id"],
        version_column="v",
        time_column="at",
        settings={"ttl": "1d"},
    )
    now_s = int(time.time())
    client.append("sessions", pa.table({"id": [1, 2], "v": [1, 1], "at": [0, now_s]}))

    def ids(key: str, **more: bool) -> list[int]:
        found: list[int] = client.scan("sessions", start=key, end=key, **more)["id"].to_pylist()
        return found

    assert (ids("1"), ids("2"), ids("3")) == ([], [2], [])
    assert ids("1", include_expired=True) == [1], "the caller chooses, until a compaction drops it"
    assert ids("3", include_expired=True) == []

    client.set("sessions", settings={"show_expired_rows": "true"})
    assert (ids("1"), ids("2"), ids("3")) == ([1], [2], [])
    assert (client.count("sessions"), client.count("sessions", include_expired=False)) == (2, 1)
    assert ids("1", include_expired=False) == [], "each read may choose otherwise"


@pytest.mark.parametrize(
    ("start", "end", "ids"),
    [
        (None, None, [1, 50, 100, 101, 200, 201]),
        ("50", None, [50, 100, 101, 200, 201]),
        ("51", "200", [100, 101, 200]),
        ("101", "101", [101]),
        (None, "100", [1, 50, 100]),
        ("102", "199", []),
        ("300", "2", []),
        (None, "+inf", [1, 50, 100, 101, 200, 201]),
    ],
)
def test_a_range_holds_both_its_ends(
    client: Client, folder: Path, start: str | None, end: str | None, ids: list[int]
) -> None:
    client.append("events", rows(1, 50, 100, 101, 200, 201))
    client.append("events", rows(50, 101, v=2))

    assert client.scan("events", ["id"], start, end).column("id").to_pylist() == ids
    assert client.count("events", start, end) == len(ids)


def test_a_scan_streams_batches(client: Client, folder: Path) -> None:
    client.append("events", rows(*range(300)))

    reader = client.scan("events", batches=True)
    assert reader.schema.names == SCHEMA.names
    assert sum(batch.num_rows for batch in reader) == 300
    assert client.scan("events", ["name"]).schema.names == ["name"]


def test_an_empty_table_has_a_schema(client: Client, folder: Path) -> None:
    assert client.scan("events").schema == SCHEMA
    assert client.count("events") == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"columns": ["nix"]}, "column 'nix' is unknown; table 'events' has id, v"),
        ({"columns": ["id", "id"]}, "name one twice"),
        ({"start": "x"}, "key value 'x' cannot be read as int"),
        ({"end": "1,2"}, "key value '1,2' cannot be read as int"),
    ],
)
def test_a_bad_scan_is_refused_before_it_begins(
    client: Client, folder: Path, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(CallerError, match=message):
        client.scan("events", **asked)


def test_a_file_that_is_gone_breaks_the_scan_loudly(client: Client, folder: Path) -> None:
    client.append("events", rows(1))
    for file in folder.glob("_neve/append/*"):
        file.unlink()

    with pytest.raises(NeveError, match=r"does not exist"):
        client.scan("events")


def test_a_stream_that_breaks_in_the_middle_is_no_short_answer(
    client: Client, folder: Path
) -> None:
    client.append("events", rows(1, 250))
    (last,) = [file for file in client.files("events") if file.tablet == "last"]
    (folder / last.path).unlink()

    with pytest.raises(NeveError, match=rf"file {last.path} does not exist"):
        client.scan("events")
    with pytest.raises(NeveError, match=r"does not exist"):
        for _ in client.scan("events", batches=True):
            pass


def test_pins_end_with_their_scans(gateway: Gateway, client: Client, folder: Path) -> None:
    client.append("events", rows(1, 250))
    client.scan("events")
    reader = client.scan("events", batches=True)
    reader.read_next_batch()
    reader.close()
    table = client.describe("events")

    for _ in range(100):
        if not gateway.ask(gateway.store.pins(table.id)):
            return
        threading.Event().wait(0.02)
    raise AssertionError("a pin is left")


def test_a_table_without_a_key_keeps_every_row(client: Client, tmp_path: Path) -> None:
    client.create_table("bag", str(tmp_path), schema=pa.schema([("x", pa.int64())]))
    client.append("bag", pa.table({"x": [2, 1, 2]}))
    client.append("bag", pa.table({"x": [2]}))

    assert sorted(client.scan("bag").column("x").to_pylist()) == [1, 2, 2, 2]
    with pytest.raises(CallerError, match=r"table 'bag' has no key"):
        client.scan("bag", start="1")


def test_writes_into_a_location_of_another_store_are_refused(
    gateway: Gateway, client: Client, folder: Path
) -> None:
    (folder / "_neve" / "store").write_text("store-of-others")
    write(folder, "a.parquet", rows(1))

    with pytest.raises(RefusedError, match=r"belongs to the store store-of-others"):
        client.add_files("events", ["a.parquet"])
    with pytest.raises(RefusedError, match=r"belongs to the store store-of-others"):
        client.append("events", rows(1))


def test_times_in_seconds_are_kept_as_parquet_keeps_them(client: Client, tmp_path: Path) -> None:
    """In milliseconds, also within other types: a table in seconds could be written, not read."""
    seconds = pa.schema(
        [
            ("id", pa.int64()),
            ("at", pa.timestamp("s", "UTC")),
            ("time", pa.time32("s")),
            ("within", pa.list_(pa.timestamp("s"))),
            ("long", pa.duration("s")),
        ]
    )
    client.create_table("seconds", str(tmp_path), schema=seconds)
    types = {each.name: each.type for each in client.describe("seconds").schema}
    assert types["at"] == "timestamp[ms, UTC]"
    assert types["time"] == "time[ms]"
    assert types["within"] == "list<timestamp[ms]>"
    assert types["long"] == "duration[s]", "Arrow's own schema in the file keeps it"
    rows = pa.table([[1], [2], [3], [[4]], [5]], schema=seconds)

    client.append("seconds", rows)
    pq.write_table(rows, tmp_path / "a.parquet")
    client.add_files("seconds", ["a.parquet"])

    assert client.scan("seconds").cast(seconds).to_pylist() == 2 * rows.to_pylist()
    client.set("seconds", add_columns={"more": "timestamp[s]"})
    assert client.describe("seconds").schema[-1].type == "timestamp[ms]"
