"""Which files of a directory make one table: decided from names and footers alone."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import RequestError
from common.model.key_values import KeyType
from common.model.table import Column as TableColumn
from common.rows.key_encoding import value_of_folder
from common.rows.schema import columns_of
from neve.import_survey import (
    ColumnStatistics,
    FooterFacts,
    FoundFile,
    ImportOptions,
    Survey,
    is_hidden,
    survey,
    type_of_values,
    usual_columns,
)

KEYED = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("x", pa.string())])
WANTED = ImportOptions(key=("id",), version_column="v")


def footer(schema: pa.Schema = KEYED, rows: int = 10, **columns: ColumnStatistics) -> FooterFacts:
    return FooterFacts(schema, rows, {"v": ColumnStatistics(0), **columns})


def surveyed(files: dict[str, FooterFacts | str], wanted: ImportOptions = WANTED) -> Survey:
    return survey([(FoundFile(path, 100), said) for path, said in sorted(files.items())], wanted)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "02", "-3"], "int32"),
        (["1", None], "int32"),
        (["2147483648"], "int64"),
        (["9223372036854775808"], "string"),
        (["1", "a"], "string"),
        (["2024-01-31", None, "2024-02-01"], "date"),
        (["2024-01-31", "2024-02-30"], "string"),
        (["20240131"], "int32"),
        (["2024-01-31", "7"], "string"),
        (["1_000"], "string"),
        (["1.5"], "string"),
        ([""], "string"),
        ([None], "string"),
        ([], "string"),
        (["\u0661"], "string"),
    ],
)
def test_types_are_told_from_all_values(texts: list[str | None], expected: str) -> None:
    assert type_of_values(texts) == expected


@settings(deadline=None)
@given(st.lists(st.text(max_size=12) | st.integers().map(str) | st.dates().map(str), max_size=5))
def test_every_value_can_be_read_in_the_type_that_was_told(texts: list[str]) -> None:
    kind = {"int32": KeyType.INT, "int64": KeyType.INT, "date": KeyType.DATE}.get(
        type_of_values(texts), KeyType.STRING
    )
    for text in texts:
        if kind is not KeyType.STRING or text.isprintable():
            value_of_folder(text, kind)


def test_the_usual_columns_are_those_of_most_files() -> None:
    assert usual_columns([]) == ()
    assert usual_columns([["a"], ["a"], ["a", "b"]]) == ("a",)
    assert usual_columns([[], ["a", "b"]]) == ("a", "b")


def test_files_of_one_schema_make_a_table() -> None:
    found = surveyed({"a": footer(), "b": footer(rows=5)})
    assert [file.path for file in found.files] == ["a", "b"]
    assert (found.total.files, found.total.rows, found.total.size_bytes) == (2, 15, 200)
    assert found.columns == tuple(
        TableColumn(name, kind) for name, kind in [("id", "int64"), ("v", "int64"), ("x", "string")]
    )
    assert (found.misfits, found.partitions, found.partition_by) == ({}, {}, ())


def test_schemas_widen_and_the_minority_does_not_fit() -> None:
    narrow = KEYED.set(0, pa.field("id", pa.int32()))
    more = KEYED.append(pa.field("y", pa.float64()))
    other = KEYED.set(2, pa.field("x", pa.int64()))
    files: dict[str, FooterFacts | str] = {f"f{n}": footer() for n in range(3)}
    found = surveyed(files | {"a": footer(other), "g": footer(narrow), "h": footer(more)})
    assert [file.path for file in found.files] == ["f0", "f1", "f2", "g", "h"]
    assert {column.name: column.type for column in found.columns}["id"] == "int64"
    assert [column.name for column in found.columns] == ["id", "v", "x", "y"]
    assert list(found.misfits) == ["a"]
    assert "column x is string in the other files, but int64 in file a" in found.misfits["a"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("it is empty (0 bytes)", "it is empty"),
        (footer(KEYED.remove(0)), "lacks the columns id of the key or version"),
        (footer(KEYED.remove(1)), "lacks the columns v of the key or version"),
        (footer(KEYED.append(pa.field("z", pa.month_day_nano_interval()))), "type"),
        (footer(KEYED.append(pa.field("x", pa.string()))), "more than once"),
    ],
)
def test_a_file_that_does_not_fit_is_told_with_its_reason(
    said: FooterFacts | str, why: str
) -> None:
    found = surveyed({"bad": said, "good": footer(), "good2": footer()})
    assert list(found.misfits) == ["bad"]
    assert why in found.misfits["bad"]
    assert [file.path for file in found.files] == ["good", "good2"]


def test_versions_that_are_null_or_that_nobody_tells_of_are_counted() -> None:
    found = surveyed(
        {"a": footer(v=ColumnStatistics(None)), "b": footer(), "c": footer(v=ColumnStatistics(3))}
    )
    assert (found.unknown_nulls, found.unversioned_rows, found.misfits) == (1, 3, {})


def test_a_file_with_nulls_where_the_table_allows_none_does_not_fit() -> None:
    columns = columns_of(KEYED.set(1, KEYED.field(1).with_nullable(nullable=False)))
    wanted = ImportOptions(key=("id",), version_column="v", columns=columns)
    files = {
        "bad": footer(v=ColumnStatistics(3)),
        "good": footer(),
        "untold": footer(v=ColumnStatistics(None)),
    }
    found = surveyed(files, wanted)
    assert found.misfits == {"bad": "its column v holds nulls, but must not be null"}
    assert [file.path for file in found.files] == ["good", "untold"]


class TestFolders:
    wanted = ImportOptions()
    schema = pa.schema([("x", pa.int64())])

    def of(self, *paths: str, **wanted: Any) -> Survey:
        files: dict[str, FooterFacts | str] = {
            path: FooterFacts(self.schema, 1, {}) for path in paths
        }
        return surveyed(files, ImportOptions(**wanted))

    def test_hive_folders_become_partition_columns(self) -> None:
        found = self.of("m=1/d=2024-01-31/a", "m=01/d=2024-02-01/a", "m=1/d=2024-01-31/b")
        assert found.partition_by == ("m", "d")
        types = {column.name: column.type for column in found.columns}
        assert types == {"x": "int64", "m": "int32", "d": "date"}
        assert {text: each.files for text, each in found.partitions.items()} == {
            "m=1/d=2024-01-31": 2,
            "m=1/d=2024-02-01": 1,
        }

    def test_types_can_be_chosen(self) -> None:
        found = self.of("m=1/a", "m=01/a", partition_types={"m": "string"})
        assert sorted(found.partitions) == ["m=01", "m=1"]
        with pytest.raises(RequestError, match="no folder names"):
            self.of("m=1/a", partition_types={"n": "string"})
        with pytest.raises(RequestError, match="type"):
            self.of("m=1/a", partition_types={"m": "stringy"})
        found = self.of("m=1/a", "m=x/a", partition_types={"m": "int64"})
        assert "'x' cannot be read as int" in found.misfits["m=x/a"]

    def test_null_is_a_value_of_every_type(self) -> None:
        found = self.of("m=1/a", "m=__HIVE_DEFAULT_PARTITION__/a")
        assert found.columns[1] == TableColumn("m", "int32")
        assert sorted(found.partitions) == ["m=1", "m=__HIVE_DEFAULT_PARTITION__"]

    def test_other_folders_do_not_fit(self) -> None:
        found = self.of("m=1/a", "m=2/a", "b", "m=1/n=2/c", "m=1/m=2/d")
        assert sorted(found.misfits) == ["b", "m=1/m=2/d", "m=1/n=2/c"]
        assert found.misfits["b"] == "it lies in no partition's folder, expected folders of m"
        found = self.of("m=1/a", partition_by=("n",))
        assert found.misfits == {"m=1/a": "it lies in folders of m, expected folders of n"}
        assert self.of("m=1/n=2/a", partition_by=("n", "m")).partition_by == ("n", "m")

    def test_a_column_in_the_file_has_the_type_of_the_file(self) -> None:
        schema = self.schema.append(pa.field("m", pa.int64(), nullable=False))
        files: dict[str, FooterFacts | str] = {
            "m=1/a": FooterFacts(schema, 1, {"m": ColumnStatistics(0, 1, 1)}),
            "m=2/b": FooterFacts(schema, 1, {"m": ColumnStatistics(0, 2, 3)}),
            "m=3/c": FooterFacts(schema, 1, {"m": ColumnStatistics(None)}),
            "m=4/d": FooterFacts(self.schema, 1, {}),
        }
        found = surveyed(files, ImportOptions())
        assert found.columns[1] == TableColumn("m", "int64", nullable=True)
        assert found.misfits == {"m=2/b": "its column m holds 2 to 3, but its folder says '2'"}
        with pytest.raises(RequestError, match="cannot be chosen"):
            surveyed(files, ImportOptions(partition_types={"m": "string"}))


def test_files_that_join_a_table_must_fit_it() -> None:
    columns = (TableColumn("id", "int64"), TableColumn("v", "int64"), TableColumn("x", "string"))
    wanted = ImportOptions(key=("id",), version_column="v", columns=columns, partition_by=())
    wide = KEYED.append(pa.field("y", pa.int8()))
    found = surveyed({"a": footer(), "b": footer(wide), "c": footer(wide.remove(3))}, wanted)
    assert found.columns == columns
    assert [file.path for file in found.files] == ["a", "c"]
    assert "has the columns y" in found.misfits["b"]


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_files_does_not_matter(seed: int) -> None:
    chance = random.Random(seed)
    types = [pa.int32(), pa.int64(), pa.string()]
    files = [
        (FoundFile(f"f{n}", n), footer(KEYED.set(2, pa.field("x", chance.choice(types)))))
        for n in range(12)
    ]
    first = survey(files, WANTED)
    chance.shuffle(files)
    again = survey(files, WANTED)
    assert (first.files, first.columns, first.misfits.keys()) == (
        again.files,
        again.columns,
        again.misfits.keys(),
    )


def test_the_union_of_most_files_is_taken() -> None:
    narrow, text = (KEYED.set(2, pa.field("x", kind)) for kind in (pa.int32(), pa.string()))
    wide = KEYED.set(2, pa.field("x", pa.int64()))
    files: dict[str, FooterFacts | str] = {f"s{n}": footer(text) for n in range(3)}
    files |= {"n1": footer(narrow), "n2": footer(narrow), "w1": footer(wide), "w2": footer(wide)}
    found = surveyed(files)
    assert [file.path for file in found.files] == ["n1", "n2", "w1", "w2"]
    assert sorted(found.misfits) == ["s0", "s1", "s2"]


def test_hidden_is_what_spark_hides() -> None:
    names = ["_SUCCESS", ".a.crc", "_m=1", "_temporary", "a", "m=_x", ".m=1"]
    assert [name for name in names if is_hidden(name)] == [
        "_SUCCESS",
        ".a.crc",
        "_temporary",
        ".m=1",
    ]
