"""Verification finds every error that is planted between writing and reading back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import AttemptCancelledError, VerificationError
from common.model.key_values import KeyType
from common.model.keys import encode_key, encode_value
from common.model.outcome import RowCounts
from common.rows.row_facts import RowFacts
from common.rows.rules import RowRules
from compactor.rewrite import general_merge
from compactor.rewrite.file_io import table_location
from compactor.rewrite.kernel.reader import read_back
from compactor.rewrite.outputs import TaskResult, WrittenFile
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from compactor.rewrite.verify import verify
from tests.support.misordered import last_first, misordered
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    keyed_table,
    random_rows,
    settings,
    write_file,
)


def never() -> bool:
    return False


def rewritten(folder: Path, *, keyed: bool = True) -> tuple[RewritePlan, TaskResult, Path]:
    chance = random.Random(1)
    paths = [f"{n}.parquet" for n in range(3)]
    for path in paths:
        write_file(folder, path, pa.Table.from_pylist(random_rows(chance, 200), KEYED))
    kind = keyed_table if keyed else bag_table
    plan = make_plan(assignment_over(kind(folder, settings=settings(ttl_s=100.0)), paths))
    result = general_merge.rewrite_in_memory(plan) if keyed else general_merge.rewrite_bag(plan)
    return plan, result, folder / plan.output.paths[0]


def replaced(output: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write other rows in the place of an output, with its footer."""
    rows = pq.read_table(output)
    footer = pq.read_metadata(output).metadata
    ours = {name: value for name, value in footer.items() if name.startswith(b"neve.")}
    pq.write_table(change(rows).replace_schema_metadata(ours), output)


@pytest.mark.parametrize("keyed", [True, False])
def test_correct_outputs_pass_verification(tmp_path: Path, keyed: bool) -> None:
    plan, result, output = rewritten(tmp_path, keyed=keyed)
    ((size_bytes, facts),) = verify(plan, result, never)
    assert (size_bytes, facts.rows) == (output.stat().st_size, result.counts.rows_out)


PAIR = ({"k": 1, "v": 7, "dead": True}, {"k": 1, "v": 6, "dead": False})


@pytest.mark.parametrize(
    ("rows", "keeps", "settled", "passes"),
    [
        (PAIR, True, 6, True),
        (PAIR, True, None, True),
        (PAIR, False, 6, False),
        (PAIR, True, 7, False),
        (PAIR[::-1], True, 6, False),
        ((PAIR[0], PAIR[0]), True, 6, False),
        ((PAIR[1], PAIR[1]), True, 6, False),
        ((*PAIR, PAIR[1]), True, 6, False),
        ((PAIR[0], {**PAIR[1], "v": 8}), True, 6, False),
    ],
    ids=[
        *("a young delete and its row", "no delete is settled", "a table that keeps no row"),
        *("a settled delete", "the row first", "two deletes", "two rows", "a second row"),
        "a row newer than its delete",
    ],
)
@pytest.mark.parametrize("row_group_size", [1, 10])
def test_a_key_is_there_twice_only_as_a_young_delete_and_the_row_that_it_keeps(
    tmp_path: Path,
    rows: tuple[dict[str, object], ...],
    keeps: bool,
    settled: int | None,
    passes: bool,
    row_group_size: int,
) -> None:
    given = pa.Table.from_pylist([{"k": 0, "v": 1}, *rows, {"k": 2, "v": 1}], KEYED)
    write_file(tmp_path, "a.parquet", given, row_group_size=row_group_size)
    table = keyed_table(tmp_path, key=("k",), settings=settings(keep_deleted_rows=keeps))
    version = None if settled is None else encode_value(settled, KeyType.INT)
    plan = make_plan(assignment_over(table, ["a.parquet"], settled=version))
    footer = dict(plan.output.footer)
    output = tmp_path / plan.output.paths[0]
    output.parent.mkdir(parents=True)
    pq.write_table(given.replace_schema_metadata(footer), output, row_group_size=row_group_size)
    file = WrittenFile(0, plan.output.paths[0], given.num_rows)
    counts = RowCounts(rows_in=given.num_rows, rows_out=given.num_rows)
    result = TaskResult(counts=counts, dropped=None, files=(file,))
    rules, location = plan.rules, table_location(plan.location)
    ways: list[Callable[[], RowFacts]] = [
        lambda: read_back(location, file.path, rules.row_rules, rules.schema, rules.drop),
        lambda: verify(plan, result, never)[0][1],
    ]
    if passes:
        one, other = (way() for way in ways)
        assert one == other
        assert not one.clean, "its row groups are never copied"
        return
    for way in ways:
        with pytest.raises(VerificationError, match="in order, each once"):
            way()


