"""The native merge gives what the row rules say, however files, ranges and passes are cut."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import MemoryShortError
from common.metadata.changes.attempts import may_hold_dropped_key
from common.model.key_values import KeyType
from common.model.keys import encode_value
from common.model.request import KeyRange, Request, TransformKind, TransformSpec
from common.model.table import Table
from common.rows.key_encoding import encode_keys
from common.rows.merge import merge_tables, scan_tables
from common.rows.rules import RowRules
from common.rows.schema import arrow_schema
from common.spi.planner import DELETED, TransformContext
from common.wire import OutsideFile
from compactor.rewrite import attempt, memory_budget, outputs, parallel_column_writer, transform
from compactor.rewrite.attempt_folder import read_change_counts
from compactor.rewrite.kernel import (
    range_merge,
    reader,
)
from compactor.rewrite.kernel.normalized_keys import UnsupportedRowsError
from compactor.rewrite.kernel.winners import known_to_polars
from compactor.rewrite.merge import driver, io, tasks
from compactor.rewrite.merge.driver import merge_large_job
from compactor.rewrite.merge.tasks import merge_small_job
from compactor.rewrite.outputs import TaskResult
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from compactor.rewrite.transform import (
    read_expression_inputs,
    store_plugin_values,
    write_values,
)
from compactor.rewrite.verify import verify
from tests.property.test_rows_merge import (
    NOW_S,
    assert_within,
    draw_drop,
    draw_row,
    draw_rules,
    texts,
)
from tests.support.assignments import an_assignment
from tests.support.fast_and_slow import first_fast
from tests.support.layouts import layout_of_file
from tests.support.misordered import last_first, misordered
from tests.support.tables_on_disk import (
    assignment_over,
    inspected,
    keyed_table,
    read_output,
    settings,
)


@dataclass(frozen=True)
class Life:
    """One table with files, drawn from a seed."""

    table: Table
    paths: tuple[str, ...]
    parts: tuple[pa.Table, ...]
    """The rows of each file, in its order."""

    @property
    def rows(self) -> pa.Table:
        return pa.concat_tables(self.parts, promote_options="default")


def keyed_by(rules: RowRules, folder: Path, **more: Any) -> Table:
    """Return a table in a folder with these rules and further settings."""
    return Table(
        id="table-1",
        name="events",
        location=folder.as_uri(),
        schema=rules.schema,
        key=rules.key,
        version_column=rules.version_column,
        tombstone_column=rules.tombstone_column,
        time_column=rules.time_column,
        settings=settings(ttl_s=rules.ttl_s, **more),
    )


def draw_life(chance: random.Random, folder: Path) -> Life:
    rules = draw_rules(chance)
    own = {"row_group_bytes": chance.choice([200, 1 << 20])}
    table = keyed_by(rules, folder, keep_deleted_rows=chance.random() < 0.5, **own)
    schema = arrow_schema(rules.schema)
    paths, known = [], []
    for at in range(chance.randint(1, 5)):
        drawn = [dict(draw_row(chance, rules)) for _ in range(chance.choice([0, 1, 7, 40]))]
        rows = pa.Table.from_pylist(drawn, schema)
        known.append(rows)
        if chance.random() < 0.6:
            order = [(name, "ascending") for name in rules.key]
            rows = rows.sort_by(order) if rows.num_rows else rows
        if chance.random() < 0.2:
            rows = rows.drop_columns(["payload"])
        known[-1] = rows
        paths.append(f"{at}.parquet")
        stated = chance.random() < 0.8
        pq.write_table(
            rows,
            folder / paths[-1],
            row_group_size=chance.choice([1, 3, 20]),
            write_statistics=stated,
            compression=chance.choice(["zstd", "zstd", "snappy"]),
            use_dictionary=chance.random() < 0.5,
            data_page_size=chance.choice([1, 100, 1 << 20]),
            write_batch_size=chance.choice([1, 3, 1024]),
            write_page_index=chance.random() < 0.5,
        )
        if chance.random() < 0.3:
            content = pa.py_buffer((folder / paths[-1]).read_bytes())
            (folder / paths[-1]).write_bytes(misordered(content, last_first))
    return Life(table, tuple(paths), tuple(known))


def squeeze(chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have bounds so small that every way of the kernel is taken."""
    monkeypatch.setattr(range_merge, "STEP_ROWS_MIN", 1)
    monkeypatch.setattr(range_merge, "FULL_BYTES", chance.choice([0, 1 << 30]))
    monkeypatch.setattr(range_merge, "STEP_ROWS_MAX", chance.choice([1, 5, 50]))
    monkeypatch.setattr(driver, "HELD_BYTES_MAX", chance.choice([0, 500, 1 << 30]))
    monkeypatch.setattr(driver, "BUNDLE_BYTES", chance.choice([1, 400]))
    monkeypatch.setattr(driver, "FAN_IN_MAX", 2)
    monkeypatch.setattr(driver, "SHORT_RUNS_MAX", chance.choice([0, 1 << 30]))
    monkeypatch.setattr(memory_budget, "AT_ONCE_FACTOR", chance.choice([1, 1 << 40]))
    monkeypatch.setattr(driver, "BLOCK_BYTES_MIN", chance.choice([1, 200, 1 << 20]))
    monkeypatch.setattr(driver, "BLOCK_BYTES_MAX", chance.choice([1, 200, 1 << 20]))
    monkeypatch.setattr(driver, "REPEATED_MAX", chance.choice([1.0, 2.0, 100.0]))
    monkeypatch.setattr(io, "PREFETCH_BYTES_MAX", chance.choice([0, 500, 1 << 30]))
    monkeypatch.setattr(outputs, "PARALLEL_BYTES_MIN", chance.choice([0, 1 << 30]))
    monkeypatch.setattr(parallel_column_writer, "UNIT_BYTES", chance.choice([1, 1 << 30]))
    monkeypatch.setattr(driver, "SAMPLED_GROUPS", chance.choice([0, 1, 5]))
    monkeypatch.setattr(driver, "RUN_BYTES_MIN", chance.choice([0, 100]))
    monkeypatch.setattr(driver, "worth_copying", lambda *_: True)
    monkeypatch.setattr(reader, "EXCERPT_BYTES_MIN", chance.choice([0, 1 << 30]))


