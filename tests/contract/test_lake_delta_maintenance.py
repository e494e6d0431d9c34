"""Checkpoint, clean-up of the log and vacuum of a Delta table, on a disk and in S3.

Afterwards deltalake and Polars read what they read before, older versions within the retention
included. Time passes by the clock that an operation is given: files are as old as it says.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import obstore
import pyarrow as pa
import pytest
from deltalake import QueryBuilder
from pyarrow import parquet

from common.errors import RefusedError
from common.lake import rules
from common.lake.open import open_source
from common.lake.source import (
    Answer,
    Freed,
    LakeSurvey,
    Look,
    MaintenanceRules,
    Snapshot,
    TableSource,
)
from tests.support.delta_tables import WITH_VECTORS, DeltaTable, removal
from tests.support.race_attempt import LakeAttempt
from tests.support.s3_server import S3Server, s3_server

DAY_S = 86_400.0
ATTEMPT = "0123456789abcdef"
EVERYWHERE = pytest.mark.parametrize(
    "kept", ["disk", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
"""For what depends on the storage; the others meet S3 in `make long` alone."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        server.create_bucket("lakes")
        yield server


class Kept:
    """A table of three files with 10 rows each, in partitions with strange names."""

    def __init__(self, writer: DeltaTable) -> None:
        self.writer = writer
        for number, part in enumerate(["x y", None, "a/b=c%"]):
            self.append(number * 10, part)
        self.source: TableSource = open_source("delta", writer.uri, writer.options)

    def append(self, first: int, part: str | None = "x y", count: int = 10) -> None:
        parts = pa.array([part] * count, pa.string())
        rows = pa.table({"a": range(first, first + count), "p": parts})
        self.writer.append_by_deltalake(rows, ["p"], WITH_VECTORS)

    def rules(self, later_s: float, **more: Any) -> MaintenanceRules:
        """Return rules of an operation that runs some time from now."""
        now_s = time.time() + later_s
        given = {"keep_s": DAY_S, "files_max": 1000, "own_name": "neve-", **more}
        return MaintenanceRules(now_s=now_s, **given)

    def survey(self, operation: str, later_s: float, **more: Any) -> LakeSurvey:
        return self.source.survey(operation, self.source.load(), self.rules(later_s, **more))

    def run(self, operation: str, later_s: float = 8 * DAY_S, **more: Any) -> Freed:
        """LakeSurvey, and carry it out at once."""
        survey = self.survey(operation, later_s, **more)
        return self.carry_out(survey, later_s, **more)

    def carry_out(self, survey: LakeSurvey, later_s: float, **more: Any) -> Freed:
        return self.source.carry_out(survey, self.source.load(), self.rules(later_s, **more))

    def checkpoint(self) -> Freed:
        return self.run("checkpoint", 0, is_asked=True)

    def names(self, prefix: str = "") -> set[str]:
        """Return all files of the folder."""
        listed = [meta["path"] for chunk in obstore.list(self.writer.store) for meta in chunk]
        return {path for path in listed if path.startswith(prefix)}

    def data(self) -> set[str]:
        """Return all files but those of the log."""
        return {path for path in self.names() if not path.startswith("_delta_log/")}

    def put(self, path: str, content: bytes = b"PAR1") -> None:
        obstore.put(self.writer.store, path, content)

    def rows(self, version: int | None = None) -> Counter[Any]:
        """Return the values of `a` that deltalake reads at a version, as Polars does."""
        table = deltalake.DeltaTable(self.writer.uri, version, storage_options=self.writer.options)
        reader = QueryBuilder().register("t", table).execute("select a from t")
        values = Counter(pa.table(reader.read_all())["a"].to_pylist())
        if version is None and not any("%" in path for path in self.source.load().files):
            assert Counter(value for (value,) in self.writer.polars_rows("a").elements()) == values
        return values


@pytest.fixture(params=["disk", pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.long])])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Kept:
    if request.param == "disk":
        return Kept(DeltaTable(tmp_path / "sales"))
    server: S3Server = request.getfixturevalue("server")
    options = {
        "AWS_ENDPOINT": server.endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "eu-central-1",
        "AWS_ALLOW_HTTP": "true",
    }
    return Kept(DeltaTable(f"s3://lakes/{uuid.uuid4().hex}", options))


