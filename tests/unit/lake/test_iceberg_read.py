"""Iceberg tables as PyIceberg writes them are read: files, deletes, looks, refusals."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from common.errors import ConfigError, InputError, RefusedError, RequestError, UnavailableError
from common.lake import mirror
from common.lake.iceberg import manifests, source
from common.lake.iceberg.catalogs import PRIVATE_NAMES, Admission, TableRoot
from common.lake.iceberg.source import IcebergSource, IcebergState, open_iceberg
from common.lake.open import open_source
from common.lake.source import LOCATIONS, LakeFile, Look, Snapshot
from common.model.job import Job, Kind
from common.model.keys import decode_key
from common.model.table import LakeTable, Table
from common.model.tablet import TabletId
from common.rows.key_encoding import partition_types
from coordinator.core.assignment import output_prefix
from tests.support.iceberg_tables import IcebergTable, sqlite_catalog, sqlite_properties

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])
COLUMNS = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
)
BY_REGION = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0)
UNPARTITIONED = PartitionSpec(spec_id=0)


def rows(*ids: int, region: Sequence[str | None] | str | None = "eu") -> pa.Table:
    regions = [region] * len(ids) if isinstance(region, str | None) else region
    return pa.table({"id": list(ids), "region": list(regions)}, schema=SCHEMA)


def table_in(folder: Path, spec: PartitionSpec = UNPARTITIONED, **properties: str) -> IcebergTable:
    catalog = sqlite_catalog(folder)
    return IcebergTable.create(catalog, "events", COLUMNS, spec, properties)


def source_of(folder: Path, locations: str | None = None) -> IcebergSource:
    allowed = str(folder) if locations is None else locations
    options = {"type": "sql", **sqlite_properties(folder), LOCATIONS: allowed}
    opened = open_source("iceberg", "prod:db.events", options)
    assert isinstance(opened, IcebergSource)
    return opened


def only(snapshot: Snapshot) -> LakeFile:
    (file,) = snapshot.files.values()
    return file


def test_a_table_of_another_writer_is_read(tmp_path: Path) -> None:
    table = table_in(tmp_path, BY_REGION)
    table.append(rows(1, 2, 3, region=["eu", "a/b", None]))
    table.append(rows(4))

    head = source_of(tmp_path).load()

    assert (head.version, head.newest, head.refusal) == (2, 2, "")
    assert [(column.name, column.type) for column in head.columns] == [
        ("id", "int64"), ("region", "string"),
    ]  # fmt: skip
    assert head.field_ids == {"id": 1, "region": 2}
    assert head.root == str(tmp_path / "warehouse/db/events")
    parts = sorted(str(dict(file.partition)["partition"]) for file in head.files.values())
    assert parts == [
        "region=__HIVE_DEFAULT_PARTITION__", "region=a%2Fb", "region=eu", "region=eu",
    ]  # fmt: skip
    assert {dict(file.partition)["spec"] for file in head.files.values()} == {"0"}
    for path, file in head.files.items():
        stored = Path(head.root, path)
        assert file.size_bytes == stored.stat().st_size
        assert file.rows == parquet.read_metadata(stored).num_rows
        assert (file.deleted_rows, file.deletes, file.equality) == (0, "", ())
        assert file.added_at_s == pytest.approx(head.changed_at_s, abs=600)
    assert sorted(file.sequence for file in head.files.values()) == [1, 1, 1, 2]


def test_an_empty_table_has_version_0(tmp_path: Path) -> None:
    table_in(tmp_path)
    head = source_of(tmp_path).load()
    assert (head.version, dict(head.files), head.refusal) == (0, {}, "")


def test_only_manifests_that_are_new_are_read(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.append(rows(1))
    reader = source_of(tmp_path)
    first = reader.load()
    assert reader.load(first) is first
    old = set((tmp_path / "warehouse").rglob("*-m0.avro"))
    table.append(rows(2))
    for path in old:
        path.write_bytes(b"")  # reading it again fails

    second = source_of(tmp_path).load(first)

    assert [file.sequence for file in second.files.values()] == [2, 1]
    with pytest.raises(RefusedError, match="malformed"):
        source_of(tmp_path).load()


def positions_of(reader: IcebergSource, head: Snapshot) -> dict[str, list[int]]:
    return {
        path: reader.positions(file).tolist() for path, file in head.files.items() if file.deletes
    }


@pytest.mark.parametrize("single", [True, False], ids=["one-file-each", "one-file-for-all"])
def test_position_deletes_apply_to_their_files(tmp_path: Path, single: bool) -> None:
    table = table_in(tmp_path)
    for first in (0, 10, 20):
        table.append(rows(*range(first, first + 5)))
    table.delete([1, 3, 11], single=single)
    table.delete([4], single=single)
    table.append(rows(1, 3))

    reader = source_of(tmp_path)
    head = reader.load()

    by_rows = {tuple(rows): path for path, rows in positions_of(reader, head).items()}
    assert by_rows.keys() == {(1, 3, 4), (1,)}
    for found, path in by_rows.items():
        assert head.files[path].deleted_rows == len(found)
    assert len({head.files[path].deletes for path in by_rows.values()}) == 2
    assert sorted(head.files[path].delete_files for path in by_rows.values()) == [1, 2]
    assert sum(file.deletes == "" for file in head.files.values()) == 2

    # A source that has read nothing before goes on from a snapshot of another one.
    later = source_of(tmp_path)
    assert positions_of(later, later.load(head)) == positions_of(reader, head)


def test_a_delete_file_of_several_files_is_read_once(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.append(rows(0, 1, 2))
    table.append(rows(10, 11, 12))
    table.delete([1, 10], single=False)
    reader = source_of(tmp_path)
    first, second = (file for file in reader.load().files.values() if file.deletes)
    before = reader.positions(first).tolist()
    (deletes,) = (tmp_path / "warehouse").rglob("deletes-*.parquet")
    deletes.write_bytes(b"")  # reading it again fails

    assert sorted([before, reader.positions(second).tolist()]) == [[0], [1]]


def test_a_file_that_a_delete_file_does_not_name_has_no_deletes(tmp_path: Path) -> None:
    """Its path lies between the least and the greatest one; planned deletes would be for ever."""
    table = table_in(tmp_path)
    paths = sorted(path for first in range(3) for path in table.append(rows(first, first + 10)))
    table.delete_positions({paths[0]: [0], paths[2]: [1]})

    head = source_of(tmp_path).load()

    named = [TableRoot(f"file://{head.root}").path_of(path) for path in paths]
    assert [head.files[path].deleted_rows for path in named] == [1, 0, 1]
    assert [bool(head.files[path].deletes) for path in named] == [True, False, True]


def test_uncounted_deletes_apply_by_the_paths_that_they_may_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_in(tmp_path)
    paths = sorted(path for first in range(3) for path in table.append(rows(first, first + 10)))
    table.delete_positions({paths[0]: [0], paths[1]: [1]})
    monkeypatch.setattr(source, "COUNTED_ROWS_MAX", 1)

    reader = source_of(tmp_path)
    head = reader.load()

    named = [TableRoot(f"file://{head.root}").path_of(path) for path in paths]
    assert [head.files[path].deleted_rows for path in named] == [0, 0, 0]
    assert [bool(head.files[path].deletes) for path in named] == [True, True, False]
    assert [reader.positions(head.files[path]).tolist() for path in named] == [[0], [1], []]


def test_equality_deletes_apply_to_older_files(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.append(rows(1, 2, 3, region=["eu", None, "us"]))
    table.delete_equal(pa.table({"id": [2, 3]}))
    table.append(rows(2, 3))
    table.delete_equal(pa.table({"id": [1, 2], "region": ["eu", None]}))

    reader = source_of(tmp_path)
    head = reader.load()

    old, new = sorted(head.files.values(), key=lambda file: file.sequence)
    assert [sequence for sequence, _ in old.equality] == [2, 4]
    assert [sequence for sequence, _ in new.equality] == [4]
    assert reader.matched(old).tolist() == [0, 1, 2]
    assert reader.matched(new).tolist() == []  # 2 has another region there
    assert (old.deletes, old.deleted_rows) == ("", 0)


def test_equality_deletes_of_renamed_and_widened_columns(tmp_path: Path) -> None:
    catalog = sqlite_catalog(tmp_path)
    schema = pa.schema([("id", pa.int32()), ("region", pa.string())])
    table = IcebergTable.create(catalog, "events", schema)
    table.append(pa.table({"id": [1, 2], "region": ["a", "b"]}, schema=schema))
    table.delete_equal(pa.table({"id": pa.array([1], pa.int32())}))
    with table.table.update_schema() as update:
        update.rename_column("id", "number")
    with table.table.update_schema() as update:
        update.update_column("number", LongType())
        update.add_column("more", LongType())
    table.delete_equal(pa.table({"number": [2], "more": pa.array([None], pa.int64())}))

    reader = source_of(tmp_path)

    assert reader.matched(only(reader.load())).tolist() == [0, 1]


def test_partitions_keep_deletes_apart(tmp_path: Path) -> None:
    table = table_in(tmp_path, BY_REGION)
    table.append(rows(1, 1, region=["eu", "us"]))
    table.delete_equal(pa.table({"id": [1]}))

    reader = source_of(tmp_path)
    head = reader.load()

    assert [len(file.equality) for file in head.files.values()] == [1, 1]
    assert [reader.matched(file).tolist() for file in head.files.values()] == [[0], [0]]


def test_a_table_with_several_specs_names_the_spec_of_each_file(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.append(rows(1))
    with table.table.update_spec() as update:
        update.add_identity("region")
    table.append(rows(2))

    head = source_of(tmp_path).load()

    assert sorted(file.partition for file in head.files.values()) == [
        (("spec", "0"), ("partition", "")),
        (("spec", "1"), ("partition", "region=eu")),
    ]


# -------------------------------------------------------------------------------------------- Look


def test_an_attempt_is_found_by_its_summary_or_its_files(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.append(rows(1))
    table.table.append(rows(2), snapshot_properties={"neve.attempt": "a1"})
    reader = source_of(tmp_path)
    head = reader.load()
    own = [path for path, file in head.files.items() if file.sequence == 2]

    found = reader.look("a1", [*own, "other"], 1)
    assert (found.look, found.version, found.outputs) == (Look.FOUND, 2, frozenset(own))
    assert reader.look("a2", own, 1).look is Look.FOUND
    assert reader.look("a2", ["other"], 1).look is Look.ABSENT
    assert reader.look("a1", ["other"], 2).look is Look.ABSENT  # not above the planned version

    table.append(rows(3))
    table.table.maintenance.expire_snapshots().by_id(
        next(one.snapshot_id for one in table.table.snapshots() if one.sequence_number == 2)
    ).commit()
    assert reader.look("a1", own, 1).look is Look.FOUND
    unknown = reader.look("a2", ["other"], 1)
    assert (unknown.look, "sequence number 2" in unknown.reason) == (Look.CANNOT_TELL, True)


# ---------------------------------------------------------------------------------------- Refusals


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"format-version": "1"}, "version 1"),
        ({"encryption.key-id": "k"}, "encrypted"),
        ({"py-io-impl": "os.path"}, "loads other code"),
        ({"write.py-location-provider.impl": "a.b"}, "loads other code"),
    ],
)
def test_what_is_not_supported_is_refused(
    tmp_path: Path, properties: dict[str, str], reason: str
) -> None:
    table = table_in(tmp_path, **{k: v for k, v in properties.items() if k == "format-version"})
    table.append(rows(1))
    path = Path(table.metadata)  # PyIceberg would load the code
    content = json.loads(path.read_text())
    content["properties"] |= {k: v for k, v in properties.items() if k != "format-version"}
    path.write_text(json.dumps(content))
    head = source_of(tmp_path).load()
    assert reason in head.refusal
    assert not head.files


def test_properties_of_a_table_do_not_reach_the_storage(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.append(rows(1))
    with table.table.transaction() as change:
        change.set_properties({"s3.endpoint": "http://evil.example"})
    reader = source_of(tmp_path)
    assert len(reader.load().files) == 1
    assert "s3.endpoint" not in reader.catalog.load_table(("db", "events")).io.properties


@pytest.mark.parametrize("kind", ["elsewhere", "link"])
def test_a_file_outside_of_the_allowed_locations_is_refused(tmp_path: Path, kind: str) -> None:
    allowed, other = tmp_path / "in", tmp_path / "out"
    table = table_in(allowed)
    table.append(rows(1))
    stored = next((allowed / "warehouse").rglob("*.parquet"))
    target = other / stored.name
    other.mkdir()
    target.write_bytes(stored.read_bytes())
    if kind == "link":
        stored.unlink()
        stored.symlink_to(target)
    else:
        table.table.add_files([target.as_uri()])

    with pytest.raises(RefusedError, match=r"gateway\.locations"):
        source_of(allowed).load()
    head = source_of(allowed, f"{allowed}\n{other}").load()
    assert len(head.files) == (1 if kind == "link" else 2)
    if kind == "elsewhere":
        assert target.as_uri() in head.files


def test_a_location_that_is_not_allowed_is_refused(tmp_path: Path) -> None:
    table_in(tmp_path)
    with pytest.raises(RefusedError, match=r"gateway\.locations"):
        source_of(tmp_path, "/nowhere").load()


def test_errors_of_catalogs_name_the_table(tmp_path: Path) -> None:
    table_in(tmp_path)
    options = {"type": "sql", **sqlite_properties(tmp_path)}
    with pytest.raises(RefusedError, match=r"prod:db\.nothing: there is no such table"):
        open_iceberg("prod:db.nothing", options).load()
    with pytest.raises(ConfigError, match="there is no file"):
        open_iceberg("prod:db.events", options | {"uri": f"sqlite:///{tmp_path}/no.db"}).load()
    assert not (tmp_path / "no.db").exists()
    with pytest.raises(ConfigError, match="hive"):
        open_iceberg("prod:db.events", options | {"type": "hive"}).load()
    for uri in ("prod", "prod:events", ":db.events", "prod:db..events"):
        with pytest.raises(RequestError, match=r"CATALOG:NAMESPACE\.TABLE"):
            open_iceberg(uri, options)


def metadata_files(folder: Path, pattern: str) -> list[Path]:
    return sorted((folder / "warehouse").rglob(pattern), key=os.path.getmtime)


@pytest.mark.parametrize("pattern", ["*-m0.avro", "snap-*.avro", "*.metadata.json"])
def test_damaged_files_are_refused(tmp_path: Path, pattern: str) -> None:
    """Every prefix and many flipped bytes end in an error of ours, or are read as they are."""
    table = table_in(tmp_path)
    table.append(rows(1, 2))
    path = metadata_files(tmp_path, pattern)[-1]
    data = path.read_bytes()
    generator = np.random.default_rng(17)
    damaged = [data[:length] for length in range(0, len(data), 1 + len(data) // 40)]
    for _ in range(60):
        flipped = bytearray(data)
        flipped[generator.integers(len(data))] ^= int(generator.integers(1, 256))
        damaged.append(bytes(flipped))
    refused = 0
    for content in damaged:
        path.write_bytes(content)
        with suppress(RefusedError, UnavailableError):
            source_of(tmp_path).load()
            refused -= 1
        refused += 1
    assert refused > 20


def test_a_manifest_that_claims_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_in(tmp_path)
    table.append(rows(1, 2))
    monkeypatch.setattr(manifests, "BLOCK_BYTES_MAX", 64)
    with pytest.raises(RefusedError, match="more than 64 bytes"):
        source_of(tmp_path).load()
    monkeypatch.undo()
    monkeypatch.setattr(manifests, "ENTRIES_MAX", 0)
    with pytest.raises(RefusedError, match="more than 0 entries"):
        source_of(tmp_path).load()


def test_damaged_delete_files_fail_the_attempt(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.append(rows(1, 2))
    table.delete_positions({next(iter(table.live())): [7]}, single=True)
    reader = source_of(tmp_path)
    file = only(reader.load())
    with pytest.raises(InputError, match="row 7 is deleted"):
        reader.positions(file)
    path = next((tmp_path / "warehouse").rglob("deletes-*.parquet"))
    parquet.write_table(pa.table({"file_path": ["x"] * 3, "pos": [1, 2, 3]}), path)
    with pytest.raises(InputError, match="more rows than 1"):
        reader.positions(file)
    path.write_bytes(b"PAR1")
    with pytest.raises(InputError, match="unreadable"):
        reader.positions(file)
    path.unlink()
    with pytest.raises(InputError, match="is missing"):
        reader.positions(file)


# ----------------------------------------------------------------------------------- Smaller parts


@pytest.mark.parametrize(
    ("location", "uri", "path"),
    [
        ("file:///w/t", "file:///w/t/data/a%20b.parquet", "data/a%20b.parquet"),
        ("file:///w/t/", "file:/w/t/data/x", "data/x"),
        ("/w/t", "file:///w/t/x", "x"),
        ("s3://b/t", "s3a://b/t/data/x", "data/x"),
        ("s3://b/t", "s3://b/other/x", "s3://b/other/x"),
        ("s3://b/t", "s3://b/tt/x", "s3://b/tt/x"),
        ("file:///w/t", "/v/x", "file:///v/x"),
    ],
)
def test_paths_are_relative_to_the_location(location: str, uri: str, path: str) -> None:
    root = TableRoot(location)
    assert root.path_of(uri) == path
    assert root.path_of(root.uri_of(path)) == path


@pytest.mark.parametrize("uri", ["file:///w/t/../../etc/x", "data/x", "file:///w/t/a/../x", "s3"])
def test_locations_with_tricks_are_refused(uri: str) -> None:
    with pytest.raises(RefusedError):
        TableRoot("file:///w/t").path_of(uri)


def test_admission_is_by_whole_names(tmp_path: Path) -> None:
    admission = Admission([str(tmp_path / "a"), "s3://b/lake", "s3://other"])
    assert admission.admits(f"file://{tmp_path}/a/x")
    assert not admission.admits(f"file://{tmp_path}/ab/x")
    assert admission.admits("s3a://b/lake/x")
    assert not admission.admits("s3://b/lakes/x")
    assert admission.admits("s3://other/x")
    assert not admission.admits("s3://others/x")
    assert Admission(["/", "s3://"]).admits("s3://any/x")
    assert Admission(["/"]).admits("/any/x")
    assert not Admission([]).admits("/any/x")


def test_names_of_pyiceberg_that_are_used_exist() -> None:
    for name in PRIVATE_NAMES:
        parts = name.split(".")
        at = next(i for i, part in enumerate(parts) if part[0].isupper())
        value: Any = __import__(".".join(parts[:at]), fromlist=["x"])
        for part in parts[at:]:
            value = getattr(value, part)


def test_metrics_of_a_file_follow_the_modes_of_the_table(tmp_path: Path) -> None:
    table = table_in(tmp_path, **{"write.metadata.metrics.column.region": "counts"})
    table.append(rows(1, 2))
    reader = source_of(tmp_path)
    head = reader.load()
    footer = parquet.read_metadata(Path(head.root, next(iter(head.files))))
    metrics = json.loads(reader.statistics(head, footer))
    assert metrics["value_counts"] == {"1": 2, "2": 2}
    assert metrics["lower_bounds"].keys() == {"1"}


def test_a_row_group_without_bounds_leaves_its_column_without(tmp_path: Path) -> None:
    """A writer states no bounds of long texts; those of other row groups are not the file's."""
    table_in(tmp_path).append(rows(1))
    reader = source_of(tmp_path)
    long_first = rows(1, 2, 3, 4, region=["a" * 5000, "b", "c", "d"])
    for written, bounded in ((long_first, {"1"}), (long_first.slice(2), {"1", "2"})):
        parquet.write_table(written, tmp_path / "x.parquet", row_group_size=2)
        footer = parquet.read_metadata(tmp_path / "x.parquet")
        metrics = json.loads(reader.statistics(reader.load(), footer))
        assert metrics["lower_bounds"].keys() == metrics["upper_bounds"].keys() == bounded


