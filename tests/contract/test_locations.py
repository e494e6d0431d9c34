"""What every kind of storage does for a table: on a local disk, and over S3."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import InputError, RefusedError, RequestError, RewriteError
from common.model.table import Table
from common.parquet.file_inspection import inspect_file, read_rows
from common.parquet.location import (
    Location,
    existing_files,
    open_location,
    size_of,
)
from common.parquet.service_files import (
    LocationOwner,
    generation_fault,
    owner_of,
    read_owner,
    read_small,
    refuse_other_owner,
    write_generation,
    write_owner,
    write_small,
    written_generation,
)
from common.parquet.write import write_table
from common.rows.rules import RowRules
from common.rows.schema import columns_of
from compactor.rewrite.file_io import NewFile, delete_file
from compactor.rewrite.parquet_bytes.relocation import StitchPiece
from compactor.rewrite.parquet_bytes.stitch import STORED_STEP_BYTES, stitch
from compactor.rewrite.plan.inputs import read_footer
from coordinator.context import ArrowStorage
from neve.recovery.stored_files import list_location
from tests.support.predictable import ManualClock
from tests.support.s3_server import VARIABLES, S3Server, s3_server

ROWS = pa.table({"k": range(5000), "v": [1] * 5000, "s": [f"é{n}" for n in range(5000)]})


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        running.create_bucket("tables")
        yield running


@pytest.fixture(params=["file", "s3"])
def location(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Location:
    """Return an empty location of each kind."""
    if request.param == "file":
        return open_location(f"{tmp_path.as_uri()}/a%20b/t")
    running: S3Server = request.getfixturevalue("server")
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in running.environ.items():
        monkeypatch.setenv(name, value)
    return open_location(f"s3://tables/{tmp_path.name}/a%20b/t")


def table_at(location: Location) -> Table:
    return Table(
        id="t1",
        name="t",
        location=location.uri,
        schema=columns_of(ROWS.schema),
        key=("k",),
        version_column="v",
    )


def write(location: Location, path: str, rows: pa.Table = ROWS) -> RowRules:
    table = table_at(location)
    rules = RowRules.of(table)
    write_table(location, path, rows, rules, table.settings)
    return rules


def test_a_location_belongs_to_the_store_that_claimed_it_first(location: Location) -> None:
    assert owner_of(location) is None
    write_owner(location, LocationOwner("store-1"))
    assert owner_of(location) == "store-1"
    with pytest.raises(RefusedError, match="belongs to the store store-1"):
        refuse_other_owner(location.uri, read_owner(location), "store-2")
    owner = asyncio.run(ArrowStorage(ManualClock()).owner(location.uri))
    assert owner is not None
    assert owner.store == "store-1"


def test_a_generation_is_written_and_read_back(location: Location) -> None:
    assert written_generation(location) == 0
    for number in (1, 2):
        write_generation(location, number)
        assert written_generation(location) == number
    assert generation_fault("t", 1, written_generation(location)) is not None


def test_small_files_are_replaced_whole(location: Location) -> None:
    assert read_small(location, "_neve/x", 10) is None
    write_small(location, "_neve/x", b"a much longer one")
    write_small(location, "_neve/x", b"short")
    assert read_small(location, "_neve/x", 100) == b"short"
    assert read_small(location, "_neve/x", 2) == b"sh"


def test_rows_are_written_looked_into_and_read(location: Location) -> None:
    rules = write(location, "day=1/é b%20c.parquet")
    facts = inspect_file(location, "day=1/é b%20c.parquet", rules)
    assert (facts.rows.rows, facts.rows.clean) == (5000, True)
    assert facts.size_bytes == size_of(location, facts.path)
    assert read_rows(location, facts.path, rules).equals(ROWS)
    assert read_footer(location, facts.path).num_rows == 5000


def test_a_listing_shows_the_files_that_were_written(location: Location) -> None:
    assert list_location(location) == {}
    names = ["a.parquet", "b/c.parquet", "_neve/append/x.parquet"]
    for name in names:
        write(location, name, ROWS.slice(0, 10))
    found = list_location(location)
    assert sorted(found) == sorted(names)
    assert all(each.size_bytes > 0 and each.changed_s for each in found.values())


def test_deleting_twice_is_once(location: Location) -> None:
    write(location, "a/b.parquet", ROWS.slice(0, 1))
    clock = ManualClock()
    storage, until_s = ArrowStorage(clock), clock.now_s()
    assert asyncio.run(storage.delete(location.uri, "a/b.parquet", until_s))
    assert not asyncio.run(storage.delete(location.uri, "a/b.parquet", until_s))
    assert delete_file(location, "a/b.parquet")
    assert list_location(location) == {}


def test_nothing_is_deleted_when_it_is_too_late(location: Location) -> None:
    write(location, "a/b.parquet", ROWS.slice(0, 1))
    clock = ManualClock()
    storage, until_s = ArrowStorage(clock), clock.now_s() + 1.0
    clock.advance(1.5)
    with pytest.raises(RewriteError, match="looked at too long ago"):
        asyncio.run(storage.delete(location.uri, "a/b.parquet", until_s))
    assert [*list_location(location)] == ["a/b.parquet"]


def test_an_output_is_an_only_copy_if_it_is_whole_and_an_input_is_not_there(
    location: Location,
) -> None:
    for name in ("in-0.parquet", "_neve/last/out-0.parquet"):
        write(location, name, ROWS.slice(0, 10))
    broken = location.full("_neve/last/out-1.parquet")
    with location.filesystem.open_output_stream(broken) as file:
        file.write(b"PAR1 and no end")
    outputs = [f"_neve/last/out-{number}.parquet" for number in range(3)]
    storage = ArrowStorage(ManualClock())

    def found(*inputs: str) -> list[str]:
        return [*asyncio.run(storage.only_copies(location.uri, outputs, inputs))]

    assert found("in-0.parquet") == []
    assert found("in-0.parquet", "in-1.parquet") == outputs[:1]
    assert existing_files(location, [*outputs, "in-1.parquet"]).keys() == {*outputs[:2]}
    with pytest.raises(RewriteError, match="cannot be listed"):
        found("../in-0.parquet")


def test_a_missing_file_is_named_by_every_reader(location: Location) -> None:
    write(location, "a/b.parquet", ROWS.slice(0, 1))
    rules = RowRules.of(table_at(location))
    for path in ("no.parquet", "a/no.parquet"):
        with pytest.raises(RequestError, match="does not exist"):
            inspect_file(location, path, rules)
        with pytest.raises(InputError, match="does not exist"):
            read_footer(location, path)
    with pytest.raises(RequestError, match="is a folder"):
        size_of(location, "a")


def test_a_new_file_counts_when_it_is_closed(location: Location) -> None:
    file = NewFile(location, "_neve/last/x.parquet")
    file.sink.write(b"one")
    file.close()
    assert size_of(location, "_neve/last/x.parquet") == 3
    other = NewFile(location, "_neve/last/y.parquet")
    other.sink.write(b"two")
    other.abandon()
    assert sorted(list_location(location)) == ["_neve/last/x.parquet"]


def test_a_new_file_is_read_while_a_disk_makes_it_durable(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen, was_read = NewFile(location, "x.parquet"), list[str](), Event()

    def sync(_: int) -> None:
        assert was_read.wait(30)
        seen.append("synced")

    def read() -> None:
        assert size_of(location, "x.parquet") == 3
        seen.append("read")
        was_read.set()

    file.sink.write(b"one")
    monkeypatch.setattr(os, "fsync", sync)
    file.close(read)
    disk = ["read", "synced", "synced"]  # The file, then its folder.
    assert seen == (disk if location.is_local else ["read"])


def test_a_new_file_does_not_count_if_reading_or_syncing_fails(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: int) -> None:
        raise OSError("broken")

    file = NewFile(location, "read.parquet")
    with pytest.raises(OSError, match="broken"):
        file.close(fail)
    file.abandon()
    if location.is_local:
        file = NewFile(location, "synced.parquet")
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="broken"):
            file.close()
        file.abandon()
    assert list(list_location(location)) == []


def test_paths_that_lead_elsewhere(location: Location) -> None:
    for path in ("../x", "a/../../x", "s3://other/x", "file:///etc/passwd", "/etc/passwd"):
        with pytest.raises(RequestError, match="path"):
            location.full(path)
    assert location.full(f"{location.uri}/x") == location.full("x")


def test_row_groups_are_stitched(location: Location, tmp_path: Path) -> None:
    for name in "ab":
        write(location, f"{name}.parquet")
    seen: list[int] = []
    pieces = [StitchPiece("b.parquet"), StitchPiece("a.parquet")]
    made = stitch(location, pieces, "_neve/last/s.parquet", on_copied=seen.append)
    assert (made.rows, sum(seen)) == (10_000, made.copied_bytes)
    assert size_of(location, "_neve/last/s.parquet") == made.size_bytes
    with location.filesystem.open_input_file(location.full("_neve/last/s.parquet")) as file:
        assert pq.read_table(file).equals(pa.concat_tables([ROWS, ROWS]))


def test_ranges_of_several_parts_are_stitched(location: Location) -> None:
    noise = pa.table({"b": [bytes([n % 251]) * 65_536 for n in range(400)]})
    assert noise.nbytes > 3 * STORED_STEP_BYTES
    with location.filesystem.open_output_stream(_made(location, "n.parquet")) as sink:
        pq.write_table(noise, sink, compression="none", use_dictionary=False, row_group_size=300)
    made = stitch(location, [StitchPiece("n.parquet"), StitchPiece("n.parquet", (1,))], "s.parquet")
    assert made.row_groups == 3
    with location.filesystem.open_input_file(location.full("s.parquet")) as file:
        read = pq.read_table(file)
    assert read.equals(pa.concat_tables([noise, noise.slice(300)]))


def test_a_source_that_is_replaced_meanwhile_is_found_out(location: Location) -> None:
    for name in "ab":
        write(location, f"{name}.parquet")

    def replace(_: int) -> None:
        write(location, "new.parquet", ROWS.slice(0, 100))
        # Never missing: whoever opens it ahead at this moment would say just that.
        filesystem = location.filesystem
        filesystem.move(location.full("new.parquet"), location.full("a.parquet"))

    pieces = [StitchPiece("a.parquet"), StitchPiece("b.parquet"), StitchPiece("a.parquet")]
    # Who is reading an object while it is replaced may hear of it from the storage first.
    found_out = "changed" if location.is_local else "(changed|AWS Error)"
    with pytest.raises(InputError, match=rf"file a\.parquet cannot be read: {found_out}"):
        stitch(location, pieces, "s.parquet", on_copied=replace)
    assert "s.parquet" not in list_location(location)


def test_a_missing_piece_leaves_nothing(location: Location) -> None:
    write(location, "a.parquet")
    with pytest.raises(InputError, match=r"file no\.parquet does not exist"):
        stitch(location, [StitchPiece("a.parquet"), StitchPiece("no.parquet")], "s.parquet")
    assert sorted(list_location(location)) == ["a.parquet"]


def test_a_missing_bucket_has_no_owner_and_takes_no_file(
    location: Location, server: S3Server
) -> None:
    if location.is_local:
        return
    nowhere = open_location("s3://no-such-bucket/t")
    assert owner_of(nowhere) is None
    write(location, "a.parquet")
    with pytest.raises(RewriteError, match="cannot be written"):
        stitch(nowhere, [StitchPiece("a.parquet", None, location)], "s.parquet")


def _made(location: Location, path: str) -> str:
    full = location.full(path)
    if location.is_local:
        Path(full).parent.mkdir(parents=True, exist_ok=True)
    return full
