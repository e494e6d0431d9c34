"""Expressions that are accepted: the SQL they become, and what Python says of each row.

An oracle that meets None where a value is needed raises TypeError: the predicate is then
null, and the row is not meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from common.model.table import Column

SCHEMA = (
    Column("id", "int64", nullable=False),
    Column("small", "int32"),
    Column("amount", "decimal(10, 2)"),
    Column("price", "double"),
    Column("name", "string"),
    Column("flag", "bool"),
    Column("day", "date"),
    Column("ts", "timestamp[us, UTC]"),
    Column("ms", "timestamp[ms]"),
    Column("s", "struct<a: int64, b: struct<c: string>>"),
    Column("odd `name`", "string"),
    Column("date", "string"),
    Column("tags", "list<string>"),
)
DDL = (
    "id bigint not null, small int, amount decimal(10,2), price double, name string, "
    "flag boolean, day date, ts timestamp, ms timestamp, "
    "s struct<a: bigint, b: struct<c: string>>, `odd ``name``` string, `date` string, "
    "tags array<string>"
)
NOW = datetime(2024, 6, 1, 12, tzinfo=UTC)
NOW_US = int(NOW.timestamp()) * 1_000_000


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Row:
    id: int
    small: int | None = None
    amount: Any = None
    price: Any = None
    name: Any = None
    flag: Any = None
    day: Any = None
    ts: Any = None
    ms: Any = None
    s: Any = None
    odd: Any = None
    date: Any = None
    tags: Any = None


ROWS = (
    Row(1, 7, Decimal("12.50"), 1.5, "Ann", True, date(2024, 1, 31), at("2024-01-31 23:59:59"),
        at("2024-01-31 23:59:59"), (3, ("deep",)), "x", "soon", ["a"]),
    Row(2, -7, Decimal("-0.05"), -2.5, "it's", False, date(2024, 2, 29), at("2024-05-31 12:00:00"),
        None, (None, None), "y", "late", []),
    Row(3),
    Row(4, 0, Decimal("0.00"), 0.0, "", True, date(1969, 12, 31), at("1969-12-31 23:00:00"),
        at("2024-01-01"), (0, ("",)), "", ""),
    Row(5, 100, Decimal("99999999.99"), 1e300, "50% \\ off_x", None, date(2024, 6, 1),
        at("2024-06-01 11:59:59.999999"), None, None, "Z", "a\nb"),
    Row(6, 2**31 - 1, Decimal("3.14"), 3.14159, "\u00c5ngstr\u00f6m \U0001f9ca", False,
        date(2023, 12, 31), at("2023-12-31"), None, (9, ("Deep",)), None, "date"),
    Row(2**62, 1, Decimal("1.00"), 2.0, "  pad  ", True, date(2024, 12, 30),
        at("2024-12-30 06:07:08.5"), None, (1, (None,)), None, None),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Accepted:
    text: str
    sql: str
    oracle: Callable[[Row], Any]

    def expected(self, row: Row) -> Any:
        try:
            return self.oracle(row)
        except (TypeError, AttributeError):
            return None


PREDICATES = [
    Accepted(text, sql, oracle)
    for text, sql, oracle in [
        ("true", "TRUE", lambda r: True),
        ("flag", "`flag`", lambda r: r.flag),
        ("not flag", "(NOT `flag`)", lambda r: not r.flag if r.flag is not None else None),
        ("id = 1", "(`id` = 1)", lambda r: r.id == 1),
        ("id == 1 or id <> 2 and flag", "((`id` = 1) OR ((`id` <> 2) AND `flag`))",
         lambda r: r.id == 1 or (r.id != 2 and r.flag)),
        ("(id = 1 or id != 2) and flag", "(((`id` = 1) OR (`id` <> 2)) AND `flag`)",
         lambda r: r.id != 2 and r.flag),
        ("not id = 1", "(NOT (`id` = 1))", lambda r: r.id != 1),
        ("not id = 1 and flag", "((NOT (`id` = 1)) AND `flag`)", lambda r: r.id != 1 and r.flag),
        ("small > price", "(`small` > `price`)", lambda r: r.small > r.price),
        ("amount >= -0.05", "(`amount` >= (-0.05))", lambda r: r.amount >= Decimal("-0.05")),
        ("price < 1e3", "(`price` < 1e3)", lambda r: r.price < 1000),
        ("id = 4611686018427387904", "(`id` = 4611686018427387904)", lambda r: r.id == 2**62),
        ("id > -9223372036854775808", "(`id` > (-9223372036854775808))", lambda r: True),
        ("small <=> small", "(`small` <=> `small`)", lambda r: True),
        ("name is null", "(`name` IS NULL)", lambda r: r.name is None),
        ("s is not null", "(`s` IS NOT NULL)", lambda r: r.s is not None),
        ("tags is null", "(`tags` IS NULL)", lambda r: r.tags is None),
        ("id = 1 is null", "((`id` = 1) IS NULL)", lambda r: False),
        ("name in ('Ann', 'it''s')", "(`name` IN ('Ann', 'it\\'s'))",
         lambda r: r.name in ("Ann", "it's")),
        ("small not in (7, -7)", "(`small` NOT IN (7, (-7)))",
         lambda r: None if r.small is None else r.small not in (7, -7)),
        ("amount between 0 and 12.5", "(`amount` BETWEEN 0 AND 12.5)",
         lambda r: 0 <= r.amount <= Decimal("12.5")),
        ("id not between 2 and 4 and flag", "((`id` NOT BETWEEN 2 AND 4) AND `flag`)",
         lambda r: not 2 <= r.id <= 4 and r.flag),
        ("name like 'A%'", "(`name` LIKE 'A%')", lambda r: r.name.startswith("A")),
        ("name like '%\\%%'", "(`name` LIKE '%\\\\%%')", lambda r: "%" in r.name),
        ("name like r'%off\\_x'", "(`name` LIKE '%off\\\\_x')", lambda r: r.name.endswith("off_x")),
        ("name like '%\\\\\\\\%'", "(`name` LIKE '%\\\\\\\\%')", lambda r: "\\" in r.name),
        ("name not like '%n%'", "(`name` NOT LIKE '%n%')", lambda r: "n" not in r.name),
        ("name rlike r'^\\w+$'", "(`name` RLIKE '^\\\\w+\\u0024')", lambda r: r.name == "Ann"),
        ("name rlike '(an|AN|An)n?$'", "(`name` RLIKE '(an|AN|An)n?\\u0024')",
         lambda r: r.name == "Ann"),
        ("name rlike '(?i)ANN'", "(`name` RLIKE '(?i)ANN')", lambda r: r.name == "Ann"),
        ("name = '\u00c5ngstr\u00f6m \U0001f9ca'",
         "(`name` = '\\u00c5ngstr\\u00f6m \\ud83e\\uddca')", lambda r: r.id == 6),
        ("date = 'a\\nb'", "(`date` = 'a\\u000ab')", lambda r: r.id == 5),
        ("`date` = 'date'", "(`date` = 'date')", lambda r: r.id == 6),
        ("`odd ``name``` = 'x'", "(`odd ``name``` = 'x')", lambda r: r.odd == "x"),
        ("name < 'a'", "(`name` < 'a')", lambda r: r.name.encode() < b"a"),
        ("s.a > 0", "(`s`.`a` > 0)", lambda r: r.s[0] > 0),
        ("s.b.c = 'deep'", "(`s`.`b`.`c` = 'deep')", lambda r: r.s[1][0] == "deep"),
        ("day = '2024-02-29'", "(`day` = DATE '2024-02-29')", lambda r: r.id == 2),
        ("day < date '1970-01-01'", "(`day` < DATE '1970-01-01')", lambda r: r.id == 4),
        ("ts < '2024-01-01'", "(`ts` < TIMESTAMP '2024-01-01 00:00:00Z')",
         lambda r: r.ts < at("2024-01-01")),
        ("ts >= timestamp '2024-06-01T13:59:59.999999+02:00'",
         "(`ts` >= TIMESTAMP '2024-06-01 11:59:59.999999Z')",
         lambda r: r.ts >= at("2024-06-01 11:59:59.999999")),
        ("day < ts", "(CAST(`day` AS TIMESTAMP) < `ts`)",
         lambda r: datetime(r.day.year, r.day.month, r.day.day, tzinfo=UTC) < r.ts),
        ("ts < now() - interval 1 day", "(`ts` < (:now - INTERVAL '1' DAY))",
         lambda r: r.ts < NOW - timedelta(days=1)),
        ("ts < now() - interval '2 weeks'", "(`ts` < (:now - INTERVAL '14' DAY))",
         lambda r: r.ts < NOW - timedelta(days=14)),
        ("name = ':now' or ts = now()", "((`name` = ':now') OR (`ts` = :now))", lambda r: False),
        ("day + interval '1' month = '2024-02-29'",
         "((`day` + INTERVAL '1' MONTH) = DATE '2024-02-29')", lambda r: r.id == 1),
        ("interval 90 minutes + ts > '2024-12-30 07:00'",
         "((`ts` + INTERVAL '90' MINUTE) > TIMESTAMP '2024-12-30 07:00:00Z')",
         lambda r: r.ts + timedelta(minutes=90) > at("2024-12-30 07:00")),
        ("day + interval 25 hours > '2024-12-31 00:30'",
         "((CAST(`day` AS TIMESTAMP) + INTERVAL '25' HOUR) > TIMESTAMP '2024-12-31 00:30:00Z')",
         lambda r: r.id == 2**62),
        ("small - 1 * 2 = 5", "((`small` - (1 * 2)) = 5)", lambda r: r.id == 1),
        ("price * 2 - 1 = 2", "(((`price` * 2) - 1) = 2)", lambda r: r.price * 2 - 1 == 2),
        ("id / 2 = 0.5", "((`id` / 2) = 0.5)", lambda r: r.id == 1),
        ("id div 2 = 1", "((`id` DIV 2) = 1)", lambda r: r.id in (2, 3)),
        ("small % 5 = -2", "((`small` % 5) = (-2))", lambda r: r.small == -7),
        ("- price > 2", "((- `price`) > 2)", lambda r: -r.price > 2),
        ("2 - 3 - 4 = -5", "(((2 - 3) - 4) = (-5))", lambda r: True),
        ("name || '-' || date = 'Ann-soon'", "(concat(`name`, '-', `date`) = 'Ann-soon')",
         lambda r: r.id == 1),
        ("concat(name, 'x') = 'x'", "(concat(`name`, 'x') = 'x')", lambda r: r.name == ""),
        ("upper(name) = 'ANN' and lower(name) = 'ann'",
         "((upper(`name`) = 'ANN') AND (lower(`name`) = 'ann'))", lambda r: r.id == 1),
        ("trim(name) = 'pad' and ltrim(name) <> rtrim(name)",
         "((trim(`name`) = 'pad') AND (ltrim(`name`) <> rtrim(`name`)))", lambda r: r.id == 2**62),
        ("length(name) = 10", "(length(`name`) = 10)", lambda r: len(r.name) == 10),
        ("substring(name, 2) = 'nn'", "(substring(`name`, CAST(2 AS INT)) = 'nn')",
         lambda r: r.id == 1),
        ("substring(name, small, 2) = 'An'",
         "(substring(`name`, CAST(`small` AS INT), CAST(2 AS INT)) = 'An')",
         lambda r: r.small in (0, 1) and r.name.startswith("An")),
        ("replace(name, 'n', '') = 'A'", "(replace(`name`, 'n', '') = 'A')", lambda r: r.id == 1),
        ("round(price) = 3", "(round(`price`, 0) = 3)", lambda r: r.id == 6),
        ("round(amount, 1) = 3.1", "(round(`amount`, 1) = 3.1)", lambda r: r.id == 6),
        ("abs(small) = 7", "(abs(`small`) = 7)", lambda r: abs(r.small) == 7),
        ("floor(price) = -3 or ceiling(amount) = 13",
         "((floor(`price`) = (-3)) OR (ceil(`amount`) = 13))", lambda r: r.id in (1, 2)),
        ("year(ts) = 2024 and month(day) = 12",
         "((year(CAST(`ts` AS DATE)) = 2024) AND (month(`day`) = 12))", lambda r: r.id == 2**62),
        ("day(day) = 31 and quarter(day) = 1", "((day(`day`) = 31) AND (quarter(`day`) = 1))",
         lambda r: r.id == 1),
        ("dayofweek(day) = 1 or dayofyear(day) = 60 or weekofyear(day) = 22",
         "((dayofweek(`day`) = 1) OR (dayofyear(`day`) = 60) OR (weekofyear(`day`) = 22))",
         lambda r: r.id in (2, 5, 6)),
        ("hour(ts) = 6 and minute(ts) = 7 and second(ts) = 8",
         "((hour(`ts`) = 6) AND (minute(`ts`) = 7) AND (second(`ts`) = 8))",
         lambda r: r.id == 2**62),
        ("date_trunc('month', ts) = '2024-01-01'",
         "(date_trunc('MONTH', `ts`) = TIMESTAMP '2024-01-01 00:00:00Z')", lambda r: r.id == 1),
        ("date_add(day, small % 50) = '2024-02-07' or date_sub(day, 1) = '1969-12-30'",
         "((date_add(`day`, CAST((`small` % 50) AS INT)) = DATE '2024-02-07')"
         " OR (date_sub(`day`, CAST(1 AS INT)) = DATE '1969-12-30'))", lambda r: r.id in (1, 4)),
        ("add_months(day, 1) = '2024-02-29' and datediff(day, '2024-01-01') = 30",
         "((add_months(`day`, CAST(1 AS INT)) = DATE '2024-02-29')"
         " AND (datediff(`day`, DATE '2024-01-01') = 30))", lambda r: r.id == 1),
        ("timestamp_seconds(small) < '1970-01-01 00:00:01'",
         "(timestamp_seconds(`small`) < TIMESTAMP '1970-01-01 00:00:01Z')", lambda r: r.small < 1),
        ("timestamp_millis(small) = '1970-01-01' or timestamp_micros(id) < '1970-01-01 00:00:01'",
         "((timestamp_millis(`small`) = TIMESTAMP '1970-01-01 00:00:00Z')"
         " OR (timestamp_micros(`id`) < TIMESTAMP '1970-01-01 00:00:01Z'))",
         lambda r: r.id < 2**62),
        ("unix_seconds(ts) = -3600 or unix_millis(day) = 0",
         "((unix_seconds(`ts`) = (-3600)) OR (unix_millis(CAST(`day` AS TIMESTAMP)) = 0))",
         lambda r: r.id == 4),
        ("coalesce(small, 0) = 0", "(coalesce(`small`, 0) = 0)",
         lambda r: (r.small or 0) == 0),
        ("nullif(name, '') is null", "(nullif(`name`, '') IS NULL)", lambda r: not r.name),
        ("case when id < 3 then 'low' when flag then 'set' else name end in ('low', 'set')",
         "(CASE WHEN (`id` < 3) THEN 'low' WHEN `flag` THEN 'set' ELSE `name` END"
         " IN ('low', 'set'))", lambda r: r.id < 3 or r.flag),
        ("case id when 1 then 1.5 when 2 then null else 1 end > 1",
         "(CASE `id` WHEN 1 THEN 1.5 WHEN 2 THEN NULL ELSE 1 END > 1)", lambda r: r.id == 1),
        ("cast(small as string) = '7' or cast(amount as int) = 3",
         "((CAST(`small` AS STRING) = '7') OR (CAST(`amount` AS INT) = 3))",
         lambda r: r.id in (1, 6)),
        ("try_cast(name as double) is null", "(try_cast(`name` AS DOUBLE) IS NULL)",
         lambda r: True),
        ("cast('2024-01-31' as date) = day or cast(day as timestamp) = ts",
         "((CAST('2024-01-31' AS DATE) = `day`) OR (CAST(`day` AS TIMESTAMP) = `ts`))",
         lambda r: r.id in (1, 6)),
    ]
]  # fmt: skip

ASSIGNMENTS = [
    Accepted(text, sql, oracle)
    for text, sql, oracle in [
        ("small = small % 10 + 1", "CAST(((`small` % 10) + 1) AS INT)",
         lambda r: int(abs(r.small) % 10 * (1 if r.small > 0 else -1)) + 1),
        ("amount = amount / 2 + 0.005", "CAST(((`amount` / 2) + 0.005) AS DECIMAL(10,2))",
         lambda r: (r.amount / 2 + Decimal("0.005")).quantize(Decimal("0.01"), "ROUND_HALF_UP")),
        ("price = 1", "CAST(1 AS DOUBLE)", lambda r: 1.0),
        ("name = upper(trim(name))", "CAST(upper(trim(`name`)) AS STRING)",
         lambda r: r.name.strip().upper()),
        ("name = null", "CAST(NULL AS STRING)", lambda r: None),
        ("name = case when id = 1 then 'one' end",
         "CAST(CASE WHEN (`id` = 1) THEN 'one' END AS STRING)",
         lambda r: "one" if r.id == 1 else None),
        ("flag = id = 1", "CAST((`id` = 1) AS BOOLEAN)", lambda r: r.id == 1),
        ("day = '2024-02-29'", "CAST(DATE '2024-02-29' AS DATE)", lambda r: date(2024, 2, 29)),
        ("day = cast(ts as date)", "CAST(CAST(`ts` AS DATE) AS DATE)", lambda r: r.ts.date()),
        ("ts = '2024-01-01'", "CAST(TIMESTAMP '2024-01-01 00:00:00Z' AS TIMESTAMP)",
         lambda r: at("2024-01-01")),
        ("ts = now()", "CAST(:now AS TIMESTAMP)", lambda r: NOW),
        ("ts = day", "CAST(`day` AS TIMESTAMP)",
         lambda r: datetime(r.day.year, r.day.month, r.day.day, tzinfo=UTC)),
        ("ms = ts", "date_trunc('MILLISECOND', CAST(`ts` AS TIMESTAMP))",
         lambda r: r.ts.replace(microsecond=r.ts.microsecond // 1000 * 1000)),
        ("id = id + 1",
         "coalesce(CAST((`id` + 1) AS BIGINT), "
         "CAST(raise_error('column id may not be null') AS BIGINT))", lambda r: r.id + 1),
        ("`odd ``name``` = s.b.c", "CAST(`s`.`b`.`c` AS STRING)", lambda r: r.s[1][0]),
        ("date = try_cast(name as string)", "CAST(try_cast(`name` AS STRING) AS STRING)",
         lambda r: r.name),
    ]
]  # fmt: skip

LOUD = (
    "small = cast(name as int)",
    "small = small + 2147483647",
    "amount = price",
    "price = small / 0",
    "id = nullif(id, 1)",
    "day = cast(name as date)",
    "flag = cast(name as boolean)",
)
"""Assignments that are accepted, and fail on `ROWS` rather than make a null."""