def test_the_state_has_what_a_commit_needs(tmp_path: Path) -> None:
    table = table_in(tmp_path)
    table.append(rows(1, 2))
    table.delete([1])
    state = source_of(tmp_path).load().state
    assert isinstance(state, IcebergState)
    assert state.metadata_location.removeprefix("file://") == table.metadata
    assert [delete.sequence for delete in state.deletes] == [2]


# ------------------------------------------------------------------------------------------ Mirror


def mirrored_table(head: Snapshot, **options: str) -> Table:
    named = {"uri": "prod:db.events", "table_id": head.table_id, "root": head.root, **options}
    lake = LakeTable(format="iceberg", **named)
    return Table(
        id="t1",
        name="events",
        location=f"file://{head.root}",
        schema=head.columns,
        partition_by=mirror.partition_names("iceberg", head),
        lake=lake,
    )


def test_a_tablet_is_a_partition_of_a_spec(tmp_path: Path) -> None:
    written = table_in(tmp_path)
    written.append(rows(1))
    with written.table.update_spec() as update:
        update.add_identity("region")
    written.append(rows(2, 3, 4, region=["eu", "a/b", None]))
    head = source_of(tmp_path).load()
    table = mirrored_table(head)

    tablets = mirror.tablets_of(table, head.files.values())

    assert mirror.why_refused(table, head) == ""
    assert "attached at" in mirror.why_refused(table, replace(head, root="/elsewhere"))
    assert [tablets[end].partition for end in sorted(tablets)] == [
        "spec=0",
        "spec=1/region=__HIVE_DEFAULT_PARTITION__",
        "spec=1/region=a%2Fb",
        "spec=1/region=eu",
    ]
    types = partition_types(table)
    assert [decode_key(end, types) for end in sorted(tablets)][-1] == (1, "region=eu")


