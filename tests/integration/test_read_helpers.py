"""`neve.read`: each engine sees the rows of a scan; what an engine cannot read is refused."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import neve.read
from common.parquet.location import open_location
from common.parquet.manifest import POINTER_PATH, write_part
from common.parquet.service_files import write_small
from common.rows.schema import columns_of, unreadable_columns
from neve.client import Client
from neve.client.errors import NeveError, NotFoundError
from tests.support.gateway import TOKEN, Gateway, serving
from tests.support.spark_session import local_session

pytestmark = [pytest.mark.integration]
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("v", pa.int64()),
        pa.field("gone", pa.bool_()),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field('no"te', pa.string()),
    ]
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def client(gateway: Gateway) -> Iterator[Client]:
    with gateway.client() as made:
        yield made


def row(key: int, version: int | None, note: str | None, **more: Any) -> dict[str, Any]:
    now = dt.datetime.now(dt.UTC).replace(microsecond=0)
    return {"id": key, "v": version, "gone": None, "at": now, 'no"te': note} | more


@pytest.fixture(scope="module")
def table(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A keyed table of several files: newer rows, tombstones, expired rows, nulls."""
    client.create_table(
        "events",
        str(tmp_path_factory.mktemp("lake") / "ev'ents"),
        schema=SCHEMA,
        key=["id"],
        version_column="v",
        tombstone_column="gone",
        time_column="at",
        settings={"ttl_s": "1h"},
    )
    old = dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)
    for rows in (
        [row(1, 1, "first"), row(2, 1, "kept"), row(3, 1, "deleted"), row(4, 1, "fresh")],
        [row(1, 2, "second"), row(3, 2, None, gone=True), row(4, 2, "expired", at=old)],
        [row(1, None, "without a version"), row(5, 1, None, gone=False, at=None)],
    ):
        client.append("events", pa.Table.from_pylist(rows, SCHEMA))
    return "events"


def pairs(rows: pa.Table) -> list[tuple[int, int, str | None]]:
    return sorted(zip(*(rows[name].to_pylist() for name in ("id", "v", 'no"te')), strict=True))


def test_every_engine_sees_what_a_scan_returns(client: Client, table: str) -> None:
    expected = [(1, 2, "second"), (2, 1, "kept"), (5, 1, None)]
    assert pairs(client.scan(table)) == expected
    assert pairs(neve.read.arrow(table, client=client)) == expected
    assert pairs(neve.read.polars(table, client=client).to_arrow()) == expected
    with duckdb.connect() as connection:
        relation = neve.read.duckdb(table, client=client, connection=connection)
        assert pairs(relation.to_arrow_table()) == expected
        connection.execute("SET TimeZone = 'America/New_York'")
        connection.execute(neve.read.duckdb_view(table, client=client, name='a "view"'))
        assert pairs(connection.sql('FROM "a ""view"""').to_arrow_table()) == expected
    frame = neve.read.pandas(table, client=client, columns=["id", "v"])
    assert sorted(frame["id"]) == [1, 2, 5]
    assert list(frame.columns) == ["id", "v"]
    assert spark_pairs(neve.read.spark(table, local_session(), client=client)) == expected
    found = neve.read.spark(table, local_session(), client=client, lazy=False)
    assert spark_pairs(found) == expected


def spark_pairs(frame: Any) -> list[tuple[int, int, str | None]]:
    return sorted((each.id, each.v, each['no"te']) for each in frame.collect())


def publish(client: Client, table: str, location: Path) -> None:
    """Write the manifest of this moment, as the coordinator does in the background."""
    found, folder = client.manifest(table), "_neve/manifest/0000000001-1-test"
    place = open_location(location.as_uri())
    part = write_part(place, folder, 0, found.pop("files"))
    write_small(place, POINTER_PATH, json.dumps({**found, "parts": [part]}).encode())


def test_every_engine_reads_a_location_without_the_service(client: Client, table: str) -> None:
    location = Path(client.describe(table).location.removeprefix("file://").replace("%27", "'"))
    publish(client, table, location)
    expected = pairs(client.scan(table))
    assert pairs(neve.read.arrow(location)) == expected
    assert pairs(neve.read.arrow(f"{location}/_neve/manifest/latest.json")) == expected
    assert pairs(neve.read.polars(str(location)).to_arrow()) == expected
    assert sorted(neve.read.pandas(location.as_uri(), columns=["id"])["id"]) == [1, 2, 5]
    with duckdb.connect() as connection:
        relation = neve.read.duckdb(location, connection=connection)
        assert pairs(relation.to_arrow_table()) == expected
        connection.execute(neve.read.duckdb_view(location))
        assert pairs(connection.sql("FROM events").to_arrow_table()) == expected
    spark = local_session()
    assert spark_pairs(neve.read.spark(location, spark)) == expected
    for statement in neve.read.spark_view(location, name="a `view"):
        spark.sql(statement)
    assert spark_pairs(spark.sql("SELECT * FROM `a ``view`")) == expected
    with pytest.raises(NotFoundError, match="has no manifest"):
        neve.read.arrow(location.parent)


