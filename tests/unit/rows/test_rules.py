"""The row rules said by example."""

from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa
import pytest

from common.errors import CompactionError
from common.model.key_values import KeyType
from common.model.keys import encode_key, encode_value
from common.model.outcome import DroppedRows, RowCounts
from common.model.table import Column, Table, TableSettings
from common.rows import merge
from common.rows.key_encoding import encode_column, encode_keys
from common.rows.merge import merge_tables, scan_tables
from common.rows.rules import DropRule, RowRules, join_dropped

COLUMNS = (
    Column("k", "string"),
    Column("v", "int64"),
    Column("gone", "bool"),
    Column("at", "timestamp[s, UTC]"),
)
RULES = RowRules(
    schema=COLUMNS,
    key=("k",),
    version_column="v",
    tombstone_column="gone",
    time_column="at",
    ttl_s=60.0,
)
NOW_S = 1000.0


def table(*rows: tuple[object, ...]) -> pa.Table:
    names = ["k", "v", "gone", "at"]
    types = [pa.string(), pa.int64(), pa.bool_(), pa.timestamp("s", "UTC")]
    return pa.table(
        {n: pa.array([row[at] for row in rows], types[at]) for at, n in enumerate(names)}
    )


def keys(rows: pa.Table) -> list[tuple[str, int]]:
    return list(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


def version(number: int) -> bytes:
    return encode_value(number, RULES.version_type)


def test_the_highest_version_wins() -> None:
    merged = merge_tables(
        [table(("a", 1, None, None)), table(("a", 3, None, None), ("a", 2, None, None))],
        RULES,
        NOW_S,
    )
    assert keys(merged.table) == [("a", 3)]
    assert merged.counts == RowCounts(rows_in=3, rows_out=1, superseded=2)


def test_a_tombstone_hides_its_version_and_all_before() -> None:
    rows = [
        table(("a", 2, True, None)),
        table(("a", 2, False, None), ("a", 1, None, None), ("b", 1, None, None)),
    ]
    assert keys(scan_tables(rows, RULES, NOW_S)) == [("b", 1)]
    assert keys(merge_tables(rows, RULES, NOW_S).table) == [("a", 2), ("b", 1)]


def test_an_expired_row_hides_older_ones_that_have_not_expired() -> None:
    rows = [table(("a", 2, None, 940), ("a", 1, None, 999), ("b", 1, None, 941))]
    assert keys(scan_tables(rows, RULES, NOW_S)) == [("b", 1)]
    assert keys(merge_tables(rows, RULES, NOW_S).table) == [("a", 2), ("b", 1)]


@dataclass(frozen=True)
class Outside:
    key_min: bytes | None
    key_max: bytes | None
    version_min: bytes | None


def key(text: str) -> bytes:
    return encode_key([text], RULES.key_types)


@pytest.mark.parametrize(
    ("drop", "goes"),
    [
        (None, False),
        (DropRule(None), False),
        (DropRule(version(4)), False),
        (DropRule(version(5)), True),
        (DropRule(version(5), (Outside(key("a"), key("z"), version(5)),)), False),
        (DropRule(version(5), (Outside(key("a"), key("z"), version(6)),)), True),
        (DropRule(version(5), (Outside(key("m"), key("m"), version(1)),)), False),
        (DropRule(version(5), (Outside(key("ma"), key("z"), version(1)),)), True),
        (DropRule(version(5), (Outside(key("a"), key("l"), version(1)),)), True),
        (DropRule(version(5), (Outside(None, None, None),)), False),
        (DropRule(version(5), (Outside(key("n"), None, None),)), True),
    ],
)
@pytest.mark.parametrize("dead", [("m", 5, True, None), ("m", 5, False, 100)])
def test_a_dead_row_goes_once_nothing_older_can_rise(
    drop: DropRule | None, dead: tuple[object, ...], *, goes: bool
) -> None:
    merged = merge_tables(
        [table(dead, ("m", 4, None, None), ("n", 9, None, None))], RULES, NOW_S, drop
    )
    assert keys(merged.table) == ([("n", 9)] if goes else [("m", 5), ("n", 9)])
    gone = merged.counts.tombstones_dropped, merged.counts.expired_dropped
    assert gone == ((0, 0) if not goes else (1, 0) if dead[2] else (0, 1))
    assert merged.dropped == (
        DroppedRows(spans=((key("m"), key("m")),), version_max=version(5)) if goes else None
    )


def test_dropped_spans_of_several_merges_are_joined() -> None:
    first = DroppedRows(spans=((b"b", b"c"), (b"x", b"y")), version_max=b"1")
    second = DroppedRows(spans=((b"a", b"b"), (b"d", b"d")), version_max=b"2")
    assert join_dropped([None, first, second]) == DroppedRows(
        spans=((b"a", b"c"), (b"d", b"d"), (b"x", b"y")), version_max=b"2"
    )
    assert join_dropped([None]) is None


def test_dropped_keys_are_told_without_the_files_between_them() -> None:
    rows = table(*[(name, 5, True, None) for name in "adgkmt"])
    between = (Outside(key("b"), key("c"), version(1)), Outside(key("h"), key("l"), version(9)))
    merged = merge_tables([rows], RULES, NOW_S, DropRule(version(5), between))
    assert merged.dropped is not None
    assert merged.dropped.spans == (
        (key("a"), key("a")),
        (key("d"), key("g")),
        (key("k"), key("k")),
        (key("m"), key("t")),
    )


def test_merging_no_tables_gives_no_rows() -> None:
    merged = merge_tables([], RULES, NOW_S, DropRule(version(1)))
    assert merged.table.num_rows == 0
    assert merged.counts == RowCounts()
    assert scan_tables([], RULES, NOW_S, columns=["v"], start=b"", end=key("a")).column_names == [
        "v"
    ]


def test_a_narrow_file_without_all_columns_merges() -> None:
    old = pa.table(
        {"v": pa.array([1, 5], pa.int8()), "k": pa.array(["a", "b"]).dictionary_encode()}
    )
    assert keys(merge_tables([old, table(("a", 2, None, None))], RULES, NOW_S).table) == [
        ("a", 2),
        ("b", 5),
    ]


def test_columns_beyond_32_bit_offsets_are_taken_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_INT32_MAX", 0)
    rows = [table(("b", 1, None, None), ("a", 2, None, None)), table(("a", 3, None, None))]
    merged = merge.merge_tables(rows, RULES, NOW_S).table
    assert keys(merged) == [("a", 3), ("b", 1)]
    assert merged.schema.field("k").type == pa.string()


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(CompactionError, match="columns x are unknown"):
        scan_tables([], RULES, NOW_S, columns=["k", "x"])


def test_rules_of_a_table() -> None:
    made = Table(
        id="t",
        name="t",
        location="file:///t",
        schema=COLUMNS,
        key=("k",),
        version_column="v",
        tombstone_column="gone",
        time_column="at",
        settings=TableSettings(ttl_s=60.0),
    )
    assert RowRules.of(made) == RULES


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": ("x",)}, "column x is not in the schema"),
        ({"version_column": None}, "needs a version column"),
        ({"key": ()}, "tombstone column gone needs a key"),
        ({"tombstone_column": "v"}, "must be of type bool"),
        ({"time_column": "k"}, "must be a timestamp"),
        ({"time_column": None}, "needs a time column"),
        ({"schema": (Column("k", "list<int8>"), *COLUMNS[1:])}, "no order"),
    ],
)
def test_rules_that_do_not_fit_together_are_refused(change: dict[str, object], words: str) -> None:
    made: dict[str, object] = {
        "schema": COLUMNS,
        "key": ("k",),
        "version_column": "v",
        "tombstone_column": "gone",
        "time_column": "at",
        "ttl_s": 60.0,
    }
    with pytest.raises(CompactionError, match=words):
        RowRules(**(made | change))


def test_keys_of_the_wrong_columns_are_refused() -> None:
    with pytest.raises(CompactionError, match="no column x"):
        encode_keys(table(), ["x"], RULES.key_types)
    with pytest.raises(CompactionError, match="expected a type of the family string"):
        encode_column(pa.array([1]), RULES.key_types[0])
    assert encode_column(pa.nulls(2), RULES.key_types[0]).to_pylist() == [b"\0", b"\0"]
    batch = table(("a", 1, None, None)).to_batches()[0]
    assert encode_keys(batch, ["k"], RULES.key_types).to_pylist() == [key("a")]


def test_decimals_beyond_38_digits_are_refused() -> None:
    wide = pa.array([Decimal(10) ** 50], pa.decimal256(60, 0))
    with pytest.raises(CompactionError, match="more than 38 digits"):
        encode_column(wide, KeyType.DECIMAL)
