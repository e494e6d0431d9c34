"""Merged manifests of an Iceberg table: the same files in fewer manifests, next to writers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.types import NestedField, StringType, StructType

from common.errors import UnavailableError
from common.lake import rules
from common.lake.iceberg import commit
from common.lake.iceberg.manifests import live_entries
from common.lake.iceberg.write import layout_of
from common.lake.mirror import difference, mirrored_file, mirrored_of, tablets_of
from common.lake.source import Answer, Freed, LakeSurvey
from common.model.table import SPEC_PARTITIONS, LakeTable, Table
from tests.contract.test_lake_iceberg_maintenance import DAY_S, Kept
from tests.support.iceberg_catalogs import (
    CatalogSite,
    Fault,
    rest_site,
    site_of,
    sqlite_site,
)
from tests.support.iceberg_race import ATTEMPT, Files
from tests.support.independent_reader import independent_reader
from tests.support.race_attempt import LakeAttempt

MERGE = "manifests"
ORPHANS = "orphan-files"


def values_of(file: Any) -> str:
    """Return all values of an entry's file as text."""
    values = [file[number] for number in range(len(file))]
    return repr([dict(one) if isinstance(one, Mapping) else one for one in values])


class Merged(Kept):
    """A table of six files, each of which has a manifest."""

    def __init__(self, site: CatalogSite, **properties: str) -> None:
        super().__init__(site, **properties)
        for first in (30, 40, 50):
            self.append(first)
        self.expected = Counter(range(60))

    def survey(self, later_s: float = 0.0, **more: Any) -> LakeSurvey:
        given = {"manifests_min": 2, **more}
        return self.source.survey(MERGE, self.source.load(), self.rules(later_s, **given))

    def run(self, later_s: float = 0.0, **more: Any) -> Freed:
        """Do all of it, as the coordinator does."""
        given = {"manifests_min": 2, **more}
        survey = self.survey(later_s, **given)
        assert survey.has_work, survey.why
        head = self.source.load()
        return self.source.carry_out(survey, head, self.rules(later_s, **given))

    def delete(self, *ids: int, single: bool = True) -> None:  # type: ignore[override]  # of rows
        self.writer.delete(ids, single=single)
        self.expected.subtract(ids)

    def split_spec(self) -> None:
        """Partition by another column from now on."""
        with self.writer.table.update_spec() as update:
            update.add_identity("id")

    def manifests(self) -> list[Any]:
        table = self.writer.table
        head = table.current_snapshot()
        assert head is not None
        return head.manifests(table.io)

    def entries(self) -> set[tuple[Any, ...]]:
        """Return all that the head says of its live files."""
        table = self.writer.table
        return {
            (
                manifest.content,
                manifest.partition_spec_id,
                entry.snapshot_id,
                entry.sequence_number,
                entry.file_sequence_number,
                values_of(entry.data_file),
            )
            for manifest in self.manifests()
            for entry in manifest.fetch_manifest_entry(table.io)
        }

    def summary(self) -> tuple[str, dict[str, str]]:
        """Return the operation of the head, and the other properties of its summary."""
        head = self.writer.table.current_snapshot()
        assert head is not None
        assert head.summary is not None
        return head.summary.operation.value, head.summary.additional_properties

    def in_metadata(self) -> set[str]:
        return {path for path in self.stored() if path.startswith("metadata/")}

    def require_rows(self) -> None:
        """Check that independent readers see all rows, at each snapshot too."""
        wanted = +self.expected
        assert self.rows() == wanted
        seen = independent_reader().iceberg_rows(self.writer.metadata, "id")
        assert seen == Counter({(row,): count for row, count in wanted.items()})
        for snapshot_id in self.ids():
            assert self.rows(snapshot_id).total() > 0


@pytest.fixture
def merged(tmp_path: Path) -> Merged:
    return Merged(sqlite_site(tmp_path))


@pytest.fixture
def behind_rest(tmp_path: Path) -> Any:
    with rest_site(tmp_path) as site:
        yield Merged(site)


def between(act: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, times: int = 1) -> None:
    """Let another writer in between the load and the request of a merge."""
    send, left = commit.commit_once, [act] * times

    def sent_late(*words: Any) -> Answer:
        if left:
            left.pop()()
        return send(*words)

    monkeypatch.setattr(commit, "commit_once", sent_late)


# ------------------------------------------------------------------------------------------- Merge


