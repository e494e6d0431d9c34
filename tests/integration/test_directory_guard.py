"""A plain reader of a table's directory sees what is right, or fails; it never counts wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from common.model.location_identity import GUARD_NAME, GUARDS_FOLDER
from common.model.table import Table
from common.parquet.location import open_location
from common.parquet.row_batches import folders_of, place_guards, remove_guards
from compactor.rewrite.attempt import rewrite
from neve.client import Client
from neve.client.errors import NeveError
from neve.import_survey import list_directory
from neve.recovery.stored_files import FileOrigin, file_origin
from tests.support.gateway import serving
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import assignment_over, bag_table, settings

pytestmark = [pytest.mark.integration]
SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.int32())])
ROWS = 6


def by_duckdb(pattern: str) -> int:
    with duckdb.connect() as connection:
        ((count,),) = connection.execute(f"SELECT count(*) FROM '{pattern}'").fetchall()
    return int(count)


def by_spark(folder: str, *, schema: bool = False, recursive: bool = False) -> int:
    reader = local_session().read
    if schema:
        reader = reader.schema("id long, day int")
    if recursive:
        reader = reader.option("recursiveFileLookup", "true")
    return int(reader.parquet(folder).count())


READERS: dict[str, Callable[[str], int]] = {
    "DuckDB, all folders": lambda folder: by_duckdb(f"{folder}/**/*.parquet"),
    "pandas": lambda folder: len(pd.read_parquet(folder)),
    "pyarrow dataset": lambda folder: ds.dataset(folder, format="parquet").count_rows(),
    "pyarrow dataset, Hive": lambda folder: (
        ds.dataset(folder, SCHEMA, format="parquet", partitioning="hive").to_table().num_rows
    ),
    "pyarrow table": lambda folder: pq.read_table(folder).num_rows,
    "Polars": lambda folder: pl.read_parquet(folder).height,
    "Polars, lazy": lambda folder: pl.scan_parquet(folder).select(pl.len()).collect().item(),
    "Polars, all folders": lambda folder: pl.read_parquet(f"{folder}/**/*.parquet").height,
    "Spark": by_spark,
    "Spark with a schema": lambda folder: by_spark(folder, schema=True),
    "Spark, all folders": lambda folder: by_spark(folder, recursive=True),
}


def counts(folder: Path) -> dict[str, int | str]:
    """Return what each reader counts in a directory, or that it fails."""
    found: dict[str, int | str] = {}
    for name, read in READERS.items():
        try:
            found[name] = read(str(folder))
        except Exception:
            found[name] = "fails"
    return found


def directory(folder: Path, *, partitioned: bool) -> list[str]:
    """Write three files of two rows each; return their paths."""
    paths = []
    for number in range(3):
        name = f"{number}.parquet"
        paths.append(f"day={number % 2}/{name}" if partitioned else name)
        path = folder / paths[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = pa.table({"id": [number, number + 10], "day": pa.array([5, 6], pa.int32())})
        pq.write_table(rows.select(["id"]) if partitioned else rows, path)
    return paths


def compact(table: Table, paths: list[str]) -> None:
    rewrite(local_session(), assignment_over(table, paths), lambda _: None, lambda: False)


@pytest.mark.parametrize("partitioned", [False, True])
def test_readers_of_a_directory_never_count_wrongly(tmp_path: Path, *, partitioned: bool) -> None:
    folder = tmp_path / "t"
    paths = directory(folder, partitioned=partitioned)
    schema = pa.schema([SCHEMA.field("id")]) if partitioned else SCHEMA
    table = bag_table(folder, schema, time_column=None)
    assert set(counts(folder).values()) == {ROWS}, "before the first job"
    some = [path for path in paths if path.startswith(("day=0", "0", "2"))]
    compact(table, some)
    during = counts(folder)
    assert set(during.values()) == {"fails"}, f"during the grace: {during}"
    if partitioned:
        with pytest.raises(duckdb.InvalidInputException):
            by_duckdb(f"{folder}/day=*/*.parquet")
    for path in some:
        (folder / path).unlink()
    after = counts(folder)
    assert set(after.values()) == {"fails"}, f"after the collector: {after}"


def test_without_the_guard_they_would(tmp_path: Path) -> None:
    """What the test above rests on; also a table that was compacted by an older release."""
    paths = directory(tmp_path / "t", partitioned=False)
    off = settings(directory_guard=False)
    compact(bag_table(tmp_path / "t", SCHEMA, time_column=None, settings=off), paths)
    wrong = counts(tmp_path / "t")
    assert wrong["DuckDB, all folders"] == 2 * ROWS
    for path in paths:
        (tmp_path / "t" / path).unlink()
    assert counts(tmp_path / "t")["pandas"] == 0


@pytest.fixture
def client() -> Iterator[Client]:
    with serving() as served, served.client() as made:
        yield made


def test_rows_that_are_appended_are_never_missed(client: Client, tmp_path: Path) -> None:
    paths = directory(tmp_path / "t", partitioned=True)
    done = client.import_table(str(tmp_path / "t"), "events")
    assert any("directory_guard" in note for note in done.notes)
    imported = counts(tmp_path / "t")  # Polars takes files of several kinds in one folder amiss.
    assert set(imported.values()) <= {ROWS, "fails"}
    assert imported["pandas"] == imported["Spark"] == ROWS
    client.append("events", pa.table({"id": [7], "day": pa.array([5], pa.int32())}))
    assert set(counts(tmp_path / "t").values()) == {"fails"}
    assert client.count("events") == ROWS + 1
    names = [file.path for file in client.files("events")]
    assert len(names) == len(paths) + 1
    assert GUARD_NAME not in " ".join(names)


def test_a_guard_is_no_file_of_a_user(client: Client, tmp_path: Path) -> None:
    directory(tmp_path / "t", partitioned=True)
    location = open_location((tmp_path / "t").as_uri())
    place_guards(location, folders_of(["day=0/0.parquet", "_neve/append/x.parquet"]))
    found = list_directory(location)
    assert len(found.files) == 3
    assert not found.misfits
    assert file_origin(f"day=0/{GUARD_NAME}") is FileOrigin.SERVICE
    assert client.import_table(str(tmp_path / "t"), "events").added == 3
    for name in ("fsck", "gc"):
        report = getattr(client, name)("events")
        assert GUARD_NAME not in str(report), name
    with pytest.raises(NeveError, match="Parquet"):
        client.add_files("events", [f"day=0/{GUARD_NAME}"])
    client.drop("events")
    assert client.rebuild(str(tmp_path / "t"), "events", append_only=True).files == 3


@pytest.mark.parametrize("end", ["drop", "off"])
def test_guards_go_with_a_drop_and_with_the_setting(
    client: Client, tmp_path: Path, end: str
) -> None:
    directory(tmp_path / "t", partitioned=True)
    location = open_location((tmp_path / "t").as_uri())
    client.import_table(str(tmp_path / "t"), "events")
    place_guards(location, folders_of(["day=0/0.parquet", "day=1/1.parquet"]))
    assert len([*(tmp_path / "t").rglob(GUARD_NAME)]) == 3
    if end == "drop":
        client.drop("events")
    else:
        client.set("events", {"directory_guard": "off"})
        client.append("events", pa.table({"id": [7], "day": pa.array([5], pa.int32())}))
    assert not [*(tmp_path / "t").rglob(GUARD_NAME)]
    assert not (tmp_path / "t" / GUARDS_FOLDER).exists()
    remove_guards(location)


@pytest.mark.parametrize("again", ["create", "rebuild", "import"])
def test_a_table_that_is_made_anew_where_files_were_kept_has_its_guards(
    client: Client, tmp_path: Path, again: str
) -> None:
    folder, row = tmp_path / "t", pa.table({"id": [7], "day": pa.array([0], pa.int32())})
    directory(folder, partitioned=True)
    client.import_table(str(folder), "events", readers_use_manifest=True)
    client.append("events", row)
    before = {path.relative_to(folder) for path in folder.rglob(GUARD_NAME)}
    client.drop("events")
    assert not [*folder.rglob(GUARD_NAME)]
    assert len([*folder.rglob("*.parquet")]) == 4, "the rows stay"

    if again == "create":
        client.create_table("events", str(folder), schema=row.schema, partition_by=["day"])
    elif again == "rebuild":
        client.rebuild(str(folder), "events")
    else:
        options = {"leave_misfits": True, "readers_use_manifest": True}
        client.import_table(str(folder), "events", **options)
    client.append("events", row)

    assert {path.relative_to(folder) for path in folder.rglob(GUARD_NAME)} == before
    client.drop("events")
    assert not [*folder.rglob(GUARD_NAME)]


def test_the_note_of_a_guard_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that dies between the two leaves no guard that a drop does not find."""
    from common.parquet import row_batches

    written: list[str] = []
    write = row_batches.write_small

    def dying(location: object, path: str, content: bytes) -> None:
        if path.endswith(GUARD_NAME):
            raise OSError("it dies here")
        written.append(path)
        write(location, path, content)  # type: ignore[arg-type]  # a location

    location = open_location((tmp_path / "t").as_uri())
    with monkeypatch.context() as patched:
        patched.setattr(row_batches, "write_small", dying)
        with pytest.raises(OSError, match="dies"):
            place_guards(location, {"day=0"})
    assert written == [f"{GUARDS_FOLDER}/day=0/noted"]
    place_guards(location, {"day=0"})
    remove_guards(location)
    assert not [*(tmp_path / "t").rglob("*.parquet")]