def test_new_equality_deletes_move_the_mirror(tmp_path: Path) -> None:
    written = table_in(tmp_path)
    written.append(rows(1, 2))
    reader = source_of(tmp_path)
    first = reader.load()
    table = mirrored_table(first)
    before = mirror.difference({}, mirror.tablets_of(table, first.files.values())).mirrored
    written.delete_equal(pa.table({"id": [2]}))
    second = reader.load(first)

    changed = mirror.difference(before, mirror.tablets_of(table, second.files.values()))

    ((end, moved),) = changed.steps[0].items()
    (came,) = moved.came
    assert (came.delete_files, came.tombstones) == (1, 0)
    assert mirror.mirrored_of([(end, {came.path: came})]) == changed.mirrored
    again = mirror.difference(changed.mirrored, mirror.tablets_of(table, second.files.values()))
    assert again.steps == ({},)


def test_outputs_lie_where_writers_put_files(tmp_path: Path) -> None:
    written = table_in(tmp_path, BY_REGION)
    written.append(rows(1))
    head = source_of(tmp_path).load()
    assert mirror.data_folder_of(head) == "data"
    root = f"file://{head.root}"
    for path, folder in [(f"{root}/more/files/", "more/files"), ("s3://elsewhere/x", "data")]:
        moved = replace(head, properties={"write.data.path": path})
        assert mirror.data_folder_of(moved) == folder
    job = Job(
        id="j1",
        tablet=TabletId("t1", b"x"),
        table_name="events",
        kind=Kind.SYSTEM,
        inputs=("a", "b"),
        input_bytes=2,
        group="default",
        priority=1,
        reason="small",
        partition="spec=0/region=eu",
    )
    prefix = output_prefix(job, "a1", mirrored_table(head, data_folder="data"))
    assert prefix == "data/region=eu/neve-j1-a1"
    whole = replace(job, partition="spec=0")
    assert output_prefix(whole, "a1", mirrored_table(head, data_folder="data")) == "data/neve-j1-a1"
