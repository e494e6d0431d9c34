"""The vectorised merge does what the reference does, and neither cares about order or grouping."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from common.model.keys import encode_key, encode_value
from common.model.outcome import DroppedRows
from common.model.table import Column
from common.rows.key_encoding import encode_column, encode_keys
from common.rows.merge import merge_tables, scan_tables
from common.rows.rules import DropRule, RowRules, droppable_rows, dropped_together
from common.rows.schema import arrow_schema
from tests.property.rows_reference import row as row_hash
from tests.support.fast_and_slow import first_fast
from tests.support.row_reference import (
    Row,
    is_expired,
    reference_merge,
    reference_visible,
)

START = datetime(2024, 1, 1, tzinfo=ZoneInfo("UTC"))
NOW_S = START.timestamp() + 10
TIMES = {
    "timestamp[ms, UTC]": lambda at: START + timedelta(seconds=at),
    "timestamp[us]": lambda at: (START + timedelta(seconds=at)).replace(tzinfo=None),
    "date": lambda at: (START + timedelta(days=at - 9)).date(),
    "int32": lambda at: int(START.timestamp()) + at,
    "uint64": lambda at: int(START.timestamp()) + at,
    "double": lambda at: START.timestamp() + at,
}
KEYS: dict[str, list[object]] = {
    "int16": [None, -1, 0, 3],
    "string": [None, "", "a", "a\0", "b"],
    "double": [None, 0.0, -0.0, 1.5, float("nan"), float("-inf")],
    "timestamp[us, UTC]": [START, START + timedelta(seconds=1), None],
    "binary[2]": [b"ab", b"b\0", None],
    "bool": [None, False, True],
    "decimal(10, 2)": [None, Decimal("-1.50"), Decimal("0.00"), Decimal("3.25")],
    "time[us]": [None, START.time()],
}


@dataclass(frozen=True, slots=True)
class Outside:
    key_min: bytes | None
    key_max: bytes | None
    version_min: bytes | None


def draw_rules(chance: random.Random) -> RowRules:
    key = chance.choices(list(KEYS), k=chance.randint(1, 2))
    columns = [Column(f"k{at}", text) for at, text in enumerate(key)]
    columns += [Column("v", chance.choice(["int64", "string", "double"])), Column("t", "bool")]
    columns += [Column("at", chance.choice(list(TIMES))), Column("payload", "int8")]
    chance.shuffle(columns)
    return RowRules(
        schema=tuple(columns),
        key=tuple(f"k{at}" for at in range(len(key))),
        version_column="v",
        tombstone_column="t",
        time_column="at",
        ttl_s=chance.choice([None, 5.0, 5.5]),
    )


VERSIONS = {"int64": lambda at: at, "string": str, "double": float}


def draw_row(chance: random.Random, rules: RowRules) -> Row:
    values: dict[str, object] = {
        name: chance.choice(KEYS[rules.type_of(name)]) for name in rules.key
    }
    at = chance.choice([None, 0, 4, 5, 6])
    version = chance.choice([None, 1, 2, 2, 3])
    return values | {
        "v": None if version is None else VERSIONS[rules.type_of("v")](version),
        "t": chance.choice([None, False, False, True]),
        "at": None if at is None else TIMES[rules.type_of("at")](at),
        "payload": chance.choice([None, 1, 2]),
    }


def draw_drop(chance: random.Random, rules: RowRules) -> DropRule | None:
    if chance.random() < 0.3:
        return None

    def maybe(data: bytes) -> bytes | None:
        return None if chance.random() < 0.2 else data

    def version(number: int) -> bytes:
        return encode_value(VERSIONS[rules.type_of("v")](number), rules.version_type)

    outside = []
    for _ in range(chance.randint(0, 2)):
        low, high = sorted(
            encode_key(
                [chance.choice(KEYS[rules.type_of(name)]) for name in rules.key], rules.key_types
            )
            for _ in range(2)
        )
        outside.append(Outside(maybe(low), maybe(high), maybe(version(chance.randint(1, 3)))))
    settled, keeps_deleted = maybe(version(chance.randint(1, 3))), chance.random() < 0.5
    return DropRule(settled, tuple(outside), keeps_deleted=keeps_deleted)


@pytest.mark.parametrize("seed", first_fast(20, range(200), slow=50))
def test_dead_rows_that_are_dropped_together_are_those_that_are_dropped_alone(seed: int) -> None:
    chance = random.Random(seed)
    rules = draw_rules(chance)
    rows = to_table([draw_row(chance, rules) for _ in range(chance.choice([1, 5, 30]))], rules)
    keys = encode_keys(rows, rules.key, rules.key_types)
    by_key = pc.sort_indices(keys)
    rows, keys = rows.take(by_key), keys.take(by_key).to_pylist()
    highest = max(encode_column(rows.column("v"), rules.version_type).to_pylist())
    for drop in filter(None, (draw_drop(chance, rules) for _ in range(20))):
        gone, dropped = droppable_rows(rows, np.ones(len(keys), np.bool_), rules, drop)
        together = dropped_together(keys.__getitem__, len(keys), highest, drop)
        assert together in (None, dropped)
        assert together is None or gone.all()
        assert together is not None or not gone.all() or drop.outside


def to_table(rows: Sequence[Row], rules: RowRules) -> pa.Table:
    return pa.Table.from_pylist([dict(row) for row in rows], schema=arrow_schema(rules.schema))


def split(chance: random.Random, rows: Sequence[Row]) -> list[list[Row]]:
    parts: list[list[Row]] = [[] for _ in range(chance.randint(1, 4))]
    for row in rows:
        chance.choice(parts).append(row)
    return parts


def texts(rows: Sequence[Row] | pa.Table) -> list[str]:
    """Rows as text, so that NaN equals NaN."""
    plain = rows.to_pylist() if isinstance(rows, pa.Table) else rows
    return [repr(sorted(row.items())).replace("-0.0", "0.0") for row in plain]


def assert_within(parts: DroppedRows | None, whole: DroppedRows | None) -> None:
    """Assert that both tell of the same keys, one of them perhaps of more gaps between them."""
    if parts is None or whole is None:
        assert parts is whole
        return
    assert parts.version_max == whole.version_max
    assert (parts.spans[0][0], parts.spans[-1][1]) == (whole.spans[0][0], whole.spans[-1][1])
    for low, high in parts.spans:
        assert any(first <= low <= high <= last for first, last in whole.spans)
    for ends in whole.spans:
        assert all(any(low <= end <= high for low, high in parts.spans) for end in ends)


@pytest.mark.parametrize("seed", first_fast(50, range(150), slow=50))
def test_a_merge_gives_the_rows_of_the_reference_model(seed: int) -> None:
    chance = random.Random(seed)
    rules = draw_rules(chance)
    rows = [draw_row(chance, rules) for _ in range(chance.randint(0, 60))]
    drop = draw_drop(chance, rules)
    tables = [to_table(part, rules) for part in split(chance, rows)]

    expected = reference_merge(rows, rules, NOW_S, row_hash, drop)
    merged = merge_tables(tables, rules, NOW_S, drop)

    assert texts(merged.table) == texts(expected.kept)
    assert merged.counts == expected.counts
    assert merged.counts.balanced
    assert_within(expected.dropped, merged.dropped)
    seen = scan_tables(tables, rules, NOW_S)
    assert texts(seen) == texts(reference_visible(rows, rules, NOW_S, row_hash))


@pytest.mark.parametrize("seed", range(60))
def test_any_grouping_and_order_of_merges_shows_the_same_rows(seed: int) -> None:
    """Nothing outside the inputs, late merges last: drops included, a reader sees no difference."""
    chance = random.Random(1000 + seed)
    rules = draw_rules(chance)
    rows = [draw_row(chance, rules) for _ in range(60)]
    expected = texts(scan_tables([to_table(rows, rules)], rules, NOW_S))

    files = [to_table(part, rules) for part in split(chance, rows)]
    while len(files) > 1:
        chance.shuffle(files)
        several = chance.randint(2, len(files))
        inputs, files = files[:several], files[several:]
        drop = draw_drop(chance, rules) if not files else None
        files.append(merge_tables(inputs, rules, NOW_S - 1 if files else NOW_S, drop).table)
    assert texts(scan_tables(files, rules, NOW_S)) == expected


@pytest.mark.parametrize("seed", range(60))
def test_any_grouping_of_parts_keeps_the_same_deleted_rows(seed: int) -> None:
    """What parts of a key leave is merged again: the last merge alone decides."""
    chance = random.Random(5000 + seed)
    rules = draw_rules(chance)
    rows = [draw_row(chance, rules) for _ in range(60)]
    drop = replace(draw_drop(chance, rules) or DropRule(None), keeps_deleted=True)
    expected = reference_merge(rows, rules, NOW_S, row_hash, drop)

    parts = [to_table(part, rules) for part in split(chance, rows)]
    while len(parts) > 1:
        chance.shuffle(parts)
        several = chance.randint(2, len(parts))
        inputs, parts = parts[:several], parts[several:]
        parts.append(merge_tables(inputs, rules, NOW_S, drop.of_a_part).table)
    assert texts(merge_tables(parts, rules, NOW_S, drop).table) == texts(expected.kept)
    both = texts(scan_tables(parts, rules, NOW_S, deleted=True))
    everything = reference_merge(rows, replace(rules, ttl_s=None), NOW_S, row_hash, drop.of_a_part)
    shown = [row for row in everything.kept if not is_expired(row, rules, NOW_S)]
    assert both == texts(shown)


@pytest.mark.parametrize("seed", range(60))
def test_drops_hidden_by_the_drop_rule_never_show(seed: int) -> None:
    """Merge some files, told truly of the others: a reader of all sees no difference."""
    chance = random.Random(2000 + seed)
    rules = draw_rules(chance)
    files = [part for part in split(chance, [draw_row(chance, rules) for _ in range(40)]) if part]
    expected = texts(scan_tables([to_table(part, rules) for part in files], rules, NOW_S))

    chance.shuffle(files)
    inputs, others = files[:1], files[1:]
    highest = b"\xff"
    drop = DropRule(highest, tuple(facts(part, rules) for part in others))
    output = merge_tables([to_table(part, rules) for part in inputs], rules, NOW_S, drop).table
    assert (
        texts(scan_tables([output, *(to_table(part, rules) for part in others)], rules, NOW_S))
        == expected
    )


def facts(rows: Sequence[Row], rules: RowRules) -> Outside:
    keys = [encode_key([row[name] for name in rules.key], rules.key_types) for row in rows]
    return Outside(
        min(keys), max(keys), min(encode_value(row["v"], rules.version_type) for row in rows)
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_key_range_is_a_filter_of_the_whole(seed: int) -> None:
    chance = random.Random(3000 + seed)
    rules = draw_rules(chance)
    rows = [draw_row(chance, rules) for _ in range(50)]
    cuts = sorted({encode_key([row[name] for name in rules.key], rules.key_types) for row in rows})
    cut = chance.choice(cuts)
    tables = [to_table(part, rules) for part in split(chance, rows)]

    low = scan_tables(tables, rules, NOW_S, end=cut)
    high = scan_tables(tables, rules, NOW_S, start=cut, end=b"\xff", columns=low.column_names)
    assert texts(low) + texts(high) == texts(scan_tables(tables, rules, NOW_S))


@pytest.mark.parametrize("seed", range(20))
def test_a_bag_keeps_every_row_but_the_expired(seed: int) -> None:
    chance = random.Random(4000 + seed)
    keyed = draw_rules(chance)
    rules = RowRules(schema=keyed.schema, time_column="at", ttl_s=keyed.ttl_s)
    rows = [draw_row(chance, keyed) for _ in range(40)]
    tables = [to_table(part, keyed) for part in split(chance, rows)]

    expected = reference_merge(rows, rules, NOW_S, row_hash)
    merged = merge_tables(tables, rules, NOW_S)
    assert sorted(texts(merged.table)) == sorted(texts(expected.kept))
    assert merged.counts == expected.counts
    assert merged.dropped is None