@pytest.mark.parametrize("keyed", [True, False])
def test_rows_that_splitting_readers_would_miss(tmp_path: Path, keyed: bool) -> None:
    plan, result, output = rewritten(tmp_path, keyed=keyed)
    ((_, facts),) = verify(plan, result, never)
    output.write_bytes(misordered(pa.py_buffer(output.read_bytes()), last_first))
    for told in (None, (facts,)):  # What is read back here, and what tasks have read back.
        with pytest.raises(VerificationError, match="some readers would miss: column 1 of row"):
            verify(plan, replace(result, facts=told), never)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows.slice(1), "rows, but"),
        (lambda rows: pa.concat_tables([rows.slice(0, 1), rows]).slice(0, len(rows)), "in order"),
        (lambda rows: rows.take(pa.array([1, 0, *range(2, len(rows))])), "in order"),
        (lambda rows: rows.drop_columns(["x"]), "has columns"),
    ],
    ids=["lost row", "row twice", "rows swapped", "column lost"],
)
def test_planted_errors_in_rows(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], says: str
) -> None:
    plan, result, output = rewritten(tmp_path)
    replaced(output, change)
    with pytest.raises(VerificationError, match=says):
        verify(plan, result, never)


def test_a_changed_value_in_an_append_only_table(tmp_path: Path) -> None:
    plan, result, output = rewritten(tmp_path, keyed=False)
    replaced(output, lambda rows: rows.take(pa.array(range(len(rows) - 1, -1, -1))))
    verify(plan, result, never)  # Their order is nobody's concern.

    def one_changed(rows: pa.Table) -> pa.Table:
        values = [1 if v is None else v + 1 for v in rows.column("v").to_pylist()[:1]]
        changed = pa.chunked_array([values + rows.column("v").to_pylist()[1:]], pa.int64())
        return rows.set_column(rows.schema.get_field_index("v"), "v", changed)

    replaced(output, one_changed)
    with pytest.raises(VerificationError, match="hash to"):
        verify(plan, result, never)


def test_bytes_changed_on_the_way_to_disk(tmp_path: Path) -> None:
    plan, result, output = rewritten(tmp_path)
    group = pq.read_metadata(output).row_group(0)
    at = group.column(KEYED.get_field_index("x")).data_page_offset + 40
    data = bytearray(output.read_bytes())
    data[at] ^= 0xFF
    output.write_bytes(data)
    with pytest.raises(VerificationError, match="cannot be read back"):
        verify(plan, result, never)


def test_a_file_of_another_attempt_in_its_place(tmp_path: Path) -> None:
    plan, result, _ = rewritten(tmp_path)
    footer = tuple(
        (name, "x" if name == "neve.attempt" else value) for name, value in plan.output.footer
    )
    with pytest.raises(VerificationError, match=r"neve\.attempt"):
        verify(replace(plan, output=replace(plan.output, footer=footer)), result, never)


def test_a_lost_output_fails_verification(tmp_path: Path) -> None:
    plan, result, output = rewritten(tmp_path)
    output.unlink()
    with pytest.raises(VerificationError, match="cannot be read back"):
        verify(plan, result, never)


def test_rows_that_nobody_accounted_for(tmp_path: Path) -> None:
    plan, result, _ = rewritten(tmp_path)
    inputs = replace(plan.inputs, rows=plan.inputs.rows + 1)
    with pytest.raises(VerificationError, match="were accounted for"):
        verify(replace(plan, inputs=inputs), result, never)
    fewer = replace(result, counts=replace(result.counts, superseded=0))
    with pytest.raises(VerificationError, match="were accounted for"):
        verify(plan, fewer, never)


def test_an_output_that_the_counts_do_not_know(tmp_path: Path) -> None:
    plan, result, _ = rewritten(tmp_path)
    with pytest.raises(VerificationError, match="should have come out"):
        verify(plan, replace(result, files=()), never)


@pytest.mark.parametrize("side", ["start", "end"])
def test_keys_outside_of_the_tablet(tmp_path: Path, side: str) -> None:
    plan, result, _ = rewritten(tmp_path)
    middle = encode_key([20], RowRules.of(keyed_table(tmp_path)).key_types)
    with pytest.raises(VerificationError, match="outside its range"):
        verify(replace(plan, rules=replace(plan.rules, **{side: middle})), result, never)


def test_verification_can_be_cancelled(tmp_path: Path) -> None:
    plan, result, _ = rewritten(tmp_path)
    with pytest.raises(AttemptCancelledError):
        verify(plan, result, lambda: True)
