"""A table of another format is never taken over, and none of its files is deleted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from common.model.location_identity import PUBLISHED_PATH
from common.parquet.foreign_formats import FOLDERS_MAX, foreign_mark, foreign_mark_below
from common.parquet.location import open_location
from neve.client.errors import RefusedError
from tests.support.gateway import Gateway, serving
from tests.support.other_formats import FORMATS, ROWS, delta, iceberg

pytestmark = pytest.mark.unit
NO_TABLE_HERE = "cannot take over tables of this format yet"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with serving() as served:
        yield served


def files_of(folder: Path) -> Mapping[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("where", ["lake", "lake/raw", "lake/raw/t", "lake/raw/t/data"])
def test_no_table_is_made_in_above_or_below_one_of_another_format(
    gateway: Gateway, tmp_path: Path, name: str, where: str
) -> None:
    FORMATS[name](tmp_path / "lake/raw/t")
    (tmp_path / "lake/raw/t/data").mkdir(exist_ok=True)
    pq.write_table(ROWS, tmp_path / "lake/raw/t/data/x.parquet")
    before, location = files_of(tmp_path), str(tmp_path / where)

    with gateway.client() as client:
        for attempt in (
            lambda: client.import_table(location, "t", dry_run=True),
            lambda: client.import_table(location, "t", leave_misfits=True),
            lambda: client.create_table("t", location, schema=ROWS.schema),
            lambda: client.rebuild(location, "t", append_only=True),
        ):
            with pytest.raises(RefusedError, match=NO_TABLE_HERE) as refusal:
                attempt()
            assert name in str(refusal.value)
    assert files_of(tmp_path) == before, "nothing was written"


def test_a_neighbour_of_such_a_table_is_free(gateway: Gateway, tmp_path: Path) -> None:
    for name, write in FORMATS.items():
        write(tmp_path / "lake" / name)
    (tmp_path / "lake/metadata").mkdir()
    (tmp_path / "lake/metadata/notes.json").write_text("{}")
    with gateway.client() as client:
        client.create_table("neighbour", str(tmp_path / "lake/own"), schema=ROWS.schema)


def test_files_of_such_a_table_are_not_added(gateway: Gateway, tmp_path: Path) -> None:
    with gateway.client() as client:
        client.create_table("adding", str(tmp_path / "t"), schema=ROWS.schema)
        pq.write_table(ROWS, tmp_path / "t/own.parquet")
        delta(tmp_path / "t/raw")
        (theirs,) = sorted((tmp_path / "t/raw").glob("part-00000*"))
        assert client.add_files("adding", ["own.parquet"]).rows == 3
        with pytest.raises(RefusedError, match="Delta Lake"):
            client.add_files("adding", [str(theirs)])
        iceberg(tmp_path / "t")
        with pytest.raises(RefusedError, match="Iceberg"):
            client.add_files("adding", ["own.parquet"])
        with pytest.raises(RefusedError, match="Iceberg"):
            client.drop("adding", delete_files=True)
        client.drop("adding")


def test_a_log_that_the_service_published_does_not_count(gateway: Gateway, tmp_path: Path) -> None:
    root = tmp_path / "t"
    delta(root)
    location = open_location(root.as_uri())
    (root / PUBLISHED_PATH).parent.mkdir()
    (root / PUBLISHED_PATH).write_text(json.dumps({"tables": ["t0", "t1"]}))
    assert foreign_mark(location) is not None, "the log is one of another writer"
    assert foreign_mark_below(location) is not None
    newest = max((root / "_delta_log").glob("*.json"))
    info = {"neveTable": "t1", "neveAsOf": 1.5, "neveFiles": 0, "neveRows": 0}
    newest.write_text(json.dumps({"commitInfo": info}) + "\n" + newest.read_text())
    assert foreign_mark(location, ["a/b.parquet"]) is None
    assert foreign_mark_below(location) is None
    with gateway.client() as client:
        assert client.import_table(str(root), "own", dry_run=True).rows == 6
    stranger = json.dumps({"commitInfo": {**info, "neveTable": "x"}})
    for damage in ("{", "[]", '{"commitInfo": 1}', stranger):
        newest.write_text(damage)
        assert foreign_mark(location) is not None, damage
    newest.write_text(json.dumps({"commitInfo": info}))
    (root / PUBLISHED_PATH).write_text("_delta_log\n")
    assert foreign_mark(location) is not None, "the note is unreadable"
    (root / PUBLISHED_PATH).write_text(json.dumps({"tables": ["t1"]}))
    assert foreign_mark(location) is None
    iceberg(root)
    assert foreign_mark(location) is not None
    assert foreign_mark(open_location((root / "below").as_uri())) is not None


def test_the_look_below_a_location_is_bounded(tmp_path: Path) -> None:
    for number in range(FOLDERS_MAX):
        (tmp_path / f"a/{number:04}").mkdir(parents=True)
    delta(tmp_path / "a/near")
    assert foreign_mark_below(open_location((tmp_path / "a").as_uri())) is not None
    delta(tmp_path / "b/far/x")
    for number in range(FOLDERS_MAX):
        (tmp_path / f"b/early/{number:04}").mkdir(parents=True)
    (tmp_path / "b/early/9/8/7").mkdir(parents=True)
    delta(tmp_path / "b/early/9/8/7/deep")
    assert foreign_mark_below(open_location((tmp_path / "b/early").as_uri())) is None


@pytest.mark.parametrize("where", ["", "raw", "../.."])
def test_an_import_over_a_live_table_names_that_table(
    gateway: Gateway, tmp_path: Path, where: str
) -> None:
    root, name = tmp_path / "up/t", f"live{len(where)}"
    (root / "raw").mkdir(parents=True)
    pq.write_table(ROWS, root / "raw/a.parquet")
    with gateway.client() as client:
        client.create_table(name, str(root), schema=ROWS.schema)
        client.append(name, ROWS)
        for dry_run in (True, False):
            with pytest.raises(RefusedError, match=f"of table '{name}'") as refusal:
                client.import_table(str((root / where).resolve()), "again", dry_run=dry_run)
            assert "rebuild" not in str(refusal.value)
