"""After a rewrite all files have the table's newest schema, and say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.model.table import Column
from common.rows.schema import changed_schema, schema_id_of
from common.spi.planner import SelectorParameters
from compactor.rewrite.attempt import rewrite
from coordinator.plugins.selectors import SchemaDrift
from tests.support.spark_session import local_session
from tests.support.tables_on_disk import assignment_over, bag_table, keyed_table, write_file

pytestmark = pytest.mark.slow
OLD = pa.schema([("k", pa.int32()), ("name", pa.string()), ("v", pa.int64())])
PLAIN = {"tombstone_column": None, "time_column": None}


@pytest.mark.parametrize("keyed", [True, False])
def test_outputs_have_the_newest_schema(tmp_path: Path, keyed: bool) -> None:
    make = keyed_table if keyed else bag_table
    old = make(tmp_path, OLD, **PLAIN)
    table = changed_schema(old, [Column("price", "double")], [Column("k", "int64")])
    for number in range(2):
        rows = {"k": [1, 2 + number], "name": ["a", "b"], "v": [number, number]}
        write_file(tmp_path, f"{number}.parquet", pa.table(rows, schema=OLD))
    assignment = assignment_over(table, ["0.parquet", "1.parquet"], now_s=1_000_000)
    result = rewrite(local_session(), assignment, lambda _: None, lambda: False)

    (made,) = result.outputs
    schema = pq.read_schema(tmp_path / made.path)
    assert schema.field("k").type == pa.int64()
    assert schema.field("price").type == pa.float64()
    assert made.schema_id == schema_id_of(table, schema) == 1
    olds = tuple(replace(file, schema_id=0) for file in assignment.inputs)
    parameters = SelectorParameters(tablet=assignment.job.tablet, table=table, files=(*olds, made))
    assert SchemaDrift().select(parameters).files == ("0.parquet", "1.parquet")
