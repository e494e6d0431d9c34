"""Files that an attempt on an Iceberg table writes next to its outputs, and what stays of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFileContent, ManifestContent

from common.lake import rules
from tests.support.iceberg_catalogs import sqlite_site
from tests.support.iceberg_race import ATTEMPT, Files, Race
from tests.support.race_attempt import LakeAttempt


@pytest.fixture
def plain(tmp_path: Path) -> Race:
    return Race(sqlite_site(tmp_path))


def files_of_attempt(race: Race) -> set[str]:
    """Return the names of what an attempt has written, outputs aside."""
    folder = Path(race.table.location().removeprefix("file://"))
    return {
        path.name
        for path in folder.rglob("*")
        if ATTEMPT in path.name
        and path.suffix in {".avro", ".parquet"}
        and "part-" not in path.name
    }


def test_what_refused_tries_wrote_is_deleted_when_it_cannot_arrive(plain: Race) -> None:
    state = plain.plan()
    plain.delete(4)
    appends = iter(range(40, 60, 10))

    def append(step: rules.PublishStep) -> None:
        first = next(appends, None) if isinstance(step, rules.SendVersion) else None
        if first is not None:
            plain.appended(first)

    plain.attempt.between = append
    end = plain.publish(state)

    assert end.ending is rules.PublishEnd.COMMITTED
    assert len(plain.attempt.sent) == 3
    named = files_of_attempt(plain)
    snapshot = plain.table.current_snapshot()
    assert snapshot is not None
    ours = str(snapshot.snapshot_id)
    assert {name for name in named if ours not in name} == set()
    plain.require_rows()


@pytest.mark.parametrize("tries_max", [rules.TRIES_MAX, 1])
def test_nothing_is_left_of_tries_if_no_try_follows(plain: Race, tries_max: int) -> None:
    """The only try is refused, and then the inputs have left, or there is no further try."""
    state = replace(plain.plan(), tries_max=tries_max)
    plain.delete(4)
    others = plain.opened()
    other = LakeAttempt("fedcba98", others, Files(plain.writer, others))

    def compact(step: rules.PublishStep) -> None:
        if isinstance(step, rules.SendVersion):
            other.publish(other.rewrite(others.load(), [plain.paths]))

    plain.attempt.between = compact
    end = plain.publish(state)

    ending = rules.PublishEnd.REFUSED if tries_max > 1 else rules.PublishEnd.CONFLICTED
    assert (end.ending, len(plain.attempt.sent)) == (ending, 1)
    assert files_of_attempt(plain) == set()
    plain.require_rows()


def test_manifests_of_replaced_files_are_merged(plain: Race) -> None:
    for first in range(40, 140, 10):
        plain.appended(first)
    head = plain.source.load()
    plain.paths = sorted(head.files, key=lambda path: head.files[path].sequence)
    snapshot = plain.table.current_snapshot()
    assert snapshot is not None
    before = len(snapshot.manifests(plain.table.io))
    plain.publish(plain.plan(range(10)))
    snapshot = plain.table.current_snapshot()
    assert snapshot is not None
    after = snapshot.manifests(plain.table.io)

    assert (before, len(after)) == (14, 6)  # one of the output, one of the inputs, four others
    assert {manifest.content for manifest in after} == {ManifestContent.DATA}
    plain.append(500)
    plain.rows.update(range(500, 510))
    plain.require_rows()


def test_remapped_positions_have_bounds_and_reserved_fields(plain: Race) -> None:
    state = plain.plan()
    plain.delete(4, 9)
    plain.publish(state)
    (file,) = [
        file for file in plain.live_files() if file.content == DataFileContent.POSITION_DELETES
    ]
    (output,) = [
        file.file_path for file in plain.live_files() if file.file_path.endswith("-0.parquet")
    ]

    assert file.lower_bounds == {2147483546: output.encode(), 2147483545: (4).to_bytes(8, "little")}
    assert file.upper_bounds[2147483545] == (9).to_bytes(8, "little")
    assert (file.record_count, ATTEMPT in file.file_path) == (2, True)
    with plain.table.io.new_input(file.file_path).open() as stream:
        schema = pq.ParquetFile(stream).schema_arrow
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in schema]
    assert (schema.names, ids) == (["file_path", "pos"], [2147483546, 2147483545])
    assert np.array_equal(plain.source.positions(plain.source.load().files[_path(plain)]), [4, 9])


def _path(race: Race) -> str:
    return next(path for path in race.source.load().files if path.endswith("-0.parquet"))
