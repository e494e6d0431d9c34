"""Orphan files of an Iceberg table: what nothing names goes, and nothing else does.

Time passes by the clock that an operation is given; files have the time of the disk.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from common.errors import RefusedError
from common.lake.iceberg import orphans
from common.lake.iceberg.source import IcebergSource, open_iceberg
from common.lake.source import Freed, LakeSurvey, MaintenanceRules
from tests.contract.test_lake_iceberg_maintenance import DAY_S, Kept, added_again
from tests.support.iceberg_catalogs import (
    CatalogSite,
    rest_site,
    site_of,
    sqlite_site,
)
from tests.support.iceberg_race import SCHEMA
from tests.support.iceberg_tables import IcebergTable
from tests.support.lent_access import lending_door
from tests.support.s3_server import REGION, VARIABLES, s3_server

ORPHANS = "orphan-files"
OLD_S = 3.1 * DAY_S
"""After this time, files are old enough by default."""


class Swept(Kept):
    """A table with three files, in whose folder other files may lie."""

    def __init__(self, site: CatalogSite, **properties: str) -> None:
        super().__init__(site, **properties)
        self.rows_before = self.rows()

    def survey(self, later_s: float = OLD_S, **more: Any) -> LakeSurvey:
        return self.source.survey(ORPHANS, self.source.load(), self.rules(later_s, **more))

    def carry_out(self, survey: LakeSurvey, later_s: float = OLD_S, **more: Any) -> Freed:
        return self.source.carry_out(survey, self.source.load(), self.rules(later_s, **more))

    def run(self, later_s: float = OLD_S, **more: Any) -> Freed:
        return self.carry_out(self.survey(later_s, **more), later_s, **more)

    def put(self, path: str, data: bytes = b"x") -> str:
        """Store a file that nothing names."""
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        return path

    def found(self, later_s: float = OLD_S, **more: Any) -> set[str]:
        return {file.path for file in self.survey(later_s, **more).files}

    def own_metadata(self) -> set[str]:
        """Return the metadata that the catalog names."""
        table = self.writer.table
        uris = [
            table.metadata_location,
            *(log.metadata_file for log in table.metadata.metadata_log),
        ]
        return {uri.removeprefix(f"{table.location()}/") for uri in uris}

    def whole(self) -> set[str]:
        """Return all files of the folder."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)) for path in files}

    def require_rows(self) -> None:
        """Check that every snapshot is read as before."""
        for snapshot_id in self.ids():
            assert self.rows(snapshot_id).total() > 0
        assert self.rows() == self.rows_before
        assert self.reached() | self.own_metadata() <= self.whole()


@pytest.fixture
def swept(tmp_path: Path) -> Swept:
    return Swept(sqlite_site(tmp_path))


def dead_files(swept: Swept) -> set[str]:
    """Store what writers leave that die."""
    return {
        swept.put("data/p=x/00000-0-dead.parquet"),
        swept.put("data/p=x/deletes-dead.parquet"),
        swept.put("metadata/dead-m0.avro"),
        swept.put("metadata/snap-1-1-dead.avro"),
        swept.put("metadata/dead.stats"),
        swept.put("other.parquet"),
    }


def require_cleared(swept: Swept) -> None:
    """Delete what dead writers and many commits have left, and nothing else."""
    swept.writer.delete([1, 2])
    swept.writer.delete_by_copy("id == 15")
    swept.tag(swept.ids()[0])
    swept.rows_before = swept.rows()
    old = {path for path in swept.whole() if path.endswith(".metadata.json")}
    dead = dead_files(swept) | (old - swept.own_metadata())
    assert len(dead) > 6, "former metadata that the table has forgotten"
    before = swept.whole()
    assert not swept.survey(2.9 * DAY_S).has_work
    survey = swept.survey()
    assert {file.path for file in survey.files} == dead
    assert (survey.versions, survey.creates, survey.after) == ((), "", "")
    assert swept.whole() == before, "a survey changes nothing"
    freed = swept.carry_out(survey)
    assert (freed.files, freed.size_bytes) == (len(dead), survey.size_bytes)
    assert before - swept.whole() == dead
    assert swept.whole() == swept.reached() | swept.own_metadata()
    swept.require_rows()
    again = swept.survey()
    assert not again.has_work
    assert again.why == "every old file of the table is named by a snapshot or its metadata"


FEW_METADATA = {"write.metadata.previous-versions-max": "2"}


@pytest.mark.parametrize("kind", ["sqlite", "rest"])
def test_files_that_nothing_names_go(tmp_path: Path, kind: str) -> None:
    with site_of(kind, tmp_path) as site:
        require_cleared(Swept(site, **FEW_METADATA))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgres", "glue"])
def test_files_that_nothing_names_go_in_other_catalogs(tmp_path: Path, kind: str) -> None:
    with site_of(kind, tmp_path) as site:
        require_cleared(Swept(site, **FEW_METADATA))


