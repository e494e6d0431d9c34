"""Delta tables with each feature that Névé knows: attached, compacted, and read by others.

The small writer of `tests/support` makes them, with what a feature asks of protocol, metadata and
log. Readers differ in what they know: each of a feature's readers sees the same rows before and
after the compaction, and after a checkpoint of Névé. The rows are those of a model, too.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from common.control_settings import CatalogSettings
from common.lake.source import MaintenanceRules
from common.metadata.changes import CommitAttempt
from common.model.table import Table
from common.model.tablet import PLUS_INFINITY, TabletId
from common.runtime import SystemClock
from compactor.core import CommitApplied
from compactor.lake_commit import LakePublisher
from compactor.service import TableStorage
from coordinator.context import Generations, ShellContext
from coordinator.lake import LakeFollower, LakeRules
from tests.support.delta_tables import FEATURES, DeltaTable
from tests.support.gateway import serving
from tests.support.independent_reader import independent_reader
from tests.support.lake_attempts import assignment_of, rewrite, source_of
from tests.support.memory_store import MemoryKeyspace
from tests.support.predictable import CountedIds
from tests.support.store_harness import Harness, applied, reserve

DUCKDB, DELTALAKE, POLARS = "duckdb", "deltalake", "polars"
SCHEMA = pa.schema([("id", pa.int64()), ("more", pa.int32())])
FILES, ROWS = 6, 10


class TimedTable(DeltaTable):
    """A table whose versions have their times in the log, each above the one before."""

    times = itertools.count(1_700_000_000_000)

    def commit(self, *actions: Mapping[str, Any], version: int | None = None) -> int:
        info = {"timestamp": 1, "inCommitTimestamp": next(self.times)}
        others = [action for action in actions if "commitInfo" not in action]
        return super().commit({"commitInfo": info}, *others, version=version)


@dataclass(frozen=True)
class Feature:
    """What a table with a feature has.

    Attributes:
        name: Its name in the protocol.
        properties: Properties of the table.
        of_column: Metadata of the column `more`.
        is_of_readers: Whether readers have to know it.
        readers: Those that know it.
        schema: Columns of the table.
    """

    name: str
    properties: Mapping[str, str] = field(default_factory=dict)
    of_column: Mapping[str, Any] = field(default_factory=dict)
    is_of_readers: bool = False
    readers: tuple[str, ...] = (DUCKDB, DELTALAKE, POLARS)
    schema: pa.Schema = SCHEMA

    def made(self, folder: Path) -> DeltaTable:
        """Return an empty table with the feature."""
        kind = TimedTable if self.name == "inCommitTimestamp" else DeltaTable
        table = kind.create(folder, self.schema, properties=self.properties)
        readers = [*FEATURES, *([self.name] if self.is_of_readers else [])]
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": sorted(set(readers)),
            "writerFeatures": sorted({*FEATURES, self.name}),
        }
        metadata = table.metadata
        schema = json.loads(metadata["schemaString"])
        schema["fields"][1]["metadata"] = dict(self.of_column)
        metadata["schemaString"] = json.dumps(schema)
        table.change(lambda _: [{"protocol": protocol}, {"metaData": metadata}])
        return table


CASES = [
    Feature("appendOnly", {"delta.appendOnly": "true"}),
    Feature(
        "invariants",
        of_column={"delta.invariants": '{"expression":{"expression":"more >= 0"}}'},
    ),
    Feature("checkConstraints", {"delta.constraints.positive": "more >= 0"}),
    Feature("generatedColumns", of_column={"delta.generationExpression": "CAST(id AS INT)"}),
    Feature(
        "identityColumns",
        of_column={
            "delta.identity.start": 1,
            "delta.identity.step": 1,
            "delta.identity.highWaterMark": FILES * ROWS,
            "delta.identity.allowExplicitInsert": True,
        },
    ),
    Feature("changeDataFeed", {"delta.enableChangeDataFeed": "true"}),
    Feature(
        "timestampNtz",
        is_of_readers=True,
        schema=pa.schema([("id", pa.int64()), ("more", pa.timestamp("us"))]),
    ),
    Feature("deletionVectors", is_of_readers=True),
    Feature(
        "v2Checkpoint",
        {"delta.checkpointPolicy": "v2"},
        is_of_readers=True,
        readers=(DUCKDB, DELTALAKE),
    ),
    Feature(
        "inCommitTimestamp",
        {
            "delta.enableInCommitTimestamps": "true",
            "delta.inCommitTimestampEnablementVersion": "1",
            "delta.inCommitTimestampEnablementTimestamp": "1700000000001",
        },
    ),
    Feature("variantType", is_of_readers=True),
    Feature("variantType-preview", is_of_readers=True),
    Feature("domainMetadata"),
    Feature("vacuumProtocolCheck", is_of_readers=True, readers=(DUCKDB,)),
    Feature("checkpointProtection"),
    Feature("allowColumnDefaults"),
    Feature("columnMapping", is_of_readers=True, readers=(DUCKDB, DELTALAKE)),
    Feature("typeWidening", is_of_readers=True, readers=(DUCKDB,)),
    Feature("typeWidening-preview", is_of_readers=True, readers=(DUCKDB,)),
]
WIDER = pa.schema([("id", pa.int64()), ("more", pa.float64())])
"""Columns of the tables with widened types, after half of their files."""


def rows_of(schema: pa.Schema, first: int) -> pa.Table:
    """Return rows of a file."""
    ids = pa.array(range(first, first + ROWS), pa.int64())
    return pa.table([ids, ids.cast(schema.types[1])], schema)


def read(feature: Feature, table: DeltaTable) -> dict[str, Counter[str]]:
    """Return the rows that each reader sees, as texts."""
    seen: dict[str, Counter[tuple[Any, ...]]] = {}
    for reader in feature.readers:
        if reader == DUCKDB:
            seen[reader] = independent_reader().delta_rows(table.uri, *feature.schema.names)
        elif reader == DELTALAKE:
            seen[reader] = table.deltalake_rows(*feature.schema.names)
        else:
            seen[reader] = table.polars_rows(*feature.schema.names)
    return {
        reader: Counter({" ".join(map(str, row)): count for row, count in rows.items()})
        for reader, rows in seen.items()
    }


async def compacted(harness: Harness, delta: DeltaTable, folder: Path) -> Table:
    """Let a follower mirror an attached table, and a compactor rewrite all of its files."""
    store = harness.store
    table = await store.table_named("sales")
    assert table is not None
    context = ShellContext(
        store,
        harness.clock,
        CountedIds("f"),
        lambda *_, **__: None,
        "coord-1",
        Generations(store, lambda *_, **__: None),
    )
    rules = LakeRules(catalog=CatalogSettings(), grace_s=600.0, sweep_s=10.0)
    follower = LakeFollower(context, rules, lambda: [table], lambda _: None)
    await follower.poll(table)
    paths = sorted(delta.live())
    tablet = TabletId(table.id, PLUS_INFINITY)
    wanted = replace(
        reserve(tablet, "att-1", *paths),
        output_prefix="neve-att-1",
        outputs_max=1,
    )
    reservation = applied(await harness.apply(wanted)).reservation
    assert reservation is not None
    made = assignment_of(delta, paths, table=table)
    assignment = replace(made, reservation=reservation)
    result = rewrite(assignment, folder / "attempt")
    publisher = LakePublisher(
        store=store,
        files=TableStorage(store.store_id, harness.clock),
        clock=harness.clock,
        log=lambda *_, **__: None,
        catalog=CatalogSettings(),
    )
    commit = CommitAttempt(
        tablet=tablet, attempt="att-1", outputs=result.files, counts=result.counts
    )
    answer = await publisher.publish(assignment, commit, result.packed)
    assert isinstance(answer, CommitApplied), answer
    await follower.poll(table)
    return table


@pytest.mark.parametrize("feature", CASES, ids=lambda feature: feature.name)
def test_a_table_with_a_feature_is_attached_compacted_and_read(
    tmp_path: Path, feature: Feature
) -> None:
    delta = feature.made(tmp_path / "sales")
    for number in range(FILES):
        is_wide = feature.name.startswith("typeWidening") and number >= FILES // 2
        if is_wide and number == FILES // 2:
            delta.widen(WIDER, [feature.name])
        delta.append(rows_of(WIDER if is_wide else feature.schema, number * ROWS))
    gone = {3, 11} if feature.name == "deletionVectors" else set[int]()
    delta.delete(gone)
    before, version = read(feature, delta), delta.version
    expected = [row for row in range(FILES * ROWS) if row not in gone]
    assert all(rows.total() == len(expected) for rows in before.values()), before

    clock = SystemClock()
    harness = Harness("memory", MemoryKeyspace(clock), clock)
    with serving(store=harness.store) as gateway, gateway.client() as client:
        shown = client.attach("sales", delta=str(delta.folder), dry_run=True)
        assert (shown.refusal, shown.files, shown.jobs) == ("", FILES, 1)
        client.attach("sales", delta=str(delta.folder))
        asyncio.run(compacted(harness, delta, tmp_path))
        lake = client.describe("sales").lake
        assert lake is not None
        assert (lake.version, lake.problem) == (version + 1, "")

    assert list(delta.live()) == ["neve-att-1-0.parquet"]
    assert [row["id"] for row in delta.rows()] == expected
    assert [row["id"] for row in delta.rows(version)] == expected
    assert read(feature, delta) == before
    require_what_it_demands(feature, delta)
    checkpoint(delta)
    assert read(feature, delta) == before


def require_what_it_demands(feature: Feature, delta: DeltaTable) -> None:
    """Check what features ask of a version that only replaces files."""
    actions = delta.entries(delta.version)
    changes = [one for action in actions for name, one in action.items() if name != "commitInfo"]
    assert {change["dataChange"] for change in changes} == {False}
    assert {name for action in actions for name in action} == {"commitInfo", "add", "remove"}
    if feature.name == "inCommitTimestamp":
        (last,) = [
            action["commitInfo"]["inCommitTimestamp"]
            for action in delta.entries(delta.version - 1)
            if "commitInfo" in action
        ]
        assert actions[0]["commitInfo"]["inCommitTimestamp"] > last


def checkpoint(delta: DeltaTable) -> None:
    """Write a checkpoint as the maintenance does."""
    source = source_of(delta)
    rules = MaintenanceRules(
        now_s=time.time(), keep_s=86_400.0, files_max=1000, own_name="neve-", is_asked=True
    )
    head = source.load()
    survey = source.survey("checkpoint", head, rules)
    assert source.carry_out(survey, head, rules).created