def comparable(snapshot: Snapshot) -> Any:
    files = {path: replace(file, entry="") for path, file in snapshot.files.items()}
    return snapshot.version, snapshot.table_id, snapshot.columns, snapshot.properties, files


def log_name(version: int, end: str = "json") -> str:
    return f"_delta_log/{version:020}.{end}"


def hint(kept: Kept) -> dict[str, Any]:
    data = bytes(obstore.get(kept.writer.store, "_delta_log/_last_checkpoint").bytes())
    found: dict[str, Any] = json.loads(data)
    return found


def only_from(kept: Kept, version: int) -> None:
    """Delete the versions below one, so that readers need its checkpoint."""
    for number in range(version):
        obstore.delete(kept.writer.store, [log_name(number)])


# -------------------------------------------------------------------------------------- Checkpoint


def require_only_checkpoint(kept: Kept, head: Snapshot, rows: Counter[Any]) -> None:
    """Check that a checkpoint of the head is all that readers and writers need."""
    only_from(kept, head.version)
    again = open_source("delta", kept.writer.uri, kept.writer.options).load()
    assert comparable(again) == comparable(head)
    assert kept.rows() == rows
    kept.append(40)
    assert kept.rows() == rows + Counter(range(40, 50))


def checkpoint_actions(kept: Kept, path: str) -> dict[str, list[dict[str, Any]]]:
    """Return the actions of a checkpoint by name, as Arrow reads them."""
    data = bytes(obstore.get(kept.writer.store, path).bytes())
    table = parquet.read_table(pa.BufferReader(data))
    return {
        name: [value for value in table[name].to_pylist(maps_as_pydicts="strict") if value]
        for name in table.schema.names
    }


@EVERYWHERE
def test_a_checkpoint_has_all_that_the_versions_below_have(kept: Kept) -> None:
    live = kept.writer.live()
    old, new, third = sorted(live)
    now_ms = int(time.time() * 1000)
    kept.writer.delete_by_vector(old, [1, 2])
    kept.writer.delete_by_vector(old, [1, 2, 3], "i")
    gone = {**removal(kept.writer.live()[new], True), "deletionTimestamp": now_ms}
    kept.writer.commit({"remove": gone}, {"txn": {"appId": "job", "version": 7}})
    kept.writer.commit(
        {"txn": {"appId": "job", "version": 8, "lastUpdated": now_ms}},
        {"domainMetadata": {"domain": "d", "configuration": "{}", "removed": False}},
        {"domainMetadata": {"domain": "old", "configuration": "", "removed": True}},
    )
    kept.append(30)
    head, rows = kept.source.load(), kept.rows()
    freed = kept.checkpoint()

    assert freed == Freed(created=f"checkpoint of version {head.version}")
    assert hint(kept)["version"] == head.version
    actions = checkpoint_actions(kept, log_name(head.version, "checkpoint.parquet"))
    assert hint(kept)["size"] == sum(map(len, actions.values()))
    assert hint(kept)["numOfAddFiles"] == len(actions["add"]) == 3
    assert [(one["appId"], one["version"]) for one in actions["txn"]] == [("job", 8)]
    assert [one["domain"] for one in actions["domainMetadata"]] == ["d"]
    (removed,) = [one for one in actions["remove"] if one["deletionTimestamp"] == now_ms]
    assert unquote(removed["path"]) == new
    adds = {unquote(add["path"]): add for add in actions["add"]}
    assert adds[old]["deletionVector"]["cardinality"] == 3
    assert adds[third]["stats"] == live[third]["stats"]
    assert adds[third]["modificationTime"] == live[third]["modificationTime"]
    require_only_checkpoint(kept, head, rows)


def test_a_checkpoint_follows_from_the_one_below(kept: Kept) -> None:
    kept.writer.table.create_checkpoint()
    first = sorted(kept.writer.live())[0]
    kept.writer.delete_by_vector(first, [0])
    kept.append(30)
    head, rows = kept.source.load(), kept.rows()
    kept.checkpoint()
    second = kept.checkpoint()

    assert second == Freed()
    only_from(kept, head.version)
    obstore.delete(kept.writer.store, [log_name(2, "checkpoint.parquet")])
    again = open_source("delta", kept.writer.uri, kept.writer.options).load()
    assert comparable(again) == comparable(head)
    assert kept.rows() == rows