# --------------------------------------------------------------------------------------------- Age


def test_files_stay_for_as_long_as_the_setting_says_and_a_day_at_least(swept: Swept) -> None:
    path = swept.put("data/dead.parquet")
    assert swept.survey(3.5 * DAY_S, orphan_age_s=4 * DAY_S).spared["younger than the retention"]
    assert swept.found(4.1 * DAY_S, orphan_age_s=4 * DAY_S) == {path}
    assert not swept.found(0.9 * DAY_S, orphan_age_s=0.0)
    assert swept.found(1.1 * DAY_S, orphan_age_s=0.0) == {path}


def test_snapshots_that_others_expired_keep_their_files_for_a_day(swept: Swept) -> None:
    swept.writer.delete_by_copy("id == 15")
    gone = swept.reached()
    swept.writer.table.maintenance.expire_snapshots().by_ids(swept.ids()[:-1]).commit()
    assert not swept.found(0.9 * DAY_S, orphan_age_s=0.0)
    dead = {path for path in gone - swept.reached() if path.startswith("metadata/")}
    # A manifest names the copied file as removed, so that changes of a version can be read.
    assert len(gone - swept.reached() - dead) == 1
    assert swept.found(1.1 * DAY_S, orphan_age_s=0.0) == dead
    assert len(dead) > 3


# ------------------------------------------------------------------------- Between survey and grace


def test_a_file_that_is_committed_after_the_survey_stays(swept: Swept) -> None:
    copied = next(path for path in swept.reached() if path.startswith("data/"))
    late = swept.put("data/late.parquet", (swept.folder / copied).read_bytes())
    dead = swept.put("data/dead.parquet")
    survey = swept.survey()
    table = swept.writer.table
    with table.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(added_again(swept, f"{table.location()}/{late}"))
    freed = swept.carry_out(survey)
    assert freed.spared == {"named by a version since the survey": 1}
    assert late in swept.whole()
    assert dead not in swept.whole()
    assert swept.rows().total() == 40


def test_a_file_that_is_written_again_after_the_survey_stays(swept: Swept) -> None:
    swept.put("data/dead.parquet")
    survey = swept.survey()
    (swept.folder / "data/dead.parquet").unlink()
    path = swept.put("data/dead.parquet", b"another")
    assert swept.carry_out(survey).spared == {"changed since the survey": 1}
    assert path in swept.whole()


def test_files_that_an_attempt_needs_stay(swept: Swept) -> None:
    output, late = swept.put("data/neve-a-0.parquet"), swept.put("data/neve-b-0.parquet")
    survey = swept.survey(kept=frozenset([output]))
    assert {file.path for file in survey.files} == {late}
    assert swept.carry_out(survey, kept=frozenset([late])).spared == {"needed by an attempt": 1}
    assert {output, late} <= swept.whole()


def test_what_an_attempt_wrote_goes_only_after_the_next_version(swept: Swept) -> None:
    own = {
        swept.put("data/neve-a-0.parquet"),
        swept.put("metadata/neve-a-1-m0.avro"),
        swept.put("metadata/snap-1-1-neve-a.avro"),
    }
    survey = swept.survey()
    assert {file.path for file in survey.files} == own
    waiting = "of an attempt: they wait for the next version of the table"
    assert swept.carry_out(survey).spared == {waiting: 3}
    swept.append(30)
    assert swept.carry_out(survey).files == 3
    assert swept.whole().isdisjoint(own)


# ------------------------------------------------------------------------------------------- Names


@pytest.mark.parametrize(
    "spelling",
    [
        "{path}",
        "file:{path}",
        "file://localhost{path}",
        "file:///{path}",
        "FILE://{path}",
        "file://{encoded}",
        "file://{link}",
    ],
)
def test_a_file_is_named_in_any_spelling(tmp_path: Path, spelling: str) -> None:
    swept = Swept(sqlite_site(tmp_path))
    copied = next(path for path in swept.reached() if path.startswith("data/"))
    named = swept.folder / swept.put("data/a b.parquet", (swept.folder / copied).read_bytes())
    (tmp_path / "link").symlink_to(swept.folder)
    words = {
        "path": named,
        "encoded": str(named).replace(" ", "%20"),
        "link": tmp_path / "link" / "data" / "a b.parquet",
    }
    file = added_again(swept, named.as_uri().replace("%20", " "))
    file[1] = spelling.format(**words)
    table = swept.writer.table
    with table.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(file)
    dead = swept.put("data/dead.parquet")
    assert swept.found() == {dead}


