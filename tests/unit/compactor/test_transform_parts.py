"""Parts of transforms that need no Spark: rows meant and changed, values, answers, plug-ins."""

from __future__ import annotations

import pickle
import random
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from socket import gethostname
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from common import plugins
from common.errors import RewriteError, TransformError
from common.model.key_values import KeyType
from common.model.keys import encode_key, encode_value
from common.model.request import KeyRange, Request, TransformKind, TransformSpec
from common.model.table import Column, Table
from common.parquet.location import open_location
from common.rows.rules import RowRules
from common.spi.planner import DELETED, TransformContext
from compactor.rewrite import attempt, general_merge, spark_tasks, transform
from compactor.rewrite.attempt_folder import (
    NewValues,
    StoredValues,
    ValueWriter,
    read_change_counts,
)
from compactor.rewrite.kernel.reader import Reader
from compactor.rewrite.kernel.winners import RowLayout
from compactor.rewrite.merge.tasks import change_of, merge_small_job
from compactor.rewrite.outputs import TaskResult, pickled_outcome
from compactor.rewrite.plan.rewrite_plan import (
    RewritePlan,
    make_plan,
    matched_rows,
)
from compactor.rewrite.transform import (
    ExpressionInputs,
    from_spark,
    read_expression_inputs,
    spark_type,
    store_plugin_values,
    to_spark,
    with_deletions,
    with_values,
    write_values,
)
from compactor.rewrite.verify import verify
from tests.support.assignments import a_table, an_assignment
from tests.support.tables_on_disk import (
    KEYED,
    assignment_over,
    bag_table,
    inspected,
    keyed_table,
    read_output,
    write_file,
)

ROWS = [
    {"k": 1, "name": "a", "v": 1, "at": 5_000_000, "x": 1.0},
    {"k": 1, "name": "b", "v": 1, "dead": True, "x": 2.0},
    {"k": 2, "name": "a", "v": 1, "dead": False, "x": float("nan")},
    {"k": 3, "name": None, "v": 1, "x": None},
]


def rows() -> pa.Table:
    return pa.Table.from_pylist(ROWS, KEYED)


class TestTouching:
    """Rows are chosen by key and tombstone; what is not meant stays as it is."""

    rules = RowRules.of(keyed_table(Path("/t")))

    @pytest.mark.parametrize(
        ("start", "until", "wanted"),
        [
            (None, None, [0, 2, 3]),
            ([1, "a"], [2], [0]),
            ([1, "b"], None, [2, 3]),
            (None, [2, "a"], [0]),
            ([9], None, []),
        ],
    )
    def test_a_transform_matches_the_rows_of_its_range(
        self, start: Any, until: Any, wanted: list[int]
    ) -> None:
        ends = (
            None if end is None else encode_key(end, self.rules.key_types) for end in (start, until)
        )
        assert matched_rows(rows(), self.rules, KeyRange(*ends)).nonzero()[0].tolist() == wanted

    @pytest.mark.parametrize(
        ("cancelled", "wanted"),
        [
            ([([1, "a"], [2])], [2, 3]),
            ([([2], None)], [0]),
            ([([1], [2]), ([3], None)], [2]),
            ([(None, None)], []),
        ],
    )
    def test_cancelled_parts_are_not_meant(
        self, cancelled: list[tuple[Any, Any]], wanted: list[int]
    ) -> None:
        def at(end: Any) -> bytes | None:
            return None if end is None else encode_key(end, self.rules.key_types)

        parts = [KeyRange(at(start), at(until)) for start, until in cancelled]
        assert matched_rows(rows(), self.rules, KeyRange(), parts).nonzero()[0].tolist() == wanted

    def test_a_deleted_row_keeps_what_says_which_it_was(self) -> None:
        gone = pa.array([True, False, False, True]).to_numpy(zero_copy_only=False)
        kept = frozenset({"k", "name", "v", "dead", "at"})
        left = with_deletions(rows(), gone, self.rules, kept)
        before = rows().to_pylist()
        assert left.to_pylist()[0] == {**before[0], "dead": True, "x": None}
        assert left.to_pylist()[1] == before[1]
        assert left.column("dead").to_pylist() == [True, True, False, True]
        assert left.schema == KEYED

    def test_no_value_is_made_up_where_null_is_not_allowed(self) -> None:
        schema = KEYED.set(5, KEYED.field("x").with_nullable(nullable=False))
        table = pa.table(rows().slice(0, 1).columns, schema=schema)
        left = with_deletions(
            table, matched_rows(table, self.rules, KeyRange()), self.rules, frozenset()
        )
        assert left.column("x").to_pylist() == [1.0]

    def test_computed_values_go_into_their_rows(self) -> None:
        values = pa.chunked_array([[7.0], [None]], pa.float64())
        meant = matched_rows(rows(), self.rules, KeyRange()).nonzero()[0][:2]
        changed = with_values(rows(), {"x": NewValues(meant, np.arange(2), values)})
        assert changed.column("x").to_pylist() == [7.0, 2.0, None, None]
        assert changed.drop_columns(["x"]) == rows().drop_columns(["x"])