def test_a_checkpoint_is_due_after_as_many_versions_as_the_table_says(kept: Kept) -> None:
    metadata = kept.writer.entries(0)
    (entry,) = [line["metaData"] for line in metadata if "metaData" in line]
    entry["configuration"]["delta.checkpointInterval"] = "6"
    kept.writer.commit({"metaData": entry})
    assert not kept.survey("checkpoint", 0).has_work
    kept.append(30)
    assert kept.survey("checkpoint", 0).why == (
        "5 of 6 versions have come since the last checkpoint"
    )
    kept.writer.commit({"txn": {"appId": "job", "version": 1}})  # deltalake would write one itself
    assert kept.survey("checkpoint", 0).creates == "checkpoint of version 5"


def test_a_second_kind_of_checkpoint_is_written_if_the_table_asks(kept: Kept) -> None:
    lines = kept.writer.entries(0)
    (protocol,) = [line["protocol"] for line in lines if "protocol" in line]
    (entry,) = [line["metaData"] for line in lines if "metaData" in line]
    entry["configuration"]["delta.checkpointPolicy"] = "v2"
    for name in ("readerFeatures", "writerFeatures"):
        protocol[name] = [*protocol[name], "v2Checkpoint"]
    kept.writer.commit({"protocol": protocol}, {"metaData": entry})
    head, rows = kept.source.load(), kept.rows()
    kept.checkpoint()

    (name,) = kept.names("_delta_log/00000000000000000003.checkpoint.")
    assert len(name.split(".")[2]) == 36
    assert checkpoint_actions(kept, name)["checkpointMetadata"] == [{"version": 3, "tags": None}]
    only_from(kept, head.version)
    again = open_source("delta", kept.writer.uri, kept.writer.options).load()
    assert comparable(again) == comparable(head)
    assert kept.rows() == rows


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"add": {"rowLength": 4}}, "add has the field rowLength"),
        ({"watermark": {"at": 4}}, "the action watermark"),
    ],
)
def test_nothing_is_lost_that_a_checkpoint_does_not_know(
    kept: Kept, line: dict[str, Any], reason: str
) -> None:
    if "add" in line:
        line = {"add": {**next(iter(kept.writer.live().values())), **line["add"]}}
    kept.writer.commit(line)
    with pytest.raises(RefusedError, match=reason):
        kept.checkpoint()
    assert not [name for name in kept.names("_delta_log/") if "checkpoint" in name]


def test_a_checkpoint_of_another_writer_is_left_and_pointed_to(kept: Kept) -> None:
    survey = kept.survey("checkpoint", 0, is_asked=True)
    kept.writer.table.create_checkpoint()
    before = bytes(obstore.get(kept.writer.store, log_name(2, "checkpoint.parquet")).bytes())
    obstore.delete(kept.writer.store, ["_delta_log/_last_checkpoint"])
    freed = kept.carry_out(survey, 0)

    assert freed.created == "pointer to the checkpoint of version 2"
    after = bytes(obstore.get(kept.writer.store, log_name(2, "checkpoint.parquet")).bytes())
    assert before == after
    assert hint(kept)["version"] == 2


def test_a_writer_that_died_before_it_pointed_to_its_checkpoint_is_helped(kept: Kept) -> None:
    kept.checkpoint()
    obstore.delete(kept.writer.store, ["_delta_log/_last_checkpoint"])
    assert kept.survey("checkpoint", 0).creates == "pointer to the checkpoint of version 2"
    kept.checkpoint()
    assert hint(kept)["version"] == 2


def test_a_wrong_checkpoint_of_another_writer_is_not_pointed_to(kept: Kept) -> None:
    head = kept.source.load()
    kept.checkpoint()
    path = log_name(2, "checkpoint.parquet")
    data = bytes(obstore.get(kept.writer.store, path).bytes())
    table = parquet.read_table(pa.BufferReader(data))
    sink = pa.BufferOutputStream()
    parquet.write_table(table.slice(0, table.num_rows - 1), sink)
    kept.put(path, sink.getvalue().to_pybytes())
    obstore.delete(kept.writer.store, ["_delta_log/_last_checkpoint"])
    survey = LakeSurvey(operation="checkpoint", version=2, creates="it")
    with pytest.raises(RefusedError, match="has 2 files, expected 3"):
        kept.source.carry_out(survey, head, kept.rules(0))
    assert "_delta_log/_last_checkpoint" not in kept.names()