def here(calls: Sequence[Any]) -> list[Any]:
    """Run tasks in this process; they and their results cross as they do in Spark."""
    ended = [call() for call in pickle.loads(pickle.dumps(calls))]
    return list(pickle.loads(pickle.dumps(ended)))


def output_table(life: Life, result: TaskResult) -> pa.Table:
    schema = arrow_schema(life.table.schema)
    parts = [read_output(life.table, file.path) for file in result.files]
    return pa.concat_tables(parts) if parts else schema.empty_table()


@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize("seed", first_fast(5, range(150), slow=5))
def test_files_merge_like_the_general_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, ranged: bool
) -> None:
    chance = random.Random(seed)
    (tmp_path / "progress").mkdir()
    (tmp_path / "table").mkdir()
    life = draw_life(chance, tmp_path / "table")
    rules = RowRules.of(life.table)
    drop = draw_drop(chance, rules)
    squeeze(chance, monkeypatch)
    more = {"settled": drop.settled, "outside": drop.outside} if drop else {}
    assignment = assignment_over(life.table, life.paths, now_s=NOW_S, **more)
    plan = make_plan(assignment, str(tmp_path / "progress"))
    assert attempt.kernel_supports(plan.rules)
    held, step = chance.choice([0, 500, 1 << 30]), chance.choice([1, 1000, 1 << 24])
    plan = replace(plan, memory=replace(plan.memory, held_bytes=held, step_bytes=step))
    cores = chance.randint(1, 8)
    result = merge_large_job(plan, here, cores) if ranged else merge_small_job(plan)
    assert isinstance(result, TaskResult)

    wanted = merge_tables([life.rows], rules, NOW_S, plan.rules.drop)
    assert texts(output_table(life, result)) == texts(wanted.table)
    assert result.counts == wanted.counts
    assert_within(result.dropped, wanted.dropped)
    verified = verify(plan, result, lambda: False)
    for file in result.files:
        assert layout_of_file(tmp_path / "table" / file.path).fault is None
    # What tasks say of their files is what a reader of every byte finds.
    slowly = TaskResult(counts=result.counts, dropped=result.dropped, files=result.files)
    assert verify(plan, slowly, lambda: False) == verified


DELETIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "payload = 1": lambda row: row["payload"] == 1,
    "payload is null": lambda row: row["payload"] is None,
    "payload not in (1, 7)": lambda row: row["payload"] == 2,
    "payload between 2 and 3 or payload is null": lambda row: row["payload"] != 1,
    "not (payload > 1.5) and not t": lambda row: row["payload"] == 1 and row["t"] is False,
    "v is null or t is null": lambda row: row["v"] is None or row["t"] is None,
    "payload = 9": lambda row: False,
}


def negated(row: dict[str, Any]) -> Any:
    return None if row["payload"] is None else -row["payload"]


ASSIGNMENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "payload = 2": lambda row: 2,
    "payload = null": lambda row: None,
    "payload = -payload": negated,
    "payload = case when payload = 1 then 2 else payload end": lambda row: (
        2 if row["payload"] == 1 else row["payload"]
    ),
    "payload = coalesce(payload, 1)": lambda row: 1 if row["payload"] is None else row["payload"],
}


def transformed(row: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a row that a transform has changed, or the same row."""
    if row["t"]:
        return row
    if text in ASSIGNMENTS:
        return row | {"payload": ASSIGNMENTS[text](row)}
    return row | {"t": True, "payload": None} if DELETIONS[text](row) else row


def draw_range(chance: random.Random, life: Life) -> KeyRange:
    rules = RowRules.of(life.table)
    keys = sorted(encode_keys(life.rows, rules.key, rules.key_types).to_pylist()) or [b"\x01"]
    ends = sorted(chance.choice([*keys, None]) or b"" for _ in range(2))
    return KeyRange(*(end or None for end in ends)) if chance.random() < 0.6 else KeyRange()


def draw_request(chance: random.Random, life: Life) -> Request:
    text = chance.choice([*DELETIONS, *ASSIGNMENTS])
    kind = TransformKind.SET if text in ASSIGNMENTS else TransformKind.DELETE_WHERE
    spec = TransformSpec(kind=kind, text=text)
    return Request(id="request-1", table="table-1", transform=spec, range=draw_range(chance, life))


def draw_plan(chance: random.Random, folder: Path, life: Life, request: Request) -> RewritePlan:
    """Return the plan of a job of which some inputs are results of the request."""
    drop = draw_drop(chance, RowRules.of(life.table))
    files = tuple(
        replace(file, request=request.id if chance.random() < 0.2 else None)
        for file in inspected(life.table, life.paths)
    )
    more = {"settled": drop.settled, "outside": drop.outside} if drop else {}
    assignment = an_assignment(files, table=life.table, request=request, now_s=NOW_S, **more)
    plan = make_plan(assignment, str(folder))
    held, step = chance.choice([0, 500, 1 << 30]), chance.choice([1, 1000, 1 << 24])
    return replace(plan, memory=replace(plan.memory, held_bytes=held, step_bytes=step))


def wanted_rows(life: Life, request: Request, inputs: Set[int]) -> tuple[list[pa.Table], int]:
    """Return the rows of each file after the request, and how many of them it affects."""
    rules, text, tables, affected = RowRules.of(life.table), request.transform.text, [], 0
    for at, part in enumerate(life.parts):
        keys = encode_keys(part, rules.key, rules.key_types).to_pylist()
        rows = [{"payload": None} | row for row in part.to_pylist()]
        changed = [
            transformed(row, text) if at in inputs and request.range.holds(key) else row
            for row, key in zip(rows, keys, strict=True)
        ]
        affected += sum(one is not other for one, other in zip(rows, changed, strict=True))
        tables.append(pa.Table.from_pylist(changed, arrow_schema(life.table.schema)))
    return tables, affected


def spark_answers(plan: RewritePlan, text: str) -> list[pa.RecordBatch]:
    """Return what Spark would answer for all inputs, in small batches."""
    batches, value_of = [], (DELETIONS | ASSIGNMENTS)[text]
    for asked in read_expression_inputs(plan, range(len(plan.inputs.paths))):
        answers = []
        for row in asked.to_pylist():
            at, number = row["neve_input"], row["neve_row"]
            value = value_of({"payload": None} | row) if number >= 0 else None
            if text in ASSIGNMENTS or value or number < 0:
                answers.append({"input": at, "row": number, "a0": value})
        kind = pa.int8() if text in ASSIGNMENTS else pa.bool_()
        types = {"input": pa.int32(), "row": pa.int64(), "a0": kind}
        whole = pa.RecordBatch.from_pylist(answers, pa.schema(list(types.items())))
        batches += [whole.slice(begin, 3) for begin in range(0, whole.num_rows, 3)]
    return batches


class Installed:
    """A plug-in that does what a text says, and notes the rows that it sees."""

    def __init__(self, text: str) -> None:
        self.text, self.seen = text, list[dict[str, Any]]()

    def apply(self, rows: pa.Table, context: TransformContext) -> pa.Table:
        assert context.request == "request-1"
        self.seen += (given := rows.to_pylist())
        if self.text in DELETIONS:
            gone = [bool(DELETIONS[self.text](row)) for row in given]
            return rows.append_column(DELETED, pa.array(gone, pa.bool_()))
        at = rows.schema.get_field_index("payload")
        values = [ASSIGNMENTS[self.text](row) for row in given]
        return rows.set_column(at, "payload", pa.array(values, rows.schema.field(at).type))


def store_values(chance: random.Random, plan: RewritePlan, life: Life, request: Request) -> None:
    """Store the values of a transform, as Spark or a plug-in gives them."""
    transform, numbers = plan.rules.transform, list(range(len(life.parts)))
    assert transform is not None
    if transform.asks_spark:
        write_values(plan, spark_answers(plan, request.transform.text))
        return
    rules, (plugin,) = RowRules.of(life.table), PLUGINS
    chance.shuffle(numbers)
    for at in numbers:
        plugin.seen.clear()
        store_plugin_values(plan, [at])
        part = life.parts[at]
        keys = encode_keys(part, rules.key, rules.key_types).to_pylist()
        meant = [
            {"payload": None} | row
            for row, key in zip(part.to_pylist(), keys, strict=True)
            if at in transform.inputs and request.range.holds(key) and not row["t"]
        ]
        assert plain_rows(plugin.seen) == plain_rows(meant), "each row once, in order"


def plain_rows(rows: list[dict[str, Any]]) -> list[str]:
    return [repr(sorted(row.items())) for row in rows]


PLUGINS: list[Installed] = []


@pytest.mark.parametrize("ranged", [False, True])
@pytest.mark.parametrize("seed", first_fast(5, range(150), slow=5))
def test_transforms_change_each_row_once_before_it_is_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, ranged: bool
) -> None:
    chance = random.Random(seed)
    (tmp_path / "progress").mkdir()
    (tmp_path / "table").mkdir()
    life = draw_life(chance, tmp_path / "table")
    squeeze(chance, monkeypatch)
    request, by = draw_request(chance, life), chance.choice(["kernel", "spark", "plug-in"])
    sent, text = request, request.transform.text
    if by == "plug-in":
        PLUGINS[:] = [Installed(text)]
        monkeypatch.setattr(transform, "load_transform", lambda _: PLUGINS[0])
        sent = replace(request, transform=TransformSpec(kind=TransformKind.PLUGIN, name="mine"))
    plan = draw_plan(chance, tmp_path / "progress", life, sent)
    assert attempt.kernel_supports(plan.rules)
    if plan.rules.transform is not None and by != "kernel":
        rows = chance.choice([1, 3, 1 << 20])
        read = partial(few_rows, transform.read_tables, rows)
        monkeypatch.setattr(transform, "read_tables", read)
        plan = attempt.without_native(plan)
        store_values(chance, plan, life, request)
    result = merge_large_job(plan, here, 4) if ranged else merge_small_job(plan)
    assert isinstance(result, TaskResult)

    inputs = plan.rules.transform.inputs if plan.rules.transform else frozenset()
    tables, affected = wanted_rows(life, request, inputs)
    wanted = merge_tables(tables, RowRules.of(life.table), NOW_S, plan.rules.drop)
    assert texts(output_table(life, result)) == texts(wanted.table)
    stored_counts, kind = read_change_counts(plan.folder), changed_or_deleted(text)
    assert result.counts == replace(wanted.counts, **{} if by == "plug-in" else {kind: affected})
    assert getattr(stored_counts, kind) == (affected if by == "plug-in" else 0)
    assert_within(result.dropped, wanted.dropped)
    verify(plan, result, lambda: False)


def changed_or_deleted(text: str) -> str:
    return "changed" if text in ASSIGNMENTS else "deleted"


def few_rows(
    read: Callable[..., Iterator[pa.Table]], rows: int, location: Any, path: str, _: int,
    *names: Any, **more: Any,
) -> Iterator[pa.Table]:  # fmt: skip
    return read(location, path, rows, *names, **more)


def draw_small_files(chance: random.Random, folder: Path) -> Life:
    """Return a table of files that are small, plain, and read together."""
    rules = draw_rules(chance)
    table = keyed_by(rules, folder, keep_deleted_rows=chance.random() < 0.5)
    schema = arrow_schema(rules.schema)
    paths, parts = [], []
    for at in range(chance.randint(2, 12)):
        drawn = [dict(draw_row(chance, rules)) for _ in range(chance.choice([1, 7, 40]))]
        parts.append(pa.Table.from_pylist(drawn, schema))
        paths.append(f"{at}.parquet")
        pq.write_table(parts[-1], folder / paths[-1], compression="zstd")
    return Life(table, tuple(paths), tuple(parts))


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("seed", first_fast(2, range(150), slow=2))
def test_small_files_in_memory_merge_like_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, changed: bool
) -> None:
    chance = random.Random(seed)
    for name in ("progress", "table"):
        (tmp_path / name).mkdir()
    life = draw_small_files(chance, tmp_path / "table")
    monkeypatch.setattr(driver, "SHORT_RUNS_MAX", 1)
    monkeypatch.setattr(range_merge, "STEP_ROWS_MIN", 1)
    monkeypatch.setattr(range_merge, "STEP_ROWS_MAX", chance.choice([1, 5, 1 << 18]))
    monkeypatch.setattr(tasks, "BATCH_FILES_MAX", chance.choice([1, 3, 64]))
    if changed:
        plan = draw_plan(chance, tmp_path / "progress", life, draw_request(chance, life))
    else:
        drop = draw_drop(chance, RowRules.of(life.table))
        more = {"settled": drop.settled, "outside": drop.outside} if drop else {}
        assignment = assignment_over(life.table, life.paths, now_s=NOW_S, **more)
        plan = make_plan(assignment, str(tmp_path / "progress"))
    plan = replace(plan, inputs=replace(plan.inputs, clean={}))
    plan = replace(plan, memory=replace(plan.memory, held_bytes=1 << 30))
    ways: list[str] = []

    def noted(calls: Sequence[Any]) -> list[Any]:
        ways.extend(call.func.__name__ for call in calls)
        return here(calls)

    whole = merge_large_job(plan, noted, 2)
    in_memory = output_table(life, whole)
    verify(plan, whole, lambda: False)
    for path in plan.output.paths:
        (tmp_path / "table" / path).unlink(missing_ok=True)
    little = replace(plan, memory=replace(plan.memory, held_bytes=0))
    stepwise = merge_large_job(little, noted, 2)

    # Other types are decoded by Arrow, one file at a time.
    assert (ways[0] == "merge_in_memory") == all(map(known_to_polars, plan.rules.schema.types))
    assert "merge_in_memory" not in ways[1:]
    assert texts(in_memory) == texts(output_table(life, stepwise))
    assert whole.counts == stepwise.counts
    assert (whole.dropped is None) == (stepwise.dropped is None)


@pytest.mark.parametrize("why", ["bytes", "keys"])
def test_files_that_are_larger_than_estimated_are_merged_in_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Footers may understate sizes, and a step of few keys cannot be divided."""
    monkeypatch.setattr(driver, "SHORT_RUNS_MAX", 1)
    parts = [pa.table({"k": [at % 2] * 60, "v": list(range(60))}) for at in range(4)]
    plan = simple_plan(tmp_path, *parts)
    plan = replace(plan, inputs=replace(plan.inputs, clean={}))
    if why == "keys":
        monkeypatch.setattr(range_merge, "ROWS_MAX", 100)
    else:
        little = [replace(group, size_bytes=1) for group in plan.inputs.row_groups]
        memory = replace(plan.memory, held_bytes=2000)
        inputs = replace(plan.inputs, row_groups=tuple(little))
        plan = replace(plan, inputs=inputs, memory=memory)
    ways: list[str] = []

    def noted(calls: Sequence[Any]) -> list[Any]:
        ways.extend(call.func.__name__ for call in calls)
        return here(calls)

    result = merge_large_job(plan, noted, 2)
    assert ways[0] == "merge_in_memory"
    assert len(ways) > 1
    assert (result.counts.rows_in, result.counts.rows_out) == (240, 2)
    assert result.counts.superseded == 238
    verify(plan, result, lambda: False)


def test_a_column_that_must_not_be_null_gets_its_values_in_the_kernel(tmp_path: Path) -> None:
    for name in ("progress", "table"):
        (tmp_path / name).mkdir()
    fields = [pa.field(name, pa.int64()) for name in ("k", "v")]
    schema = pa.schema([*fields, pa.field("x", pa.float64(), nullable=False)])
    for at in range(2):
        rows = pa.table([list(range(at, at + 10)), [at] * 10, [0.5] * 10], schema=schema)
        pq.write_table(rows, tmp_path / "table" / f"{at}.parquet")
    table = keyed_table(
        tmp_path / "table", schema, key=("k",), tombstone_column=None, time_column=None
    )
    spec = TransformSpec(kind=TransformKind.SET, text="x = x + 1")
    request = Request(id="request-1", table=table.id, transform=spec)
    files = inspected(table, ["0.parquet", "1.parquet"])
    assignment = an_assignment(files, table=table, request=request, now_s=NOW_S)
    result = merge_small_job(make_plan(assignment, str(tmp_path / "progress")))

    assert isinstance(result, TaskResult), "the kernel leaves the job to Spark"
    assert (result.counts.rows_out, result.counts.changed) == (11, 20)


def simple_plan(folder: Path, *parts: pa.Table, **options: Any) -> RewritePlan:
    """Return the plan of a table with key k and version v over these files."""
    for name in ("progress", "table"):
        (folder / name).mkdir()
    paths = [f"{at}.parquet" for at in range(len(parts))]
    for path, rows in zip(paths, parts, strict=True):
        pq.write_table(rows, folder / "table" / path, **options)
    table = keyed_table(
        folder / "table", parts[0].schema, key=("k",), tombstone_column=None, time_column=None
    )
    return make_plan(assignment_over(table, paths, now_s=NOW_S), str(folder / "progress"))


@pytest.mark.parametrize("cores", [1, 4])
def test_a_merge_beside_does_not_meet_what_was_dropped(tmp_path: Path, cores: int) -> None:
    """Of keys 0 to 9 and 90 to 99 all rows go; another job makes a file of older ones between."""
    for name in ("progress", "table"):
        (tmp_path / name).mkdir()
    keys = [*range(10), *range(90, 100)]
    ends = pa.table({"k": keys, "v": [7] * 20, "dead": [True] * 20})
    middle = pa.table({"k": list(range(40, 61)), "v": [1] * 21, "dead": [False] * 21})
    for path, rows in (("ends", ends), ("middle", middle)):
        pq.write_table(rows, tmp_path / "table" / path, row_group_size=5)
    table = keyed_table(tmp_path / "table", ends.schema, key=("k",), time_column=None)
    (beside,) = inspected(table, ["middle"])
    assert beside.key_min is not None
    known = OutsideFile(
        path=beside.path,
        key_min=beside.key_min,
        key_max=beside.key_max,
        version_min=beside.version_min,
    )
    more = {"settled": encode_value(7, KeyType.INT), "outside": (known,)}
    assignment = assignment_over(table, ["ends"], now_s=NOW_S, **more)
    plan = make_plan(assignment, str(tmp_path / "progress"))
    result = merge_large_job(plan, here, cores)
    assert (result.counts.rows_out, result.counts.tombstones_dropped) == (0, 20)
    assert result.dropped is not None
    output = replace(beside, path="made-of-middle")
    assert not may_hold_dropped_key(output, result.dropped)
    assert may_hold_dropped_key(
        replace(output, key_min=encode_value(9, KeyType.INT)), result.dropped
    )


@pytest.mark.parametrize("cores", [1, 4])
def test_statistics_that_are_wrong_are_found_and_not_believed(tmp_path: Path, cores: int) -> None:
    """A footer that hides half of the keys from one of two ranges, or from the one task."""
    rows = pa.table({"k": list(range(100)), "v": [1] * 100})
    newer = rows.set_column(1, "v", pa.array([2] * 100))
    plan = simple_plan(tmp_path, rows, newer, row_group_size=10)
    groups = [
        replace(row_group, high=row_group.low) if row_group.input else row_group
        for row_group in plan.inputs.row_groups
    ]
    assert plan.inputs.row_groups != tuple(groups)
    turns: list[int] = []

    def run_tasks(calls: Sequence[Any]) -> list[Any]:
        turns.append(len(calls))
        return here(calls)

    result = merge_large_job(
        replace(plan, inputs=replace(plan.inputs, row_groups=tuple(groups))), run_tasks, cores
    )
    assert len(turns) == 2
    assert (result.counts.rows_in, result.counts.superseded) == (200, 100)
    verify(plan, result, lambda: False)


def test_keys_too_long_for_words_go_the_general_way(tmp_path: Path) -> None:
    rows = pa.table({"k": ["x" * 70, "x" * 69 + "y"], "v": [1, 1]})
    plan = simple_plan(tmp_path, rows)
    with pytest.raises(UnsupportedRowsError):
        merge_large_job(plan, here, 2)
    assert list((tmp_path / "table").glob("_neve/**/*.parquet")) == []
    small = merge_small_job(plan)
    assert isinstance(small, TaskResult)
    assert small.counts.rows_out == 2


def test_many_versions_of_one_key_are_merged_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_merge, "ROWS_MAX", 40)
    parts = [pa.table({"k": [7] * 90, "v": list(range(at, at + 90))}) for at in range(3)]
    plan = simple_plan(tmp_path, *parts, row_group_size=30)
    result = merge_large_job(plan, here, 1)
    assert (result.counts.rows_in, result.counts.rows_out) == (270, 1)
    (file,) = result.files
    assert pq.read_table(tmp_path / "table" / file.path).to_pylist() == [{"k": 7, "v": 91}]