def test_moments_are_cut_off_downwards_and_never_overflow_silently() -> None:
    nanos = pa.array([1999, -1, -1000, None], pa.timestamp("ns", "Asia/Tokyo"))
    assert to_spark(nanos).cast(pa.int64()).to_pylist() == [1, -1, -1, None]
    with pytest.raises(pa.ArrowInvalid):
        to_spark(pa.array([2**62], pa.timestamp("s")))
    with pytest.raises(pa.ArrowInvalid):
        from_spark(pa.array([2**62], pa.timestamp("us", "UTC")), pa.timestamp("ns"))


def test_types_unknown_to_expressions_become_presence_flags() -> None:
    inner = pa.struct([pa.field("t", pa.time64("us")), pa.field("a`b", pa.uint32())])
    assert spark_type(inner) == "struct<`t`: boolean, `a``b`: bigint>"
    array = pa.array([{"t": 1, "a`b": 2}, None, {"t": None, "a`b": None}], inner)
    assert to_spark(array).to_pylist() == [
        {"t": True, "a`b": 2}, None, {"t": None, "a`b": None}
    ]  # fmt: skip
    assert to_spark(pa.array([[1], None])).to_pylist() == [True, None]


class TestValues:
    """They come in any batches, and end where their input does."""

    def answers(self, *given: list[tuple[int, int]]) -> list[pa.RecordBatch]:
        names = ["input", "row"]
        return [
            pa.record_batch([pa.array(part) for part in zip(*batch, strict=True)], names=names)
            for batch in given
        ]

    def plan(self, folder: Path, text: str = "x > 0") -> RewritePlan:
        write_file(folder, "a.parquet", rows())
        request = with_transform(TransformKind.DELETE_WHERE, text)
        assignment = assignment_over(keyed_table(folder), ["a.parquet"], request=request)
        return make_plan(assignment, str(folder))

    def test_answers_come_in_any_batches(self, tmp_path: Path) -> None:
        batches = self.answers([(0, 1), (0, 4)], [(0, 5), (0, ~7), (2, ~0), (3, 0)], [(3, ~2)])
        write_values(self.plan(tmp_path), batches)
        numbers = np.array([0, 1, 4, 5, 6])
        deleted = StoredValues(str(tmp_path), 0).deleted(numbers)
        assert deleted.tolist() == [False, True, True, True, False]
        assert StoredValues(str(tmp_path), 3).deleted(np.array([0, 1])).tolist() == [True, False]
        with pytest.raises(RewriteError, match="the values of input 1 are missing"):
            StoredValues(str(tmp_path), 1)

    def test_answers_that_break_off(self, tmp_path: Path) -> None:
        with pytest.raises(RewriteError, match="do not end at its marker"):
            write_values(self.plan(tmp_path), self.answers([(0, 1)]))

    def test_deletions_far_apart_take_no_memory(self, tmp_path: Path) -> None:
        far = 1 << 40
        with ValueWriter(str(tmp_path), 0, complete=False) as writer:
            writer.add_deleted(np.array([3, far]))
            writer.finish(far + 2)
        stored = StoredValues(str(tmp_path), 0)
        assert stored.deleted(np.array([2, 3])).tolist() == [False, True]
        assert stored.deleted(np.array([far, far + 1])).tolist() == [True, False]

    def test_a_column_that_some_batches_lack_keeps_its_values_there(self, tmp_path: Path) -> None:
        column = pa.chunked_array([["a", "b"]])
        with ValueWriter(str(tmp_path), 0, complete=True) as writer:
            writer.add_values(np.arange(2), {"s": column})
            writer.add_values(np.arange(2, 4), {})
            writer.add_values(np.arange(4, 6), {"s": column, "t": column})
            writer.finish(6)
        stored = StoredValues(str(tmp_path), 0)
        new = stored.columns(np.array([1, 2, 4]), np.array([10, 20, 30]))
        taken = {
            name: dict(
                zip(one.places.tolist(), one.values.take(one.index).to_pylist(), strict=True)
            )
            for name, one in new.items()
        }
        assert taken == {"s": {10: "b", 30: "a"}, "t": {30: "a"}}

    @pytest.mark.parametrize("numbers", [[1], [0, 2], [0, 0]])
    def test_values_that_are_missing(self, tmp_path: Path, numbers: list[int]) -> None:
        error = pytest.raises(RewriteError, match="values are missing after 0 values")
        with ValueWriter(str(tmp_path), 0, complete=True) as writer, error:
            writer.add_values(np.array(numbers), {})

    def test_values_that_end_early(self, tmp_path: Path) -> None:
        with ValueWriter(str(tmp_path), 0, complete=True) as writer:
            writer.add_values(np.arange(2), {})
            with pytest.raises(RewriteError, match="2 values, expected 3"):
                writer.finish(3)

    def test_spark_is_asked_once_about_equal_rows(self, tmp_path: Path) -> None:
        odd = [0.0, -0.0, float("nan"), None]
        table = pa.table(
            {"k": range(16), "name": ["a", None] * 8, "v": [1] * 16, "x": 4 * odd},
            schema=pa.schema([KEYED.field(name) for name in ("k", "name", "v", "x")]),
        )
        write_file(tmp_path, "a.parquet", table)
        request = with_transform(TransformKind.DELETE_WHERE, "x > 0 or name like '%b'")
        own = keyed_table(tmp_path, table.schema.append(KEYED.field("dead")), time_column=None)
        plan = make_plan(assignment_over(own, ["a.parquet"], request=request), str(tmp_path))
        batch, end = read_expression_inputs(plan, [0])
        given = [(row["neve_row"], row["name"], repr(row["x"])) for row in batch.to_pylist()]
        assert given == [(0, "a", "0.0"), (1, None, "-0.0"), (2, "a", "nan"), (3, None, "None")]
        assert end.column("neve_row").to_pylist() == [~4]
        numbers = np.fromfile(tmp_path / "values-0.rows", np.int64)
        assert numbers.tolist() == 4 * [0, 1, 2, 3]


