"""Expiry of snapshots of an Iceberg table, with catalogs in SQLite and behind REST, and in S3.

Afterwards PyIceberg reads what it read before. Time passes by the clock that an operation is given.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.typedef import Record

from common.errors import CompactionError, RefusedError, UnavailableError
from common.lake import rules
from common.lake.iceberg import expiry
from common.lake.iceberg.source import IcebergSource, open_iceberg
from common.lake.source import Answer, Freed, LakeSurvey, MaintenanceRules
from tests.support.iceberg_catalogs import (
    CatalogSite,
    Fault,
    rest_site,
    site_of,
    sqlite_site,
)
from tests.support.iceberg_race import ATTEMPT, BY_P, SCHEMA, Files
from tests.support.iceberg_tables import IcebergTable
from tests.support.race_attempt import NOW_S, LakeAttempt
from tests.support.s3_server import s3_server

DAY_S = 86_400.0
EXPIRE = "expire-snapshots"


class Kept:
    """A table of three files with 10 rows each; each came with a snapshot."""

    def __init__(self, site: CatalogSite, **properties: str) -> None:
        self.site, self.catalog = site, site.client()
        self.name = f"t{uuid.uuid4().hex}"
        self.writer = IcebergTable.create(self.catalog, self.name, SCHEMA, BY_P, properties)
        for first in (0, 10, 20):
            self.append(first)
        self.source = self.opened()

    def opened(self) -> IcebergSource:
        """Return a source of another process."""
        return open_iceberg(f"prod:db.{self.name}", self.site.properties)

    @cached_property
    def folder(self) -> Path:
        """Folder of a table on this machine."""
        return Path(self.writer.table.location().removeprefix("file://"))

    def append(self, first: int, count: int = 10) -> None:
        self.writer.append(pa.table({"id": range(first, first + count), "p": ["x"] * count}))

    def set(self, **properties: str) -> None:
        """Set properties; a name has `_` in place of `.` and `-`."""
        names = {
            "age": expiry.SNAPSHOT_AGE,
            "least": expiry.SNAPSHOTS_LEAST,
            "ref_age": expiry.REF_AGE,
            "gc": expiry.COLLECT,
        }
        with self.writer.table.transaction() as change:
            change.set_properties({names[name]: value for name, value in properties.items()})

    def rules(self, later_s: float, **more: Any) -> MaintenanceRules:
        given = {"keep_s": DAY_S, "files_max": 1000, "own_name": "neve-", **more}
        return MaintenanceRules(now_s=time.time() + later_s, **given)

    def survey(self, later_s: float = 6 * DAY_S, **more: Any) -> LakeSurvey:
        return self.source.survey(EXPIRE, self.source.load(), self.rules(later_s, **more))

    def carry_out(self, survey: LakeSurvey, later_s: float = 6 * DAY_S, **more: Any) -> Freed:
        return self.source.carry_out(survey, self.source.load(), self.rules(later_s, **more))

    def commit(self, survey: LakeSurvey, later_s: float = 6 * DAY_S, **more: Any) -> Freed:
        return self.carry_out(replace(survey, files=()), later_s, **more)

    def delete(self, survey: LakeSurvey, later_s: float = 6 * DAY_S, **more: Any) -> Freed:
        return self.carry_out(replace(survey, versions=()), later_s, **more)

    def run(self, later_s: float = 6 * DAY_S, **more: Any) -> Freed:
        """Do all of it, as the coordinator does."""
        survey = self.survey(later_s, **more)
        if survey.versions:
            self.commit(survey, later_s, **more)
        return self.delete(survey, later_s, **more)

    def ids(self) -> list[int]:
        """Return the snapshots, the oldest first."""
        snapshots = self.writer.table.metadata.snapshots
        return [
            snapshot.snapshot_id
            for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
        ]

    def rows(self, snapshot_id: int | None = None) -> Counter[int]:
        return Counter(self.writer.table.scan(snapshot_id=snapshot_id).to_arrow()["id"].to_pylist())

    def stored(self) -> set[str]:
        """Return all files of the table but its metadata, relative to its location."""
        io: Any = self.writer.table.io
        scheme, host, root = io.parse_location(self.writer.table.location())
        listed = io.fs_by_scheme(scheme, host).get_file_info(fs.FileSelector(root, recursive=True))
        names = {
            info.path.removeprefix(f"{root}/") for info in listed if info.type is fs.FileType.File
        }
        return {name for name in names if not name.endswith(".metadata.json")}

    def reached(self) -> set[str]:
        """Return the files that the snapshots of the catalog need, without the product's code."""
        table, uris = self.writer.table, set[str]()
        for snapshot in table.metadata.snapshots:
            uris.add(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                uris.add(manifest.manifest_path)
                uris |= {
                    entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)
                }
        prefix = f"{table.location()}/"
        return {uri.removeprefix(prefix) for uri in uris}

    def tag(self, snapshot_id: int, name: str = "keep", **options: Any) -> None:
        self.writer.table.manage_snapshots().create_tag(snapshot_id, name, **options).commit()

    def set_main(self, snapshot_id: int) -> None:
        """Let the branch go to another snapshot, as a rollback does."""
        table = self.writer.table
        self.catalog.commit_table(
            table,
            (AssertRefSnapshotId(ref="main", snapshot_id=table.metadata.current_snapshot_id),),
            (SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id),),
        )