@pytest.mark.parametrize("passes", [False, True])
@pytest.mark.parametrize("settled", [100, 200])
def test_of_many_deletes_of_one_key_the_newest_keeps_the_newest_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: int, passes: bool
) -> None:
    """In portions, or in runs of several passes; there, older deletes must not take the row."""
    monkeypatch.setattr(range_merge, "ROWS_MAX", 40)
    if passes:
        monkeypatch.setattr(driver, "HELD_BYTES_MAX", 0)
        monkeypatch.setattr(driver, "BUNDLE_BYTES", 400)
    for name in ("progress", "table"):
        (tmp_path / name).mkdir()
    paths = [f"{at}.parquet" for at in range(4)]
    for at, path in enumerate(paths):
        versions = list(range(30 * at, 30 * at + 30))
        dead = [version > 50 for version in versions]
        rows = pa.table({"k": [7] * 30, "v": versions, "dead": dead})
        pq.write_table(rows, tmp_path / "table" / path, row_group_size=10)
    table = keyed_table(
        tmp_path / "table",
        rows.schema,
        key=("k",),
        time_column=None,
        settings=settings(keep_deleted_rows=True),
    )
    assignment = assignment_over(table, paths, settled=encode_value(settled, KeyType.INT))
    plan = make_plan(assignment, str(tmp_path / "progress"))
    result = merge_large_job(plan, here, 1)
    verify(plan, result, lambda: False)
    found = [row for file in result.files for row in read_output(table, file.path).to_pylist()]
    young = [{"k": 7, "v": 119, "dead": True}, {"k": 7, "v": 50, "dead": False}]
    assert found == (young if settled < 119 else [])
    assert result.counts.superseded == (118 if settled < 119 else 119)


