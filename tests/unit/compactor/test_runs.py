"""Runs are read as they were written, block by block; steps are cut evenly."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

from common.errors import InputError
from common.model.key_values import KeyType
from common.rows.key_encoding import encode_keys
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from compactor.rewrite.kernel.normalized_keys import rows_before
from compactor.rewrite.kernel.winners import DecodedRows, RowLayout, RowSlice, step_cuts
from compactor.rewrite.merge.io import (
    RunBlock,
    RunReader,
    RunWriter,
    groups_of_run,
)


def a_table(rows: int) -> pa.Table:
    return pa.table(
        {
            "k": [f"key {at:06}" for at in range(rows)],
            "v": pa.array(range(rows), pa.int64()),
            "text": [None if at % 7 == 0 else "x" * (at % 50) for at in range(rows)],
            "flag": [at % 3 == 0 for at in range(rows)],
            "price": pa.array([Decimal(at) / 100 for at in range(rows)], pa.decimal128(10, 2)),
            "at": pa.array(range(rows), pa.timestamp("us", "UTC")),
            "tags": [[f"tag {n}" for n in range(at % 4)] for at in range(rows)],
        }
    )


def a_layout(schema: pa.Schema) -> RowLayout:
    rules = RowRules(schema=columns_of(schema), key=("k",), version_column="v")
    return RowLayout(schema, rules)


def written(path: Path, table: pa.Table, step_rows: int, block_bytes: int) -> tuple[RunBlock, ...]:
    with path.open("xb") as sink:
        rows = RunWriter(sink, a_layout(table.schema), block_bytes)
        for at in range(0, table.num_rows, step_rows):
            rows.write(table.slice(at, step_rows))
        return rows.close()


def table_of(held: DecodedRows, schema: pa.Schema) -> pa.Table:
    columns = dict(zip(held.frame.columns, held.frame.to_arrow().columns, strict=True))
    if held.rest is not None:
        columns |= dict(zip(held.rest.column_names, held.rest.columns, strict=True))
    return pa.table([columns[field.name].cast(field.type) for field in schema], schema=schema)


@pytest.mark.parametrize("block_bytes", [1, 5_000, 1 << 30])
@pytest.mark.parametrize("step_rows", [1, 333, 1000])
def test_blocks_come_back_with_their_bounds(
    tmp_path: Path, step_rows: int, block_bytes: int
) -> None:
    table, path = a_table(300), tmp_path / "run"
    blocks = written(path, table, step_rows, block_bytes)
    layout = a_layout(table.schema)
    reader, found = RunReader(path, layout, blocks), []
    for group in groups_of_run(3, blocks):
        held = reader.read(group)
        rows = table_of(held, table.schema)
        keys = encode_keys(rows, ["k"], [KeyType.STRING])
        assert (group.low, group.high) == (keys[0].as_py(), keys[-1].as_py())
        assert (held.rows, group.input, group.start) == (group.rows, 3, sum(map(len, found)))
        assert group.size_bytes >= held.frame.estimated_size()
        found.append(rows)
    assert pa.concat_tables(found).equals(table)
    assert (len(blocks) == 1) == (block_bytes == 1 << 30)


def test_a_run_without_rows_has_no_blocks(tmp_path: Path) -> None:
    assert written(tmp_path / "run", a_table(1).slice(0, 0), 1, 1) == ()


def test_a_run_that_is_cut_off_says_which_it_is(tmp_path: Path) -> None:
    table, path = a_table(300), tmp_path / "run"
    blocks = written(path, table, 300, 1 << 30)
    path.write_bytes(path.read_bytes()[:-2000])
    reader = RunReader(path, a_layout(table.schema), blocks)
    with pytest.raises(InputError, match=r"run .*/run cannot be read"):
        reader.read(groups_of_run(0, blocks)[0])


@pytest.mark.parametrize(("files", "rows"), [(1, 20_000), (16, 3_000), (400, 50), (5_000, 3)])
def test_steps_are_of_about_the_wanted_size(files: int, rows: int) -> None:
    """However many files there are: also where a step has more rows than several of them."""
    chance, wanted = random.Random(files), 2_000
    slices = []
    for _ in range(files):
        keys = sorted(chance.sample(range(10**6), rows))
        table = pa.table({"k": keys, "v": [1] * rows})
        frame = pl.from_arrow(table)
        assert isinstance(frame, pl.DataFrame)
        slices.append(RowSlice(a_layout(table.schema).held(frame, None, by_key=True), 0, rows))
    total = files * rows
    cuts = step_cuts(slices, wanted, total)
    below = [
        sum(rows_before(slice_.held.levels, slice_.rows, cut, after=True) for slice_ in slices)
        for cut in cuts
    ]
    steps = [after - before for before, after in zip([0, *below], [*below, total], strict=True)]
    assert max(steps) < 3 * wanted
    assert len(steps) == -(-total // wanted)