COLUMNS = [
    pa.array([1.0, -0.0, 0.0, float("nan"), None]),
    pa.array([0.5, -0.0, None], pa.float32()),
    pa.array(["", "a", "a\0", None]),
    pa.array([b"", b"\xff", None]),
    pa.array([True, False, None]),
    pa.array([1, None, -1], pa.int8()),
    pa.array([0, 2**63 - 1, None], pa.uint64()),
    pa.array(["1.50", None, "-2.25"]).cast(pa.decimal128(10, 2)),
    pa.array([0, -1, None], pa.timestamp("ns", "Europe/Paris")),
    pa.array([0, None], pa.date32()),
    pa.array([[1], None, []]),
    pa.nulls(2),
]


@pytest.mark.parametrize("seed", range(40))
def test_equal_rows_are_those_with_the_same_values_in_all_columns(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([0, 1, 2, 50, 300])
    columns = [
        to_spark(values.take(pa.array(chance.choices(range(len(values)), k=count), pa.int64())))
        for values in chance.sample(COLUMNS, chance.randint(0, 4))
    ]
    tuples = [tuple(repr(column[at].as_py()) for column in columns) for at in range(count)]
    numbers = transform.combinations(columns, count)
    distinct = list(dict.fromkeys(tuples))
    if numbers is None:
        assert 2 * len(distinct) > count
    else:
        assert [distinct[number] for number in numbers.tolist()] == tuples


def test_rows_that_mostly_differ_are_not_compared() -> None:
    rows = 2 * transform.SAMPLED_ROWS
    assert transform.combinations([pa.array(range(rows))], rows) is None
    struct = pa.StructArray.from_arrays([pa.array([1] * rows)], ["a"])
    assert transform.combinations([struct], rows) is None


def with_transform(kind: TransformKind, text: str = "", **more: Any) -> Request:
    spec = TransformSpec(kind=kind, text=text, **more)
    return Request(id="request-1", table="table-1", transform=spec)


@pytest.mark.parametrize("numbers", [[-1] * 4, [0, 1, 2, 3], [-1, 0, 1, 2], [0, -1, 1]])
def test_values_of_other_rows_than_those_that_are_meant(tmp_path: Path, numbers: list[int]) -> None:
    write_file(tmp_path, "a.parquet", rows())
    request = with_transform(TransformKind.DELETE_WHERE, "x > 0")
    assignment = assignment_over(keyed_table(tmp_path), ["a.parquet"], request=request)
    plan = attempt.without_native(make_plan(assignment, str(tmp_path)))
    np.array(numbers).tofile(tmp_path / "values-0.rows")
    with ValueWriter(str(tmp_path), 0, complete=False) as writer:
        writer.finish(4)
    with pytest.raises(RewriteError, match=r"\d values for \d rows"):
        general_merge.rewrite_in_memory(plan)
    with pytest.raises(RewriteError, match=r"\d values for \d rows"):
        merge_small_job(plan)


@pytest.mark.parametrize("settled", [2, 1, None])
def test_values_of_deleted_rows_stay_only_if_the_merge_drops_the_rows(
    tmp_path: Path, settled: int | None
) -> None:
    write_file(tmp_path, "a.parquet", rows().set_column(2, "v", pa.array([1, 1, 2, 2])))
    request = with_transform(TransformKind.DELETE_WHERE, "x > 0")
    more = {} if settled is None else {"settled": encode_value(settled, KeyType.INT)}
    table = keyed_table(tmp_path)
    plan = make_plan(assignment_over(table, ["a.parquet"], request=request, **more), str(tmp_path))
    change = change_of(plan)
    assert change is not None
    reader = Reader(
        open_location(table.location),
        "a.parquet",
        RowLayout(plan.rules.schema, plan.rules.row_rules),
        change=change,
    )
    frame = reader.read(plan.inputs.row_groups[0], by_key=False).frame
    assert frame["dead"].to_list() == [True, True, True, None]
    assert (frame["x"][0] is None) == (settled != 2)
    assert frame["x"][1] == 2.0, "it was deleted before"


def test_the_names_of_questions_are_nobodys(tmp_path: Path) -> None:
    schema = (*a_table().schema, Column("neve_row", "int64"), Column("neve__input", "int64"))
    table = a_table(location=tmp_path.as_uri(), schema=schema)
    write_file(tmp_path, "a.parquet", pa.table({"k": [1], "v": [1]}))
    request = with_transform(TransformKind.SET, "s = 'é', neve_row = neve__input + neve_row")
    plan = make_plan(an_assignment(inspected(table, ["a.parquet"]), table=table, request=request))
    assert plan.rules.transform is not None
    asking = ExpressionInputs(plan.rules.schema, plan.rules.transform)
    assert asking.schema == (
        "neve___input int, neve___row bigint, `neve_row` bigint, `neve__input` bigint"
    )
    assert asking.answers[:2] == ["neve___input AS input", "neve___row AS row"]


class Mask:
    """Blanks what is large, deletes what is null, misbehaves on demand."""

    def apply(self, rows: pa.Table, context: TransformContext) -> pa.Table:
        assert (context.request, context.table.name) == ("request-1", "events")
        x, at = rows.column("x"), rows.schema.get_field_index("x")
        masked = rows.set_column(at, "x", pa.array([None] * len(x), pa.float64()))
        match context.options.get("how"):
            case "add":
                return pa.concat_tables([masked, masked])
            case "lose":
                return masked.slice(1)
            case "key":
                return masked.set_column(0, "k", pa.array([0] * len(x), pa.int64()))
            case "columns":
                return masked.drop_columns(["x"])
            case "type":
                return masked.set_column(at, "x", pa.array(["text"] * len(x)))
            case "raise" | "exit" as way:
                raise {"raise": KeyError("lost"), "exit": SystemExit("enough")}[way]
            case "nothing":
                return None
        gone = pa.array([value is None for value in x.to_pylist()])
        return masked.append_column(DELETED, gone)


class Broken:
    """Ends the process that loads it, if nobody minds."""

    def __init__(self) -> None:
        sys.exit("no licence")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("their_transforms")
    module.Mask, module.Broken = Mask, Broken  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "their_transforms", module)
    points = [
        EntryPoint(name.lower(), f"their_transforms:{name}", plugins.TRANSFORMS.group)
        for name in ("Mask", "Broken")
    ]
    monkeypatch.setattr(
        plugins, "installed_points", lambda group: EntryPoints(points).select(group=group)
    )