class OtherWriter(ManifestWriterV2):
    """Writes entries with one more field of their files, as newer releases of other writers do."""

    field = 0

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        plain = self._with_partition(2)
        *leading, own = plain.fields
        assert isinstance(own.field_type, StructType)
        more = NestedField(self.field, "more", StringType(), required=False)
        file = StructType(*own.field_type.fields, more)
        return AvroOutputFile(
            output_file=self._output_file,
            file_schema=Schema(*leading, NestedField(2, "data_file", file, required=True)),
            record_schema=plain,
            schema_name="manifest_entry",
            metadata=self._meta,
        )


def write_anew(table: PyIcebergTable, manifest: ManifestFile, field: int) -> None:
    """Replace a manifest by one with the same entries and one more field."""
    entries = manifest.fetch_manifest_entry(table.io)
    output, snapshot_id = table.io.new_output(manifest.manifest_path), manifest.added_snapshot_id
    writer = OtherWriter(table.spec(), table.schema(), output, snapshot_id, "gzip")
    writer.field = field
    with writer:
        for entry in entries:
            writer.add_entry(entry)


@pytest.mark.parametrize(("field", "is_known"), [(143, True), (900, False)])
def test_entries_keep_the_fields_of_their_writer(
    merged: Merged, field: int, is_known: bool
) -> None:
    table, written = merged.writer.table, merged.manifests()
    for manifest in written[:2]:
        write_anew(table, manifest, field)
    before = merged.entries()
    merged.run()
    assert merged.entries() == before
    table, layouts = merged.writer.table, dict[int, set[str]]()
    for manifest in merged.manifests():
        entries = list(live_entries(table.io, manifest))
        layouts[len(entries)] = set(map(layout_of, entries))
    assert {count: len(own) for count, own in layouts.items()} == {4: 1, 2: 1}
    assert "more" not in layouts[4].pop()
    assert ("more" in layouts[2].pop()) == is_known
    merged.require_rows()


def require_merged(merged: Merged) -> None:
    """Merge manifests of two specs and both contents, and compare every entry."""
    merged.delete(1, 11)
    merged.delete(2, 12, single=False)
    merged.writer.delete_by_copy("id == 35")
    merged.expected.subtract([35])
    merged.split_spec()
    for row in (60, 61):
        merged.append(row, 1)
        merged.expected[row] += 1
    before, entries = merged.manifests(), merged.entries()
    kinds = {(item.partition_spec_id, item.content) for item in before}
    assert len(kinds) == 3
    survey = merged.survey()
    assert survey.creates == f"version with 3 manifests in place of {len(before)}"
    assert merged.manifests() == before, "a survey changes nothing"

    assert merged.run() == Freed(created=survey.creates)

    after = merged.manifests()
    assert len(after) == 3
    assert {(item.partition_spec_id, item.content) for item in after} == kinds
    assert merged.entries() == entries
    merged.require_rows()
    operation, counts = merged.summary()
    names = ("manifests-created", "manifests-kept", "manifests-replaced")
    assert operation == "replace"
    assert [counts[name] for name in names] == ["3", "0", str(len(before))]
    again = merged.survey()
    assert not again.has_work
    assert again.why == "of 3 manifests, merging would leave 0 fewer; lake_manifests_min is 2"


@pytest.mark.parametrize("kind", ["sqlite", "rest"])
def test_manifests_of_one_kind_are_merged_and_no_entry_changes(tmp_path: Path, kind: str) -> None:
    with site_of(kind, tmp_path) as site:
        require_merged(Merged(site))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("kind", ["postgres", "glue"])