# --------------------------------------------------------------------------------- Clean-up of logs


@EVERYWHERE
def test_old_versions_below_a_checkpoint_are_deleted(kept: Kept) -> None:
    kept.checkpoint()
    kept.append(30)
    kept.writer.table.create_checkpoint()
    kept.append(40)
    rows, before = kept.rows(), kept.names("_delta_log/")
    assert not kept.survey("log-cleanup", 29 * DAY_S).has_work
    survey = kept.survey("log-cleanup", 31 * DAY_S)
    assert [file.path for file in survey.files] == [
        log_name(0), log_name(1), log_name(2, "checkpoint.parquet"), log_name(2),
    ]  # fmt: skip
    assert kept.names("_delta_log/") == before
    freed = kept.carry_out(survey, 31 * DAY_S)

    assert (freed.files, freed.size_bytes) == (4, survey.size_bytes)
    assert freed.size_bytes > 0
    assert before - kept.names("_delta_log/") == {file.path for file in survey.files}
    assert kept.rows() == rows
    assert kept.rows(3) == Counter(range(40))
    assert not kept.survey("log-cleanup", 31 * DAY_S).has_work


def test_a_run_deletes_the_oldest_versions_and_the_next_one_goes_on(kept: Kept) -> None:
    for number in range(3, 6):
        kept.append(number * 10)
    kept.checkpoint()
    rows = kept.rows()
    survey = kept.survey("log-cleanup", 31 * DAY_S, files_max=2)
    assert ([file.path for file in survey.files], survey.more) == ([log_name(0), log_name(1)], 3)
    kept.carry_out(survey, 31 * DAY_S)
    kept.carry_out(survey, 31 * DAY_S)  # Repeated after a lost answer.
    assert kept.rows() == rows
    kept.run("log-cleanup", 31 * DAY_S)
    assert kept.names("_delta_log/") == {
        log_name(5), log_name(5, "checkpoint.parquet"), "_delta_log/_last_checkpoint",
    }  # fmt: skip
    assert kept.rows() == rows


def test_versions_that_an_attempt_looks_through_stay(kept: Kept) -> None:
    kept.checkpoint()
    kept.append(30)
    kept.append(40)
    kept.writer.table.create_checkpoint()
    survey = kept.survey("log-cleanup", 40 * DAY_S, since=3)
    assert survey.floor == 2
    kept.carry_out(survey, 40 * DAY_S, since=3)
    assert kept.source.look(ATTEMPT, ["neve-x.parquet"], 3).look is Look.ABSENT
    whole = kept.survey("log-cleanup", 40 * DAY_S)
    assert whole.floor == 4
    with pytest.raises(RefusedError, match="an attempt has planned on version 3"):
        kept.carry_out(whole, 40 * DAY_S, since=3)


def test_the_checkpoint_that_readers_are_pointed_to_stays(kept: Kept) -> None:
    kept.checkpoint()
    pointer = json.dumps(hint(kept)).encode()
    kept.append(30)
    kept.checkpoint()
    kept.put("_delta_log/_last_checkpoint", pointer)
    assert kept.survey("log-cleanup", 40 * DAY_S).floor == 2


