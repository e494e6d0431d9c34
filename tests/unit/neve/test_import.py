"""A directory becomes a table, by the client and on the command line; killed, it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from common.errors import UnavailableError
from common.metadata.changes import (
    AddFiles,
    Applied,
    Change,
    CreateTable,
    FinishFilling,
    ForgetFiles,
    Outcome,
)
from common.metadata.changes.files import refused_call
from common.model.location_identity import GUARD_NAME
from common.model.table import Table
from common.model.tablet import TabletId
from common.runtime import SystemClock
from neve.api import ImportProgress, ImportReport
from neve.client import Client
from neve.client.errors import (
    CallerError,
    NeveError,
    RefusedError,
)
from neve.gateway import imports
from neve.gateway.imports import batch_call_id
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.memory_store import MemoryStore
from tests.support.shell import Shell

KEYED = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("day", pa.date32())])


class DiedError(UnavailableError):
    """The gateway was killed here."""


class MortalStore(MemoryStore):
    """A store behind a gateway that dies before, or after, its n-th change of an import."""

    left: int | None = None
    after = False

    async def apply(self, change: Change) -> Outcome:
        counted = isinstance(change, CreateTable | AddFiles | FinishFilling)
        if counted and self.left is not None:
            self.left -= 1
        if counted and self.left == 0 and not self.after:
            raise DiedError("killed")
        outcome = await super().apply(change)
        if counted and self.left == 0:
            raise DiedError("killed")
        return outcome


@pytest.fixture
def store() -> MortalStore:
    return MortalStore(SystemClock())


@pytest.fixture
def gateway(store: MortalStore) -> Iterator[Gateway]:
    with serving(store) as served:
        yield served


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made


def hive(folder: Path, days: int = 3, files: int = 2) -> pa.Table:
    """Write a hive-partitioned directory as pyarrow does; return its rows."""
    every = []
    for number in range(files):
        ids = range(number * 100, number * 100 + 3 * days)
        rows = pa.table(
            {
                "id": ids,
                "v": [1] * len(ids),
                "day": [date(2024, 1, 1 + n % days) for n in ids],
            },
            schema=KEYED,
        )
        ds.write_dataset(
            rows,
            folder,
            format="parquet",
            partitioning=ds.partitioning(pa.schema([KEYED.field("day")]), flavor="hive"),
            basename_template=f"part-{number}-{{i}}.parquet",
            existing_data_behavior="overwrite_or_ignore",
        )
        every.append(rows)
    return pa.concat_tables(every)


def sorted_rows(table: pa.Table) -> list[dict[str, Any]]:
    return table.select(["id", "v", "day"]).sort_by("id").to_pylist()


OPTIONS: dict[str, Any] = {"key": ("day", "id"), "version_column": "v"}


def test_a_hive_directory_becomes_a_keyed_table(client: Client, tmp_path: Path) -> None:
    rows = hive(tmp_path / "lake")
    (tmp_path / "lake/_SUCCESS").touch()
    told: list[ImportProgress] = []

    dry = client.import_table(str(tmp_path / "lake"), "lake", dry_run=True, **OPTIONS)
    assert client.tables() == []
    assert not (tmp_path / "lake/_neve").exists()
    done = client.import_table(str(tmp_path / "lake"), "lake", progress=told.append, **OPTIONS)

    assert (dry.dry_run, dry.state, dry.added, dry.files) == (True, "", 0, 6)
    for report in (dry, done):
        assert (report.rows, report.partitions, report.ignored, report.misfits) == (18, 3, 1, 0)
        assert {each.name: each.type for each in report.schema}["day"] == "date"
        assert [each.partition for each in report.per_partition] == [
            f"day=2024-01-0{n}" for n in (1, 2, 3)
        ]
    assert (done.state, done.added, done.already) == ("paused", 6, 0)
    assert any("neve resume lake" in note for note in done.notes)
    assert sorted_rows(client.scan("lake")) == sorted_rows(rows)
    assert [(tablet.partition, tablet.files) for tablet in client.tablets("lake")] == [
        (f"day=2024-01-0{n}", 2) for n in (1, 2, 3)
    ]
    assert {each.text for each in told} >= {"reading footers", "adding files"}
    last = told[-1]
    assert (last.files_done, last.files, last.bytes_done, last.rows) == (6, 6, last.size_bytes, 18)

    again = client.import_table(
        str(tmp_path / "lake"), "lake", readers_use_manifest=True, **OPTIONS
    )
    assert (again.added, again.already, again.files, again.state) == (0, 6, 6, "live")
    (note,) = again.notes
    assert "setting directory_guard" in note


def test_a_plain_directory_is_one_tablet(client: Client, tmp_path: Path) -> None:
    for number in range(3):
        ids = pa.array(range(number, 9), pa.int64())
        rows = pa.table({"id": ids, "v": pa.array([number] * len(ids), pa.int32())})
        (tmp_path / f"deep/{number}").mkdir(parents=True)
        pq.write_table(rows, tmp_path / f"deep/{number}/a.parquet")
    done = client.import_table(
        tmp_path.as_uri(), "plain", key=["id"], version_column="v", readers_use_manifest=True,
        settings={"ratio": 7},
    )  # fmt: skip
    assert (done.state, done.added, done.partitions, done.partition_by) == ("live", 3, 0, ())
    assert [tablet.files for tablet in client.tablets("plain")] == [3]
    assert client.describe("plain").settings["ratio"] == 7
    assert client.scan("plain", ["v"])["v"].to_pylist() == [0, 1, *[2] * 7]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_killed_anywhere_and_repeated_the_result_is_the_same(
    client: Client,
    store: MortalStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    after: bool,
) -> None:
    monkeypatch.setattr(imports, "BATCH_FILES", 2)
    rows = hive(tmp_path / "lake")
    store.left, store.after = step, after  # table, three batches, live

    def run() -> ImportReport:
        return client.import_table(
            str(tmp_path / "lake"), "lake", readers_use_manifest=True, **OPTIONS
        )

    with pytest.raises(NeveError, match="killed"):
        run()
    finished = step == 5 and after
    known = {each.name: each.state for each in client.tables()}
    assert known.get("lake") == (
        "live" if finished else None if (step, after) == (1, False) else "filling"
    )
    store.left = None
    done = run()
    in_before = {1: 0, 2: 0, 3: 2, 4: 4, 5: 6}[step] + (2 if after and 1 < step < 5 else 0)
    assert (done.state, done.files, done.already) == ("live", 6, in_before)
    assert done.added == 6 - in_before
    assert sorted_rows(client.scan("lake")) == sorted_rows(rows)
    assert len(client.files("lake")) == 6


def table(name: str, calls_since_s: float = 0.0) -> Table:
    return Table(
        id=name, name="lake", location="file:///lake", schema=(), calls_since_s=calls_since_s
    )


def test_a_batch_of_the_same_paths_is_the_same_call() -> None:
    now_s = 1_700_000_000.0
    first = batch_call_id(table("t"), ["a", "b"], now_s)
    assert batch_call_id(table("t"), ["b", "a"], now_s + 60) == first
    other = batch_call_id(table("u"), ["a", "b"], now_s)
    assert len({first, batch_call_id(table("t"), ["a"], now_s), other}) == 3
    assert batch_call_id(table("t"), ["a", "b"], now_s + 3600) != first
    assert first[14] == "7"
    since_s = now_s + 1799.0001
    later = batch_call_id(table("t", since_s), ["a", "b"], now_s + 1800)
    assert refused_call(later, now_s + 1800, since_s) is None
    assert refused_call(first, now_s + 1800, since_s) is not None


def test_files_that_do_not_fit_are_told_and_left_only_on_purpose(
    client: Client, tmp_path: Path
) -> None:
    hive(tmp_path, days=1, files=1)
    folder = tmp_path / "day=2024-01-01"
    (folder / "empty.parquet").touch()
    (folder / "notes.csv").write_text("id,v\n")
    pq.write_table(pa.table({"id": ["x"], "v": [1]}), folder / "text.parquet")
    pq.write_table(pa.table({"id": [77], "v": pa.nulls(1, pa.int64())}), folder / "null.parquet")
    pq.write_table(pa.table({"v": [1]}), folder / "keyless.parquet")
    (folder / "part-0-0.parquet").rename(tmp_path / "outside.parquet")
    hive(tmp_path, days=1, files=2)
    broken = folder / "broken.parquet"
    pq.write_table(pa.table({"id": range(9000), "v": [1] * 9000}), broken, compression="none")
    content = bytearray(broken.read_bytes())
    content[4:60] = b"\xff" * 56
    broken.write_bytes(content)

    dry = client.import_table(str(tmp_path), "lake", dry_run=True, **OPTIONS)
    why = {misfit_file.path.rpartition("/")[2]: misfit_file.why for misfit_file in dry.misfit_files}
    assert (dry.files, dry.misfits) == (4, 5)
    assert why["empty.parquet"] == "it is empty (0 bytes)"
    assert why["notes.csv"] == "it is not Parquet"
    assert "column id is int64 in the other files, but string" in why["text.parquet"]
    assert any("v is null in 1 row" in note for note in dry.notes)
    assert "lacks the columns id of the key" in why["keyless.parquet"]
    assert "it lies in no partition's folder, expected folders of day" in why["outside.parquet"]
    with pytest.raises(RefusedError, match=r"5 of 9 files do not fit, .*Nothing was written"):
        client.import_table(str(tmp_path), "lake", **OPTIONS)
    assert client.tables() == []

    done = client.import_table(str(tmp_path), "lake", leave_misfits=True, **OPTIONS)
    assert (done.added, done.misfits) == (3, 6), "one is found to be damaged when it is read"
    assert any(misfit_file.path.endswith("broken.parquet") for misfit_file in done.misfit_files)
    assert any("unseen by readers of the manifest" in note for note in done.notes)


def test_a_damaged_file_stops_the_import_which_then_goes_on(client: Client, tmp_path: Path) -> None:
    hive(tmp_path, days=1, files=2)
    path = tmp_path / "day=2024-01-01/part-1-0.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:4] + bytes(40) + content[44:])
    with pytest.raises(CallerError, match=r"part-1-0.parquet"):
        client.import_table(str(tmp_path), "lake", **OPTIONS)
    assert client.describe("lake").state == "filling"
    path.write_bytes(content)
    assert client.import_table(str(tmp_path), "lake", **OPTIONS).added == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "Not A Label"}, "must be a DNS label"),
        ({"key": ("nope",)}, "lacks the columns nope of the key or version"),
        ({"key": ("id",)}, "partition column 'day' is not in the key"),
        ({"version_column": None}, "has a key, but no version_column"),
        ({"tombstone_column": "v"}, "tombstone_column 'v' is int64, expected a bool"),
        ({"settings": {"ratoi": 2}}, "did you mean 'ratio'"),
        ({"partition_by": ("month",)}, "expected folders of month"),
        ({"partition_types": {"id": "int64"}}, "no folder names such a column"),
    ],
)
def test_a_wrong_import_is_refused_in_a_dry_run_too(
    client: Client, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    hive(tmp_path)
    given = {"location": str(tmp_path), "name": "lake", **OPTIONS, **options}
    for dry_run in (True, False):
        with pytest.raises(CallerError, match=says):
            client.import_table(**given, dry_run=dry_run)
    assert client.tables() == []
    assert not (tmp_path / "_neve").exists()


def test_places_that_are_others_are_refused(client: Client, tmp_path: Path) -> None:
    hive(tmp_path / "lake")
    client.import_table(str(tmp_path / "lake"), "lake", **OPTIONS)
    with pytest.raises(RefusedError, match=r"overlaps .* of table 'lake'"):
        client.import_table(str(tmp_path), "all", key=["id"], version_column="v")
    with pytest.raises(RefusedError, match="overlaps"):
        client.import_table(str(tmp_path / "lake/day=2024-01-01"), "part", **OPTIONS)
    with pytest.raises(RefusedError, match="overlaps"):
        client.import_table(str(tmp_path / "lake"), "twice", **OPTIONS)
    with pytest.raises(RefusedError, match=r"exists already, with key \('day', 'id'\)"):
        client.import_table(str(tmp_path / "lake"), "lake", key=["id"], version_column="v")
    (tmp_path / "other/_neve").mkdir(parents=True)
    (tmp_path / "other/_neve/store").write_text("store-x\n")
    with pytest.raises(RefusedError, match="belongs to the store store-x"):
        client.import_table(str(tmp_path / "other"), "other", **OPTIONS)
    (tmp_path / "link").symlink_to(tmp_path / "lake")
    with pytest.raises(RefusedError, match=r"overlaps .* of table 'lake'"):
        client.import_table(str(tmp_path / "link"), "link", **OPTIONS)
    with pytest.raises(CallerError, match=r"must not contain '\.\.'"):
        client.import_table(f"file://{tmp_path}/a/../lake", "up", **OPTIONS)
    (tmp_path / "void").mkdir()
    with pytest.raises(CallerError, match="holds no file that can be imported"):
        client.import_table(str(tmp_path / "void"), "void", **OPTIONS)


def test_a_repeated_import_adds_new_files(client: Client, tmp_path: Path) -> None:
    hive(tmp_path, files=1)
    client.import_table(str(tmp_path), "lake", **OPTIONS)
    rows = hive(tmp_path, files=2)
    (tmp_path / "day=2024-01-01/wide.parquet").write_bytes(b"")
    more = pa.table({"id": [1], "v": [1], "extra": [1]})
    pq.write_table(more, tmp_path / "day=2024-01-01/wide.parquet")
    done = client.import_table(str(tmp_path), "lake", leave_misfits=True, **OPTIONS)
    assert (done.added, done.already, done.misfits) == (3, 3, 1)
    assert "has the columns extra" in done.misfit_files[0].why
    assert sorted_rows(client.scan("lake")) == sorted_rows(rows)


class TestExport:
    def test_the_manifest_lists_the_files_of_now(self, client: Client, tmp_path: Path) -> None:
        hive(tmp_path / "lake")
        client.import_table(str(tmp_path / "lake"), "lake", **OPTIONS)
        found = client.manifest("lake")
        assert (found["format"], found["version"], found["partition_by"]) == (
            "neve-manifest", 1, ["day"],
        )  # fmt: skip
        assert found["totals"]["files"] == len(found["files"]) == 6
        assert found["totals"]["rows"] == 18
        names = [each["file"] for each in found["files"]]
        size = client.export("lake", tmp_path / "names", names=True)
        assert (tmp_path / "names").read_text("utf-8").split("\n") == [*names, ""]
        assert (tmp_path / "names").stat().st_size == size
        client.export("lake", tmp_path / "manifest.json")
        again = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
        assert again["files"] == found["files"]
        assert sum(pq.read_metadata(name).num_rows for name in names) == 18
        assert not list(tmp_path.glob("*.part"))

    def test_an_empty_table_has_an_empty_manifest(self, client: Client, tmp_path: Path) -> None:
        client.create_table("empty", str(tmp_path), schema=pa.schema([("x", pa.int64())]))
        assert client.manifest("empty")["files"] == []
        assert client.export("empty", names=True) == 0

    def test_a_location_of_another_store(
        self, client: Client, gateway: Gateway, tmp_path: Path
    ) -> None:
        client.create_table("empty", str(tmp_path), schema=pa.schema([("x", pa.int64())]))
        (tmp_path / "_neve/store").write_text("store-x\n")
        headers = {"Authorization": f"Bearer {TOKEN}"}
        for path in ("manifest", "manifest/files"):
            answer = httpx.get(f"{gateway.url}/v1/tables/empty/{path}", headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (409, "RefusedError")

    def test_the_pin_ends_with_the_listing(
        self, client: Client, gateway: Gateway, tmp_path: Path
    ) -> None:
        made = client.create_table("empty", str(tmp_path), schema=pa.schema([("x", pa.int64())]))
        client.manifest("empty")
        for _ in range(1000):
            if not gateway.ask(gateway.store.pins(made.id)):
                return
        raise AssertionError("the pin is still there")


class TestCommandLine:
    @pytest.fixture
    def neve(self, gateway: Gateway, tmp_path: Path) -> Shell:
        return Shell(tmp_path / "home", NEVE_URL=gateway.url, NEVE_TOKEN=TOKEN)

    def test_a_directory_is_imported_and_exported_again(self, neve: Shell, tmp_path: Path) -> None:
        hive(tmp_path / "lake")
        words = [str(tmp_path / "lake"), "--name", "lake", "--key", "day,id", "--version", "v"]
        neve.run("table", "import", *words, "--dry-run", says="dry run: nothing was written")
        neve.run("table", "import", *words, says="reading footers: 6 files")
        neve.run("table", "import", *words, "--readers-use-manifest", says="state live")
        report = neve.json("table", "import", *words)
        assert (report["already"], report["partition_by"]) == (6, ["day"])
        out = neve.run("table", "export", "lake").stdout.split()
        assert sorted(out) == sorted(map(str, (tmp_path / "lake").rglob("*.parquet")))
        assert len(neve.json("table", "export", "lake")["files"]) == 6
        target = tmp_path / "out.json"
        neve.run("table", "export", "lake", "--json", "--to", str(target))
        assert json.loads(target.read_text("utf-8"))["table"] == "lake"
        neve.run("table", "export", "lake", "--to", str(target), says="wrote")
        assert target.read_text("utf-8").count("\n") == 6

    def test_misfits_are_shown_and_set_the_exit_code(self, neve: Shell, tmp_path: Path) -> None:
        hive(tmp_path / "lake", files=1)
        for number in range(25):
            (tmp_path / f"lake/day=2024-01-01/{number:02}.parquet").touch()
        words = [str(tmp_path / "lake"), "--name", "lake", "--key", "day,id", "--version", "v"]
        neve.run("table", "import", *words, "--dry-run", code=1, says="and 5 more files")
        neve.run("table", "import", *words, code=3, says="25 of 28 files do not fit")
        types = ["--partition-type", "day=string", "--leave-misfits"]
        neve.run("table", "import", *words, *types, says="day string")


# ------------------------------------------------------------------- Nanoseconds into microseconds


def moments(folder: Path, name: str, nanos: list[int], unit: str = "ns") -> None:
    """Write a file with two rows' moments in nanoseconds, also within a list."""
    at = pa.array(nanos, pa.int64()).cast(pa.timestamp("ns")).cast(pa.timestamp(unit))
    rows = pa.table({"id": range(len(nanos)), "at": at, "within": [[each] for each in at]})
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)


