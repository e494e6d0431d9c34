"""Parts of the rewrite that need no Spark: streaming, carrying, writing, marks, own files."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import InputError, RewriteError, UnavailableError, VerificationError
from common.model.keys import encode_value
from common.model.outcome import DroppedRows
from common.parquet.location import open_location
from common.parquet.service_files import LocationOwner, write_owner
from common.primitives import Backoff
from common.rows.key_encoding import encode_keys
from common.rows.merge import Tally, merge_tables, sorted_rows
from common.rows.row_facts import row_hash
from common.rows.rules import DropRule, RowRules
from compactor import service
from compactor.rewrite import general_merge, outputs
from compactor.rewrite.attempt_folder import (
    MARK_INTERVAL_S,
    ProgressMark,
    read_marks,
)
from compactor.rewrite.general_merge import (
    from_spark_rows,
    merge_sorted,
    rewrite_in_memory,
    spark_schema,
    to_spark_rows,
)
from compactor.rewrite.merge.tasks import merge_small_job
from compactor.rewrite.outputs import TaskResult, open_output_writer
from compactor.rewrite.plan.rewrite_plan import RewritePlan, make_plan
from compactor.rewrite.verify import verify
from compactor.service import TRUSTED_S, TableStorage
from coordinator.plugins.planners.packing import key_between
from tests.support.predictable import ManualClock
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    keyed_table,
    random_rows,
    read_output,
    settings,
    write_file,
)

NOW_S = 1_000_000


def by_key(rows: pa.Table, rules: RowRules) -> pa.Table:
    return rows.take(pa.array(sorted_rows(rows, rules).row))


def hull(dropped: DroppedRows | None) -> DroppedRows | None:
    """Return what was dropped, with one range from the first key to the last."""
    if dropped is None:
        return None
    return replace(dropped, spans=((dropped.spans[0][0], dropped.spans[-1][1]),))


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_in_small_steps_merges_like_everything_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(general_merge, "STEP_BYTES", chance.choice([1, 2000, 10**9]))
    rules = RowRules.of(keyed_table(tmp_path, settings=settings(ttl_s=100.0)))
    rows = pa.Table.from_pylist(random_rows(chance, 300, keys=chance.choice([1, 5, 50])), KEYED)
    settled = encode_value(chance.randrange(6), rules.version_type)
    drop = DropRule(settled, keeps_deleted=chance.random() < 0.5)
    ordered = by_key(rows, rules)
    # Within a key the rows may come in any order.
    pieces, start = [], 0
    while start < len(ordered):
        size = chance.choice([1, 3, 40])
        pieces.append(ordered.slice(start, size))
        start += size
    tally = Tally()
    merged = pa.concat_tables(merge_sorted(iter(pieces), rules, NOW_S, drop, tally))

    wanted = merge_tables([rows], rules, NOW_S, drop)
    assert row_hash(merged).tolist() == row_hash(wanted.table).tolist()
    # Each step tells ranges of its own: together they lie in what is told of everything at once.
    assert (tally.counts, hull(tally.dropped)) == (wanted.counts, hull(wanted.dropped))


def test_a_stream_out_of_order_is_refused(tmp_path: Path) -> None:
    rules = RowRules.of(keyed_table(tmp_path))
    rows = pa.Table.from_pylist([{"k": 2, "v": 1}, {"k": 1, "v": 1}], KEYED)
    with pytest.raises(VerificationError, match="order"):
        list(merge_sorted([rows], rules, NOW_S, DropRule(None), Tally()))


def test_an_empty_stream_gives_nothing(tmp_path: Path) -> None:
    rules = RowRules.of(keyed_table(tmp_path))
    tally = Tally()
    assert list(merge_sorted([KEYED.empty_table()], rules, NOW_S, DropRule(None), tally)) == []
    assert tally == Tally()


def test_rows_are_carried_and_restored(tmp_path: Path) -> None:
    rows = pa.Table.from_pylist(random_rows(random.Random(1), 50), KEYED).slice(3, 40)
    rules = RowRules.of(keyed_table(tmp_path))
    crossing = to_spark_rows(rows, encode_keys(rows, rules.key, rules.key_types))
    assert spark_schema(KEYED) == (
        "key binary, c0 bigint, c1 binary, c2 bigint, c3 boolean, c4 bigint, c5 bigint"
    )
    assert crossing.column("key").type == pa.binary()
    (batch,) = crossing.combine_chunks().to_batches()
    assert row_hash(from_spark_rows(batch, KEYED)).tolist() == row_hash(rows).tolist()


def test_nested_types_unknown_to_spark_are_refused() -> None:
    inner = pa.struct([pa.field("at", pa.timestamp("ns"))])
    for arrow in (pa.list_(inner), pa.map_(pa.string(), inner), inner):
        with pytest.raises(InputError, match="column c of type"):
            spark_schema(pa.schema([pa.field("c", arrow)]))


def test_marks_add_up_over_tasks(tmp_path: Path) -> None:
    clock, folder = ManualClock(), str(tmp_path)
    first, second, nobody = (
        ProgressMark(folder, "a", clock),
        ProgressMark(folder, "b", clock),
        ProgressMark("", "c", clock),
    )
    for _ in range(2):
        clock.advance(MARK_INTERVAL_S)
        for mark in (first, second, nobody):
            mark.add(1000, 10)
            mark.add(1, 1)  # Told with what comes later.
    (tmp_path / "torn.mark").write_bytes(b"12")
    assert read_marks(folder) == (2 * 2001, 2 * 21)


def plan_over(folder: Path, rows: int = 500, row_group_bytes: int = 4096) -> outputs.RewritePlan:
    table = pa.Table.from_pylist(random_rows(random.Random(1), rows, keys=400), KEYED)
    write_file(folder, "a.parquet", table)
    small = settings(row_group_bytes=row_group_bytes, codec="uncompressed")
    return make_plan(assignment_over(keyed_table(folder, settings=small), ["a.parquet"]))


def test_row_groups_have_about_the_wanted_size(tmp_path: Path) -> None:
    plan = plan_over(tmp_path, row_group_bytes=200_000)
    rows = pa.Table.from_pylist(random_rows(random.Random(1), 20_000), KEYED)
    with open_output_writer(plan) as out:
        for start in range(0, len(rows), 777):
            out.write(rows.slice(start, 777), None)
        out.finish(None)
    found = pq.read_metadata(tmp_path / plan.output.paths[0])
    sizes = [found.row_group(n).num_rows for n in range(found.num_row_groups)]
    assert sum(sizes) == len(rows)
    assert len(sizes) > 2
    assert max(sizes) < 1.2 * min(sizes[:-1]), sizes
    assert 0.8 < max(sizes) * rows.nbytes / len(rows) / 200_000 < 1.2


def test_an_output_is_never_written_over(tmp_path: Path) -> None:
    plan = plan_over(tmp_path)
    general_merge.rewrite_in_memory(plan)
    with pytest.raises(RewriteError, match=r"cannot be written: .*exists"):
        general_merge.rewrite_in_memory(plan)


def test_a_failure_while_writing_leaves_no_file(tmp_path: Path) -> None:
    plan = plan_over(tmp_path)
    rows = read_output(keyed_table(tmp_path), "a.parquet")

    def fail(error: Exception) -> None:
        with open_output_writer(plan) as out:
            out.write(rows, None)
            assert (tmp_path / plan.output.paths[0]).exists()
            raise error

    with pytest.raises(UnavailableError, match="No space left"):
        fail(OSError(28, "No space left on device"))
    assert not (tmp_path / plan.output.paths[0]).exists()
    with pytest.raises(KeyError):
        fail(KeyError("odd"))
    assert list(tmp_path.glob("_neve/**/*.parquet")) == []


def test_a_task_tells_its_errors_as_values(tmp_path: Path) -> None:
    plan = plan_over(tmp_path)
    (tmp_path / "a.parquet").unlink()
    batch = outputs.outcome_batch(lambda: general_merge.rewrite_in_memory(plan))
    assert batch.num_rows == 1
    assert b"a.parquet does not exist" in batch.column(0)[0].as_py()


class TestOwnFiles:
    """A location is ours only if it says so; the answer is trusted for a while."""

    def files(self, clock: ManualClock, store: str = "store-1") -> TableStorage:
        async def store_id() -> str:
            return store

        return TableStorage(store_id, clock)

    def test_a_location_of_another_store_is_refused_before_the_rewrite(
        self, tmp_path: Path
    ) -> None:
        clock = ManualClock()
        files, table = self.files(clock), keyed_table(tmp_path)
        write_owner(open_location(table.location), LocationOwner("store-1"))
        asyncio.run(files.check_location(table))
        (tmp_path / "_neve/store").write_text("store-2\n")
        asyncio.run(files.check_location(table))
        clock.advance(TRUSTED_S)
        with pytest.raises(InputError, match="belongs to the store store-2, this one is store-1"):
            asyncio.run(files.check_location(table))

    def test_jobs_wait_for_a_location_that_has_lost_its_mark(self, tmp_path: Path) -> None:
        """Its file system may not be mounted just now."""
        with pytest.raises(UnavailableError, match="has lost its mark"):
            asyncio.run(self.files(ManualClock()).check_location(keyed_table(tmp_path)))

    def test_a_location_that_was_ours_is_looked_at_again(self, tmp_path: Path) -> None:
        files, table = self.files(ManualClock()), keyed_table(tmp_path)
        write_owner(open_location(table.location), LocationOwner("store-1"))
        asyncio.run(files.check_location(table))
        (tmp_path / "_neve/store").unlink()
        asyncio.run(files.check_location(table))
        with pytest.raises(UnavailableError, match="is it mounted"):
            asyncio.run(files.check_location(table, again=True))

    def test_a_location_of_another_table_is_refused(self, tmp_path: Path) -> None:
        table = keyed_table(tmp_path)
        write_owner(open_location(table.location), LocationOwner("store-1", table.id))
        asyncio.run(self.files(ManualClock()).check_location(table))
        write_owner(open_location(table.location), LocationOwner("store-1", "t-other"))
        with pytest.raises(InputError, match="belongs to another table of this service"):
            asyncio.run(self.files(ManualClock()).check_location(table))

    def test_a_store_that_does_not_answer_now_fails_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service, "STORE_BACKOFF", Backoff(base_s=0.0))
        asked: list[str] = []

        async def store_id() -> str:
            asked.append("?")
            if len(asked) % 3:
                raise UnavailableError("the store starts")
            return "store-1"

        table = keyed_table(tmp_path)
        write_owner(open_location(table.location), LocationOwner("store-1"))
        asyncio.run(TableStorage(store_id, ManualClock()).check_location(table))
        assert len(asked) == 3
        monkeypatch.setattr(service, "STORE_TRIES_MAX", 2)
        with pytest.raises(UnavailableError):
            asyncio.run(TableStorage(store_id, ManualClock()).check_location(table))

    def test_nothing_is_deleted_where_another_table_is_by_now(self, tmp_path: Path) -> None:
        """It may have been rebuilt from the outputs of the one that was dropped."""
        table, output = keyed_table(tmp_path), tmp_path / "_neve/last/job-1.parquet"
        output.parent.mkdir(parents=True)
        output.write_bytes(b"x")
        for other, left in (("t-other", True), (table.id, False)):
            write_owner(open_location(table.location), LocationOwner("store-1", other))
            asyncio.run(self.files(ManualClock()).delete(table, ("_neve/last/job-1.parquet",)))
            assert output.exists() is left

    def test_files_that_are_not_there_are_told(self, tmp_path: Path) -> None:
        table, files = keyed_table(tmp_path), self.files(ManualClock())
        write_file(tmp_path, "_neve/last/a.parquet", KEYED.empty_table())
        paths = ("_neve/last/a.parquet", "_neve/last/b.parquet")
        assert asyncio.run(files.missing(table, paths)) == paths[1:]
        assert asyncio.run(files.missing(table, ())) == ()
        with pytest.raises(UnavailableError, match="outputs cannot be checked"):
            asyncio.run(files.missing(replace(table, location="nowhere://x"), paths))

    def test_deleting_outputs_ignores_missing_files_and_locations(self, tmp_path: Path) -> None:
        table = keyed_table(tmp_path)
        write_file(tmp_path, "_neve/last/a.parquet", KEYED.empty_table())
        paths = ("_neve/last/a.parquet", "_neve/last/b.parquet")
        files = self.files(ManualClock())
        asyncio.run(files.delete(table, paths))
        asyncio.run(files.delete(replace(table, location="nowhere://x"), paths))
        assert not (tmp_path / paths[0]).exists()


@pytest.mark.parametrize("merge", [merge_small_job, rewrite_in_memory])
def test_outputs_may_be_cut_at_the_beginning_of_a_key(
    tmp_path: Path, merge: Callable[[RewritePlan], TaskResult]
) -> None:
    table, paths = keyed_table(tmp_path), []
    for number in range(2):
        paths.append(f"{number}.parquet")
        rows = [row | {"k": row["k"] or 0} for row in random_rows(random.Random(number), 300)]
        write_file(tmp_path, paths[-1], pa.Table.from_pylist(rows, schema=KEYED))
    types = RowRules.of(table).key_types
    keys = sorted(encode_keys(pq.read_table(tmp_path / paths[0]), table.key, types).to_pylist())
    first, last = keys[0], keys[-1]
    made = [key_between(first, last, share, types) for share in (0.25, 0.5, 0.75)]
    cuts = tuple(sorted({cut for cut in made if cut is not None}))
    assert cuts
    assert any(cut not in keys for cut in cuts), "none of these is a whole key"
    assignment = assignment_over(table, paths, now_s=NOW_S, cuts=cuts, outputs_max=len(cuts) + 1)
    plan = make_plan(assignment)
    result = merge(plan)
    verify(plan, result, lambda: False)
    ends = [b"", *cuts, b"\xff"]
    assert len(result.files) > 1
    for output in result.files:
        rows = pq.read_table(tmp_path / output.path)
        found = encode_keys(rows, table.key, types).to_pylist()
        part = plan.output.paths.index(output.path)
        assert ends[part] < found[0] <= found[-1] <= ends[part + 1]