def test_a_checkpoint_that_lacks_something_is_no_reason_to_delete(kept: Kept) -> None:
    kept.checkpoint()
    path = log_name(2, "checkpoint.parquet")
    data = bytes(obstore.get(kept.writer.store, path).bytes())
    table = parquet.read_table(pa.BufferReader(data))
    sink = pa.BufferOutputStream()
    parquet.write_table(table.slice(0, table.num_rows - 1), sink)
    kept.append(30)
    whole = kept.source.load()
    kept.put(path, sink.getvalue().to_pybytes())
    with pytest.raises(RefusedError, match="has 2 files, expected 3"):
        kept.source.survey("log-cleanup", whole, kept.rules(40 * DAY_S))
    kept.put(path, b"PAR1")
    with pytest.raises(RefusedError, match="unreadable"):
        kept.source.survey("log-cleanup", whole, kept.rules(40 * DAY_S))


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"delta.enableExpiredLogCleanup": "false"}, "delta.enableExpiredLogCleanup forbids"),
        ({"delta.logRetentionDuration": "interval 50 days"}, "no checkpoint is older"),
        ({"delta.deletedFileRetentionDuration": "interval 50 days"}, "no checkpoint is older"),
    ],
)
def test_the_table_says_how_long_versions_stay(
    kept: Kept, properties: dict[str, str], reason: str
) -> None:
    (entry,) = [line["metaData"] for line in kept.writer.entries(0) if "metaData" in line]
    entry["configuration"] |= properties
    kept.writer.commit({"metaData": entry})
    kept.checkpoint()
    survey = kept.survey("log-cleanup", 40 * DAY_S)
    assert not survey.has_work
    assert reason in survey.why


def test_a_duration_that_is_not_known_deletes_nothing(kept: Kept) -> None:
    (entry,) = [line["metaData"] for line in kept.writer.entries(0) if "metaData" in line]
    entry["configuration"]["delta.deletedFileRetentionDuration"] = "interval 1 month"
    kept.writer.commit({"metaData": entry})
    for operation in ("log-cleanup", "vacuum"):
        with pytest.raises(RefusedError, match="expected a duration"):
            kept.survey(operation, 400 * DAY_S)


def test_a_version_with_a_later_time_than_its_file_stays(kept: Kept) -> None:
    later_ms = int((time.time() + 20 * DAY_S) * 1000)
    kept.writer.commit({"commitInfo": {"timestamp": later_ms}})
    kept.checkpoint()
    with pytest.raises(RefusedError, match="version 3 states a time within the retention"):
        kept.survey("log-cleanup", 31 * DAY_S)


# ------------------------------------------------------------------------------------------ Vacuum


@EVERYWHERE
def test_replaced_files_are_deleted_after_the_retention(kept: Kept) -> None:
    first, *_ = kept.paths = sorted(kept.source.load().files)
    kept.writer.table.delete("a = 5")
    rows, before = kept.rows(), kept.data()
    (old,) = before - kept.source.load().files.keys()
    assert kept.survey("vacuum", 6 * DAY_S).spared == {}
    assert not kept.survey("vacuum", 6 * DAY_S).has_work
    survey = kept.survey("vacuum", 8 * DAY_S)
    assert [file.path for file in survey.files] == [old]
    assert kept.data() == before, first
    freed = kept.carry_out(survey, 8 * DAY_S)

    assert (freed.files, freed.size_bytes) == (1, survey.size_bytes)
    assert kept.data() == before - {old}
    assert kept.rows() == rows
    assert kept.run("vacuum").files == 0


def test_vectors_that_no_version_names_are_deleted(kept: Kept) -> None:
    path = sorted(kept.writer.live())[0]
    kept.writer.delete_by_vector(path, [1], "u")
    kept.writer.delete_by_vector(path, [1, 2], "p")
    other = sorted(kept.writer.live())[1]
    kept.writer.delete_by_vector(other, [3], "i")
    rows = kept.rows()
    vectors = {name for name in kept.data() if name.startswith("deletion_vector_")}
    assert len(vectors) == 2
    freed = kept.run("vacuum")
    left = {name for name in kept.data() if name.startswith("deletion_vector_")}
    assert (freed.files, len(left)) == (1, 1)
    head = kept.source.load()
    assert sorted(file.deleted_rows for file in head.files.values()) == [0, 1, 2]
    assert [kept.source.positions(file).size for file in head.files.values()].count(2) == 1
    assert kept.rows() == rows


def test_versions_within_the_retention_stay_readable(kept: Kept) -> None:
    """Files that were replaced within the retention stay, and so do their vectors."""
    path = sorted(kept.writer.live())[0]
    kept.writer.delete_by_vector(path, [1])
    kept.writer.table.optimize.compact()
    before = {version: kept.rows(version) for version in range(kept.writer.version + 1)}
    for days in (0, 3, 6.9):
        assert not kept.survey("vacuum", days * DAY_S).has_work
        kept.run("vacuum", days * DAY_S)
    assert before == {version: kept.rows(version) for version in before}