def named(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*.parquet")}


FINE: dict[str, Any] = {"key": ("day", "id"), "version_column": "at"}


def test_files_with_nanoseconds_are_copied_in_microseconds(client: Client, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    moments(lake, "a/day=1/fine.parquet", [1_000, 2_000])
    moments(lake, "day=2/plain.parquet", [3_000], "us")
    before = {name: (lake / name).read_bytes() for name in named(lake)}
    dry = client.import_table(str(lake), "t", **FINE, dry_run=True)
    assert any("--timestamps us" in note and "1 file " in note for note in dry.notes)
    assert {each.name: each.type for each in dry.schema}["at"] == "timestamp[ns]"

    settings = {"readers": "spark"}
    done = client.import_table(str(lake), "t", **FINE, timestamps="us", settings=settings)

    assert (done.files, done.added, done.rows, done.misfits) == (2, 2, 3, 0)
    types = {each.name: each.type for each in done.schema}
    assert (types["at"], types["within"]) == ("timestamp[us]", "list<timestamp[us]>")
    rows = client.scan("t").sort_by([("day", "ascending"), ("id", "ascending")])
    assert rows["at"].cast(pa.int64()).to_pylist() == [1, 2, 3]
    assert rows["within"].combine_chunks().flatten().cast(pa.int64()).to_pylist() == [1, 2, 3]
    assert {name: (lake / name).read_bytes() for name in before} == before
    (copy,) = [each.path for each in client.files("t") if each.path.startswith("_neve/")]
    assert copy.startswith("_neve/append/day=1/import-")
    assert pq.ParquetFile(lake / copy).schema_arrow.field("at").type == pa.timestamp("us")
    assert (lake / "a/day=1" / GUARD_NAME).exists(), "plain readers would count the copies, too"


def test_digits_below_a_microsecond_are_refused_or_cut_off(client: Client, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    moments(lake, "day=1/a.parquet", [1_000, -1_501])
    with pytest.raises(CallerError, match=r"day=1/a.parquet: column at .* lose data: -1501.*us-tr"):
        client.import_table(str(lake), "t", **FINE, timestamps="us")

    left = client.import_table(str(lake), "t", **FINE, timestamps="us", leave_misfits=True)
    assert (left.added, left.misfits) == (0, 1)
    client.drop("t")
    done = client.import_table(str(lake), "t", **FINE, timestamps="us-truncated")

    assert done.added == 1
    assert any("become equal" in note for note in done.notes)
    assert sorted(client.scan("t")["at"].cast(pa.int64()).to_pylist()) == [-1, 1]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("change", range(1, 5))
def test_an_import_with_copies_that_was_killed_goes_on(
    store: MortalStore,
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: int,
    after: bool,
) -> None:
    monkeypatch.setattr(imports, "BATCH_FILES", 1)
    for day in range(2):
        moments(tmp_path / "lake", f"day={day}/a.parquet", [1_000])
    store.left, store.after = change, after
    options = FINE | {"timestamps": "us"}
    with pytest.raises(NeveError):
        client.import_table(str(tmp_path / "lake"), "t", **options)
    store.left = None

    done = client.import_table(str(tmp_path / "lake"), "t", **options)

    assert (done.files, done.misfits) == (2, 0)
    assert client.scan("t").num_rows == 2


def table_id(store: MortalStore) -> str:
    found = asyncio.run(store.table_named("t"))
    assert found is not None
    return found.id


def test_a_repeated_import_takes_no_copied_file_for_a_new_one(
    store: MortalStore, client: Client, tmp_path: Path
) -> None:
    """Also when a compaction has replaced its copy, and the collector has deleted that."""
    lake = tmp_path / "lake"
    moments(lake, "a.parquet", [1_000])
    client.import_table(str(lake), "t", timestamps="us")
    (copy,) = client.files("t")
    gone = ForgetFiles(tablet=TabletId.parse(table_id(store), copy.tablet), paths=(copy.path,))
    assert isinstance(asyncio.run(store.apply(gone)), Applied)

    for options in ({"timestamps": "us"}, {}):
        again = client.import_table(str(lake), "t", readers_use_manifest=True, **options)
        assert (again.already, again.added, again.misfits) == (1, 0, 0)
    moments(lake, "b.parquet", [1_000])
    for options in ({"timestamps": "us"}, {}):
        with pytest.raises(RefusedError, match=r"b.parquet .*timestamp\[ns\]"):
            client.import_table(str(lake), "t", **options)


def test_a_table_with_nanoseconds_does_not_become_one_of_microseconds(
    client: Client, tmp_path: Path
) -> None:
    moments(tmp_path / "lake", "a.parquet", [1_000])
    client.import_table(str(tmp_path / "lake"), "t")
    with pytest.raises(RefusedError, match="exists already, and has timestamps with nanoseconds"):
        client.import_table(str(tmp_path / "lake"), "t", timestamps="us")


def test_a_rebuild_takes_copies_and_not_what_they_were_made_of(
    client: Client, tmp_path: Path
) -> None:
    """Also when the table has nanoseconds by then, and the originals would fit."""
    lake = tmp_path / "lake"
    moments(lake, "a.parquet", [1_000])
    client.import_table(str(lake), "t", timestamps="us", readers_use_manifest=True)
    client.set("t", widen_columns={"at": "timestamp[ns]", "within": "list<timestamp[ns]>"})
    client.drop("t")

    client.rebuild(str(lake), "t")

    assert client.scan("t").num_rows == 1