def test_more_small_files_than_a_step_can_number_are_merged_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_merge, "ROWS_MAX", 40)
    monkeypatch.setattr(tasks, "ROWS_MAX", 40)
    monkeypatch.setattr(range_merge, "STEP_ROWS_MAX", 20)
    monkeypatch.setattr(driver, "HELD_BYTES_MAX", 0)
    keys = [list(range(at, 200, 7)) for at in range(7)]
    parts = [pa.table({"k": key, "v": [1] * len(key)}) for key in keys]
    plan = simple_plan(tmp_path, *parts)
    assert sorted(plan.inputs.small) == list(range(7))
    result = merge_large_job(plan, here, 1)
    assert (result.counts.rows_in, result.counts.rows_out) == (200, 200)
    (file,) = result.files
    assert pq.read_table(tmp_path / "table" / file.path)["k"].to_pylist() == list(range(200))


@pytest.mark.parametrize("seed", first_fast(5, range(40), slow=10))
def test_any_order_and_grouping_of_compactions_shows_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A random life of a tablet: some files are compacted, the result joins the others."""
    chance = random.Random(seed)
    (tmp_path / "table").mkdir()
    life = draw_life(chance, tmp_path / "table")
    rules = RowRules.of(life.table)
    squeeze(chance, monkeypatch)
    files = list(life.paths)
    for turn in range(3):
        chosen = chance.sample(files, chance.randint(1, len(files)))
        left = [path for path in files if path not in chosen]
        (tmp_path / f"progress-{turn}").mkdir()
        assignment = an_assignment(
            inspected(life.table, chosen),
            table=life.table,
            now_s=NOW_S,
            attempt=f"attempt-{turn}",
            outside=tuple(
                OutsideFile(
                    path=file.path,
                    key_min=file.key_min,
                    key_max=file.key_max,
                    version_min=file.version_min,
                )
                for file in inspected(life.table, left)
            ),
            settled=b"\xff",
        )
        plan = make_plan(assignment, str(tmp_path / f"progress-{turn}"))
        result = merge_large_job(plan, here, chance.randint(1, 6))
        verify(plan, result, lambda: False)
        files = left + [file.path for file in result.files]
        if not files:
            break
    rows = [read_output(life.table, path) for path in files]
    shown = scan_tables(rows, rules, NOW_S)
    assert texts(shown) == texts(scan_tables([life.rows], rules, NOW_S))


def test_a_merge_that_cannot_fit_is_refused_before_it_starts(tmp_path: Path) -> None:
    rows = pa.table({"k": range(1000), "v": range(1000)})
    plan = simple_plan(tmp_path, rows, rows)
    small = replace(plan.memory, task_bytes=1, halvings=3)
    with pytest.raises(
        MemoryShortError, match=r"a task needs \d+ MB; a task may have 0 MB, divided"
    ):
        merge_large_job(replace(plan, memory=small), no_tasks, 2)
    assert merge_large_job(plan, here, 2).counts.rows_out == 1000


def no_tasks(calls: Sequence[Any]) -> list[Any]:
    raise AssertionError(f"{len(calls)} tasks were run")