def run_here(_spark: Any, plan: RewritePlan, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run tasks like Spark's: what they are given and return is pickled."""
    results: list[Any] = pickle.loads(
        pickle.dumps([pickle.loads(pickle.dumps(c))() for c in calls])
    )
    return results


@pytest.mark.usefixtures("installed")
class TestPluggedIn:
    """A plug-in is shown what it is meant for, and believed nothing."""

    def rewritten(self, table: Table, how: str = "", name: str = "mask") -> TaskResult:
        folder = Path(table.location.removeprefix("file://"))
        write_file(folder, "a.parquet", rows())
        options = {"how": how} if how else {}
        request = with_transform(TransformKind.PLUGIN, name=name, options=options)
        plan = make_plan(assignment_over(table, ["a.parquet"], request=request), str(folder))
        store_plugin_values(plan, [0])
        work = general_merge.rewrite_in_memory if table.key else general_merge.rewrite_bag
        result = work(plan)
        verify(plan, result, lambda: False)
        return result

    def test_a_plug_in_transform_changes_and_deletes_rows(self, tmp_path: Path) -> None:
        table = keyed_table(tmp_path)
        result = self.rewritten(table)
        back = read_output(table, result.files[0].path).sort_by([("k", "ascending")])
        assert back.column("x").to_pylist() == [None, 2.0, None, None]
        assert back.column("dead").to_pylist() == [None, True, False, True]

    def test_deleted_rows_of_an_append_only_table_are_gone(self, tmp_path: Path) -> None:
        result = self.rewritten(bag_table(tmp_path))
        counts = result.counts
        assert (counts.rows_in, counts.rows_out, counts.transform_dropped) == (4, 3, 1)

    @pytest.mark.parametrize("in_memory_bytes", [0, attempt.IN_MEMORY_BYTES])
    @pytest.mark.parametrize("make_table", [keyed_table, bag_table])
    def test_a_plug_in_does_not_leave_the_kernel(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        make_table: Callable[[Path], Table],
        in_memory_bytes: int,
    ) -> None:
        """In one task or in several, the rows are those of the general way."""
        monkeypatch.setattr(attempt, "IN_MEMORY_BYTES", in_memory_bytes)
        monkeypatch.setattr(attempt, "run_tasks", run_here)
        (tmp_path / "folder").mkdir()
        table = make_table(tmp_path)
        for at in range(3):
            write_file(tmp_path, f"{at}.parquet", rows().slice(at % 2))
        request = with_transform(TransformKind.PLUGIN, name="mask")
        names = [f"{at}.parquet" for at in range(3)]
        made = assignment_over(table, names, request=request)
        plan = make_plan(made, str(tmp_path / "folder"))
        session: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
        result, way = attempt.rewrite_with_spark(session, plan)
        verify(plan, result, lambda: False)
        counts = read_change_counts(plan.folder)
        wanted_way = ("merge", 5, 3) if table.key else ("bag", 8, 3)
        assert (way, counts.changed, counts.deleted) == wanted_way
        found = [read_output(table, file.path).to_pylist() for file in result.files]
        for path in plan.output.paths:
            (tmp_path / path).unlink()
        general = general_merge.rewrite_in_memory if table.key else general_merge.rewrite_bag
        wanted = general(attempt.without_native(plan))
        assert found == [read_output(table, file.path).to_pylist() for file in wanted.files]
        assert result.counts == wanted.counts

    @pytest.mark.parametrize(("plugged", "batched"), [(False, 1), (True, 0)])
    def test_other_jobs_do_not_wait_for_a_plug_in(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugged: bool, batched: int
    ) -> None:
        shared: list[object] = []

        def run_all(_context: Any, jobs: Sequence[Any]) -> list[bytes]:
            return [pickled_outcome(call) for _, call in jobs]

        def run_shared(_context: Any, job: Any, *_more: Any) -> bytes:
            shared.append(job)
            return pickled_outcome(job[1])

        monkeypatch.setattr(spark_tasks, "_run_spark_job", run_all)
        monkeypatch.setattr(spark_tasks.SHARED_TASKS, "run", run_shared)
        monkeypatch.setattr(spark_tasks, "has_local_executors", lambda _: True)
        write_file(tmp_path, "a.parquet", rows())
        kind = TransformKind.PLUGIN if plugged else TransformKind.DELETE_WHERE
        spec = {"name": "mask"} if plugged else {"text": "x > 0"}
        request = with_transform(kind, **spec)
        assignment = assignment_over(keyed_table(tmp_path), ["a.parquet"], request=request)
        plan = make_plan(assignment, str(tmp_path))
        context = SimpleNamespace(defaultParallelism=2, getLocalProperty=str)
        session: Any = SimpleNamespace(sparkContext=context)
        assert spark_tasks.run_tasks(session, plan, [lambda: 7]) == [7]
        assert len(shared) == batched

    @pytest.mark.parametrize(
        ("how", "says"),
        [
            ("add", "returned 6 rows for 3; it may neither add nor remove rows"),
            ("lose", "returned 2 rows for 3"),
            ("key", "changed the column k, which no transform may change"),
            ("columns", "returned the columns k, name, v, dead, at, expected .*x"),
            ("type", "transform mask column x is"),
            ("raise", "raised KeyError: 'lost'"),
            ("exit", "raised SystemExit: enough"),
            ("nothing", "returned NoneType, expected a pyarrow table"),
        ],
    )
    def test_a_plug_in_transform_that_misbehaves_fails_the_rewrite(
        self, tmp_path: Path, how: str, says: str
    ) -> None:
        with pytest.raises(TransformError, match=says):
            self.rewritten(keyed_table(tmp_path), how)
        assert list(tmp_path.glob("_neve/**/*.parquet")) == []

    def test_a_plug_in_transform_deletes_only_with_a_tombstone_column(self, tmp_path: Path) -> None:
        with pytest.raises(TransformError, match="the table has no tombstone column"):
            self.rewritten(keyed_table(tmp_path, tombstone_column=None))

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("nope", "'nope' is not installed; installed: broken, mask"),
            (
                "broken",
                r"'broken' \(their_transforms:Broken\) does not load: SystemExit: no licence",
            ),
        ],
    )
    def test_a_missing_or_broken_transform_is_named_with_its_host(
        self, tmp_path: Path, name: str, why: str
    ) -> None:
        where = re.escape(f"transform {name} cannot be used on compactor host {gethostname()}")
        with pytest.raises(TransformError, match=f"^{where}: neve.transforms: {why}$"):
            self.rewritten(keyed_table(tmp_path), name=name)
        assert list(tmp_path.glob("_neve/**/*.parquet")) == []
