"""Ranges tile the keys; statistics bound the rows; words sort like encoded keys."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.rows.key_encoding import encode_keys
from common.rows.schema import arrow_schema
from compactor.rewrite.kernel import winners as winners_module
from compactor.rewrite.kernel.normalized_keys import (
    LongKeyError,
    RowGroup,
    bound_words,
    column_levels,
    is_sorted,
    key_levels,
    row_groups_of,
    rows_before,
    words_of_row,
)
from compactor.rewrite.kernel.winners import RUNS_MAX, order_of, sorted_words, winners
from compactor.rewrite.merge.ranges import (
    CHUNK_BYTES,
    CopiedRun,
    bundles_of,
    footers_as_row_groups,
    key_points,
    overlap_bytes_max,
    parts_of_ranges,
    tile_ranges,
)
from tests.property.test_rows_merge import draw_row, draw_rules
from tests.support.fast_and_slow import first_fast


def key(number: int) -> bytes:
    return bytes([1, number])


def draw_groups(chance: random.Random) -> list[RowGroup]:
    groups = []
    for number in range(chance.randint(1, 30)):
        low, high = sorted(chance.choices(range(40), k=2))
        groups.append(
            RowGroup(
                input=chance.randrange(5),
                number=number,
                start=0,
                rows=1,
                size_bytes=chance.choice([1, 10, 500]),
                low=None if chance.random() < 0.1 else key(low),
                high=None if chance.random() < 0.1 else key(high),
            )
        )
    return groups


def may_hold(group: RowGroup, wanted: bytes) -> bool:
    above = group.low is None or group.low <= wanted
    return above and (group.high is None or wanted <= group.high)


@pytest.mark.parametrize("seed", first_fast(40, range(100), slow=40))
def test_ranges_tile_the_keys_and_know_whatever_may_be_in_them(seed: int) -> None:
    chance = random.Random(seed)
    groups = draw_groups(chance)
    cuts = sorted({key(n) for n in chance.choices(range(40), k=chance.randrange(3))})
    ranges = tile_ranges(groups, key_points(groups, {}), chance.randint(1, 5), cuts)
    parts = parts_of_ranges(ranges, cuts)
    assert set(cuts) <= {work.end for work in ranges}
    assert sorted(set(parts)) == list(range(len(cuts) + 1))
    assert parts == sorted(parts)
    for wanted in map(key, range(41)):
        holding = [
            (part, work)
            for part, work in zip(parts, ranges, strict=True)
            if (work.start is None or work.start < wanted)
            and (work.end is None or wanted <= work.end)
        ]
        ((part, work),) = holding
        assert part == sum(cut < wanted for cut in cuts)
        missed = [group for group in groups if may_hold(group, wanted) and group not in work.groups]
        assert not missed


@pytest.mark.parametrize("seed", range(50))
def test_no_more_bytes_are_held_at_once_than_computed(seed: int) -> None:
    chance = random.Random(seed)
    groups = draw_groups(chance)
    held = [
        sum(group.size_bytes for group in groups if may_hold(group, wanted))
        for wanted in map(key, range(40))
    ]
    assert max(held) <= overlap_bytes_max(groups) <= sum(group.size_bytes for group in groups)
    bundles = bundles_of(groups, 600)
    assert [group for bundle in bundles for group in bundle] == groups
    for bundle in bundles:
        assert len(bundle) == 1 or sum(group.size_bytes for group in bundle) <= 600


@pytest.mark.parametrize("seed", range(20))
def test_a_footer_lies_over_all_row_groups_of_its_file(seed: int) -> None:
    groups = draw_groups(random.Random(seed))
    footers = footers_as_row_groups(groups, columns=3)
    assert sum(each.size_bytes for each in footers) == CHUNK_BYTES * 3 * len(groups)
    for group in groups:
        (footer,) = (each for each in footers if each.input == group.input)
        assert all(may_hold(footer, key(at)) for at in range(40) if may_hold(group, key(at)))


@pytest.mark.parametrize("seed", range(20))
def test_stretches_are_what_follows_each_other_in_a_file(seed: int) -> None:
    groups = tuple(draw_groups(random.Random(seed)))
    stretches = CopiedRun(groups).stretches()
    assert [each for stretch in stretches for each in stretch] == list(groups)
    for stretch in stretches:
        first = stretch[0]
        assert [(each.input, each.number) for each in stretch] == [
            (first.input, first.number + at) for at in range(len(stretch))
        ]
    for before, after in itertools.pairwise(stretches):
        follows = (before[-1].input, before[-1].number + 1) == (after[0].input, after[0].number)
        assert not follows, "could have been one"


def test_samples_balance_what_bounds_do_not_tell() -> None:
    groups = [
        RowGroup(input=n, number=0, start=0, rows=9, size_bytes=100, low=key(0), high=key(200))
        for n in range(4)
    ]
    samples = {(n, 0): [key(at) for at in range(1, 21)] for n in range(4)}
    (first, second) = tile_ranges(groups, key_points(groups, samples), 2)
    assert first.end == second.start
    assert first.end in (key(10), key(11))


@pytest.mark.parametrize("seed", first_fast(50, range(150), slow=50))
def test_words_sort_like_keys_and_bounds_like_both(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rules = draw_rules(chance)
    rows = [dict(draw_row(chance, rules)) for _ in range(30)]
    table = pa.Table.from_pylist(rows, arrow_schema(rules.schema)).select(list(rules.key))
    arrows = [field.type for field in table.schema]
    columns = [pl.from_arrow(table.column(name)) for name in rules.key]
    levels = key_levels(columns, rules.key_types)
    encoded = encode_keys(table, rules.key, rules.key_types).to_pylist()
    order = order_of(levels, 30)
    assert [(encoded[place], place) for place in order] == sorted(
        zip(encoded, range(30), strict=True)
    )
    for place, wanted in enumerate(encoded):
        assert tuple(bound_words(wanted, rules.key_types, arrows)) == words_of_row(levels, place)
    assert is_sorted(levels, 30) == (encoded == sorted(encoded))

    known = sorted(encoded)
    columns = [column[order] for column in columns]
    levels = key_levels(columns, rules.key_types)
    assert is_sorted(levels, 30)
    assert is_sorted(levels, 30, strictly=True) == (len(set(encoded)) == 30)
    for wanted in known:
        bound = bound_words(wanted, rules.key_types, arrows)
        assert rows_before(levels, 30, bound, after=False) == sum(each < wanted for each in known)
        assert rows_before(levels, 30, bound, after=True) == sum(each <= wanted for each in known)

    # What a footer says of keys is never narrower than they are.
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    with pq.ParquetFile(tmp_path / "a.parquet") as parquet:
        groups = row_groups_of(0, parquet.metadata, parquet.schema_arrow, rules.key)
    for group in groups:
        keys = encoded[group.start : group.start + group.rows]
        assert group.low is None or group.low <= min(keys)
        assert group.high is None or group.high >= max(keys)


def test_the_beginning_of_a_key_comes_before_the_key() -> None:
    numbers = pl.Series([1, 1, 2], dtype=pl.Int64)
    names = pl.Series(["", "a", ""])
    kinds = [KeyType.INT, KeyType.STRING]
    levels = key_levels([numbers, names], kinds)
    bound = bound_words(encode_value(1, kinds[0]), kinds, [pa.int64(), pa.string()])
    assert rows_before(levels, 3, bound, after=True) == 0
    bound = bound_words(encode_value(2, kinds[0]), kinds, [pa.int64(), pa.string()])
    assert rows_before(levels, 3, bound, after=True) == 2


def draw_kind(text: str) -> object:
    from common.model.key_values import key_type_of

    return key_type_of(text)


def test_long_texts_have_no_words() -> None:
    kind = KeyType.STRING
    column_levels(pl.Series(["x" * 64]), kind)
    with pytest.raises(LongKeyError, match="65 bytes"):
        column_levels(pl.Series(["x" * 65]), kind)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 12, 13, 16, 17, 24, 36, 64])
def test_words_of_texts_of_one_length_are_read_from_any_buffer(length: int) -> None:
    """From views: short texts, texts at equal distances, in any order, and in several buffers."""
    for seed in range(20):
        chance = random.Random(seed)
        texts = [bytes(chance.choices([0, 97, 98, 255], k=length)) for _ in range(300)]
        order = chance.choices(range(200), k=chance.choice([1, 2, 400]))
        series = pl.Series(texts[:200])
        columns = [
            series,
            series[3:5],
            series.sort(),
            series[order],
            pl.concat([series, pl.Series(texts[200:])]),
            pl.concat([pl.Series(texts[at : at + 3]) for at in range(0, 300, 3)]),
            pl.Series([*texts, None]),
            pl.Series([*texts, b"another length"]),
        ]
        for column in columns:
            values = column.to_list()
            levels = column_levels(column, KeyType.BINARY)
            for place in {0, len(values) // 2, len(values) - 1}:
                encoded = encode_value(values[place], KeyType.BINARY)
                bound = bound_words(encoded, [KeyType.BINARY], [pa.binary()])
                assert words_of_row(levels, place) == tuple(bound), values[place]


WIDTHS = [1, 8, 40, 64]


@pytest.mark.parametrize("seed", first_fast(50, range(200), slow=50))
def test_winners_are_those_of_plain_sorting(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(seed)
    rows = int(chance.choice([1, 2, 30, 300]))
    monkeypatch.setattr(winners_module, "SMALL_SORT_ROWS", int(chance.choice([0, 1000])))

    def drawn(bits: int) -> np.typing.NDArray[np.uint64]:
        high = 1 << int(chance.choice([bits, min(bits, 3)]))
        pool = chance.integers(0, high, 12, np.uint64, endpoint=False) if high < 1 << 64 else None
        if pool is None:
            pool = chance.integers(0, (1 << 64) - 1, 12, np.uint64, endpoint=True)
        return pool[chance.integers(0, 12, rows)]

    levels = [7, *(drawn(int(bits)) for bits in chance.choice(WIDTHS, chance.integers(0, 4)))]
    versions = drawn(int(chance.choice(WIDTHS)))
    tombstones = None if chance.random() < 0.3 else chance.random(rows) < 0.4

    def rank_of(row: int) -> tuple[int, bool]:
        return int(versions[row]), bool(tombstones is not None and tombstones[row])

    groups: dict[tuple[int, ...], list[int]] = {}
    for row in range(rows):
        groups.setdefault(words_of_row(levels, row), []).append(row)
    found = winners(levels, versions, tombstones)
    assert len(found.row) == len(groups)
    level_with: dict[int, set[int]] = {}
    for row, group in zip(found.tied.tolist(), found.group.tolist(), strict=True):
        level_with.setdefault(group, set()).add(row)
    for place, wanted in enumerate(sorted(groups)):
        best = max(map(rank_of, groups[wanted]))
        tied = {row for row in groups[wanted] if rank_of(row) == best}
        assert int(found.row[place]) in tied
        assert level_with.get(place, set()) == (tied if len(tied) > 1 else set())


@pytest.mark.parametrize("runs", [1, RUNS_MAX, RUNS_MAX + 1, 1000])
def test_numbers_in_any_number_of_runs_are_sorted(runs: int) -> None:
    chance = np.random.default_rng(runs)
    numbers = chance.integers(0, (1 << 64) - 1, 5000, np.uint64, endpoint=True)
    numbers[:100] = numbers[100:200]
    numbers = np.concatenate([np.sort(part) for part in np.array_split(numbers, runs)])
    wanted = sorted(numbers.tolist())
    found = sorted_words(numbers)
    assert found.tolist() == wanted
    found >>= np.uint64(1)  # The caller changes the numbers.
    assert found.dtype == np.uint64


@pytest.mark.parametrize(("length", "factor"), [(10, 1.0), (8192, 1.5)])
def test_a_row_group_of_long_rows_counts_half_as_much_again(
    tmp_path: Path, length: int, factor: float
) -> None:
    table = pa.table({"k": list(range(100)), "text": ["x" * length + str(n) for n in range(100)]})
    path = tmp_path / "texts.parquet"
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    metadata = pq.read_metadata(path)
    (group,) = row_groups_of(0, metadata, table.schema, ["k"])
    # A word of the key, and a view of the text.
    plain = metadata.row_group(0).total_byte_size + (8 + 16) * 100
    assert group.size_bytes == int(plain * factor)
