"""Expiry of snapshots of Iceberg tables: which may leave, how many in a run, and names of files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2

from common.lake.iceberg.catalogs import GuardedFileIO, LakeFiles, TableRoot
from common.lake.iceberg.expiry import end_of_run, expired
from common.lake.source import LOCATIONS, MaintenanceRules

DAY_MS = 86_400_000
NOW = 100
"""The day on which an operation runs."""


def metadata(
    days: Sequence[float],
    refs: dict[str, dict[str, Any]] | None = None,
    parents: Sequence[int | None] | None = None,
    **more: Any,
) -> TableMetadata:
    """Return a table whose snapshots 1, 2, … were committed on some days, one after another."""
    line = parents or [None, *range(1, len(days))]
    snapshots = [
        {
            "snapshot-id": number,
            "parent-snapshot-id": parent,
            "sequence-number": number,
            "timestamp-ms": int(day * DAY_MS),
            "manifest-list": f"s3://b/t/metadata/snap-{number}.avro",
        }
        for number, (day, parent) in enumerate(zip(days, line, strict=True), 1)
    ]
    main = {"snapshot-id": len(days), "type": "branch"}
    return TableMetadataV2.model_validate(
        {
            "format-version": 2,
            "location": "s3://b/t",
            "last-updated-ms": 0,
            "last-sequence-number": len(days),
            "last-column-id": 0,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "current-snapshot-id": len(days),
            "snapshots": snapshots,
            "refs": {"main": main, **(refs or {})},
            **more,
        }
    )


def gone(table: TableMetadata, **more: Any) -> tuple[list[int], list[str]]:
    given = {"keep_s": 86_400.0, "files_max": 10, **more}
    left = expired(table, MaintenanceRules(now_s=NOW * DAY_MS / 1000, **given))
    return [snapshot.snapshot_id for snapshot in left.snapshots], list(left.refs)


def test_snapshots_older_than_five_days_go_but_never_the_newest() -> None:
    assert gone(metadata([90, 94, 94.9, 95.1, 97])) == ([1, 2, 3], [])
    assert gone(metadata([1, 2, 3])) == ([1, 2], [])
    assert gone(metadata([1])) == ([], [])


def test_a_snapshot_that_was_the_newest_one_within_the_last_day_stays() -> None:
    assert gone(metadata([1, 2, 99.5]))[0] == [1]
    log = [{"snapshot-id": 1, "timestamp-ms": DAY_MS}]
    log += [{"snapshot-id": 3, "timestamp-ms": int(99.5 * DAY_MS)}]  # A rollback to another one.
    assert gone(metadata([1, 2, 3], **{"snapshot-log": log}))[0] == [2]


def test_a_snapshot_is_never_older_than_the_one_before_it() -> None:
    assert gone(metadata([90, 97, 1, 98]))[0] == [1]


def test_a_branch_keeps_a_number_and_a_tag_its_own_snapshot() -> None:
    branch = {"snapshot-id": 3, "type": "branch", "min-snapshots-to-keep": 2}
    assert gone(metadata([1, 2, 3, 4, 5], {"b": branch}))[0] == [1, 4]
    old = {"snapshot-id": 3, "type": "branch", "max-snapshot-age-ms": 98 * DAY_MS}
    assert gone(metadata([1, 2, 3, 4, 5], {"b": old}))[0] == [1, 4]
    tag = {"snapshot-id": 2, "type": "tag"}
    assert gone(metadata([1, 2, 3, 4, 5], {"t": tag}))[0] == [1, 3, 4]
    properties = {"history.expire.min-snapshots-to-keep": "3"}
    assert gone(metadata([1, 2, 3, 4, 5], properties=properties))[0] == [1, 2]


def test_a_branch_or_tag_that_is_too_old_goes_with_its_snapshots_and_main_never() -> None:
    tag = {"snapshot-id": 2, "type": "tag", "max-ref-age-ms": 90 * DAY_MS}
    assert gone(metadata([1, 2, 3], {"t": tag})) == ([1, 2], ["t"])
    properties = {"history.expire.max-ref-age-ms": str(50 * DAY_MS)}
    tags = {"t": {"snapshot-id": 1, "type": "tag"}, "u": {"snapshot-id": 2, "type": "tag"}}
    assert gone(metadata([1, 60, 61], tags, properties=properties)) == ([1], ["t"])


def test_snapshots_of_no_branch_go_when_they_are_old() -> None:
    staged = metadata([90, 91, 94, 98], parents=[None, 1, None, 2])
    assert gone(staged)[0] == [1, 2, 3]
    assert gone(metadata([90, 91, 97, 98], parents=[None, 1, None, 2]))[0] == [1, 2]


def test_versions_that_an_attempt_looks_through_stay() -> None:
    assert gone(metadata([1, 2, 3, 4]), since=3)[0] == [1, 2]


def test_a_run_ends_before_the_snapshot_with_too_many_files() -> None:
    assert end_of_run({0: 3, 1: 3, 2: 3}, 3, 9) == 3
    assert end_of_run({0: 3, 1: 3, 2: 3}, 3, 8) == 2
    assert end_of_run({0: 30, 1: 3}, 2, 8) == 1  # Alone: its other files follow.
    assert end_of_run({-1: 8, 0: 1}, 1, 8) == 0
    assert end_of_run({-1: 7, 0: 1}, 1, 8) == 1


# -------------------------------------------------------------------------------------------- Files


@pytest.fixture
def files(tmp_path: Path) -> LakeFiles:
    (tmp_path / "real").mkdir()
    (tmp_path / "t").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "data").mkdir()
    io = GuardedFileIO({LOCATIONS: str(tmp_path)})
    return LakeFiles(io, TableRoot(f"file://{tmp_path}/t"))


def test_spellings_of_one_file_have_one_key(files: LakeFiles, tmp_path: Path) -> None:
    spellings = (
        f"file://{tmp_path}/t/data/a.parquet",
        f"file:{tmp_path}/t/data//a.parquet",
        f"{tmp_path}/real/data/./A.parquet",
    )
    assert len(set(map(files.key, spellings))) == 1
    assert files.key("s3a://b/t/a") == files.key("S3://b/t/A")
    assert files.key("s3://b/t/a") != files.key("s3://b/t//a")


def test_links_are_not_files_and_names_are_taken_as_they_are(
    files: LakeFiles, tmp_path: Path
) -> None:
    data, outside = tmp_path / "real" / "data", tmp_path / "outside"
    for path in (data / "a", data / "a?b", outside):
        path.write_bytes(b"1")
    (data / "link").symlink_to(outside)
    (data / "folder").symlink_to(tmp_path)
    assert files.stat("data/link") is None
    assert files.stat("data/folder/outside") is None
    assert files.stat("data/missing") is None
    assert files.stat("data") is None
    found = files.stat("data/a?b")
    assert found is not None
    assert found.size_bytes == 1
    files.delete("data/a?b")
    files.delete("data/a?b")
    assert (data / "a").exists()
    assert not (data / "a?b").exists()
