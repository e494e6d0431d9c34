"""Facts of files are exact, and what cannot be read is said so."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from common.errors import RequestError, UnavailableError
from common.model.keys import encode_key, encode_value
from common.model.table import Column, TableSettings
from common.parquet.file_inspection import inspect_file, read_rows
from common.parquet.location import Location, open_location
from common.parquet.write import row_group_rows, write_table
from common.rows.rules import RowRules
from compactor.rewrite.parquet_bytes.footer import (
    CHUNKS,
    I32,
    META,
    ROW_GROUPS,
    decode_whole,
    elements,
    encode,
    number_field,
)
from tests.support.layouts import opened_struct
from tests.support.misordered import last_first, write_misordered

RULES = RowRules(
    schema=(
        Column("k", "string"),
        Column("n", "int64"),
        Column("v", "int64"),
        Column("gone", "bool"),
        Column("at", "timestamp[us, UTC]"),
        Column("payload", "double"),
    ),
    key=("k", "n"),
    version_column="v",
    tombstone_column="gone",
    time_column="at",
)
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
ROWS = pa.table(
    {
        "k": ["a", "a", "b", None],
        "n": pa.array([2, 1, 0, 9], pa.int16()),
        "v": pa.array([5, 7, 6, 6], pa.int32()),
        "gone": [None, False, True, False],
        "at": pa.array([NOON, None, NOON.replace(hour=13), None], pa.timestamp("ms", "UTC")),
    }
)


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return open_location(f"file://{tmp_path}")


def put(location: Location, rows: pa.Table, path: str = "f.parquet", **options: object) -> str:
    pq.write_table(rows, f"{location.root}/{path}", **options)
    return path


def key(k: str | None, n: int) -> bytes:
    return encode_key([k, n], RULES.key_types)


def test_a_file_of_which_some_readers_miss_rows_is_tagged(location: Location) -> None:
    well, badly = put(location, ROWS), "b.parquet"
    write_misordered(Path(location.root) / badly, ROWS, order=last_first)
    assert inspect_file(location, well, RULES).data_file(added_at_s=1.0).tags == ()
    facts = inspect_file(location, badly, RULES)
    assert facts.layout_fault is not None
    assert facts.layout_fault.startswith("column 1 of row group 0 begins at byte ")
    file = facts.data_file(added_at_s=1.0)
    assert file.tags == (("layout", "faulty"),)
    assert file.has_faulty_layout


def test_facts_of_an_unsorted_file(location: Location) -> None:
    facts = inspect_file(location, put(location, ROWS, row_group_size=2), RULES)
    rows = facts.rows
    assert (rows.rows, rows.tombstones, rows.clean, facts.row_groups) == (4, 1, False, 2)
    assert (rows.key_min, rows.key_max) == (key(None, 9), key("b", 0))
    assert (rows.version_min, rows.version_max) == tuple(
        encode_value(v, RULES.version_type) for v in (5, 7)
    )
    assert (rows.time_min_s, rows.time_max_s) == (NOON.timestamp(), NOON.timestamp() + 3600)
    assert facts.size_bytes == Path(location.root, "f.parquet").stat().st_size
    assert facts.schema.field("n").type == pa.int16()

    file = facts.data_file(added_at_s=17.0)
    assert (file.path, file.rows, file.tombstones_since_s) == ("f.parquet", 4, 17.0)
    assert file.key_max == key("b", 0)


def rows_of(*pairs: tuple[str, int]) -> pa.Table:
    return pa.table({"k": [k for k, _ in pairs], "n": [n for _, n in pairs], "v": [1] * len(pairs)})


@pytest.mark.parametrize(
    ("rows", "clean"),
    [
        (rows_of(("a", 1), ("a", 2), ("b", 0)), True),
        (rows_of(("a", 1), ("a", 1), ("b", 0)), False),
        (rows_of(("a", 1), ("b", 0), ("b", 0)), False),
        (rows_of(("a", 1), ("b", 0), ("a", 2)), False),
        (rows_of(), True),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 10])
def test_clean_means_ascending_keys_also_across_row_groups(
    location: Location, rows: pa.Table, *, clean: bool, size: int
) -> None:
    assert (
        inspect_file(location, put(location, rows, row_group_size=size), RULES).rows.clean is clean
    )


def test_a_tombstone_is_not_clean(location: Location) -> None:
    rows = rows_of(("a", 1)).append_column("gone", pa.array([True]))
    assert not inspect_file(location, put(location, rows), RULES).rows.clean


@pytest.mark.parametrize("present", [["x"], ["x", "at"]])
def test_a_bag_needs_no_key(location: Location, present: list[str]) -> None:
    rules = RowRules(schema=(Column("x", "int64"), Column("at", "double")), time_column="at")
    rows = pa.table({"x": [1, 2, 3], "at": [1.5, float("nan"), None]}).select(present)
    facts = inspect_file(location, put(location, rows), rules).rows
    assert (facts.rows, facts.key_min, facts.clean) == (3, None, False)
    assert facts.time_max_s == (1.5 if "at" in present else None)
    without = RowRules(schema=rules.schema)
    assert inspect_file(location, "f.parquet", without).rows.rows == 3


def test_columns_that_the_table_lacks_are_told(location: Location) -> None:
    rows = ROWS.append_column("new", pa.array(["x"] * 4))
    assert (
        inspect_file(location, put(location, rows), RULES).schema.field("new").type == pa.string()
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (ROWS.drop_columns(["n"]), ["f.parquet", "lacks", "n"]),
        (ROWS.drop_columns(["v"]), ["f.parquet", "lacks", "v"]),
        (
            ROWS.set_column(1, "n", pa.array(["x"] * 4)),
            ["f.parquet", "column n", "string", "int64"],
        ),
        (
            ROWS.append_column("payload", pa.array([1] * 4)),
            ["f.parquet", "payload", "int64", "double"],
        ),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(
    location: Location, rows: pa.Table, words: list[str]
) -> None:
    with pytest.raises(RequestError) as refused:
        inspect_file(location, put(location, rows), RULES)
    assert not [word for word in words if word not in str(refused.value)]


def test_a_file_that_is_not_parquet_is_refused(location: Location) -> None:
    Path(location.root, "f.csv").write_text("a,b\n1,2\n")
    Path(location.root, "empty").touch()
    for path in ("f.csv", "empty"):
        with pytest.raises(RequestError, match=rf"file {path} is not readable as Parquet"):
            inspect_file(location, path, RULES)
    with pytest.raises(RequestError, match="does not exist"):
        inspect_file(location, "g.parquet", RULES)
    with pytest.raises(RequestError, match="does not exist"):
        read_rows(location, "g.parquet", RULES)


def test_a_damaged_file_is_refused(location: Location) -> None:
    path = Path(location.root, put(location, ROWS, compression="zstd", use_dictionary=False))
    content = bytearray(path.read_bytes())
    content[4:200] = b"\xff" * 196
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"f\.parquet"):
        inspect_file(location, "f.parquet", RULES)


def retyped(content: bytes) -> bytes:
    """Return a file whose footer gives the first column chunk another physical type."""
    length = int.from_bytes(content[-8:-4], "little")
    start = len(content) - 8 - length
    footer = decode_whole(content[start:-8], {ROW_GROUPS: {CHUNKS: {META: {}}}})
    meta = opened_struct(elements(elements(footer, ROW_GROUPS)[0], CHUNKS)[0], META)
    assert meta is not None
    meta[1] = number_field(2, I32)
    coded = encode(footer)
    return content[:start] + coded + len(coded).to_bytes(4, "little") + b"PAR1"


def test_a_footer_that_does_not_agree_with_itself_is_refused(location: Location) -> None:
    path = Path(location.root, put(location, ROWS))
    path.write_bytes(retyped(path.read_bytes()))
    wanted = r"f.parquet has a damaged footer: column k is BYTE_ARRAY, but INT64 in row group 0"
    with pytest.raises(RequestError, match=wanted):
        inspect_file(location, path.name, RULES)


def test_written_files_are_sorted_and_their_facts_are_the_file_s(location: Location) -> None:
    settings = TableSettings()
    facts = write_table(
        location, "d/f.parquet", ROWS, RULES, settings, footer={"neve.made": "here"}
    )
    assert facts == inspect_file(location, "d/f.parquet", RULES)
    with pq.ParquetFile(f"{location.root}/d/f.parquet") as file:
        assert file.metadata.metadata[b"neve.made"] == b"here"
        assert file.metadata.row_group(0).column(0).compression == "ZSTD"
        assert file.metadata.row_group(0).column(0).statistics is not None
    rows = read_rows(location, "d/f.parquet", RULES)
    assert rows.column_names == [column.name for column in RULES.schema]
    assert rows["k"].to_pylist() == [None, "a", "a", "b"]
    assert rows["n"].to_pylist() == [9, 1, 2, 0]
    part = read_rows(location, "d/f.parquet", RULES, key(None, 9), key("a", 1))
    assert part["n"].to_pylist() == [1]


NEEDS = RowRules(
    schema=(
        Column("x", "int64", nullable=False),
        Column("y", "struct<a: int64 not null>"),
        Column("z", "int64"),
    )
)


@pytest.mark.parametrize(
    ("rows", "statistics", "says"),
    [
        (pa.table({"x": [1, 2]}), True, None),
        (pa.table({"x": [1, 2], "z": [1, None]}), False, None),
        (pa.table({"x": [1, None]}), True, "column x of file f.parquet holds nulls"),
        (pa.table({"x": [1, None]}), False, "column x of file f.parquet holds nulls"),
        (pa.table({"z": [1]}), True, "f.parquet lacks the column x, which must not be null"),
    ],
)
def test_a_new_file_holds_values_where_the_table_wants_them(
    location: Location, rows: pa.Table, statistics: bool, says: str | None
) -> None:
    pq.write_table(rows, location.full("f.parquet"), write_statistics=statistics)
    inspect_file(location, "f.parquet", NEEDS)  # What is in the table is looked at as it is.
    if says is None:
        inspect_file(location, "f.parquet", NEEDS, is_new=True)
        return
    with pytest.raises(RequestError, match=says):
        inspect_file(location, "f.parquet", NEEDS, is_new=True)


def test_a_column_that_the_folder_tells_needs_not_be_in_the_file(location: Location) -> None:
    rules = RowRules(
        schema=(Column("x", "int64"), Column("day", "int32", nullable=False)),
        partition_by=("day",),
    )
    for folder in ("day=7", "day=__HIVE_DEFAULT_PARTITION__"):
        Path(location.root, folder).mkdir()
        pq.write_table(pa.table({"x": [1]}), location.full(f"{folder}/f.parquet"))
    inspect_file(location, "day=7/f.parquet", rules, is_new=True)
    with pytest.raises(RequestError, match="lacks the column day, which must not be null"):
        inspect_file(location, "day=__HIVE_DEFAULT_PARTITION__/f.parquet", rules, is_new=True)


def test_a_bag_is_written_in_its_order(location: Location) -> None:
    rules = RowRules(schema=(Column("x", "int64"),))
    settings = TableSettings(codec="snappy")
    write_table(location, "f.parquet", pa.table({"x": [3, 1, 2]}), rules, settings)
    assert read_rows(location, "f.parquet", rules)["x"].to_pylist() == [3, 1, 2]


def test_storage_that_takes_nothing_is_said_so(location: Location) -> None:
    Path(location.root, "d").touch()
    with pytest.raises(UnavailableError, match="refused"):
        write_table(location, "d/f.parquet", ROWS, RULES, TableSettings())


def test_row_groups_are_of_about_the_size_that_is_wanted() -> None:
    rows = pa.table({"x": pa.array(range(100_000), pa.int64())})
    assert row_group_rows(rows, 80_000) == 10_000
    assert row_group_rows(rows, 1) == 1024
    assert row_group_rows(rows, 1 << 40) == 1 << 20
    assert row_group_rows(rows.slice(0, 0), 1) == 1024
