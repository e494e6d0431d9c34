"""What Polars works out is what Spark works out, for every supported form and type."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from itertools import pairwise, product
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from common.expressions import (
    SPARK_SETTINGS,
    NotNativeError,
    parse_assignments,
    parse_predicate,
)
from common.expressions.native import native_predicate, native_value
from common.model.table import Column
from common.rows.schema import columns_of
from compactor.rewrite.transform import from_spark, spark_type, to_spark
from tests.support.spark_session import local_session
from tests.unit.expressions.cases import NOW_US

NOON_US = 1_743_508_800 * 10**6
NAN, INF = float("nan"), float("inf")
OPS = ("=", "<>", "<", "<=", ">", ">=", "<=>")
DAY, NOON = "'2025-04-01'", "'2025-04-01 12:00:00'"
MOMENTS = [DAY, NOON, "'2025-04-01 14:00:00.000001+02:00'", "timestamp '1969-12-31 23:59:59.9999'",
           "date '2025-04-01'", "now()", "now() - interval 90 days", "now() + interval '1' month",
           "date '2024-03-31' - interval 1 month",
           "date '2025-04-01' + interval 36 hours"]  # fmt: skip
WHOLE = ["0", "1", "-1", "127", "128", "-129", "0.5", "-0.00", "9007199254740993", "1e0",
         "9007199254740993e0", "9223372036854775807", "-9223372036854775808",
         "18446744073709551616", "99999999999999999999999999999999999999"]  # fmt: skip
FRACTIONS = ["0", "-0.0", "-0e0", "0.1", "0.10000000000000000001", "1.5", "1e300", "1.5e0",
             "9007199254740993", "16777217", "16777217e0", "0.1e0"]  # fmt: skip
DECIMALS = ["1.25", "1.2500", "1.251", "1", "-1.5", "0.0000000000000000000000000000000001",
            "99999999999999999999999999999999999999", "125e-2"]  # fmt: skip
DOUBLES = [-INF, -1.5, -0.0, 0.0, 0.1, 1.5, 2.0**53, 1e300, INF, NAN, None]
FLOATS = [-INF, -1.5, -0.0, 0.0, 0.1, 0.5, 2.0**24, INF, NAN, None]
TICKS = [0, -1, NOON_US - 1, NOON_US, NOON_US + 1, 1_743_465_600 * 10**6, NOW_US, None]
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[str]]] = {
    "i8": (pa.int8(), [-128, -1, 0, 1, 127, None], WHOLE),
    "i16": (pa.int16(), [-(2**15), 0, 1, 128, 2**15 - 1, None], WHOLE),
    "i32": (pa.int32(), [-(2**31), -1, 0, 1, 2**31 - 1, None], WHOLE),
    "i64": (pa.int64(), [-(2**63), -1, 0, 1, 2**53, 2**53 + 1, 2**63 - 1, None], WHOLE),
    "u8": (pa.uint8(), [0, 1, 255, None], WHOLE),
    "u64": (pa.uint64(), [0, 1, 2**63, 2**64 - 1, None], WHOLE),
    "d": (pa.float64(), DOUBLES, FRACTIONS),
    "f": (pa.float32(), FLOATS, FRACTIONS),
    "dec": (pa.decimal128(10, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("1.25"),
                                   Decimal("1.26"), Decimal("99999999.99"), None], DECIMALS),
    "wide": (pa.decimal128(38, 10), [Decimal("-1"), Decimal("0.0000000001"), Decimal("1.25"),
                                     Decimal("9" * 28), None], DECIMALS),
    "s": (pa.string(), ["", "a", "a\0", "ab", "b", "é", "\U0001f9ca", "A", None],
          ["''", "'a'", "'a\\u0000'", "'é'", "'\U0001f9ca'", "'ab '"]),
    "ascii": (pa.string(), ["", "a", "aB", "ab\n", "a\nb", "a%b", "a_b", "_", "\\", "a.b", "(a)",
                            "a|b", "a^$", "AZaz09", None],
              ["''", "'a'"]),
    "b": (pa.bool_(), [True, False, None], ["true", "false"]),
    "day": (pa.date32(), [date(2025, 3, 31), date(2025, 4, 1), date(1969, 12, 31),
                          date(2024, 2, 29), None], MOMENTS),
    "us": (pa.timestamp("us", "UTC"), TICKS, MOMENTS),
    "ms": (pa.timestamp("ms"), [t // 1000 if t is not None else t for t in TICKS], MOMENTS),
    "ns": (pa.timestamp("ns", "Europe/Paris"),
           [None if t is None else t * 1000 + by for t in TICKS for by in (0, 999)], MOMENTS),
}  # fmt: skip
"""Columns of every type: values, and literals next to them."""

PAIRS = [
    ("i8", "i64"), ("i32", "u8"), ("i64", "d"), ("f", "d"), ("f", "i32"), ("d", "d"), ("s", "s"),
    ("day", "us"), ("ms", "ns"), ("day", "day"), ("b", "b"), ("u64", "u64"), ("f", "f"),
]  # fmt: skip
LIKES = [
    "''", "'a'", "'%'", "'%%'", "'a%'", "'%b'", "'%b%'", "'a%b'", "'_'", "'__'", "'a_'", "'_%'",
    "'%_b%'", "'é%'", "'\U0001f9ca'", "'a\\u0000'", "'.'", "'%.%'", "'a.%'", "'%(%'", "'[a]%'",
    "'%\\%%'", "'\\_%'", r"r'%\\%'", "'%\n%'", "'a%\nb'", "'a_b'", "'%$'", "'a^%'", "'a|b'",
]  # fmt: skip
MORE = [
    "true", "false", "b", "not b", "b and i8 > 0", "b or i8 > 0", "not (b and d > 0 or s = 'a')",
    "i8 > 0 and d < 1 and s <> 'b' and not b", "i8 is null or d is null",
    "(i8 > 0) is null or b", "i8 + 1 > i16", "d * 2 >= 3", "f + 1 = 1.5", "i8 - i8 = 0",
    "-i8 > 0", "i32 / 2 > 0.5", "d / 4 < f", "s || 'x' = 'ax'", "u8 + u8 > 300",
    "(i8 + 1) is null", "(s || 'x') is not null", "(b and i8 > 0) is null", "(d / 2) is null",
    *(f"s {op} {pattern}" for op in ("like", "not like") for pattern in LIKES),
    *(f"ascii {op} {pattern}" for op in ("like", "not like") for pattern in LIKES),
    "s || 'b' like 'a%'", "length(s) > 1", "length(s) = length(ascii)", "length(s || s) in (2, 4)",
    "upper(ascii) = 'AB'", "lower(ascii) <> 'ab'", "upper(ascii) like 'A%'", "upper(s) = 'A'",
    "concat(s, 'x', ascii) = 'ax'", "concat(s) is null", "coalesce(s, 'none') = 'none'",
    "coalesce(d, i64, 0) >= 0", "coalesce(i32, 0) > 0", "coalesce(i64, i64, 7) = 7",
    "coalesce(s, ascii, '') = ''", "coalesce(i8, 0) > 0",
    *(f"substring(ascii, {at}) = 'b'" for at in (0, 1, 2, 9)),
    *(f"substring(s, {at}, {size}) <> ''" for at in (0, 1, 2, 9) for size in (0, 1, 3)),
    "substring(s, 2147483647, 2147483647) = ''",
    "cast(i8 as bigint) * 2 > 5", "cast(i64 as double) > 9007199254740992",
]  # fmt: skip
ASSIGNED = {
    "i8": ["1", "null", "i8", "case when b then 1 when d > 0 then i8 else 0 end", "i16"],
    "i16": ["i8", "i8 + 1", "u8"],
    "i32": ["length(s)", "length(ascii) * 2", "coalesce(i32, 1) + 1",
            "i8 * 2", "coalesce(i32, 7)", "case i8 when 1 then 5 end", "-i8", "u8 + 1"],
    "i64": ["i8 + i32", "i32 * 3", "-i32", "i8 * i16", "null", "9223372036854775807"],
    "d": ["d * 2", "d + 1", "d - 0.1", "1.5", "-0.0", "-0e0", "i64", "i64 * 0.1", "d / 3", "f",
          "f * f", "-d", "i8 / 4", "case when b then 1 else d end", "coalesce(d, i64, 0.5)",
          "case when b then null else d end", "cast(i8 as double) + f", "d * i64", "1e300"],
    "f": ["f * 2", "f + f", "d", "0.5", "0.1", "i64", "f / 3", "case when b then f else 0.5 end"],
    "dec": ["1.25", "-7", "null", "1.255", "dec"],
    "ascii": ["upper(ascii)", "lower(ascii)", "upper('é' || ascii)", "substring(ascii, 2, 1)",
              "concat(ascii, '-', s)", "lower(upper(ascii) || 'X')", "substring(s || ascii, 2)"],
    "s": ["'x'", "s || 'x' || s", "upper(s)", "null",
          "coalesce(s, 'none')", "case when b then s else '' end"],
    "b": ["true", "null", "b", "case when i8 > 0 then false else b end"],
    "day": [DAY, "date '2000-01-01'", "null", "day", "date '2024-03-31' - interval 1 month"],
    "us": ["now()", NOON, "date '2000-01-01'", "us", "now() - interval 90 days"],
    "ms": ["now()", "timestamp '1969-12-31 23:59:59.999999'", "ms"],
    "ns": ["now()", NOON, "ns", "coalesce(ns, now())"],
}  # fmt: skip
"""By column: new values; all of them must be the same in Spark, unless Spark has to decide."""

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def array_of(name: str, rows: int) -> pa.Array:
    arrow, values, _ = COLUMNS[name]
    # Another step for each column, so that the values of two columns meet in many ways.
    step = 1 + list(COLUMNS).index(name) % len(values)
    taken = [values[(at * step + at // len(values)) % len(values)] for at in range(rows)]
    if pa.types.is_timestamp(arrow):
        return pa.array(taken, pa.int64()).cast(arrow)
    return pa.array(taken, arrow)


ROWS = pa.table({name: array_of(name, 400) for name in COLUMNS})
SCHEMA: tuple[Column, ...] = tuple(columns_of(ROWS.schema))
RIGHT = pl.from_arrow(ROWS)
assert isinstance(RIGHT, pl.DataFrame)
FRAME: pl.DataFrame = RIGHT


@pytest.fixture(scope="module")
def frame() -> Any:
    """Return `ROWS` as Spark receives them, with the settings that expressions ask for."""
    spark = local_session().newSession()
    for name, value in SPARK_SETTINGS.items():
        spark.conf.set(name, value)
    batch = pa.record_batch(
        [pa.array(range(400), pa.int32()), *(to_spark(c.combine_chunks()) for c in ROWS.columns)],
        names=["n", *ROWS.column_names],
    )
    columns = ", ".join(f"`{field.name}` {spark_type(field.type)}" for field in ROWS.schema)
    rows = spark.range(1, numPartitions=1).mapInArrow(lambda _: iter([batch]), f"n int, {columns}")
    return rows.cache()


def answers(frame: Any, sqls: list[str]) -> pa.Table:
    """Return Spark's values, by row, in Arrow."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        chosen = [f"{sql} AS c{at}" for at, sql in enumerate(sqls)]
        frame.selectExpr("n", *chosen).coalesce(1).write.parquet(f"{folder}/found")
        import pyarrow.parquet as pq

        return pq.read_table(f"{folder}/found").sort_by("n").drop_columns(["n"])