def test_manifests_are_merged_in_other_catalogs(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site_of(kind, tmp_path) as site:
        require_merged(Merged(site))
        raced = Merged(site)
        require_merged_next_to_appends(raced, monkeypatch)


def test_manifests_are_merged_only_if_enough_go(merged: Merged) -> None:
    survey = merged.survey(manifests_min=6)
    assert (survey.creates, survey.has_work) == ("", False)
    assert survey.why == "of 6 manifests, merging would leave 5 fewer; lake_manifests_min is 6"
    assert (
        merged.survey(manifests_min=6, is_asked=True).creates
        == "version with 1 manifest in place of 6"
    )
    assert merged.survey(manifests_min=5).has_work
    survey = merged.survey(manifests_min=5)
    given = merged.rules(0.0, manifests_min=6)
    assert merged.source.carry_out(survey, merged.source.load(), given) == Freed()
    assert len(merged.manifests()) == 6


def test_manifests_have_the_size_that_the_table_says(merged: Merged) -> None:
    sizes = [item.manifest_length for item in merged.manifests()]
    with merged.writer.table.transaction() as change:
        change.set_properties({"commit.manifest.target-size-bytes": str(3 * max(sizes))})
    assert merged.survey().creates == "version with 2 manifests in place of 6"
    merged.run()
    assert len(merged.manifests()) == 2
    merged.require_rows()
    with merged.writer.table.transaction() as change:
        change.set_properties({"commit.manifest.target-size-bytes": str(max(sizes))})
    assert not merged.survey(is_asked=True).has_work, "large ones are not written again"


def test_one_run_merges_a_bounded_number(merged: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "MERGED_MAX", 4)
    survey = merged.survey()
    assert (survey.creates, survey.more) == ("version with 3 manifests in place of 6", 2)
    assert survey.rest == "2 more files can be merged"
    merged.run()
    assert len(merged.manifests()) == 3
    merged.require_rows()


def test_the_mirror_stays_as_it_is(merged: Merged) -> None:
    merged.delete(1, 11)
    head = merged.source.load()
    assert merged.source.operations[-1] == MERGE
    table = Table(
        id="t1",
        name="events",
        location=head.root,
        schema=head.columns,
        partition_by=SPEC_PARTITIONS,
        lake=LakeTable(format="iceberg", uri="prod:db.t", table_id=head.table_id, root=head.root),
    )
    before = tablets_of(table, head.files.values())
    stored = [
        (end, {path: mirrored_file(file) for path, file in tablet.files.items()})
        for end, tablet in before.items()
    ]
    mirrored = mirrored_of(stored)
    merged.run()
    after = merged.source.load(head)
    assert after.version == head.version + 1
    moves = difference(mirrored, tablets_of(table, after.files.values()))
    assert moves.steps == ({},)
    assert not moves.went
    assert {path: mirrored_file(file) for path, file in after.files.items()} == {
        path: mirrored_file(file) for path, file in head.files.items()
    }


# ------------------------------------------------------------------------------------------- Races


def require_merged_next_to_appends(merged: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = iter(range(100, 200))

    def append() -> None:
        row = next(rows)
        merged.append(row, 1)
        merged.expected[row] += 1

    between(append, monkeypatch, times=3)
    assert merged.run().created == "version with 4 manifests in place of 9"
    assert len(merged.manifests()) == 4
    merged.require_rows()


def test_appends_between_load_and_commit_are_kept(
    merged: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_merged_next_to_appends(merged, monkeypatch)


def test_deletes_between_load_and_commit_are_kept(
    merged: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    between(lambda: merged.delete(1, 11, 21), monkeypatch)
    merged.run()
    assert [item.content for item in merged.manifests()].count(ManifestContent.DATA) == 1
    merged.require_rows()


def test_a_merge_that_others_overtake_at_each_try_leaves_nothing(
    merged: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = iter(range(100, 200))

    def append() -> None:
        row = next(rows)
        merged.append(row, 1)
        merged.expected[row] += 1

    between(append, monkeypatch, times=commit.MERGE_TRIES_MAX)
    with pytest.raises(UnavailableError, match="another writer committed first: the next run"):
        merged.run()
    assert not [path for path in merged.in_metadata() if "neve" in path]
    merged.require_rows()
    merged.run()
    assert len(merged.manifests()) == 1
    merged.require_rows()


def test_a_merge_ends_if_a_manifest_was_replaced(
    merged: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy() -> None:
        merged.writer.delete_by_copy("id == 35")
        merged.expected.subtract([35])

    between(copy, monkeypatch)
    with pytest.raises(UnavailableError, match="another writer committed first: the next run"):
        merged.run()
    assert not [path for path in merged.in_metadata() if "neve" in path]
    merged.require_rows()
    merged.run()
    merged.require_rows()


def compaction(merged: Merged) -> tuple[LakeAttempt, Any]:
    """Return an attempt that has rewritten three files, and has not committed."""
    source = merged.opened()
    head = source.load()
    paths = sorted(head.files, key=lambda path: head.files[path].sequence)[:3]
    attempt = LakeAttempt(ATTEMPT, source, Files(merged.writer, source))
    return attempt, attempt.rewrite(head, [paths])


def test_no_attempt_is_doomed_by_a_merge(merged: Merged) -> None:
    attempt, rewritten = compaction(merged)
    merged.run()
    merged.delete(1, 31)
    end = attempt.publish(rewritten)
    assert end.ending is rules.PublishEnd.COMMITTED
    assert len(merged.writer.live()) == 4
    merged.require_rows()


def test_a_merge_between_load_and_commit_of_an_attempt(
    merged: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, rewritten = compaction(merged)
    with monkeypatch.context() as racing:
        between(merged.run, racing)
        end = attempt.publish(rewritten)
    assert end.ending is rules.PublishEnd.COMMITTED
    assert len(merged.writer.live()) == 4
    merged.require_rows()


def test_an_attempt_that_commits_first_ends_the_merge(
    merged: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, rewritten = compaction(merged)
    between(lambda: attempt.publish(rewritten), monkeypatch)
    with pytest.raises(UnavailableError, match="another writer committed first"):
        merged.run()
    assert len(merged.writer.live()) == 4
    assert not [path for path in merged.in_metadata() if "neve-manifests" in path]
    merged.require_rows()


def test_a_rollback_and_an_expiry_after_a_merge(merged: Merged) -> None:
    before = merged.ids()[-1]
    merged.run()
    merged.set_main(before)
    merged.require_rows()
    merged.append(100, 1)
    merged.expected[100] += 1
    merged.run()
    merged.require_rows()
    old = {item.manifest_path for item in merged.manifests()}
    Kept.run(_as_expiry(merged), 6 * DAY_S)
    assert {item.manifest_path for item in merged.manifests()} == old
    assert len(merged.ids()) == 1
    merged.require_rows()
    assert merged.stored() == merged.reached()


def _as_expiry(merged: Merged) -> Any:
    """Return the same table with the operations of its base class."""
    kept = Kept.__new__(Kept)
    kept.__dict__.update(merged.__dict__)
    return kept


# ------------------------------------------------------------------------------------- REST answers


@pytest.mark.parametrize("status", [409, 500, 504, 0])
def test_a_merge_whose_answer_is_wrong_is_looked_for(behind_rest: Merged, status: int) -> None:
    merged = behind_rest
    assert merged.site.rest is not None
    merged.site.rest.faults = [Fault(status)]
    commits = merged.site.rest.commits
    assert merged.run().created == "version with 1 manifest in place of 6"
    assert merged.site.rest.commits == commits + 1
    assert len(merged.manifests()) == 1
    merged.require_rows()


@pytest.mark.parametrize("status", [409, 500, 504, 0])
def test_a_merge_that_may_still_arrive_is_not_sent_again(behind_rest: Merged, status: int) -> None:
    merged = behind_rest
    assert merged.site.rest is not None
    merged.site.rest.faults = [Fault(status, is_committed=False)]
    commits = merged.site.rest.commits
    with pytest.raises(UnavailableError):
        merged.run()
    assert merged.site.rest.commits == commits + 1
    left = {path for path in merged.in_metadata() if "neve-manifests" in path}
    assert len(left) == 2, "what may arrive is not deleted"
    merged.require_rows()
    merged.run()
    merged.require_rows()
    survey = merged.source.survey(ORPHANS, merged.source.load(), merged.rules(4 * DAY_S))
    assert left <= {file.path for file in survey.files}


def test_a_request_that_arrives_late_changes_nothing(
    merged: Merged, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[Any] = []

    def lost(*words: Any) -> Answer:
        late.append(words)
        raise UnavailableError("the request is on its way")

    with monkeypatch.context() as silent:
        silent.setattr(commit, "commit_once", lost)
        with pytest.raises(UnavailableError, match="the request is on its way"):
            merged.run()
    base = merged.ids()[-1]
    merged.append(100, 1)
    merged.expected[100] += 1
    assert commit.commit_once(*late[0]) is Answer.CONFLICT
    merged.require_rows()
    merged.set_main(base)  # The branch is where the request expects it, but numbers were given.
    merged.expected[100] -= 1
    assert commit.commit_once(*late[0]) is Answer.CONFLICT
    merged.require_rows()


def test_entries_are_those_of_their_writers(merged: Merged) -> None:
    merged.run()
    table = merged.writer.table
    (manifest,) = merged.manifests()
    entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    assert {entry.status for entry in entries} == {ManifestEntryStatus.EXISTING}
    assert [entry.sequence_number for entry in entries] == sorted(range(1, 7), reverse=True)
    assert manifest.min_sequence_number == 1
    _, counts = merged.summary()
    assert (counts["total-data-files"], counts["total-records"]) == ("6", "60")
    assert len({entry.snapshot_id for entry in entries}) == 6
    assert pa.array([entry.data_file.record_count for entry in entries]).to_pylist() == [10] * 6
