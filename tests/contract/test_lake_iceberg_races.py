"""Races of a compaction with other writers of an Iceberg table, by catalog and storage.

The rows are those of the table in `docs/lake-tables.md`. Each race ends with a check row by row: by
PyIceberg, unless there are equality deletes, which it does not read, and by the letter of the
specification (`tests/support/iceberg_rows.py`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFileContent, ManifestEntryStatus
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import StringType

from common.lake import rules
from common.lake.source import Answer
from tests.support.iceberg_catalogs import (
    CatalogSite,
    Fault,
    VersionedGlue,
    glue_site,
    postgres_site,
    rest_site,
    sqlite_site,
)
from tests.support.iceberg_race import ATTEMPT, BY_P, SCHEMA, Files, Race, require_refused, stale
from tests.support.iceberg_tables import IcebergTable
from tests.support.race_attempt import LakeAttempt
from tests.support.s3_server import s3_server

OTHER_CATALOGS = ("rest", "postgres", "glue")
LONG = [pytest.mark.slow, pytest.mark.long]
ON_S3 = [pytest.param(name, marks=LONG) for name in ("sqlite_on_s3", "rest_on_s3")]
"""Tables in S3; one race meets it in `make test`."""
EVERYWHERE = pytest.mark.parametrize(
    "race",
    ["sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_CATALOGS), *ON_S3],
    indirect=True,
)
"""For races that a catalog decides; the others meet the other catalogs in `make long` alone."""


@pytest.fixture(scope="module")
def rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogSite]:
    with rest_site(tmp_path_factory.mktemp("rest")) as site:
        yield site


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogSite]:
    with postgres_site(tmp_path_factory.mktemp("postgres")) as site:
        yield site


@pytest.fixture(scope="module")
def glue_and_guard(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[CatalogSite, VersionedGlue]]:
    with glue_site(tmp_path_factory.mktemp("glue")) as site_and_guard:
        yield site_and_guard


@pytest.fixture(scope="module")
def glue(glue_and_guard: tuple[CatalogSite, VersionedGlue]) -> CatalogSite:
    return glue_and_guard[0]


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> CatalogSite:
    return sqlite_site(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="module")
def s3() -> Iterator[Mapping[str, str]]:
    """Run an object store; return the properties of a warehouse in it."""
    with s3_server() as server:
        server.create_bucket("lake")
        yield {"warehouse": "s3://lake/warehouse", **server.properties}


@pytest.fixture(scope="module")
def sqlite_on_s3(tmp_path_factory: pytest.TempPathFactory, s3: Mapping[str, str]) -> CatalogSite:
    return sqlite_site(tmp_path_factory.mktemp("sqlite-on-s3"), s3)


@pytest.fixture(scope="module")
def rest_on_s3(
    tmp_path_factory: pytest.TempPathFactory, s3: Mapping[str, str]
) -> Iterator[CatalogSite]:
    with rest_site(tmp_path_factory.mktemp("rest-on-s3"), s3) as site:
        yield replace(site, properties={**s3, **site.properties})


ALL = {"output 0", "output 1", "input 3"}


@pytest.fixture(
    params=["sqlite", *(pytest.param(name, marks=LONG) for name in OTHER_CATALOGS), *ON_S3]
)
def race(request: pytest.FixtureRequest) -> Race:
    return Race(request.getfixturevalue(request.param))


@pytest.fixture
def plain(sqlite: CatalogSite) -> Race:
    """A race where the catalog makes no difference."""
    return Race(sqlite)


# --------------------------------------------------------------------------------- The race table


@EVERYWHERE
def test_without_others_all_outputs_commit(race: Race) -> None:
    race.source.require_conditions("trial")
    before = race.table
    end = race.publish(race.plan())

    assert (end.ending, end.version, len(end.committed)) == (rules.PublishEnd.COMMITTED, 5, 2)
    assert race.live() == ALL
    snapshot = race.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation == Operation.REPLACE
    assert snapshot.parent_snapshot_id == before.metadata.current_snapshot_id
    summary = snapshot.summary.additional_properties
    assert (summary["neve.attempt"], summary["total-records"]) == (ATTEMPT, "40")
    assert (summary["added-data-files"], summary["deleted-data-files"]) == ("2", "3")
    assert (summary["total-data-files"], summary["added-records"]) == ("3", "30")
    race.require_rows()


def test_entries_have_the_numbers_that_other_engines_need(race: Race) -> None:
    race.publish(race.plan())
    table = race.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = {
        manifest.manifest_path: manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        for manifest in snapshot.manifests(table.io)
    }
    entries = [entry for own in manifests.values() for entry in own]
    found = sorted(
        (entry.status.name, entry.sequence_number, entry.file_sequence_number) for entry in entries
    )
    # Outputs have the number of the plan, and inputs stay as deleted by this snapshot.
    outputs, inputs = [("ADDED", 4, 5)] * 2, [("DELETED", n, n) for n in (1, 2, 3)]
    assert found == sorted([*outputs, ("ADDED", 4, 4), *inputs])
    deleted = [entry for entry in entries if entry.status == ManifestEntryStatus.DELETED]
    assert {entry.snapshot_id for entry in deleted} == {snapshot.snapshot_id}
    for manifest in snapshot.manifests(table.io):
        live = [
            entry.sequence_number
            for entry in manifests[manifest.manifest_path]
            if entry.status != ManifestEntryStatus.DELETED
        ]
        assert manifest.min_sequence_number == min(live, default=5)


def test_an_unrelated_append_is_kept(race: Race) -> None:
    state = race.plan()
    race.appended(40)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == ALL
    race.require_rows()


@EVERYWHERE
def test_an_append_between_load_and_send_costs_one_more_try(race: Race) -> None:
    state = race.plan()
    race.between(rules.SendVersion, lambda: race.appended(40))
    end = race.publish(state)

    kinds = [type(step).__name__ for step in race.attempt.steps]
    tries = ["LoadHead", "MarkReservation", "SendVersion", "LoadHead", "LookForAttempt"]
    assert kinds == [*tries, "MarkReservation", "SendVersion", "LookForAttempt"]
    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 6)
    race.require_rows()


@pytest.mark.parametrize("single", [True, False], ids=["one file each", "one file"])
@pytest.mark.parametrize("then_append", [False, True], ids=["", "then an append"])
def test_later_position_deletes_are_carried_over(
    race: Race, single: bool, then_append: bool
) -> None:
    race.delete(12, 13)
    state = race.plan()
    race.delete(10, 19, 25, single=single)
    if then_append:
        race.appended(40)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == ALL
    rows = {
        path.rpartition("-")[2]: race.source.positions(file).tolist()
        for path, file in race.source.load().files.items()
        if ATTEMPT in path
    }
    assert rows == {"0.parquet": [10, 17], "1.parquet": [5]}
    race.require_rows()


def test_deletes_between_load_and_send_are_carried_over(race: Race) -> None:
    state = race.plan()
    race.between(rules.SendVersion, lambda: race.delete(4))
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == ALL
    race.require_rows()


def test_rows_deleted_by_a_copy_drop_only_that_output(race: Race) -> None:
    state = race.plan()
    race.writer.delete_by_copy("id == 25")
    race.rows[25] = 0
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert len(end.committed) == 1
    assert race.live() == {"output 0", "input 3"}
    race.require_rows()


def test_another_compaction_of_the_files_refuses_the_attempt(race: Race) -> None:
    state = race.plan()
    source = race.opened()
    other = LakeAttempt("fedcba98", source, Files(race.writer, source))
    other.publish(other.rewrite(source.load(), [race.paths]))
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.REFUSED
    assert end.reason.endswith("left the table")
    assert not end.was_sent
    assert race.live() == set()
    race.require_rows()


def test_files_with_deletes_are_replaced_and_their_delete_files_go(race: Race) -> None:
    race.delete(1, 2)
    race.delete(*range(20, 30))
    race.delete(33)
    end = race.publish(race.plan())

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == {"output 0", "input 3"}
    kept = [file for file in race.live_files() if file.content != DataFileContent.DATA]
    assert [file.record_count for file in kept] == [1]  # of the file that stays
    race.require_rows()


def test_a_delete_file_over_replaced_and_other_files_stays(race: Race) -> None:
    race.delete(1, 33, single=False)
    end = race.publish(race.plan())

    assert end.ending is rules.PublishEnd.COMMITTED
    kept = [file for file in race.live_files() if file.content != DataFileContent.DATA]
    assert [file.record_count for file in kept] == [2]
    race.require_rows()


@pytest.mark.slow
def test_a_race_in_s3_ends_as_on_a_disk(sqlite_on_s3: CatalogSite) -> None:
    race = Race(sqlite_on_s3)
    race.delete(12, 13)
    race.delete_equal(5)
    state = race.plan()
    race.delete(10, 19, 25)
    race.between(rules.SendVersion, lambda: race.appended(40))
    end = race.publish(state)

    assert race.head.root.startswith("s3://lake/")
    assert (end.ending, len(end.committed)) == (rules.PublishEnd.COMMITTED, 2)
    assert race.live() == ALL
    race.require_rows()


# -------------------------------------------------------------------------------- Equality deletes


def test_equality_deletes_before_and_after_the_plan(race: Race) -> None:
    race.delete_equal(5, 15, 35)
    state = race.plan()
    race.delete_equal(6, 26)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == ALL
    race.require_rows()


def test_rows_inserted_again_after_an_equality_delete_stay(race: Race) -> None:
    race.delete_equal(5, 15)
    race.appended(5, 1)
    race.appended(15, 1)
    race.head = race.source.load()
    race.paths = sorted(race.head.files, key=lambda path: race.head.files[path].sequence)
    state = race.plan((0, 1, 4), (2, 5))
    race.delete_equal(5)
    race.appended(5, 1)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    race.require_rows()
    assert race.rows[5] == race.rows[15] == 1


def test_equality_deletes_go_with_the_last_file_that_they_apply_to(race: Race) -> None:
    race.delete_equal(5, 15, 35)
    race.delete(7)
    race.publish(race.plan((0, 1), (2,)))
    kept = [file.content for file in race.live_files() if file.content != DataFileContent.DATA]
    assert kept == [DataFileContent.EQUALITY_DELETES]  # input 3 still needs it

    source = race.opened()
    other = LakeAttempt("fedcba98", source, Files(race.writer, source))
    end = other.publish(other.rewrite(source.load(), [[race.paths[3]]]))
    assert end.ending is rules.PublishEnd.COMMITTED
    assert {file.content for file in race.live_files()} == {DataFileContent.DATA}
    race.require_rows()


def test_positions_and_values_delete_the_same_rows(race: Race) -> None:
    race.delete(3)
    race.delete_equal(3, 14)
    state = race.plan()
    race.writer.delete([14], single=True)
    race.delete(16)
    race.delete_equal(17)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == ALL
    race.require_rows()


# ----------------------------------------------------------------------------------------- Answers


@EVERYWHERE
@pytest.mark.parametrize("heard", [Answer.UNKNOWN, Answer.CONFLICT])
def test_a_lost_or_false_answer_makes_no_second_commit(race: Race, heard: Answer) -> None:
    race.attempt.answers = lambda _answer: heard
    end = race.publish(race.plan())

    assert (end.ending, end.version, len(end.committed)) == (rules.PublishEnd.COMMITTED, 5, 2)
    assert race.last == 5
    race.require_rows()


@pytest.mark.parametrize(
    "status", [409, 500, 0, *(pytest.param(code, marks=LONG) for code in (502, 503, 504))]
)
@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "not committed"])
def test_errors_of_a_rest_catalog_are_looked_at(
    rest: CatalogSite, status: int, is_committed: bool
) -> None:
    race = Race(rest)
    state = race.plan()
    server = rest.rest
    assert server is not None
    before = server.commits
    server.faults.append(Fault(status, is_committed))
    end = race.publish(state)

    assert (end.ending, end.version, len(end.committed)) == (rules.PublishEnd.COMMITTED, 5, 2)
    assert server.commits - before == (1 if is_committed else 2)
    assert race.last == 5
    race.require_rows()


def test_an_expired_login_is_not_tried_again_within_a_send(rest: CatalogSite) -> None:
    race = Race(rest)
    state = race.plan()
    server = rest.rest
    assert server is not None
    before = server.commits
    server.faults += [Fault(401, is_committed=False)]
    race.between(rules.LoadHead, lambda: race.appended(40), nth=2)
    end = race.publish(state)

    # Between both requests the attempt has loaded, looked, and validated again.
    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 6)
    assert server.commits - before == 3  # the append is one of them
    race.require_rows()


def test_a_false_commit_is_tried_again(race: Race) -> None:
    state = race.plan()
    heard = iter([Answer.COMMITTED])
    race.attempt.answers = lambda answer: next(heard, answer)
    race.between(rules.SendVersion, lambda: race.appended(40))
    end = race.publish(state)

    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 6)
    race.require_rows()


def test_the_released_attempt_sends_nothing(race: Race) -> None:
    race.attempt.is_held = lambda: False
    end = race.publish(race.plan())

    assert (end.ending, end.was_sent) == (rules.PublishEnd.RELEASED, False)
    assert race.last == 4
    race.require_rows()


# ----------------------------------------------------------------------- Rollback, expiry, branches


@EVERYWHERE
def test_a_late_request_is_refused_after_another_commit(race: Race) -> None:
    commit = stale(race)
    race.appended(40)
    require_refused(race, commit)


def test_a_late_request_is_refused_after_a_commit_and_a_rollback(race: Race) -> None:
    # The branch is where it was, so only the sequence number stops it.
    commit = stale(race)
    at = race.table.metadata.current_snapshot_id
    assert at is not None
    race.append(40)
    race.set_main(at)
    require_refused(race, commit)


def test_a_late_request_is_refused_after_a_commit_to_another_branch(race: Race) -> None:
    commit = stale(race)
    at = race.table.metadata.current_snapshot_id
    assert at is not None
    race.table.manage_snapshots().create_branch(at, "audit").commit()
    race.table.append(pa.table({"id": [77], "p": ["x"]}), branch="audit")
    require_refused(race, commit)


def test_a_late_request_arrives_at_an_unchanged_table(race: Race) -> None:
    commit = stale(race)
    assert race.opened().send(commit) is Answer.COMMITTED
    race.require_rows()


def test_a_commit_to_another_branch_costs_one_more_try(race: Race) -> None:
    at = race.table.metadata.current_snapshot_id
    assert at is not None
    race.table.manage_snapshots().create_branch(at, "audit").commit()
    state = race.plan()

    def append_to_branch() -> None:
        race.table.append(pa.table({"id": [77], "p": ["x"]}), branch="audit")

    race.between(rules.SendVersion, append_to_branch)
    end = race.publish(state)

    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 6)
    assert (
        77
        in race.table.scan(snapshot_id=race.table.metadata.refs["audit"].snapshot_id)
        .to_arrow()["id"]
        .to_pylist()
    )
    race.require_rows()


def planned_before_a_rollback(race: Race) -> rules.Publishing:
    """Delete two rows, plan, and bring the rows back by a rollback."""
    before = race.table.metadata.current_snapshot_id
    assert before is not None
    race.delete(12, 13)
    state = race.plan()
    race.set_main(before)
    race.rows.update([12, 13])
    return state


def test_rows_that_a_rollback_brought_back_are_not_lost(race: Race) -> None:
    state = planned_before_a_rollback(race)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.REFUSED
    assert end.reason == "the table went back from version 5 to 4"
    race.require_rows()


def test_a_rollback_and_a_commit_drop_the_output_with_rows_that_came_back(race: Race) -> None:
    state = planned_before_a_rollback(race)
    race.appended(40)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == {"input 0", "input 1", "output 1", "input 3"}
    race.require_rows()


def test_a_rollback_and_a_commit_drop_the_output_without_its_equality_deletes(race: Race) -> None:
    before = race.table.metadata.current_snapshot_id
    assert before is not None
    race.delete_equal(12)
    state = race.plan()
    race.set_main(before)
    race.rows[12] = 1
    race.appended(40)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.REFUSED
    assert "has lost equality deletes" in end.reason
    race.require_rows()


def test_a_rollback_below_our_commit_does_not_hide_it(race: Race) -> None:
    race.attempt.answers = lambda _answer: Answer.UNKNOWN
    at = race.table.metadata.current_snapshot_id
    assert at is not None
    state = race.plan()
    race.between(rules.LookForAttempt, lambda: race.set_main(at))
    end = race.publish(state)

    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 5)
    assert race.live() == {"input 0", "input 1", "input 2", "input 3"}
    race.require_rows()


def expire(race: Race, snapshot_id: int) -> None:
    race.table.maintenance.expire_snapshots().by_id(snapshot_id).commit()


def test_the_planned_snapshot_may_expire(race: Race) -> None:
    state = race.plan()
    planned = race.table.metadata.current_snapshot_id
    assert planned is not None
    race.appended(40)
    expire(race, planned)
    race.between(rules.SendVersion, lambda: race.appended(50))
    end = race.publish(state)

    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 7)
    race.require_rows()


def test_an_expired_commit_is_found_by_its_files_or_ends_the_attempt(race: Race) -> None:
    race.attempt.answers = lambda _answer: Answer.UNKNOWN
    state = race.plan()

    def expire_ours() -> None:
        ours = race.table.metadata.current_snapshot_id
        assert ours is not None
        race.appended(40)
        expire(race, ours)

    race.between(rules.LoadHead, expire_ours, nth=2)
    end = race.publish(state)

    assert end.ending in {rules.PublishEnd.COMMITTED, rules.PublishEnd.CANNOT_TELL}
    assert len(race.attempt.sent) == 1
    assert race.live() == ALL
    race.require_rows()


# --------------------------------------------------------------------- Schema, spec, properties, id


def test_changed_columns_are_no_conflict(race: Race) -> None:
    state = race.plan()
    with race.table.update_schema() as update:
        update.add_column("note", StringType())
        update.rename_column("p", "part")
    race.writer.append(pa.table({"id": [40], "part": ["x"], "note": ["n"]}))
    race.rows.update([40])
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert race.live() == ALL
    rows = race.table.scan().to_arrow().to_pylist()
    assert Counter(row["id"] for row in rows) == +race.rows
    assert {(row["part"], row["note"]) for row in rows} == {("x", None), ("x", "n")}


def test_outputs_keep_the_partition_spec_of_their_inputs(race: Race) -> None:
    state = race.plan()
    with race.table.update_spec() as update:
        update.remove_field("p")
    race.appended(40)
    race.between(rules.SendVersion, lambda: race.delete(4, 25, 41))
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    specs = {
        file.file_path.rpartition("/")[2]: file.spec_id
        for file in race.live_files()
        if ATTEMPT in file.file_path
    }
    assert len(specs) == 4  # two outputs, and the deletes of each
    assert set(specs.values()) == {0}
    race.require_rows()


def test_a_changed_property_is_no_conflict(race: Race) -> None:
    state = race.plan()

    def change() -> None:
        with race.table.transaction() as transaction:
            transaction.set_properties({"owner": "somebody"})

    race.between(rules.SendVersion, change)
    end = race.publish(state)

    assert (end.ending, end.version) == (rules.PublishEnd.COMMITTED, 5)
    assert race.table.properties["owner"] == "somebody"
    race.require_rows()


def test_a_table_of_the_same_name_ends_the_attempt(race: Race) -> None:
    state = race.plan()
    race.catalog.drop_table(f"db.{race.name}")
    race.writer = IcebergTable.create(race.catalog, race.name, SCHEMA, BY_P)
    race.rows = Counter()
    race.appended(0, 3)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.REFUSED
    assert "another table" in end.reason
    race.require_rows()


def test_the_retention_of_the_branch_is_kept(plain: Race) -> None:
    table = plain.table
    plain.catalog.commit_table(
        table,
        (),
        (
            SetSnapshotRefUpdate(
                ref_name="main",
                type="branch",
                snapshot_id=table.metadata.current_snapshot_id,
                max_snapshot_age_ms=86_400_000,
                min_snapshots_to_keep=3,
            ),
        ),
    )
    end = plain.publish(plain.plan())

    assert end.ending is rules.PublishEnd.COMMITTED
    main = plain.table.metadata.refs["main"]
    assert (main.max_snapshot_age_ms, main.min_snapshots_to_keep) == (86_400_000, 3)


def test_an_unpartitioned_table_and_files_elsewhere(sqlite: CatalogSite, tmp_path: Path) -> None:
    race = Race(sqlite, PartitionSpec())
    path = (tmp_path / "elsewhere.parquet").as_uri()
    with race.table.io.new_output(path).create() as stream:
        pq.write_table(pa.table({"id": range(40, 50), "p": ["x"] * 10}), stream)
    race.table.add_files([path])
    race.rows.update(range(40, 50))
    race.head = race.source.load()
    race.paths = sorted(race.head.files, key=lambda path: race.head.files[path].sequence)
    state = race.plan((0, 1), (4,))
    race.delete(3, 44)
    end = race.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert len(end.committed) == 2
    race.require_rows()


# ------------------------------------------------------------------------------- Many at a time


def test_appends_and_compactions_at_a_time_lose_no_row(race: Race) -> None:
    acknowledged: list[int] = []
    ends: list[rules.PublishEnd] = []
    failures: list[BaseException] = []

    def append(first: int) -> None:
        try:
            for number in range(4):
                writer = IcebergTable(race.site.client(), f"db.{race.name}")
                value = first + number
                writer.append(pa.table({"id": [value], "p": ["x"]}))
                acknowledged.append(value)
        except BaseException as error:
            failures.append(error)

    def compact(name: str, number: int) -> None:
        try:
            source = race.opened()
            attempt = LakeAttempt(name, source, Files(race.writer, source))
            state = attempt.rewrite(source.load(), [[race.paths[number]]])
            ends.append(attempt.publish(replace(state, tries_max=100)).ending)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=append, args=(1000 * number,)) for number in (1, 2)]
    threads += [
        threading.Thread(target=compact, args=(f"{number}{ATTEMPT}", number)) for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    assert ends == [rules.PublishEnd.COMMITTED] * 3
    race.rows.update(acknowledged)
    race.require_rows()


@pytest.mark.slow
def test_the_server_of_glue_checks_versions(
    glue_and_guard: tuple[CatalogSite, VersionedGlue],
) -> None:
    site, guard = glue_and_guard
    race = Race(site)
    commit = stale(race)
    table = race.table
    glue: Any = race.catalog
    update: Any = glue._update_glue_table
    stale_version = glue._get_glue_table("db", race.name)["VersionId"]
    race.appended(40)
    refused = guard.refused
    request = glue._get_glue_table("db", race.name)
    inputs = {"Name": race.name, "Parameters": request["Parameters"]}

    with pytest.raises(CommitFailedException):
        update("db", race.name, inputs, stale_version)
    assert guard.refused == refused + 1
    assert table.metadata.last_sequence_number == 4
    require_refused(race, commit)