def predicates() -> list[str]:
    texts = list(MORE)
    for name, (_, _, literals) in COLUMNS.items():
        texts += [f"{name} {op} {text}" for op, text in product(OPS, literals)]
        plain = [text for text in literals if "interval" not in text and "(" not in text]
        texts += [f"{text} < {name}" for text in plain]
        texts += [f"{name} in ({one}, {plain[-1]})" for one in plain]
        texts += [f"{name} not in ({', '.join(plain[:3])})", f"{name} in ({', '.join(plain)})"]
        texts += [f"{name} between {one} and {other}" for one, other in pairwise(plain)]
        texts += [f"{name} not between {plain[0]} and {plain[-1]}"]
        texts += [f"{name} is null", f"not {name} is not null", f"not ({name} < {plain[0]})"]
    texts += [f"{one} {op} {other}" for (one, other), op in product(PAIRS, OPS)]
    return texts


def test_predicates_choose_the_rows_that_spark_chooses(frame: Any) -> None:
    parsed = [parse_predicate(text, SCHEMA) for text in predicates()]
    kept, spark = [], []
    for one in parsed:
        of = native_predicate(one.node, FRAME.schema, NOW_US)
        try:
            if of is not None:
                kept.append((one, of(FRAME).fill_null(value=False)))
                continue
        except NotNativeError:
            pass
        spark.append(one.text)
    assert len(spark) < len(parsed) // 8, spark
    found = answers(frame, [one.at(NOW_US) for one, _ in kept])
    for (one, chosen), column in zip(kept, found.columns, strict=True):
        wrong = [
            (row, ours, theirs)
            for row, ours, theirs in zip(
                ROWS.select(list(one.columns)).to_pylist(), chosen, column.to_pylist(), strict=True
            )
            if ours is not theirs
        ]
        assert not wrong, (one.text, wrong[:3])