def test_a_path_that_is_named_in_another_storage_deletes_nothing(swept: Swept) -> None:
    path = swept.put("data/dead.parquet")
    file = added_again(swept, next(iter(swept.writer.live())))
    file[1] = f"hdfs://name-node{swept.folder}/{path}"
    table = swept.writer.table
    with table.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(file)
    with pytest.raises(RefusedError, match="whether this is the same file is unknown"):
        swept.survey()


def test_a_listing_without_live_files_deletes_nothing(swept: Swept) -> None:
    swept.put("data/dead.parquet")
    lost = next(path for path in swept.reached() if path.startswith("data/"))
    (swept.folder / lost).rename(swept.folder / "data" / "moved.parquet")
    with pytest.raises(RefusedError, match="the listing lacks 1 files that the table names"):
        swept.survey()


def test_links_and_files_of_other_kinds_stay(swept: Swept, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x.parquet").write_bytes(b"x")
    (swept.folder / "data" / "linked").symlink_to(outside)
    (swept.folder / "data" / "link.parquet").symlink_to(outside / "x.parquet")
    hidden = (
        *("data/_SUCCESS", "data/.part.parquet", "data/_temporary/0/part.parquet"),
        *("metadata/version-hint.text", "README.md"),
    )
    for path in hidden:
        swept.put(path)
    survey = swept.survey()
    assert not survey.files
    assert survey.spared["hidden, or of another kind"] == len(hidden)


def test_a_table_whose_files_others_may_have_keeps_them(swept: Swept) -> None:
    swept.put("data/dead.parquet")
    survey = swept.survey()
    swept.set(gc="false")
    with pytest.raises(RefusedError, match=r"gc\.enabled forbids to delete files"):
        swept.survey()
    with pytest.raises(RefusedError, match=r"gc\.enabled forbids to delete files"):
        swept.carry_out(survey)


# ------------------------------------------------------------------------------------ Other tables


@pytest.mark.parametrize(
    "mark",
    [
        "_delta_log/00000000000000000000.json",
        ".hoodie/x",
        "_neve/table.json",
        "metadata/1.metadata.json",
    ],
)
def test_folders_of_other_tables_stay(swept: Swept, mark: str) -> None:
    swept.put("data/nested/part.parquet")
    swept.put(f"data/nested/{mark}")
    dead = swept.put("data/dead.parquet")
    survey = swept.survey()
    assert {file.path for file in survey.files} == {dead}
    assert survey.spared["of another table in this folder"] >= 1


@pytest.mark.parametrize("mark", ["_delta_log/00000000000000000000.json", "_neve/table.json"])
def test_a_folder_with_the_mark_of_another_table_deletes_nothing(swept: Swept, mark: str) -> None:
    swept.put("data/dead.parquet")
    swept.put(mark)
    with pytest.raises(RefusedError, match="which shares its files: nothing is deleted"):
        swept.survey()


def test_metadata_of_another_table_deletes_nothing(swept: Swept) -> None:
    swept.put("data/dead.parquet")
    broken = swept.put("metadata/00008-x.metadata.json")
    survey = swept.survey()
    assert broken not in {file.path for file in survey.files}
    assert survey.spared["hidden, or of another kind"] == 1
    other = {"location": "x", "table-uuid": str(uuid.uuid4())}
    swept.put("metadata/00009-x.metadata.json", json.dumps(other).encode())
    with pytest.raises(RefusedError, match=r"Apache Iceberg with the id .* shares its files"):
        swept.survey()


def test_tables_of_the_catalog_keep_their_folders(swept: Swept) -> None:
    location = swept.writer.table.location()
    inner = IcebergTable.create(
        swept.catalog, "inner", SCHEMA, location=f"{location}/data/inner/table"
    )
    far = {"write.data.path": f"{location}/data/of-others", "format-version": "2"}
    swept.catalog.create_table("db.far", SCHEMA, properties=far)
    inside = swept.put("data/of-others/part.parquet")
    swept.put("data/inner/table/data/part.parquet")
    inner.append(pa.table({"id": [1], "p": ["x"]}))
    dead = swept.put("data/dead.parquet")
    survey = swept.survey()
    assert {file.path for file in survey.files} == {dead}
    swept.catalog.drop_table("db.far")
    survey = swept.survey()
    assert {file.path for file in survey.files} == {dead, inside}
    swept.catalog.create_table("db.near", SCHEMA, properties=far)
    assert swept.carry_out(survey).spared == {"of another table in this folder": 1}
    assert inside in swept.whole()


def test_a_table_in_the_folder_of_another_one_deletes_nothing(swept: Swept) -> None:
    swept.put("data/dead.parquet")
    location = swept.writer.table.location()
    properties = {"write.data.path": location.rpartition("/")[0]}
    swept.catalog.create_table("db.whole", SCHEMA, properties=properties)
    with pytest.raises(RefusedError, match=r"the table db\.whole may have files in"):
        swept.survey()


def test_tables_of_the_service_keep_their_folders(swept: Swept) -> None:
    inside, dead = swept.put("data/native/part.parquet"), swept.put("data/dead.parquet")
    others = (("native", f"{swept.folder.as_uri()}/data/native"), ("far", "s3://bucket/far"))
    assert swept.found() == {inside, dead}
    assert swept.found(others=others) == {dead}
    with pytest.raises(RefusedError, match="the table native may have files in"):
        swept.survey(others=(("native", swept.folder.as_uri()),))


def test_files_of_folders_elsewhere_are_counted_and_stay(tmp_path: Path) -> None:
    elsewhere = tmp_path / "shared"
    elsewhere.mkdir()
    swept = Swept(sqlite_site(tmp_path), **{"write.data.path": elsewhere.as_uri()})
    dead = elsewhere / "dead.parquet"
    dead.write_bytes(b"x")
    survey = swept.survey()
    assert not survey.files
    assert survey.spared["outside of the table's location: other tables may have them"] == 1


# ------------------------------------------------------------------------------------------ Bounds


def in_stages(swept: Swept, **more: Any) -> list[LakeSurvey]:
    """Run all stages of a search, as the coordinator does."""
    stages, after = list[LakeSurvey](), ""
    while not stages or after:
        survey = swept.survey(after=after, **more)
        swept.carry_out(survey, **more)
        stages.append(survey)
        after = survey.after
    return stages


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_a_long_listing_goes_on_where_it_ended(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(orphans, "LISTED_MAX", most)
    dead = dead_files(swept)
    swept.put("data/nested/a.parquet")
    swept.put("data/nested/z/_delta_log/0.json")
    swept.put("data/nested/z/b.parquet")
    swept.put("data/nested/metadata/1.metadata.json")
    before = swept.whole()
    stages = in_stages(swept)
    assert len(stages) >= len(before) / most - 1
    assert before - swept.whole() == dead
    swept.require_rows()


def test_a_run_deletes_a_bounded_number_and_the_next_one_goes_on(swept: Swept) -> None:
    dead, before = dead_files(swept), swept.whole()
    stages = in_stages(swept, files_max=2)
    assert [len(stage.files) for stage in stages] == [2, 2, 2]
    assert [stage.more for stage in stages] == [4, 2, 0]
    assert before - swept.whole() == dead
    swept.require_rows()


def test_too_many_names_or_tables_delete_nothing(
    swept: Swept, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept.put("data/dead.parquet")
    with monkeypatch.context() as few:
        few.setattr(orphans, "NAMED_MAX", 5)
        with pytest.raises(RefusedError, match="snapshots name more than 5 files"):
            swept.survey()
    monkeypatch.setattr(orphans, "TABLES_MAX", 0)
    IcebergTable.create(swept.catalog, "another", SCHEMA)
    with pytest.raises(RefusedError, match="the catalog has more than 0 tables"):
        swept.survey()


# ---------------------------------------------------------------------------------------------- S3


@pytest.fixture
def lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, CatalogSite]]:
    """Return a catalog that lends, and whose tables lie in a store that takes nothing else."""
    with s3_server() as server, lending_door(server) as door:
        server.create_bucket("lake")
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{door.port}")
        monkeypatch.setenv("AWS_REGION", REGION)
        storage = {**door.access("owner"), "s3.endpoint": server.endpoint}
        with rest_site(tmp_path, {**storage, "warehouse": "s3://lake/warehouse"}) as site:
            assert site.rest is not None
            site.rest.lends = lambda: door.lend(time.time())
            yield site.rest.inner, site


@pytest.mark.slow
def test_files_in_s3_are_reached_with_what_the_catalog_lends(lent: tuple[Any, CatalogSite]) -> None:
    catalog, site = lent
    catalog.create_namespace_if_not_exists("db")
    writer = IcebergTable.create(catalog, "t", SCHEMA)
    for first in (0, 10):
        writer.append(pa.table({"id": range(first, first + 10), "p": ["x"] * 10}))
    table = writer.table
    dead = ("data/dead.parquet", "data/a b/dead%20.parquet", "data/nested/part.parquet")
    for path in (*dead, "data/nested/_delta_log/0.json"):
        with table.io.new_output(f"{table.location()}/{path}").create() as stream:
            stream.write(b"x")
    source: IcebergSource = open_iceberg("prod:db.t", site.properties)
    rules = MaintenanceRules(now_s=time.time() + OLD_S, keep_s=DAY_S, files_max=1000)
    survey = source.survey(ORPHANS, source.load(), rules)
    assert {file.path for file in survey.files} == set(dead[:2])
    freed = source.carry_out(survey, source.load(), rules)
    assert freed.files == 2
    assert Counter(table.scan().to_arrow()["id"].to_pylist()) == Counter(range(20))
    assert not source.survey(ORPHANS, source.load(), rules).files
