"""Spark's tasks read and write an object store without Hadoop: each way once."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import InputError
from common.model.table import Table, TableSettings
from common.parquet.file_inspection import inspect_file, read_rows
from common.parquet.location import Location, open_location
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from common.wire import Assignment
from compactor.core import RewriteResult
from compactor.rewrite import spark_tasks
from compactor.rewrite.attempt import rewrite
from compactor.rewrite.file_io import delete_file
from compactor.rewrite.parquet_bytes.excerpts import (
    Excerpts,
    RowStretch,
    arrow_column,
)
from neve.recovery.stored_files import list_location
from tests.support.assignments import an_assignment
from tests.support.readers import at_hand, check_counts
from tests.support.s3_server import VARIABLES, s3_server
from tests.support.spark_session import local_session

ROWS = 4000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])


@pytest.fixture(scope="module")
def location() -> Iterator[Location]:
    """A location in a bucket that Spark's Python workers find, too."""
    session = local_session().sparkContext
    before = dict(session.environment)
    with s3_server() as server, pytest.MonkeyPatch.context() as patch:
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        for name, value in server.environ.items():
            patch.setenv(name, value)
        session.environment.update(server.environ)
        # A task that waits for jobs has the environment of the session when it was started.
        spark_tasks.SHARED_TASKS.end_tasks()
        server.create_bucket("tables")
        yield open_location("s3://tables/events")
        session.environment.clear()
        session.environment.update(before)
        spark_tasks.SHARED_TASKS.end_tasks()


def put(location: Location, path: str, first: int, version: int) -> pa.Table:
    columns = {
        "k": range(first, first + ROWS),
        "v": [version] * ROWS,
        "s": [f"v{n}" for n in range(ROWS)],
    }
    rows = pa.table(columns, schema=SCHEMA)
    with location.filesystem.open_output_stream(location.full(path)) as sink:
        pq.write_table(rows, sink, compression="zstd", row_group_size=ROWS // 2)
    return rows


def job(location: Location, paths: list[str], *, keyed: bool) -> Assignment:
    table = Table(
        id="t1",
        name="events",
        location=location.uri,
        schema=columns_of(SCHEMA),
        key=("k",) if keyed else (),
        version_column="v" if keyed else None,
        settings=TableSettings(row_group_bytes=64 * 1024),
    )
    rules = RowRules.of(table)
    files = [inspect_file(location, path, rules).data_file(added_at_s=1.0) for path in paths]
    return an_assignment(tuple(files), table=table)


def run(assignment: Assignment) -> RewriteResult:
    return rewrite(local_session(), assignment, lambda _: None, lambda: False)


@pytest.mark.parametrize("keyed", [True, False])
def test_row_groups_are_copied(location: Location, keyed: bool) -> None:
    tables = [put(location, f"c{n}-{keyed}.parquet", n * ROWS, 1) for n in range(3)]
    assignment = job(location, [f"c{n}-{keyed}.parquet" for n in range(3)], keyed=keyed)
    result = run(assignment)
    assert result.kernel == "stitch"
    check(location, assignment, result, pa.concat_tables(tables))


def test_rows_are_merged(location: Location) -> None:
    put(location, "m0.parquet", 0, 1)
    newer = put(location, "m1.parquet", 0, 2)
    assignment = job(location, ["m0.parquet", "m1.parquet"], keyed=True)
    result = run(assignment)
    assert (result.counts.superseded, result.kernel == "stitch") == (ROWS, False)
    check(location, assignment, result, newer)


@pytest.mark.parametrize("indexed", [True, False])
def test_pages_of_some_rows_are_read(location: Location, indexed: bool) -> None:
    rows = pa.table({"k": range(ROWS), "s": [f"v{n}" for n in range(ROWS)]})
    with location.filesystem.open_output_stream(location.full("p.parquet")) as sink:
        pq.write_table(rows, sink, data_page_size=500, write_page_index=indexed)
    excerpts = Excerpts(location, "p.parquet")
    assert excerpts.columns() == {"k", "s"}
    for name in ("k", "s"):
        excerpt = excerpts.take(RowStretch(0, 1234, 567), rows.schema.field(name))
        assert arrow_column(excerpt, 567).equals(rows.column(name).slice(1234, 567))


def test_a_missing_input_leaves_nothing(location: Location) -> None:
    put(location, "g0.parquet", 0, 1)
    put(location, "g1.parquet", ROWS, 1)
    assignment = job(location, ["g0.parquet", "g1.parquet"], keyed=False)
    delete_file(location, "g1.parquet")
    with pytest.raises(InputError, match=r"g1\.parquet does not exist"):
        run(assignment)
    # The guards that jobs before this one have put there stay as long as the table.
    left = (path for path in list_location(location) if path.startswith("_neve/"))
    assert not [path for path in left if not path.startswith("_neve/guards/")]


def check(
    location: Location, assignment: Assignment, result: RewriteResult, wanted: pa.Table
) -> None:
    (made,) = result.outputs
    found = read_rows(location, made.path, RowRules.of(assignment.table))
    assert found.equals(wanted)
    with at_hand(location, [made.path]) as paths:
        check_counts(paths, wanted.num_rows)
    again = inspect_file(location, made.path, RowRules.of(assignment.table))
    assert (made.size_bytes, made.rows, made.clean) == (
        again.size_bytes,
        again.rows.rows,
        again.rows.clean,
    )
    assert delete_file(location, made.path)