LONG = [pytest.mark.slow, pytest.mark.long]
EVERYWHERE = pytest.mark.parametrize("site", ["sqlite", "rest"], indirect=True)
"""For what a catalog decides; the others meet that behind REST in `make long` alone."""


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """Run an object store; return the properties of a warehouse in it."""
    with s3_server() as server:
        server.create_bucket("lake")
        yield {"warehouse": "s3://lake/warehouse", **server.properties}


@pytest.fixture(params=["sqlite", pytest.param("rest", marks=LONG), pytest.param("s3", marks=LONG)])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CatalogSite]:
    if request.param != "rest":
        storage = request.getfixturevalue("s3") if request.param == "s3" else None
        site = sqlite_site(tmp_path, storage)
        site.client()
        yield site
        return
    with rest_site(tmp_path) as site:
        yield site


@pytest.fixture
def kept(site: CatalogSite) -> Kept:
    return Kept(site)


@pytest.fixture
def behind_rest(tmp_path: Path) -> Iterator[Kept]:
    with rest_site(tmp_path) as site:
        yield Kept(site)


# ------------------------------------------------------------------------------------------- Expiry


@EVERYWHERE
def test_old_snapshots_go_and_then_the_files_that_only_they_reach(kept: Kept) -> None:
    kept.writer.delete([1, 2])
    kept.writer.delete_by_copy("id == 15")
    rows, ids, before = kept.rows(), kept.ids(), kept.stored()
    assert not kept.survey(4 * DAY_S).has_work
    survey = kept.survey()
    assert survey.versions == tuple(ids[:-1])
    assert survey.creates == f"metadata without {len(ids) - 1} snapshots"
    assert (kept.ids(), kept.stored()) == (ids, before)

    assert kept.commit(survey) == Freed(created=survey.creates)
    assert (kept.ids(), kept.rows()) == (ids[-1:], rows)
    assert kept.stored() == before
    freed = kept.delete(survey)

    assert kept.stored() == kept.reached()
    assert before - kept.stored() == {file.path for file in survey.files}
    assert (freed.files, freed.size_bytes) == (len(survey.files), survey.size_bytes)
    assert freed.size_bytes > 0
    assert kept.rows() == rows
    again = kept.survey()
    assert not again.has_work
    assert again.why.startswith("1 snapshot of the table stay")


@pytest.mark.slow
def test_files_in_s3_go_as_on_a_disk(s3: dict[str, str], tmp_path: Path) -> None:
    kept = Kept(sqlite_site(tmp_path, s3))
    kept.writer.delete([1, 2])
    kept.writer.delete_by_copy("id == 15")
    rows, before = kept.rows(), kept.stored()
    freed = kept.run()

    assert len(kept.ids()) == 1
    assert kept.stored() == kept.reached()
    assert len(before) - len(kept.stored()) == freed.files > 0
    assert kept.rows() == rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "glue"])
