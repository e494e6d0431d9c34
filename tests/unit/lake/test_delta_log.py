"""The log of Delta tables as deltalake writes it, and forms that only other engines write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from common.errors import InputError, RefusedError, UnavailableError
from common.lake.open import open_source
from common.lake.source import Answer, Commit, Look, Snapshot, TableSource
from tests.support.delta_tables import WITH_VECTORS, DeltaTable, removal

UUID = "3a0d65cd-4056-49b8-937b-95f9e3ee90e5"


def rows(first: int, count: int, part: str | None = "x y") -> pa.Table:
    return pa.table({"a": range(first, first + count), "p": pa.array([part] * count, pa.string())})


@pytest.fixture
def writer(tmp_path: Path) -> DeltaTable:
    """A table of four versions with three files."""
    table = DeltaTable(tmp_path / "sales")
    table.append_by_deltalake(rows(0, 10), ["p"], WITH_VECTORS)
    table.append_by_deltalake(rows(10, 10, None))
    table.append_by_deltalake(rows(20, 10, "a/b=c%"))
    table.append_by_deltalake(rows(30, 10))
    return table


def source_of(writer: DeltaTable) -> TableSource:
    return open_source("delta", writer.uri, {})


def values_of(snapshot: Snapshot) -> tuple[Any, ...]:
    """Return what two ways of loading a version must agree on."""
    kept = (snapshot.version, snapshot.table_id, snapshot.columns, snapshot.properties)
    files = {
        path: replace(file, entry="", bounds="", added_at_s=0)
        for path, file in snapshot.files.items()
    }
    return (*kept, files)


def test_a_table_of_another_writer_is_read(writer: DeltaTable) -> None:
    head = source_of(writer).load()

    assert head.version == 3
    assert head.refusal == ""
    assert [(column.name, column.type) for column in head.columns] == [
        ("a", "int64"), ("p", "string"),
    ]  # fmt: skip
    assert sorted(str(dict(file.partition)["p"]) for file in head.files.values()) == [
        "None", "a/b=c%", "x y", "x y",
    ]  # fmt: skip
    for path, file in head.files.items():
        stored = Path(writer.uri, path)
        assert (file.rows, file.deleted_rows, file.deletes) == (10, 0, "")
        assert file.size_bytes == stored.stat().st_size
        assert parquet.read_metadata(stored).num_rows == 10
        assert json.loads(file.bounds)["numRecords"] == 10


def test_only_newer_versions_are_read(writer: DeltaTable) -> None:
    source = source_of(writer)
    first = source.load()
    assert source.load(first) is first

    for version in range(3):  # reading them again fails
        Path(writer.uri, f"_delta_log/{version:020}.json").write_text("{")
    path = Path(writer.uri, "_delta_log", f"{4:020}.json")
    path.write_text(json.dumps({"remove": removal(writer.entries(3)[-1]["add"])}))
    second = source.load(first)

    assert len(first.files) == 4
    assert second.version == 4
    assert len(second.files) == 3
    assert second.steady_since == first.steady_since == 0


def test_a_checkpoint_is_the_versions_below_it(writer: DeltaTable) -> None:
    path = next(iter(writer.live()))
    writer.delete_by_vector(path, [1, 5])
    before = source_of(writer).load()
    writer.table.create_checkpoint()
    for version in range(4):
        Path(writer.uri, f"_delta_log/{version:020}.json").unlink()
    writer.append_by_deltalake(rows(40, 10))
    after = source_of(writer).load()

    assert values_of(source_of(writer).load(before)) == values_of(after)
    assert after.files.items() >= before.files.items()
    assert after.steady_since == 4
    assert source_of(writer).load(before).steady_since == 0


def test_a_gap_below_a_checkpoint_ends_what_was_steady(writer: DeltaTable) -> None:
    source = source_of(writer)
    first = source.load()
    writer.append_by_deltalake(rows(40, 10))
    writer.append_by_deltalake(rows(50, 10))
    writer.table.create_checkpoint()
    Path(writer.uri, f"_delta_log/{4:020}.json").unlink()
    second = source.load(first)

    assert second.version == second.steady_since == 5
    assert len(second.files) == 6


def test_a_missing_version_is_no_snapshot(writer: DeltaTable) -> None:
    source = source_of(writer)
    Path(writer.uri, f"_delta_log/{2:020}.json").unlink()
    with pytest.raises(UnavailableError, match=r"version 2 .* is missing"):
        source.load()


def test_another_table_at_the_location_is_read_whole(writer: DeltaTable) -> None:
    source = source_of(writer)
    first = source.load()
    shutil.rmtree(writer.uri)
    other = DeltaTable(writer.uri)
    for _ in range(6):
        other.append_by_deltalake(rows(0, 10), ["p"])
    second = source.load(first)

    assert second.table_id != first.table_id
    assert len(second.files) == 6


# ---------------------------------------------------------------------------- Checkpoints by parts


def checkpoint_tables(writer: DeltaTable) -> tuple[pa.Table, pa.Table]:
    """Return the actions of a checkpoint of the head apart: without and with files."""
    writer.table.create_checkpoint()
    path = Path(writer.uri, "_delta_log", f"{writer.version:020}.checkpoint.parquet")
    table = parquet.ParquetFile(path).read()
    path.unlink()
    Path(writer.uri, "_delta_log/_last_checkpoint").unlink()
    is_file = table["add"].is_valid()
    return table.filter(pa.compute.invert(is_file)), table.filter(is_file)


def only_checkpoint(writer: DeltaTable, keep: str = "") -> None:
    for path in Path(writer.uri, "_delta_log").glob("*.json"):
        if path.name != keep:
            path.unlink()


@pytest.mark.parametrize("form", ["parts", "sidecars", "json"])
def test_checkpoints_of_other_engines_are_read(writer: DeltaTable, form: str) -> None:
    path = next(iter(writer.live()))
    writer.delete_by_vector(path, [1, 5])
    before = source_of(writer).load()
    rest, files = checkpoint_tables(writer)
    folder = Path(writer.uri, "_delta_log")
    keep = ""
    if form == "parts":
        for number, part in enumerate((files.slice(0, 1), rest, files.slice(1)), 1):
            parquet.write_table(part, folder / f"{4:020}.checkpoint.{number:010}.{3:010}.parquet")
    else:
        (folder / "_sidecars").mkdir()
        parquet.write_table(files.select(["add"]), folder / "_sidecars" / f"{UUID}.parquet")
        sidecar = {"path": f"{UUID}.parquet", "sizeInBytes": 1, "modificationTime": 1, "tags": None}
        if form == "json":
            keep = f"{4:020}.checkpoint.{UUID}.json"
            entries = [
                {"protocol": writer.entries(0)[1]["protocol"]},
                {"metaData": writer.entries(0)[2]["metaData"]},
                {"sidecar": sidecar},
            ]
            (folder / keep).write_text("\n".join(map(json.dumps, entries)))
        else:
            shape = pa.struct(
                [("path", pa.string()), ("sizeInBytes", pa.int64()),
                 ("modificationTime", pa.int64()), ("tags", pa.map_(pa.string(), pa.string()))]
            )  # fmt: skip
            values = pa.array([*[None] * rest.num_rows, sidecar], shape)
            rest = pa.concat_tables([rest, rest.slice(0, 1)]) if rest.num_rows else rest
            rest = rest.drop_columns([*({"sidecar"} & set(rest.column_names))])
            parquet.write_table(
                rest.append_column("sidecar", values),
                folder / f"{4:020}.checkpoint.{UUID}.parquet",
            )
    only_checkpoint(writer, keep)

    after = source_of(writer).load()
    assert values_of(after) == values_of(before)
    assert after.steady_since == 4
    assert source_of(writer).load(after) is after


def test_a_checkpoint_without_all_its_parts_is_none(writer: DeltaTable) -> None:
    before = source_of(writer).load()
    rest, files = checkpoint_tables(writer)
    for number, part in enumerate((files, rest), 1):
        parquet.write_table(
            part, Path(writer.uri, f"_delta_log/{3:020}.checkpoint.{number:010}.{3:010}.parquet")
        )

    assert source_of(writer).load() == before


# -------------------------------------------------------------------------------- Deletion vectors


@pytest.mark.parametrize("storage", ["i", "u", "p"])
def test_deletes_are_read_however_they_are_stored(writer: DeltaTable, storage: str) -> None:
    source = source_of(writer)
    before = source.load()
    path = next(iter(writer.live()))
    writer.delete_by_vector(path, [1, 5, 9], storage)
    after = source.load(before)
    (file,) = [file for file in after.files.values() if file.deletes]

    assert file.deleted_rows == 3
    assert source.positions(file).tolist() == [1, 5, 9]
    assert source.positions(next(iter(before.files.values()))).tolist() == []
    writer.delete_by_vector(path, [1, 5, 9, 2], storage)
    newer = source.load(after)
    assert newer.files[file.path].deletes != file.deletes
    assert newer.steady_since == 0


def test_a_remove_that_names_no_vector_leaves_the_file(writer: DeltaTable) -> None:
    path = next(iter(writer.live()))
    version = writer.delete_by_vector(path, [1, 5, 9])
    add = writer.entries(version)[-1]["add"]
    writer.commit({"remove": removal({**add, "deletionVector": None})})

    assert len(source_of(writer).load().files) == 4


def test_a_file_with_two_vectors_at_once_is_refused(writer: DeltaTable) -> None:
    add = next(iter(writer.live().values()))
    writer.commit({"add": {**add, "deletionVector": writer.vector([3])}})

    with pytest.raises(RefusedError, match="listed twice with other deletion vectors"):
        source_of(writer).load()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"cardinality": 2}, "more positions than the log states"),
        ({"sizeInBytes": 3}, "expected 3"),
        ({"offset": 0}, r"deletion vector has \d+ bytes, expected"),
        ({"pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^"}, "is missing"),
        ({"pathOrInlineDv": "nonsense"}, "Base85"),
    ],
)
def test_damaged_vectors_fail_the_file(
    writer: DeltaTable, changes: Mapping[str, Any], problem: str
) -> None:
    add = next(iter(writer.live().values()))
    vector = {**writer.vector([3, 4, 9]), **changes}
    writer.commit({"remove": removal(add)}, {"add": {**add, "deletionVector": vector}})
    (file,) = [file for file in source_of(writer).load().files.values() if file.deletes]

    with pytest.raises(InputError, match=problem):
        source_of(writer).positions(file)


def test_a_vector_above_the_rows_of_its_file_fails_it(writer: DeltaTable) -> None:
    writer.delete_by_vector(next(iter(writer.live())), [3, 10])
    (file,) = [file for file in source_of(writer).load().files.values() if file.deletes]

    with pytest.raises(InputError, match="has 10 rows; row 10 is deleted"):
        source_of(writer).positions(file)


@pytest.mark.parametrize("text", ["/etc/passwd", "s3://other/x.bin", "file:///etc/x.bin"])
def test_vectors_outside_of_the_table_are_not_read(writer: DeltaTable, text: str) -> None:
    add = next(iter(writer.live().values()))
    vector = {**writer.vector([3]), "storageType": "p", "pathOrInlineDv": text}
    writer.commit({"remove": removal(add)}, {"add": {**add, "deletionVector": vector}})
    (file,) = [file for file in source_of(writer).load().files.values() if file.deletes]

    with pytest.raises(RefusedError, match="outside of the table"):
        source_of(writer).positions(file)


# ------------------------------------------------------------------------------------ Look and send


def test_an_attempt_is_found_by_its_name_or_its_outputs(writer: DeltaTable) -> None:
    source = source_of(writer)
    head = source.load()
    assert source.send(Commit(head, "attempt-1", now_s=5)) is Answer.COMMITTED
    add = writer.entries(3)[-1]["add"]

    assert source.look("attempt-1", [], 3).version == 4
    assert source.look("attempt-1", [], 4).look is Look.ABSENT
    assert source.look("attempt-2", [], 3).look is Look.ABSENT
    by_output = source.look("attempt-2", ["nowhere", *head.files], 2)
    assert (by_output.look, by_output.version, len(by_output.outputs)) == (Look.FOUND, 3, 1)
    assert add["path"].startswith("p=x%2520y/")


def test_a_look_without_all_versions_cannot_tell(writer: DeltaTable) -> None:
    source = source_of(writer)
    Path(writer.uri, f"_delta_log/{2:020}.json").unlink()

    assert source.look("attempt-1", [], 2).look is Look.ABSENT
    assert source.look("attempt-1", [], 1).reason.startswith("version 2 ")
    assert source.look("attempt-1", [], 1).look is Look.CANNOT_TELL
    assert source.look("attempt-1", [], 9).look is Look.CANNOT_TELL


def test_a_version_below_a_checkpoint_that_lacks_it_is_no_commit(writer: DeltaTable) -> None:
    source = source_of(writer)
    late = source.load()
    writer.append_by_deltalake(rows(40, 10))
    writer.append_by_deltalake(rows(50, 10))
    writer.table.create_checkpoint()
    Path(writer.uri, f"_delta_log/{4:020}.json").unlink()

    assert source.send(Commit(late, "attempt-1", now_s=5)) is Answer.COMMITTED
    sighting = source.look("attempt-1", [], 3)
    assert sighting.look is Look.CANNOT_TELL
    assert sighting.reason == "the checkpoint of version 5 does not know the files of version 4"


def test_two_writers_cannot_create_the_same_version(writer: DeltaTable) -> None:
    source = source_of(writer)
    head = source.load()
    writer.append_by_deltalake(rows(40, 10))
    before = writer.entries(4)

    assert source.send(Commit(head, "attempt-1", now_s=5)) is Answer.CONFLICT
    assert writer.entries(4) == before
    source.require_conditions("trial")
    assert not list(Path(writer.uri, "_delta_log").glob(".*"))


def test_the_time_of_a_version_is_above_the_one_before(writer: DeltaTable) -> None:
    protocol = writer.entries(0)[1]["protocol"]
    metadata = writer.entries(0)[2]["metaData"]
    protocol["writerFeatures"].append("inCommitTimestamp")
    metadata["configuration"]["delta.enableInCommitTimestamps"] = "true"
    info = {"inCommitTimestamp": 10**15, "timestamp": 1}
    writer.commit({"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata})
    source = source_of(writer)
    head = source.load()
    assert source.send(Commit(head, "attempt-1", now_s=5)) is Answer.COMMITTED

    (entry,) = writer.entries(5)
    assert next(iter(entry["commitInfo"])) == "inCommitTimestamp"
    assert entry["commitInfo"]["inCommitTimestamp"] == 10**15 + 1
    assert source.load(head).changed_at_s == (10**15 + 1) / 1000


def test_a_change_of_schema_properties_or_features_is_seen(writer: DeltaTable) -> None:
    source = source_of(writer)
    head = source.load()
    writer.commit({"metaData": writer.entries(0)[2]["metaData"]})  # the same again
    assert source.load(head).steady_since == 0

    domain = {"domain": "d", "configuration": "{}", "removed": False}
    writer.commit({"domainMetadata": domain})
    head = source.load(head)
    assert head.steady_since == 5
    writer.commit({"domainMetadata": domain})
    assert source.load(head).steady_since == 5
    writer.commit({"domainMetadata": {**domain, "removed": True}})
    assert source.load(head).steady_since == 7


def test_own_outputs_are_deleted_and_missing_ones_skipped(writer: DeltaTable) -> None:
    path = Path(writer.uri, "p=x%20y", "attempt-1 ü#.parquet")
    path.write_bytes(b"x")
    source_of(writer).delete(["p=x%20y/attempt-1 ü#.parquet", "p=x%20y/none.parquet"])

    assert not path.exists()
    assert np.all([Path(writer.uri, file).exists() for file in source_of(writer).load().files])