def test_removals_that_only_a_checkpoint_names_count(kept: Kept) -> None:
    """The log below was cleaned up early: the time in the checkpoint protects its files."""
    path = sorted(kept.writer.live())[0]
    removed_ms = int((time.time() + 4 * DAY_S) * 1000)
    gone = {**removal(kept.writer.live()[path], True), "deletionTimestamp": removed_ms}
    kept.writer.commit({"remove": gone})
    kept.checkpoint()
    only_from(kept, 3)
    kept.append(30)
    assert not kept.survey("vacuum", 10 * DAY_S).has_work
    assert len(kept.survey("vacuum", 12 * DAY_S).files) == 1


def test_the_table_may_keep_files_longer_but_not_shorter_than_attempts_need(kept: Kept) -> None:
    (entry,) = [line["metaData"] for line in kept.writer.entries(0) if "metaData" in line]
    entry["configuration"]["delta.deletedFileRetentionDuration"] = "interval 0 hours"
    kept.writer.commit({"metaData": entry})
    kept.writer.table.delete("a = 5")
    assert not kept.survey("vacuum", 0.9 * DAY_S).has_work
    assert kept.survey("vacuum", 1.1 * DAY_S).has_work
    entry["configuration"]["delta.deletedFileRetentionDuration"] = "interval 2 weeks"
    kept.writer.commit({"metaData": entry})
    assert not kept.survey("vacuum", 13 * DAY_S).has_work
    assert kept.survey("vacuum", 15 * DAY_S).has_work


def test_a_file_of_a_writer_that_commits_between_survey_and_deletion_stays(kept: Kept) -> None:
    add = {**next(iter(kept.writer.live().values())), "path": "part-new.parquet"}
    add["partitionValues"] = {"p": None}
    source = kept.writer.live()
    data = bytes(obstore.get(kept.writer.store, next(iter(kept.source.load().files))).bytes())
    kept.put("part-new.parquet", data)
    kept.put("part-old.parquet", data)
    survey = kept.survey("vacuum", 8 * DAY_S)
    assert {file.path for file in survey.files} == {"part-new.parquet", "part-old.parquet"}
    kept.writer.commit({"add": {**add, "size": len(data)}})
    freed = kept.carry_out(survey, 8 * DAY_S)

    assert (freed.files, dict(freed.spared)) == (1, {"named by a version since the survey": 1})
    assert "part-new.parquet" in kept.data()
    assert len(source) == 3
    assert len(kept.rows()) == 30


def test_a_restore_to_an_older_version_between_survey_and_deletion_is_safe(kept: Kept) -> None:
    kept.writer.table.delete("a = 5")
    rows = kept.rows(2)
    survey = kept.survey("vacuum", 8 * DAY_S)
    assert len(survey.files) == 1
    kept.writer.table.restore(2)
    freed = kept.carry_out(survey, 8 * DAY_S)
    assert freed.files == 0
    assert kept.rows() == rows


def test_a_running_attempt_keeps_its_files(kept: Kept) -> None:
    attempt = LakeAttempt(ATTEMPT, kept.source, kept.writer)
    head = kept.source.load()
    inputs = [path for path in head.files if head.files[path].partition[0][1] == "x y"]
    kept.append(30)
    state = attempt.rewrite(kept.source.load(), [inputs])
    written = frozenset(output.path for output in state.outputs)
    survey = kept.survey("vacuum", 8 * DAY_S)
    assert {file.path for file in survey.files} == written
    assert kept.survey("vacuum", 8 * DAY_S, kept=written).spared == {"needed by an attempt": 1}
    freed = kept.carry_out(survey, 8 * DAY_S, kept=written)
    assert dict(freed.spared) == {"needed by an attempt": 1}
    end = attempt.publish(state)
    assert end.ending is rules.PublishEnd.COMMITTED
    freed = kept.carry_out(survey, 8 * DAY_S)
    assert dict(freed.spared) == {"named by a version since the survey": 1}
    assert kept.rows() == Counter(range(40))