def test_snapshots_expire_in_other_catalogs(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site_of(kind, tmp_path) as site:
        kept = Kept(site)
        kept.writer.delete_by_copy("id == 15")
        first, survey = kept.ids()[0], kept.survey()
        between_load_and_commit(lambda: kept.tag(first), monkeypatch)
        kept.commit(survey)
        kept.delete(survey)
        assert kept.rows(first) == Counter(range(10))
        kept.run()
        assert len(kept.ids()) == 2
        assert kept.rows() == Counter(range(30)) - Counter([15])
        assert kept.stored() == kept.reached()


def test_the_snapshot_before_a_compaction_is_read_until_it_expires(kept: Kept) -> None:
    before, rows = kept.ids()[-1], kept.rows()
    head = kept.source.load()
    attempt = LakeAttempt(ATTEMPT, kept.source, Files(kept.writer, kept.source))
    end = attempt.publish(attempt.rewrite(head, [sorted(head.files)]))
    assert end.ending is rules.PublishEnd.COMMITTED
    began_s = NOW_S - time.time()  # The attempt has a clock of its own.
    for days in (0.0, 0.9):
        assert before not in kept.survey(began_s + days * DAY_S).versions
        kept.run(began_s + days * DAY_S)
        assert kept.rows(before) == kept.rows() == rows
    kept.run(began_s + 1.1 * DAY_S)
    with pytest.raises(ValueError, match="Snapshot not found"):
        kept.rows(before)
    assert kept.rows() == rows
    assert kept.stored() == kept.reached()
    assert len(kept.writer.live()) == 1


def test_branches_and_tags_keep_their_snapshots_for_as_long_as_they_say(kept: Kept) -> None:
    first, second, third = kept.ids()
    kept.append(30)
    kept.tag(first)
    hour_ms = 3_600_000
    kept.tag(second, "short", max_ref_age_ms=240 * hour_ms)
    kept.writer.table.manage_snapshots().create_branch(
        third, "long", max_snapshot_age_ms=480 * hour_ms, min_snapshots_to_keep=1
    ).commit()
    kept.run(6 * DAY_S)
    assert kept.ids()[:3] == [first, second, third]
    kept.run(19 * DAY_S)
    assert set(kept.writer.table.refs()) == {"main", "keep", "long"} | {"short"}
    kept.run(21 * DAY_S)  # The branch keeps its head only.
    assert (len(kept.ids()), kept.ids()[0]) == (3, first)
    assert set(kept.writer.table.refs()) == {"main", "keep", "long"}
    assert kept.rows(first) == Counter(range(10))
    assert kept.rows(third) == Counter(range(30))
    assert kept.rows() == Counter(range(40))
    assert kept.stored() == kept.reached()


def test_the_table_says_how_long_and_how_many_snapshots_stay(kept: Kept) -> None:
    kept.set(least="2")
    kept.run()
    assert len(kept.ids()) == 2
    kept.set(age=str(int(100 * DAY_S * 1000)), least="1")
    assert not kept.survey(99 * DAY_S).versions
    assert len(kept.survey(101 * DAY_S).versions) == 1
    kept.set(age="5d")
    with pytest.raises(RefusedError, match=r"max-snapshot-age-ms is '5d', expected a whole number"):
        kept.survey()
    kept.set(age="1", gc="false")
    with pytest.raises(RefusedError, match=r"gc\.enabled forbids to delete files"):
        kept.survey()


def test_the_newest_snapshots_of_the_last_day_stay_whatever_the_table_says(kept: Kept) -> None:
    kept.set(age="1")
    assert not kept.survey(0.9 * DAY_S).has_work
    assert len(kept.survey(1.1 * DAY_S).versions) == 2


def test_snapshots_that_an_attempt_looks_through_stay(kept: Kept) -> None:
    assert kept.survey(since=2).versions == tuple(kept.ids()[:1])
    survey = kept.survey()
    kept.commit(survey, since=2)
    assert len(kept.ids()) == 2
    assert kept.delete(survey, since=2).spared["named by a version since the survey"] > 0
    assert kept.rows(kept.ids()[0]) == Counter(range(20))


def test_files_that_an_attempt_needs_stay_and_are_found_again(kept: Kept) -> None:
    old = set(kept.writer.live())
    kept.writer.delete_by_copy("id == 15")
    (gone,) = old - set(kept.writer.live())
    needed = frozenset({gone.removeprefix(f"{kept.writer.table.location()}/")})
    survey = kept.survey(kept=needed)
    assert needed.isdisjoint({file.path for file in survey.files})
    assert survey.spared["needed by an attempt"] >= 3  # with a manifest and a list that name it
    kept.commit(survey)
    kept.delete(survey)
    assert needed <= kept.stored()
    kept.run()
    assert kept.stored() == kept.reached()


# ------------------------------------------------------------------------------ Bounds and crashes


def test_a_run_expires_as_many_snapshots_as_it_deletes_files(kept: Kept) -> None:
    for number in range(4):
        kept.writer.delete_by_copy(f"id == {number}")
    rows, runs = kept.rows(), 0
    while (survey := kept.survey(files_max=4)).has_work:
        assert len(survey.files) <= 4
        assert survey.more or len(kept.ids()) - len(survey.versions) == 1
        kept.run(files_max=4)
        assert kept.rows() == rows
        runs += 1
    assert runs > 2
    assert len(kept.ids()) == 1
    assert kept.stored() == kept.reached()


def test_a_run_that_broke_off_after_its_commit_goes_on(kept: Kept) -> None:
    kept.writer.delete_by_copy("id == 15")
    kept.commit(kept.survey())
    kept.source = kept.opened()  # Another coordinator.
    survey = kept.survey()
    kept.append(30)
    assert (survey.versions, survey.creates) == ((), "")
    assert len(survey.files) > 0
    kept.delete(survey)
    assert kept.rows() == Counter(range(40)) - Counter([15])
    kept.run()
    assert kept.stored() == kept.reached()


@pytest.mark.parametrize("done", [1, 2, 3, 4])
def test_a_run_that_broke_off_while_it_deleted_goes_on(tmp_path: Path, done: int) -> None:
    site = sqlite_site(tmp_path)
    kept = Kept(site)
    kept.writer.delete_by_copy("id == 15")
    survey = kept.survey()
    assert len(survey.files) > done
    kept.commit(survey)
    kept.delete(replace(survey, files=survey.files[:done]))
    kept.source = kept.opened()
    assert kept.run().files == len(survey.files) - done
    assert kept.stored() == kept.reached()


def test_deleting_twice_at_once_is_harmless(kept: Kept) -> None:
    kept.writer.delete_by_copy("id == 15")
    survey = kept.survey()
    kept.commit(survey)
    assert kept.commit(survey) == Freed()
    kept.delete(survey)
    assert kept.delete(survey).spared == {"changed since the survey": len(survey.files)}
    assert kept.rows() == Counter(range(30)) - Counter([15])


def test_snapshots_that_another_engine_expired_leave_no_files(kept: Kept) -> None:
    kept.writer.delete_by_copy("id == 15")
    table = kept.writer.table
    table.maintenance.expire_snapshots().by_ids(kept.ids()[:-1]).commit()
    assert len(kept.ids()) == 1
    assert not kept.survey(0.9 * DAY_S).has_work
    kept.run(1.1 * DAY_S)
    assert kept.stored() == kept.reached()


# -------------------------------------------------------------------------------------------- Races


def test_a_tag_that_comes_between_survey_and_commit_keeps_its_snapshot(kept: Kept) -> None:
    first = kept.ids()[0]
    kept.writer.delete_by_copy("id == 5")
    survey = kept.survey()
    kept.tag(first)
    kept.commit(survey)
    kept.delete(survey)
    assert kept.ids()[0] == first
    assert kept.rows(first) == Counter(range(10))


def between_load_and_commit(act: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let another writer in before the first request of an expiry."""
    send, left = expiry.commit_once, [act]

    def sent_late(*words: Any) -> Answer:
        if left:
            left.pop()()
        return send(*words)

    monkeypatch.setattr(expiry, "commit_once", sent_late)


@EVERYWHERE
def test_a_rollback_between_load_and_commit_keeps_its_snapshot(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = kept.ids()[0]
    survey = kept.survey()
    between_load_and_commit(lambda: kept.set_main(first), monkeypatch)
    kept.commit(survey)
    kept.delete(survey)
    assert first in kept.ids()
    assert kept.rows() == Counter(range(10))


def test_a_tag_that_comes_between_load_and_commit_keeps_its_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """REST catalogs have no such requirement; those that PyIceberg updates itself check it."""
    kept = Kept(sqlite_site(tmp_path))
    first = kept.ids()[0]
    kept.writer.delete_by_copy("id == 5")
    survey = kept.survey()
    between_load_and_commit(lambda: kept.tag(first), monkeypatch)
    kept.commit(survey)
    kept.delete(survey)
    assert kept.rows(first) == Counter(range(10))
    assert "keep" in kept.writer.table.refs()


@EVERYWHERE
def test_a_writer_between_load_and_commit_loses_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey = kept.survey()
    between_load_and_commit(lambda: kept.append(30), monkeypatch)
    assert kept.commit(survey).created == "metadata without 2 snapshots"
    kept.delete(survey)
    assert kept.rows() == Counter(range(40))
    assert kept.stored() == kept.reached()


def test_another_engine_that_expires_at_the_same_moment(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, survey = kept.ids(), kept.survey()

    def others() -> None:
        kept.writer.table.maintenance.expire_snapshots().by_id(ids[0]).commit()

    between_load_and_commit(others, monkeypatch)
    with suppress(CompactionError):  # A catalog refuses to remove what is not there.
        kept.commit(survey)
    kept.run()
    assert kept.ids() == ids[-1:]
    assert kept.stored() == kept.reached()


def test_a_file_that_is_added_again_before_it_is_deleted_stays(kept: Kept) -> None:
    old = set(kept.writer.live())
    kept.writer.delete_by_copy("id == 15")
    (gone,) = old - set(kept.writer.live())
    survey = kept.survey()
    kept.commit(survey)
    table = kept.writer.table
    with table.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(added_again(kept, gone))
    freed = kept.delete(survey)
    assert freed.spared == {"named by a version since the survey": 1}
    assert kept.rows() == Counter(range(30)) - Counter([15]) + Counter(range(10, 20))


def added_again(kept: Kept, uri: str, file_format: FileFormat = FileFormat.PARQUET) -> DataFile:
    stored = kept.writer.table.io.new_input(uri)
    rows = 1
    if file_format is FileFormat.PARQUET:
        with stored.open() as stream:
            rows = pq.read_metadata(stream).num_rows
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=uri,
        file_format=file_format,
        partition=Record("x"),
        record_count=rows,
        file_size_in_bytes=len(stored),
    )
    file.spec_id = kept.writer.table.spec().spec_id
    return file


def test_files_of_other_formats_count_as_live(kept: Kept) -> None:
    table = kept.writer.table
    uri = f"{table.location()}/data/other.orc"
    with table.io.new_output(uri).create() as stream:
        stream.write(b"ORC")
    with table.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(added_again(kept, uri, FileFormat.ORC))
    kept.append(40)
    kept.run()
    assert len(kept.ids()) == 1
    assert "data/other.orc" in kept.stored()
    assert kept.stored() == kept.reached()


# ------------------------------------------------------------------------------------- REST answers


@pytest.mark.parametrize("status", [409, 500, pytest.param(504, marks=LONG), 0])
def test_a_commit_whose_answer_is_wrong_is_looked_for(behind_rest: Kept, status: int) -> None:
    kept = behind_rest
    assert kept.site.rest is not None
    survey = kept.survey()
    kept.site.rest.faults = [Fault(status)]
    assert kept.commit(survey) == Freed(created=survey.creates)
    kept.delete(survey)
    assert len(kept.ids()) == 1
    assert kept.rows() == Counter(range(30))
    assert kept.stored() == kept.reached()


def test_a_commit_that_was_refused_is_sent_again(behind_rest: Kept) -> None:
    kept = behind_rest
    assert kept.site.rest is not None
    survey, before = kept.survey(), kept.site.rest.commits
    kept.site.rest.faults = [Fault(409, is_committed=False)]
    assert kept.commit(survey) == Freed(created=survey.creates)
    assert kept.site.rest.commits == before + 2


@pytest.mark.parametrize("status", [500, pytest.param(504, marks=LONG), 0])
def test_nothing_is_deleted_after_a_commit_that_did_not_arrive(
    behind_rest: Kept, status: int
) -> None:
    kept = behind_rest
    assert kept.site.rest is not None
    survey, before, ids = kept.survey(), kept.stored(), kept.ids()
    kept.site.rest.faults = [Fault(status, is_committed=False)]
    with pytest.raises(UnavailableError):
        kept.commit(survey)
    assert kept.ids() == ids
    assert kept.delete(survey).files == 0  # The catalog has the snapshots, whatever was sent.
    assert kept.stored() == before
    assert [kept.rows(snapshot_id).total() for snapshot_id in ids] == [10, 20, 30]


# ------------------------------------------------------------------------------ Locations and links


def test_files_outside_of_the_table_and_links_stay(tmp_path: Path) -> None:
    kept = Kept(sqlite_site(tmp_path))
    outside = tmp_path / "elsewhere.parquet"
    outside.write_bytes(Path(next(iter(kept.writer.live())).removeprefix("file://")).read_bytes())
    table = kept.writer.table
    with table.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(added_again(kept, outside.as_uri()))
    linked = Path(next(iter(set(kept.writer.live()))).removeprefix("file://"))
    kept.writer.delete_by_copy("id < 40")
    kept.append(50)
    real = tmp_path / "real.parquet"
    linked.rename(real)
    linked.symlink_to(real)
    survey = kept.survey()
    assert survey.spared["outside of the table's locations"] == 1
    kept.run()
    assert outside.exists()
    assert real.exists()
    assert kept.rows() == Counter(range(50, 60))