def test_values_are_those_that_spark_assigns(frame: Any) -> None:
    texts = [f"{name} = {value}" for name, values in ASSIGNED.items() for value in values]
    native = []
    for text in texts:
        (one,) = parse_assignments(text, SCHEMA, frozenset())
        target = FRAME.schema[one.column]
        of = native_value(one.expression.node, target, FRAME.schema, NOW_US)
        if of is not None:
            try:
                native.append((text, one, of(FRAME)))
            except NotNativeError:
                continue
    assert len(native) > len(texts) * 3 // 4
    found = answers(frame, [one.expression.at(NOW_US) for _, one, _ in native])
    for (text, one, values), column in zip(native, found.columns, strict=True):
        arrow = ROWS.schema.field(one.column).type
        if pa.types.is_timestamp(arrow):
            column = column.cast(pa.timestamp("us", "UTC"))
        theirs = from_spark(column.combine_chunks(), arrow)
        ours = values.to_arrow().cast(arrow)
        assert values.dtype == FRAME.schema[one.column], text
        assert list(map(repr, raw(ours))) == list(map(repr, raw(theirs))), text


def raw(values: pa.Array) -> list[Any]:
    """Return values; moments as whole numbers, because Python has no nanoseconds."""
    return (values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values).to_pylist()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("i64 = i64 + 1", {"i64": [2**63 - 1]}),
        ("i64 = i64 * i64", {"i64": [2**32, 1]}),
        ("i64 = -i64", {"i64": [-(2**63)]}),
        ("i8 = i64", {"i64": [128], "i8": [1]}),
        ("d = 1 / i64", {"i64": [0, 1], "d": [1.0, 1.0]}),
        ("ms = ms", {"ms": [2**62]}),
    ],
)
def test_what_may_fail_is_left_to_spark(text: str, rows: dict[str, list[Any]]) -> None:
    chosen = [column for column in SCHEMA if column.name in rows]
    (one,) = parse_assignments(text, chosen, frozenset())
    table = {name: pl.Series(name, values) for name, values in rows.items()}
    given = pl.DataFrame(table).cast({name: FRAME.schema[name] for name in rows})
    of = native_value(one.expression.node, FRAME.schema[one.column], given.schema, NOW_US)
    assert of is not None
    with pytest.raises(NotNativeError):
        of(given)