def test_a_file_with_a_name_of_ours_waits_for_the_next_version(kept: Kept) -> None:
    """A commit that names it may be on its way, until the table has a newer version."""
    kept.put("p=x%20y/neve-j1-a1-0.parquet")
    survey = kept.survey("vacuum", 8 * DAY_S)
    freed = kept.carry_out(survey, 8 * DAY_S)
    assert list(freed.spared) == ["of an attempt: they wait for the next version of the table"]
    kept.append(30)
    assert kept.carry_out(survey, 8 * DAY_S).files == 1


@EVERYWHERE
def test_only_files_that_look_like_the_table_s_are_deleted(kept: Kept) -> None:
    stay = (
        "README.md",
        "notes/plan.parquet",
        "p=x%20y/q=1/part-1.parquet",
        "_symlink_format_manifest/part-1.parquet",
        ".hidden/part-1.parquet",
        "p=1/.part-1.parquet",
        "p=1/_part-1.parquet",
        "other/_delta_log/00000000000000000000.json",
        "other/part-1.parquet",
        "p=other/_delta_log/00000000000000000000.json",
        "p=other/part-1.parquet",
        "p=ice/metadata/v1.metadata.json",
        "p=ice/data/part-1.parquet",
        "p=neve/_neve/owner.json",
        "p=neve/part-1.parquet",
        "deletion_vector_x.bin",
    )
    go = (
        "part-1.parquet",
        "p=new/part-1.parquet",
        "_change_data/p=1/cdc-1.parquet",
        f"deletion_vector_{uuid.uuid4()}.bin",
    )
    for path in (*stay, *go):
        kept.put(path)
    freed = kept.run("vacuum")
    assert freed.files == len(go)
    assert kept.data() >= {*stay}
    assert not kept.data() & {*go}
    assert kept.rows() == Counter(range(30))


@pytest.mark.parametrize("mark", [".hoodie/x", "metadata/v1.metadata.json", "_neve/owner.json"])
def test_a_folder_with_the_mark_of_another_table_is_left_alone(kept: Kept, mark: str) -> None:
    kept.put("part-1.parquet")
    kept.put(mark)
    with pytest.raises(RefusedError, match="shares its files: nothing is deleted"):
        kept.survey("vacuum", 8 * DAY_S)


def test_files_of_the_change_feed_stay_as_long_as_their_versions(kept: Kept) -> None:
    kept.put("_change_data/p=x%20y/cdc-1.parquet")
    kept.writer.commit(
        {"cdc": {"path": "_change_data/p=x%2520y/cdc-1.parquet", "size": 4, "dataChange": False}}
    )
    assert not kept.survey("vacuum", 6 * DAY_S).has_work
    assert len(kept.survey("vacuum", 8 * DAY_S).files) == 1


def test_nothing_is_deleted_if_a_live_file_is_not_in_the_listing(kept: Kept) -> None:
    """Lost, or written in another way: then no comparison of names can be trusted."""
    kept.put("part-1.parquet")
    whole = kept.source.load()
    obstore.delete(kept.writer.store, [min(whole.files)])
    with pytest.raises(RefusedError, match="the listing lacks 1 files"):
        kept.source.survey("vacuum", whole, kept.rules(8 * DAY_S))
    assert "part-1.parquet" in kept.data()


def test_a_vacuum_is_bounded_and_can_be_repeated(kept: Kept) -> None:
    for number in range(5):
        kept.put(f"part-{number}.parquet")
    survey = kept.survey("vacuum", 8 * DAY_S, files_max=2)
    assert (len(survey.files), survey.more) == (2, 3)
    assert kept.carry_out(survey, 8 * DAY_S).files == 2
    assert kept.carry_out(survey, 8 * DAY_S).spared == {"changed since the survey": 2}
    assert kept.run("vacuum").files == 3


@EVERYWHERE
def test_a_file_that_was_written_again_since_the_survey_stays(kept: Kept) -> None:
    kept.put("part-1.parquet", b"1")
    survey = kept.survey("vacuum", 8 * DAY_S)
    kept.put("part-1.parquet", b"22")
    assert kept.carry_out(survey, 8 * DAY_S).spared == {"changed since the survey": 1}
    assert "part-1.parquet" in kept.data()


def test_a_clock_that_goes_back_deletes_nothing(kept: Kept) -> None:
    kept.put("part-1.parquet")
    survey = kept.survey("vacuum", 8 * DAY_S)
    assert kept.carry_out(survey, 6 * DAY_S).files == 0