PAGE = Path(__file__).parents[2] / "docs/reference/files.md"


def test_the_documented_lines_run(
    gateway: Gateway, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = PAGE.read_text("utf-8").partition("## Read a table")[2].partition("\n## ")[0]
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", section, re.S | re.M))
    for name in ("arrow", "pandas", "polars", "duckdb", "spark", "duckdb_view", "spark_view"):
        assert f"neve.read.{name}(" in code or name == "arrow"
    location = tmp_path / "flights"
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("v", pa.int64())])
    client.create_table("flights", str(location), schema=schema, key=["id"], version_column="v")
    rows = [{"id": index % 3, "day": dt.date(2025, 1, 1), "v": index} for index in range(5)]
    client.append("flights", pa.Table.from_pylist(rows, schema))
    publish(client, "flights", location)
    monkeypatch.setenv("NEVE_URL", gateway.url)
    monkeypatch.setenv("NEVE_TOKEN", TOKEN)
    seen: dict[str, Any] = {"spark": local_session()}
    exec(code.replace("/data/flights", str(location)), seen)
    assert [tuple(each) for each in seen["found"]] == [(3,)]
    assert seen["frame"].count() == 3


def test_spark_refuses_a_file_of_a_narrower_type(client: Client, tmp_path: Path) -> None:
    narrow = pa.schema([("x", pa.int32())])
    client.create_table("wide", str(tmp_path / "wide"), schema=narrow)
    client.append("wide", pa.table({"x": pa.array([1], pa.int32())}))
    client.set("wide", widen_columns={"x": "int64"})
    client.append("wide", pa.table({"x": pa.array([2**40], pa.int64())}))
    with pytest.raises(Exception, match="Expected: bigint, Found: INT32"):
        neve.read.spark("wide", local_session(), client=client).collect()
    found = neve.read.spark("wide", local_session(), client=client, lazy=False)
    assert sorted(each.x for each in found.collect()) == [1, 2**40]


DAYS = ["a b", "100%", "x+y", None, "é"]
TIMES = {
    "timestamp": pa.timestamp("us"),
    "zoned": pa.timestamp("us", "America/New_York"),
    "date": pa.date32(),
    "whole": pa.int64(),
}


@pytest.mark.parametrize("kind", TIMES)
def test_spark_takes_values_from_folders_and_leaves_out_what_has_expired(
    client: Client, tmp_path: Path, kind: str
) -> None:
    """Files of an import leave partition columns out; files that are appended hold them."""
    now = int(dt.datetime.now(dt.UTC).timestamp())
    lake, ages = tmp_path / "lake", [now, now - 3 * 86_400, None]
    times = pa.array(ages, pa.timestamp("s")).cast(pa.timestamp("us")).cast(TIMES[kind], safe=False)
    if kind == "whole":
        times = pa.array(ages, pa.int64())
    for number, day in enumerate(DAYS):
        folder = lake / f"p={'__HIVE_DEFAULT_PARTITION__' if day is None else quote(day)}"
        folder.mkdir(parents=True)
        rows = pa.table({"id": [10 * number + index for index in range(3)], "t": times})
        pq.write_table(rows, folder / "a.parquet")
    client.import_table(
        str(lake),
        f"days-{kind}",
        time_column="t",
        settings={"ttl_s": "2d"},
        readers_use_manifest=True,
    )
    client.append(f"days-{kind}", pa.table({"id": [99], "t": times[:1], "p": ["x+y"]}))
    expected = sorted((each["id"], each["p"]) for each in client.scan(f"days-{kind}").to_pylist())
    assert [each for each in expected if each[0] < 20] == [
        (0, "a b"),
        (2, "a b"),
        (10, "100%"),
        (12, "100%"),
    ]
    spark = local_session()
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    frame = neve.read.spark(f"days-{kind}", spark, client=client, columns=["id", "p"])
    assert sorted((each.id, each.p) for each in frame.collect()) == expected
    for statement in neve.read.spark_view(f"days-{kind}", client=client, name="days"):
        spark.sql(statement)
    assert sorted((each.id, each.p) for each in spark.table("days").collect()) == expected


def test_a_table_without_a_key_and_without_rows(client: Client, tmp_path: Path) -> None:
    client.create_table("bag", str(tmp_path / "bag"), schema=pa.schema([("x", pa.int32())]))
    view = neve.read.duckdb_view("bag", client=client)
    with duckdb.connect() as connection:
        connection.execute(view)
        assert connection.sql("SELECT count(*) FROM bag").fetchall() == [(0,)]
        client.append("bag", pa.table({"x": pa.array([1, 1], pa.int32())}))
        connection.execute(neve.read.duckdb_view("bag", client=client))
        assert connection.sql("SELECT count(*) FROM bag").fetchall() == [(2,)]
    assert neve.read.polars("bag", client=client).height == 2
    assert neve.read.spark("bag", local_session(), client=client).count() == 2