def test_a_writer_with_a_clock_ahead_keeps_more(kept: Kept) -> None:
    """A version that states a later time than its file begins the retention at that time."""
    kept.writer.commit({"commitInfo": {"timestamp": int((time.time() + 5 * DAY_S) * 1000)}})
    kept.writer.table.delete("a = 5")
    assert not kept.survey("vacuum", 8 * DAY_S).has_work
    assert kept.survey("vacuum", 13 * DAY_S).has_work


def test_a_table_with_unknown_features_is_not_maintained(kept: Kept) -> None:
    lines = kept.writer.entries(0)
    (protocol,) = [line["protocol"] for line in lines if "protocol" in line]
    protocol["writerFeatures"] = [*protocol["writerFeatures"], "rowTracking"]
    kept.writer.commit({"protocol": protocol})
    for operation in kept.source.operations:
        with pytest.raises(RefusedError, match="rowTracking"):
            kept.survey(operation, 40 * DAY_S)


@EVERYWHERE
def test_a_writer_between_all_steps_loses_nothing(kept: Kept) -> None:
    """Appends, deletes and compactions of deltalake go on while every operation runs."""
    expected = Counter(range(30))
    surveys = list[LakeSurvey]()
    for number in range(3, 9):
        kept.append(number * 10)
        expected += Counter(range(number * 10, number * 10 + 10))
        surveys += [kept.survey("vacuum", 40 * DAY_S)]
        kept.writer.table.delete(f"a = {number * 10}")
        del expected[number * 10]
        if number % 2:
            kept.writer.table.optimize.compact()
        for survey in surveys:
            with suppress(RefusedError):  # Versions since the survey are cleaned up.
                kept.carry_out(survey, 40 * DAY_S)
        kept.checkpoint()
        kept.run("log-cleanup", 40 * DAY_S)
        assert kept.rows() == expected
    attempt = LakeAttempt(ATTEMPT, kept.source, kept.writer)
    head = kept.source.load()
    inputs = [path for path, file in head.files.items() if file.partition[0][1] == "x y"]
    assert attempt.publish(attempt.rewrite(head, [inputs])).ending is rules.PublishEnd.COMMITTED
    kept.run("vacuum", 4000 * DAY_S)
    assert kept.rows() == expected
    assert kept.data() == {*kept.source.load().files}


def test_links_are_neither_followed_nor_deleted(tmp_path: Path) -> None:
    kept = Kept(DeltaTable(tmp_path / "sales"))
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "part-1.parquet").write_bytes(b"1")
    Path(kept.writer.uri, "p=link").symlink_to(outside)
    Path(kept.writer.uri, "part-link.parquet").symlink_to(outside / "part-1.parquet")
    Path(kept.writer.uri, "p=1").mkdir()
    Path(kept.writer.uri, "p=1", "part-1.parquet").write_bytes(b"1")
    survey = kept.survey("vacuum", 8 * DAY_S)
    assert [file.path for file in survey.files] == ["p=1/part-1.parquet"]
    Path(kept.writer.uri, "p=1").rename(tmp_path / "moved")
    Path(kept.writer.uri, "p=1").symlink_to(tmp_path / "moved")
    assert kept.carry_out(survey, 8 * DAY_S).files == 0
    assert (outside / "part-1.parquet").exists()
    assert (tmp_path / "moved" / "part-1.parquet").exists()


def test_a_copied_file_is_as_old_as_its_copy(tmp_path: Path) -> None:
    kept = Kept(DeltaTable(tmp_path / "sales"))
    path = Path(kept.writer.uri, "part-1.parquet")
    path.write_bytes(b"1")
    os.utime(path, (1, 1))
    assert kept.survey("vacuum", 6 * DAY_S).spared == {"younger than the retention": 1}


def test_no_answer_is_a_checkpoint_that_is_looked_for(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage writes the checkpoint and does not answer."""
    storage = kept.source._storage  # type: ignore[attr-defined]
    create = storage.create

    def silent(path: str, data: bytes) -> Answer:
        create(path, data)
        return Answer.UNKNOWN

    monkeypatch.setattr(storage, "create", silent)
    assert kept.checkpoint().created == "checkpoint of version 2"
    assert hint(kept)["version"] == 2