def test_spark_reads_a_table_without_files(client: Client, tmp_path: Path) -> None:
    client.create_table("void", str(tmp_path / "void"), schema=SCHEMA)
    spark = local_session()
    assert neve.read.spark("void", spark, client=client).count() == 0
    (statement,) = neve.read.spark_view("void", client=client)
    spark.sql(statement)
    assert spark.table("void").columns == SCHEMA.names


def test_the_module_loads_no_engine_and_names_what_to_install() -> None:
    program = (
        "import sys, neve.read\n"
        "engines = {'duckdb', 'polars', 'pandas', 'pyspark', 'ray', 'fastapi'}\n"
        "assert not engines & set(sys.modules), engines & set(sys.modules)\n"
        "sys.modules['polars'] = None\n"
        "try:\n    neve.read.polars('t')\n"
        "except ImportError as error:\n    print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "pip install polars" in ended.stdout, ended.stderr


# ------------------------------------------------------------------ Columns that engines refuse


UNREADABLE = {
    "moments in nanoseconds": pa.schema([("id", pa.int64()), ("t", pa.timestamp("ns"))]),
    "names that differ in case": pa.schema([("note", pa.string()), ("NOTE", pa.string())]),
    "times of day": pa.schema([("t", pa.time64("us"))]),
    "within a list": pa.schema([("l", pa.list_(pa.struct([("t", pa.timestamp("ns"))])))]),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_spark_refuses_is_named_and_refused(client: Client, tmp_path: Path, name: str) -> None:
    schema, label = UNREADABLE[name], name.replace(" ", "-")
    rows = schema.empty_table()
    (tmp_path / "in").mkdir()
    pq.write_table(rows, tmp_path / "in/a.parquet")
    with pytest.raises(Exception, match=r"(?i)parquet|ambiguous|duplicate|already"):
        local_session().read.parquet(str(tmp_path / "in")).collect()
    assert pq.read_table(tmp_path / "in/a.parquet").num_columns == len(schema)
    assert unreadable_columns(columns_of(schema), "pyarrow") == []

    dry = client.import_table(str(tmp_path / "in"), label, dry_run=True)
    (note,) = [
        each for each in dry.notes if each.startswith("spark cannot read this table: column")
    ]
    assert schema.names[-1] in note
    settings = {"readers": "spark,duckdb"}
    for attempt in (
        lambda: client.import_table(str(tmp_path / "in"), label, settings=settings, dry_run=True),
        lambda: client.create_table(label, str(tmp_path / "t"), schema=schema, settings=settings),
    ):
        with pytest.raises(NeveError, match="setting readers names spark, which cannot read"):
            attempt()
    assert client.import_table(str(tmp_path / "in"), label, settings={"readers": "duckdb"}).files


def test_an_import_in_microseconds_is_read_by_spark(client: Client, tmp_path: Path) -> None:
    """Before the first compaction, by the manifest; the dry run offers it, and so the refusal."""
    lake = tmp_path / "la'ke"
    (lake / "day=1").mkdir(parents=True)
    moments = [-1_500, 1_499, 1_700_000_000_000_000_001, None]
    nested = pa.array([[each] for each in moments], pa.list_(pa.timestamp("ns")))
    at = pa.array(moments, pa.timestamp("ns", "UTC"))
    pq.write_table(pa.table({"id": [1, 2, 3, 4], "z": at, "n": nested}), lake / "day=1/0.parquet")
    spark: dict[str, Any] = {"settings": {"readers": "spark"}}
    with pytest.raises(NeveError, match=r"cannot read .* to keep microseconds, import with --time"):
        client.import_table(str(lake), "fine", dry_run=True, **spark)

    client.import_table(str(lake), "fine", timestamps="us-truncated", **spark)

    client.export("fine", tmp_path / "names", names=True)
    (copy,) = (tmp_path / "names").read_text().split()
    rows = local_session().read.parquet(copy).orderBy("id").collect()
    assert [each.id for each in rows] == [1, 2, 3, 4]
    assert client.scan("fine")["z"].cast(pa.int64()).to_pylist() == [
        -1,
        1,
        1_700_000_000_000_000,
        None,
    ]
    within = client.scan("fine")["n"].combine_chunks().flatten()
    assert within.type == pa.timestamp("us")


def test_a_schema_does_not_grow_by_what_a_reader_refuses(client: Client, tmp_path: Path) -> None:
    schema = pa.schema([("note", pa.string()), ("t", pa.timestamp("us"))])
    client.create_table("grows", str(tmp_path / "t"), schema=schema, settings={"readers": "spark"})
    for change in (
        {"add_columns": {"NOTE": "string"}},
        {"widen_columns": {"t": "timestamp[ns]"}},
    ):
        with pytest.raises(NeveError, match="setting readers names spark"):
            client.set("grows", **change)  # type: ignore[arg-type]  # by name
    client.set("grows", {"readers": "duckdb"}, add_columns={"NOTE": "string"})
    with pytest.raises(NeveError, match="differ only in case"):
        client.set("grows", {"readers": "spark"})
    with pytest.raises(NeveError, match="some of spark"):
        client.set("grows", {"readers": "excel"})
